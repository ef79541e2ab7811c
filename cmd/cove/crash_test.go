package main

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestKernelCrash: gVisor's kernel crashes under a command, by the signal for one that hangs. The
// command, the next one, the sprite's status and the bundle's logs say so, with the head of the
// report, of which the rest is kept. So it is if the kernel crashes while nothing uses it.
func TestKernelCrash(t *testing.T) {
	h := newHost(t)
	h.run("", "cove", "create", "paint")
	const says = "the sandbox's kernel (gVisor) crashed: panic: Signal-induced panic (in boot."
	crashed := func() bool { return strings.Contains(h.run("", "cove", "info", "paint"), says) }
	again := func() {
		t.Helper()
		out, code := h.try("", "cove", "exec", "-s", "paint", "true")
		if code != 0 || !strings.Contains(out, "the sprite began anew: its sandbox ended: "+says) {
			t.Errorf("the next command: %d, %s", code, out)
		}
	}
	h.sh("paint", "true")
	_, ended := h.background("", "cove", "exec", "-s", "paint", "sh", "-c", "touch /tmp/begun; sleep 1000")
	h.sh("paint", "until test -e /tmp/begun; do sleep 0.1; done")
	signalAll(t, syscall.SIGUSR2, h.sandboxState().PID)
	if out, err := ended(); err == nil || !strings.Contains(out, says) {
		t.Errorf("the command under which it crashed: %v, %s", err, out)
	}
	await(t, "the crash in cove info", crashed)
	again()

	signalAll(t, syscall.SIGUSR2, h.sandboxState().PID)
	await(t, "the crash in cove info", func() bool { return crashed() && !strings.Contains(h.run("", "cove", "info", "paint"), "began anew") })
	again()
	kept, err := filepath.Glob(filepath.Join(h.data, "run", "*", "kernel.log.1"))
	if err != nil || len(kept) != 1 {
		t.Fatalf("the report: %q, %v", kept, err)
	}
	report, err := os.ReadFile(kept[0])
	if err != nil || !strings.HasPrefix(string(report), "panic: Signal-induced panic\n") || !strings.Contains(string(report), "\ngoroutine ") || len(report) > 256<<10 {
		t.Errorf("the report has %d bytes: %v\n%.1000s", len(report), err, report)
	}

	// The report outlives its sprite.
	h.run("", "cove", "rm", "--force", "paint")
	if kept, err := filepath.Glob(filepath.Join(h.data, "crashed", "*", "kernel.log.1")); err != nil || len(kept) != 1 {
		t.Errorf("after the sprite was removed: %q, %v", kept, err)
	}
}
