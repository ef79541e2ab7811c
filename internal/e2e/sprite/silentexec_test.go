package sprite

import (
	"bufio"
	"bytes"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"

	"github.com/cove-dev/cove/internal/test/e2e"
)

// ends waits for a program's end, and returns its code.
func ends(t *testing.T, what string, ended <-chan int) int {
	t.Helper()
	select {
	case code := <-ended:
		return code
	case <-time.After(e2e.LastResort):
		t.Fatalf("%s does not end", what)
		return 0
	}
}

// TestSilentExec: if PID 1 of a sprite is stopped, the first signal ends the client of a
// command there.
func TestSilentExec(t *testing.T) {
	h := e2e.NewHost(t)
	h.Serve(nil)
	h.Run("", "cove", "create", "paint")
	begin := func(cmd *exec.Cmd) <-chan int {
		ended := make(chan int, 1)
		go func() { _ = cmd.Wait(); ended <- cmd.ProcessState.ExitCode() }()
		t.Cleanup(func() { _ = cmd.Process.Kill() })
		return ended
	}
	running := h.Command("", "cove", "exec", "-s", "paint", "sh", "-c", "echo on; exec sleep 100000")
	var said bytes.Buffer
	running.Stderr = &said
	out, err := running.StdoutPipe()
	if err == nil {
		err = running.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "on\n" {
		t.Fatalf("the command says %q, %v", line, err)
	}
	runs := begin(running)

	stopper := h.Command("", "cove", "exec", "-s", "paint", "--user", "root", "--", "sh", "-c", "kill -STOP 1; touch /home/sprite/stopped")
	if err := stopper.Start(); err != nil {
		t.Fatal(err)
	}
	stops := begin(stopper)
	e2e.Await(t, "the guest is silent", func() bool {
		stopped, _ := filepath.Glob(filepath.Join(h.Data, "layers", "*", "root", "upper", "home", "sprite", "stopped")) // the pattern is right
		check, err := h.Client().Check(t.Context(), "paint")
		return err == nil && check.Status == "unhealthy" && len(stopped) == 1
	})
	_ = stopper.Process.Kill() // its command goes on
	ends(t, "the client of what stops the guest", stops)
	if err := running.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if code := ends(t, "the command", runs); code != 130 || !strings.Contains(said.String(), "sprite paint does not answer") {
		t.Errorf("the command: %d, %s", code, said.String())
	}

	// A console whose terminal has not begun ends too. It also ends if the signal arrives
	// before the console handles signals.
	console := h.Command("", "cove", "console", "-s", "paint")
	screen, err := pty.Start(console)
	if err != nil {
		t.Fatal(err)
	}
	defer screen.Close()
	leaves := begin(console)
	e2e.Await(t, "the console's connection", func() bool { return e2e.Connected(console.Process.Pid) })
	if err := console.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if code := ends(t, "the console", leaves); code != 130 && code != -1 {
		t.Errorf("the console: %d", code)
	}
}
