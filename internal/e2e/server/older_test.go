package server

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/cove-dev/cove/internal/lib/fault"
	"github.com/cove-dev/cove/internal/test/e2e"
)

// saveStore copies the store of a server that has ended, or was killed, to a folder.
func saveStore(h *e2e.Host, to string) {
	h.T.Helper()
	for _, name := range []string{"cove.db", "cove.db-wal"} {
		data, err := os.ReadFile(filepath.Join(h.Data, name))
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err := errors.Join(err, os.MkdirAll(to, 0o700), os.WriteFile(filepath.Join(to, name), data, 0o600)); err != nil {
			h.T.Fatal(err)
		}
	}
}

// putStoreBack puts a copy in the place of the store.
func putStoreBack(h *e2e.Host, from string) {
	h.T.Helper()
	for _, name := range []string{"cove.db", "cove.db-wal", "cove.db-shm"} {
		if err := os.Remove(filepath.Join(h.Data, name)); err != nil && !errors.Is(err, os.ErrNotExist) {
			h.T.Fatal(err)
		}
		data, err := os.ReadFile(filepath.Join(from, name))
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err := errors.Join(err, os.WriteFile(filepath.Join(h.Data, name), data, 0o600)); err != nil {
			h.T.Fatal(err)
		}
	}
}

// have returns the folders of one kind in the data folder, or in another one.
func have(dir, kind string) (names []string) {
	found, _ := filepath.Glob(filepath.Join(dir, kind, "*")) // the pattern is right
	for _, path := range found {
		names = append(names, filepath.Base(path))
	}
	return names
}

// allAside returns the folders of one kind that were moved aside.
func allAside(h *e2e.Host, kind string) (names []string) {
	h.T.Helper()
	found, _ := filepath.Glob(filepath.Join(h.Data, "aside", "*")) // the pattern is right
	for _, dir := range found {
		names = append(names, have(dir, kind)...)
	}
	return names
}

// TestOlderStorePutBack puts an older cove.db back after checkpoints, a sleep, and new sprites.
// A server refuses it. Once it is accepted, layers and memories that it does not know are moved
// aside, also the memory of running sprites. All of them can be put back with the newer
// cove.db.
func TestOlderStorePutBack(t *testing.T) {
	h := e2e.NewHost(t)
	h.Serve(nil)
	older, newer := filepath.Join(filepath.Dir(h.Home), "older"), filepath.Join(filepath.Dir(h.Home), "newer")
	for _, name := range []string{"keep", "asleep", "idle", "same"} {
		h.Run("", "cove", "create", name, "--idle", "0")
		h.Sh(name, "echo "+name+"-one > data; echo "+name+" > /dev/shm/memory; sync")
	}
	h.Run("", "cove", "suspend", "idle")
	h.Run("", "cove", "token", "create", "laptop", "--all")
	h.EndServer(syscall.SIGTERM)
	saveStore(h, older)

	h.Serve(nil)
	h.Run("", "cove", "token", "rm", "-y", "laptop")
	h.Sh("keep", "echo two > data; sync")
	h.Run("", "cove", "checkpoint", "create", "-s", "keep", "--memory")
	h.Sh("keep", "echo three > data; (echo 0 > count; while sleep 0.1; do n=$(cat count); echo $((n + 1)) > next; mv next count; done) >/dev/null 2>&1 & sync")
	h.Sh("asleep", "echo two > data; sync")
	h.Run("", "cove", "checkpoint", "create", "-s", "asleep")
	h.Sh("asleep", "echo three > /dev/shm/memory; echo three > data")
	h.Run("", "cove", "suspend", "asleep")
	h.Run("", "cove", "create", "fresh", "--idle", "0")
	h.Sh("fresh", "echo fresh > /dev/shm/memory; echo fresh > data")
	h.Run("", "cove", "create", "dream", "--idle", "0")
	h.Sh("dream", "echo dream > /dev/shm/memory; echo dream > data")
	h.Run("", "cove", "suspend", "dream")
	same := stateOf(h, "same")
	fresh := h.Info("fresh").ID
	h.EndServer(syscall.SIGKILL)
	saveStore(h, newer)

	putStoreBack(h, older)
	refused(h)
	// A shim answers a little before its process ends.
	e2e.Await(t, "the sandboxes of keep, same and fresh run after the refusal, and no other", func() bool { return len(h.Shims()) == 3 })
	layers, memories, images := have(h.Data, "layers"), have(h.Data, "memories"), have(h.Data, "images")

	h.Serve(nil, "--accept-older-store")
	if got := stateOf(h, "same"); got.PID != same.PID {
		t.Errorf("the sandbox of same, which the older store knows as it is, was not taken up")
	}
	e2e.Await(t, "the sandbox of same runs, and no other", func() bool { return len(h.Shims()) == 1 })
	for kind, before := range map[string][]string{"layers": layers, "memories": memories, "images": images} {
		now := slices.Concat(have(h.Data, kind), allAside(h, kind))
		for _, name := range before {
			if !slices.Contains(now, name) {
				t.Errorf("%s/%s is lost", kind, name)
			}
		}
	}
	if got := allAside(h, "memories"); len(got) != 1 {
		t.Errorf("memories of checkpoints aside: %q, want that of keep", got)
	}
	if got := allAside(h, "images"); len(got) != 4 || !slices.Contains(got, fresh) {
		t.Errorf("memories of sprites aside: %q, want those of keep, asleep, fresh (%s) and dream", got, fresh)
	}
	if got := allAside(h, "layers"); len(got) != 4 {
		t.Errorf("layers aside: %q, want those of keep, asleep, fresh and dream", got)
	}
	if out := h.Run("", "cove", "list"); strings.Contains(out, "fresh") || strings.Contains(out, "dream") {
		t.Errorf("the older store knows sprites that are newer:\n%s", out)
	}
	if got := strings.TrimSpace(h.Sh("idle", "cat /dev/shm/memory")); got != "idle" {
		t.Errorf("idle, which the older store knows as it sleeps, has %q in its memory", got)
	}
	for name, want := range map[string]string{"keep": "two", "asleep": "two", "idle": "idle-one", "same": "same-one"} {
		if got := strings.TrimSpace(h.Sh(name, "cat data; echo between > data")); got != want {
			t.Errorf("%s has %q, want %q", name, got, want)
		}
	}
	if out, _ := h.Try("", "cove", "doctor"); !strings.Contains(out, "9 layers and memories (") || !strings.Contains(out, filepath.Join(h.Data, "aside")) {
		t.Errorf("doctor does not say what is aside:\n%s", out)
	}
	if log, err := os.ReadFile(filepath.Join(h.Data, "serve.log")); err != nil || strings.Count(string(log), `msg="moved aside"`) != 9 {
		t.Errorf("the log does not say what was moved aside, once for each (%v):\n%s", err, log)
	}
	if log, err := os.ReadFile(filepath.Join(h.Data, "serve.log")); err != nil || strings.Count(string(log), "tokens that were removed since may be valid again") != 1 || !strings.Contains(string(log), "cove token rm ID --data "+h.Data) {
		t.Errorf("the log does not say, once, that tokens may be valid again (%v):\n%s", err, log)
	}
	h.EndServer(syscall.SIGTERM)
	h.Serve(nil) // it is the newest now
	h.Run("", "cove", "suspend", "keep")
	h.Run("", "cove", "suspend", "asleep")
	h.EndServer(syscall.SIGTERM)
	backToNewer(h, newer)
}

// refused checks that no server starts on an older store, and that the error says what to
// do.
func refused(h *e2e.Host) {
	h.T.Helper()
	out, code := h.Try("", "cove", "serve", "--addr", "127.0.0.1:0")
	if code != 1 || !strings.Contains(out, "is older than the rest of the data folder") || !strings.Contains(out, "cove serve --data "+h.Data+" --accept-older-store") {
		h.T.Fatalf("serve on an older store: %d, %s", code, out)
	}
	out, code = h.Try("", "cove", "doctor")
	if code == 0 || !strings.Contains(out, "none would start: ") || !strings.Contains(out, "fix: put the newest cove.db back") {
		h.T.Errorf("doctor on an older store: %d, %s", code, out)
	}
	out, code = h.Try("", "cove", "server", "start")
	if code != 1 || !strings.Contains(out, "--accept-older-store") {
		h.T.Errorf("start on an older store: %d, %s", code, out)
	}
}

// backToNewer moves all that was moved aside back to its place, with the store that knew
// it.
func backToNewer(h *e2e.Host, newer string) {
	h.T.Helper()
	putStoreBack(h, newer)
	refused(h)                                                               // another one was accepted meanwhile
	moved, _ := filepath.Glob(filepath.Join(h.Data, "aside", "*", "*", "*")) // the pattern is right
	for _, path := range moved {
		to := filepath.Join(h.Data, filepath.Base(filepath.Dir(path)), filepath.Base(path))
		if err := os.RemoveAll(to); err != nil { // the memory that a sprite sleeps with since then
			h.T.Fatal(err)
		}
		if err := os.Rename(path, to); err != nil {
			h.T.Fatal(err)
		}
	}
	h.Serve(nil, "--accept-older-store")
	for _, name := range []string{"fresh", "dream", "asleep"} {
		want := name
		if name == "asleep" {
			want = "three"
		}
		if got := strings.Fields(h.Sh(name, "cat data /dev/shm/memory")); !slices.Equal(got, []string{want, want}) {
			h.T.Errorf("%s has %q in its file and in its memory, want %q", name, got, want)
		}
	}
	if got := strings.TrimSpace(h.Sh("keep", "cat data")); got != "three" {
		h.T.Errorf("keep has %q, want three", got)
	}
	count := h.Sh("keep", "cat count")
	e2e.Await(h.T, "what ran in keep", func() bool { return h.Sh("keep", "cat count") != count })
}

// TestOlderStoreKilled kills a server with -9 after the first thing that it has moved aside.
// The next server, which is not told that the store is older, does the rest.
func TestOlderStoreKilled(t *testing.T) {
	h := e2e.NewHost(t)
	h.Serve(nil)
	older := filepath.Join(filepath.Dir(h.Home), "older")
	h.Run("", "cove", "create", "first", "--idle", "0")
	h.EndServer(syscall.SIGTERM)
	saveStore(h, older)
	h.Serve(nil)
	for _, name := range []string{"one", "two", "three"} {
		h.Run("", "cove", "create", name, "--idle", "0")
		h.Sh(name, "echo "+name+" > data")
		h.Run("", "cove", "checkpoint", "create", "-s", name, "--memory")
		h.Run("", "cove", "suspend", name)
	}
	h.EndServer(syscall.SIGTERM)
	layers, memories, images := have(h.Data, "layers"), have(h.Data, "memories"), have(h.Data, "images")
	putStoreBack(h, older)

	reached := filepath.Join(filepath.Dir(h.Home), "reached")
	cmd := h.Command("", "cove", "serve", "--addr", "127.0.0.1:0", "--accept-older-store")
	cmd.Env = append(cmd.Env, fault.Variable+"="+string(fault.AsideMoved)+"="+reached)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	e2e.Await(t, "the first move", func() bool { _, err := os.Stat(reached); return err == nil })
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // it was killed
	if got := len(allAside(h, "layers")) + len(allAside(h, "memories")) + len(allAside(h, "images")); got != 1 {
		t.Fatalf("%d items were aside when the server was killed, want 1", got)
	}

	h.Serve(nil)
	for kind, want := range map[string][]string{"layers": layers, "memories": memories, "images": images} {
		got := allAside(h, kind)
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Errorf("%s aside: %q, want %q", kind, got, want)
		}
	}
	h.EndServer(syscall.SIGTERM)
	h.Serve(nil) // the move aside is done, and folders due for removal are removed
	h.Run("", "cove", "rm", "first")
}

// TestDataFolderMoved: a data folder that was moved, or copied as a whole, is not older.
func TestDataFolderMoved(t *testing.T) {
	h := e2e.NewHost(t)
	h.Serve(nil)
	h.Run("", "cove", "create", "paint", "--idle", "0")
	h.Sh("paint", "echo one > data; echo one > /dev/shm/memory; mkfifo fifo")
	h.Run("", "cove", "exec", "-s", "paint", "--detach", "sh", "-c", "exec sleep 100000 <>fifo")
	h.Run("", "cove", "checkpoint", "create", "-s", "paint", "--memory")
	h.Run("", "cove", "suspend", "paint")
	h.EndServer(syscall.SIGTERM)
	from := h.Data
	ways := [][]string{{"cp", "-a"}, {"mv"}}
	if !e2e.Soak() {
		ways = ways[:1]
	}
	for _, how := range ways {
		h.Data = filepath.Join(filepath.Dir(h.Home), how[0])
		h.Run("", how[0], append(how[1:], from, h.Data)...)
		h.Serve(nil)
		if got := h.Sh("paint", "cat data /dev/shm/memory; pgrep -c sleep"); got != "one\none\n1\n" {
			t.Errorf("after %s it has %q", how[0], got)
		}
		h.Run("", "cove", "suspend", "paint")
		h.EndServer(syscall.SIGTERM)
		if log, err := os.ReadFile(filepath.Join(h.Data, "serve.log")); err != nil || strings.Contains(string(log), "older") || len(have(h.Data, "aside")) > 0 {
			t.Errorf("after %s the store was taken for an older one (%v):\n%s", how[0], err, log)
		}
	}
	h.Serve(nil) // the end of the test ends this server
}

// TestLayerGone takes a sealed layer away. The sprite does not boot without the layer's
// files. Once the layer is back, it boots with them.
func TestLayerGone(t *testing.T) {
	h := e2e.NewHost(t)
	h.Serve(nil)
	h.Run("", "cove", "create", "paint", "--idle", "0")
	h.Sh("paint", "echo one > data; echo one > /dev/shm/memory")
	h.Run("", "cove", "checkpoint", "create", "-s", "paint")
	sealed := filepath.Join(h.Data, "layers", stateOf(h, "paint").Layers[0])
	e2e.Await(t, "the layer's list", func() bool { return e2e.Sized(h, "paint") })
	h.Run("", "cove", "suspend", "paint")
	elsewhere := filepath.Join(filepath.Dir(h.Home), "elsewhere")
	if err := os.Rename(sealed, elsewhere); err != nil {
		t.Fatal(err)
	}
	out, code := h.Try("", "cove", "exec", "-s", "paint", "cat", "data")
	if code == 0 || !strings.Contains(out, "a part of its disk is gone: "+sealed) || !strings.Contains(out, "put the folder back") {
		t.Errorf("without a layer: %d, %s", code, out)
	}
	if err := os.Rename(elsewhere, sealed); err != nil {
		t.Fatal(err)
	}
	if got := h.Sh("paint", "cat data /dev/shm/memory"); got != "one\none\n" {
		t.Errorf("with the layer back it has %q", got)
	}
}
