package server

import (
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/cove-dev/cove/internal/test/e2e"
)

// TestDataFolderCopiedLive copies a data folder whose sprites run, and serves the copy beside
// the original. Changes in one do not touch the other's sandboxes.
func TestDataFolderCopiedLive(t *testing.T) {
	h := e2e.NewHost(t)
	h.Serve(nil)
	original, copied := h.Data, filepath.Join(filepath.Dir(h.Home), "copied")
	at := func(data string) *e2e.Host { h.Data = data; return h }
	boot := func(sprite string) string { t.Helper(); return h.Sh(sprite, "cat /proc/sys/kernel/random/boot_id") }
	booted := map[string]string{}
	begin := func(data string, names ...string) {
		t.Helper()
		for _, name := range names {
			at(data).Run("", "cove", "exec", "-s", name, "--detach", "sleep", "100000")
			booted[data+name] = boot(name)
		}
	}
	goesOn := func(data string, names ...string) {
		t.Helper()
		for _, name := range names {
			if id := at(data).Sh(name, "pgrep -xc sleep; cat /proc/sys/kernel/random/boot_id"); id != "1\n"+booted[data+name] {
				t.Fatalf("%s in %s has %q, want its program, and the boot id %s", name, data, id, booted[data+name])
			}
		}
	}
	for _, name := range []string{"paint", "draw", "sleepy"} {
		h.Run("", "cove", "create", name, "--idle", "0")
		h.Sh(name, "echo "+name+" > data; sync")
	}
	begin(original, "paint", "draw")
	h.Run("", "cove", "suspend", "sleepy")
	t.Cleanup(func() { // of a test that failed, both may have a server
		for _, data := range []string{original, copied} {
			if err := e2e.EndServer(h.Bin, data, h.Home); err != nil {
				t.Errorf("end the server of %s: %v", data, err)
			}
		}
	})
	if out, code := h.Try("", "cp", "-a", original, copied); code != 0 {
		t.Logf("what changed while it was copied: %s", out)
	}

	at(copied).Serve(nil)
	for name, want := range map[string]string{"paint": "cold", "draw": "cold", "sleepy": "warm"} {
		info := h.Run("", "cove", "info", name)
		if says := strings.Contains(info, "this data folder is a copy"); string(h.Info(name).Status) != want || says != (want == "cold") {
			t.Errorf("the copy's %s should be %s, and say why if it is cold:\n%s", name, want, info)
		}
		if got := h.Sh(name, "cat data"); got != name+"\n" {
			t.Errorf("the copy's %s has %q", name, got)
		}
	}
	begin(copied, "paint", "draw")
	goesOn(original, "paint", "draw")
	for _, data := range []string{original, copied} {
		at(data).Run("", "cove", "checkpoint", "create", "-s", "paint")
	}
	e2e.SignalAll(t, syscall.SIGKILL, at(copied).Shims()...) // the next ones adopt
	e2e.Await(t, "the copy's next shims", func() bool { _, code := h.Try("", "cove", "exec", "-s", "paint", "true"); return code == 0 })
	goesOn(copied, "paint", "draw")
	goesOn(original, "paint", "draw")

	at(copied).Run("", "cove", "rm", "draw")
	at(original).Run("", "cove", "rm", "paint")
	for _, data := range []string{original, copied} { // each takes up its own sandboxes
		at(data).EndServer(syscall.SIGTERM)
		h.Serve(nil)
	}
	goesOn(original, "draw")
	goesOn(copied, "paint")
	at(original).Run("", "cove", "rm", "draw", "sleepy")
	h.EndServer(syscall.SIGTERM)
	goesOn(copied, "paint")
}
