package private

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
)

// Fit says why a server could not have dir as its data folder, and changes nothing. The reason
// is that Folder would fail, or that the file system can't have a sprite's disk. dir need not
// exist. A *RefusedError has the next step.
func Fit(dir string) error {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return fmt.Errorf("make the data folder: %w", err)
	}
	at, below := dir, dir // what exists, and the folder to make there
	st, err := os.Stat(at)
	for errors.Is(err, fs.ErrNotExist) && at != filepath.Dir(at) {
		if _, err := os.Lstat(at); err == nil {
			return fmt.Errorf("make the data folder: %w", &fs.PathError{Op: "mkdir", Path: at, Err: syscall.EEXIST}) // a link to nothing
		}
		at, below = filepath.Dir(at), at
		st, err = os.Stat(at)
	}
	switch {
	case err != nil:
		return fmt.Errorf("look at the data folder: %w", err)
	case !st.IsDir():
		return fmt.Errorf("make the data folder: %w", &fs.PathError{Op: "mkdir", Path: below, Err: syscall.ENOTDIR})
	}
	var on unix.Statfs_t
	if unix.Statfs(at, &on) == nil && on.Type == unix.OVERLAYFS_SUPER_MAGIC {
		return &RefusedError{Dir: dir, Why: "is on overlayfs, as a container's own files are: no sprite's disk can be there",
			Hint: "choose one on a volume, or on another disk, with --data DIR or COVE_DATA"}
	}
	if at == dir {
		err = fitEntered(dir, st)
	} else {
		err = fitNew(dir, at)
	}
	if err != nil {
		return err
	}
	if err := unix.Faccessat(unix.AT_FDCWD, at, unix.W_OK|unix.X_OK, unix.AT_EACCESS); err != nil {
		op := "mkdir"
		if at == dir {
			op = "write to"
		}
		return fmt.Errorf("make the data folder: %w", &fs.PathError{Op: op, Path: below, Err: err})
	}
	return nil
}

// fitEntered is Fit of a folder that is there.
func fitEntered(dir string, st fs.FileInfo) error {
	if err := Check(dir); err != nil || st.Mode().Perm()&others == 0 {
		return err
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("read the data folder: %w", err)
	}
	return onlyOurs(dir, st, entries)
}

// fitNew is Fit for a folder that does not exist yet, below an existing one.
func fitNew(dir, at string) error {
	real, err := filepath.EvalSymlinks(at)
	if err != nil {
		return fmt.Errorf("look at the data folder: %w", err)
	}
	rest, err := filepath.Rel(at, dir)
	if err != nil {
		return fmt.Errorf("look at the data folder: %w", err)
	}
	// The new folders will be this user's, and closed.
	for _, way := range []string{at, real} {
		if err := checkWayFrom(filepath.Join(way, rest), way); err != nil {
			return fmt.Errorf("look at the data folder: %w", err)
		}
	}
	return nil
}
