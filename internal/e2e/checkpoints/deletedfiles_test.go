package checkpoints

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cove-dev/cove/internal/test/e2e"
	"github.com/cove-dev/cove/sprites"
)

// A holder is a program in a sprite that has many deleted files open, some of them large.
// At each file ask.N it checks that they are unchanged, and then changes them.
const holder = `
import os, random, time
MB = 1 << 20
held = []
class Held:
    # What it has to be is not kept, but made when it is looked at.
    def __init__(self, path, size, hole=0):
        self.n, self.size, self.hole, self.more = len(held), size, hole, b''
        f = open(path, 'w+b', buffering=0)
        f.write(self.content()[:size])
        f.truncate(size + hole)
        if self.n % 5 == 0: f.close(); f = open(path, 'rb', buffering=0)
        os.unlink(path)
        self.f, self.at, self.names = f, f.seek(self.n), os.fstat(f.fileno()).st_nlink
        held.append(self)
    def content(self):
        if self.size == 8 * MB: return bytes(range(128, 256)) * (8 * MB // 128) + self.more
        return random.Random(self.n).randbytes(self.size) + bytes(self.hole) + self.more
    def look(self, n):
        fd, content = self.f.fileno(), self.content()
        st = os.fstat(fd)
        if st.st_nlink != self.names: return 'has %d names, not %d' % (st.st_nlink, self.names)
        if st.st_size != len(content): return 'has %d bytes, not %d' % (st.st_size, len(content))
        if self.f.tell() != self.at: return 'is at %d, not %d' % (self.f.tell(), self.at)
        if os.pread(fd, len(content) + 1, 0) != content: return 'has something else in it'
        if self.f.mode != 'rb':
            self.more += b'%d' % n
            if os.pwrite(fd, b'%d' % n, len(content)) != len(b'%d' % n): return 'is not written'
        self.at = self.f.seek(1, 1)
os.makedirs('held/gone')
for n in range(100): Held('held/gone/one' if n % 2 else 'held/%d' % n, 20 << 10)
os.rmdir('held/gone')
open('held/0', 'w').write('another')
Held('held/readonly', MB)
Held('held/large', 8 * MB)
Held('held/sparse', 1, 8 * MB)
Held('held/empty', 0)
def look(n):
    for h in held:
        wrong = h.look(n)
        if wrong: return '%d %s' % (h.n, wrong)
    if open('held/0').read() != 'another': return 'the file of the same name is another'
    if sorted(os.listdir('held')) != ['0']: return 'there is %s' % os.listdir('held')
    return 'whole'
n = 0
while True:
    open('ready', 'w').close()
    while not os.path.exists('ask.%d' % n): time.sleep(0.01)
    said = look(n)
    open('said', 'w').write(said)
    os.rename('said', 'said.%d' % n)
    n += 1
`

// hold starts a holder in a sprite. look has the holder of a sprite (maybe of a copy)
// check its files for the nth time.
func hold(h *e2e.Host, sprite string) (look func(sprite string, n int)) {
	h.T.Helper()
	h.Write("holder.py", holder)
	h.Run("", "cove", "cp", h.Home+"/../holder.py", sprite+":holder.py")
	h.Run("", "cove", "exec", "-s", sprite, "--detach", "--", "sh", "-c", "exec python3 holder.py >failed 2>&1")
	h.Run("", "cove", "exec", "-s", sprite, "--", "sh", "-c", "until [ -e ready ] || [ -s failed ]; do sleep 0.1; done; cat failed")
	return func(sprite string, n int) {
		h.T.Helper()
		said := h.Run("", "cove", "exec", "-s", sprite, "--", "sh", "-c",
			`touch ask.$0; until [ -e said.$0 ]; do sleep 0.02; if [ -s failed ]; then cat failed; exit 1; fi; done; cat said.$0`, strconv.Itoa(n))
		if said != "whole" {
			h.T.Fatalf("in %s, look %d: %s", sprite, n, said)
		}
	}
}

// TestDeletedFiles: deleted files that a process has open, however many, survive
// checkpoints, a fork and a sleep. They go into an image in large pieces: byte by byte
// would take a hundred times as long.
func TestDeletedFiles(t *testing.T) {
	h := e2e.NewHost(t)
	h.Serve(nil)
	h.Run("", "cove", "create", "paint", "--idle", "0")
	look := hold(h, "paint")
	look("paint", 0)
	checkpoint := func(memory string) sprites.CheckpointDetails {
		t.Helper()
		var c sprites.Checkpoint
		if err := json.Unmarshal([]byte(h.Run("", "cove", "checkpoint", "create", "-s", "paint", memory, "--json")), &c); err != nil || c.Cove == nil {
			t.Fatalf("got %+v, %v", c, err)
		}
		t.Logf("%s: pause %.0f ms", memory, c.Cove.PauseMilliseconds)
		return *c.Cove
	}
	checkpoint("--memory=never")
	look("paint", 1)
	if got := checkpoint("--memory=always"); got.MemoryBytes == 0 {
		t.Errorf("no memory was kept: %s", got.MemoryNotKept)
	}
	kept, _ := memories(h)
	if len(kept) != 1 {
		t.Fatalf("%d memories were kept", len(kept))
	}
	image, err := os.ReadFile(filepath.Join(kept[0], "checkpoint.img"))
	if err != nil {
		t.Fatal(err)
	}
	var part []byte // of the largest: numbers over 127 would take two bytes each
	for b := 128; b < 256; b++ {
		part = append(part, byte(b))
	}
	part = bytes.Repeat(part, 32)
	if n, want := bytes.Count(image, part), 8<<20/len(part); n < want-1 {
		t.Errorf("the image has %d parts of %d of the largest file as they are", n, want)
	}
	look("paint", 2)
	h.Run("", "cove", "fork", "paint", "copy", "--checkpoint", "v2")
	look("copy", 2)

	began := time.Now()
	if _, err := h.Client().Sprite("paint").Suspend(t.Context()); err != nil {
		t.Fatal(err)
	}
	look("paint", 3)
	t.Logf("a sleep and a wake took %v", time.Since(began).Round(time.Millisecond))
}

// TestDeletedTooLarge: if gVisor has no memory for the open deleted files (holes count
// too), no checkpoint is made and no memory is kept for a sleep. The programs go on;
// otherwise they could end.
func TestDeletedTooLarge(t *testing.T) {
	h := e2e.NewHost(t)
	h.Serve(nil)
	for _, of := range []struct {
		sprite, size, said string
		limit              []string
	}{
		{"paint", "1200M", "1200 MiB, and its memory has room for 1024", nil},
		{"tight", "250M", "250 MiB, and its memory has room for ", []string{"--memory", "256M"}},
	} {
		h.Run("", "cove", append([]string{"create", of.sprite, "--idle", "0"}, of.limit...)...)
		h.Run("", "cove", "exec", "-s", of.sprite, "--detach", "--", "sh", "-c",
			`exec 3<>gone; truncate -s $0 gone; rm gone; touch open; until [ -e ask ]; do sleep 0.02; done; stat -L -c %s /proc/self/fd/3 >said; exec sleep 100000`, of.size)
		h.Run("", "cove", "exec", "-s", of.sprite, "--", "sh", "-c", "until [ -e open ]; do sleep 0.02; done")
		for _, args := range [][]string{{"checkpoint", "create", "-s", of.sprite}, {"checkpoint", "create", "-s", of.sprite, "--memory=always"}, {"suspend", of.sprite}} {
			out, code := h.Try("", "cove", args...)
			if code != 1 || !strings.Contains(out, of.said) || !strings.Contains(out, "grep deleted") {
				t.Errorf("%s: exit %d, %s", args, code, out)
			}
		}
		if out := h.Run("", "cove", "checkpoint", "list", "-s", of.sprite, "--json"); strings.Contains(out, `"v1"`) {
			t.Errorf("it is listed: %s", out)
		}
		size := h.Run("", "cove", "exec", "-s", of.sprite, "--", "sh", "-c", "touch ask; until [ -s said ]; do sleep 0.02; done; echo $(($(cat said) >> 20))")
		if got := strings.TrimSpace(size) + "M"; got != of.size {
			t.Errorf("%s: it has %s open, not %s", of.sprite, got, of.size)
		}
		h.Run("", "cove", "exec", "-s", of.sprite, "--", "sh", "-c", "pkill -f 'sleep 10000[0]'; while pgrep -f 'sleep 10000[0]'; do sleep 0.02; done")
		h.Run("", "cove", "checkpoint", "create", "-s", of.sprite)
	}
}
