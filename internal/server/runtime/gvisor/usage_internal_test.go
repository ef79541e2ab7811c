package gvisor

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

// TestUsage: what cgroups of both versions and the kernel's list of interfaces say is read, and
// nothing of a cgroup that is shared with others.
func TestUsage(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if got := usedMemory(dir); got != 0 {
		t.Errorf("nothing there: %d bytes", got)
	}
	write("memory.usage_in_bytes", "500\n")
	write("memory.stat", "inactive_file 1\ntotal_inactive_file 100\n")
	write("cpuacct.usage", "7000000\n")
	if m, c := usedMemory(dir), usedCPU(dir); m != 400 || c != 7*time.Millisecond {
		t.Errorf("v1: %d bytes, %v", m, c)
	}
	write("memory.current", "1000\n")
	write("cpu.stat", "usage_usec 5000\nuser_usec 1\n")
	if m, c := usedMemory(dir), usedCPU(dir); m != 999 || c != 5*time.Millisecond {
		t.Errorf("v2: %d bytes, %v", m, c)
	}
	in, out := carried("Inter-| Receive\n face |bytes\n    lo: 9 0 0 0 0 0 0 0 9 0\n  eth0: 12 1 0 0 0 0 0 0 34 1 0\n")
	if in != 12 || out != 34 {
		t.Errorf("carried: %d, %d", in, out)
	}
	for at, want := range map[string]string{
		"/sys/fs/cgroup/x/cove-a": "/sys/fs/cgroup/x/cove-a", "/sys/fs/cgroup/cove-a/leaf": "/sys/fs/cgroup/cove-a/leaf",
		"/sys/fs/cgroup/cove-b": "", "/sys/fs/cgroup": "", "": "",
	} {
		if got := ownCgroup(at, "a"); got != want {
			t.Errorf("%s: got %q, want %q", at, got, want)
		}
	}
}
