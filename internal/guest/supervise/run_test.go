package supervise_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/creack/pty"
	"github.com/google/go-cmp/cmp"

	"github.com/cove-dev/cove"
)

func TestRun(t *testing.T) {
	j := newJob(t, `
		echo hello
		echo oops >&2
		echo '{"k":1}' >&3
		git branch --show-current
		echo one >one; git add one; git commit -q -m one
		echo two >two; git add two; git commit -q -m two
		echo changed >>README
		echo three >three
		echo "$GREETING" >four; git add four`)
	j.spec.Setup = [][]string{{"/bin/sh", "-c", `echo "set up with $GREETING"`}}
	j.spec.Env = []string{"GREETING=hi"}
	end := j.run()

	if end.Phase != "done" || end.Reason != "" || end.ExitCode != 0 || end.Commits != 2 || end.Head == "" || end.Leftover == "" {
		t.Fatalf("got %+v", end)
	}
	if got, want := j.subjects(end), []string{"one", "two"}; !slices.Equal(got, want) {
		t.Errorf("got commits %q, want %q", got, want)
	}
	heads := strings.Split(j.git("bundle", "list-heads", end.Bundle.Path), "\n")
	slices.Sort(heads)
	if want := []string{end.Head + " refs/cove/abc123/head", end.Leftover + " refs/cove/abc123/leftover"}; !slices.Equal(heads, sorted(want)) {
		t.Errorf("the bundle has %q, want %q", heads, want)
	}
	if got, want := j.git("log", "-1", "--format=%P|%an <%ae>|%cn|%s", end.Leftover), end.Head+"|Ada <ada@example.com>|Ada|Left uncommitted by the agent"; got != want {
		t.Errorf("the leftover is %q, want %q", got, want)
	}
	if got, want := j.git("diff", "--name-status", end.Head, end.Leftover), "M\tREADME\nA\tfour\nA\tthree"; got != want {
		t.Errorf("the leftover changes %q, want %q", got, want)
	}
	if got := j.git("show", end.Leftover+":four"); got != "hi" {
		t.Errorf("the agent's environment gave %q", got)
	}
	// A person who looks at the sprite finds it as the agent left it.
	if got, want := j.gitIn(j.spec.Workdir, "status", "--porcelain"), "M README\nA  four\n?? three"; got != want {
		t.Errorf("the status is %q, want %q", got, want)
	}
	if got := j.gitIn(j.spec.Workdir, "rev-parse", "topic", "HEAD"); got != end.Head+"\n"+end.Head {
		t.Errorf("topic and HEAD are %q", got)
	}
	if got := j.read(j.file("output.log")); !strings.Contains(got, "hello\n") || !strings.Contains(got, "oops\n") || strings.Contains(got, `"k"`) {
		t.Errorf("output.log has %q", got)
	}
}

func sorted(s []string) []string { slices.Sort(s); return s }

func TestLog(t *testing.T) {
	j := newJob(t, `
		echo hello; echo more
		echo oops >&2
		echo '{"k":1}' >&3
		printf unfinished >&2
		exit 3`)
	end := j.run()
	streams := map[string][]string{}
	var rest []string
	for _, ev := range j.events() {
		switch ev.Type {
		case "output", "event":
			streams[ev.Stream] = append(streams[ev.Stream], ev.Text)
		case "state":
			rest = append(rest, "state "+string(ev.State))
		case "exit":
			if ev.ExitCode == nil || *ev.ExitCode != 3 {
				t.Errorf("got %+v", ev)
			}
			rest = append(rest, ev.Type)
		case "end":
			if ev.Result == nil || *ev.Result != end {
				t.Errorf("the log ends with %+v, and end.json has %+v", ev.Result, end)
			}
			rest = append(rest, ev.Type)
		case "step": // TestSteps looks at these
		default:
			rest = append(rest, ev.Type)
		}
	}
	want := map[string][]string{"stdout": {"hello", "more"}, "stderr": {"oops", "unfinished"}, "": {`{"k":1}`}}
	if diff := cmp.Diff(want, streams); diff != "" {
		t.Error(diff)
	}
	if want := []string{"supervisor", "state preparing", "state running", "exit", "collected", "end"}; !slices.Equal(rest, want) {
		t.Errorf("got %q, want %q", rest, want)
	}
	if end.Phase != "done" || end.ExitCode != 3 || end.Reason != "" {
		t.Errorf("got %+v", end)
	}
}

func TestNothingToCollect(t *testing.T) {
	j := newJob(t, "true")
	end := j.run()
	if want := (cove.JobEnd{Phase: "done"}); end != want {
		t.Errorf("got %+v, want %+v", end, want)
	}
	if j.exists(j.file("out.bundle")) {
		t.Error("there is a bundle")
	}
}

func TestOnlyLeftover(t *testing.T) {
	j := newJob(t, "echo x >x")
	end := j.run()
	if end.Head != "" || end.Commits != 0 || end.Leftover == "" {
		t.Fatalf("got %+v", end)
	}
	j.fetch(end)
	if got := j.git("rev-parse", end.Leftover+"^"); got != j.spec.Base {
		t.Errorf("the leftover is on %s, want %s", got, j.spec.Base)
	}
}

// An agent's hooks, and its changes to the index, do not affect the collecting.
func TestCollectDespiteAgent(t *testing.T) {
	j := newJob(t, `
		echo x >x; git add x; git commit -q -m x
		echo y >y
		printf '#!/bin/sh\ntouch "%s"\nexit 1\n' "$EVIL" >.git/hooks/reference-transaction
		chmod +x .git/hooks/reference-transaction
		touch .git/index.lock .git/HEAD.lock`)
	evil := filepath.Join(t.TempDir(), "evil")
	j.spec.Env = []string{"EVIL=" + evil}
	end := j.run()
	if end.Phase != "done" || end.Commits != 1 || end.Leftover == "" {
		t.Errorf("got %+v", end)
	}
	if j.exists(evil) {
		t.Error("the agent's hook ran")
	}
}

// If git can't take some files, the commits and the other uncommitted files are still
// collected.
func TestCollectsTheRest(t *testing.T) {
	const work = "echo x >x; git add x; git commit -q -m x; echo y >y; "
	for name, test := range map[string]struct{ script, missed, left string }{
		"a repository without a commit": {"mkdir app; cd app; git init -q; echo z >z", "'app/' does not have a commit", "y"},
		"a submodule that git can't read": {`
			git init -q mod; git -C mod commit -q --allow-empty -m first; git -c advice.addEmbeddedRepo=false add mod; git commit -q -m x
			cd mod; git update-index --add --cacheinfo 160000,$(git rev-parse HEAD),in; mkdir in; git init -q in; git -C in commit -q --allow-empty -m in
			printf '[' >.gitmodules`, "in submodule mod", ""},
	} {
		t.Run(name, func(t *testing.T) {
			j := newJob(t, work+test.script)
			j.spec.Env = []string{"GIT_CONFIG_GLOBAL=" + os.DevNull, "GIT_AUTHOR_NAME=A", "GIT_AUTHOR_EMAIL=a@example.com", "GIT_COMMITTER_NAME=A", "GIT_COMMITTER_EMAIL=a@example.com"}
			end := j.run()
			if end.Phase != "collect" || end.Commits == 0 || !strings.Contains(end.Uncollected, test.missed) || (end.Leftover == "") != (test.left == "") {
				t.Fatalf("got %+v", end)
			}
			if got := j.subjects(end); got[0] != "x" {
				t.Errorf("got commits %q", got)
			}
			if test.left != "" {
				if got := j.git("diff", "--name-only", end.Head, end.Leftover); got != test.left {
					t.Errorf("left uncommitted: %q", got)
				}
			}
		})
	}
}

// A repository that the agent made, or put elsewhere, is not collected, except for its name.
// The job's end says so, unless a remote has the repository's commit.
func TestCollectsNoOtherRepository(t *testing.T) {
	j := newJob(t, `
		for name in new cloned; do git init -q $name; git -C $name commit -q --allow-empty -m $name; done
		git -C cloned update-ref refs/remotes/origin/main HEAD
		git -c advice.addEmbeddedRepo=false add new cloned; git commit -q -m x
		mkdir "left
over"; cd left*; git init -q; git commit -q --allow-empty -m left`)
	j.spec.Env = []string{"GIT_CONFIG_GLOBAL=" + os.DevNull, "GIT_AUTHOR_NAME=A", "GIT_AUTHOR_EMAIL=a@example.com", "GIT_COMMITTER_NAME=A", "GIT_COMMITTER_EMAIL=a@example.com"}
	end := j.run()
	if end.Phase != "done" || end.Commits != 1 || end.Leftover == "" || !strings.Contains(end.Uncollected, `["left\nover" "new"]`) && !strings.Contains(end.Uncollected, `["new" "left\nover"]`) {
		t.Errorf("got %+v", end)
	}
}

func TestCollectFails(t *testing.T) {
	j := newJob(t, "rm -rf .git; echo gitdir: /nowhere >.git")
	end := j.run()
	if end.Phase != "collect" || !strings.Contains(end.Reason, "git") || end.ExitCode != 0 {
		t.Errorf("got %+v", end)
	}
}

func TestPrepareFails(t *testing.T) {
	for _, test := range []struct {
		name   string
		change func(*job)
		reason string
	}{
		{"another bundle", func(j *job) { j.spec.BundleSHA256 = strings.Repeat("0", 64) }, "is not the one that was sent"},
		{"cut bundle", func(j *job) {
			j.write(j.spec.Bundle, j.read(j.spec.Bundle)[:100])
			j.spec.BundleSHA256 = j.digest(j.spec.Bundle)
		}, "git fetch"},
		{"no bundle", func(j *job) { j.spec.Bundle += "x" }, "no such file"},
		{"another commit", func(j *job) { j.spec.Base = strings.Repeat("1", 40) }, "the bundle holds commit"},
		{"setup", func(j *job) { j.spec.Setup = [][]string{{"/bin/sh", "-c", "echo it is missing; exit 5"}} }, "it is missing"},
		{"no agent", func(j *job) { j.spec.Argv = nil }, "names no program"},
	} {
		t.Run(test.name, func(t *testing.T) {
			ran := filepath.Join(t.TempDir(), "ran")
			j := newJob(t, `touch "$RAN"`)
			j.spec.Env = []string{"RAN=" + ran}
			test.change(j)
			end := j.run()
			if end.Phase != "prepare" || !strings.Contains(end.Reason, test.reason) || end.ExitCode == 0 || end.Bundle.Size != 0 {
				t.Errorf("got %+v, want %q", end, test.reason)
			}
			if j.exists(ran) {
				t.Error("the agent ran")
			}
			j.events()
		})
	}
}

// TestSetupLeavesProgram: a command of the preparation has succeeded, also if a program that it
// started holds its output for some seconds more.
func TestSetupLeavesProgram(t *testing.T) {
	j := newJob(t, "echo x >x; git add x; git commit -q -m x")
	j.spec.Setup = [][]string{{"/bin/sh", "-c", "sleep 4 & echo ready"}}
	if end := j.run(); end.ExitCode != 0 || end.Commits != 1 {
		t.Errorf("got %+v", end)
	}
}

// An agent's program is looked up in the PATH that it gets.
func TestAgentsPath(t *testing.T) {
	j := newJob(t, "")
	bin := t.TempDir()
	j.program(filepath.Join(bin, "my-agent"), `echo x >x; git add x; git commit -q -m "$0"`)
	j.spec.Argv, j.spec.Env = []string{"my-agent"}, []string{"PATH=/nowhere:.:" + bin + ":/usr/bin:/bin"}
	if end := j.run(); end.ExitCode != 0 || end.Commits != 1 {
		t.Errorf("got %+v", end)
	}
}

func TestAgentEnds(t *testing.T) {
	for _, test := range []struct {
		name   string
		argv   []string
		code   int
		reason string
	}{
		{"signal", []string{"/bin/sh", "-c", "kill -KILL $$"}, 137, "signal:KILL"},
		{"code", []string{"/bin/sh", "-c", "exit 42"}, 42, ""},
		{"not there", []string{"/nowhere/agent"}, 127, "the agent does not start"},
		{"not in PATH", []string{"no-such-agent"}, 127, "the agent does not start"},
		{"no program", []string{"/dev/null"}, 126, "the agent does not start"},
	} {
		t.Run(test.name, func(t *testing.T) {
			j := newJob(t, "")
			j.spec.Argv = test.argv
			end := j.run()
			if end.Phase != "done" || end.ExitCode != test.code || !strings.HasPrefix(end.Reason, test.reason) || (test.reason == "" && end.Reason != "") {
				t.Errorf("got %+v, want %d %q", end, test.code, test.reason)
			}
		})
	}
}

// A line that is longer than an event may be comes in parts. Together they are the line, and
// none ends inside a character.
func TestLongLine(t *testing.T) {
	j := newJob(t, `cat "$LINE"; echo short`)
	long := strings.Repeat("aé€😀", 3<<20/10) + "end"
	line := filepath.Join(t.TempDir(), "line")
	if err := os.WriteFile(line, []byte(long+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	j.spec.Env = []string{"LINE=" + line}
	j.run()
	var lines []string
	var text strings.Builder
	parts := 0
	for _, ev := range j.events() {
		if ev.Type != "output" {
			continue
		}
		if len(ev.Text) > 64<<10 {
			t.Errorf("an event has %d bytes of text", len(ev.Text))
		}
		text.WriteString(ev.Text)
		if ev.Cut {
			parts++
			continue
		}
		lines = append(lines, text.String())
		text.Reset()
	}
	if len(lines) != 2 || lines[0] != long || lines[1] != "short" {
		t.Errorf("got %d lines, the first of %d bytes, want %d", len(lines), len(lines[0]), len(long))
	}
	if parts < 3<<20/(64<<10)-1 {
		t.Errorf("the line came in %d parts", parts+1)
	}
	if got := j.read(j.file("output.log")); got != long+"\nshort\n" {
		t.Errorf("output.log has %d bytes, want %d", len(got), len(long)+7)
	}
}

// With a terminal, the agent has the supervisor's, and still reports its events.
func TestTerminal(t *testing.T) {
	j := newJob(t, `
		test -t 0 && test -t 1
		read answer
		echo x >x; git add x; git commit -q -m "$answer"
		echo '{"k":1}' >&3`)
	j.spec.TTY = true
	j.give()
	cmd := j.command("run")
	cmd.Stderr = nil
	terminal, err := pty.Start(cmd)
	if err != nil {
		t.Fatal(err)
	}
	defer terminal.Close()
	if _, err := terminal.WriteString("typed\n"); err != nil {
		t.Fatal(err)
	}
	if code := j.exitCode(cmd); code != 0 {
		t.Fatalf("exit code %d", code)
	}
	end := j.end()
	if end.Phase != "done" || end.ExitCode != 0 || end.Commits != 1 {
		t.Fatalf("got %+v", end)
	}
	if got := j.subjects(end); !slices.Equal(got, []string{"typed"}) {
		t.Errorf("got %q", got)
	}
	if !slices.ContainsFunc(j.events(), func(ev cove.JobEvent) bool { return ev.Type == "event" && ev.Text == `{"k":1}` }) {
		t.Error("the agent's event is missing")
	}
}
