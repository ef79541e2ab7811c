package main

import (
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cove-dev/cove/internal/lib/fault"
)

// TestRestoredWhileExec: a command that a restore ends is told so.
func TestRestoredWhileExec(t *testing.T) {
	h := newHost(t)
	h.run("", "cove", "create", "paint")
	h.run("", "cove", "checkpoint", "create", "-s", "paint")
	cmd := h.command("", "cove", "exec", "-s", "paint", "sh", "-c", "echo begun; sleep 600")
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.StdoutPipe()
	if err := errors.Join(err, cmd.Start()); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(out, make([]byte, len("begun\n"))); err != nil {
		t.Fatal(err)
	}
	h.run("", "cove", "restore", "v1", "-s", "paint")
	if err := cmd.Wait(); err == nil || !strings.Contains(errs.String(), "brought back to a checkpoint") || strings.Contains(errs.String(), "removed") {
		t.Errorf("%v, %q", err, errs.String())
	}
}

// unseenCalls are calls that a server brings to their end once they have begun: at a
// point in the middle of each, what the command line then says to type, and what that
// shows once it was done.
var unseenCalls = []struct {
	point fault.Point
	see   []string
	shows string
}{
	{fault.SealMoved, []string{"checkpoint", "list", "-s", "paint"}, "v1"},
	{fault.RestoreSealed, []string{"checkpoint", "list", "--all", "-s", "paint"}, "pre-restore"},
	{fault.ForkStored, []string{"list"}, "copy"},
	{fault.SleepStored, []string{"info", "paint"}, "warm"},
}

// TestUnseen: where the server goes away in the middle of a call, or the person does
// not wait for its end, the command line says that it may have been done, and what to
// type to see it; and that shows it.
func TestUnseen(t *testing.T) {
	for _, c := range unseenCalls {
		for _, who := range []string{"server", "person"} {
			t.Run(who+" at "+string(c.point), func(t *testing.T) {
				h := newHost(t)
				reached := filepath.Join(filepath.Dir(h.home), "reached")
				h.serve([]string{fault.Variable + "=" + string(c.point) + "=" + reached})
				server := h.pid()
				f := faultCase{c.point, "server"}
				f.prepare(h, "paint")
				args := strings.Fields(strings.ReplaceAll(strings.Join(faultOps[f.op()], " "), "NAME", "paint"))
				pid, ended := h.background("", "cove", args...)
				code, says := 75, "the server went away in the middle"
				if who == "server" {
					f.strike(h, reached, server)
				} else {
					code, says = 130, "interrupted; what the server had begun"
					await(t, "the point", 40*time.Second, func() bool { // the server stands still there
						text, err := os.ReadFile(reached)
						return err == nil && strings.HasSuffix(string(text), "\n")
					})
					signalAll(t, syscall.SIGINT, pid)
				}
				out, err := ended()
				if who == "person" {
					signalAll(t, syscall.SIGCONT, server)
				}
				exit, _ := errors.AsType[*exec.ExitError](err)
				hint := "hint: see what became of it: cove " + strings.Join(c.see, " ") + "\n"
				if exit == nil || exit.ExitCode() != code || !strings.Contains(out, says) || !strings.Contains(out, hint) || strings.Contains(out, "EOF") {
					t.Errorf("%v, %s; want %d, %s, %s", err, out, code, says, hint)
				}
				if who == "server" {
					h.run("", "cove", "server", "start")
				}
				shown := ""
				done := func() bool {
					shown = h.run("", "cove", c.see...)
					return strings.Contains(shown, c.shows)
				}
				switch {
				case who == "person":
					await(t, "what was begun to be done", time.Minute, done)
				case c.point != fault.RestoreSealed && !done(): // a killed one may end halfway
					t.Errorf("it shows %s", shown)
				}
			})
		}
	}
}
