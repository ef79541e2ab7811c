package supervise

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"

	"github.com/cove-dev/cove/internal/lib/atomicfile"
)

// Large files are those of Git LFS: the repository has a pointer, the content is
// in .git/lfs/objects, which submodules share by lfs.storage. Those that were sent along
// lie beside the bundle, named by their SHA-256. If git-lfs is not installed, the guest is
// their filter.

// maxPointer bounds a pointer, as git-lfs does.
const maxPointer = 1024

var (
	largeFile = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[0-9a-f]{64}$`) })
	pointer   = sync.OnceValue(func() *regexp.Regexp {
		return regexp.MustCompile(`\Aversion https://git-lfs\.github\.com/spec/v1\n(?:ext-\d-[^\n]*\n)*oid sha256:([0-9a-f]{64})\nsize (\d+)\n\z`)
	})
)

// largeFiles are those of a clone and its submodules.
type largeFiles struct {
	git   git
	store *store
	came  string // the folder with those that were sent along
	list  string // the file with the names of those that the clone began with
	out   string // the folder for those that the agent made
}

// receive puts the large files that came with this job, and with earlier ones, where the
// filter finds them.
func (l *largeFiles) receive() error {
	names, err := filesIn(l.came)
	if err != nil {
		return err
	}
	for _, name := range names {
		if sum, _, err := digest(filepath.Join(l.came, name)); err != nil {
			return err
		} else if sum != name {
			return fmt.Errorf("the large file %s is damaged", name)
		}
	}
	had, err := l.share(names, filepath.Join(l.storage(), "objects"))
	if err != nil || len(had) == 0 {
		return err
	}
	text, err := json.Marshal(had)
	if err != nil {
		return err
	}
	return os.WriteFile(l.list, text, 0o600)
}

// storage is where the clone and its submodules have their large files.
func (l *largeFiles) storage() string { return filepath.Join(l.git.work, ".git", "lfs") }

// checkout puts the files of a commit into the work tree at dir, by git's command,
// with the content of large files.
func (l *largeFiles) checkout(ctx context.Context, dir string, args ...string) error {
	if err := l.filter(ctx, dir, false); err != nil {
		return err
	}
	if _, err := l.git.in(ctx, dir, call{}, args...); err != nil {
		return err
	}
	return l.filter(ctx, dir, true)
}

// filter sets up the filter of large files in the repository at dir. It is called both before
// and after the files are checked out. If content came for them, the call before sets the
// filter. If not, the call after does, if the repository's attributes name Git LFS: there are
// only pointers, but the agent may add large files.
func (l *largeFiles) filter(ctx context.Context, dir string, after bool) error {
	_, err := os.Lstat(l.storage())
	if came := err == nil; came == after || after && !speaksOfLFS(dir) {
		return nil
	}
	var settings [][]string
	if dir != l.git.work {
		settings = append(settings, []string{"lfs.storage", l.storage()})
	}
	if _, err := l.git.in(ctx, dir, call{}, "config", "filter.lfs.process"); err == nil {
		// git-lfs itself is installed. It must not fail because content is missing here.
		settings = append(settings, []string{"lfs.skipdownloaderrors", "true"})
	} else {
		self, err := os.Executable()
		if err != nil {
			return err
		}
		for _, verb := range []string{"clean", "smudge"} {
			settings = append(settings, []string{"filter.lfs." + verb, strings.Join([]string{quote(self), "lfs", verb, quote(l.storage())}, " ")})
		}
		settings = append(settings, []string{"filter.lfs.required", "true"})
	}
	for _, s := range settings {
		if _, err := l.git.in(ctx, dir, call{}, "config", s[0], s[1]); err != nil {
			return err
		}
	}
	return nil
}

// speaksOfLFS reports whether the attributes at the top of a work tree name Git LFS.
func speaksOfLFS(dir string) bool {
	f, err := os.Open(filepath.Join(dir, ".gitattributes"))
	if err != nil {
		return false
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxAttributes))
	return err == nil && bytes.Contains(text, []byte("filter=lfs"))
}

const maxAttributes = 1 << 20

// share links the large files that came into the store, and those of the store
// into the clone. It returns what the clone has then.
func (l *largeFiles) share(names []string, objects string) (had []string, err error) {
	for _, name := range names {
		if err := linkLarge(filepath.Join(l.came, name), objects); err != nil {
			return nil, err
		}
	}
	err = l.store.locked(func(dir string) error {
		kept := filepath.Join(dir, "lfs")
		for _, name := range names {
			if err := os.MkdirAll(kept, 0o755); err != nil {
				return err
			}
			if err := os.Link(filepath.Join(l.came, name), filepath.Join(kept, name)); err != nil && !errors.Is(err, fs.ErrExist) {
				return err
			}
		}
		if names, err = union(names, kept); err != nil {
			return err
		}
		for _, name := range names {
			if _, err := os.Lstat(filepath.Join(kept, name)); err != nil {
				continue
			}
			if err := linkLarge(filepath.Join(kept, name), objects); err != nil {
				return err
			}
		}
		return nil
	})
	return names, err
}

// union adds to names the large files in a folder.
func union(names []string, dir string) ([]string, error) {
	more, err := filesIn(dir)
	seen := map[string]bool{}
	var all []string
	for _, name := range append(append([]string{}, names...), more...) {
		if !seen[name] {
			seen[name] = true
			all = append(all, name)
		}
	}
	return all, err
}

// largePath is where git-lfs keeps an object.
func largePath(objects, oid string) string { return filepath.Join(objects, oid[:2], oid[2:4], oid) }

// linkLarge makes a hard link to a large file, named by its SHA-256.
func linkLarge(from, objects string) error {
	to := largePath(objects, filepath.Base(from))
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	if err := os.Link(from, to); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}

// filesIn lists the large files of a folder, if there is one.
func filesIn(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var names []string
	for _, e := range entries {
		if e.Type().IsRegular() && largeFile().MatchString(e.Name()) {
			names = append(names, e.Name())
		}
	}
	return names, err
}

// send puts the large files that the agent made beside the output bundle.
func (l *largeFiles) send() error {
	var had []string
	if err := readJSON(l.list, &had); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	known := map[string]bool{}
	for _, name := range had {
		known[name] = true
	}
	objects := filepath.Join(l.storage(), "objects")
	return filepath.WalkDir(objects, func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil || !d.Type().IsRegular() || known[d.Name()] || !largeFile().MatchString(d.Name()) {
			return err
		}
		if err := os.MkdirAll(l.out, 0o755); err != nil {
			return err
		}
		if err := os.Link(path, filepath.Join(l.out, d.Name())); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		return nil
	})
}

// quote makes a path one word of a shell.
func quote(path string) string { return "'" + strings.ReplaceAll(path, "'", `'\''`) + "'" }

// Filter is Git LFS's filter for one file. "clean" keeps the content in the storage, in the
// layout of git-lfs, and writes a pointer to it. "smudge" writes the content of a pointer, or
// the pointer itself if the content is missing.
func Filter(verb, storage string, r io.Reader, w io.Writer) error {
	objects := filepath.Join(storage, "objects")
	head := make([]byte, maxPointer+1)
	n, err := io.ReadFull(r, head)
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) && err != io.EOF {
		return err
	}
	head = head[:n]
	m := pointer().FindSubmatch(head)
	switch verb {
	case "clean":
		if m != nil || n == 0 { // an empty file is its own pointer
			_, err := w.Write(head)
			return err
		}
		return clean(objects, io.MultiReader(bytes.NewReader(head), r), w)
	case "smudge":
		if m != nil {
			if done, err := smudge(largePath(objects, string(m[1])), string(m[2]), w); done || err != nil {
				return err
			}
		}
		_, err := io.Copy(w, io.MultiReader(bytes.NewReader(head), r))
		return err
	}
	return fmt.Errorf("there is no filter %q", verb)
}

func clean(objects string, r io.Reader, w io.Writer) error {
	if err := os.MkdirAll(objects, 0o755); err != nil {
		return err
	}
	tmp, err := atomicfile.Create(filepath.Join(objects, "new"))
	if err != nil {
		return err
	}
	defer tmp.Discard()
	sum := sha256.New()
	size, err := io.Copy(io.MultiWriter(tmp, sum), r)
	if err != nil {
		return err
	}
	oid := hex.EncodeToString(sum.Sum(nil))
	to := largePath(objects, oid)
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	if err := tmp.CommitAs(to, 0o644); err != nil {
		return err
	}
	_, err = fmt.Fprintf(w, "version https://git-lfs.github.com/spec/v1\noid sha256:%s\nsize %d\n", oid, size)
	return err
}

// smudge copies an object of that size to w; done is false if it is missing.
func smudge(name, size string, w io.Writer) (done bool, err error) {
	f, err := os.Open(name)
	if err != nil {
		return false, nil
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || strconv.FormatInt(info.Size(), 10) != size {
		return false, err
	}
	_, err = io.Copy(w, f)
	return true, err
}
