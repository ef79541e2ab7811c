package store

import (
	"bytes"
	"database/sql"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cove-dev/cove/internal/lib/fault"
	"github.com/cove-dev/cove/internal/lib/private"
)

// TestOlderStoreLogsOut: an older store that is accepted has no browser logged in. Otherwise a
// browser that was logged out since would be logged in again. One whose epoch file was lost may
// be older. The newest keeps its sessions.
func TestOlderStoreLogsOut(t *testing.T) {
	for how, again := range map[string]func(dir, backup, path string){
		"newest":       func(string, string, string) {},
		"put back":     func(_, backup, path string) { copyStore(t, backup, path) },
		"file is lost": func(dir, _, _ string) { must(t, os.Remove(filepath.Join(dir, EpochFile))) },
	} {
		dir, ctx := t.TempDir(), t.Context()
		path, backup := filepath.Join(dir, "cove.db"), filepath.Join(t.TempDir(), "backup.db")
		s := open(t, path)
		must(t, s.WebSessions.Create(ctx, WebSession{ID: "out", CreatedAt: time.Now(), ConfirmedAt: time.Now(), LastUsed: time.Now(), ExpiresAt: time.Now().Add(time.Hour)}))
		must(t, s.Close())
		copyStore(t, path, backup)
		s = open(t, path)
		must(t, s.Settings.Set(ctx, "k", "new"))
		must(t, s.Close())
		again(dir, backup, path)
		s, err := OpenOlder(ctx, path)
		must(t, err)
		list, err := s.WebSessions.List(ctx, "")
		must(t, err)
		if (len(list) == 1) != (how == "newest") {
			t.Errorf("%s: the sessions are %+v", how, list)
		}
		must(t, s.Close())
	}
}

// copyStore copies a closed store's database to another file.
func copyStore(t *testing.T, from, to string) {
	t.Helper()
	data, err := os.ReadFile(from)
	must(t, err)
	must(t, os.WriteFile(to, data, 0o600))
}

// older reports whether an open store says that it is an older one.
func older(t *testing.T, s *Store) bool {
	t.Helper()
	is, err := s.Epoch.Older(t.Context())
	must(t, err)
	return is
}

// TestOlderStore puts an older store back. It is refused and not changed; once accepted, it
// is the newest, and says that it is older until it was reconciled.
func TestOlderStore(t *testing.T) {
	dir, ctx := t.TempDir(), t.Context()
	path, backup := filepath.Join(dir, "cove.db"), filepath.Join(t.TempDir(), "backup.db")
	s := open(t, path)
	must(t, s.Settings.Set(ctx, "k", "old"))
	must(t, s.Close())
	copyStore(t, path, backup)
	s = open(t, path)
	if older(t, s) {
		t.Error("the newest store says that it is older")
	}
	must(t, s.Settings.Set(ctx, "k", "new"))
	must(t, s.Close())
	newest := filepath.Join(t.TempDir(), "newest.db")
	copyStore(t, path, newest)

	copyStore(t, backup, path)
	before, err := os.ReadFile(path)
	must(t, err)
	if _, is := errors.AsType[*OlderError](Check(ctx, path)); !is {
		t.Errorf("a check of an older store: got %v", Check(ctx, path))
	}
	_, err = Open(ctx, path)
	refused, is := errors.AsType[*OlderError](err)
	if !is || refused.Epoch != 1 || refused.File != 2 {
		t.Fatalf("opening an older store: got %v, want an OlderError of 1 and 2", err)
	}
	if told, is := errors.AsType[*private.RefusedError](err); !is || !strings.Contains(told.Hint, "cove serve --data "+dir+" --accept-older-store") {
		t.Errorf("the refusal gives no command: %v", err)
	}
	if after, err := os.ReadFile(path); err != nil || !bytes.Equal(after, before) {
		t.Errorf("a refused store was changed (%v)", err)
	}

	copyStore(t, newest, path) // the advice is right
	must(t, Check(ctx, path))
	must(t, open(t, path).Close())

	copyStore(t, backup, path)
	for range 2 { // also after a start in which it was not reconciled
		s, err = OpenOlder(ctx, path)
		must(t, err)
		if !older(t, s) {
			t.Error("an accepted store does not say that it is older")
		}
		must(t, s.Close())
		s = open(t, path)
		if !older(t, s) {
			t.Error("after another start it does not say so any more")
		}
		must(t, s.Close())
	}
	s = open(t, path)
	must(t, s.Epoch.Reconciled(ctx))
	must(t, s.Close())
	s = open(t, path)
	if older(t, s) {
		t.Error("once reconciled, it still says that it is older")
	}
	must(t, s.Close())
	copyStore(t, newest, path)
	if _, err := Open(ctx, path); !errors.As(err, new(*OlderError)) {
		t.Errorf("opening what was the newest before another was accepted: got %v, want an OlderError", err)
	}
}

// TestLostStore: a store that is gone is not taken for that of a new folder.
func TestLostStore(t *testing.T) {
	path := filepath.Join(t.TempDir(), "cove.db")
	s := open(t, path)
	must(t, s.Settings.Set(t.Context(), "k", "v"))
	must(t, s.Close())
	must(t, os.Remove(path))
	if _, err := Open(t.Context(), path); !errors.As(err, new(*OlderError)) {
		t.Errorf("opening a folder without its store: got %v, want an OlderError", err)
	}
}

// TestStoreBeforeEpochs: a store of an earlier cove has no epoch. It is no older one, unless
// one with an epoch was there.
func TestStoreBeforeEpochs(t *testing.T) {
	dir := t.TempDir()
	path, backup := filepath.Join(dir, "cove.db"), filepath.Join(t.TempDir(), "backup.db")
	all := migrations
	migrations = all[:9]
	db, err := sql.Open("sqlite", dsn(path, "immediate"))
	must(t, err)
	err = (&database{path: path, write: db}).migrate(t.Context(), false)
	migrations = all
	must(t, errors.Join(err, db.Close()))
	copyStore(t, path, backup)
	s := open(t, path)
	if older(t, s) {
		t.Error("a store of an earlier cove says that it is older")
	}
	must(t, s.Settings.Set(t.Context(), "k", "v"))
	must(t, s.Close())
	copyStore(t, backup, path)
	if _, err := Open(t.Context(), path); !errors.As(err, new(*OlderError)) {
		t.Errorf("got %v, want an OlderError", err)
	}
	if after, err := os.ReadFile(path); err != nil {
		t.Fatal(err)
	} else if before, err := os.ReadFile(backup); err != nil || !bytes.Equal(before, after) {
		t.Errorf("a refused store was migrated (%v)", err)
	}
}

// TestEpochFile: whatever has become of the file, an honest store is not refused; and one
// whose file is gone says that it may be older.
func TestEpochFile(t *testing.T) {
	for name, c := range map[string]struct {
		text  string // of the file; "gone": there is none
		older bool
	}{
		"behind":       {string(formatEpoch(1)), false},
		"equal":        {string(formatEpoch(3)), false},
		"gone":         {"gone", true},
		"empty":        {"", true},
		"torn":         {string(formatEpoch(3))[:9], true},
		"without end":  {strings.TrimSpace(string(formatEpoch(9))), true},
		"no number":    {strings.Repeat("x", epochDigits) + "\n", true},
		"negative":     {"-0000000000000000001\n", true},
		"longer":       {string(formatEpoch(9)) + "9\n", true},
		"out of range": {strings.Repeat("9", epochDigits) + "\n", true},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			path, file := filepath.Join(dir, "cove.db"), filepath.Join(dir, EpochFile)
			s := open(t, path)
			for range 3 {
				must(t, s.Settings.Set(t.Context(), "k", "v"))
			}
			must(t, s.Close())
			must(t, os.Remove(file))
			if c.text != "gone" {
				must(t, os.WriteFile(file, []byte(c.text), 0o600))
			}
			s = open(t, path)
			defer func() { must(t, s.Close()) }()
			if got := older(t, s); got != c.older {
				t.Errorf("it says that it is older: %v, want %v", got, c.older)
			}
			must(t, s.Settings.Set(t.Context(), "k", "v"))
			stored, err := storedEpoch(t.Context(), s.db.write)
			must(t, err)
			if said, there, err := s.db.epoch.read(); err != nil || !there || said != stored {
				t.Errorf("after a change the file says %d, %v, %v, want %d", said, there, err, stored)
			}
		})
	}
}

// epochChild is what the child of TestEpochKilled has in its environment: the database.
const epochChild = "COVE_TEST_EPOCH_CHILD"

// TestEpochKilled kills (-9) a process that changes a store, at each step of the epoch's
// write. The store itself is never refused. A copy from before a change that the file has
// noted is always refused.
func TestEpochKilled(t *testing.T) {
	if path := os.Getenv(epochChild); path != "" {
		s := open(t, path)
		must(t, s.Settings.Set(t.Context(), "k", "1")) // it is stopped in here
		t.Fatal("the point was not reached")
	}
	for _, point := range []fault.Point{fault.EpochStored, fault.EpochNoted} {
		for _, before := range []int{0, 1, 9, 99} { // changes: the first one, and those that make the number longer
			t.Run(string(point)+" "+strconv.Itoa(before), func(t *testing.T) {
				dir := t.TempDir()
				path, backup, reached := filepath.Join(dir, "cove.db"), filepath.Join(dir, "backup.db"), filepath.Join(dir, "reached")
				s := open(t, path)
				for range before {
					must(t, s.Settings.Set(t.Context(), "k", "0"))
				}
				must(t, s.Close())
				copyStore(t, path, backup)
				killAt(t, "TestEpochKilled", epochChild, point, path, reached)

				must(t, Check(t.Context(), path))
				for range 2 {
					s = open(t, path)
					if v, err := s.Settings.Get(t.Context(), "k"); err != nil || v != "1" || older(t, s) {
						t.Errorf("after the kill: got %q, %v, older %v; want what was committed", v, err, older(t, s))
					}
					must(t, s.Close())
				}
				must(t, Check(t.Context(), path))
				copyStore(t, backup, path)
				if err := Check(t.Context(), path); !errors.As(err, new(*OlderError)) {
					t.Errorf("a check of the store from before the change: got %v, want an OlderError", err)
				}
				if _, err := Open(t.Context(), path); !errors.As(err, new(*OlderError)) {
					t.Errorf("the store from before the change: got %v, want an OlderError", err)
				}
			})
		}
	}
}

// killAt has a child, which is a test that finds a variable, change a store, and kills it at a
// point.
func killAt(t *testing.T, test, variable string, point fault.Point, path, reached string) {
	t.Helper()
	child := exec.Command(os.Args[0], "-test.run=^"+test+"$")
	child.Env = append(os.Environ(), variable+"="+path, fault.Variable+"="+string(point)+"="+reached)
	var out bytes.Buffer
	child.Stdout, child.Stderr = &out, &out
	must(t, child.Start())
	for deadline := time.Now().Add(10 * time.Minute); ; {
		if _, err := os.Stat(reached); err == nil {
			break
		}
		if time.Now().After(deadline) {
			t.Errorf("the child did not reach %s: %s", point, out.String())
			break
		}
		<-time.After(time.Millisecond)
	}
	must(t, child.Process.Kill())
	_ = child.Wait() // it was killed
}
