package agents

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/test/e2e"
)

// scripted builds the agent of internal/lib/acp's tests. It returns the agent's folder
// (to be included in sprites) and its command.
func scripted(h *e2e.Host) (dir, command string) {
	h.T.Helper()
	dir = h.Path("scripted")
	command = filepath.Join(dir, "agent")
	build := exec.Command("go", "build", "-o", command, "../../lib/acp/testdata/agent")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		h.T.Fatalf("build the agent: %v\n%s", err, out)
	}
	return dir, command
}

// scriptedPlan is a plan for the scripted agent.
func scriptedPlan(lines ...string) string { return "# Plan\n\n! " + strings.Join(lines, "\n! ") + "\n" }

const scriptedCommit = "run git add -A && git commit -q -m 'By the agent' && git log --oneline | wc -l"

// TestACP: an agent that speaks ACP carries out plans with the files and terminals of the
// sprite. The job's outcome follows from the agent's messages, and a person answers its
// questions.
func TestACP(t *testing.T) {
	h := e2e.NewHost(t)
	h.Serve(nil)
	dir, command := scripted(h)
	repo := h.Repository("repo", map[string]string{
		"greeting.txt": "hello\n",
		"work.md":      scriptedPlan("read greeting.txt", "write greeting.txt hello, world", scriptedCommit, "say Done."),
		"big.md":       scriptedPlan("say Big.", "write big.txt yes", scriptedCommit) + strings.Repeat("All work and no play, äöü.\n", 34_000),
		"noise.md":     scriptedPlan("garbage", "giant 300000", "giant 9000000", "flood", "write noise.txt x", scriptedCommit, "say Done."),
		"ask.md":       scriptedPlan("ask to \x1b]0;pwned\a paint", "ask to leave", "write asked.txt yes", scriptedCommit),
		"refuse.md":    scriptedPlan("ask to paint", "say Done."),
		"crash.md":     scriptedPlan("write half.txt x", "crash"),
		"hang.md":      scriptedPlan("say Hanging.", "run sleep 9191 & sleep 9191", "hang"),
		"stop.md":      scriptedPlan("stop refusal"),
	})
	h.Run("", "cove", "create", "paint", "--include", dir)
	begin := func(plan string, args ...string) string {
		t.Helper()
		job, _ := h.Push(repo, append([]string{plan, "--agent", "acp", "--agent-command", command, "-s", "paint"}, args...)...)
		return job
	}
	jobs := map[string]string{}
	for _, plan := range []string{"work", "big", "noise", "crash", "hang"} {
		jobs[plan] = begin(plan + ".md")
	}
	jobs["refuse"] = begin("refuse.md", "--permissions", "deny")
	settings := h.Command(repo, "cove", "push", "--json", "stop.md", "-s", "paint")
	settings.Env = append(settings.Env, "COVE_AGENT=acp", "COVE_AGENT_COMMAND="+command, "COVE_PERMISSIONS=deny")
	out, err := settings.Output()
	if err != nil {
		t.Fatal(err)
	}
	jobs["stop"] = e2e.JSONField(t, string(out), "job")
	jobs["ask"] = begin("ask.md", "--permissions", "ask")

	ended := func(plan, kind, reason string) (cove.Job, string) {
		t.Helper()
		h.Try("", "cove", "job", "wait", jobs[plan])
		job, logs := h.Job(jobs[plan]), h.Run("", "cove", "job", "logs", jobs[plan])
		if job.Outcome == nil || job.Outcome.Kind != kind || !strings.Contains(job.Outcome.Reason, reason) {
			t.Errorf("%s: got %s, %+v\n%.4000s", plan, job.State, job.Outcome, logs)
		}
		return job, logs
	}
	job, logs := ended("work", "success", "")
	for _, want := range []string{"-- scripted 1, session the-session\n", "-> execute read greeting.txt\n", "read: hello\n", "run: 2, code 0\n", "Done.\n", "== result\n"} {
		if !strings.Contains(logs, want) {
			t.Errorf("the log lacks %q:\n%s", want, logs)
		}
	}
	if u := job.Usage; u == nil || *u != (cove.Usage{InputTokens: 100, OutputTokens: 20}) || job.AgentCommand != command {
		t.Errorf("usage %+v, command %q", u, job.AgentCommand)
	}
	h.Run(repo, "cove", "pull", jobs["work"])
	if got := h.Run(repo, "git", "show", "HEAD:greeting.txt"); got != "hello, world\n" {
		t.Errorf("greeting.txt: got %q", got)
	}
	if job, logs := ended("big", "success", ""); job.Commits != 1 || !strings.Contains(logs, "A prompt of 10") {
		t.Errorf("a megabyte: %d commits\n%.2000s", job.Commits, logs)
	}
	if job, logs := ended("noise", "success", ""); job.Commits != 1 || !strings.Contains(logs, "| Loading model...\n") || strings.ContainsRune(logs, '\x1b') {
		t.Errorf("noise: %d commits\n%.2000s", job.Commits, logs)
	}
	if job, _ := ended("crash", "no_result", "exited with code 7"); job.Leftover == "" || job.State != cove.JobFailed {
		t.Errorf("what the crash left is not collected: %+v", job)
	}
	if job, _ := ended("stop", "agent_failed", "its model refused"); job.Permissions != "deny" {
		t.Errorf("the settings: %+v", job)
	}
	if _, logs := ended("refuse", "success", "refused permission 1 time"); !strings.Contains(logs, "ask: selected no\n") || !strings.Contains(logs, "-- denied: to paint\n") {
		t.Errorf("refused: %s", logs)
	}
	e2e.Await(t, "the command of the one that hangs", func() bool {
		_, code := h.Try("", "cove", "exec", "-s", "paint", "pgrep", "-f", "sleep 9191")
		return code == 0
	})
	h.Run("", "cove", "job", "stop", jobs["hang"])
	ended("hang", "cancelled", "stopped on request")
	if out, code := h.Try("", "cove", "exec", "-s", "paint", "pgrep", "-f", "sleep 9191"); code != 1 {
		t.Errorf("left: %s", out)
	}
	answers(h, jobs["ask"], repo)
	if out, code := h.Try(repo, "cove", "push", "work.md", "--agent", "acp"); code != 2 || !strings.Contains(out, "--agent-command") {
		t.Errorf("without a command: %d, %s", code, out)
	}
	if out, code := h.Try(repo, "cove", "run", "work.md", "--agent", "shell", "--agent-command", command); code != 2 {
		t.Errorf("a command for the shell: %d, %s", code, out)
	}
	if out, code := h.Try(repo, "cove", "run", "work.md", "--agent", "acp", "--agent-command", command, "--permissions", "maybe"); code != 2 {
		t.Errorf("permissions maybe: %d, %s", code, out)
	}
}

// answers: P4: a person answers a job's questions.
func answers(h *e2e.Host, job, repo string) {
	t := h.T
	t.Helper()
	asks := func(title string) cove.JobQuestion {
		t.Helper()
		e2e.Await(t, "the question "+title, func() bool {
			got := h.Job(job)
			if got.State.Terminal() {
				t.Fatalf("it has ended: %+v\n%s", got.Outcome, h.Run("", "cove", "job", "logs", job))
			}
			return got.State == cove.JobWaiting && got.Question != nil && strings.Contains(got.Question.Title, title)
		})
		return *h.Job(job).Question
	}
	q := asks("paint")
	if len(q.Options) != 3 || q.Options[1] != (cove.QuestionOption{ID: "2", Name: "Yes\x1b[1m", Kind: "allow_once"}) {
		t.Errorf("the question: %+v", q)
	}
	if out := h.Run("", "cove", "job", "list"); !strings.Contains(out, "waiting") {
		t.Errorf("the list: %s", out)
	}
	if out := h.Run("", "cove", "job", "show", job); !strings.Contains(out, "cove job answer "+job) {
		t.Errorf("show does not say what to do: %s", out)
	}
	out := h.Run("", "cove", "job", "answer", job)
	for _, want := range []string{`to \x1b]0;pwned\x07 paint`, `$ rm -rf \x1b[2J/`, `2       allow_once    Yes\x1b[1m`, "cove job answer " + job + " OPTION"} {
		if !strings.Contains(out, want) {
			t.Errorf("the question lacks %q:\n%q", want, out)
		}
	}
	if out := h.Run("", "cove", "job", "answer", job, "--json"); strings.ContainsRune(out, '\x1b') || e2e.JSONField(t, out, "id") != q.ID {
		t.Errorf("the question as JSON: %q", out)
	}
	if out, code := h.Try("", "cove", "job", "answer", job, "4"); code != 2 || !strings.Contains(out, "not one of the options") {
		t.Errorf("no such option: %d, %s", code, out)
	}
	h.Run("", "cove", "job", "answer", job, "2")
	if second := asks("leave"); second.ID == q.ID {
		t.Errorf("the second question is the first: %+v", second)
	}
	if _, err := h.Client().AnswerJob(t.Context(), job, cove.JobAnswer{Question: q.ID, Option: "1"}); err == nil || !strings.Contains(err.Error(), "has been answered") {
		t.Errorf("an answer to the first question: %v", err)
	}
	h.Run("", "cove", "job", "answer", job, "reject_once")
	h.Run("", "cove", "job", "wait", job)
	logs := h.Run("", "cove", "job", "logs", job)
	if got := h.Job(job); got.State != cove.JobSucceeded || got.Commits != 1 || got.Question != nil || got.Permissions != "ask" {
		t.Errorf("it ended as %s, %+v", got.State, got.Outcome)
	}
	if !strings.Contains(logs, "ask: selected yes\n") || !strings.Contains(logs, "ask: selected no\n") || strings.ContainsRune(logs, '\x1b') || !strings.Contains(logs, ">> No (refused once): to leave\n") ||
		!strings.Contains(logs, "?? to leave\n   $ rm -rf \\x1b[2J/\n   answer with: cove job answer "+job+"\n") {
		t.Errorf("the log:\n%s", logs)
	}
	if out, code := h.Try("", "cove", "job", "answer", job, "1"); code != 1 || !strings.Contains(out, "has asked nothing") {
		t.Errorf("an answer after the end: %d, %s", code, out)
	}
}
