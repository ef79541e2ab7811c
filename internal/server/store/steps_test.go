package store

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cove-dev/cove"
)

// stepOf is a step as the store has it.
func stepOf(t *testing.T, s *Store, job string, key cove.StepKey) cove.Step {
	t.Helper()
	all, err := s.Jobs.Steps(t.Context(), job)
	must(t, err)
	if len(all) != len(cove.StepKeys()) {
		t.Fatalf("got %d steps, want %d", len(all), len(cove.StepKeys()))
	}
	for i, step := range all {
		if step.Index != i+1 || step.Total != len(all) || step.Key != cove.StepKeys()[i] {
			t.Fatalf("step %d: %+v", i, step)
		}
		if step.Key == key {
			return step
		}
	}
	t.Fatalf("no step %s", key)
	return cove.Step{}
}

func withJob(t *testing.T) *Store {
	t.Helper()
	s, err := Open(t.Context(), filepath.Join(t.TempDir(), "cove.db"))
	must(t, err)
	t.Cleanup(func() { must(t, s.Close()) })
	must(t, s.Jobs.Create(t.Context(), cove.Job{ID: "a", State: cove.JobInstalling}, nil))
	return s
}

// TestStepEndsOnce: a step that has ended stays as it is, as does each of a job that has.
func TestStepEndsOnce(t *testing.T) {
	s := withJob(t)
	ctx := t.Context()
	begin := func(step *cove.Step) { BeginStep(step, time.Now()) }
	end := func(state cove.StepState) func(*cove.Step) {
		return func(step *cove.Step) { EndStep(step, state, time.Now()) }
	}
	if got := stepOf(t, s, "a", cove.StepClone); got.State != cove.StepPending || got.StartedAt != nil {
		t.Errorf("before: %+v", got)
	}
	must(t, s.Jobs.UpdateStep(ctx, "a", cove.StepCreateSprite, begin))
	must(t, s.Jobs.UpdateStep(ctx, "a", cove.StepCreateSprite, begin)) // by the next server
	if got := stepOf(t, s, "a", cove.StepCreateSprite); got.State != cove.StepRunning || got.Attempt != 2 {
		t.Errorf("begun twice: %+v", got)
	}
	must(t, s.Jobs.UpdateStep(ctx, "a", cove.StepCreateSprite, end(cove.StepCompleted)))
	must(t, s.Jobs.UpdateStep(ctx, "a", cove.StepCreateSprite, end(cove.StepFailed)))
	must(t, s.Jobs.UpdateStep(ctx, "a", cove.StepCreateSprite, begin))
	if got := stepOf(t, s, "a", cove.StepCreateSprite); got.State != cove.StepCompleted || got.EndedAt == nil {
		t.Errorf("ended: %+v", got)
	}
	must(t, s.Jobs.UpdateStep(ctx, "a", cove.StepCopySettings, begin))
	_, err := s.Jobs.Finish(ctx, "a", cove.JobCancelled, cove.Outcome{Kind: "cancelled", Reason: "somebody asked for it"}, nil)
	must(t, err)
	if got := stepOf(t, s, "a", cove.StepCopySettings); got.State != cove.StepFailed || got.Error != "somebody asked for it" {
		t.Errorf("cut off: %+v", got)
	}
	if got := stepOf(t, s, "a", cove.StepVerifyCommit); got.State != cove.StepSkipped || got.Detail == "" {
		t.Errorf("never begun: %+v", got)
	}
	must(t, s.Jobs.UpdateStep(ctx, "a", cove.StepVerifyCommit, begin))
	if got := stepOf(t, s, "a", cove.StepVerifyCommit); got.State != cove.StepSkipped {
		t.Errorf("of a job that has ended: %+v", got)
	}
	must(t, s.Jobs.Delete(ctx, "a"))
	var rows int
	must(t, s.db.read.QueryRowContext(ctx, "SELECT count(*) FROM job_steps").Scan(&rows))
	if rows != 0 {
		t.Errorf("%d steps of a job that was deleted", rows)
	}
}

// TestStepsOfSupervisor: a supervisor's log tells of its own steps, and of no others.
func TestStepsOfSupervisor(t *testing.T) {
	s := withJob(t)
	ctx := t.Context()
	seq := int64(0)
	tell := func(events ...cove.JobEvent) {
		t.Helper()
		for i := range events {
			seq++
			events[i].Seq, events[i].Time = seq, time.Now()
		}
		must(t, s.Jobs.AppendEvents(ctx, "a", events))
		must(t, s.Jobs.AppendEvents(ctx, "a", events)) // a batch may come twice
	}
	turn := func(key cove.StepKey, state cove.StepState, why string) cove.JobEvent {
		return cove.JobEvent{Type: "step", Step: &cove.StepTurn{Key: key, State: state, Error: why}}
	}
	must(t, s.Jobs.UpdateStep(ctx, "a", cove.StepHealthCheck, func(step *cove.Step) { BeginStep(step, time.Now()) }))
	tell(cove.JobEvent{Type: "state", State: cove.JobPreparing})
	if got := stepOf(t, s, "a", cove.StepHealthCheck); got.State != cove.StepCompleted {
		t.Errorf("the supervisor was heard: %+v", got)
	}
	tell(
		turn(cove.StepCreateSprite, cove.StepFailed, "a lie"),
		turn("no such step", cove.StepRunning, ""),
		turn(cove.StepClone, "no such state", ""),
		cove.JobEvent{Type: "step"},
		turn(cove.StepSetupScript, cove.StepRunning, ""),
		cove.JobEvent{Type: "output", Stream: "setup", Text: "ha"},
		cove.JobEvent{Type: "output", Stream: "stdout", Text: "the agent's"},
	)
	tell(cove.JobEvent{Type: "output", Stream: "setup", Text: "lf", Cut: true}, cove.JobEvent{Type: "output", Stream: "setup", Text: "way"})
	for _, key := range []cove.StepKey{cove.StepCreateSprite, cove.StepClone} {
		if got := stepOf(t, s, "a", key); got.State != cove.StepPending || got.Error != "" {
			t.Errorf("%s: %+v", key, got)
		}
	}
	if got := stepOf(t, s, "a", cove.StepSetupScript); got.State != cove.StepRunning || got.Output.String() != "ha\nlfway\n" {
		t.Errorf("the script: %+v", got)
	}
	tell(turn(cove.StepSetupScript, cove.StepFailed, strings.Repeat("x", 1<<20)))
	tell(turn(cove.StepSetupScript, cove.StepCompleted, ""), cove.JobEvent{Type: "output", Stream: "setup", Text: "late"})
	if got := stepOf(t, s, "a", cove.StepSetupScript); got.State != cove.StepFailed || len(got.Error) > 5000 || got.Output.String() != "ha\nlfway\n" {
		t.Errorf("the script's end: state %s, an error of %d bytes, output %q", got.State, len(got.Error), got.Output)
	}
	tell(cove.JobEvent{Type: "state", State: cove.JobRunning})
	for _, key := range cove.StepKeys() {
		if got := stepOf(t, s, "a", key); !got.State.Ended() {
			t.Errorf("the agent runs, and %s is %s", key, got.State)
		}
	}
}
