package supervise_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/cove-dev/cove"
)

// turns are the steps in a job's log, with their last state.
func turns(t *testing.T, j *job) (order []cove.StepKey, last map[cove.StepKey]cove.StepTurn) {
	t.Helper()
	last = map[cove.StepKey]cove.StepTurn{}
	for _, ev := range j.events() {
		if ev.Type != "step" {
			continue
		}
		before, begun := last[ev.Step.Key]
		switch {
		case !begun && ev.Step.State != cove.StepRunning:
			t.Errorf("%s begins as %s", ev.Step.Key, ev.Step.State)
		case begun && (before.State.Ended() || !ev.Step.State.Ended()):
			t.Errorf("%s: %s after %s", ev.Step.Key, ev.Step.State, before.State)
		case !begun:
			order = append(order, ev.Step.Key)
		}
		last[ev.Step.Key] = *ev.Step
	}
	for key, turn := range last {
		if !turn.State.Ended() {
			t.Errorf("%s has no end", key)
		}
	}
	return order, last
}

var supervisors = []cove.StepKey{
	cove.StepInstallDeps, cove.StepClone, cove.StepSetupScript, cove.StepInstallAgent, cove.StepConfigureAgent, cove.StepVerifyCommit,
}

// TestSteps: each step of the preparation begins and ends once in the log, however it goes.
func TestSteps(t *testing.T) {
	j := newJob(t, "true")
	j.run()
	order, last := turns(t, j)
	if !slices.Equal(order, supervisors) {
		t.Errorf("got %q, want %q", order, supervisors)
	}
	want := map[cove.StepKey]cove.StepState{
		cove.StepInstallDeps: cove.StepSkipped, cove.StepClone: cove.StepCompleted, cove.StepSetupScript: cove.StepSkipped,
		cove.StepInstallAgent: cove.StepSkipped, cove.StepConfigureAgent: cove.StepSkipped, cove.StepVerifyCommit: cove.StepCompleted,
	}
	for key, state := range want {
		if got := last[key]; got.State != state || got.Detail == "" || got.Warning != "" || got.Error != "" {
			t.Errorf("%s: got %+v, want %s", key, got, state)
		}
	}
	if got := last[cove.StepVerifyCommit]; !strings.HasPrefix(j.spec.Base, strings.Fields(got.Detail)[0]) || !strings.HasSuffix(got.Detail, " on topic") {
		t.Errorf("verified: %q", got.Detail)
	}
}

// TestStepsTellOfChanges: the job reports changes that the preparation leaves in the clone. If
// the preparation has replaced the clone, the job ends before the agent runs.
func TestStepsTellOfChanges(t *testing.T) {
	for _, test := range []struct {
		name, script   string
		warning, fault string
	}{
		{"a file", "echo x >made; echo y >>README", "README, ", ""},
		{"many files", "for i in 1 2 3 4 5 6 7 8; do echo x >f$i; done", " and 3 more", ""},
		{"a commit", "git commit -q --allow-empty -m more", "made commits", ""},
		{"another branch", "git checkout -q -b other", "", "of branch other"},
		{"no branch", "git checkout -q --detach", "", "no branch any more"},
		{"another history", "git checkout -q --orphan x && git commit -q -m x && git branch -M topic", "", "must have changed it"},
		{"no repository", "rm -rf .git", "", "git"},
		{"an early end", "exit 0; false", "", ""},
		{"another folder", "cd /; exec true", "", ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			j := withScript(t, t.TempDir(), "true", test.script+"\n")
			end := j.run()
			order, last := turns(t, j)
			if !slices.Equal(order, supervisors) {
				t.Errorf("got %q, want %q", order, supervisors)
			}
			got := last[cove.StepVerifyCommit]
			if !strings.Contains(got.Warning, test.warning) || (got.Warning == "") != (test.warning == "") ||
				!strings.Contains(got.Error, test.fault) || (got.State == cove.StepFailed) != (test.fault != "") {
				t.Errorf("got %+v, want the warning %q, the error %q", got, test.warning, test.fault)
			}
			if (end.Phase == "prepare") != (test.fault != "") {
				t.Errorf("the job ended in phase %s: %s", end.Phase, end.Reason)
			}
		})
	}
}

// TestStepFails: the step that failed says why, and none comes after it.
func TestStepFails(t *testing.T) {
	j := newJob(t, "true")
	j.spec.Installs = 1
	j.spec.Setup = [][]string{{"/bin/sh", "-c", "echo fetching; echo it is missing >&2; exit 5"}}
	end := j.run()
	order, last := turns(t, j)
	if want := supervisors[:4]; !slices.Equal(order, want) {
		t.Errorf("got %q, want %q", order, want)
	}
	if got := last[cove.StepInstallAgent]; got.State != cove.StepFailed || !strings.Contains(got.Error, "it is missing") {
		t.Errorf("got %+v", got)
	}
	if got := outputOf(j, "setup"); got != "fetching\nit is missing" {
		t.Errorf("the log has %q", got)
	}
	if end.Phase != "prepare" {
		t.Errorf("got %+v", end)
	}
}

// TestDeps: git and Node.js are installed where they are missing, by the package manager that
// there is.
func TestDeps(t *testing.T) {
	for _, test := range []struct {
		name, manager string
		state         cove.StepState
		want          string
	}{
		{"apt", "apt-get", cove.StepCompleted, "apt-get update -q\napt-get install -y -q --no-install-recommends nodejs npm\n"},
		{"apk", "apk", cove.StepCompleted, "apk add --no-cache nodejs npm\n"},
		{"dnf", "dnf", cove.StepCompleted, "dnf install -y -q nodejs npm\n"},
		{"none", "", cove.StepFailed, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			j := newJob(t, "true")
			bin := t.TempDir()
			log := bin + "/log"
			j.tools(bin, "git", "sh", "id", "env")
			if test.manager != "" {
				j.program(bin+"/"+test.manager, "echo "+test.manager+" \"$@\" >>"+log+"; if [ \"$1\" != update ]; then printf '#!/bin/sh\\n' >"+bin+"/node; /bin/chmod 755 "+bin+"/node; fi")
			}
			j.program(bin+"/sudo", "shift; exec \"$@\"")
			j.spec.Program, j.spec.Needs = "an-agent-that-is-not-there", []string{"node"}
			j.path = bin
			end := j.run()
			_, last := turns(t, j)
			got := last[cove.StepInstallDeps]
			if got.State != test.state {
				t.Fatalf("got %+v, want %s; the job ended as %+v", got, test.state, end)
			}
			if test.want == "" {
				if !strings.Contains(got.Error, "no node") || !strings.Contains(got.Error, "none of the package managers") {
					t.Errorf("got %q", got.Error)
				}
				return
			}
			if said := j.read(log); said != test.want {
				t.Errorf("ran %q, want %q", said, test.want)
			}
		})
	}
}
