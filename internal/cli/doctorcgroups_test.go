package cli

import (
	"strings"
	"testing"

	"github.com/cove-dev/cove/internal/shim/cgroup"
)

// TestCgroupsCheck: each cause has its own fix. Nothing is mounted, or a controller is bound
// to v1, disabled, not in the kernel, or not handed down.
func TestCgroupsCheck(t *testing.T) {
	const (
		head  = "#subsys_name\thierarchy\tnum_cgroups\tenabled\n"
		bound = head + "cpu\t1\t2\t1\nmemory\t4\t9\t1\npids\t8\t2\t1\n"
		free  = head + "cpu\t0\t2\t1\nmemory\t0\t9\t1\npids\t0\t2\t1\n"
		off   = head + "cpu\t0\t2\t1\nmemory\t0\t9\t0\npids\t0\t2\t1\n"
	)
	v2 := func(have ...string) cgroup.Mounted {
		return cgroup.Mounted{V2: true, Dirs: []string{cgroup.Mount}, Have: have}
	}
	for name, tt := range map[string]struct {
		mounted     cgroup.Mounted
		list        string
		detail, fix string
		not         string // in neither
	}{
		"none mounted":             {cgroup.Mounted{}, free, "no cgroup file system is mounted at /sys/fs/cgroup", "mount -t cgroup2 none /sys/fs/cgroup", "boot"},
		"none mounted, v1's":       {cgroup.Mounted{}, bound, "no cgroup file system is mounted at /sys/fs/cgroup", "mount those of v1", "cgroup2"},
		"v2, bound to v1":          {v2(), bound, "v2, controllers: none; without memory cpu pids, whose limits are not enforced (memory cpu pids: bound to cgroup v1 on this host)", "systemd.unified_cgroup_hierarchy=1", "cgroup_enable"},
		"v2, disabled":             {v2("cpu", "pids"), off, "without memory, whose limits are not enforced (memory: disabled at boot)", "cgroup_enable=memory", "unified"},
		"v2, not in the kernel":    {v2(), head, "not listed by the kernel", "CONFIG_MEMCG", "cgroup_enable"},
		"v2, not handed down":      {v2("pids"), free, "memory cpu: not handed down by the cgroup above", "echo +memory +cpu", "boot"},
		"v1, a hierarchy less":     {cgroup.Mounted{Dirs: []string{cgroup.Mount + "/cpu"}, Have: []string{"cpu", "pids"}}, bound, "memory: not mounted here", "mount -t cgroup -o memory none /sys/fs/cgroup/memory", "unified"},
		"all there, nothing to do": {v2("memory", "cpu", "pids"), free, "v2, controllers: memory cpu pids", "", "without"},
	} {
		c := cgroupsCheck(tt.mounted, tt.list)
		if !strings.Contains(c.Detail, tt.detail) || !strings.Contains(c.Fix, tt.fix) || (c.Fix == "") != (tt.fix == "") || (c.Level == levelOK) != (tt.fix == "") || strings.Contains(c.Detail+c.Fix, tt.not) {
			t.Errorf("%s: got %+v", name, c)
		}
	}
}
