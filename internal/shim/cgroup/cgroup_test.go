package cgroup

import (
	"maps"
	"os"
	"path/filepath"
	"testing"
)

const (
	v1Mounts = "30 29 0:26 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n" +
		"31 29 0:27 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids\n" +
		"32 29 0:28 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
	v2Mounts = "30 29 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup rw\n"
	noLimit  = "9223372036854771712\n"
)

// machine is a file system of the files that are named, with /proc/self of a process.
func machine(t *testing.T, pids, mounts, cgroups string, files map[string]string) Process {
	t.Helper()
	root := t.TempDir()
	all := map[string]string{"proc/self/mountinfo": mounts, "proc/self/cgroup": cgroups}
	for name, text := range files {
		all[filepath.Join(Mount, name)] = text
	}
	for name, text := range all {
		name = filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.MkdirAll(filepath.Join(root, "proc/self/ns"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(pids, filepath.Join(root, "proc/self/ns/pid")); err != nil {
		t.Fatal(err)
	}
	// A controller's folder may be a link to that of several.
	_ = os.Symlink("cpu,cpuacct", filepath.Join(root, Mount, "cpu"))
	return Process{Root: root}
}

const inside = "pid:[4026532000]"

func TestParentAndLimits(t *testing.T) {
	of := func(path string) string {
		return "9:cpu,cpuacct:" + path + "\n8:pids:" + path + "\n4:memory:" + path + "\n"
	}
	container := map[string]string{
		"memory/memory.limit_in_bytes": noLimit, "memory/uc/memory.limit_in_bytes": noLimit, "memory/uc/h1/memory.limit_in_bytes": "1073741824\n",
		"pids/uc/h1/pids.max": "200\n", "pids/uc/h1/pids.current": "50\n", "pids/uc/pids.max": "max\n",
		"cpu,cpuacct/uc/h1/cpu.cfs_quota_us": "150000\n", "cpu,cpuacct/uc/h1/cpu.cfs_period_us": "100000\n",
	}
	with := func(more map[string]string) map[string]string {
		all := maps.Clone(container)
		maps.Copy(all, more)
		return all
	}
	limited := Limits{Memory: 1 << 30, CPUs: 2, Quota: 150_000, Processes: 200, ProcessesLeft: 150}
	unit := "system.slice/cove.service/"
	for name, tt := range map[string]struct {
		pids, mounts, cgroups string
		files                 map[string]string
		parent                string
		limits                Limits
	}{
		"v1: the host's hierarchies in a container":     {inside, v1Mounts, of("/uc/h1"), container, "/uc/h1", limited},
		"v1: a limit above":                             {firstPIDs, v1Mounts, of("/uc/h1"), with(map[string]string{"memory/uc/memory.limit_in_bytes": "1048576\n"}), "/uc/h1", Limits{1 << 20, 2, 150_000, 200, 150}},
		"v1: a container without limits":                {inside, v1Mounts, of("/uc/h1"), map[string]string{"memory/uc/h1/x": "", "pids/uc/h1/x": "", "cpu,cpuacct/uc/h1/x": ""}, "/uc/h1", Limits{}},
		"v1: a group without limits, not a container's": {firstPIDs, v1Mounts, of("/uc/h1"), map[string]string{"memory/uc/h1/memory.limit_in_bytes": noLimit, "pids/uc/h1/pids.max": "max"}, "/", Limits{}},
		"v1: what is mounted begins at the container":   {inside, "30 29 0:26 /uc/h1 /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n", of("/uc/h1"), map[string]string{"memory/memory.limit_in_bytes": "1073741824"}, "/", Limits{Memory: 1 << 30}},
		"v1: the path is not in what is mounted":        {inside, v1Mounts, of("/elsewhere"), container, "/", Limits{}},
		"v1: outside of the namespace":                  {inside, v1Mounts, of("/../uc/h1"), container, "/", Limits{}},
		"v1: only processes are limited":                {firstPIDs, v1Mounts, "8:pids:/unit\n4:memory:/\n", map[string]string{"pids/unit/pids.max": "64", "pids/unit/pids.current": "80", "memory/memory.limit_in_bytes": noLimit}, "/unit", Limits{Processes: 64, ProcessesLeft: 1}},
		"v1: a session": {firstPIDs, v1Mounts, of("/user.slice/user-0.slice/session-3.scope"), map[string]string{
			"pids/user.slice/user-0.slice/pids.max": "9000", "pids/user.slice/user-0.slice/pids.current": "10", "pids/user.slice/user-0.slice/session-3.scope/pids.max": "max",
			"memory/user.slice/user-0.slice/session-3.scope/memory.limit_in_bytes": noLimit,
		}, "/", Limits{Processes: 9000, ProcessesLeft: 8990}},
		"v2: a plain host": {firstPIDs, v2Mounts, "0::/\n", map[string]string{"cgroup.subtree_control": ""}, "/", Limits{}},
		"v2: a container's own namespace": {inside, v2Mounts, "0::/\n", map[string]string{
			"cgroup.type": "domain", "cgroup.subtree_control": "", "memory.max": "1073741824", "pids.max": "200", "pids.current": "50", "cpu.max": "150000 100000",
		}, "/", limited},
		"v2: the host's hierarchy in a container": {inside, v2Mounts, "0::/docker/1\n", map[string]string{
			"docker/1/cgroup.type": "domain", "docker/1/cgroup.subtree_control": "memory pids cpu", "docker/1/memory.max": "max", "docker/1/pids.max": "200", "docker/1/pids.current": "50", "docker/1/cpu.max": "max 100000", "docker/memory.max": "4096",
		}, "/docker/1", Limits{Memory: 4096, Processes: 200, ProcessesLeft: 150}},
		"v2: a unit's subgroup": {firstPIDs, v2Mounts, "0::/" + unit + Leaf + "\n", map[string]string{
			unit + Leaf + "/cgroup.type": "domain", unit + "cgroup.type": "domain", unit + "cgroup.subtree_control": "", unit + "memory.max": "4096",
		}, "/" + filepath.Clean(unit), Limits{Memory: 4096}},
		"v2: a unit without a subgroup": {firstPIDs, v2Mounts, "0::/system.slice/cove.service\n", map[string]string{unit + "cgroup.type": "domain", unit + "cgroup.subtree_control": "", unit + "memory.max": "4096"}, "/", Limits{Memory: 4096}},
		"v1: a shim in its own group":   {inside, v1Mounts, "9:cpu,cpuacct:/uc/h1\n8:pids:/uc/h1\n4:memory:/uc/h1/cove-0123-45-shim\n", with(map[string]string{"memory/uc/h1/cove-0123-45-shim/memory.limit_in_bytes": "805306368\n"}), "/uc/h1", limited},
		"v2: a shim in its own group": {inside, v2Mounts, "0::/cove-0123-45-shim\n", map[string]string{
			"cgroup.type": "domain", "cgroup.subtree_control": "memory pids cpu", "memory.max": "1073741824", "pids.max": "200", "pids.current": "50", "cpu.max": "150000 100000", "cove-0123-45-shim/memory.max": "805306368",
		}, "/", limited},
		"v1: half a processor, counted over half a second": {inside, v1Mounts, of("/uc/h1"), map[string]string{
			"memory/uc/h1/x": "", "pids/uc/h1/x": "", "cpu,cpuacct/uc/h1/cpu.cfs_quota_us": "250000\n", "cpu,cpuacct/uc/h1/cpu.cfs_period_us": "500000\n",
		}, "/uc/h1", Limits{CPUs: 1, Quota: 50_000}},
		"no cgroups": {inside, "", "", nil, "/", Limits{}},
	} {
		t.Run(name, func(t *testing.T) {
			p := machine(t, tt.pids, tt.mounts, tt.cgroups, tt.files)
			if got := p.Limits(); got != tt.limits {
				t.Errorf("limits: got %+v, want %+v", got, tt.limits)
			}
			if got := p.Parent(); got != tt.parent {
				t.Errorf("parent: got %q, want %q", got, tt.parent)
			}
		})
	}
}

func TestMachine(t *testing.T) {
	machine := Machine{Memory: 8 << 30, CPUs: 8}
	if got := (Limits{Memory: 16 << 30, CPUs: 9}).of(machine); got != machine {
		t.Errorf("limits above the machine: got %+v", got)
	}
	if got, want := (Limits{CPUs: 8, Quota: 7.5 * Period}).of(machine), (Machine{8 << 30, 8, Limits{Quota: 7.5 * Period}}); got != want {
		t.Errorf("half a processor less than the machine: got %+v, want %+v", got, want)
	}
	limits := Limits{Memory: 1 << 30, CPUs: 2, Processes: 9, ProcessesLeft: 8}
	if got, want := limits.of(machine), (Machine{1 << 30, 2, limits}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

// TestDir: it is where the process is seen, which in a container is not its path.
func TestDir(t *testing.T) {
	p := machine(t, inside, "30 29 0:26 /uc /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n", "4:memory:/uc/h1\n", map[string]string{"memory/h1/x": "", "memory/uc/h1/x": ""})
	if got, want := p.Dir("memory"), filepath.Join(p.Root, Mount, "memory/h1"); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := p.Dir("pids"); got != "" {
		t.Errorf("got %q of a hierarchy that is not mounted", got)
	}
	p = machine(t, inside, v2Mounts, "0::/unit/"+Leaf+"\n", map[string]string{"unit/" + Leaf + "/x": ""})
	if got, want := p.Dir("memory"), filepath.Join(p.Root, Mount, "unit", Leaf); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestHandsDown: a v2 cgroup that gets sandboxes hands down the controllers that limit them.
func TestHandsDown(t *testing.T) {
	p := machine(t, inside, v2Mounts, "0::/docker/1\n", map[string]string{"docker/1/cgroup.type": "domain", "docker/1/cgroup.subtree_control": "io"})
	if got := p.Parent(); got != "/docker/1" {
		t.Errorf("got %q", got)
	}
	if got, _ := os.ReadFile(filepath.Join(p.Root, Mount, "docker/1/cgroup.subtree_control")); string(got) != "+memory +pids +cpu" {
		t.Errorf("got %q", got)
	}
}

func TestRefusals(t *testing.T) {
	p := machine(t, inside, v1Mounts, "8:pids:/a/b\n", map[string]string{"pids/a/b/pids.events": "max 3\n", "pids/a/pids.events": "max 4\nother 9\n"})
	if got := p.ProcessRefusals(); got != 7 {
		t.Errorf("got %d", got)
	}
}
