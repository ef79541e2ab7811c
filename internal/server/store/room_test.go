package store

import (
	"bufio"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cove-dev/cove/internal/lib/private"
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

// TestKeepRoom: a store gives back no room that it takes at its start, so that nobody else
// can take it. That is so while the store is open, after it was closed or killed, and at the
// next start.
func TestKeepRoom(t *testing.T) {
	path := filepath.Join(t.TempDir(), "cove.db")
	must(t, open(t, path).Close())
	var files []*os.File
	for _, name := range []string{path, path + "-wal", filepath.Join(filepath.Dir(path), EpochFile)} {
		f, err := os.Open(name)
		must(t, err)
		defer f.Close()
		files = append(files, f)
	}
	keeps := func(when string) {
		t.Helper()
		for i, f := range files {
			var st unix.Stat_t
			must(t, unix.Fstat(int(f.Fd()), &st))
			if least := []int64{1, walRoom, 1}[i]; st.Nlink != 1 || st.Blocks*512 < least {
				t.Errorf("%s: %s has %d names and %d bytes of room, want 1 and at least %d", when, filepath.Base(f.Name()), st.Nlink, st.Blocks*512, least)
			}
		}
		all, err := os.ReadDir(filepath.Dir(path))
		if err != nil || len(all) != len(files) {
			t.Errorf("%s: the folder has %v, %v, want %d files", when, all, err, len(files))
		}
	}
	keeps("closed")
	for range 2 {
		child, _ := inChild(t, path, "write")
		keeps("open")
		must(t, child.Process.Kill())
		_ = child.Wait() // it was killed
		keeps("killed")
		s := open(t, path)
		keeps("open again")
		if v, err := s.Settings.Get(t.Context(), "child"); err != nil || v != "write" {
			t.Errorf("after the kill: got %q, %v, want what was committed", v, err)
		}
		must(t, s.Settings.Set(t.Context(), "child", "parent"))
		must(t, s.Close())
		keeps("closed again")
	}
}

// TestShared: while a store is open, no other program can open the database, because it
// would not know the log's index. While another program has it open, no store is opened. An
// index file that is left from another opener is removed.
func TestShared(t *testing.T) {
	path := filepath.Join(t.TempDir(), "cove.db")
	s := open(t, path)
	must(t, s.Settings.Set(t.Context(), "k", "v"))
	if child, said := inChild(t, path, "read"); !strings.Contains(said, "locked") {
		t.Errorf("another program reads an open store: %s", said)
	} else {
		_ = child.Wait() // it was told
	}
	must(t, s.Close())

	child, said := inChild(t, path, "read")
	if said != "read" {
		t.Fatalf("another program reads a closed store: %s", said)
	}
	_, err := os.Stat(path + "-shm")
	must(t, err)
	_, err = Open(t.Context(), path)
	if refused, ok := errors.AsType[*private.RefusedError](err); !ok || !strings.Contains(refused.Hint, "fuser") {
		t.Errorf("a store that another program reads: got %v, want a RefusedError", err)
	}
	must(t, child.Process.Kill())
	_ = child.Wait() // it was killed
	s = open(t, path)
	if _, err := os.Stat(path + "-shm"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("cove.db-shm: got %v, want none", err)
	}
	if v, err := s.Settings.Get(t.Context(), "k"); err != nil || v != "v" {
		t.Errorf("got %q, %v", v, err)
	}
	must(t, s.Close())
}

// roomChild is what the child of a test has in its environment: what to do, and the database.
const roomChild = "COVE_TEST_ROOM_CHILD"

// inChild has another process change a store or read its database, and stay there. It
// returns what that says once it has.
func inChild(t *testing.T, path, what string) (child *exec.Cmd, said string) {
	t.Helper()
	child = exec.Command(os.Args[0], "-test.run=^TestRoomChild$")
	child.Env = append(os.Environ(), roomChild+"="+what+" "+path)
	child.Stderr = os.Stderr
	in, inErr := child.StdinPipe() // it ends with this process
	out, outErr := child.StdoutPipe()
	must(t, errors.Join(inErr, outErr, child.Start()))
	t.Cleanup(func() { _ = in.Close(); _ = child.Process.Kill(); _ = child.Wait() }) // it may have ended
	line, err := bufio.NewReader(out).ReadString('\n')
	must(t, err)
	return child, strings.TrimSpace(line)
}

// TestRoomChild is the child of inChild.
func TestRoomChild(t *testing.T) {
	what, path, ok := strings.Cut(os.Getenv(roomChild), " ")
	if !ok {
		return
	}
	var err error
	if what == "write" {
		err = open(t, path).Settings.Set(t.Context(), "child", what)
	} else {
		var db *sql.DB
		db, err = sql.Open("sqlite", path)
		must(t, err)
		err = db.QueryRow("SELECT count(*) FROM settings").Scan(new(int))
	}
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(what)
	_, _ = io.Copy(io.Discard, os.Stdin) // until the parent ends
}
