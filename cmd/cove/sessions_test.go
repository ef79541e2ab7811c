package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"syscall"
	"testing"
	"time"

	"github.com/cove-dev/cove/sprites"
)

// TestTerminalsSurvive kills a server, with -9, to which 20 terminals are
// attached. The next server has all of them: what they showed, and what runs in
// them.
func TestTerminalsSurvive(t *testing.T) {
	const n = 20
	h := newHost(t)
	h.serve(nil)
	h.run("", "cove", "create", "paint")
	sprite := h.client().Sprite("paint")
	ids := make([]string, n)
	for i := range ids {
		cmd := sprite.Command("sh", "-c", fmt.Sprintf("stty -echo; echo ready %d $$; while read x; do echo $x from $$; done", i))
		cmd.TTY = new(sprites.Terminal)
		out, err := cmd.StdoutPipe()
		if err := errors.Join(err, cmd.Start()); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(out, make([]byte, len("ready"))); err != nil {
			t.Fatal(err)
		}
		ids[i] = cmd.SessionID()
		t.Cleanup(func() { _ = cmd.Wait() }) // cut by the kill
	}
	signalAll(t, syscall.SIGKILL, h.pid())
	h.run("", "cove", "list") // starts the next
	sprite = h.client().Sprite("paint")
	list, err := sprite.Sessions(t.Context())
	if err != nil || len(list) != n {
		t.Fatalf("there are %d sessions, %v", len(list), err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for i, id := range ids {
		cmd := sprite.Attach(ctx, id)
		out, err := cmd.StdoutPipe()
		in, err2 := cmd.StdinPipe()
		if err := errors.Join(err, err2, cmd.Start()); err != nil {
			t.Fatalf("attach %d: %v", i, err)
		}
		if _, err := io.WriteString(in, "hello\n"); err != nil {
			t.Fatal(err)
		}
		var who, pid, answers int
		text := readUntil(t, out, "from ")
		if _, err := fmt.Sscanf(text, "ready %d %d\r\nhello from ", &who, &pid); err != nil || who != i {
			t.Errorf("terminal %d showed %q: %v", i, text, err)
		}
		if _, err := fmt.Sscan(readUntil(t, out, "\r\n"), &answers); err != nil || answers != pid {
			t.Errorf("terminal %d: process %d was there, %d answers: %v", i, pid, answers, err)
		}
		if err := cmd.Detach(); err != nil {
			t.Error(err)
		}
	}
	h.run("", "cove", "rm", "paint")
}

// readUntil reads until what was read ends in want.
func readUntil(t *testing.T, r io.Reader, want string) string {
	t.Helper()
	var got bytes.Buffer
	for !bytes.HasSuffix(got.Bytes(), []byte(want)) {
		if _, err := io.CopyN(&got, r, 1); err != nil {
			t.Fatalf("after %q: %v", got.String(), err)
		}
	}
	return got.String()
}
