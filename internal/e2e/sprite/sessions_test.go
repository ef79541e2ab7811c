package sprite

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"syscall"
	"testing"

	"github.com/cove-dev/cove/internal/test/e2e"
	"github.com/cove-dev/cove/sprites"
)

// TestTerminalsSurvive kills a server with -9 while 20 terminals are attached. The next
// server has all of them: their output so far, and their programs.
func TestTerminalsSurvive(t *testing.T) {
	const n = 20
	h := e2e.NewHost(t)
	h.Serve(nil)
	h.Run("", "cove", "create", "paint")
	sprite := h.Client().Sprite("paint")
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
	e2e.SignalAll(t, syscall.SIGKILL, h.PID())
	h.Run("", "cove", "server", "start") // starts the next
	sprite = h.Client().Sprite("paint")
	list, err := sprite.Sessions(t.Context())
	if err != nil || len(list) != n {
		t.Fatalf("there are %d sessions, %v", len(list), err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), e2e.LastResort)
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
	h.Run("", "cove", "rm", "paint")
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

// TestExecSurvives takes the server away while callers wait for commands. The output
// arrives whole and once, with the command's own exit code. With -i, the caller gets exit
// code 75 and the command to attach again.
func TestExecSurvives(t *testing.T) {
	h := e2e.NewHost(t)
	h.Serve(nil)
	h.Run("", "cove", "create", "paint")
	const script = `seq 20000; echo early >&2; touch /tmp/ready.$1
		until test -e /tmp/go.$1; do sleep 0.1; done; seq 20001 $2; echo late >&2; exit 7`
	for i, test := range []struct {
		sig  syscall.Signal
		args []string
		to   string // the last number
		code int
		says string
	}{
		{syscall.SIGKILL, nil, "40000", 7, "late\n"},
		{syscall.SIGTERM, nil, "40000", 7, "late\n"},
		{syscall.SIGKILL, []string{"-t"}, "40000", 7, ""},
		{syscall.SIGKILL, []string{"-i"}, "40000", 75, "cove session attach "}, // input can't be had twice
	} {
		name := fmt.Sprint(i)
		args := append(append([]string{"exec", "-s", "paint"}, test.args...), "sh", "-c", script, "sh", name, test.to)
		cmd := h.Command("", "cove", args...)
		var out, errs bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &errs
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		e2e.Await(t, "the command", func() bool {
			_, code := h.Try("", "cove", "exec", "-s", "paint", "test", "-e", "/tmp/ready."+name)
			return code == 0
		})
		pid := h.PID()
		e2e.SignalAll(t, test.sig, pid)
		if err := e2e.AwaitEnd(pid); err != nil {
			t.Fatal(err)
		}
		h.Run("", "cove", "exec", "-s", "paint", "touch", "/tmp/go."+name) // starts the next server
		_ = cmd.Wait()                                                     // the code is looked at
		if code := cmd.ProcessState.ExitCode(); code != test.code || !strings.Contains(errs.String(), test.says) || strings.Count(errs.String(), "early\n") > 1 {
			t.Errorf("%v %v: code %d, want %d; stderr %q, want %q", test.sig, test.args, code, test.code, errs.String(), test.says)
		}
		var want strings.Builder
		for n := 1; n <= 40000; n++ {
			fmt.Fprintln(&want, n)
		}
		got := strings.ReplaceAll(out.String(), "\r\n", "\n")
		if test.args != nil {
			got = strings.NewReplacer("early\n", "", "late\n", "").Replace(got)
		}
		if test.code == 7 && got != want.String() {
			t.Errorf("%v %v: got %d bytes, want %d", test.sig, test.args, len(got), want.Len())
		}
	}
	h.Run("", "cove", "rm", "--force", "paint")
}
