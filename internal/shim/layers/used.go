package layers

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// maxOpenFolders is how many folders are open at once while a disk is measured. Of the
// folders on the way down, only those that have other folders left to look at are
// open. So no honest disk comes near.
const maxOpenFolders = 256

// ErrTooDeep is a disk that can't be measured: its folders are too deep in each other.
var ErrTooDeep = fmt.Errorf("more than %d nested folders have more folders in them", maxOpenFolders)

// Used is how many bytes some layers take on the disk, for their files and for the
// kernel's work folders. A file of several names is counted once. The layers may be
// written meanwhile, and no name in them leads out. A layer that does not exist takes
// nothing.
func Used(ctx context.Context, all ...Dir) (int64, error) {
	m := meter{ctx: ctx, counted: map[inode]bool{}}
	for _, d := range all {
		mounts, err := os.ReadDir(d.Path)
		if errors.Is(err, fs.ErrNotExist) {
			continue // of a sprite that has never run
		}
		if err != nil {
			return 0, fmt.Errorf("measure a disk: %w", err)
		}
		for _, mount := range mounts {
			if !mount.IsDir() {
				continue
			}
			for _, part := range []string{"upper", "work"} {
				if err := m.below(filepath.Join(d.Path, mount.Name(), part)); err != nil {
					return 0, fmt.Errorf("measure a disk: %w", err)
				}
			}
		}
	}
	return m.bytes, nil
}

// meter sums what folders take.
type meter struct {
	ctx     context.Context
	counted map[inode]bool // files of several names
	bytes   int64
}

// pending is an open folder that has some folders left to look at.
type pending struct {
	dir  *os.File
	dirs []string
}

// below counts a folder and all in it. A folder is closed as soon as the last one in
// it is open, so that a chain of them takes two descriptors, however long.
func (m *meter) below(path string) (err error) {
	top, err := m.open(unix.AT_FDCWD, path)
	if top == nil {
		return err
	}
	open := []pending{}
	defer func() {
		for _, p := range open {
			err = errors.Join(err, p.dir.Close())
		}
	}()
	for {
		if top != nil {
			dirs, err := m.files(top)
			if len(dirs) == 0 || err != nil {
				if err = errors.Join(err, top.Close()); err != nil {
					return err
				}
			} else {
				open = append(open, pending{top, dirs})
			}
		}
		if len(open) == 0 {
			return nil
		}
		if len(open) > maxOpenFolders {
			return ErrTooDeep
		}
		last := &open[len(open)-1]
		name := last.dirs[len(last.dirs)-1]
		last.dirs = last.dirs[:len(last.dirs)-1]
		if top, err = m.open(int(last.dir.Fd()), name); err != nil {
			return err
		}
		if len(last.dirs) == 0 {
			err = last.dir.Close()
			if open = open[:len(open)-1]; err != nil {
				return errors.Join(err, closeFolder(top))
			}
		}
	}
}

func closeFolder(f *os.File) error {
	if f == nil {
		return nil
	}
	return f.Close()
}

// open opens a folder and counts it; nil: it is there no more.
func (m *meter) open(at int, name string) (*os.File, error) {
	if err := m.ctx.Err(); err != nil {
		return nil, context.Cause(m.ctx)
	}
	fd, err := unix.Openat(at, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if gone(err) {
		return nil, nil
	}
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: name, Err: err}
	}
	st, err := fstat(fd)
	if err != nil {
		return nil, errors.Join(err, unix.Close(fd))
	}
	m.bytes += st.Blocks * 512
	return os.NewFile(uintptr(fd), name), nil
}

// files counts the files in a folder. It returns the folders in it, and does not count
// these.
func (m *meter) files(dir *os.File) (dirs []string, err error) {
	fd := int(dir.Fd())
	for err == nil {
		var names []string
		names, err = dir.Readdirnames(1024)
		for _, name := range names {
			var st unix.Stat_t
			statErr := unix.Fstatat(fd, name, &st, unix.AT_SYMLINK_NOFOLLOW)
			switch {
			case gone(statErr):
			case statErr != nil:
				return nil, &fs.PathError{Op: "stat", Path: name, Err: statErr}
			case st.Mode&unix.S_IFMT == unix.S_IFDIR:
				dirs = append(dirs, name)
			case st.Nlink < 2 || !m.twice(inode{st.Dev, st.Ino}):
				m.bytes += st.Blocks * 512
			}
		}
		if err == nil && m.ctx.Err() != nil {
			err = context.Cause(m.ctx)
		}
	}
	if errors.Is(err, io.EOF) || gone(err) { // gone: it was removed meanwhile
		return dirs, nil
	}
	return nil, err
}

// twice reports whether a file was counted, and notes it.
func (m *meter) twice(id inode) bool {
	if m.counted[id] {
		return true
	}
	m.counted[id] = true
	return false
}
