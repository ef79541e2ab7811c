package cli

import (
	"cmp"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cove-dev/cove/internal/shim/cgroup"
)

// controllers are the cgroup controllers that limit a sprite.
var controllers = []string{"memory", "cpu", "pids"}

// cgroupsHere finds which cgroups there are, and whether the server's user may have them.
func (d *doctor) cgroupsHere() (m cgroup.Mounted, writable bool) {
	m = cgroup.Look()
	if m.V2 && !d.root {
		_, err := d.process().Delegated()
		return m, err == nil
	}
	for _, dir := range m.Dirs {
		if !m.V2 && !slices.Contains(controllers, filepath.Base(dir)) {
			continue
		}
		if unix.Access(dir, unix.W_OK) != nil {
			return m, false
		}
	}
	return m, len(m.Dirs) > 0
}

func (d *doctor) cgroups() check {
	m, writable := d.cgroupsHere()
	list, _ := os.ReadFile("/proc/cgroups") // without it, the kernel lists none
	c := cgroupsCheck(m, string(list))
	if writable || len(m.Dirs) == 0 {
		return c
	}
	c.Level = levelWarn
	why, fix := "not writable by this user", delegate(versionOf(m), systemdRuns())
	for _, dir := range m.Dirs {
		if (m.V2 || slices.Contains(controllers, filepath.Base(dir))) && unix.Access(dir, unix.W_OK) == unix.EROFS {
			why, fix = "mounted read-only", "mount -o remount,rw,bind "+dir+", or, in a container, start it with that right (docker run --privileged)"
			break
		}
	}
	c.Detail += "; " + why + ", so that the host's limits are not enforced"
	if len(m.Have) > 0 {
		c.Fix = fix
	} // else writing there would give no limits
	return c
}

func versionOf(m cgroup.Mounted) string {
	if m.V2 {
		return "v2"
	}
	return "v1"
}

// cgroupsCheck says which controllers there are. If some are missing, it says why, by the
// kernel's list of them.
func cgroupsCheck(m cgroup.Mounted, list string) check {
	c := check{Name: "cgroups", Level: levelOK}
	if len(m.Dirs) == 0 {
		return check{c.Name, levelWarn, "no cgroup file system is mounted at " + cgroup.Mount + ": limits are not enforced", mountFix(list)}
	}
	var with, without []string
	for _, name := range controllers {
		if slices.Contains(m.Have, name) {
			with = append(with, name)
		} else {
			without = append(without, name)
		}
	}
	c.Detail = versionOf(m) + ", controllers: " + cmp.Or(strings.Join(with, " "), "none")
	if len(without) == 0 {
		return c
	}
	c.Level = levelWarn
	c.Detail += "; without " + strings.Join(without, " ") + ", whose limits are not enforced"
	by := map[cgroup.Cause][]string{}
	for _, name := range without {
		cause := cgroup.Why(name, list)
		by[cause] = append(by[cause], name)
	}
	var why, fix []string
	for _, cause := range []cgroup.Cause{cgroup.NotBuilt, cgroup.Disabled, cgroup.BoundToV1, cgroup.HandedDown} {
		if names := by[cause]; len(names) > 0 {
			w, f := missing(cause, names, m.V2)
			why, fix = append(why, w), append(fix, f)
		}
	}
	c.Detail += " (" + strings.Join(why, "; ") + ")"
	c.Fix = strings.Join(fix, "; ")
	return c
}

// missing says why controllers are not there, and what to do.
func missing(cause cgroup.Cause, names []string, v2 bool) (why, fix string) {
	all := strings.Join(names, " ")
	switch {
	case cause == cgroup.NotBuilt:
		return all + ": not listed by the kernel", "use a kernel built with CONFIG_MEMCG, CONFIG_CFS_BANDWIDTH and CONFIG_CGROUP_PIDS"
	case cause == cgroup.Disabled:
		return all + ": disabled at boot", "boot with the kernel parameter cgroup_enable=" + strings.Join(names, " cgroup_enable=")
	case !v2:
		dir := filepath.Join(cgroup.Mount, names[0])
		return all + ": not mounted here", "mount them, as root: for each, such as " + names[0] + ", mkdir -p " + dir + " && mount -t cgroup -o " + names[0] + " none " + dir
	case cause == cgroup.BoundToV1:
		return all + ": bound to cgroup v1 on this host", "boot the host with the kernel parameter systemd.unified_cgroup_hierarchy=1; or, in a container, show it the host's v1 hierarchies (docker run --privileged -v /sys/fs/cgroup:/sys/fs/cgroup)"
	}
	return all + ": not handed down by the cgroup above", "let the cgroup above hand them down: echo +" + strings.Join(names, " +") + " to its cgroup.subtree_control, or Delegate=yes of a unit"
}

// mountFix is how to mount cgroups if none are mounted.
func mountFix(list string) string {
	const see = "in a container, show it the host's cgroups (docker run --privileged -v /sys/fs/cgroup:/sys/fs/cgroup)"
	for _, name := range controllers {
		if cgroup.Why(name, list) == cgroup.BoundToV1 {
			return see + "; on a machine, mount those of v1 below " + cgroup.Mount + ": they have the controllers here"
		}
	}
	return "sudo mount -t cgroup2 none " + cgroup.Mount + "; " + see
}

// delegate is what an ordinary user types to have limits.
func delegate(version string, systemd bool) string {
	switch {
	case version != "v2":
		return "run the server as root"
	case systemd:
		return "cove server install; or, without a unit: cove server stop; systemd-run --user --scope -p Delegate=yes cove server start"
	}
	return "run the server as root, or in a cgroup that belongs to this user, with the controllers " + strings.Join(controllers, ", ")
}

// limits says what enforces each of a sprite's limits on this machine. The check cgroups
// complains of those that nothing enforces.
func (d *doctor) limits() check {
	m, writable := d.cgroupsHere()
	enforced := func(name, how string) string {
		if !writable || !slices.Contains(m.Have, name) {
			return "not enforced"
		}
		return how
	}
	memory := "a sprite's largest process is killed before a cgroup kills all of the sprite"
	if !m.V2 {
		memory += ", and processes that need more wait until then"
	}
	if all, err := d.process().Machine(); err == nil && all.Server.Memory > 0 {
		memory += "; if all sprites together use up the server's cgroup or container, the largest process of the largest sprite is killed; if memory fills faster than that, the kernel may kill a whole sprite"
	}
	processes := "gVisor's own cgroup"
	if enforced("pids", "") == "" {
		processes += ", and one of this machine"
	}
	return check{Name: "limits", Level: levelOK, Detail: "memory: " + enforced("memory", memory) + "; cpus: " + enforced("cpu", "a cgroup") +
		"; processes: " + processes + "; disk: a watch, which pauses a sprite a moment after it has reached its limit; until then the sprite can write more than that"}
}
