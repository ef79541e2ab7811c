package guest

import (
	"bufio"
	"os/exec"
	"slices"
	"syscall"
	"testing"
)

// TestWalkOrder: without a cgroup, a shell comes before the commands that it runs. If it were
// killed after one of these, it could begin the next.
func TestWalkOrder(t *testing.T) {
	cmd := exec.Command("sh", "-c", "sh -c 'sh -c \"echo up; sleep 100000; :\"; :'; :")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	g := &group{leader: cmd.Process.Pid}
	defer func() {
		if err := g.kill(); err != nil {
			t.Error(err)
		}
		_ = cmd.Wait()
	}()
	if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	for range 20 {
		pids, err := g.walk()
		if err != nil || len(pids) < 3 || pids[0] != g.leader {
			t.Fatalf("got %v of %d, %v", pids, g.leader, err)
		}
		for i, pid := range pids[1:] {
			if parent, _, _, alive := procStat(pid); alive && !slices.Contains(pids[:i+1], parent) {
				t.Fatalf("got %v, and %d is a child of %d", pids, pid, parent)
			}
		}
	}
}
