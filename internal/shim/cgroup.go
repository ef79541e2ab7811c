package shim

import (
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/cove-dev/cove/internal/shim/cgroup"
)

const cgroupRoot = cgroup.Mount

// cgroupPath is a sandbox's cgroup below the mount of each hierarchy, in that which
// cgroup.Process.Parent says.
func cgroupPath(parent, id string) string { return path.Join("/", parent, "cove-"+id) }

// cgroup is that of the sandbox.
func (s State) cgroup() string { return cgroupPath(s.CgroupParent, s.Container) }

// hostLimits are the limits that need cgroups of the host, by their controllers. gVisor's own
// hold a sandbox to its number of processes.
var hostLimits = []string{"memory", "cpu"}

// lacking lists the limits that no cgroup there can have, with the reason. In v1 runsc starts no
// sandbox in cgroups unless there are all.
func lacking(m cgroup.Mounted) (all []string) {
	var without []string
	for _, name := range hostLimits {
		if !slices.Contains(m.Have, name) {
			without = append(without, name)
		}
	}
	if len(without) == 0 {
		return nil
	}
	why := "the cgroups at " + cgroupRoot + " have no controller " + strings.Join(without, ", ")
	if !m.V2 {
		return unlimited(why)
	}
	for _, name := range without {
		all = append(all, name+": "+why)
	}
	return all
}

// enforced reports whether a sandbox was started with the limit of a controller.
func enforced(st State, controller string) bool {
	return !slices.ContainsFunc(st.Unlimited, func(limit string) bool { return strings.HasPrefix(limit, controller+":") })
}

// inCgroups reports whether a sandbox was started in cgroups of its own: they hold it to a limit
// at least.
func inCgroups(st State) bool {
	return slices.ContainsFunc(hostLimits, func(name string) bool { return enforced(st, name) })
}

// onlyEnforced takes limits away that the sandbox's cgroups have no controller for.
func onlyEnforced(r *specs.LinuxResources, st State, have []string) *specs.LinuxResources {
	if !enforced(st, "memory") {
		r.Memory = nil
	}
	if !enforced(st, "cpu") {
		r.CPU = nil
	}
	if !slices.Contains(have, "pids") {
		r.Pids = nil
	}
	return r
}

// cannotLimit lists the limits that this process can't give by cgroups, with the reason.
func cannotLimit(group string) []string {
	m := cgroup.Look()
	h := m.Dirs
	if len(h) == 0 {
		return unlimited(noCgroups)
	}
	lacks := lacking(m)
	if len(lacks) == len(hostLimits) {
		return lacks
	}
	if ok, why := cgroupsWritable(h, group); !ok {
		return unlimited(why)
	}
	return lacks
}

// cgroupsWritable reports whether this process can make cgroups that can have limits, and
// if it can't, why.
func cgroupsWritable(h []string, group string) (bool, string) {
	// One hierarchy shows whether this user may write them. A new folder in each would cost 1
	// ms apiece.
	probe := filepath.Join(h[0], group+"-probe")
	if _, err := os.Stat(filepath.Dir(probe)); err != nil { // the server is elsewhere in this hierarchy
		probe = filepath.Join(h[0], filepath.Base(probe))
	}
	if err := os.Mkdir(probe, 0o755); err != nil {
		return false, unwritable(errors.Unwrap(err))
	}
	if err := os.Remove(probe); err != nil {
		return false, err.Error()
	}
	if err := handDown(h[0], filepath.Dir(probe)); errors.Is(err, unix.EBUSY) {
		return false, "the server's cgroup has processes that the server can't move, so that cgroups below it have no limits"
	} else if err != nil {
		return false, unwritable(errors.Unwrap(err))
	}
	return true, ""
}

// handDown makes the cgroups of a v2 hierarchy hand all controllers down, from its mount to
// parent. runsc does the same, and starts no sandbox if it can't. v1 has no
// cgroup.controllers.
func handDown(mount, parent string) error {
	all, err := os.ReadFile(filepath.Join(mount, "cgroup.controllers"))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	names := strings.Fields(string(all))
	if len(names) == 0 {
		return nil
	}
	below, err := filepath.Rel(mount, parent)
	if err != nil {
		return err
	}
	dir := mount
	for _, name := range append([]string{"."}, strings.Split(below, "/")...) {
		dir = filepath.Join(dir, name)
		if err := os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte("+"+strings.Join(names, " +")), 0); err != nil {
			return err
		}
	}
	return nil
}

// mountDelegated mounts a cgroup that this user was delegated at the place of all, in this
// process's mount namespace.
func mountDelegated(root string) error {
	if root == "" {
		return nil
	}
	if err := unix.Mount(root, cgroupRoot, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("mount the delegated cgroup: %w", &os.PathError{Op: "mount", Path: root, Err: err})
	}
	return nil
}

// runscNeeds are the controllers of v2 that runsc needs to make a cgroup. Most users are
// delegated fewer.
var runscNeeds = []string{"cpu", "cpuset", "io", "memory", "pids"}

// runscRefuses reports whether a hierarchy lacks a controller that runsc needs. The shim then
// makes the sandbox's cgroup, and starts runsc in it.
func runscRefuses(mount string) bool {
	have, err := os.ReadFile(filepath.Join(mount, "cgroup.controllers"))
	if err != nil { // v1
		return false
	}
	all := strings.Fields(string(have))
	return slices.ContainsFunc(runscNeeds, func(name string) bool { return !slices.Contains(all, name) })
}

// makeGroup makes the cgroup of a sandbox, with its limits, if runsc would refuse to. One that
// is there keeps its limits.
func makeGroup(mount, group string, r *specs.LinuxResources) error {
	if !runscRefuses(mount) {
		return nil
	}
	dir := filepath.Join(mount, group)
	if err := os.Mkdir(dir, 0o755); errors.Is(err, os.ErrExist) {
		return nil
	} else if err != nil {
		return fmt.Errorf("make the sandbox's cgroup: %w", err)
	}
	files := map[string]string{}
	if r != nil && r.Memory != nil {
		files["memory.max"] = strconv.FormatInt(*r.Memory.Limit, 10)
	}
	if r != nil && r.CPU != nil {
		files["cpu.max"] = fmt.Sprint(*r.CPU.Quota, " ", *r.CPU.Period)
	}
	if r != nil && r.Pids != nil {
		files["pids.max"] = strconv.FormatInt(r.Pids.Limit, 10)
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			return fmt.Errorf("limit the sandbox: %w", errors.Join(err, unix.Rmdir(dir)))
		}
	}
	return nil
}

// UnlimitedUser is Unlimited of an ordinary user's server.
func UnlimitedUser() []string {
	if _, err := (cgroup.Process{}).Delegated(); err == nil {
		return nil
	} else if !errors.Is(err, cgroup.ErrNotDelegated) {
		return unlimited(err.Error())
	}
	return Unlimited()
}

// Unlimited lists the limits that a sandbox which this process starts now would not have,
// with the reason. It changes nothing to find out.
func Unlimited() []string {
	m := cgroup.Look()
	if len(m.Dirs) == 0 {
		return unlimited(noCgroups)
	}
	lacks := lacking(m)
	if len(lacks) == len(hostLimits) {
		return lacks
	}
	if err := unix.Access(m.Dirs[0], unix.W_OK); err != nil {
		return unlimited(unwritable(err))
	}
	return lacks
}

const noCgroups = "no cgroup file system is mounted at " + cgroupRoot

func unwritable(err error) string {
	if errors.Is(err, unix.EROFS) {
		return "the cgroups at " + cgroupRoot + " are mounted read-only"
	}
	return fmt.Sprintf("this user can't write cgroups (%v)", err)
}

// unlimited lists all limits that need cgroups of the host, with one reason.
func unlimited(why string) (all []string) {
	for _, limit := range hostLimits {
		all = append(all, limit+": "+why)
	}
	return all
}

// oomKills returns how many processes of the sandbox the kernel has ended for
// want of memory.
func oomKills(group string) int {
	for _, file := range []string{
		filepath.Join(cgroupRoot, "memory", group, "memory.oom_control"), // v1
		filepath.Join(cgroupRoot, group, "memory.events"),                // v2
	} {
		if n := cgroup.Event(file, "oom_kill"); n > 0 {
			return n
		}
	}
	return 0
}

// removeCgroups removes what is left of a sandbox's cgroups in every hierarchy.
func removeCgroups(group string) error {
	var errs []error
	for _, dir := range cgroup.Look().Dirs {
		errs = append(errs, onceEmpty(func() error { return removeGroup(dir, group) }))
	}
	return errors.Join(errs...)
}

// emptyLimit bounds how long cgroups may still have processes that are about to end.
const emptyLimit = time.Minute

// onceEmpty removes a cgroup. The kernel keeps a cgroup that has processes. Some may have been
// killed and have yet to end: such processes can't be moved any more.
func onceEmpty(remove func() error) error {
	for deadline := time.Now().Add(emptyLimit); ; <-time.After(time.Millisecond) {
		if err := remove(); !errors.Is(err, unix.EBUSY) || time.Now().After(deadline) {
			return err
		}
	}
}

// removeGroup removes a cgroup of one hierarchy, and the empty cgroups above it. runsc makes
// those if the server is elsewhere in that hierarchy. The kernel keeps a cgroup that has
// processes, or other cgroups below it.
func removeGroup(mount, group string) error {
	if err := removeTree(filepath.Join(mount, group)); err != nil {
		return err
	}
	for group = path.Dir(group); group != "/" && unix.Rmdir(filepath.Join(mount, group)) == nil; {
		group = path.Dir(group)
	}
	return nil
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
