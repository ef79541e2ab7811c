package supervise

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cove-dev/cove"
)

// TestBorrowBesideRepack: a job that puts the store's packs together, just when another one begins
// with them, takes nothing from that one. The store stays.
func TestBorrowBesideRepack(t *testing.T) {
	t.Setenv("HOME", t.TempDir())
	sender := git{work: t.TempDir(), author: cove.Person{Name: "Ada", Email: "ada@example.com"}}
	if err := sender.each(t.Context(), [][]string{initArgs(""), {"commit", "-q", "--allow-empty", "-m", "one"}, {"repack", "-q", "-d"}}); err != nil {
		t.Fatal(err)
	}
	head, err := sender.run(t.Context(), "rev-parse", "HEAD")
	if err != nil {
		t.Fatal(err)
	}
	clone := git{work: t.TempDir()}
	if _, err := clone.run(t.Context(), initArgs("")...); err != nil {
		t.Fatal(err)
	}
	s := &store{dir: t.TempDir(), git: clone}
	packs, err := packsIn((&store{git: sender}).packDir())
	if err != nil || len(packs) != 1 {
		t.Fatalf("packs %q, %v", packs, err)
	}
	kept := filepath.Join(s.dir, "pack")
	if err := share((&store{git: sender}).packDir(), kept, packs); err != nil {
		t.Fatal(err)
	}

	// The list of commits is a FIFO, so that the test knows when borrow has the store.
	have, lock := filepath.Join(s.dir, "have"), filepath.Join(s.dir, "lock")
	if err := syscall.Mkfifo(have, 0o600); err != nil {
		t.Fatal(err)
	}
	borrowed := make(chan error, 1)
	go func() {
		l, err := s.borrow(t.Context())
		if err == nil && (len(l.packs) != 1 || len(l.have) != 1) {
			err = fmt.Errorf("got %+v", l)
		}
		borrowed <- err
	}()
	list, err := os.OpenFile(have, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}

	// The other job gets the store as soon as borrow lets it go. It has the file that borrow would
	// lock next, so borrow can't have the store again before.
	first, err := os.Open(lock)
	if err == nil {
		err = os.Rename(lock, lock+".first")
	}
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	err = (&store{dir: s.dir}).locked(func(string) error {
		_, written := list.WriteString(head + "\n")
		if err := errors.Join(written, list.Close(), unix.Flock(int(first.Fd()), unix.LOCK_EX)); err != nil {
			return err
		}
		for _, part := range packParts {
			name := filepath.Join(kept, packs[0]+part)
			if err := os.Rename(name, strings.Replace(name, packs[0], "pack-together", 1)); err != nil && part != ".rev" {
				return err
			}
		}
		return nil
	})
	if err := errors.Join(err, <-borrowed); err != nil {
		t.Fatal(err)
	}
	if left, err := packsIn(kept); err != nil || len(left) != 1 {
		t.Errorf("the store has %q, %v", left, err)
	}
	if kind, err := clone.run(t.Context(), "cat-file", "-t", "refs/cove/have/"+head); err != nil || kind != "commit" {
		t.Errorf("the clone has %s %s, %v", kind, head, err)
	}
}
