package main

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/cove-dev/cove/internal/lib/fault"
)

// saveStore copies the store of a server that has ended, or was killed, to a folder.
func (h *host) saveStore(to string) {
	h.t.Helper()
	for _, name := range []string{"cove.db", "cove.db-wal"} {
		data, err := os.ReadFile(filepath.Join(h.data, name))
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err := errors.Join(err, os.MkdirAll(to, 0o700), os.WriteFile(filepath.Join(to, name), data, 0o600)); err != nil {
			h.t.Fatal(err)
		}
	}
}

// putStoreBack puts a copy in the place of the store.
func (h *host) putStoreBack(from string) {
	h.t.Helper()
	for _, name := range []string{"cove.db", "cove.db-wal", "cove.db-shm"} {
		if err := os.Remove(filepath.Join(h.data, name)); err != nil && !errors.Is(err, os.ErrNotExist) {
			h.t.Fatal(err)
		}
		data, err := os.ReadFile(filepath.Join(from, name))
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err := errors.Join(err, os.WriteFile(filepath.Join(h.data, name), data, 0o600)); err != nil {
			h.t.Fatal(err)
		}
	}
}

// have are the folders of one kind that the data folder, or another one, has.
func have(dir, kind string) (names []string) {
	found, _ := filepath.Glob(filepath.Join(dir, kind, "*")) // the pattern is right
	for _, path := range found {
		names = append(names, filepath.Base(path))
	}
	return names
}

// allAside are the folders of one kind that were moved aside.
func (h *host) allAside(kind string) (names []string) {
	h.t.Helper()
	found, _ := filepath.Glob(filepath.Join(h.data, "aside", "*")) // the pattern is right
	for _, dir := range found {
		names = append(names, have(dir, kind)...)
	}
	return names
}

// TestOlderStorePutBack puts an older cove.db back after checkpoints, a sleep, and new sprites.
// It is refused; once accepted, all that it does not know is aside, with the memory of what
// ran; and all of it can be put back with the newer cove.db.
func TestOlderStorePutBack(t *testing.T) {
	h := newHost(t)
	h.serve(nil)
	older, newer := filepath.Join(filepath.Dir(h.home), "older"), filepath.Join(filepath.Dir(h.home), "newer")
	for _, name := range []string{"keep", "asleep", "idle", "same"} {
		h.run("", "cove", "create", name, "--idle", "0")
		h.sh(name, "echo "+name+"-one > data; echo "+name+" > /dev/shm/memory; sync")
	}
	h.run("", "cove", "suspend", "idle")
	h.endServer(syscall.SIGTERM)
	h.saveStore(older)

	h.serve(nil)
	h.sh("keep", "echo two > data; sync")
	h.run("", "cove", "checkpoint", "create", "-s", "keep", "--memory")
	h.sh("keep", "echo three > data; (echo 0 > count; while sleep 0.1; do n=$(cat count); echo $((n + 1)) > next; mv next count; done) >/dev/null 2>&1 & sync")
	h.sh("asleep", "echo two > data; sync")
	h.run("", "cove", "checkpoint", "create", "-s", "asleep")
	h.sh("asleep", "echo three > /dev/shm/memory; echo three > data")
	h.run("", "cove", "suspend", "asleep")
	h.run("", "cove", "create", "fresh", "--idle", "0")
	h.sh("fresh", "echo fresh > /dev/shm/memory; echo fresh > data")
	h.run("", "cove", "create", "dream", "--idle", "0")
	h.sh("dream", "echo dream > /dev/shm/memory; echo dream > data")
	h.run("", "cove", "suspend", "dream")
	same := h.stateOf("same")
	fresh := h.info("fresh").ID
	h.endServer(syscall.SIGKILL)
	h.saveStore(newer)

	h.putStoreBack(older)
	h.refused()
	if got := len(h.shims()); got != 3 {
		t.Errorf("%d sandboxes run after the refusal, want those of keep, same and fresh", got)
	}
	layers, memories, images := have(h.data, "layers"), have(h.data, "memories"), have(h.data, "images")

	h.serve(nil, "--accept-older-store")
	if got := h.stateOf("same"); got.PID != same.PID {
		t.Errorf("the sandbox of same, which the older store knows as it is, was not taken up")
	}
	if got := len(h.shims()); got != 1 {
		t.Errorf("%d sandboxes run, want that of same", got)
	}
	for kind, before := range map[string][]string{"layers": layers, "memories": memories, "images": images} {
		now := slices.Concat(have(h.data, kind), h.allAside(kind))
		for _, name := range before {
			if !slices.Contains(now, name) {
				t.Errorf("%s/%s is lost", kind, name)
			}
		}
	}
	if got := h.allAside("memories"); len(got) != 1 {
		t.Errorf("memories of checkpoints aside: %q, want that of keep", got)
	}
	if got := h.allAside("images"); len(got) != 4 || !slices.Contains(got, fresh) {
		t.Errorf("memories of sprites aside: %q, want those of keep, asleep, fresh (%s) and dream", got, fresh)
	}
	if got := h.allAside("layers"); len(got) != 4 {
		t.Errorf("layers aside: %q, want those of keep, asleep, fresh and dream", got)
	}
	if out := h.run("", "cove", "list"); strings.Contains(out, "fresh") || strings.Contains(out, "dream") {
		t.Errorf("the older store knows sprites that are newer:\n%s", out)
	}
	if got := strings.TrimSpace(h.sh("idle", "cat /dev/shm/memory")); got != "idle" {
		t.Errorf("idle, which the older store knows as it sleeps, has %q in its memory", got)
	}
	for name, want := range map[string]string{"keep": "two", "asleep": "two", "idle": "idle-one", "same": "same-one"} {
		if got := strings.TrimSpace(h.sh(name, "cat data; echo between > data")); got != want {
			t.Errorf("%s has %q, want %q", name, got, want)
		}
	}
	if out, _ := h.try("", "cove", "doctor"); !strings.Contains(out, "9 layers and memories (") || !strings.Contains(out, filepath.Join(h.data, "aside")) {
		t.Errorf("doctor does not say what is aside:\n%s", out)
	}
	if log, err := os.ReadFile(filepath.Join(h.data, "serve.log")); err != nil || strings.Count(string(log), `msg="moved aside"`) != 9 {
		t.Errorf("the log does not say what was moved aside, once for each (%v):\n%s", err, log)
	}
	h.endServer(syscall.SIGTERM)
	h.serve(nil) // it is the newest now
	h.run("", "cove", "suspend", "keep")
	h.run("", "cove", "suspend", "asleep")
	h.endServer(syscall.SIGTERM)
	h.backToNewer(newer)
}

// refused looks that no server starts on an older store, and that what to do is said.
func (h *host) refused() {
	h.t.Helper()
	out, code := h.try("", "cove", "serve", "--addr", "127.0.0.1:0")
	if code != 1 || !strings.Contains(out, "is older than the rest of the data folder") || !strings.Contains(out, "cove serve --data "+h.data+" --accept-older-store") {
		h.t.Fatalf("serve on an older store: %d, %s", code, out)
	}
	out, code = h.try("", "cove", "doctor")
	if code == 0 || !strings.Contains(out, "none would start: ") || !strings.Contains(out, "fix: put the newest cove.db back") {
		h.t.Errorf("doctor on an older store: %d, %s", code, out)
	}
	out, code = h.try("", "cove", "server", "start")
	if code != 1 || !strings.Contains(out, "--accept-older-store") {
		h.t.Errorf("start on an older store: %d, %s", code, out)
	}
}

// backToNewer moves all that is aside to where it was, with the store that knew it.
func (h *host) backToNewer(newer string) {
	h.t.Helper()
	h.putStoreBack(newer)
	h.refused()                                                              // another one was accepted meanwhile
	moved, _ := filepath.Glob(filepath.Join(h.data, "aside", "*", "*", "*")) // the pattern is right
	for _, path := range moved {
		to := filepath.Join(h.data, filepath.Base(filepath.Dir(path)), filepath.Base(path))
		if err := os.RemoveAll(to); err != nil { // the memory that a sprite sleeps with since then
			h.t.Fatal(err)
		}
		if err := os.Rename(path, to); err != nil {
			h.t.Fatal(err)
		}
	}
	h.serve(nil, "--accept-older-store")
	for _, name := range []string{"fresh", "dream", "asleep"} {
		want := name
		if name == "asleep" {
			want = "three"
		}
		if got := strings.Fields(h.sh(name, "cat data /dev/shm/memory")); !slices.Equal(got, []string{want, want}) {
			h.t.Errorf("%s has %q in its file and in its memory, want %q", name, got, want)
		}
	}
	if got := strings.TrimSpace(h.sh("keep", "cat data")); got != "three" {
		h.t.Errorf("keep has %q, want three", got)
	}
	count := h.sh("keep", "cat count")
	await(h.t, "what ran in keep", func() bool { return h.sh("keep", "cat count") != count })
}

// TestOlderStoreKilled kills a server with -9 after the first thing that it has moved aside.
// The next one, which nobody tells that the store is older, does the rest.
func TestOlderStoreKilled(t *testing.T) {
	h := newHost(t)
	h.serve(nil)
	older := filepath.Join(filepath.Dir(h.home), "older")
	h.run("", "cove", "create", "first", "--idle", "0")
	h.endServer(syscall.SIGTERM)
	h.saveStore(older)
	h.serve(nil)
	for _, name := range []string{"one", "two", "three"} {
		h.run("", "cove", "create", name, "--idle", "0")
		h.sh(name, "echo "+name+" > data")
		h.run("", "cove", "checkpoint", "create", "-s", name, "--memory")
		h.run("", "cove", "suspend", name)
	}
	h.endServer(syscall.SIGTERM)
	layers, memories, images := have(h.data, "layers"), have(h.data, "memories"), have(h.data, "images")
	h.putStoreBack(older)

	reached := filepath.Join(filepath.Dir(h.home), "reached")
	cmd := h.command("", "cove", "serve", "--addr", "127.0.0.1:0", "--accept-older-store")
	cmd.Env = append(cmd.Env, fault.Variable+"="+string(fault.AsideMoved)+"="+reached)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	await(t, "the first move", func() bool { _, err := os.Stat(reached); return err == nil })
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // it was killed
	if got := len(h.allAside("layers")) + len(h.allAside("memories")) + len(h.allAside("images")); got != 1 {
		t.Fatalf("%d items were aside when the server was killed, want 1", got)
	}

	h.serve(nil)
	for kind, want := range map[string][]string{"layers": layers, "memories": memories, "images": images} {
		got := h.allAside(kind)
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Errorf("%s aside: %q, want %q", kind, got, want)
		}
	}
	h.endServer(syscall.SIGTERM)
	h.serve(nil) // it is done: what is to be removed now, is
	h.run("", "cove", "rm", "first")
}

// TestDataFolderMoved: a data folder that was moved, or copied as a whole, is not older.
func TestDataFolderMoved(t *testing.T) {
	h := newHost(t)
	h.serve(nil)
	h.run("", "cove", "create", "paint", "--idle", "0")
	h.sh("paint", "echo one > data; echo one > /dev/shm/memory; mkfifo fifo")
	h.run("", "cove", "exec", "-s", "paint", "--detach", "sh", "-c", "exec sleep 1000 <>fifo")
	h.run("", "cove", "checkpoint", "create", "-s", "paint", "--memory")
	h.run("", "cove", "suspend", "paint")
	h.endServer(syscall.SIGTERM)
	from := h.data
	ways := [][]string{{"cp", "-a"}, {"mv"}}
	if !soak() {
		ways = ways[:1]
	}
	for _, how := range ways {
		h.data = filepath.Join(filepath.Dir(h.home), how[0])
		h.run("", how[0], append(how[1:], from, h.data)...)
		h.serve(nil)
		if got := h.sh("paint", "cat data /dev/shm/memory; pgrep -c sleep"); got != "one\none\n1\n" {
			t.Errorf("after %s it has %q", how[0], got)
		}
		h.run("", "cove", "suspend", "paint")
		h.endServer(syscall.SIGTERM)
		if log, err := os.ReadFile(filepath.Join(h.data, "serve.log")); err != nil || strings.Contains(string(log), "older") || len(have(h.data, "aside")) > 0 {
			t.Errorf("after %s the store was taken for an older one (%v):\n%s", how[0], err, log)
		}
	}
	h.serve(nil) // which the end of the test ends
}

// TestLayerGone takes a sealed layer away. The sprite does not boot as if its files had been
// deleted; once the layer is back, it does, with them.
func TestLayerGone(t *testing.T) {
	h := newHost(t)
	h.serve(nil)
	h.run("", "cove", "create", "paint", "--idle", "0")
	h.sh("paint", "echo one > data; echo one > /dev/shm/memory")
	h.run("", "cove", "checkpoint", "create", "-s", "paint")
	sealed := filepath.Join(h.data, "layers", h.stateOf("paint").Layers[0])
	await(t, "the layer's list", func() bool { return h.sized("paint") })
	h.run("", "cove", "suspend", "paint")
	elsewhere := filepath.Join(filepath.Dir(h.home), "elsewhere")
	if err := os.Rename(sealed, elsewhere); err != nil {
		t.Fatal(err)
	}
	out, code := h.try("", "cove", "exec", "-s", "paint", "cat", "data")
	if code == 0 || !strings.Contains(out, "a part of its disk is gone: "+sealed) || !strings.Contains(out, "put the folder back") {
		t.Errorf("without a layer: %d, %s", code, out)
	}
	if err := os.Rename(elsewhere, sealed); err != nil {
		t.Fatal(err)
	}
	if got := h.sh("paint", "cat data /dev/shm/memory"); got != "one\none\n" {
		t.Errorf("with the layer back it has %q", got)
	}
}
