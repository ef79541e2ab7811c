package shim

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/cove-dev/cove/internal/shim/userns"
)

// In the mount namespace of an ordinary user's shim the host's mounts are locked: none of
// them can be detached alone. Each would hold its disk when the host unmounts it. So the shim
// makes a new root with the mounts that it needs, and detaches the old root as a whole.

// rootPart is one file of the new root.
type rootPart struct {
	path string
	tree int    // a copy of the mounts there; -1: none
	link string // of a symbolic link
	dir  bool
	perm os.FileMode
}

// rootParts are the new root's: all of the host's mounts that are wanted. A folder with an unwanted
// mount below it is a new one, with those of its files that are wanted; of "/" all are.
func rootParts(w wanted, unwanted []string) (parts []rootPart, err error) {
	var place func(path string, info os.FileInfo) error
	place = func(path string, info os.FileInfo) error {
		p := rootPart{path: path, tree: -1, dir: info.IsDir(), perm: info.Mode() & (os.ModePerm | os.ModeSticky)}
		switch {
		case info.Mode()&os.ModeSymlink != 0:
			p.link, err = os.Readlink(path)
			parts = append(parts, p)
			return err
		case !slices.ContainsFunc(unwanted, func(at string) bool { return below(at, path) }):
			if p.tree, err = unix.OpenTree(unix.AT_FDCWD, path, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE); err != nil {
				return &os.PathError{Op: "copy the mounts at", Path: path, Err: err}
			}
			parts = append(parts, p)
			return nil
		}
		parts = append(parts, p)
		if slices.Contains(unwanted, path) {
			return nil
		}
		entries, err := os.ReadDir(path)
		if err != nil {
			return err
		}
		for _, e := range entries {
			name := filepath.Join(path, e.Name())
			if path != "/" && !w.has(name) || slices.Contains(unwanted, name) {
				continue
			}
			info, err := e.Info()
			if err == nil {
				err = place(name, info)
			}
			if err != nil && w.has(name) {
				return err
			}
		}
		return nil
	}
	info, err := os.Stat("/")
	if err == nil {
		err = place("/", info)
	}
	return parts, err
}

// newRoot reports whether this process has another root now. Then the process must execute
// itself again: its program is a file of the old root, and holds the old root's mounts.
func newRoot(cfg Config) (changed bool, err error) {
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return false, err
	}
	all, err := readMounts(string(text))
	if err != nil {
		return false, err
	}
	w, data := cfg.wants(), filepath.Dir(filepath.Dir(cfg.Dir))
	var unwanted []string
	for _, m := range all {
		if !w.has(m.at) && !below(m.at, data) {
			unwanted = append(unwanted, m.at)
		}
	}
	if len(unwanted) == 0 {
		return false, nil
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
		return false, fmt.Errorf("make the mount namespace private: %w", err)
	}
	parts, err := rootParts(w, unwanted)
	defer func() {
		for _, p := range parts {
			if p.tree >= 0 {
				_ = unix.Close(p.tree)
			}
		}
	}()
	if err != nil {
		return false, err
	}
	if err := unix.Mount("root", cfg.Dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=0755"); err != nil {
		return false, fmt.Errorf("mount a new root: %w", err)
	}
	defer func() {
		if !changed {
			err = errors.Join(err, unix.Unmount(cfg.Dir, unix.MNT_DETACH))
		}
	}()
	for _, p := range parts[1:] {
		at := filepath.Join(cfg.Dir, p.path)
		switch {
		case p.link != "":
			err = os.Symlink(p.link, at)
		case p.dir:
			if err = os.Mkdir(at, 0o700); err == nil {
				err = os.Chmod(at, p.perm)
			}
		default:
			err = os.WriteFile(at, nil, 0o600)
		}
		if err == nil && p.tree >= 0 {
			err = unix.MoveMount(p.tree, "", unix.AT_FDCWD, at, unix.MOVE_MOUNT_F_EMPTY_PATH)
		}
		if err != nil {
			return false, fmt.Errorf("make %s of a new root: %w", p.path, err)
		}
	}
	if err := os.Chdir(cfg.Dir); err != nil {
		return false, err
	}
	if err := unix.PivotRoot(".", "."); err != nil {
		return false, fmt.Errorf("change the root: %w", err)
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return true, fmt.Errorf("detach the old root: %w", err)
	}
	return true, os.Chdir("/")
}

// again executes this program once more, with the same input.
func again(input []byte) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	fd, err := unix.MemfdCreate("config", unix.MFD_CLOEXEC)
	if err != nil {
		return fmt.Errorf("keep the configuration: %w", err)
	}
	f := os.NewFile(uintptr(fd), "config")
	if _, err = f.Write(input); err == nil {
		_, err = f.Seek(0, 0)
	}
	if err == nil {
		err = unix.Dup3(fd, 0, 0)
	}
	if err == nil {
		_, err = unix.FcntlInt(readyFD, unix.F_SETFD, 0)
	}
	if err != nil {
		return fmt.Errorf("keep the configuration: %w", err)
	}
	return fmt.Errorf("execute %s again: %w", self, unix.Exec(self, os.Args, os.Environ()))
}

// readyFD is the pipe for the shim's answer.
const readyFD = 3

// rooted is a variable of a process that has had its new root.
const rooted = "COVE_SHIM_ROOT"

// leaveRoot gives an ordinary user's shim a new root, if the host has mounts that it does not
// need. It returns if there is nothing to do, or on an error.
func leaveRoot(cfg Config, input []byte) error {
	if os.Getenv(rooted) != "" {
		return os.Unsetenv(rooted)
	}
	if !userns.Inside() {
		return nil // detachMounts can do it
	}
	changed, err := newRoot(cfg)
	if err != nil || !changed {
		return err
	}
	if err := os.Setenv(rooted, "1"); err != nil {
		return err
	}
	return again(input)
}
