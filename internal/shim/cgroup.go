package shim

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

const cgroupRoot = "/sys/fs/cgroup"

// cgroupPath is a sandbox's cgroup below the root of each hierarchy. It has no
// parent of ours, so that nothing stays when it is removed.
func cgroupPath(id string) string { return "/cove-" + id }

// hierarchies returns the mount points of the cgroup hierarchies: one in v2, one
// per controller in v1.
func hierarchies() []string {
	var st unix.Statfs_t
	if err := unix.Statfs(cgroupRoot, &st); err != nil {
		return nil
	}
	if st.Type == unix.CGROUP2_SUPER_MAGIC {
		return []string{cgroupRoot}
	}
	entries, err := os.ReadDir(cgroupRoot)
	if err != nil {
		return nil
	}
	var out []string
	for _, e := range entries {
		dir := filepath.Join(cgroupRoot, e.Name())
		if err := unix.Statfs(dir, &st); err == nil && (st.Type == unix.CGROUP_SUPER_MAGIC || st.Type == unix.CGROUP2_SUPER_MAGIC) {
			out = append(out, dir)
		}
	}
	return out
}

// cgroupsWritable reports whether this process can give limits by cgroups, and
// if it can't, why.
func cgroupsWritable(id string) (bool, string) {
	h := hierarchies()
	if len(h) == 0 {
		return false, "no cgroup file system is mounted at " + cgroupRoot
	}
	// One shows whose they are; a new folder in each would cost 1 ms apiece.
	probe := filepath.Join(h[0], cgroupPath(id)+"-probe")
	if err := os.Mkdir(probe, 0o755); err != nil {
		return false, fmt.Sprintf("cgroups can't be written by this user (%v)", errors.Unwrap(err))
	}
	if err := os.Remove(probe); err != nil {
		return false, err.Error()
	}
	return true, ""
}

// oomKills returns how many processes of the sandbox the kernel has ended for
// want of memory.
func oomKills(id string) int {
	for _, file := range []string{
		filepath.Join(cgroupRoot, "memory", cgroupPath(id), "memory.oom_control"), // v1
		filepath.Join(cgroupRoot, cgroupPath(id), "memory.events"),                // v2
	} {
		data, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(data)) {
			if f := strings.Fields(line); len(f) == 2 && f[0] == "oom_kill" {
				n, err := strconv.Atoi(f[1])
				if err == nil && n > 0 {
					return n
				}
			}
		}
	}
	return 0
}

// removeCgroups removes what is left of a sandbox's cgroups in every hierarchy.
func removeCgroups(id string) error {
	var errs []error
	for _, dir := range hierarchies() {
		if err := removeTree(filepath.Join(dir, cgroupPath(id))); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// removeTree removes a cgroup and those below it, which have no files that could
// be deleted, only folders.
func removeTree(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	for _, e := range entries {
		if e.IsDir() {
			if err := removeTree(filepath.Join(dir, e.Name())); err != nil {
				return err
			}
		}
	}
	if err := unix.Rmdir(dir); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("remove cgroup %s: %w", dir, err)
	}
	return nil
}
