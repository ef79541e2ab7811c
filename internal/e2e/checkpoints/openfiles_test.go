package checkpoints

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/cove-dev/cove/internal/test/e2e"
	"github.com/cove-dev/cove/sprites"
)

// A burden is a program in a sprite that has a large file open for writing, and later a
// deleted one instead. For each line of input it checks that the file is unchanged.
const burden = `
import os, sys
part = os.urandom(1 << 20)
big = os.open('big', os.O_RDWR | os.O_CREAT)
for n in range(258): os.write(big, part)
gone = None
def say(ok): print('whole' if ok else 'wrong', flush=True)
say(True)
for word in sys.stdin:
    if word == 'delete\n':
        os.close(big)
        gone = open('gone', 'w+b')
        gone.write(part * 65); gone.flush(); os.unlink('gone')
        say(True)
    elif gone:
        gone.seek(0)
        say(gone.read() == part * 65)
    else:
        say(os.pread(big, len(part), 257 << 20) == part and os.pwrite(big, part, 0) == len(part))
`

// TestOpenFiles: a checkpoint says what it copied. If so much is open that each restore
// would have to copy it again, it keeps no memory and says why, except with
// --memory=always. The program goes on with its open files.
func TestOpenFiles(t *testing.T) {
	h := e2e.NewHost(t)
	h.Serve(nil)
	h.Run("", "cove", "create", "paint", "--idle", "0")
	cmd := h.Client().Sprite("paint").CommandContext(t.Context(), "python3", "-c", burden)
	in, inErr := cmd.StdinPipe()
	out, outErr := cmd.StdoutPipe()
	if err := errors.Join(inErr, outErr, cmd.Start()); err != nil {
		t.Fatal(err)
	}
	said := bufio.NewScanner(out)
	whole := func() {
		t.Helper()
		if !said.Scan() || said.Text() != "whole" {
			t.Fatalf("it says %q, %v", said.Text(), said.Err())
		}
	}
	whole()
	checkpoint := func(memory string) sprites.CheckpointDetails {
		t.Helper()
		var c sprites.Checkpoint
		if err := json.Unmarshal([]byte(h.Run("", "cove", "checkpoint", "create", "-s", "paint", memory, "--json")), &c); err != nil || c.Cove == nil {
			t.Fatalf("got %+v, %v", c, err)
		}
		fmt.Fprintln(in, "look")
		whole()
		t.Logf("%s: pause %.0f ms, %d bytes copied", memory, c.Cove.PauseMilliseconds, c.Cove.CopiedBytes)
		return *c.Cove
	}
	const size, near = 258 << 20, 1 << 20 // others may write, too
	copied := func(c sprites.CheckpointDetails) bool { return size <= c.CopiedBytes && c.CopiedBytes < size+near }

	got := checkpoint("--memory=auto")
	want := []sprites.OpenFile{{Path: "/home/sprite/big", Bytes: size}}
	if o := got.OpenFiles; !copied(got) || got.MemoryBytes > 0 || !strings.Contains(got.MemoryNotKept, "258 MiB of files are open for writing") ||
		o == nil || !slices.Equal(o.Writable[:1], want) || o.Unlinked != nil {
		t.Errorf("with a large file that is written: %+v, %+v", got, got.OpenFiles)
	}
	fmt.Fprintln(in, "delete")
	whole()
	text, _ := h.Try("", "cove", "checkpoint", "create", "-s", "paint", "--memory")
	for _, part := range []string{"65 MiB of deleted files are still open", "/home/sprite/gone, 65.0 MiB, deleted", "--memory=always"} {
		if !strings.Contains(text, part) {
			t.Errorf("it says nothing of %q: %s", part, text)
		}
	}
	if kept, _ := memories(h); len(kept) > 0 {
		t.Errorf("kept: %v", kept)
	}
	got = checkpoint("--memory=always")
	want = []sprites.OpenFile{{Path: "/home/sprite/gone", Bytes: 65 << 20}}
	if o := got.OpenFiles; got.CopiedBytes > near || got.MemoryBytes == 0 || got.MemoryNotKept != "" || o == nil || o.Writable != nil || !slices.Equal(o.Unlinked, want) {
		t.Errorf("with a deleted one, and always: %+v, %+v", got, got.OpenFiles)
	}
	if err := errors.Join(in.Close(), cmd.Wait()); err != nil {
		t.Error(err)
	}
}
