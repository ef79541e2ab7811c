package agents

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/guest/loop"
	"github.com/cove-dev/cove/internal/lib/tools"
	"github.com/cove-dev/cove/internal/test/e2e"
	"github.com/cove-dev/cove/internal/test/modeltest"
)

// modelKey is the key of the scripted models. It is in no sandbox.
const modelKey = "the-real-key-of-the-model"

// A vendor is a scripted model behind a connector.
type vendor struct {
	name, model string
	http.Handler
	requests func() []modeltest.Request
}

// vendors returns all three vendors, with the same script. hold is their models' Hold.
func vendors(turns []modeltest.Turn, hold func(int)) []vendor {
	o := &modeltest.OpenAI{Key: modelKey, Turns: turns, Hold: hold}
	a := &modeltest.Anthropic{Key: modelKey, Turns: turns, Hold: hold}
	g := &modeltest.Gemini{Key: modelKey, Turns: turns, Hold: hold}
	return []vendor{
		{"openai", "", o, o.Requests}, // chosen by the secret that is set
		{"anthropic", "anthropic/claude-some", a, a.Requests},
		{"gemini", "gemini/gemini-some", g, g.Requests},
	}
}

// offer serves a scripted model, makes its connector with its key, and returns its URL.
func offer(h *e2e.Host, v vendor, prices ...string) string {
	h.T.Helper()
	server := httptest.NewServer(v)
	h.T.Cleanup(server.Close)
	set := h.Command("", "cove", "secret", "set", v.name)
	set.Stdin = strings.NewReader(modelKey)
	if out, err := set.CombinedOutput(); err != nil {
		h.T.Fatalf("%v: %s", err, out)
	}
	args := []string{"connector", "put", v.name, "--upstream", server.URL}
	for _, p := range prices {
		args = append(args, "--price", p)
	}
	h.Run("", "cove", args...)
	return server.URL
}

// tenSteps is a task in ten turns, each with another tool or another use of one.
var tenSteps = func() []modeltest.Turn {
	use := func(text, tool string, input map[string]any) modeltest.Turn {
		return modeltest.Turn{Text: text, Calls: []modeltest.Call{{Tool: tool, Input: input}}}
	}
	return []modeltest.Turn{
		use("I look around.", "Bash", map[string]any{"command": "ls; env; hostname"}),
		use("Which scripts?", "Glob", map[string]any{"pattern": "**/*.sh"}),
		use("What says hello?", "Grep", map[string]any{"pattern": "hello"}),
		use("I read it.", "Read", map[string]any{"file_path": "greet.sh"}),
		use("A test.", "Write", map[string]any{"file_path": "test.sh", "content": "#!/bin/sh\n[ \"$(sh greet.sh)\" = 'hello, world' ] && echo ok\n"}),
		use("It fails, as it should.", "Bash", map[string]any{"command": "sh test.sh"}),
		use("Now the change.", "Edit", map[string]any{"file_path": "greet.sh", "old_string": "echo hello", "new_string": "echo hello, world"}),
		use("And again.", "Bash", map[string]any{"command": "sh test.sh"}),
		use("I commit.", "Bash", map[string]any{"command": "git add -A && git commit -q -m 'Greet the world'"}),
		use("", "finish", map[string]any{"outcome": "done", "summary": "The world is greeted."}),
	}
}()

// TestLoop has cove's own agent do the same task with a model of each vendor, given only
// its secret and connector. With one of them, the server is killed in the middle.
func TestLoop(t *testing.T) {
	h := e2e.NewHost(t)
	h.Serve(nil)
	repo := h.Repository("repo", map[string]string{"greet.sh": "echo hello\n", "plan.md": "Greet the world, not nobody.\n"})
	if out, code := h.Try(repo, "cove", "push", "plan.md", "--agent", "cove"); code != 1 || !strings.Contains(out, "cove secret set anthropic") {
		t.Errorf("without a key: %d, %s", code, out)
	}
	held, release := make(chan struct{}), make(chan struct{})
	all := vendors(tenSteps, nil)
	all[1].Handler.(*modeltest.Anthropic).Hold = func(turn int) {
		if turn == 4 {
			close(held)
			<-release
		}
	}
	for _, v := range all {
		offer(h, v, "*=10/100")
		args := []string{"plan.md", "--agent", "cove", "--dirty", "ignore"}
		if v.model != "" {
			args = append(args, "--model", v.model)
		}
		h.Run(repo, "git", "switch", "-q", "-c", v.name, "main")
		job, sprite := h.Push(repo, args...)
		if v.name == "anthropic" {
			select {
			case <-held:
			case <-time.After(e2e.LastResort):
				t.Fatalf("the model was not asked so often:\n%s", h.Run("", "cove", "job", "logs", job))
			}
			h.EndServer(syscall.SIGKILL)
			close(release)
			h.Serve(nil)
		}
		if out, code := h.Try(repo, "cove", "pull", job, "--wait=10m"); code != 0 {
			t.Fatalf("%s: pull exited with %d: %s\n%s", v.name, code, out, h.Run("", "cove", "job", "logs", job))
		}
		looped(h, v, repo, job, sprite)
	}
}

// looped checks the outcome of a job of tenSteps.
func looped(h *e2e.Host, v vendor, repo, job, sprite string) {
	h.T.Helper()
	if got := h.Run(repo, "git", "log", "-1", "--format=%an: %s", "--", "test.sh"); got != "Ada: Greet the world\n" {
		h.T.Errorf("%s: the commit: %q", v.name, got)
	}
	if got := h.Run(repo, "sh", "test.sh"); got != "ok\n" {
		h.T.Errorf("%s: the test: %q", v.name, got)
	}
	j := h.Job(job)
	if u := j.Usage; j.State != cove.JobSucceeded || u == nil || u.Turns != 10 || u.InputTokens != 1000 || u.OutputTokens != 200 || u.CostUSD < 0.029 || u.CostUSD > 0.031 {
		h.T.Errorf("%s: %s, %+v, %+v", v.name, j.State, j.Outcome, u)
	}
	if !strings.HasPrefix(j.Model, v.name+"/") {
		h.T.Errorf("%s: the model is %s", v.name, j.Model)
	}
	logs := h.Run("", "cove", "job", "logs", job)
	for _, want := range []string{"-> Write", "-> Edit", "It fails, as it should.", "The world is greeted.", "== success"} {
		if !strings.Contains(logs, want) {
			h.T.Errorf("%s: the log lacks %q:\n%s", v.name, want, logs)
		}
	}
	asked := v.requests()
	if len(asked) != len(tenSteps) { // a request would be paid twice if its answer were cut
		h.T.Errorf("%s: the model was asked %d times for %d turns", v.name, len(asked), len(tenSteps))
	}
	for _, r := range asked {
		if strings.Contains(string(r.Body), modelKey) {
			h.T.Errorf("%s: the key was seen inside", v.name)
		}
	}
	last := asked[len(asked)-1]
	if v.name == "openai" && last.Model != "gpt-5.5" || v.name != "openai" && last.Model != strings.TrimPrefix(v.model, v.name+"/") {
		h.T.Errorf("%s: asked was %s", v.name, last.Model)
	}
	// The script can't know the results of its calls; the next request shows that the model
	// was told them.
	for i, want := range map[int]string{1: sprite, 2: "greet.sh", 4: "echo hello", 8: "ok"} {
		if !slices.ContainsFunc(asked, func(r modeltest.Request) bool { return strings.Contains(r.Last, want) }) {
			h.T.Errorf("%s: what turn %d gave is not in the next request: no %q", v.name, i, want)
		}
	}
}

// TestLoopRole: with the role of a plan the agent only reads. The sprite
// refuses all else that the model asks for. Agents with tools of their own can't be given the role.
func TestLoopRole(t *testing.T) {
	h := e2e.NewHost(t)
	h.Serve(nil)
	repo := h.Repository("repo", map[string]string{"greet.sh": "echo hello\n", "plan.md": "Plan it.\n"})
	model := &modeltest.Anthropic{Key: modelKey, Turns: []modeltest.Turn{
		{Calls: []modeltest.Call{{Tool: "Read", Input: map[string]any{"file_path": "greet.sh"}}}},
		{Calls: []modeltest.Call{{Tool: "Bash", Input: map[string]any{"command": "touch by-bash"}}}},
		{Calls: []modeltest.Call{{Tool: "Write", Input: map[string]any{"file_path": "by-write", "content": "x"}}}},
		{Calls: []modeltest.Call{{Tool: "finish", Input: map[string]any{"outcome": "done", "summary": "First the test."}}}},
	}}
	offer(h, vendor{"anthropic", "", model, model.Requests})
	for _, role := range []string{"plan", "review"} {
		before := len(model.Requests())
		push := h.Command(repo, "cove", "push", "plan.md", "--agent", "cove", "--json")
		push.Env = append(push.Env, "COVE_ROLE="+role)
		if role == "review" { // the flag counts more
			push.Env = append(push.Env, "COVE_ROLE=build")
			push.Args = append(push.Args, "--role", role)
		}
		out, err := push.Output()
		var pushed struct{ Job, Sprite string }
		if err != nil || json.Unmarshal(out, &pushed) != nil {
			t.Fatalf("%s: %v: %s", role, err, out)
		}
		h.Run("", "cove", "job", "wait", pushed.Job)
		if j := h.Job(pushed.Job); j.Role != role || j.Commits != 0 || j.Leftover != "" {
			t.Errorf("%s: the job has the role %q, %d commits, and left %q", role, j.Role, j.Commits, j.Leftover)
		}
		if files := h.Sh(pushed.Sprite, "cd work/*/repo && ls"); files != "greet.sh\nplan.md\n" {
			t.Errorf("%s: there are %q", role, files)
		}
		if logs := h.Run("", "cove", "job", "logs", pushed.Job); !strings.Contains(logs, "First the test.") {
			t.Errorf("%s: the log: %s", role, logs)
		}
		asked := model.Requests()[before:]
		if len(asked) != 4 {
			t.Fatalf("%s: the model was asked %d times", role, len(asked))
		}
		for i, want := range []string{1: "echo hello", 2: "does not allow Bash", 3: "does not allow Write"} {
			if offered := slices.Sorted(slices.Values(asked[i].Tools)); !slices.Equal(offered, []string{"Glob", "Grep", "Read", "finish"}) || !strings.Contains(asked[i].Last, want) {
				t.Errorf("%s: request %d has the tools %v and %s", role, i, offered, asked[i].Last)
			}
		}
	}
	for _, more := range [][]string{nil, {"--dry-run"}} {
		out, code := h.Try(repo, "cove", append([]string{"push", "plan.md", "--agent", "shell", "--role", "plan"}, more...)...)
		if code != 1 || !strings.Contains(out, "the agent shell has tools of its own") || !strings.Contains(out, "--role build") {
			t.Errorf("%v: another agent: %d, %s", more, code, out)
		}
	}
	if out, code := h.Try(repo, "cove", "push", "plan.md", "--agent", "cove", "--role", "none"); code != 2 {
		t.Errorf("a role that there is not: %d, %s", code, out)
	}
	h.Run(repo, "cove", "push", "-p", "## One\n```sh\ntrue\n```\n", "--agent", "shell", "--role", "build", "--dry-run")
}

// TestLoopEnds: cove's own agent ends and says why if its model refuses the key, costs
// too much, or takes too many turns.
func TestLoopEnds(t *testing.T) {
	h := e2e.NewHost(t)
	h.Serve(nil)
	h.Run("", "cove", "create", "paint")
	repo := h.Repository("repo", map[string]string{"plan.md": "Do it.\n"})
	var again []modeltest.Turn
	for i := range 50 {
		again = append(again, modeltest.Turn{Calls: []modeltest.Call{{Tool: "Bash", Input: map[string]any{"command": fmt.Sprintf("echo %d >>n; sleep 0.2", i)}}}})
	}
	model := &modeltest.Anthropic{Key: modelKey, Turns: again}
	v := vendor{"anthropic", "", model, model.Requests}
	url := offer(h, v)
	run := func(args ...string) (string, cove.Job) {
		t.Helper()
		out, code := h.Try(repo, "cove", append([]string{"run", "-s", "paint", "-p", "Do it.", "--agent", "cove", "--json", "--pull=false", "--dirty", "ignore"}, args...)...)
		if code == 0 {
			t.Errorf("%v: it succeeded: %s", args, out)
		}
		jobs, err := h.Client().Jobs(t.Context())
		if err != nil || len(jobs) == 0 {
			return out, cove.Job{}
		}
		return out, jobs[0] // the newest
	}
	if out, code := h.Try(repo, "cove", "push", "plan.md", "--agent", "cove", "--max-cost", "1"); code != 1 || !strings.Contains(out, "connector put anthropic --price") {
		t.Errorf("a limit without a price: %d, %s", code, out)
	}
	if out, _ := run("--model", "other/x"); !strings.Contains(out, "PROVIDER/MODEL") {
		t.Errorf("a model that there is not: %s", out)
	}
	h.Run("", "cove", "connector", "put", "anthropic", "--price", "*=1000/10000", "--upstream", url)
	// The third answer exceeds the limit in the middle, but may have ended before that is
	// noticed.
	if _, job := run("--max-cost", "0.7"); job.Outcome == nil || job.Outcome.Kind != "cost_limit" || job.Usage.Turns < 2 || job.Usage.Turns > 3 || job.Usage.InputTokens != 300 || job.Usage.CostUSD < 0.7 {
		t.Errorf("too dear: %+v, %+v", job.Outcome, job.Usage)
	}
	if _, job := run("--max-turns", "2"); job.Outcome == nil || job.Outcome.Kind != "turn_limit" {
		t.Errorf("too many turns: %+v", job.Outcome)
	}
	long := h.Command(repo, "cove", "run", "-", "-s", "paint", "--agent", "cove", "--json", "--pull=false", "--dirty", "ignore", "--max-turns", "1")
	long.Stdin = strings.NewReader(strings.Repeat("a line of a long plan\n", 45_000) + "and its end")
	_ = long.Run() // the limit of its turns
	asked := model.Requests()
	if last := asked[len(asked)-1]; len(last.Body) < 990_000 || !strings.Contains(string(last.Body), "and its end") {
		t.Errorf("of a long plan from standard input the model got %d bytes", len(last.Body))
	}
	model.Key = "another"
	_, job := run()
	if job.Outcome == nil || job.Outcome.Kind != "agent_failed" || !strings.Contains(job.Outcome.Reason, "401") {
		t.Errorf("the wrong key: %+v", job.Outcome)
	}
	if out := h.Run("", "cove", "job", "show", job.ID); !strings.Contains(out, "refuses its key; set another: cove secret set anthropic") {
		t.Errorf("the wrong key: %s", out)
	}
}

// TestLoopGone runs the loop on this machine, with its tools in a sandbox that is removed
// in the middle. The loop ends and says why, and writes nothing on this machine instead.
func TestLoopGone(t *testing.T) {
	h := e2e.NewHost(t)
	h.Serve(nil)
	h.Run("", "cove", "create", "paint")
	canary := filepath.Join(t.TempDir(), "canary")
	write := func(name, text string) modeltest.Turn {
		return modeltest.Turn{Calls: []modeltest.Call{{Tool: "Write", Input: map[string]any{"file_path": name, "content": text, "create_parents": true}}}}
	}
	model := &modeltest.Anthropic{Turns: []modeltest.Turn{write("/tmp/there", "in the sandbox"), write(canary, "on the host")}}
	model.Hold = func(turn int) {
		if turn == 1 {
			if got, _ := h.Try("", "cove", "exec", "-s", "paint", "cat", "/tmp/there"); got != "in the sandbox" {
				t.Errorf("in the sandbox: %q", got)
			}
			if out, code := h.Try("", "cove", "rm", "--force", "paint"); code != 0 {
				t.Errorf("rm: %s", out)
			}
		}
	}
	server := httptest.NewServer(model)
	defer server.Close()
	p, err := loop.Open("anthropic", loop.Access{BaseURL: server.URL, Key: modelKey}, os.Getenv)
	if err != nil {
		t.Fatal(err)
	}
	var events bytes.Buffer
	l := &loop.Loop{Provider: p, Model: "m", Events: &events, Tools: h.ToolSession(t.Context(), "paint", "", tools.Full), Limits: loop.Limits{Time: e2e.LastResort}}
	r, err := l.Run(t.Context(), "do it")
	if err != nil || r.Outcome != loop.ToolsGone || r.Turns != 2 {
		t.Errorf("got %+v, %v\n%s", r, err, events.String())
	}
	if text, err := os.ReadFile(canary); err == nil {
		t.Errorf("on the host there is %q", text)
	}
}
