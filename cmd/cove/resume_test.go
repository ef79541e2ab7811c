package main

import (
	"strings"
	"testing"

	"github.com/cove-dev/cove"
)

const (
	standInInit   = `echo '{"type":"system","subtype":"init","session_id":"s-1"}'`
	standInResult = `echo '{"type":"result","subtype":"success","result":"Done.","num_turns":1}'`
)

// told is what the stand-in is told to do in one session: the commands, between its
// first and its last word.
func told(commands ...string) string {
	text := "RUN " + standInInit + "\n"
	for _, c := range commands {
		text += "RUN " + c + "\n"
	}
	return text + "RUN " + standInResult + "\n"
}

// TestJobResume has an agent go on with its session: in the clone as it left it, after a
// restore, and in a fork; and says why where it can't.
func TestJobResume(t *testing.T) {
	h := newHost(t)
	h.serve(nil)
	repo := h.repository("repo", map[string]string{
		"plan.md":   told("echo 1 >one.txt; git add -A; git commit -q -m One", "echo open >open.txt"),
		"blocks.md": "```sh\ntrue\n```\n",
	})
	flags := append(h.standIns(), "--timeout", "50m")
	first, sprite := h.push(repo, append([]string{"plan.md"}, flags...)...)
	h.run("", "cove", "job", "wait", first)
	if got := h.job(first); got.AgentSession != "s-1" {
		t.Errorf("the session: got %+v", got)
	}
	resume := func(args ...string) cove.Job {
		t.Helper()
		id := jsonField(t, h.run(repo, "cove", append([]string{"job", "resume", "--json"}, args...)...), "id")
		if out, code := h.try("", "cove", "job", "wait", id); code != 0 {
			t.Fatalf("job wait exited with %d: %s\n%s", code, out, h.run("", "cove", "job", "logs", id))
		}
		return h.job(id)
	}
	second := resume(first, told(`test -e open.txt && echo "$*" | grep -q -- '--resume s-1' && git add -A && git commit -q -m Two`))
	old := h.job(first)
	if second.ResumeOf != first || second.Sprite != sprite || second.Workdir != old.Workdir || second.Base != old.Base || second.Commits != 2 || second.TimeoutSec != 3000 {
		t.Errorf("got %+v", second)
	}
	h.run(repo, "cove", "pull", first)
	h.run("", "cove", "job", "rm", first) // the clone stays as long as a job goes on in it
	h.run(repo, "cove", "pull", second.ID)
	if got := h.run(repo, "git", "log", "--format=%s"); got != "Two\nOne\nfirst\n" {
		t.Errorf("commits: got %q", got)
	}
	h.run("", "cove", "checkpoint", "create", "-s", sprite)
	third := resume(second.ID, told("git commit -q --allow-empty -m Three"))
	if third.ResumeOf != second.ID || third.Commits != 3 {
		t.Errorf("got %+v", third)
	}

	// A restore brings the session back that there was.
	h.run("", "cove", "restore", "-s", sprite, "v1")
	if out, code := h.try(repo, "cove", "job", "resume", third.ID, "x"); code != 1 || !strings.Contains(out, "cove checkpoint list -s "+sprite) {
		t.Errorf("of what came after the checkpoint: %d, %s", code, out)
	}
	third = resume(second.ID, told("git commit -q --allow-empty -m Another"))
	if third.Commits != 3 {
		t.Errorf("after the restore: got %+v", third)
	}

	// What is at work in a clone is alone there.
	busy := jsonField(t, h.run(repo, "cove", "job", "resume", third.ID, "--json", "RUN echo '{\"type\":\"assistant\"}'; sleep 6000"), "id")
	for _, id := range []string{busy, third.ID} {
		if out, code := h.try(repo, "cove", "job", "resume", id, "x"); code != 1 || !strings.Contains(out, busy) {
			t.Errorf("while %s is at work: %d, %s", busy, code, out)
		}
	}
	h.run("", "cove", "job", "stop", busy)
	h.try("", "cove", "job", "wait", busy)

	if h.far == nil { // a fork has the session, too; the public protocol has none
		h.run("", "cove", "fork", sprite, "twin")
		forked := resume(third.ID, "-s", "twin", told("git commit -q --allow-empty -m Fork"))
		if forked.Sprite != "twin" || forked.Commits != 4 {
			t.Errorf("got %+v", forked)
		}
	}
	h.refusedToResume(repo, third.ID, sprite)
}

// refusedToResume tries what can't go on; the sprite ends with it.
func (h *host) refusedToResume(repo, id, sprite string) {
	h.t.Helper()
	refused := func(code int, want string, args ...string) {
		h.t.Helper()
		if out, got := h.try(repo, "cove", append([]string{"job", "resume"}, args...)...); got != code || !strings.Contains(out, want) {
			h.t.Errorf("resume %q: %d, %s", args, got, out)
		}
	}
	refused(2, "the message is missing", id)
	refused(2, "the message is empty", id, " ")
	refused(1, "cove job list", "000000", "x")
	if out, code := h.try(repo, "cove", "job", "retry", id); code != 1 || !strings.Contains(out, "cove job resume "+id) {
		h.t.Errorf("retry: %d, %s", code, out)
	}
	shell, _ := h.push(repo, "blocks.md", "--agent", "shell", "--dirty", "ignore", "-s", sprite)
	h.run("", "cove", "job", "wait", shell)
	refused(1, "cove push -s "+sprite, shell, "x")
	h.run("", "cove", "rm", "--force", sprite)
	await(h.t, "the sprite is gone", func() bool {
		_, code := h.try("", "cove", "info", sprite)
		return code != 0
	})
	refused(1, "--sprite NAME", id, "x")
}
