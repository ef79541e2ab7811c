package files

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/cove-dev/cove/internal/guest/wire"
	"github.com/cove-dev/cove/sprites"
)

// conditions are the headers that say which file, or none, the caller expects at a path. If
// another one is there, the call does nothing and fails with ESTALE.
type conditions struct {
	match string // the ETag that the file must have (If-Match); "": any, or none
	fresh bool   // there must be no file (If-None-Match: *)
}

func conditionsOf(r *http.Request) conditions {
	return conditions{match: r.Header.Get("If-Match"), fresh: r.Header.Get("If-None-Match") == "*"}
}

// same fails if the entry at a path (if it is a link, the link itself) does not have the ETag
// that was asked for.
func (c conditions) same(name string) error {
	if c.match == "" {
		return nil
	}
	st, err := os.Lstat(name)
	if err == nil && etag(st) != c.match || errors.Is(err, fs.ErrNotExist) {
		return syscall.ESTALE
	}
	return err
}

// free fails if there must be nothing at a path, and there is something: a link, too.
func (c conditions) free(name string) error {
	if !c.fresh {
		return nil
	}
	_, err := os.Lstat(name)
	switch {
	case err == nil:
		return syscall.ESTALE
	case errors.Is(err, fs.ErrNotExist):
		return nil
	}
	return err
}

// rename moves a file to its place. It replaces the file that is there, unless there must be
// none.
func (c conditions) rename(from, to string) error {
	if !c.fresh {
		return os.Rename(from, to)
	}
	err := unix.Renameat2(unix.AT_FDCWD, from, unix.AT_FDCWD, to, unix.RENAME_NOREPLACE)
	switch {
	case errors.Is(err, syscall.EEXIST):
		return syscall.ESTALE
	case errors.Is(err, syscall.EINVAL) || errors.Is(err, syscall.ENOSYS): // this file system can't
		if err := c.free(to); err != nil {
			return err
		}
		return os.Rename(from, to)
	}
	return err
}

// putWrite writes a file from the request's body. The bytes go into a new file beside it,
// which replaces it when all have come. A failed or cut upload leaves the old file, and
// readers see one or the other. The new file is not synced, just as other programs' writes are
// not. It survives the sandbox's death, since the kernel outside holds it, but not the
// machine's.
//
// A link is followed. Without a mode an existing file keeps its own, without
// setuid and setgid. The new file is the user's; written with asRoot, an existing
// file keeps its owner. A file that may be written, in a folder that may not, is
// refused: there is no safe way.
func (s *Server) putWrite(w http.ResponseWriter, r *http.Request) error {
	q := r.URL.Query()
	f, err := s.parse(q)
	if err != nil {
		return err
	}
	if err := need("path", f.Path); err != nil {
		return err
	}
	parents := true
	for _, key := range []string{"mkdirParents", "mkdir"} {
		if q.Get(key) != "" {
			if parents, err = wire.Boolean(q, key, true); err != nil {
				return err
			}
		}
	}
	u := &upload{call: f, parents: parents, conditions: conditionsOf(r)}
	if text := q.Get("mode"); text != "" {
		if u.mode, err = parseMode(text); err != nil {
			return &fileError{f.Path, err}
		}
		u.moded = true
	}
	if err := f.do(f.Path, u.begin); err != nil {
		return err
	}
	size, err := u.copy(r.Body)
	if err == nil {
		err = f.user.Do(func() error { return u.commit(&s.names) })
	}
	if err != nil {
		u.abort()
		return &fileError{f.Path, err}
	}
	return wire.Respond(w, sprites.WriteResult{Path: f.Path, Size: size, Mode: fmt.Sprintf("%04o", u.mode)})
}

// replacing ends the name of an upload that will replace a file. Watchers report the upload's
// last step as a write.
const replacing = ".replace.tmp"

// upload is a file being written.
type upload struct {
	conditions

	call    *fileCall
	parents bool
	mode    uint32
	moded   bool // mode was asked for

	target string // the file itself, where links lead
	temp   string
	file   *os.File
	owner  *syscall.Stat_t // of the existing file, if it is to be kept
}

// begin prepares the new file; it runs as the user.
func (u *upload) begin() error {
	err := u.free(u.call.Path)
	if err != nil {
		return err
	}
	if u.target, err = followLinks(u.call.Path); err != nil {
		return err
	}
	if err := u.matches(); err != nil {
		return err
	}
	dir := parent(u.target)
	st, err := os.Stat(u.target)
	suffix := ".tmp"
	switch {
	case err == nil:
		suffix = replacing
		if err := u.replace(st); err != nil {
			return err
		}
	case errors.Is(err, fs.ErrNotExist):
		if !u.moded {
			u.mode = 0o644
		}
		if u.parents {
			if err := os.MkdirAll(dir, 0o755); err != nil {
				return err
			}
		}
	default:
		return err
	}
	u.temp = dir + ".cove-" + rand.Text() + suffix
	u.file, err = os.OpenFile(u.temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL|syscall.O_NOFOLLOW, 0o600)
	return err
}

// etag changes when a file is replaced, or written to. Two writes to one file within a tick of the kernel's clock
// (some milliseconds) look alike if they leave the same size.
func etag(st fs.FileInfo) string {
	sys, ok := st.Sys().(*syscall.Stat_t)
	if !ok {
		return ""
	}
	size := st.Size()
	if st.IsDir() {
		size = 0 // gVisor tells another one later
	}
	return fmt.Sprintf(`"%x-%x-%x-%x"`, sys.Ino, size, st.ModTime().UnixNano(), sys.Ctim.Nano())
}

// matches fails if the file that links lead to is not the one that match names.
func (u *upload) matches() error {
	if u.match == "" {
		return nil
	}
	st, err := os.Stat(u.target)
	if err == nil && etag(st) != u.match || errors.Is(err, fs.ErrNotExist) {
		return syscall.ESTALE
	}
	return err
}

// replace looks at the file that is there.
func (u *upload) replace(st fs.FileInfo) error {
	if st.IsDir() {
		return syscall.EISDIR
	}
	if !st.Mode().IsRegular() {
		return badRequestFile("not a regular file")
	}
	// A user that may rename in the folder could replace a file without the right to write it.
	// But this call is a write, so it needs that right.
	old, err := os.OpenFile(u.target, os.O_WRONLY, 0)
	if err == nil {
		_ = old.Close()
	} else if !errors.Is(err, syscall.ETXTBSY) {
		return err
	}
	if !u.moded {
		u.mode = unixMode(st.Mode()) & 0o777
	}
	if sys, ok := st.Sys().(*syscall.Stat_t); ok && u.call.AsRoot {
		u.owner = sys
	}
	return nil
}

// copy streams the body into the new file.
func (u *upload) copy(body io.Reader) (int64, error) {
	block := blocks.Get().(*[256 << 10]byte)
	defer blocks.Put(block)
	var size int64
	for {
		n, err := body.Read(block[:])
		if n > 0 {
			if _, err := u.file.Write(block[:n]); err != nil {
				return size, err
			}
			size += int64(n)
		}
		if errors.Is(err, io.EOF) {
			return size, nil
		}
		if err != nil {
			return size, badRequestFile("the upload was cut: " + err.Error())
		}
	}
}

// commit puts the new file into its place; it runs as the user. names is the Server's.
func (u *upload) commit(names *sync.Mutex) error {
	if u.owner != nil {
		if err := u.file.Chown(int(u.owner.Uid), int(u.owner.Gid)); err != nil {
			return err
		}
	}
	if err := unix.Fchmod(int(u.file.Fd()), u.mode); err != nil {
		return err
	}
	if err := u.file.Close(); err != nil {
		return err
	}
	names.Lock()
	defer names.Unlock()
	if err := u.matches(); err != nil {
		return err
	}
	return u.rename(u.temp, u.target)
}

// abort removes what was begun.
func (u *upload) abort() {
	_ = u.file.Close() // perhaps closed already
	_ = u.call.user.Do(func() error { return os.Remove(u.temp) })
}

// followLinks returns where the last element of a path leads, which need not
// exist.
func followLinks(name string) (string, error) {
	for range 40 {
		target, err := os.Readlink(name)
		if errors.Is(err, syscall.EINVAL) || errors.Is(err, fs.ErrNotExist) {
			return name, nil
		}
		if err != nil {
			return "", err
		}
		name = absolute(parent(name), target)
	}
	return "", syscall.ELOOP
}

// parent is a path's folder, with a slash at its end, without cleaning what is
// before it.
func parent(name string) string {
	dir, _ := path.Split(name)
	return dir
}
