package shim

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cove-dev/cove/internal/shim/layers"
)

// TestSurplusMounts has a machine's mounts, with a foreign disk and, as in a container, a
// cgroup hierarchy that is mounted twice. Only those are detached, the last one first.
func TestSurplusMounts(t *testing.T) {
	const text = `1 0 8:1 / / rw,relatime - ext4 /dev/sda1 rw
2 1 0:5 / /proc rw - proc proc rw
3 1 0:6 / /sys rw - sysfs sysfs rw
4 3 0:31 / /sys/fs/cgroup rw - tmpfs tmpfs rw
5 4 0:32 /kubepods/pod1/c1 /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory
6 4 0:33 /kubepods/pod1/c1 /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct
7 4 0:32 /kubepods/pod1/c1 /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory
8 4 0:34 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids
9 4 0:34 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids
10 1 8:2 / /srv rw - ext4 /dev/sdb1 rw
11 10 8:3 / /srv/cove rw - ext4 /dev/sdc1 rw
12 1 8:4 / /mnt/usb\040disk rw shared:3 - vfat /dev/sdd1 rw
13 12 8:5 / /mnt/usb\040disk/more rw - ext4 /dev/sde1 rw
14 1 0:50 / /srv2 rw - tmpfs tmpfs rw
15 1 0:51 / /projects/lib rw - tmpfs tmpfs rw
16 1 0:52 / /home rw - tmpfs tmpfs rw
17 1 0:53 / /usr/share/extra rw - tmpfs tmpfs rw
`
	all, err := readMounts(text)
	if err != nil {
		t.Fatal(err)
	}
	cfg := Config{Dir: "/srv/cove/run/x", Shown: Shown{Include: []string{"/projects"}}, Runsc: "/home/ada/bin/cove-runsc"}
	cfg.Disk = []Mount{{Overlay: layers.Overlay{Lowers: []string{"/usr"}, Upper: "/srv/cove/layers/1/root/upper", Work: "/srv/cove/layers/1/root/work"}}}
	var got []string
	for _, m := range surplus(all, cfg.wants()) {
		got = append(got, m.at)
	}
	want := []string{"/srv2", "/mnt/usb disk/more", "/mnt/usb disk", "/sys/fs/cgroup/memory"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("detached (-want +got):\n%s", diff)
	}
	if _, err := readMounts("not a mount\n"); err == nil {
		t.Error("an unknown line is taken for a mount")
	}
}
