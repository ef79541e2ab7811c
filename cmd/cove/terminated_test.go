package main

import (
	"slices"
	"syscall"
	"testing"
)

// A SIGTERM to all of cove's processes, as of pkill, ends the server alone: what runs in a
// sprite goes on, and the next server takes it up.
func TestTerminatedShim(t *testing.T) {
	h := newHost(t)
	h.run("", "cove", "create", "paint", "--idle", "0")
	h.run("", "cove", "exec", "-s", "paint", "--detach", "--", "sh", "-c", "echo $$ >~/pid; exec sleep 1000")
	h.run("", "cove", "exec", "-s", "paint", "--", "sh", "-c", "until test -s ~/pid; do sleep 0.1; done")
	shims, server := h.shims(), h.pid()
	if len(shims) != 1 {
		t.Fatalf("there are the shims %v", shims)
	}
	for _, pid := range append(shims, server) {
		if err := syscall.Kill(pid, syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
	}
	if err := awaitEnd(server); err != nil {
		t.Fatal(err)
	}
	h.run("", "cove", "server", "start")
	h.run("", "cove", "exec", "-s", "paint", "--", "sh", "-c", "kill -0 $(cat ~/pid)")
	if now := h.shims(); !slices.Equal(now, shims) {
		t.Errorf("there are the shims %v, not %v", now, shims)
	}
}
