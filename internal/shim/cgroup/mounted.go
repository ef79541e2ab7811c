package cgroup

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Mounted is what is mounted at Mount. The zero value: no cgroup file system is.
type Mounted struct {
	V2   bool
	Dirs []string // of the hierarchies: one in v2, one per controller in v1
	Have []string // the controllers that a cgroup there can have, of those that limit a sprite
}

// Look looks at what is mounted. A folder of a controller's name counts only if that
// hierarchy is mounted there.
func Look() (m Mounted) {
	var st unix.Statfs_t
	if err := unix.Statfs(Mount, &st); err != nil {
		return m
	}
	if st.Type == unix.CGROUP2_SUPER_MAGIC {
		text, _ := os.ReadFile(filepath.Join(Mount, "cgroup.controllers")) // one that can't be read hands nothing down
		return Mounted{V2: true, Dirs: []string{Mount}, Have: controllersIn(string(text))}
	}
	entries, err := os.ReadDir(Mount)
	if err != nil {
		return m
	}
	for _, e := range entries {
		dir := filepath.Join(Mount, e.Name())
		if err := unix.Statfs(dir, &st); err != nil || st.Type != unix.CGROUP_SUPER_MAGIC && st.Type != unix.CGROUP2_SUPER_MAGIC {
			continue
		}
		m.Dirs = append(m.Dirs, dir)
		if st.Type == unix.CGROUP_SUPER_MAGIC && slices.Contains(controllers, e.Name()) { // as a link to cpu,cpuacct too
			m.Have = append(m.Have, e.Name())
		}
	}
	return m
}

// controllersIn are those of a text's words that limit a sprite.
func controllersIn(text string) (have []string) {
	for word := range strings.FieldsSeq(text) {
		if slices.Contains(controllers, word) {
			have = append(have, word)
		}
	}
	return have
}

// A Cause is why a controller is not there.
type Cause int

// The causes.
const (
	NotBuilt   Cause = iota // the kernel does not list it
	Disabled                // by a parameter of the kernel
	BoundToV1               // another hierarchy has it, which is not mounted here
	HandedDown              // the cgroup above does not hand it down
)

// Why says why a controller is not there, by the kernel's list (/proc/cgroups).
func Why(controller, list string) Cause {
	for line := range strings.Lines(list) {
		f := strings.Fields(line)
		if len(f) < 4 || f[0] != controller {
			continue
		}
		hierarchy, err := strconv.Atoi(f[1])
		switch {
		case f[3] == "0":
			return Disabled
		case err == nil && hierarchy > 0:
			return BoundToV1
		}
		return HandedDown
	}
	return NotBuilt
}
