// Package cgroup finds the control groups of the server: what they limit, and which of them
// the sandboxes' cgroups belong below. In a container that is the container's own cgroup.
package cgroup

import (
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Mount is the folder at which the hierarchies are mounted.
const Mount = "/sys/fs/cgroup"

// Leaf is the cgroup of the server itself, if the cgroup of v2 above it has sandboxes below
// it, too. A cgroup that hands controllers down may have no processes of its own.
const Leaf = "cove.server"

// ShimSuffix ends the name of the cgroup of a shim itself, which lies beside its sandbox's.
const ShimSuffix = "-shim"

// controllers are those that limit a sprite. The first one that limits the server decides
// about the place of sandboxes.
var controllers = []string{"memory", "pids", "cpu"}

// firstPIDs is the number that the kernel gives the machine's own PID namespace.
const firstPIDs = "pid:[4026531836]"

// Process is a process whose control groups are looked at. The zero value is this process.
type Process struct {
	PID  int    // 0: this one
	Root string // of the file system that has /proc and Mount; tests set it
}

// Period is the time that a limit of processors is counted over, in microseconds.
const Period = 100_000

// Limits are the lowest limits of a process's cgroup and those above it, as far as they can
// be seen. 0 is no limit.
type Limits struct {
	Memory        int64 // bytes
	CPUs          int   // rounded up
	Quota         int64 // of the processors' time, in microseconds of each Period; not rounded
	Processes     int   // threads count
	ProcessesLeft int   // of Processes
}

// group is the cgroup of a process in one hierarchy.
type group struct {
	v2    bool
	mount string // of the hierarchy, with Root
	path  string // below mount, "/" for the mount itself
	leaf  bool   // the process is in Leaf below it
}

func (g group) dir() string { return filepath.Join(g.mount, g.path) }

// levels are the cgroup and all above it that are seen; none of a zero group.
func (g group) levels() (dirs []string) {
	for p := g.path; p != ""; p = path.Dir(p) {
		dirs = append(dirs, filepath.Join(g.mount, p))
		if p == "/" {
			break
		}
	}
	return dirs
}

// Limits reads the limits of a process. A file that can't be read limits nothing. Those of a shim
// are its server's: its own cgroup, see ShimSuffix, holds for nothing else.
func (p Process) Limits() Limits {
	var l Limits
	groups := p.groups()
	for _, dir := range groups["memory"].levels() {
		l.Memory = least(l.Memory, groups["memory"].memory(dir))
	}
	for _, dir := range groups["cpu"].levels() {
		l.Quota = least(l.Quota, groups["cpu"].quota(dir))
	}
	l.CPUs = int((l.Quota + Period - 1) / Period)
	for _, dir := range groups["pids"].levels() {
		limit := groups["pids"].processes(dir)
		if limit == 0 {
			continue
		}
		left := limit
		if used, err := readNumber(filepath.Join(dir, "pids.current")); err == nil {
			left = max(limit-int(used), 1)
		}
		l.Processes, l.ProcessesLeft = least(l.Processes, limit), least(l.ProcessesLeft, left)
	}
	return l
}

// ProcessRefusals counts how often one of the cgroups of a process has refused it, or
// others, a process.
func (p Process) ProcessRefusals() int {
	n := 0
	for _, dir := range p.groups()["pids"].levels() {
		n += Event(filepath.Join(dir, "pids.events"), "max")
	}
	return n
}

// Dir is the folder of a process's cgroup in the hierarchy of a controller; empty: none is
// seen.
func (p Process) Dir(controller string) string {
	g, ok := p.groups()[controller]
	switch {
	case !ok:
		return ""
	case g.leaf:
		return filepath.Join(g.dir(), Leaf)
	}
	return g.dir()
}

// Event reads a counter from a file of lines of a name and a number; 0: there is none.
func Event(file, name string) int {
	data, err := os.ReadFile(file)
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(data)) {
		if f := strings.Fields(line); len(f) == 2 && f[0] == name {
			if n, err := strconv.Atoi(f[1]); err == nil {
				return n
			}
		}
	}
	return 0
}

// Parent is the cgroup below which sandboxes belong, as a path in each hierarchy's mount.
// It is the server's own cgroup if that is a container's, or limits something. Then its
// limits hold for sandboxes, too, and no sandbox stays when the container ends. Else it is
// "/": a session's cgroup ends with the session. In v2, Parent moves the server's processes
// to Leaf.
func (p Process) Parent() string {
	groups := p.groups()
	for _, name := range controllers {
		g, ok := groups[name]
		if !ok || g.path == "/" && !g.v2 || !p.below(name, g) {
			continue
		}
		if g.v2 && g.vacate() != nil {
			return "/"
		}
		return g.path
	}
	return "/"
}

// InContainer reports whether the numbering of a process is not the machine's first one. It
// says no if the kernel does not tell.
func (p Process) InContainer() bool {
	pids, err := os.Readlink(p.proc("ns/pid"))
	return err == nil && pids != firstPIDs
}

// below reports whether the sandboxes belong below this cgroup.
func (p Process) below(controller string, g group) bool {
	if g.v2 {
		if _, err := os.Stat(filepath.Join(g.dir(), "cgroup.type")); err != nil {
			return false // the machine's own root, which has no limits
		}
		if strings.HasSuffix(g.path, ".service") && !g.leaf {
			return false // systemd could not start the unit again
		}
	}
	limited := func(dir string) bool {
		switch controller {
		case "memory":
			return g.memory(dir) > 0
		case "pids":
			return g.processes(dir) > 0
		}
		return g.quota(dir) > 0
	}
	levels := g.levels()
	if i := slices.IndexFunc(strings.Split(g.path, "/"), func(part string) bool {
		return strings.HasPrefix(part, "session-") && strings.HasSuffix(part, ".scope")
	}); i >= 0 {
		return limited(levels[0]) // the cgroups above it limit all of the user's sessions
	}
	if p.InContainer() {
		return true
	}
	return slices.ContainsFunc(levels, limited)
}

// vacate moves the processes of a v2 cgroup to Leaf, if it can't hand controllers down
// otherwise.
func (g group) vacate() error {
	control := filepath.Join(g.dir(), "cgroup.subtree_control")
	have, err := os.ReadFile(control)
	if err != nil {
		return fmt.Errorf("hand controllers down: %w", err)
	}
	if on := strings.Fields(string(have)); !slices.ContainsFunc(controllers, func(c string) bool { return !slices.Contains(on, c) }) {
		return nil
	}
	enable := func() error { return os.WriteFile(control, []byte("+"+strings.Join(controllers, " +")), 0o600) }
	err = enable()
	for try := 0; errors.Is(err, unix.EBUSY) && try < 10; try++ { // its processes may start others meanwhile
		leaf := filepath.Join(g.dir(), Leaf)
		if err := os.Mkdir(leaf, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
			return fmt.Errorf("make the server's cgroup: %w", err)
		}
		data, readErr := os.ReadFile(filepath.Join(g.dir(), "cgroup.procs"))
		if readErr != nil {
			return fmt.Errorf("hand controllers down: %w", readErr)
		}
		for pid := range strings.FieldsSeq(string(data)) {
			if err := os.WriteFile(filepath.Join(leaf, "cgroup.procs"), []byte(pid), 0o600); err != nil && !errors.Is(err, unix.ESRCH) {
				return fmt.Errorf("move to the server's cgroup: %w", err)
			}
		}
		err = enable()
	}
	if err != nil {
		return fmt.Errorf("hand controllers down: %w", err)
	}
	return nil
}

// memory is the limit of one cgroup, in bytes; 0: none.
func (g group) memory(dir string) int64 {
	file := "memory.limit_in_bytes"
	if g.v2 {
		file = "memory.max"
	}
	n, err := readNumber(filepath.Join(dir, file))
	if err != nil || n >= 1<<60 { // v1 says so of no limit
		return 0
	}
	return n
}

func (g group) processes(dir string) int {
	n, err := readNumber(filepath.Join(dir, "pids.max"))
	if err != nil {
		return 0
	}
	return int(n)
}

// quota is the processors' time that a cgroup may use in each Period; 0: all.
func (g group) quota(dir string) int64 {
	var quota, period int64
	if g.v2 {
		data, err := os.ReadFile(filepath.Join(dir, "cpu.max"))
		if err != nil {
			return 0
		}
		if _, err := fmt.Sscan(string(data), &quota, &period); err != nil {
			return 0 // "max"
		}
	} else {
		var err, err2 error
		quota, err = readNumber(filepath.Join(dir, "cpu.cfs_quota_us"))
		period, err2 = readNumber(filepath.Join(dir, "cpu.cfs_period_us"))
		if err != nil || err2 != nil {
			return 0
		}
	}
	if quota <= 0 || period <= 0 {
		return 0
	}
	return max(quota*Period/period, 1)
}

func (p Process) proc(file string) string {
	who := "self"
	if p.PID > 0 {
		who = strconv.Itoa(p.PID)
	}
	return filepath.Join("/", p.Root, "proc", who, file)
}

// groups are the cgroups of a process, by controller. If a cgroup does not lie in the
// mounted part, its path is that of the mount.
func (p Process) groups() map[string]group {
	text, err := os.ReadFile(p.proc("cgroup"))
	if err != nil {
		return nil
	}
	mounts, err := os.ReadFile(filepath.Join("/", p.Root, "proc/self/mountinfo"))
	if err != nil {
		return nil
	}
	roots := map[string]string{} // the mounted part of each hierarchy; "" is v2
	for line := range strings.Lines(string(mounts)) {
		f := strings.Fields(line)
		if len(f) < 9 || f[4] != Mount && !strings.HasPrefix(f[4], Mount+"/") {
			continue
		}
		switch f[len(f)-3] {
		case "cgroup":
			for name := range strings.SplitSeq(f[len(f)-1], ",") {
				roots[name] = f[3]
			}
		case "cgroup2":
			if f[4] == Mount {
				roots[""] = f[3]
			}
		}
	}
	out := map[string]group{}
	for line := range strings.Lines(string(text)) {
		f := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		if len(f) != 3 {
			continue
		}
		names, at := strings.Split(f[1], ","), path.Join("/", p.Root, Mount)
		root, v2 := roots[""]
		if v2 = v2 && f[0] == "0"; v2 {
			names = controllers
		}
		for _, name := range names {
			g := group{v2: v2, mount: at}
			if !v2 {
				var there bool
				if root, there = roots[name]; !there || !slices.Contains(controllers, name) {
					continue
				}
				g.mount = filepath.Join(at, name)
			}
			g.path = within(root, f[2])
			if name := path.Base(g.path); strings.HasPrefix(name, "cove-") && strings.HasSuffix(name, ShimSuffix) {
				g.path = path.Dir(g.path)
			}
			if path.Base(g.path) == Leaf {
				g.path, g.leaf = path.Dir(g.path), true
			}
			if _, err := os.Stat(g.dir()); err != nil {
				g.path = "/"
			}
			out[name] = g
		}
	}
	return out
}

// within is the path of a cgroup below the mounted part of its hierarchy, or "/".
func within(root, cgroup string) string {
	if strings.HasPrefix(cgroup, "/..") { // outside of the cgroup namespace
		return "/"
	}
	below := false
	if root == "/" {
		below = true
	} else if cgroup, below = strings.CutPrefix(cgroup, root); below {
		below = cgroup == "" || cgroup[0] == '/'
	}
	if !below {
		return "/"
	}
	return path.Join("/", cgroup)
}

func least[T int | int64](a, b T) T {
	if a == 0 || b > 0 && b < a {
		return b
	}
	return a
}

func readNumber(file string) (int64, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(strings.TrimSpace(string(data)), 10, 64)
}
