package shim

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestProcessIdentity(t *testing.T) {
	cmd := exec.Command("sleep", "60")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	pid := cmd.Process.Pid
	start, err := processStart(pid)
	if err != nil {
		t.Fatal(err)
	}
	if !alive(pid, start) || alive(pid, start+1) || alive(0, start) {
		t.Errorf("alive: got %v, %v, %v for the process, a later one of its number, and none; want true, false, false",
			alive(pid, start), alive(pid, start+1), alive(0, start))
	}
	killProcess(pid, start+1)
	if !alive(pid, start) {
		t.Fatal("killProcess ended a process that is not the one meant")
	}
	killProcess(pid, start)
	if alive(pid, start) {
		t.Error("the process lives on after killProcess")
	}
	if err := cmd.Wait(); err == nil {
		t.Error("the process was not killed")
	}
	if alive(pid, start) {
		t.Error("alive after its parent collected it")
	}
}

func TestWaitProcessEndsWithContext(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	waitProcess(ctx, os.Getpid())
	if ctx.Err() == nil {
		t.Error("waitProcess returned before the process or the context ended")
	}
}

func TestGuestAddr(t *testing.T) {
	seen := map[netip.Addr]int64{}
	for n := range int64(2000) {
		a := guestAddr(n)
		if !subnet.Contains(a) || a == subnet.Addr() {
			t.Fatalf("incarnation %d: %v is outside of %v, or the gateway's", n, a, subnet)
		}
		if prev, ok := seen[a]; ok && n-prev < 60000 {
			t.Errorf("incarnations %d and %d share %v", prev, n, a)
		}
		seen[a] = n
	}
}

// TestDeleteOfOthers: runsc's state may be of before a restart of the machine, or of another
// container. Its numbers are those of other processes then, which live on. A process of the
// container is killed. Nothing of the state is left.
func TestDeleteOfOthers(t *testing.T) {
	const container = "5dd87726aa97e625-ed5a670b-000000"
	process := func(args ...string) *exec.Cmd {
		cmd := exec.Command("sleep", append([]string{"600"}, args...)...)
		if len(args) > 0 { // sleep takes no such argument
			cmd = exec.Command("sh", append([]string{"-c", "sleep 600 & wait", "runsc-gofer"}, args...)...)
			cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		ended := make(chan struct{})
		go func() { defer close(ended); _ = cmd.Wait() }() // it is killed
		t.Cleanup(func() {
			if cmd.SysProcAttr != nil {
				_ = unix.Kill(-cmd.Process.Pid, unix.SIGKILL) // its child may have ended
			}
			_ = cmd.Process.Kill() // it may have ended
			<-ended
		})
		return cmd
	}
	gone := exec.Command("true")
	if err := gone.Run(); err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		sandbox, gofer *exec.Cmd
	}{
		"both others'":        {process(), process()},
		"the sandbox is gone": {gone, process()},
		"the gofer is gone":   {process(), gone},
		"both gone":           {gone, gone},
		"ours, and another's": {process("boot", container), process()},
		"another's, and ours": {process(), process("gofer", container)},
		"both ours":           {process("boot", container), process("gofer", container)},
		"another container's": {process("boot", "5dd87726aa97e625-ed5a670b-000001"), process(container + "0")},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if err := os.Mkdir(filepath.Join(dir, "runsc"), 0o700); err != nil {
				t.Fatal(err)
			}
			state := fmt.Sprintf(`{"goferPid":%d,"sandbox":{"pid":%d}}`, test.gofer.Process.Pid, test.sandbox.Process.Pid)
			for file, text := range map[string]string{container + "_sandbox:" + container + ".state": state, container + "_sandbox:" + container + ".lock": "", "runsc-" + container + ".sock": ""} {
				if err := os.WriteFile(filepath.Join(dir, "runsc", file), []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if err := (runsc{path: "/nonexistent", dir: dir, container: container}).delete(); err != nil {
				t.Error(err)
			}
			if left, err := os.ReadDir(filepath.Join(dir, "runsc")); err != nil || len(left) > 0 {
				t.Errorf("%v is left: %v", left, err)
			}
			for _, cmd := range []*exec.Cmd{test.sandbox, test.gofer} {
				_, err := processStart(cmd.Process.Pid)
				if ours := slices.Contains(cmd.Args, container); cmd != gone && (err == nil) == ours {
					t.Errorf("%q: ours: %v, and it is there: %v", cmd.Args, ours, err == nil)
				}
			}
		})
	}
}
