package agents_test

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/server/agents"
	"github.com/cove-dev/cove/internal/test/executable"
)

// workshop is a git repository with one commit, and a job's folder.
type workshop struct {
	t    *testing.T
	repo string
	dir  string
	env  []string
}

func newWorkshop(t *testing.T) *workshop {
	t.Helper()
	top := t.TempDir()
	w := &workshop{
		t: t, repo: filepath.Join(top, "repo"), dir: filepath.Join(top, "job folder"),
		env: append(os.Environ(), "GIT_CONFIG_GLOBAL="+os.DevNull, "GIT_CONFIG_SYSTEM="+os.DevNull),
	}
	for _, dir := range []string{w.repo, w.dir} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	w.git("init", "-q")
	w.git("config", "user.name", "Ada")
	w.git("config", "user.email", "ada@example.com")
	w.git("commit", "-q", "--allow-empty", "-m", "base")
	return w
}

func (w *workshop) git(args ...string) string {
	w.t.Helper()
	cmd := exec.CommandContext(w.t.Context(), "git", args...)
	cmd.Dir, cmd.Env = w.repo, w.env
	out, err := cmd.CombinedOutput()
	if err != nil {
		w.t.Fatalf("git %v: %v: %s", args, err, out)
	}
	return strings.TrimSpace(string(out))
}

// subjects lists the commits that were made, oldest first.
func (w *workshop) subjects() []string {
	w.t.Helper()
	return strings.Split(w.git("log", "--reverse", "--format=%s"), "\n")[1:]
}

// ran is how the shell agent carried out a plan.
type ran struct {
	code   int
	stdout string
	stderr string
	log    []cove.JobEvent
}

// run has the shell agent carry out a plan as a supervisor would.
func (w *workshop) run(plan string) ran {
	w.t.Helper()
	work, err := agents.Shell{}.Prepare(agents.Task{Plan: strings.ReplaceAll(plan, "'''", "```"), Dir: w.dir, Workdir: w.repo})
	if err != nil {
		w.t.Fatal(err)
	}
	for name, f := range work.Files {
		name = filepath.Join(w.dir, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			w.t.Fatal(err)
		}
		if err := os.WriteFile(name, f.Data, f.Mode); err != nil {
			w.t.Fatal(err)
		}
	}
	r, events, err := os.Pipe()
	if err != nil {
		w.t.Fatal(err)
	}
	defer r.Close()
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(w.t.Context(), work.Argv[0], work.Argv[1:]...)
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = w.repo, slices.Concat(w.env, work.Env), &stdout, &stderr, []*os.File{events}
	if err := cmd.Start(); err != nil {
		w.t.Fatal(err)
	}
	if err := events.Close(); err != nil {
		w.t.Fatal(err)
	}
	text, err := io.ReadAll(r)
	if err != nil {
		w.t.Fatal(err)
	}
	_ = cmd.Wait() // ProcessState has what matters
	if stderr.Len() > 0 {
		w.t.Logf("stderr: %s", stderr.String())
	}
	got := ran{code: cmd.ProcessState.ExitCode(), stdout: stdout.String(), stderr: stderr.String()}
	for line := range strings.Lines(string(text)) {
		got.log = append(got.log, cove.JobEvent{Type: "event", Text: strings.TrimSuffix(line, "\n")})
	}
	return got
}

// judge reads a log through an agent's reader.
func judge(a agents.Agent, log []cove.JobEvent, end cove.JobEnd) ([]agents.Event, cove.Outcome, *cove.Usage) {
	r := a.Read()
	var events []agents.Event
	for _, ev := range log {
		events = append(events, r.Event(ev)...)
	}
	o, u := r.Judge(end)
	return events, o, u
}

func TestShellRun(t *testing.T) {
	w := newWorkshop(t)
	w.git("config", "commit.gpgSign", "true") // and there is no key
	hook := filepath.Join(w.repo, ".git", "hooks", "pre-commit")
	if err := os.MkdirAll(filepath.Dir(hook), 0o755); err != nil {
		t.Fatal(err)
	}
	executable.Write(t, hook, "#!/bin/sh\nexit 1\n")
	got := w.run(`# The plan

Write
-----
'''sh
mkdir -p sub && cd sub
x=1
echo one >one
'''
## "Quote" \ #1 ünï
'''bash
[[ -z $x && -e sub/one ]]
echo two >sub/two; rm sub/one
'''
## Look
'''sh
cat sub/two
read line || echo "no input"
'''
## Commit alone
'''sh
echo three >three; git add three; git -c core.hooksPath= -c commit.gpgSign=false commit -q -m "my own"
'''
`)
	if got.code != 0 || got.stdout != "two\nno input\n" {
		t.Fatalf("exit code %d, stdout %q", got.code, got.stdout)
	}
	if got, want := w.subjects(), []string{"Write", `"Quote" \ #1 ünï`, "my own"}; !slices.Equal(got, want) {
		t.Errorf("got commits %q, want %q", got, want)
	}
	if got := w.git("ls-tree", "-r", "--name-only", "HEAD"); got != "sub/two\nthree" {
		t.Errorf("got files %q", got)
	}
	if got := w.git("status", "--porcelain"); got != "" {
		t.Errorf("the status is %q", got)
	}
	events, outcome, usage := judge(agents.Shell{}, got.log, cove.JobEnd{Phase: "done"})
	var want []agents.Event
	for i, title := range []string{"Write", `"Quote" \ #1 ünï`, "Look", "Commit alone"} {
		want = append(want,
			agents.Event{Kind: agents.KindStep, Text: fmt.Sprintf("%d. %s", i+1, title)},
			agents.Event{Kind: agents.KindStepEnd, Text: "exit 0"})
	}
	want = append(want, agents.Event{Kind: agents.KindResult})
	if diff := cmp.Diff(want, events); diff != "" {
		t.Error(diff)
	}
	if outcome != (cove.Outcome{Kind: agents.Success}) || usage != nil {
		t.Errorf("got %+v, %+v", outcome, usage)
	}
}

func TestShellStops(t *testing.T) {
	for _, test := range []struct {
		name, block string
		code        int
	}{
		{"exit", "exit 7", 7},
		{"a command in the middle", "sh -c 'exit 3'\ntouch c", 3},
		{"not a program", "no-such-program-here", 127},
		{"a signal", "kill -KILL $$", 137},
		{"a commit that can't be", "touch c; rm -rf .git/objects; touch .git/objects", 128},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := newWorkshop(t)
			got := w.run("# First\n'''sh\necho a >a\n'''\n# Second\n'''sh\necho b >b\n" + test.block + "\n'''\n# Third\n'''sh\necho third\n'''\n")
			if got.code != test.code || got.stdout != "" {
				t.Errorf("exit code %d, want %d, stdout %q", got.code, test.code, got.stdout)
			}
			if test.code != 128 {
				if got := w.subjects(); !slices.Equal(got, []string{"First"}) {
					t.Errorf("got commits %q", got)
				}
				if got := w.git("status", "--porcelain"); got != "?? b" {
					t.Errorf("the status is %q", got)
				}
			}
			events, outcome, _ := judge(agents.Shell{}, got.log, cove.JobEnd{Phase: "done", ExitCode: got.code})
			if n := len(events); n != 4 || events[3] != (agents.Event{Kind: agents.KindStepEnd, Failed: true, Text: fmt.Sprintf("exit %d", test.code)}) {
				t.Errorf("got %+v", events)
			}
			want := cove.Outcome{Kind: agents.AgentFailed, Reason: fmt.Sprintf("step 2 (Second), lines 7 to %d of the plan, exited with %d", 8+strings.Count(test.block, "\n"), test.code), ExitCode: test.code}
			if outcome != want {
				t.Errorf("got %+v, want %+v", outcome, want)
			}
		})
	}
}

// If a step replaces a file by one of the same size and time, that one is committed. Git in a
// sprite does not compare inode numbers.
func TestShellCommitsSameTime(t *testing.T) {
	w := newWorkshop(t)
	w.git("config", "core.checkStat", "minimal")
	w.git("config", "core.trustctime", "false")
	step := "'''sh\necho %s >new; touch -d 2020-01-01 new; mv new version\n'''\n"
	if got := w.run(fmt.Sprintf("# One\n"+step+"# Two\n"+step, "1.0.1", "1.0.2")); got.code != 0 {
		t.Fatalf("got %+v", got)
	}
	if got := w.git("show", "HEAD:version"); got != "1.0.2" {
		t.Errorf("the last commit has %q", got)
	}
}

// A step has no way to say that all is done: it does not have file descriptor 3.
func TestShellStepCannotReport(t *testing.T) {
	w := newWorkshop(t)
	got := w.run("'''sh\nif (echo '{\"type\":\"result\",\"ok\":true}' >&3) 2>/dev/null; then echo open; fi\nexit 1\n'''\n")
	if got.stdout != "" || len(got.log) != 2 {
		t.Errorf("stdout %q, events %+v", got.stdout, got.log)
	}
}

func TestShellPrepare(t *testing.T) {
	for _, test := range []struct{ name, plan, want string }{
		{"no block", "# Do\n\nsomething\n```go\nx\n```\n", "no block for a shell"},
		{"too many", strings.Repeat("```sh\n:\n```\n", 1000), "1000 blocks"},
	} {
		t.Run(test.name, func(t *testing.T) {
			if _, err := (agents.Shell{}).Prepare(agents.Task{Plan: test.plan}); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want %q", err, test.want)
			}
		})
	}
	work, err := agents.Shell{}.Prepare(agents.Task{Plan: strings.Repeat("```sh\n:\n```\n", 999), Dir: "/job"})
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{"/bin/sh", "/job/shell.sh", "/job/steps", "999"}; !slices.Equal(work.Argv, want) {
		t.Errorf("got %q, want %q", work.Argv, want)
	}
	if got := string(work.Files["steps/999.title"].Data); got != "Step 999\n" {
		t.Errorf("got %q", got)
	}
}

func TestShellJudge(t *testing.T) {
	step := cove.JobEvent{Type: "event", Text: `{"type":"step","n":1,"title":"One"}`}
	result := cove.JobEvent{Type: "event", Text: `{"type":"result","ok":true}`}
	for _, test := range []struct {
		name string
		log  []cove.JobEvent
		end  cove.JobEnd
		want cove.Outcome
	}{
		{"done", []cove.JobEvent{step, result}, cove.JobEnd{Phase: "done"}, cove.Outcome{Kind: agents.Success}},
		{"too many steps", []cove.JobEvent{step}, cove.JobEnd{Phase: "done", Reason: "turns", Detail: "more than 1 of its model's turns"},
			cove.Outcome{Kind: agents.TurnLimit, Reason: "guard turns: more than 1 of the plan's steps"}},
		{"too many turns", []cove.JobEvent{step}, cove.JobEnd{Phase: "done", Reason: "turns", Detail: "more than 1 turns"},
			cove.Outcome{Kind: agents.TurnLimit, Reason: "guard turns: more than 1 of the plan's steps"}},
		{"no result", []cove.JobEvent{step}, cove.JobEnd{Phase: "done"},
			cove.Outcome{Kind: agents.NoResult, Reason: "ended without saying that it was done"}},
		{"printed, not said", []cove.JobEvent{step, {Type: "output", Stream: "stdout", Text: result.Text}}, cove.JobEnd{Phase: "done"},
			cove.Outcome{Kind: agents.NoResult, Reason: "ended without saying that it was done"}},
		{"not ok", []cove.JobEvent{{Type: "event", Text: `{"type":"result"}`}}, cove.JobEnd{Phase: "done"},
			cove.Outcome{Kind: agents.NoResult, Reason: "ended without saying that it was done"}},
		{"noise", []cove.JobEvent{{Type: "event", Text: "no JSON"}, {Type: "event", Text: `{"type":"other"}`}, step, result}, cove.JobEnd{Phase: "done"},
			cove.Outcome{Kind: agents.Success}},
		{"before its first step", nil, cove.JobEnd{Phase: "done", ExitCode: 2},
			cove.Outcome{Kind: agents.AgentFailed, Reason: "exited with 2 before its first step", ExitCode: 2}},
		{"result, and yet a code", []cove.JobEvent{step, result}, cove.JobEnd{Phase: "done", ExitCode: 2},
			cove.Outcome{Kind: agents.AgentFailed, Reason: "step 1 (One) exited with 2", ExitCode: 2}},
		{"a line", []cove.JobEvent{{Type: "event", Text: `{"type":"step","n":1,"title":"One","line":7,"last":7}`}}, cove.JobEnd{Phase: "done", ExitCode: 2},
			cove.Outcome{Kind: agents.AgentFailed, Reason: "step 1 (One), line 7 of the plan, exited with 2", ExitCode: 2}},
	} {
		t.Run(test.name, func(t *testing.T) {
			if _, got, usage := judge(agents.Shell{}, test.log, test.end); got != test.want || usage != nil {
				t.Errorf("got %+v, %+v, want %+v", got, usage, test.want)
			}
		})
	}
}

// TestShellSaysTheLine has a plan whose second block has a mistake. The reason names the block's
// lines in the plan, and the shell's own message counts from the plan's beginning.
func TestShellSaysTheLine(t *testing.T) {
	w := newWorkshop(t)
	got := w.run("# One\n\n'''sh\ntrue\n'''\n## Two\n'''sh\necho fine\nno-such-program\n'''\n")
	_, outcome, _ := judge(agents.Shell{}, got.log, cove.JobEnd{Phase: "done", ExitCode: got.code})
	if want := "step 2 (Two), lines 8 to 9 of the plan, exited with 127"; outcome.Reason != want {
		t.Errorf("got %q, want %q", outcome.Reason, want)
	}
	if !strings.Contains(got.stderr, ": 9: no-such-program") && !strings.Contains(got.stderr, "line 9: no-such-program") {
		t.Errorf("the shell says %q", got.stderr)
	}
}
