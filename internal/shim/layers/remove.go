package layers

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// Remove deletes a folder of layers with everything in it, or a file. It is no error if
// there is none. Overlays leave files without permissions in a work folder, which does not
// stop their owner. Folders may be nested to any depth: those that are not empty are moved
// up before they are emptied. After an error, Remove can be called again for the rest.
func Remove(path string) error { return RemoveContext(context.Background(), path) }

// RemoveContext is Remove, but it ends with ctx, and leaves what it has not deleted by then.
func RemoveContext(ctx context.Context, path string) error {
	for {
		err := unix.Unlink(path)
		if errors.Is(err, unix.EISDIR) {
			err = unix.Rmdir(path)
		}
		if errors.Is(err, unix.ENOTEMPTY) || errors.Is(err, unix.EEXIST) {
			if err = empty(ctx, path); err == nil {
				continue
			}
		}
		if err == nil || errors.Is(err, unix.ENOENT) {
			return nil
		}
		return fmt.Errorf("remove %s: %w", path, err)
	}
}

// remover empties a folder.
type remover struct {
	top   int
	full  []string // folders in it that are not empty
	moved int
}

func empty(ctx context.Context, path string) (err error) {
	top, err := openWritable(unix.AT_FDCWD, path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, top.Close()) }()
	r := remover{top: int(top.Fd())}
	err = r.clear(ctx, top)
	for len(r.full) > 0 && err == nil {
		last := len(r.full) - 1
		name := r.full[last]
		r.full = r.full[:last]
		err = r.remove(ctx, name)
	}
	return err
}

// remove removes a folder that is in the topmost one.
func (r *remover) remove(ctx context.Context, name string) error {
	dir, err := openWritable(r.top, name)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := errors.Join(r.clear(ctx, dir), dir.Close()); err != nil {
		return err
	}
	return pathError("remove", name, unix.Unlinkat(r.top, name, unix.AT_REMOVEDIR))
}

// clear removes what is in a folder, or moves it to the topmost one.
func (r *remover) clear(ctx context.Context, dir *os.File) error {
	for {
		names, err := dir.Readdirnames(1024)
		for _, name := range names {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			if err := r.name(int(dir.Fd()), name); err != nil {
				return err
			}
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func (r *remover) name(dir int, name string) error {
	err := unix.Unlinkat(dir, name, 0)
	if errors.Is(err, unix.EISDIR) {
		err = unix.Unlinkat(dir, name, unix.AT_REMOVEDIR)
	}
	switch {
	case err == nil || errors.Is(err, unix.ENOENT):
		return nil
	case !errors.Is(err, unix.ENOTEMPTY) && !errors.Is(err, unix.EEXIST):
		return pathError("remove", name, err)
	case dir == r.top:
		r.full = append(r.full, name)
		return nil
	}
	for {
		to := ".removed-" + strconv.Itoa(r.moved)
		r.moved++
		err := unix.Renameat(dir, name, r.top, to)
		if errors.Is(err, unix.EACCES) { // one that is not ours to write can't be moved
			err = errors.Join(unix.Fchmodat(dir, name, 0o700, 0), unix.Renameat(dir, name, r.top, to))
		}
		switch {
		case err == nil:
			r.full = append(r.full, to)
			return nil
		case !errors.Is(err, unix.ENOTEMPTY) && !errors.Is(err, unix.EEXIST) && !errors.Is(err, unix.ENOTDIR):
			return pathError("move", name, err)
		} // else there is a file of that name
	}
}

// openWritable opens a folder. If the folder's mode denies its owner anything, openWritable
// changes the mode to 0700.
func openWritable(dir int, name string) (*os.File, error) {
	const flags = unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC
	fd, err := unix.Openat(dir, name, flags, 0)
	if errors.Is(err, unix.EACCES) {
		if err = unix.Fchmodat(dir, name, 0o700, 0); err == nil {
			fd, err = unix.Openat(dir, name, flags, 0)
		}
	}
	if err != nil {
		return nil, pathError("open", name, err)
	}
	if st, err := fstat(fd); err == nil && st.Mode&0o700 != 0o700 {
		_ = unix.Fchmod(fd, 0o700) // if this fails, the removal fails later, and says so
	}
	return os.NewFile(uintptr(fd), inBrief(name)), nil
}

func pathError(op, path string, err error) error {
	if err == nil {
		return nil
	}
	return &fs.PathError{Op: op, Path: inBrief(path), Err: err}
}
