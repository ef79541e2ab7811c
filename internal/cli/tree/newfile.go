package tree

import (
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// File is a file that will take the place of another one. It has no name until all of it
// is there, so that a killed cove leaves nothing. If the file system has no files without a
// name, it has a temporary one beside its place.
type File struct {
	*os.File
	dst  string
	temp string // empty while it has no name
}

// Create makes a file that will be dst. The caller puts or drops it.
func Create(dst string) (*File, error) {
	fd, err := unix.Open(filepath.Dir(dst), unix.O_TMPFILE|unix.O_WRONLY|unix.O_CLOEXEC, 0o600)
	if err == nil {
		f := os.NewFile(uintptr(fd), dst)
		if _, err := os.Stat(descriptorPath(f)); err == nil {
			return &File{File: f, dst: dst}, nil
		}
		_ = f.Close() // without /proc it could get no name
	}
	f, err := os.CreateTemp(filepath.Dir(dst), ".cove-*")
	if err != nil {
		return nil, err
	}
	return &File{File: f, dst: dst, temp: f.Name()}, nil
}

// Put gives the file its place, and closes it.
func (f *File) Put() error {
	if f.temp == "" {
		temp := filepath.Join(filepath.Dir(f.dst), ".cove-"+rand.Text()) // a link replaces nothing
		if err := unix.Linkat(unix.AT_FDCWD, descriptorPath(f.File), unix.AT_FDCWD, temp, unix.AT_SYMLINK_FOLLOW); err != nil {
			return errors.Join(&os.LinkError{Op: "link", Old: f.dst, New: temp, Err: err}, f.Drop())
		}
		f.temp = temp
	}
	err := f.Close()
	if err == nil {
		err = os.Rename(f.temp, f.dst)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.temp))
	}
	return nil
}

// Drop closes the file, and removes it.
func (f *File) Drop() error {
	err := f.Close()
	if f.temp != "" {
		err = errors.Join(err, os.Remove(f.temp))
	}
	return err
}

func descriptorPath(f *os.File) string { return fmt.Sprintf("/proc/self/fd/%d", f.Fd()) }
