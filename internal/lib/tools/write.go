package tools

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const writeDescription = `Write a whole file, new or instead of what it was. It is replaced in one step: whoever reads it sees the old content or the new one. ` +
	`An existing file keeps its mode. if_match makes sure that it still is what you have read.`

// WriteInput is the input of Write.
type WriteInput struct {
	FilePath      string `json:"file_path" jsonschema:"The file. A relative path is below the working directory."`
	Content       string `json:"content" jsonschema:"All of its new content."`
	CreateParents bool   `json:"create_parents,omitempty" jsonschema:"Make the folders that are missing."`
	IfMatch       string `json:"if_match,omitempty" jsonschema:"Only if the file's sha256 begins with this (at least 12 digits, as Read says it); absent: only if there is no such file."`
}

// WriteResult is the answer of Write.
type WriteResult struct {
	Path    string `json:"path"`
	Created bool   `json:"created,omitempty"` // there was none before
	Size    int64  `json:"size"`
	SHA256  string `json:"sha256"`
}

func (w *workspace) write(_ context.Context, in WriteInput, _ func(Progress)) (*WriteResult, error) {
	path, err := w.path(in.FilePath)
	if err != nil {
		return nil, err
	}
	shown := w.shown(path)
	if in.CreateParents {
		if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
			return nil, coded(shown, err)
		}
	}
	f, err := w.lockFile(path, shown)
	if err != nil {
		return nil, err
	}
	defer f.release()
	if in.IfMatch != "" {
		hash := ""
		if f.info != nil {
			if hash, err = f.hash(); err != nil {
				return nil, err
			}
		}
		if err := checkMatch(shown, in.IfMatch, hash); err != nil {
			return nil, err
		}
	}
	if err := f.replace([]byte(in.Content)); err != nil {
		return nil, coded(shown, err)
	}
	return &WriteResult{Path: shown, Created: f.info == nil, Size: int64(len(in.Content)), SHA256: hashBytes([]byte(in.Content))}, nil
}

// A lockedFile is a file that is about to be replaced. No other call of the session writes it
// meanwhile; changes by anyone else are noticed.
type lockedFile struct {
	path    string // without links
	shown   string
	info    fs.FileInfo // nil: there is none yet
	release func()
}

// lockFile finds and locks a file, which the user must be allowed to write.
func (w *workspace) lockFile(path, shown string) (*lockedFile, error) {
	real, err := target(path)
	if err != nil {
		return nil, coded(shown, err)
	}
	f := &lockedFile{path: real, shown: shown, release: w.locks.take(real)}
	if f.info, err = os.Lstat(real); err == nil {
		if err = checkRegular(shown, f.info); err == nil {
			err = unix.Access(real, unix.W_OK)
		}
	} else if errors.Is(err, fs.ErrNotExist) {
		f.info = nil
		if _, err = os.Stat(filepath.Dir(real)); errors.Is(err, fs.ErrNotExist) {
			err = errorf(CodeNotFound, "%s: its folder is not there; create_parents makes it", shown)
		}
	}
	if err != nil {
		f.release()
		return nil, coded(shown, err)
	}
	return f, nil
}

func (f *lockedFile) hash() (string, error) {
	file, info, err := openRegular(f.path, f.shown)
	if err != nil {
		return "", err
	}
	defer file.Close()
	f.info = info
	hash, err := hashOf(file)
	if err != nil {
		return "", coded(f.shown, err)
	}
	return hash, nil
}

// replace gives the file its new content, or changes nothing.
func (f *lockedFile) replace(content []byte) (err error) {
	dir := filepath.Dir(f.path)
	temp, err := os.OpenFile(filepath.Join(dir, ".cove-"+rand.Text()), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(temp.Name())
		}
	}()
	_, err = temp.Write(content)
	if err == nil && f.info != nil {
		err = f.sameOwner(temp)
	}
	if err == nil {
		err = temp.Sync()
	}
	if err = errors.Join(err, temp.Close()); err != nil {
		return err
	}
	if err := f.put(temp.Name()); err != nil {
		return err
	}
	// The content is in place. A durable name is wanted, not promised.
	if d, err := os.Open(dir); err == nil {
		_ = d.Sync()
		_ = d.Close()
	}
	return nil
}

// lockPatience is how long to wait for the lock of a file. Sessions hold it for a rename, but
// one may stand still meanwhile. A process that holds it for longer has locked the file for a
// purpose of its own.
const lockPatience = 30 * time.Second

// put renames a new file to its place. It waits for other sessions that do so, and notices
// their changes of the file.
func (f *lockedFile) put(temp string) error {
	if f.info == nil {
		err := unix.Renameat2(unix.AT_FDCWD, temp, unix.AT_FDCWD, f.path, unix.RENAME_NOREPLACE)
		switch {
		case errors.Is(err, fs.ErrExist):
			return f.unchanged()
		case !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOSYS): // which a file system may not have
			return err
		}
	} else if old, err := os.OpenFile(f.path, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0); err == nil {
		defer old.Close()
		for begun := time.Now(); time.Since(begun) < lockPatience && errors.Is(unix.Flock(int(old.Fd()), unix.LOCK_EX|unix.LOCK_NB), unix.EWOULDBLOCK); {
			time.Sleep(time.Millisecond)
		}
	}
	if err := f.unchanged(); err != nil {
		return err
	}
	return os.Rename(temp, f.path)
}

// sameOwner gives the new file the old one's owner and mode.
func (f *lockedFile) sameOwner(temp *os.File) error {
	if st, ok := f.info.Sys().(*syscall.Stat_t); ok && os.Geteuid() == 0 {
		if err := temp.Chown(int(st.Uid), int(st.Gid)); err != nil {
			return err
		}
	}
	return temp.Chmod(f.info.Mode().Perm())
}

// unchanged returns an error if the file has changed since it was looked at.
func (f *lockedFile) unchanged() error {
	now, err := os.Lstat(f.path)
	switch {
	case errors.Is(err, fs.ErrNotExist) && f.info == nil:
		return nil
	case err == nil && f.info != nil && os.SameFile(now, f.info) && now.Size() == f.info.Size() && now.ModTime().Equal(f.info.ModTime()):
		return nil
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return err
	}
	return errorf(CodeChanged, "%s was changed by someone else meanwhile", f.shown)
}

func (r *WriteResult) text() string {
	verb := "replaced"
	if r.Created {
		verb = "created"
	}
	return fmt.Sprintf("[%s %s: %d bytes%s]", verb, r.Path, r.Size, shortHash(r.SHA256))
}
