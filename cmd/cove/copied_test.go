package main

import (
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestDataFolderCopiedLive copies a data folder whose sprites run, and serves the copy beside
// the original: what is done to one leaves the other's sandboxes alone.
func TestDataFolderCopiedLive(t *testing.T) {
	h := newHost(t)
	h.serve(nil)
	original, copied := h.data, filepath.Join(filepath.Dir(h.home), "copied")
	at := func(data string) *host { h.data = data; return h }
	boot := func(sprite string) string { t.Helper(); return h.sh(sprite, "cat /proc/sys/kernel/random/boot_id") }
	booted := map[string]string{}
	begin := func(data string, names ...string) {
		t.Helper()
		for _, name := range names {
			at(data).run("", "cove", "exec", "-s", name, "--detach", "sleep", "1000")
			booted[data+name] = boot(name)
		}
	}
	goesOn := func(data string, names ...string) {
		t.Helper()
		for _, name := range names {
			if id := at(data).sh(name, "pgrep -xc sleep; cat /proc/sys/kernel/random/boot_id"); id != "1\n"+booted[data+name] {
				t.Fatalf("%s in %s has %q, want its program, and the boot id %s", name, data, id, booted[data+name])
			}
		}
	}
	for _, name := range []string{"paint", "draw", "sleepy"} {
		h.run("", "cove", "create", name, "--idle", "0")
		h.sh(name, "echo "+name+" > data; sync")
	}
	begin(original, "paint", "draw")
	h.run("", "cove", "suspend", "sleepy")
	t.Cleanup(func() { // of a test that failed, both may have a server
		for _, data := range []string{original, copied} {
			if err := endServer(h.bin, data, h.home); err != nil {
				t.Errorf("end the server of %s: %v", data, err)
			}
		}
	})
	if out, code := h.try("", "cp", "-a", original, copied); code != 0 {
		t.Logf("what changed while it was copied: %s", out)
	}

	at(copied).serve(nil)
	for name, want := range map[string]string{"paint": "cold", "draw": "cold", "sleepy": "warm"} {
		info := h.run("", "cove", "info", name)
		if says := strings.Contains(info, "this data folder is a copy"); string(h.info(name).Status) != want || says != (want == "cold") {
			t.Errorf("the copy's %s should be %s, and say why if it is cold:\n%s", name, want, info)
		}
		if got := h.sh(name, "cat data"); got != name+"\n" {
			t.Errorf("the copy's %s has %q", name, got)
		}
	}
	begin(copied, "paint", "draw")
	goesOn(original, "paint", "draw")
	for _, data := range []string{original, copied} {
		at(data).run("", "cove", "checkpoint", "create", "-s", "paint")
	}
	signalAll(t, syscall.SIGKILL, at(copied).shims()...) // the next ones adopt
	await(t, "the copy's next shims", func() bool { _, code := h.try("", "cove", "exec", "-s", "paint", "true"); return code == 0 })
	goesOn(copied, "paint", "draw")
	goesOn(original, "paint", "draw")

	at(copied).run("", "cove", "rm", "draw")
	at(original).run("", "cove", "rm", "paint")
	for _, data := range []string{original, copied} { // each takes up what is its own
		at(data).endServer(syscall.SIGTERM)
		h.serve(nil)
	}
	goesOn(original, "draw")
	goesOn(copied, "paint")
	at(original).run("", "cove", "rm", "draw", "sleepy")
	h.endServer(syscall.SIGTERM)
	goesOn(copied, "paint")
}
