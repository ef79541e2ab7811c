package store

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// crash is what a process would leave that was killed: a copy of an open store's files.
type crash struct{ db, log []byte }

func crashOf(t *testing.T, path string) (c crash) {
	t.Helper()
	var err1, err2 error
	c.db, err1 = os.ReadFile(path)
	c.log, err2 = os.ReadFile(path + "-wal")
	if errors.Is(err2, os.ErrNotExist) {
		err2 = nil
	}
	must(t, errors.Join(err1, err2))
	return c
}

// put makes a data folder of a database, a log, and the file of the epoch.
func put(t *testing.T, db, log, epoch []byte) (path string) {
	t.Helper()
	dir := t.TempDir()
	path = filepath.Join(dir, "cove.db")
	must(t, os.WriteFile(path, db, 0o600))
	if log != nil {
		must(t, os.WriteFile(path+"-wal", log, 0o600))
	}
	must(t, os.WriteFile(filepath.Join(dir, EpochFile), epoch, 0o600))
	return path
}

// TestForeignLog puts databases beside logs, their own and others. A mixture is refused, and
// not changed; what belongs together is the newest state.
func TestForeignLog(t *testing.T) {
	dir, ctx := t.TempDir(), t.Context()
	path := filepath.Join(dir, "cove.db")
	set := func(s *Store, v string, times int, size int) {
		t.Helper()
		for i := range times {
			must(t, s.Settings.Set(ctx, "k", v+strings.Repeat([]string{" ", "\t"}[i%2], size)))
		}
	}
	s := open(t, path)
	set(s, "first", 3, 0)
	must(t, s.Close())
	first := crashOf(t, path) // as a backup would be
	s = open(t, path)
	set(s, "second", 200, 0) // the numbers get longer
	early := crashOf(t, path)
	must(t, s.Close())
	second := crashOf(t, path)
	s = open(t, path)
	set(s, "third", 3, 0)
	begun := crashOf(t, path)
	set(s, "fourth", 20, 400_000) // the log begins anew, more than once
	set(s, "last", 2, 0)
	late := crashOf(t, path)
	epoch, err := os.ReadFile(filepath.Join(dir, EpochFile))
	must(t, err)
	must(t, s.Close())
	if !bytes.Equal(second.log[:walHeader], make([]byte, walHeader)) || len(begun.log) == 0 || bytes.Equal(begun.log[16:24], late.log[16:24]) {
		t.Fatal("the logs are not what this tests")
	}

	for name, c := range map[string]struct {
		db, log []byte
		want    string // its setting; empty: it is refused
	}{
		"killed":                         {late.db, late.log, "last"},
		"killed early":                   {early.db, early.log, "second"},
		"the copy that the log began on": {second.db, begun.log, "third"},
		"a log that was applied":         {second.db, early.log, "second"},
		"cut off":                        {late.db, late.log[:len(late.log)-100], "last"},
		"only its header":                {late.db, late.log[:walHeader], "fourth"},
		"empty":                          {second.db, []byte{}, "second"},
		"void":                           {second.db, second.log, "second"},
		"void, beside an older copy":     {first.db, second.log, "first"},
		"torn header":                    {second.db, late.log[:20], "second"},
		"older copy":                     {first.db, late.log, ""},
		"older copy, same length":        {first.db, begun.log, ""},
		"of the same run":                {begun.db, late.log, ""},
		"older log":                      {late.db, early.log, ""},
	} {
		t.Run(name, func(t *testing.T) {
			said := epoch
			if c.want != "" && c.want != "last" {
				said = formatEpoch(0)
			}
			path := put(t, c.db, c.log, said)
			s, err := Open(ctx, path)
			if c.want == "" {
				if _, is := errors.AsType[*ForeignLogError](err); !is {
					t.Fatalf("got %v, want a ForeignLogError", err)
				}
				if after := crashOf(t, path); !bytes.Equal(after.db, c.db) || !bytes.Equal(after.log, c.log) {
					t.Error("what was refused was changed")
				}
				if _, err := OpenOlder(ctx, path); !errors.As(err, new(*ForeignLogError)) {
					t.Errorf("OpenOlder: got %v, want a ForeignLogError", err)
				}
				return
			}
			must(t, err)
			defer func() { must(t, s.Close()) }()
			if v, err := s.Settings.Get(ctx, "k"); err != nil || strings.TrimSpace(v) != c.want {
				t.Errorf("got %.20q, %v, want %q", v, err, c.want)
			}
		})
	}
}

// TestLogAlone: if the database of a log is gone, the log is not removed, as SQLite
// would do: it has the newest changes. A store that was just made has no such log.
func TestLogAlone(t *testing.T) {
	path := filepath.Join(t.TempDir(), "cove.db")
	s := open(t, path)
	fresh := crashOf(t, path)
	must(t, s.Settings.Set(t.Context(), "k", "v"))
	c := crashOf(t, path)
	must(t, s.Close())
	if len(fresh.db) == 0 || len(fresh.log) <= walHeader {
		t.Errorf("a store that was just made has %d bytes, and %d of a log", len(fresh.db), len(fresh.log))
	}
	must(t, open(t, put(t, fresh.db, fresh.log, formatEpoch(0))).Close())

	path = put(t, nil, c.log, formatEpoch(1))
	for range 2 { // the first one has left an empty file
		if _, err := OpenOlder(t.Context(), path); !errors.As(err, new(*ForeignLogError)) {
			t.Fatalf("got %v, want a ForeignLogError", err)
		}
		if after := crashOf(t, path); !bytes.Equal(after.log, c.log) {
			t.Fatal("the log was changed")
		}
		must(t, os.Remove(path))
	}
	must(t, os.WriteFile(path, c.db, 0o600)) // the advice is right
	s = open(t, path)
	defer func() { must(t, s.Close()) }()
	if v, err := s.Settings.Get(t.Context(), "k"); err != nil || v != "v" {
		t.Errorf("got %q, %v", v, err)
	}
}

// TestForeignLogThenOlder: without the other one's log, an older copy is refused as that.
func TestForeignLogThenOlder(t *testing.T) {
	path := filepath.Join(t.TempDir(), "cove.db")
	s := open(t, path)
	must(t, s.Settings.Set(t.Context(), "k", "v"))
	must(t, s.Close())
	before := crashOf(t, path)
	for range 2 {
		s = open(t, path)
		must(t, s.Settings.Set(t.Context(), "k", "w"))
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	s = open(t, path)
	must(t, s.Settings.Set(t.Context(), "k", "x"))
	after := crashOf(t, path)
	must(t, s.Close())
	other := put(t, before.db, after.log, formatEpoch(4))
	if _, err := Open(t.Context(), other); !errors.As(err, new(*ForeignLogError)) {
		t.Fatalf("got %v, want a ForeignLogError", err)
	}
	must(t, os.Remove(other+"-wal"))
	if _, err := Open(t.Context(), other); !errors.As(err, new(*OlderError)) {
		t.Errorf("got %v, want an OlderError", err)
	}
}

// TestEpochInLog reads the epoch of each size that a number has in SQLite's records.
func TestEpochInLog(t *testing.T) {
	for _, n := range []int64{0, 1, 126, 127, 128, 1 << 14, 1<<15 - 1, 1 << 15, 1 << 23, 1 << 31, 1 << 39, 1 << 47, 1 << 55} {
		t.Run(strconv.FormatInt(n, 10), func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "cove.db")
			s := open(t, path)
			_, err := s.db.write.Exec("UPDATE epoch SET n = ?", n)
			must(t, err)
			must(t, s.Close())
			s = open(t, path)
			defer func() { must(t, s.Close()) }()
			must(t, s.Settings.Set(t.Context(), "k", "v"))
			root, main, err := epochWithoutLog(t.Context(), path)
			must(t, err)
			log, err := os.Open(path + "-wal")
			must(t, err)
			defer log.Close()
			first, last, found, err := epochsOf(log, root)
			if err != nil || !found || main != n || first != n || last != n+1 {
				t.Errorf("got %d, and %d to %d in the log, %v, %v, want %d to %d", main, first, last, found, err, n, n+1)
			}
		})
	}
}

// FuzzLog reads logs that nobody wrote: it ends, with a result or an error.
func FuzzLog(f *testing.F) {
	path := filepath.Join(f.TempDir(), "cove.db")
	s, err := Open(f.Context(), path)
	if err != nil {
		f.Fatal(err)
	}
	if err := s.Settings.Set(f.Context(), "k", "v"); err != nil {
		f.Fatal(err)
	}
	log, err := os.ReadFile(path + "-wal")
	if err := errors.Join(err, s.Close()); err != nil {
		f.Fatal(err)
	}
	f.Add(log, uint32(2))
	f.Add(log[:walHeader+walFrame], uint32(1))
	f.Fuzz(func(t *testing.T, data []byte, root uint32) {
		first, last, found, err := epochsOf(bytes.NewReader(data), root)
		if !found && (first != 0 || last != 0) {
			t.Errorf("nothing was found, but %d to %d (%v)", first, last, err)
		}
		_, _, _ = epochInPage(data)
		_, _, _, _ = epochsOf(io.LimitReader(bytes.NewReader(data), int64(root)), root)
	})
}
