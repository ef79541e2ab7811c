package disk

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/cove-dev/cove/internal/test/e2e"
)

// taker writes to its output for ever, and tries again at once if there is no room.
const taker = `$block = "\0" x 4096; while (1) { defined syswrite(STDOUT, $block) or $! == 28 or die $! }`

// keepFull takes each byte of a data folder's disk as soon as it is free, until stop is
// called. A program in a sprite may do the same, and goes on after a kill of the server. Other
// tests that want the processors go first.
func keepFull(h *e2e.Host) (stop func()) {
	h.T.Helper()
	f, err := os.OpenFile(filepath.Join(h.Data, "fill"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		h.T.Fatal(err)
	}
	defer f.Close()
	var takers []*exec.Cmd
	stop = sync.OnceFunc(func() {
		for _, cmd := range takers {
			_ = cmd.Process.Kill() // it may have ended, which is wrong
			if err := cmd.Wait(); err == nil || err.Error() != "signal: killed" {
				h.T.Errorf("it did not keep the disk full: %v", err)
			}
		}
	})
	h.T.Cleanup(stop)
	for range 2 { // one may wait for something that the other does not
		cmd := exec.Command("nice", "-n", "10", "perl", "-e", taker)
		cmd.Stdout, cmd.Stderr = f, os.Stderr
		if err := cmd.Start(); err != nil {
			h.T.Fatal(err)
		}
		takers = append(takers, cmd)
	}
	return stop
}

// full checks that a command says that the disk is full, and what to do.
func full(h *e2e.Host, args ...string) {
	h.T.Helper()
	out, code := h.Try("", "cove", args...)
	if code != 6 || !strings.Contains(out, "the disk of the server is full") || !strings.Contains(out, "hint: ") || !strings.Contains(out, "free some space") || strings.Contains(out, h.Data) {
		h.T.Errorf("%v on a full disk: exit %d\n%s", args, code, out)
	}
}

// TestFullDiskStart: a server starts on a disk that something keeps full, however the last
// one ended. The commands that make room work there; otherwise nobody could make any.
func TestFullDiskStart(t *testing.T) {
	disks := map[string]func(testing.TB, string, string){"ext4": e2e.Ext4Disk}
	if e2e.Soak() {
		disks["tmpfs"] = e2e.SmallDisk // there, a file frees its room as soon as it is truncated
	}
	for name, mount := range disks {
		t.Run(name, func(t *testing.T) {
			h := e2e.NewHostOn(t, "160m", mount)
			h.Serve(nil, "--disk-reserve", "0")
			h.Run("", "cove", "create", "paint", "--idle", "0")
			h.Run("", "cove", "create", "cold")
			h.Run("", "cove", "create", "idle", "--idle", "1s")
			h.Run("", "cove", "exec", "-s", "idle", "--", "sh", "-c", "head -c 1M /dev/urandom >big")
			for range 4 {
				h.Run("", "cove", "exec", "-s", "paint", "--", "sh", "-c", "head -c 2M /dev/urandom >big")
				h.Run("", "cove", "checkpoint", "create", "-s", "paint")
			}
			h.Stage("idle", true)
			e2e.FillUp(h)
			stop := keepFull(h)
			for _, sig := range []syscall.Signal{syscall.SIGKILL, syscall.SIGTERM, syscall.SIGTERM, syscall.SIGKILL, syscall.SIGKILL} {
				h.EndServer(sig)
				h.Serve(nil, "--disk-reserve", "0")
				h.Run("", "cove", "list")
			}
			full(h, "checkpoint", "create", "-s", "paint")
			full(h, "fork", "paint", "copy")
			full(h, "exec", "-s", "cold", "--", "true")
			h.Run("", "cove", "exec", "-s", "idle", "--", "rm", "big") // it goes on for that
			h.Run("", "cove", "checkpoint", "rm", "v1", "-s", "paint")
			h.Run("", "cove", "checkpoint", "prune", "-s", "paint", "--all", "--keep-last", "1")
			h.Run("", "cove", "rm", "--yes", "paint")
			stop()
			e2e.MakeRoom(h)
			h.Run("", "cove", "exec", "-s", "cold", "--", "true")
		})
	}
}

// TestReadOnlyDisk: the file system of the data folder has found an error, and is
// read-only from then on.
func TestReadOnlyDisk(t *testing.T) {
	h := e2e.NewRootHost(t)
	e2e.Ext4Disk(t, h.Data, "96m")
	h.Serve(nil, "--disk-reserve", "0")
	pid := h.PID()
	t.Cleanup(func() { _ = e2e.Signal(pid, syscall.SIGKILL) }) // of a test that failed
	h.Run("", "cove", "create", "paint")
	e2e.FailDisk(t, h.Data)
	says := func(want int, args ...string) {
		t.Helper()
		out, code := h.Try("", "cove", args...)
		if code != want || !strings.Contains(out, "the disk of the server's data folder is read-only or faulty") || !strings.Contains(out, "hint: on the server's machine, see why (dmesg)") || strings.Contains(out, h.Data) {
			t.Errorf("%v: exit %d\n%s", args, code, out)
		}
	}
	says(1, "create", "two")
	says(1, "checkpoint", "create", "-s", "paint")
	says(1, "update", "paint", "--idle", "5m")
	says(1, "rm", "--yes", "paint")
	says(125, "exec", "-s", "paint", "--", "true")
	h.Run("", "cove", "list")
	h.EndServer(syscall.SIGKILL)
	if out, code := h.Try("", "cove", "server", "start"); code != 1 || !strings.Contains(out, "read-only file system") || !strings.Contains(out, "hint: that file system is read-only: see why (dmesg)") {
		t.Errorf("a start: exit %d\n%s", code, out)
	}
}
