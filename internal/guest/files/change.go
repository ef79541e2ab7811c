package files

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/cove-dev/cove/internal/guest/wire"
)

// maxNamed is how many files an answer names; it counts all.
const maxNamed = 10_000

// pair is a source and where it went.
type pair struct {
	Source string `json:"source"`
	Dest   string `json:"dest"`
}

func (s *Server) transferCall(r *http.Request, body caller) (*fileCall, error) {
	f, err := s.bodyCall(r, body)
	if err != nil {
		return nil, err
	}
	if err := need("source", f.Source); err != nil {
		return nil, err
	}
	return f, need("dest", f.Dest)
}

// postRename moves a file or folder, also to another mount. If-Match is the ETag of the source; with If-None-Match: *
// nothing is replaced.
func (s *Server) postRename(w http.ResponseWriter, r *http.Request) error {
	f, err := s.transferCall(r, &fileCall{})
	if err != nil {
		return err
	}
	known := conditionsOf(r)
	err = f.do(f.Source, func() error {
		err := s.rename(f, known)
		if !errors.Is(err, syscall.EXDEV) {
			return err
		}
		t := &treeCopy{recursive: true, preserve: true}
		if err := t.copy(f.Source, f.Dest); err != nil {
			return err
		}
		return os.RemoveAll(f.Source)
	})
	if err != nil {
		return err
	}
	return wire.Respond(w, pair{f.Source, f.Dest})
}

// rename moves a file or folder within a mount.
func (s *Server) rename(f *fileCall, known conditions) error {
	s.names.Lock()
	defer s.names.Unlock()
	if err := errors.Join(known.same(f.Source), known.free(f.Dest)); err != nil {
		return err
	}
	return known.rename(f.Source, f.Dest)
}

// postCopy copies a file, or a folder onto another.
func (s *Server) postCopy(w http.ResponseWriter, r *http.Request) error {
	var opts struct {
		fileCall
		PreserveAttrs bool `json:"preserveAttrs"`
	}
	f, err := s.transferCall(r, &opts)
	if err != nil {
		return err
	}
	t := &treeCopy{recursive: f.recursive(true), preserve: opts.PreserveAttrs, copied: []pair{}}
	err = f.do(f.Source, func() error {
		if inside(f.Dest, f.Source) {
			return syscall.EINVAL
		}
		return t.copy(f.Source, f.Dest)
	})
	if err != nil {
		return err
	}
	return wire.Respond(w, struct {
		Copied     []pair `json:"copied"`
		Count      int    `json:"count"`
		TotalBytes int64  `json:"totalBytes"`
	}{t.copied, t.count, t.bytes})
}

// inside reports whether name is dir or below it.
func inside(name, dir string) bool {
	if real, err := filepath.EvalSymlinks(dir); err == nil {
		dir = real
	}
	if real, err := filepath.EvalSymlinks(parent(name)); err == nil {
		name = path.Join(real, path.Base(name))
	}
	return name == dir || strings.HasPrefix(name, strings.TrimSuffix(dir, "/")+"/")
}

// treeCopy copies a file or a tree.
type treeCopy struct {
	recursive bool
	preserve  bool // owners, as far as allowed, and times
	copied    []pair
	count     int
	bytes     int64
}

func (t *treeCopy) copy(from, to string) error {
	st, err := os.Lstat(from)
	if err != nil {
		return err
	}
	switch {
	case st.IsDir():
		err = t.folder(from, to, st)
	case st.Mode()&fs.ModeSymlink != 0:
		err = copyLink(from, to)
	case st.Mode().IsRegular():
		err = t.file(from, to, st)
	default:
		return badRequestFile(from + " is not a file, folder or link")
	}
	if err != nil {
		return err
	}
	t.count++
	if len(t.copied) < maxNamed {
		t.copied = append(t.copied, pair{from, to})
	}
	if t.preserve {
		return preserve(to, st)
	}
	return nil
}

func (t *treeCopy) folder(from, to string, st fs.FileInfo) error {
	if !t.recursive {
		return syscall.EISDIR
	}
	if err := os.Mkdir(to, 0o700|st.Mode().Perm()); err != nil {
		if old, statErr := os.Stat(to); statErr != nil || !old.IsDir() {
			return err
		}
	}
	children, err := os.ReadDir(from)
	if err != nil {
		return err
	}
	for _, c := range children {
		if err := t.copy(below(from, c.Name()), below(to, c.Name())); err != nil {
			return err
		}
	}
	return unix.Chmod(to, unixMode(st.Mode()))
}

func copyLink(from, to string) error {
	target, err := os.Readlink(from)
	if err != nil {
		return err
	}
	err = os.Symlink(target, to)
	if !errors.Is(err, fs.ErrExist) {
		return err
	}
	if err := os.Remove(to); err != nil {
		return err
	}
	return os.Symlink(target, to)
}

func (t *treeCopy) file(from, to string, st fs.FileInfo) (err error) {
	src, err := os.OpenFile(from, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	defer src.Close()
	dst, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|syscall.O_NONBLOCK, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dst.Close()) }()
	old, err := dst.Stat()
	if err != nil {
		return err
	}
	if os.SameFile(old, st) { // by another name
		return syscall.EINVAL
	}
	if old.Mode().IsRegular() {
		if err := dst.Truncate(0); err != nil {
			return err
		}
	}
	block := blocks.Get().(*[256 << 10]byte)
	defer blocks.Put(block)
	n, err := io.CopyBuffer(struct{ io.Writer }{dst}, struct{ io.Reader }{src}, block[:])
	t.bytes += n
	if err != nil {
		return err
	}
	return unix.Fchmod(int(dst.Fd()), unixMode(st.Mode())&0o777)
}

// preserve gives a copy the times of its original, and, if the user may, its owner and mode.
// Only root may give files away, so other users' copies stay theirs, without setuid.
func preserve(to string, st fs.FileInfo) error {
	sys, ok := st.Sys().(*syscall.Stat_t)
	if !ok {
		return nil
	}
	if os.Lchown(to, int(sys.Uid), int(sys.Gid)) == nil && st.Mode()&fs.ModeSymlink == 0 {
		if err := unix.Chmod(to, unixMode(st.Mode())); err != nil {
			return err
		}
	}
	times := []unix.Timespec{unix.Timespec(sys.Atim), unix.Timespec(sys.Mtim)}
	return unix.UtimesNanoAt(unix.AT_FDCWD, to, times, unix.AT_SYMLINK_NOFOLLOW)
}

// postChmod sets permission bits, given as octal text or as a number.
func (s *Server) postChmod(w http.ResponseWriter, r *http.Request) error {
	var opts struct {
		fileCall
		Mode json.RawMessage `json:"mode"`
	}
	f, err := s.bodyCall(r, &opts)
	if err != nil {
		return err
	}
	if err := need("path", f.Path); err != nil {
		return err
	}
	mode, err := bodyMode(opts.Mode)
	if err != nil {
		return &fileError{f.Path, err}
	}
	type changed struct {
		Path string `json:"path"`
		Mode string `json:"mode"`
	}
	affected, count := []changed{}, 0
	err = f.do(f.Path, func() error {
		return each(f.Path, f.recursive(false), func(name string, link bool) error {
			if link && name != f.Path {
				return nil // what it leads to may be elsewhere
			}
			if err := unix.Chmod(name, mode); err != nil {
				return err
			}
			if count++; count <= maxNamed {
				affected = append(affected, changed{name, fmt.Sprintf("%04o", mode)})
			}
			return nil
		})
	})
	if err != nil {
		return err
	}
	return wire.Respond(w, struct {
		Affected []changed `json:"affected"`
		Count    int       `json:"count"`
	}{affected, count})
}

func bodyMode(raw json.RawMessage) (uint32, error) {
	var text string
	if json.Unmarshal(raw, &text) == nil {
		return parseMode(text)
	}
	var n uint32
	if err := json.Unmarshal(raw, &n); err != nil || n > 0o7777 {
		return 0, badRequestFile("mode must be octal text, such as \"0644\", or its value")
	}
	return n, nil
}

// each calls fn for name and, if recursive, for all below it, inner ones first.
func each(name string, recursive bool, fn func(name string, link bool) error) error {
	st, err := os.Lstat(name)
	if err != nil {
		return err
	}
	if recursive && st.IsDir() {
		children, err := os.ReadDir(name)
		if err != nil {
			return err
		}
		for _, c := range children {
			if err := each(below(name, c.Name()), true, fn); err != nil {
				return err
			}
		}
	}
	return fn(name, st.Mode()&fs.ModeSymlink != 0)
}

// postChown sets owner and group, each a number or a name, and one of them at
// least. Only root may give files away: asRoot.
func (s *Server) postChown(w http.ResponseWriter, r *http.Request) error {
	var opts struct {
		fileCall
		UID json.RawMessage `json:"uid"`
		GID json.RawMessage `json:"gid"`
	}
	f, err := s.bodyCall(r, &opts)
	if err != nil {
		return err
	}
	if err := need("path", f.Path); err != nil {
		return err
	}
	uid, err := bodyID(opts.UID, func(name string) (uint32, bool) {
		u, ok := s.users.Lookup(name)
		return u.UID, ok
	})
	if err != nil {
		return &fileError{f.Path, err}
	}
	gid, err := bodyID(opts.GID, s.users.Group)
	if err != nil {
		return &fileError{f.Path, err}
	}
	if uid < 0 && gid < 0 {
		return &fileError{f.Path, badRequestFile("uid or gid is missing")}
	}
	type changed struct {
		Path string `json:"path"`
		UID  int    `json:"uid"`
		GID  int    `json:"gid"`
	}
	affected, count := []changed{}, 0
	err = f.do(f.Path, func() error {
		return each(f.Path, f.recursive(false), func(name string, link bool) error {
			chown := os.Lchown
			if link && name == f.Path {
				chown = os.Chown
			}
			if err := chown(name, uid, gid); err != nil {
				return err
			}
			if count++; count <= maxNamed {
				affected = append(affected, changed{name, uid, gid})
			}
			return nil
		})
	})
	if err != nil {
		return err
	}
	return wire.Respond(w, struct {
		Affected []changed `json:"affected"`
		Count    int       `json:"count"`
	}{affected, count})
}

// bodyID reads a number or a name; -1 means that there is none.
func bodyID(raw json.RawMessage, find func(string) (uint32, bool)) (int, error) {
	if len(raw) == 0 || string(raw) == "null" {
		return -1, nil
	}
	text := string(raw)
	if err := json.Unmarshal(raw, &text); err != nil {
		text = string(raw)
	}
	if n, err := strconv.ParseUint(text, 10, 31); err == nil {
		return int(n), nil
	}
	if id, ok := find(text); ok {
		return int(id), nil
	}
	return 0, badRequestFile(fmt.Sprintf("nobody is called %q here", text))
}
