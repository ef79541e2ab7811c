package filesync

import (
	"bufio"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/cove-dev/cove/internal/lib/atomicfile"
)

// leftOut is what a scan of this machine's tree left out.
type leftOut struct {
	kinds []Skipped
	paths *spool[string] // by rules, in the order of comparePaths
}

// leftName is the file of a pair with the paths that rules left out here before.
const leftName = "ignored"

func encodePath(e *enc, name string) { e.string(name) }

func decodePath(d *dec) (string, error) { return d.string(), d.err }

// openLeftFile reads the paths that rules left out before. If there is no file, it is empty.
func openLeftFile(dir string) (*reading[string], func(), error) {
	f, err := os.Open(filepath.Join(dir, leftName))
	if errors.Is(err, fs.ErrNotExist) {
		return &reading[string]{}, func() {}, nil
	}
	if err != nil {
		return nil, nil, err
	}
	return &reading[string]{r: bufio.NewReaderSize(f, 64<<10), decode: decodePath}, func() { _ = f.Close() }, nil
}

// save remembers the paths that were left out. A pull adds to the remembered ones: only a push
// says which of them it sends.
func (l *leftOut) save(dir string, verb Verb) error {
	before, done, err := &reading[string]{}, func() {}, error(nil)
	if verb == Pull {
		if before, done, err = openLeftFile(dir); err != nil {
			return err
		}
	}
	defer done()
	now, err := l.paths.read()
	if err != nil {
		return err
	}
	f, err := atomicfile.Create(filepath.Join(dir, leftName))
	if err != nil {
		return err
	}
	defer f.Discard()
	w := bufio.NewWriterSize(f, 64<<10)
	err = union(before, now, func(name string) error {
		var e enc
		encodePath(&e, name)
		return writeRecord(w, e.b)
	})
	if err = errors.Join(err, w.Flush()); err != nil {
		return err
	}
	return f.Commit(0o600)
}

// union goes through two readings, sorted by comparePaths, as one.
func union(a, b *reading[string], do func(string) error) error {
	for {
		x, okA, err := a.peek()
		if err != nil {
			return err
		}
		y, okB, err := b.peek()
		if err != nil {
			return err
		}
		if !okA && !okB {
			return nil
		}
		order := 0
		switch {
		case !okB:
			order = -1
		case !okA:
			order = 1
		default:
			order = comparePaths(*x, *y)
		}
		least := y
		if order <= 0 {
			least, a.has = x, false
		}
		if order >= 0 {
			b.has = false
		}
		if err := do(*least); err != nil {
			return err
		}
	}
}

// leftBefore says whether rules left a path out before. The paths must be asked in the order
// of comparePaths.
type leftBefore struct {
	paths *reading[string]
	last  string // the path, or a folder above it, that was reached; empty: none
}

// openLeft begins a leftBefore, which lasts as long as its session.
func openLeft(s *session) (*leftBefore, error) {
	paths, done, err := openLeftFile(s.dir)
	if err != nil {
		return nil, err
	}
	s.later(done)
	return &leftBefore{paths: paths}, nil
}

// had reports whether a path, or a folder that it is in, was left out before. If l is nil,
// it was not.
func (l *leftBefore) had(name string) (bool, error) {
	if l == nil {
		return false, nil
	}
	for {
		next, ok, err := l.paths.peek()
		if err != nil {
			return false, err
		}
		if !ok || comparePaths(*next, name) > 0 {
			return l.last != "" && (l.last == name || below(name, l.last)), nil
		}
		if l.last == "" || !below(*next, l.last) {
			l.last = strings.Clone(*next)
		}
		l.paths.has = false
	}
}
