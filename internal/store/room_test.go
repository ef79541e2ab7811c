package store

import (
	"context"
	"database/sql"
	"errors"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// TestDiskErrors: callers tell by errors.Is what SQLite says of the disk.
func TestDiskErrors(t *testing.T) {
	for pragma, want := range map[string]error{"max_page_count = 1": syscall.ENOSPC, "query_only = 1": ErrDisk} {
		t.Run(pragma, func(t *testing.T) {
			st, err := Open(t.Context(), filepath.Join(t.TempDir(), "cove.db"))
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = st.Close() }()
			if _, err := st.db.write.ExecContext(t.Context(), "PRAGMA "+pragma); err != nil {
				t.Fatal(err)
			}
			if err := st.Settings.Set(t.Context(), "key", strings.Repeat("x", 1<<20)); !errors.Is(err, want) {
				t.Errorf("got %v, want %v", err, want)
			}
			if err := diskError(sql.ErrNoRows); err != sql.ErrNoRows {
				t.Errorf("another error became %v", err)
			}
		})
	}
}

// TestKeepRoom: the log has its room from the first start on, also while nobody has the
// store open.
func TestKeepRoom(t *testing.T) {
	path := filepath.Join(t.TempDir(), "cove.db")
	for range 2 {
		st, err := Open(context.Background(), path)
		if err != nil {
			t.Fatal(err)
		}
		wantRoom(t, path)
		if err := st.Settings.Set(t.Context(), "key", "value"); err != nil {
			t.Fatal(err)
		}
		wantRoom(t, path)
		if err := st.Close(); err != nil {
			t.Fatal(err)
		}
		wantRoom(t, path)
	}
}

func wantRoom(t *testing.T, path string) {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Stat(path+"-wal", &st); err != nil {
		t.Fatal(err)
	}
	if room := st.Blocks * 512; room < walRoom {
		t.Errorf("the log has %d bytes of room, not %d", room, walRoom)
	}
}
