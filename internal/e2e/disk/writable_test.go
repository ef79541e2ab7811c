package disk

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cove-dev/cove/internal/test/e2e"
	"github.com/cove-dev/cove/sprites"
)

// fillTo fills a host's small disk, except for free bytes.
func fillTo(h *e2e.Host, free int64) {
	h.T.Helper()
	var st unix.Statfs_t
	err := unix.Statfs(h.Data, &st)
	if err == nil {
		if out, fillErr := exec.Command("fallocate", "-l", fmt.Sprint(int64(st.Bavail)*st.Bsize-free), filepath.Join(h.Data, "fill")).CombinedOutput(); fillErr != nil {
			err = fmt.Errorf("%w: %s", fillErr, out)
		}
	}
	if err != nil {
		h.T.Fatal(err)
	}
}

// A keptCounter counts in a sprite, and prints the number for each line of input.
// Meanwhile it has a file open for writing, and maybe a deleted one.
type keptCounter struct {
	t   *testing.T
	in  io.WriteCloser
	out io.Reader
	cmd *sprites.Cmd
	n   int
}

const countOpen = `
import os, sys
big = open(sys.argv[1], 'r+b')
big.seek(1000); first = big.read(1000)
if len(sys.argv) > 2:
    gone = open('gone', 'w+b'); gone.write(b'g' * int(sys.argv[2])); gone.flush(); os.unlink('gone')
n = 0
for word in sys.stdin:
    big.seek(1000); assert big.read(1000) == first
    big.seek(0); big.write(b'%06d' % n); big.flush()
    if len(sys.argv) > 2: gone.seek(0); assert gone.read() == b'g' * int(sys.argv[2])
    print(n, flush=True); n += 1
`

func startCounter(t *testing.T, h *e2e.Host, sprite string, args ...string) *keptCounter {
	t.Helper()
	c := &keptCounter{t: t}
	c.cmd = h.Client().Sprite(sprite).CommandContext(t.Context(), "python3", append([]string{"-c", countOpen}, args...)...)
	c.cmd.Stderr = os.Stderr
	var inErr, outErr error
	c.in, inErr = c.cmd.StdinPipe()
	c.out, outErr = c.cmd.StdoutPipe()
	if err := errors.Join(inErr, outErr, c.cmd.Start()); err != nil {
		t.Fatal(err)
	}
	c.goesOn()
	return c
}

// goesOn fails unless the counter goes on from its last number.
func (c *keptCounter) goesOn() {
	c.t.Helper()
	fmt.Fprintln(c.in, "go on")
	var n int
	if _, err := fmt.Fscanln(c.out, &n); err != nil || n != c.n {
		c.t.Fatalf("it says %d, %v, want %d", n, err, c.n)
	}
	c.n++
}

// TestCheckpointWithoutRoom: a checkpoint without room for copies of the files open for
// writing is refused because the disk is full. None is listed, and the program goes on as
// it was. With room, it is made.
func TestCheckpointWithoutRoom(t *testing.T) {
	h := e2e.NewSmallHost(t, "300m")
	h.Serve(nil, "--disk-reserve", "0")
	h.Run("", "cove", "create", "paint", "--idle", "0")
	h.Run("", "cove", "exec", "-s", "paint", "--", "sh", "-c", "head -c 100M /dev/urandom >\"big (deleted)\"; head -c 2M /dev/urandom >small")
	c := startCounter(t, h, "paint", "big (deleted)")
	refused := func(args ...string) {
		t.Helper()
		out, code := h.Try("", "cove", append([]string{"checkpoint", "create", "-s", "paint"}, args...)...)
		if code != 6 || !strings.Contains(out, "the disk of the server is full") {
			t.Errorf("a checkpoint without room: exit %d, %s", code, out)
		}
		c.goesOn()
		if out := h.Run("", "cove", "checkpoint", "list", "-s", "paint", "--json"); strings.Contains(out, `"v1"`) {
			t.Errorf("it is listed: %s", out)
		}
	}
	fillTo(h, 27<<20)
	refused()
	refused("--memory=always")
	// If the copy just does not fit, the copying itself fails.
	e2e.MakeRoom(h)
	fillTo(h, 100<<20+100<<10)
	refused()
	e2e.MakeRoom(h)
	h.Run("", "cove", "checkpoint", "create", "-s", "paint")
	c.goesOn()
	if err := errors.Join(c.in.Close(), c.cmd.Wait()); err != nil {
		t.Error(err)
	}

	// The restore makes deleted files again.
	fillTo(h, 27<<20)
	c = startCounter(t, h, "paint", "small", fmt.Sprint(14<<20))
	if out, code := h.Try("", "cove", "checkpoint", "create", "-s", "paint"); code != 6 {
		t.Errorf("a checkpoint without room for a deleted file: exit %d, %s", code, out)
	}
	c.goesOn()
	e2e.MakeRoom(h)
	h.Run("", "cove", "checkpoint", "create", "-s", "paint")
	c.goesOn()
	if err := errors.Join(c.in.Close(), c.cmd.Wait()); err != nil {
		t.Error(err)
	}
}

// TestMemoryOfWhatIsCopied: the size of the files to copy decides whether a checkpoint
// keeps the memory, whoever has them open, and however. A file that is only read counts
// too if it was written before: gVisor keeps its first descriptor of it.
func TestMemoryOfWhatIsCopied(t *testing.T) {
	h := e2e.NewHost(t)
	h.Serve(nil)
	h.Run("", "cove", "create", "paint", "--idle", "0")
	h.Run("", "cove", "exec", "-s", "paint", "--", "sh", "-c", "head -c 300M /dev/zero >big")
	s := h.Client().Sprite("paint")
	for _, opened := range []string{"3<big", "4>>big"} {
		cmd := s.CommandContext(t.Context(), "sh", "-c", "exec "+opened+"; echo opened; exec sleep 10000")
		out, err := cmd.StdoutPipe()
		if err := errors.Join(err, cmd.Start()); err != nil {
			t.Fatal(err)
		}
		if _, err := fmt.Fscanln(out, new(string)); err != nil {
			t.Fatal(err)
		}
		var c sprites.Checkpoint
		if err := json.Unmarshal([]byte(h.Run("", "cove", "checkpoint", "create", "-s", "paint", "--memory", "--json")), &c); err != nil || c.Cove == nil {
			t.Fatalf("got %+v, %v", c, err)
		}
		if c.Cove.CopiedBytes > sprites.OpenWritable && (c.Cove.MemoryBytes > 0 || !strings.Contains(c.Cove.MemoryNotKept, "300 MiB")) {
			t.Errorf("%s: %d bytes were copied, and the memory was kept: %+v", opened, c.Cove.CopiedBytes, c.Cove)
		}
		if c.Cove.CopiedBytes != 300<<20 {
			t.Errorf("%s: %d bytes were copied", opened, c.Cove.CopiedBytes)
		}
		if err := cmd.Signal(unix.SIGKILL); err != nil {
			t.Error(err)
		}
		_ = cmd.Wait()

	}
}

// TestForkWithoutRoom: a fork without room for the files that its memory has open for
// writing does not start. It keeps its memory, and goes on from there once there is room.
func TestForkWithoutRoom(t *testing.T) {
	h := e2e.NewSmallHost(t, "300m")
	h.Serve(nil, "--disk-reserve", "0")
	h.Run("", "cove", "create", "paint", "--idle", "0")
	h.Run("", "cove", "exec", "-s", "paint", "--", "sh", "-c", "head -c 60M /dev/urandom >big; setsid nohup sh -c 'exec 3<>big; echo open >open; exec sleep 100000' >/dev/null 2>&1 & until [ -s open ]; do sleep 0.1; done")
	h.Run("", "cove", "checkpoint", "create", "-s", "paint", "--memory")
	fillTo(h, 27<<20)
	out, code := h.Try("", "cove", "fork", "paint", "copy", "--checkpoint", "v1")
	t.Logf("fork: exit %d, %s", code, out)
	if out, code := h.Try("", "cove", "exec", "-s", "copy", "true"); code != 6 || !strings.Contains(out, "the disk of the server is full") {
		t.Errorf("exec in it: exit %d, %s", code, out)
	}
	e2e.MakeRoom(h)
	if out, code := h.Try("", "cove", "exec", "-s", "copy", "--", "sh", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '"); code != 0 || !strings.Contains(out, "sleep 100000") {
		t.Errorf("with room there runs, exit %d, %s", code, out)
	}
}

// TestMemoryLeavesReserve: a memory that would take the reserve of the disk is not kept;
// the checkpoint is made without it, and says why.
func TestMemoryLeavesReserve(t *testing.T) {
	h := e2e.NewSmallHost(t, "400m")
	h.Serve(nil, "--disk-reserve", "64M")
	h.Run("", "cove", "create", "paint", "--idle", "0")
	h.Run("", "cove", "exec", "-s", "paint", "--", "sh", "-c", "head -c 100M /dev/urandom >/dev/shm/big")
	checkpoint := func() *sprites.CheckpointDetails {
		t.Helper()
		var c sprites.Checkpoint
		if err := json.Unmarshal([]byte(h.Run("", "cove", "checkpoint", "create", "-s", "paint", "--memory", "--json")), &c); err != nil || c.Cove == nil {
			t.Fatalf("got %+v, %v", c, err)
		}
		return c.Cove
	}
	fillTo(h, 130<<20)
	if c := checkpoint(); c.MemoryBytes > 0 || !strings.Contains(c.MemoryNotKept, "no space") {
		t.Errorf("without room besides the reserve: %+v", c)
	}
	e2e.MakeRoom(h)
	if c := checkpoint(); c.MemoryBytes < 100<<20 {
		t.Errorf("with room: %+v", c)
	}
}
