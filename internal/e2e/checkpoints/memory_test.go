package checkpoints

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cove-dev/cove/internal/test/e2e"
	"github.com/cove-dev/cove/sprites"
)

// A counter is a program in a sprite that counts in memory. It writes each number to a
// file, with a mark that differs between runs.
const counter = `
import os, time
mark = os.urandom(8).hex()
out = open('/home/sprite/count', 'a')
n = 0
while True:
    n += 1
    out.write('%s %d\n' % (mark, n)); out.flush()
    time.sleep(0.02)
`

// counts returns the mark of a counter's only run, and the last number that it wrote. All
// numbers must be there.
func counts(h *e2e.Host, sprite string) (mark string, last int) {
	h.T.Helper()
	out := h.Run("", "cove", "exec", "-s", sprite, "--", "cat", "/home/sprite/count")
	for line := range strings.Lines(out) {
		var m string
		var n int
		if _, err := fmt.Sscanf(line, "%s %d", &m, &n); err != nil || n != last+1 || mark != "" && m != mark {
			h.T.Fatalf("in %s, after %s %d comes %q", sprite, mark, last, line)
		}
		mark, last = m, n
	}
	return mark, last
}

// counting waits until a counter has gone on, and returns its last number.
func counting(h *e2e.Host, sprite, mark string) int {
	h.T.Helper()
	_, at := counts(h, sprite)
	now := at
	e2e.Await(h.T, "the counter of "+sprite, func() bool {
		m, n := counts(h, sprite)
		if m != mark {
			h.T.Fatalf("in %s another counter runs: %s, not %s", sprite, m, mark)
		}
		now = n
		return n > at+5
	})
	return now
}

// memories returns the folders of kept memories, and those of sleeping sprites' memories.
func memories(h *e2e.Host) (kept, asleep []string) {
	h.T.Helper()
	kept, _ = filepath.Glob(filepath.Join(h.Data, "memories", "*")) // the patterns are right
	asleep, _ = filepath.Glob(filepath.Join(h.Data, "images", "*"))
	return kept, asleep
}

// TestMemory: programs go on from a checkpoint with memory, in place or in forks, each in
// its own way. They also go on from the present state of a live sprite, or of a sleeping
// one.
func TestMemory(t *testing.T) {
	h := e2e.NewHost(t)
	h.Serve(nil)
	h.Run("", "cove", "create", "paint", "--idle", "0")
	h.Write("counter.py", counter)
	h.Run("", "cove", "cp", h.Home+"/../counter.py", "paint:counter.py")
	h.Run("", "cove", "exec", "-s", "paint", "--detach", "--", "python3", "counter.py")
	e2e.Await(t, "the counter", func() bool {
		out, code := h.Try("", "cove", "exec", "-s", "paint", "--", "cat", "count")
		return code == 0 && strings.Count(out, "\n") > 5
	})
	mark, _ := counts(h, "paint")
	var c sprites.Checkpoint
	if err := json.Unmarshal([]byte(h.Run("", "cove", "checkpoint", "create", "-s", "paint", "--memory", "--json")), &c); err != nil || c.Cove.MemoryBytes == 0 || c.Cove.MemoryNotKept != "" {
		t.Fatalf("got %+v, %v", c.Cove, err)
	}
	counting(h, "paint", mark)

	testForks(h, mark)
	testRestore(h, mark)
	testAsleep(h, mark)

	for _, name := range []string{"paint", "early", "asleep-twin"} {
		h.Run("", "cove", "rm", name)
	}
	if kept, asleep := memories(h); len(kept)+len(asleep) > 0 {
		t.Errorf("left: %v %v", kept, asleep)
	}
}

// testForks forks the live sprite, and the checkpoint v1 with its memory.
func testForks(h *e2e.Host, mark string) {
	h.T.Helper()
	_, at := counts(h, "paint")
	h.Run("", "cove", "fork", "paint", "twin", "--count", "2")
	ids := map[string]bool{}
	for _, name := range []string{"paint", "twin-1", "twin-2"} {
		if n := counting(h, name, mark); n < at {
			h.T.Errorf("%s has counted to %d, and before the fork it was %d", name, n, at)
		}
		out := h.Run("", "cove", "exec", "-s", name, "--", "sh", "-c", "hostname; cat /etc/machine-id; hostname -I")
		lines := strings.Split(strings.TrimSpace(out), "\n")
		if lines[0] != name || ids[lines[1]] {
			h.T.Errorf("%s calls itself %q", name, out)
		}
		ids[lines[1]] = true
	}
	if kept, _ := memories(h); len(kept) != 1 {
		h.T.Errorf("kept, of one checkpoint: %v", kept)
	}
	h.Run("", "cove", "rm", "twin-1", "twin-2")

	h.Run("", "cove", "fork", "paint", "early", "--checkpoint", "v1")
	if status := e2e.JSONField(h.T, h.Run("", "cove", "info", "early", "--json"), "status"); status != "warm" {
		h.T.Errorf("early is %s", status)
	}
	counting(h, "early", mark)
	h.Run("", "cove", "fork", "paint", "plain", "--boot")
	if out, code := h.Try("", "cove", "exec", "-s", "plain", "--", "pgrep", "-f", "counter.py"); code == 0 {
		h.T.Errorf("in a fork that boots runs %s", out)
	}
	h.Run("", "cove", "rm", "plain")
}

// testRestore restores v1 with its memory (twice), without it, and with a damaged memory.
func testRestore(h *e2e.Host, mark string) {
	h.T.Helper()
	restore := func(args ...string) (r sprites.Restored) {
		h.T.Helper()
		if err := json.Unmarshal([]byte(h.Run("", "cove", append([]string{"restore", "v1", "-s", "paint", "--json"}, args...)...)), &r); err != nil {
			h.T.Fatal(err)
		}
		return r
	}
	for range 2 {
		h.Sh("paint", "touch later")
		if r := restore(); !r.Memory || r.Booted || r.Unused != "" {
			h.T.Fatalf("got %+v", r)
		}
		counts(h, "paint") // without a gap: memory and disk are of the same moment
		h.Sh("paint", "! test -e later")
		counting(h, "paint", mark)
	}
	if r := restore("--boot"); r.Memory || !r.Booted {
		h.T.Errorf("got %+v", r)
	}
	if out, code := h.Try("", "cove", "exec", "-s", "paint", "--", "pgrep", "-f", "counter.py"); code == 0 {
		h.T.Errorf("after a boot runs %s", out)
	}
	kept, _ := memories(h)
	file := filepath.Join(kept[0], "checkpoint.img")
	image, err := os.ReadFile(file)
	if err != nil {
		h.T.Fatal(err)
	}
	image[len(image)/2] ^= 1
	if err := os.WriteFile(file, image, 0o600); err != nil {
		h.T.Fatal(err)
	}
	if r := restore(); r.Memory || !r.Booted || !strings.Contains(r.Unused, "damaged") {
		h.T.Errorf("got %+v", r)
	}
}

// testAsleep makes checkpoints and forks of a sprite that sleeps.
func testAsleep(h *e2e.Host, mark string) {
	h.T.Helper()
	h.Run("", "cove", "suspend", "early")
	var c sprites.Checkpoint
	if err := json.Unmarshal([]byte(h.Run("", "cove", "checkpoint", "create", "-s", "early", "--memory", "--json")), &c); err != nil || c.Cove.MemoryBytes == 0 {
		h.T.Errorf("got %+v, %v", c.Cove, err)
	}
	h.Run("", "cove", "fork", "early", "asleep-twin")
	for _, name := range []string{"early", "asleep-twin"} {
		counting(h, name, mark)
	}
	h.Run("", "cove", "checkpoint", "create", "-s", "paint")
	h.Run("", "cove", "checkpoint", "rm", "v1", "-s", "paint")
	if kept, _ := memories(h); len(kept) != 1 {
		h.T.Errorf("kept, of one checkpoint: %v", kept)
	}
}

// A keeper is a program in a sprite that has files of all kinds open. For each line of
// input it checks that they are unchanged, and then changes some.
const keeper = `
import ctypes, fcntl, os, subprocess, sys, time
libc = ctypes.CDLL(None, use_errno=True)
os.makedirs('keep/watched'); os.chdir('keep')
os.mkdir('dir.0')
for i in range(3): open('dir.0/%d' % i, 'w').write(str(i))
open('base', 'w').write('base')
rw = os.open('rw', os.O_RDWR | os.O_CREAT)
gone = open('gone', 'w+b')
mega = os.urandom(1 << 20)
gone.write(mega); gone.flush(); os.unlink('gone')
lock = open('lock', 'w'); fcntl.flock(lock, fcntl.LOCK_EX)
os.mkfifo('pipe')
reading = os.open('pipe', os.O_RDONLY | os.O_NONBLOCK)
writing = os.open('pipe', os.O_WRONLY)
watch = libc.inotify_init1(os.O_NONBLOCK)
libc.inotify_add_watch(watch, b'watched', 0x100)
written = b''
def must(ok, what):
    if not ok: print('wrong: ' + what, flush=True)
for n, word in enumerate(sys.stdin):
    os.rename('dir.%d' % n, 'dir.%d' % (n + 1))
    must(sorted(os.listdir('dir.%d' % (n + 1))) == ['0', '1', '2'], 'a folder that was renamed')
    must(open('dir.%d/1' % (n + 1)).read() == '1', 'a file in it')
    os.link('base', 'link.%d' % n)
    must(open('base').read() == open('link.%d' % n).read() == 'base', 'a hard link')
    one, two = 'one.%d' % n, 'two.%d' % n
    open(one, 'w').write('made'); os.link(one, two); open(two, 'a').write('+')
    must(open(one).read() == open(two).read() == 'made+' and os.stat(one).st_nlink == 2, 'two names of one file')
    if n > 0:
        open('one.%d' % (n - 1), 'a').write('late')
        must(open('one.%d' % (n - 1)).read() == 'made+late', 'a file of two names that was sealed')
    if 1 < n < 5: # a checkpoint later, the names are of two files; the last ones fail
        must(open('one.%d' % (n - 2)).read() == 'made+late', 'the name that was written')
        must(open('two.%d' % (n - 2)).read() == 'made+', 'the name that was not')
        os.unlink('one.%d' % (n - 2))
        must(open('two.%d' % (n - 2)).read() == 'made+', 'the name that is left')
    part = b'%d,' % n
    must(os.pwrite(rw, part, len(written)) == len(part), 'a write')
    written += part
    must(os.pread(rw, 1000, 0) == written and open('rw', 'rb').read() == written, 'a file that is written')
    gone.seek(0)
    must(gone.read() == mega, 'a file without a name')
    mega = mega[:n] + b'!' + mega[n + 1:]
    gone.seek(n); gone.write(b'!'); gone.flush()
    held = subprocess.run(['flock', '-n', 'lock', 'true']).returncode
    must(held == 1, 'a lock')
    os.write(writing, part)
    must(os.read(reading, 100) == part, 'a FIFO')
    open('watched/%d' % n, 'w').close()
    for _ in range(100):
        try: event = os.read(watch, 4096); break
        except BlockingIOError: event = b''; time.sleep(0.01)
    must(event[16:].rstrip(b'\0') == b'%d' % n, 'a watch')
    print('kept %d' % n, flush=True)
`

// TestCheckpointFiles: between checkpoints, a program's open files, lock, FIFO and watch
// are unchanged, and its changes of sealed files are right. Each checkpoint has the files
// of its moment. A checkpoint without room is not made, and the program goes on.
func TestCheckpointFiles(t *testing.T) {
	h := e2e.NewSmallHost(t, "256m")
	h.Serve(nil, "--disk-reserve", "0")
	h.Run("", "cove", "create", "paint", "--idle", "0")
	h.Write("keeper.py", keeper)
	h.Run("", "cove", "cp", h.Home+"/../keeper.py", "paint:keeper.py")
	cmd := h.Client().Sprite("paint").CommandContext(t.Context(), "python3", "keeper.py")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var failed bytes.Buffer
	cmd.Stderr = &failed
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	said := bufio.NewScanner(out)
	n := 0
	goOn := func() {
		t.Helper()
		fmt.Fprintln(in, "go on")
		for said.Scan() {
			if said.Text() == fmt.Sprintf("kept %d", n) {
				n++
				return
			}
			t.Errorf("after %d checkpoints: %s", n, said.Text())
		}
		t.Fatalf("after %d checkpoints it ended: %v, %v, %s", n, said.Err(), cmd.Wait(), &failed)
	}
	goOn()
	for range 4 {
		h.Run("", "cove", "checkpoint", "create", "-s", "paint")
		goOn()
	}
	h.Run("", "cove", "fork", "paint", "old", "--checkpoint", "v2", "--boot")
	if got := h.Run("", "cove", "exec", "-s", "old", "--", "sh", "-c", "cd keep; ls -d dir.* link.* | tr '\\n' ' '; cat rw dir.2/2"); got != "dir.2 link.0 link.1 0,1,2" {
		t.Errorf("v2 has %q", got)
	}

	fill := filepath.Join(h.Data, "fill")
	if out, err := exec.Command("sh", "-c", "cat /dev/zero >"+fill).CombinedOutput(); err == nil || !strings.Contains(string(out), "No space") {
		t.Fatalf("fill the disk: %v, %s", err, out)
	}
	if out, code := h.Try("", "cove", "checkpoint", "create", "-s", "paint"); code == 0 {
		t.Errorf("a checkpoint without room was made: %s", out)
	}
	if err := os.Truncate(fill, 0); err != nil {
		t.Fatal(err)
	}
	goOn()
	// There is room for a layer, but none for a memory.
	if out, err := exec.Command("sh", "-c", "cat /dev/zero >"+fill).CombinedOutput(); err == nil {
		t.Fatalf("fill the disk: %s", out)
	}
	st, err := os.Stat(fill)
	if err == nil {
		err = os.Truncate(fill, st.Size()-3<<20)
	}
	if err != nil {
		t.Fatal(err)
	}
	var c sprites.Checkpoint
	if err := json.Unmarshal([]byte(h.Run("", "cove", "checkpoint", "create", "-s", "paint", "--memory", "--json")), &c); err != nil || !strings.Contains(c.Cove.MemoryNotKept, "no space") {
		t.Errorf("got %+v, %v", c.Cove, err)
	}
	if kept, _ := memories(h); len(kept) > 0 {
		t.Errorf("kept: %v", kept)
	}
	goOn()
	if err := errors.Join(in.Close(), cmd.Wait()); err != nil {
		t.Errorf("%v: %s", err, &failed)
	}
}
