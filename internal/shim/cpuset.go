package shim

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cove-dev/cove/internal/shim/cgroup"
)

// In cgroup v1, gVisor's runsc starts no sandbox if it can't read which processors the
// sandbox's cgroup has. Many containers have no cpuset hierarchy, and cove limits no sandbox
// by it. So if the hierarchy is not mounted, the shim puts plain files in its place, in its
// own mount namespace.

// cpusetDir is where gVisor looks for the hierarchy.
var cpusetDir = filepath.Join(cgroupRoot, "cpuset")

// mountCpuset mounts a folder for such files, if cgroups are of v1 and have no cpuset.
func mountCpuset() error {
	var st unix.Statfs_t
	if err := unix.Statfs(cgroupRoot, &st); err != nil || st.Type == unix.CGROUP2_SUPER_MAGIC || len(cgroup.Look().Dirs) == 0 {
		return nil // there is no v1
	}
	if err := unix.Statfs(cpusetDir, &st); err == nil && st.Type == unix.CGROUP_SUPER_MAGIC {
		return nil
	}
	if _, err := os.Stat(cpusetDir); errors.Is(err, fs.ErrNotExist) {
		if err := copyCgroupRoot(); err != nil {
			return fmt.Errorf("make room for a cpuset beside the cgroups: %w", err)
		}
	}
	if err := unix.Mount("cpuset", cpusetDir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "mode=0755,size=1m"); err != nil {
		return fmt.Errorf("mount a folder for a cpuset: %w", err)
	}
	return nil
}

// copyCgroupRoot replaces the folder of the hierarchies, in this mount namespace alone: the
// host's folder, or a container's, may be read-only. The new folder has the same hierarchies
// and links, and an empty folder for a cpuset.
func copyCgroupRoot() error {
	entries, err := os.ReadDir(cgroupRoot)
	if err != nil {
		return err
	}
	trees, links := map[string]int{}, map[string]string{}
	defer func() {
		for _, fd := range trees {
			_ = unix.Close(fd)
		}
	}()
	for _, e := range entries {
		name := filepath.Join(cgroupRoot, e.Name())
		switch {
		case e.IsDir():
			fd, err := unix.OpenTree(unix.AT_FDCWD, name, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE)
			if err != nil {
				return &fs.PathError{Op: "copy the mount at", Path: name, Err: err}
			}
			trees[e.Name()] = fd
		case e.Type() == fs.ModeSymlink: // as cpu to cpu,cpuacct
			if links[e.Name()], err = os.Readlink(name); err != nil {
				return err
			}
		}
	}
	if err := unix.Unmount(cgroupRoot, unix.MNT_DETACH); err != nil { // else gVisor finds each hierarchy twice
		return &fs.PathError{Op: "unmount", Path: cgroupRoot, Err: err}
	}
	if err := unix.Mount("cgroups", cgroupRoot, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "mode=0755,size=1m"); err != nil {
		return &fs.PathError{Op: "mount", Path: cgroupRoot, Err: err}
	}
	for name, fd := range trees {
		to := filepath.Join(cgroupRoot, name)
		err := os.Mkdir(to, 0o755)
		if err == nil {
			err = unix.MoveMount(fd, "", unix.AT_FDCWD, to, unix.MOVE_MOUNT_F_EMPTY_PATH)
		}
		if err != nil {
			return &fs.PathError{Op: "mount", Path: to, Err: err}
		}
	}
	for name, target := range links {
		if err := os.Symlink(target, filepath.Join(cgroupRoot, name)); err != nil {
			return err
		}
	}
	return os.Mkdir(cpusetDir, 0o755)
}

// writeCpuset writes the files of one sandbox's cpuset, which has all processors that this
// process may use, unless the kernel has a cpuset here.
func writeCpuset(group string) error {
	var st unix.Statfs_t
	if err := unix.Statfs(cpusetDir, &st); err != nil || st.Type != unix.TMPFS_MAGIC {
		return nil
	}
	text, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return err
	}
	dir := filepath.Join(cpusetDir, group)
	files := map[string]string{"cgroup.procs": "", "cpuset.mems": "0"}
	for line := range strings.Lines(string(text)) {
		if list, ok := strings.CutPrefix(line, "Cpus_allowed_list:"); ok {
			files["cpuset.cpus"] = strings.TrimSpace(list)
		}
	}
	err = os.MkdirAll(dir, 0o755)
	for name, text := range files {
		err = errors.Join(err, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
	}
	if err != nil {
		return fmt.Errorf("make a cpuset: %w", err)
	}
	return nil
}
