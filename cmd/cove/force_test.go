package main

import (
	"strings"
	"testing"

	"github.com/cove-dev/cove"
)

// TestJobByForce: a job whose agent stops the supervisor, and does so again if that goes
// on, ends when it is stopped. What it had done can be pulled, and nothing of it runs on.
func TestJobByForce(t *testing.T) {
	h := newHost(t)
	h.serve(nil)
	freeze := "kill -STOP $(cat ~/.cove/jobs/*/lock)\ntouch ~/frozen\nwhile sleep 5; do kill -STOP $(cat ~/.cove/jobs/*/lock); done"
	h.repository("repo", map[string]string{"plan.md": "## One\n```sh\necho 1 > one.txt\n```\n## Two\n```sh\n" + freeze + "\n```\n"})
	id, sprite := h.push("repo", "plan.md", "--agent", "shell")
	h.run("", "cove", "exec", "-s", sprite, "sh", "-c", "until test -e ~/frozen; do sleep 0.2; done")
	h.run("", "cove", "job", "stop", id)
	h.try("", "cove", "job", "wait", id, "--timeout", "20m")
	job := h.job(id)
	if job.State != cove.JobCancelled || job.Outcome == nil || !strings.Contains(job.Outcome.Reason, "by force") || job.Commits != 1 {
		t.Fatalf("got %s, %+v, %d commits", job.State, job.Outcome, job.Commits)
	}
	h.try("repo", "cove", "pull", id)
	if got := h.run("repo", "git", "log", "--format=%s", "refs/cove/"+id+"/head"); got != "One\nfirst\n" {
		t.Errorf("commits: got %q", got)
	}
	if left := h.run("", "cove", "exec", "-s", sprite, "sh", "-c", "grep -lz ^COVE_JOB= /proc/[0-9]*/environ 2>/dev/null; true"); left != "" {
		t.Errorf("processes of the job are left: %s", left)
	}
}
