package supervise

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cove-dev/cove/internal/lib/atomicfile"
)

// A store (sprites.RepositoryStore) has what was sent of a repository:
//
//	lock    flock of whoever reads or changes it
//	have    the commits that are there with their history, a line each
//	pack/   git's packs, which clones share by hard links
//	lfs/    the content of large files, likewise
//
// An agent can write to the store, so its content may be damaged. If a clone can't use its
// packs or commits, borrow deletes these.

// Bounds of a store.
const (
	maxHave  = 200
	maxPacks = 20 // more are put together
)

// packParts are the files of a pack. The last makes git see it.
var packParts = []string{".pack", ".rev", ".idx"}

// lent is the part of the store that a clone began with.
type lent struct {
	have  []string
	packs []string // without their endings
}

func (l lent) any() bool { return len(l.have) > 0 }

// store is the sprite's store of a repository, as one job's clone uses it.
type store struct {
	dir  string // empty: there is none
	git  git    // in the clone
	base string // the commit that the job begins with
	log  *journal
}

// packDir is where the clone has its packs.
func (s *store) packDir() string { return filepath.Join(s.git.work, ".git", "objects", "pack") }

// locked calls f while nobody else uses the store.
func (s *store) locked(f func(dir string) error) error {
	if s.dir == "" {
		return nil
	}
	if err := os.MkdirAll(filepath.Join(s.dir, "pack"), 0o755); err != nil {
		return err
	}
	lock, err := os.OpenFile(filepath.Join(s.dir, "lock"), os.O_CREATE|os.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	defer lock.Close()
	for err = unix.EINTR; errors.Is(err, unix.EINTR); {
		err = unix.Flock(int(lock.Fd()), unix.LOCK_EX)
	}
	if err != nil {
		return fmt.Errorf("lock %s: %w", s.dir, err)
	}
	return f(s.dir)
}

// borrow gives the clone, which is empty, what the store has. It lists the packs and links them
// without letting go of the store. In between, another job might put packs together: those that
// were listed would be gone, and nothing damaged.
func (s *store) borrow(ctx context.Context) (l lent, err error) {
	damaged := func(err error) error {
		return fmt.Errorf("it is damaged, and was deleted; push again: %w", err)
	}
	err = s.locked(func(dir string) error {
		have, err := os.ReadFile(filepath.Join(dir, "have"))
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		from := filepath.Join(dir, "pack")
		l.packs, err = packsIn(from)
		l.have = strings.Fields(string(have))
		if err != nil || !l.any() {
			return err
		}
		if err := share(from, s.packDir(), l.packs); err != nil {
			return damaged(errors.Join(err, empty(dir)))
		}
		return nil
	})
	if err != nil || !l.any() {
		return l, err
	}
	var refs strings.Builder
	for _, id := range l.have {
		fmt.Fprintf(&refs, "create refs/cove/have/%s %s\n", id, id)
	}
	if _, err := s.git.in(ctx, s.git.work, call{stdin: refs.String()}, "update-ref", "--stdin"); err != nil {
		return l, damaged(s.forget(err))
	}
	return l, nil
}

// forget deletes the store, so that the next job is sent in full. It returns err, joined with
// errors of the deletion.
func (s *store) forget(err error) error {
	return errors.Join(err, s.locked(empty))
}

// empty deletes the content of a store. The caller must have locked it.
func empty(dir string) error {
	return errors.Join(os.Remove(filepath.Join(dir, "have")), os.RemoveAll(filepath.Join(dir, "pack")))
}

// keep puts what the clone has now into the store, and takes from the clone what
// only served to receive it.
func (s *store) keep(ctx context.Context, l lent, sent []string) error {
	if s.dir == "" {
		return nil
	}
	packs, err := packsIn(s.packDir())
	if err != nil {
		return err
	}
	if len(packs) > maxPacks {
		if _, err := s.git.run(ctx, "repack", "-q", "-d", "--geometric=2"); err != nil {
			s.log.notice("put packs together: " + err.Error()) // it only takes more room
		} else if packs, err = packsIn(s.packDir()); err != nil {
			return err
		}
	}
	if l.any() {
		var refs strings.Builder
		for _, id := range l.have {
			fmt.Fprintf(&refs, "delete refs/cove/have/%s\n", id)
		}
		if _, err := s.git.in(ctx, s.git.work, call{stdin: refs.String()}, "update-ref", "--stdin"); err != nil {
			return err
		}
	}
	return s.locked(func(dir string) error {
		to := filepath.Join(dir, "pack")
		if err := share(s.packDir(), to, packs); err != nil {
			return err
		}
		for _, name := range l.packs { // those that were put together
			if !slices.Contains(packs, name) {
				for _, part := range packParts {
					_ = os.Remove(filepath.Join(to, name+part)) // there is a .rev or not
				}
			}
		}
		return addHave(dir, append([]string{s.base}, sent...))
	})
}

// remember adds the agent's commits to the store, if that is possible: the next job most
// likely builds on them.
func (s *store) remember(ctx context.Context, head string) {
	err := s.locked(func(dir string) error {
		_, err := s.git.in(ctx, s.git.work, call{stdin: head + "\n^" + s.base + "\n"},
			"pack-objects", "-q", "--revs", "--delta-base-offset", filepath.Join(dir, "pack", "pack"))
		if err != nil {
			return err
		}
		return addHave(dir, []string{head})
	})
	if err != nil {
		s.log.notice("keep the commits for the next push: " + err.Error())
	}
}

// addHave adds commits to the list of those that the store has.
func addHave(dir string, commits []string) error {
	name := filepath.Join(dir, "have")
	text, err := os.ReadFile(name)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	have := strings.Fields(string(text))
	for _, id := range commits {
		have = append(slices.DeleteFunc(have, func(had string) bool { return had == id }), id)
	}
	have = have[max(0, len(have)-maxHave):]
	return atomicfile.Write(name, []byte(strings.Join(have, "\n")+"\n"), 0o644)
}

// packsIn lists the packs in a folder, without their endings.
func packsIn(dir string) (packs []string, err error) {
	names, err := filepath.Glob(filepath.Join(dir, "pack-*.idx"))
	for _, name := range names {
		packs = append(packs, strings.TrimSuffix(filepath.Base(name), ".idx"))
	}
	return packs, err
}

// share makes hard links of packs.
func share(from, to string, packs []string) error {
	if err := os.MkdirAll(to, 0o755); err != nil {
		return err
	}
	for _, pack := range packs {
		for _, part := range packParts {
			err := os.Link(filepath.Join(from, pack+part), filepath.Join(to, pack+part))
			if err != nil && !errors.Is(err, fs.ErrExist) && !(part == ".rev" && errors.Is(err, fs.ErrNotExist)) {
				return err
			}
		}
	}
	return nil
}
