package jobs

import (
	"encoding/json"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/test/e2e"
)

// stepsOf returns the steps of a job, by key.
func stepsOf(h *e2e.Host, job string) map[cove.StepKey]cove.Step {
	h.T.Helper()
	var all cove.JobSteps
	if err := json.Unmarshal([]byte(h.Run("", "cove", "job", "steps", "--json", job)), &all); err != nil {
		h.T.Fatal(err)
	}
	byKey := map[cove.StepKey]cove.Step{}
	for _, s := range all.Steps {
		byKey[s.Key] = s
	}
	return byKey
}

// TestSteps: a job's preparation is shown step by step, with the output of its commands, to
// early and to late followers. A server that is killed in the middle loses none of it.
func TestSteps(t *testing.T) {
	in := newInstaller(t)
	in.Write("repo/.cove/setup.sh", "echo setting up; until test -e ~/on; do sleep 0.1; done; echo is set up; echo x >left\n")
	in.Run(in.repo, "git", "add", ".cove")
	in.Run(in.repo, "git", "commit", "-q", "-m", "Set up")
	job, _, pushed := in.begin("pushed")
	followed := newFollower(in.Host, "job", "steps", "-f", job)
	e2e.Await(t, "the installation's output", func() bool {
		s := stepsOf(in.Host, job)[cove.StepInstallAgent]
		return s.State == cove.StepRunning && strings.Contains(s.Output.String(), "fetching the parts\n")
	})
	if s := stepsOf(in.Host, job)[cove.StepCreateSprite]; s.State != cove.StepPending {
		t.Errorf("before the installation has ended: %+v", s)
	}
	in.restart(syscall.SIGKILL, job)
	in.release()
	if _, err := pushed(); err != nil {
		t.Fatalf("push: %v: %s", err, in.said("pushed"))
	}
	e2e.Await(t, "the script's output", func() bool {
		s := stepsOf(in.Host, job)[cove.StepSetupScript]
		return s.State == cove.StepRunning && s.Output.String() == "setting up\n"
	})
	in.EndServer(syscall.SIGKILL)
	in.Sh("job-"+job, "touch ~/on")
	in.Run(in.repo, "cove", "job", "wait", job)

	steps := stepsOf(in.Host, job)
	for key, want := range map[cove.StepKey]cove.StepState{
		cove.StepInstallAgent: cove.StepCompleted, cove.StepCreateSprite: cove.StepCompleted, cove.StepApplyPolicy: cove.StepCompleted,
		cove.StepProbeArch: cove.StepSkipped, cove.StepUploadSupervisor: cove.StepSkipped, cove.StepUploadRepository: cove.StepCompleted,
		cove.StepCopySettings: cove.StepCompleted, cove.StepStartSupervisor: cove.StepCompleted, cove.StepHealthCheck: cove.StepCompleted,
		cove.StepInstallDeps: cove.StepSkipped, cove.StepClone: cove.StepCompleted, cove.StepSetupScript: cove.StepCompleted,
		cove.StepConfigureAgent: cove.StepSkipped, cove.StepVerifyCommit: cove.StepCompleted,
	} {
		if got := steps[key]; got.State != want || got.EndedAt == nil || got.Error != "" {
			t.Errorf("%s: got %+v, want %s", key, got, want)
		}
	}
	if s := steps[cove.StepInstallAgent]; s.Attempt < 2 {
		t.Errorf("the server was killed in it: %+v", s)
	}
	if s := steps[cove.StepSetupScript]; s.Output.String() != "setting up\nis set up\n" {
		t.Errorf("the script: %q", s.Output)
	}
	if s := steps[cove.StepVerifyCommit]; !strings.Contains(s.Warning, "left") {
		t.Errorf("the script has left a file: %+v", s)
	}
	out, err := followed.end()
	if err != nil {
		t.Fatalf("steps -f: %v: %s", err, out)
	}
	for _, line := range []string{"== setup_script", "setting up", "is set up", "== install_agent"} {
		n := 0
		for got := range strings.Lines(out) {
			if strings.TrimSpace(got) == line {
				n++
			}
		}
		if n < 1 || n > 1 && line != "== install_agent" {
			t.Errorf("steps -f has %q %d times:\n%s", line, n, out)
		}
	}
	for _, key := range cove.StepKeys() {
		if n := strings.Count(out, "-- "+string(key)+" "); n != 1 {
			t.Errorf("steps -f tells of %s's end %d times:\n%s", key, n, out)
		}
	}
	if late := in.Run("", "cove", "job", "steps", "-f", job); !strings.Contains(late, "setting up\nis set up\n") {
		t.Errorf("who comes late is told:\n%s", late)
	}
	if logs := in.Run("", "cove", "job", "logs", job); !strings.Contains(logs, "-- the preparation has left changes in the work tree: ?? left") {
		t.Errorf("the log:\n%s", logs)
	}
}

// TestStepsOfFailure: the step that failed has the error and the last of its output, and each
// other one has an end.
func TestStepsOfFailure(t *testing.T) {
	h := e2e.NewHost(t)
	repo := h.Repository("repo", map[string]string{"plan.md": "## One\n```sh\ntrue\n```\n", ".cove/setup.sh": "echo looking; echo no such package >&2; exit 9\n"})
	h.Serve(nil)
	job, _ := h.Push(repo, "plan.md", "--agent", "shell")
	h.Try("", "cove", "job", "wait", job)
	steps := stepsOf(h, job)
	if s := steps[cove.StepSetupScript]; s.State != cove.StepFailed || !strings.Contains(s.Error, "exited with 9") || s.Output.String() != "looking\nno such package\n" {
		t.Errorf("got %+v", s)
	}
	if s := steps[cove.StepVerifyCommit]; s.State != cove.StepSkipped {
		t.Errorf("after it: %+v", s)
	}
	keys := cove.StepKeys()
	if i := slices.IndexFunc(keys, func(key cove.StepKey) bool { return !steps[key].State.Ended() }); i >= 0 {
		t.Errorf("%s has no end", keys[i])
	}
	if out := h.Run("", "cove", "job", "steps", job); !strings.Contains(out, "setup_script failed: ") || !strings.Contains(out, "the last lines of its output:\nlooking\nno such package\n") {
		t.Errorf("got:\n%s", out)
	}
}
