package tools

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
	"unicode/utf8"
)

func bash(s *served, command string) BashResult {
	s.t.Helper()
	return call1[BashResult](s, "Bash", BashInput{Command: command})
}

// alive reports whether a process, whose number a file holds, runs.
func (s *served) alive(name string) bool {
	s.t.Helper()
	pid, err := strconv.Atoi(strings.TrimSpace(s.get(name)))
	if err != nil {
		s.t.Fatal(err)
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && syscall.Kill(pid, 0) == nil && !strings.Contains(string(stat), ") Z ")
}

// TestBash: F8.
func TestBash(t *testing.T) {
	s := serve(t, Full)
	s.put("sub/x", "")
	r := bash(s, "echo out; echo err >&2; exit 3")
	if r.Stdout.Text != "out\n" || r.Stderr.Text != "err\n" || r.ExitCode == nil || *r.ExitCode != 3 || r.Signal != "" || r.Left || r.BackgroundID != "" {
		t.Errorf("got %+v", r)
	}
	if r := bash(s, "kill -KILL $$"); *r.ExitCode != 137 || r.Signal != "KILL" {
		t.Errorf("killed by itself: %+v", r)
	}
	if r := bash(s, "cat; pwd; echo $0"); *r.ExitCode != 0 || !strings.HasPrefix(r.Stdout.Text, s.dir+"\n") {
		t.Errorf("input is not empty, or the folder another: %+v", r)
	}
	r = call1[BashResult](s, "Bash", BashInput{Command: "pwd; echo $A; test -e /proc/$$/fd/3 || echo no report", Cwd: "sub", Env: map[string]string{"A": "$(id) 'x'"}})
	if r.Stdout.Text != s.path("sub")+"\n$(id) 'x'\nno report\n" {
		t.Errorf("folder, variable and open files: got %q", r.Stdout.Text)
	}
	if r := bash(s, "nosuchprogram"); *r.ExitCode != 127 || r.Stderr.Text == "" {
		t.Errorf("got %+v", r)
	}
	if r := bash(s, `printf 'caf\351\n'`); r.Stdout.Text != "caf\uFFFD\n" || r.Stdout.Bytes != 5 {
		t.Errorf("got %+v", r)
	}
	s.fails(CodeNotFound, "Bash", BashInput{Command: "true", Cwd: "none"})
	s.fails(CodeNotDirectory, "Bash", BashInput{Command: "true", Cwd: "sub/x"})
	s.fails(CodeTooLarge, "Bash", BashInput{Command: strings.Repeat("x", 1<<20)})
	s.fails(CodeBadInput, "Bash", BashInput{Command: "true", Env: map[string]string{"A=B": "c"}})
	s.fails(CodeBadInput, "Bash", BashInput{Command: "true", Kill: "1"})
	s.fails(CodeBadInput, "Bash", BashInput{})
	s.fails(CodeNotFound, "Bash", BashInput{Poll: "17"})
	text, err := s.try("Bash", BashInput{Command: "echo a; echo b >&2; false"})
	if err != nil || !strings.HasPrefix(text.Text(), "a\n[stderr]\nb\n[exit code 1 after ") {
		t.Errorf("got %q %v", text.Text(), err)
	}
}

// TestBashOutput: the beginning and the end of much output, cut between characters,
// and a file with all of it.
func TestBashOutput(t *testing.T) {
	s := serve(t, Full)
	for pad := range 4 {
		want := strings.Repeat("x", pad) + strings.Repeat("🦊", 20_000) + "end"
		s.put("big", want)
		r := bash(s, "cat big; echo small >&2")
		o := r.Stdout
		if !utf8.ValidString(o.Text) || strings.ContainsRune(o.Text, '\uFFFD') || len(o.Text) > maxOutput+200 || o.Bytes != int64(len(want)) || !strings.HasSuffix(o.Text, "end") ||
			!strings.HasPrefix(o.Text, strings.Repeat("x", pad)+"🦊") || o.Omitted < o.Bytes-maxOutput || !strings.Contains(o.Text, o.Log) {
			t.Errorf("pad %d: %d bytes of text, %d omitted of %d", pad, len(o.Text), o.Omitted, o.Bytes)
		}
		if all, err := os.ReadFile(o.Log); err != nil || string(all) != want {
			t.Errorf("the log has %d bytes, want %d: %v", len(all), len(want), err)
		}
		if r.Stderr.Text != "small\n" || r.Stderr.Log != "" {
			t.Errorf("error output: %+v", r.Stderr)
		}
	}
	if r := bash(s, "head -c 30000 /dev/zero | tr '\\0' x"); r.Stdout.Omitted != 0 || len(r.Stdout.Text) != maxOutput || r.Stdout.Log != "" {
		t.Errorf("at the bound: %d bytes, %d omitted", len(r.Stdout.Text), r.Stdout.Omitted)
	}
	logs, err := filepath.Glob(filepath.Join(logDir(), "*"))
	if err != nil || len(logs) != 4 {
		t.Errorf("%d logs, %v", len(logs), err)
	}
	if err := os.Chtimes(logs[0], time.Time{}, time.Now().Add(-keepLogs-time.Hour)); err != nil {
		t.Fatal(err)
	}
	sweepLogs(logDir(), time.Now())
	if _, err := os.Stat(logs[0]); err == nil {
		t.Error("an old log stays")
	}
	if _, err := os.Stat(logs[1]); err != nil {
		t.Error(err)
	}
}

// runaway starts a process that has left its group, its session and its parent, and
// ignores TERM; its number is in the file pid.
const runaway = `setsid sh -c 'trap "" TERM; (trap "" TERM; echo $$ >pid.new; exec sh -c "echo \$\$ >pid; while :; do sleep 0.05; done") &' </dev/null >/dev/null 2>&1; while ! test -s pid; do sleep 0.01; done; `

// TestBashTimeout: E5, E6: nothing of the tree is left.
func TestBashTimeout(t *testing.T) {
	s := serve(t, Full)
	for limit := int64(700); ; limit *= 6 {
		_ = os.Remove(s.path("pid")) // of the last try
		r := call1[BashResult](s, "Bash", BashInput{Command: runaway + "echo begun; trap '' TERM; while :; do sleep 0.05; done", TimeoutMS: limit})
		begun := r.Stdout.Text != ""
		// On a slow machine, the time may be over before the process has written its number.
		if number, _ := os.ReadFile(s.path("pid")); (begun || len(number) > 0) && s.alive("pid") {
			t.Error("a process is left")
		}
		if !begun && limit < 120_000 { // too slow a machine for that
			continue
		}
		if !r.TimedOut || r.Stdout.Text != "begun\n" || r.ExitCode == nil || r.Left {
			t.Errorf("got %+v", r)
		}
		break
	}
}

// TestBashCancel: nothing of a cancelled call is left, and other calls go on.
func TestBashCancel(t *testing.T) {
	s := serve(t, Full)
	id, c := s.send("Bash", BashInput{Command: runaway + "echo >begun; sleep 6000"})
	_, other := s.send("Bash", BashInput{Command: "while ! test -e done; do sleep 0.05; done; echo fine"})
	for deadline := time.Now().Add(lastResort); ; <-time.After(10 * time.Millisecond) {
		if _, err := os.Stat(s.path("begun")); err == nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("it does not begin")
		}
	}
	s.write(request{ID: id, Cancel: true})
	if a := <-c; a.Error == nil || a.Error.Code != CodeCancelled || s.alive("pid") {
		t.Errorf("got %+v; alive: %v", a.Error, s.alive("pid"))
	}
	s.put("done", "")
	if a := <-other; a.Error != nil || !strings.Contains(string(a.Result), "fine") {
		t.Errorf("the other call: %+v", a)
	}
}

// TestBashBackground: poll says what is new, kill ends all of it; what a command
// leaves running can be ended, too; the session's end ends everything.
func TestBashBackground(t *testing.T) {
	s := serve(t, Full)
	start := call1[BashResult](s, "Bash", BashInput{Command: "echo one; while ! test -e go; do sleep 0.02; done; echo two; exit 4", RunInBackground: true})
	if start.BackgroundID == "" || start.ExitCode != nil {
		t.Fatalf("got %+v", start)
	}
	var got string
	for deadline := time.Now().Add(lastResort); got != "one\n" && time.Now().Before(deadline); <-time.After(10 * time.Millisecond) {
		r := call1[BashResult](s, "Bash", BashInput{Poll: start.BackgroundID})
		if got += r.Stdout.Text; r.ExitCode != nil {
			t.Fatalf("got %+v", r)
		}
	}
	s.put("go", "")
	r := call1[BashResult](s, "Bash", BashInput{Poll: start.BackgroundID, WaitMS: 600_000})
	if r.Stdout.Text != "two\n" || r.ExitCode == nil || *r.ExitCode != 4 || r.Left {
		t.Errorf("got %+v", r)
	}
	if log, err := os.ReadFile(r.Stdout.Log); err != nil || string(log) != "one\ntwo\n" {
		t.Errorf("the log has %q, %v", log, err)
	}

	left := bash(s, runaway+"echo ready")
	if !left.Left || left.BackgroundID == "" || *left.ExitCode != 0 || left.Stdout.Text != "ready\n" || !s.alive("pid") {
		t.Fatalf("got %+v", left)
	}
	if r := call1[BashResult](s, "Bash", BashInput{Kill: left.BackgroundID}); !r.Killed || r.Left || s.alive("pid") {
		t.Errorf("got %+v, alive: %v", r, s.alive("pid"))
	}
	if r := call1[BashResult](s, "Bash", BashInput{Command: "sleep 60", RunInBackground: true, TimeoutMS: 200}); true {
		if r = call1[BashResult](s, "Bash", BashInput{Poll: r.BackgroundID, WaitMS: 600_000}); r.ExitCode == nil || *r.ExitCode != 143 || r.Survivors {
			t.Errorf("a background command's own timeout: %+v", r)
		}
	}

	_ = os.Remove(s.path("pid"))
	bash(s, runaway)
	if err := s.end(); err != nil || s.alive("pid") {
		t.Errorf("after the session's end: %v, alive: %v", err, s.alive("pid"))
	}
}

// TestBashKeeper: a command that kills its keeper is ended all the same.
func TestBashKeeper(t *testing.T) {
	s := serve(t, Full)
	s.fails(CodeFailed, "Bash", BashInput{Command: runaway + "kill -KILL $PPID; sleep 60"})
	if s.alive("pid") {
		t.Error("a process is left")
	}
	if r := bash(s, "echo on"); r.Stdout.Text != "on\n" {
		t.Errorf("the next: %+v", r)
	}
}
