package server

import (
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cove-dev/cove/internal/lib/fault"
	"github.com/cove-dev/cove/internal/test/e2e"
)

// TestRestoredWhileExec: a command that a restore ends says so. If the server is killed while a
// restore ends the sandbox, the first command afterwards waits for that, and works.
func TestRestoredWhileExec(t *testing.T) {
	h := e2e.NewHost(t)
	h.Run("", "cove", "create", "paint")
	h.Run("", "cove", "checkpoint", "create", "-s", "paint")
	cmd := h.Command("", "cove", "exec", "-s", "paint", "sh", "-c", "echo begun; sleep 6000")
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.StdoutPipe()
	if err := errors.Join(err, cmd.Start()); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(out, make([]byte, len("begun\n"))); err != nil {
		t.Fatal(err)
	}
	h.Run("", "cove", "restore", "v1", "-s", "paint")
	if err := cmd.Wait(); err == nil || !strings.Contains(errs.String(), "brought back to a checkpoint") || strings.Contains(errs.String(), "removed") {
		t.Errorf("%v, %q", err, errs.String())
	}

	for deadline := time.Now().Add(e2e.LastResort); !killedInRestore(t, h); {
		if time.Now().After(deadline) {
			t.Fatal("no program of the sandbox is told of its end")
		}
	}
}

// killedInRestore kills the server while a restore ends the sandbox, and then runs a command. It
// reports false if the programs stood still when they were told, so that they were ended by force.
func killedInRestore(t *testing.T, h *e2e.Host) (told bool) {
	t.Helper()
	cmd := h.Command("", "cove", "exec", "-s", "paint", "sh", "-c", `trap "echo told" TERM; echo begun; while :; do sleep 1; done`)
	out, err := cmd.StdoutPipe()
	if err := errors.Join(err, cmd.Start()); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(out, make([]byte, len("begun\n"))); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	_, restored := h.Background("", "cove", "restore", "v1", "-s", "paint")
	_, err = io.ReadFull(out, make([]byte, len("told\n")))
	const grace = 10 * time.Second // of a stop
	if told = err == nil; !told && time.Since(began) < grace {
		t.Fatalf("the command ended before its time: %v", err)
	}
	if told {
		e2e.SignalAll(t, syscall.SIGKILL, h.PID(), cmd.Process.Pid)
	}
	_, _ = restored()
	_ = cmd.Wait()
	h.Run("", "cove", "exec", "-s", "paint", "true")
	return told
}

// unseenCalls are calls that a server completes once they have begun. Each has a point in
// its middle, the command that cove then suggests, and a text that the command prints
// once the call is done.
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

// TestUnseen: the server goes away in the middle of a call, or the person does not wait
// for its end. The command line says that the call may have been done, and suggests a
// command to see it. That command shows the result (not checked for a restore whose
// server was killed, which may end halfway).
func TestUnseen(t *testing.T) {
	for _, c := range unseenCalls {
		for _, who := range []string{"server", "person"} {
			t.Run(who+" at "+string(c.point), func(t *testing.T) {
				h := e2e.NewHost(t)
				reached := filepath.Join(filepath.Dir(h.Home), "reached")
				h.Serve([]string{fault.Variable + "=" + string(c.point) + "=" + reached})
				server := h.PID()
				f := e2e.FaultCase{Point: c.point, Victim: "server"}
				prepare(f, h, "paint")
				args := strings.Fields(strings.ReplaceAll(strings.Join(faultOps[op(f)], " "), "NAME", "paint"))
				pid, ended := h.Background("", "cove", args...)
				code, says := 75, "the server went away in the middle"
				if who == "server" {
					strike(f, h, reached, server)
				} else {
					code, says = 130, "interrupted; the server completes what it has begun"
					e2e.Reached(t, reached) // the server stands still there
					e2e.SignalAll(t, syscall.SIGINT, pid)
				}
				out, err := ended()
				if who == "person" {
					e2e.SignalAll(t, syscall.SIGCONT, server)
				}
				exit, _ := errors.AsType[*exec.ExitError](err)
				hint := "hint: see what became of it: cove " + strings.Join(c.see, " ") + "\n"
				if exit == nil || exit.ExitCode() != code || !strings.Contains(out, says) || !strings.Contains(out, hint) || strings.Contains(out, "EOF") {
					t.Errorf("%v, %s; want %d, %s, %s", err, out, code, says, hint)
				}
				if who == "server" {
					h.Run("", "cove", "server", "start")
				}
				shown := ""
				done := func() bool {
					shown = h.Run("", "cove", c.see...)
					return strings.Contains(shown, c.shows)
				}
				switch {
				case who == "person":
					e2e.Await(t, "what was begun to be done", done)
				case c.point != fault.RestoreSealed && !done(): // a killed one may end halfway
					t.Errorf("it shows %s", shown)
				}
			})
		}
	}
}

// TestUnseenSandbox: two containers have one data folder in turn. In the first one the server
// is stopped, and the shim killed. So a sandbox runs whose processes the second container does
// not see. A server there starts nothing over its disk, and says where it runs. Once the first
// container has ended, the sprite begins anew, and its file is whole.
func TestUnseenSandbox(t *testing.T) {
	h := e2e.NewRootHost(t)
	name, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	first, inFirst := newContainer(h, "sleep 100000 & wait")
	in := func(container []string, args ...string) []string {
		return append(append([]string{}, container...), args...)
	}
	h.Run("", "nsenter", in(inFirst, "cove", "create", "paint")...)
	h.Run("", "nsenter", in(inFirst, "cove", "exec", "-s", "paint", "--detach", "--", "sh", "-c", "i=0; while :; do echo $i; i=$((i+1)); sleep 0.05; done >>lines")...)
	h.Run("", "nsenter", in(inFirst, "cove", "exec", "-s", "paint", "--", "sh", "-c", "until test -s lines; do sleep 0.1; done")...)
	h.Run("", "nsenter", in(inFirst, "cove", "server", "stop")...)
	shims := h.Shims()
	e2e.SignalAll(t, syscall.SIGKILL, shims...)
	for _, pid := range shims {
		if err := e2e.AwaitEnd(pid); err != nil {
			t.Fatal(err)
		}
	}
	sandboxes := func() (pids []string) {
		commands, _ := filepath.Glob("/proc/[0-9]*/cmdline") // the pattern is right
		for _, command := range commands {
			text, err := os.ReadFile(command)
			if err == nil && bytes.HasPrefix(text, []byte("runsc-sandbox")) && bytes.Contains(text, []byte(h.Data)) {
				pids = append(pids, filepath.Base(filepath.Dir(command)))
			}
		}
		return pids
	}
	before := sandboxes()
	if len(before) != 1 {
		t.Fatalf("sandboxes: %q", before)
	}

	second, inSecond := newContainer(h, "sleep 100000 & wait")
	where := "its last sandbox still runs in another container or machine, named " + name
	for _, args := range [][]string{
		{"exec", "-s", "paint", "true"}, {"checkpoint", "create", "-s", "paint"}, {"restart", "paint"}, {"fork", "paint", "copy"}, {"rm", "--force", "paint"}, {"exec", "-s", "paint", "true"},
	} {
		out, code := h.Try("", "nsenter", in(inSecond, append([]string{"cove"}, args...)...)...)
		want := 1
		if args[0] == "exec" {
			want = 125 // not the command, cove failed
		}
		if code != want || !strings.Contains(out, where) || !strings.Contains(out, "hint: end it there: stop that container") {
			t.Errorf("%q in the second container: %d, %s", args, code, out)
		}
	}
	if out := h.Run("", "nsenter", in(inSecond, "cove", "info", "paint")...); !strings.Contains(out, where) {
		t.Errorf("info: %s", out)
	}
	if out, _ := h.Try("", "nsenter", in(inSecond, "cove", "doctor")...); !strings.Contains(out, "sandboxes of this data folder (1) run in another container or machine ("+name+")") {
		t.Errorf("doctor: %s", out)
	}
	if now := sandboxes(); !slices.Equal(now, before) {
		t.Errorf("sandboxes: %q, then %q", before, now)
	}

	h.Run("", "kill", "-KILL", inFirst[1])
	_ = first.Wait() // unshare's code is its child's
	out, code := h.Try("", "nsenter", in(inSecond, "cove", "exec", "-s", "paint", "--", "awk", "$1 != NR-1 { exit 3 }", "lines")...)
	if code != 0 || !strings.Contains(out, "the sprite began anew: "+where) {
		t.Errorf("after the first container's end: %d, %s", code, out)
	}
	h.Run("", "nsenter", in(inSecond, "cove", "rm", "--force", "paint")...)
	h.Run("", "nsenter", in(inSecond, "cove", "server", "stop")...)
	h.Run("", "kill", "-KILL", inSecond[1])
	_ = second.Wait() // unshare's code is its child's
}
