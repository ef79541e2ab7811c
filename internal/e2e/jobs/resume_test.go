package jobs

import (
	"strings"
	"testing"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/test/e2e"
)

const (
	standInInit   = `echo '{"type":"system","subtype":"init","session_id":"s-1"}'`
	standInResult = `echo '{"type":"result","subtype":"success","result":"Done.","num_turns":1}'`
)

// told returns the RUN lines of one session of the stand-in: the commands, between its
// first and its last message.
func told(commands ...string) string {
	text := "RUN " + standInInit + "\n"
	for _, c := range commands {
		text += "RUN " + c + "\n"
	}
	return text + "RUN " + standInResult + "\n"
}

// TestJobResume: an agent goes on with its session in its old clone as it left it, after
// a restore, and in a fork. If it can't, the job says why.
func TestJobResume(t *testing.T) {
	h := e2e.NewHost(t)
	h.Serve(nil)
	repo := h.Repository("repo", map[string]string{
		"plan.md":   told("echo 1 >one.txt; git add -A; git commit -q -m One", "echo open >open.txt"),
		"blocks.md": "```sh\ntrue\n```\n",
	})
	flags := append(standIns(h), "--timeout", "50m")
	first, sprite := h.Push(repo, append([]string{"plan.md"}, flags...)...)
	h.Run("", "cove", "job", "wait", first)
	if got := h.Job(first); got.AgentSession != "s-1" {
		t.Errorf("the session: got %+v", got)
	}
	resume := func(args ...string) cove.Job {
		t.Helper()
		id := e2e.JSONField(t, h.Run(repo, "cove", append([]string{"job", "resume", "--json"}, args...)...), "id")
		if out, code := h.Try("", "cove", "job", "wait", id); code != 0 {
			t.Fatalf("job wait exited with %d: %s\n%s", code, out, h.Run("", "cove", "job", "logs", id))
		}
		return h.Job(id)
	}
	second := resume(first, told(`test -e open.txt && echo "$*" | grep -q -- '--resume s-1' && git add -A && git commit -q -m Two`))
	old := h.Job(first)
	if second.ResumeOf != first || second.Sprite != sprite || second.Workdir != old.Workdir || second.Base != old.Base || second.Commits != 2 || second.TimeoutSec != 3000 {
		t.Errorf("got %+v", second)
	}
	h.Run(repo, "cove", "pull", first)
	h.Run("", "cove", "job", "rm", first) // the clone stays as long as a job goes on in it
	h.Run(repo, "cove", "pull", second.ID)
	if got := h.Run(repo, "git", "log", "--format=%s"); got != "Two\nOne\nfirst\n" {
		t.Errorf("commits: got %q", got)
	}
	h.Run("", "cove", "checkpoint", "create", "-s", sprite)
	third := resume(second.ID, told("git commit -q --allow-empty -m Three"))
	if third.ResumeOf != second.ID || third.Commits != 3 {
		t.Errorf("got %+v", third)
	}

	// A restore brings back the session of the checkpoint.
	h.Run("", "cove", "restore", "-s", sprite, "v1")
	if out, code := h.Try(repo, "cove", "job", "resume", third.ID, "x"); code != 1 || !strings.Contains(out, "cove checkpoint list -s "+sprite) {
		t.Errorf("of what came after the checkpoint: %d, %s", code, out)
	}
	third = resume(second.ID, told("git commit -q --allow-empty -m Another"))
	if third.Commits != 3 {
		t.Errorf("after the restore: got %+v", third)
	}

	// Only one job at a time runs in a clone.
	busy := e2e.JSONField(t, h.Run(repo, "cove", "job", "resume", third.ID, "--json", "RUN echo '{\"type\":\"assistant\"}'; sleep 6000"), "id")
	for _, id := range []string{busy, third.ID} {
		if out, code := h.Try(repo, "cove", "job", "resume", id, "x"); code != 1 || !strings.Contains(out, busy) {
			t.Errorf("while %s is at work: %d, %s", busy, code, out)
		}
	}
	h.Run("", "cove", "job", "stop", busy)
	h.Try("", "cove", "job", "wait", busy)

	if h.Far == nil { // a fork has the session, too; the public protocol has none
		h.Run("", "cove", "fork", sprite, "twin")
		forked := resume(third.ID, "-s", "twin", told("git commit -q --allow-empty -m Fork"))
		if forked.Sprite != "twin" || forked.Commits != 4 {
			t.Errorf("got %+v", forked)
		}
	}
	refusedToResume(h, repo, third.ID, sprite)
}

// refusedToResume tries to resume jobs that can't go on. It deletes the sprite.
func refusedToResume(h *e2e.Host, repo, id, sprite string) {
	h.T.Helper()
	refused := func(code int, want string, args ...string) {
		h.T.Helper()
		if out, got := h.Try(repo, "cove", append([]string{"job", "resume"}, args...)...); got != code || !strings.Contains(out, want) {
			h.T.Errorf("resume %q: %d, %s", args, got, out)
		}
	}
	refused(2, "the message is missing", id)
	refused(2, "the message is empty", id, " ")
	refused(1, "cove job list", "000000", "x")
	if out, code := h.Try(repo, "cove", "job", "retry", id); code != 1 || !strings.Contains(out, "cove job resume "+id) {
		h.T.Errorf("retry: %d, %s", code, out)
	}
	shell, _ := h.Push(repo, "blocks.md", "--agent", "shell", "--dirty", "ignore", "-s", sprite)
	h.Run("", "cove", "job", "wait", shell)
	refused(1, "cove push -s "+sprite, shell, "x")
	h.Run("", "cove", "rm", "--force", sprite)
	e2e.Await(h.T, "the sprite is gone", func() bool {
		_, code := h.Try("", "cove", "info", sprite)
		return code != 0
	})
	refused(1, "--sprite NAME", id, "x")
}
