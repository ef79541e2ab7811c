package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"slices"
	"time"
	"unicode/utf8"

	"github.com/cove-dev/cove"
)

// The steps of a job's preparation are rows of their own, since one that prints is written
// several times a second. A step that nothing is known of has no row: it is pending.

// Steps returns all steps of a job's preparation, in order. Those of a job that does not
// exist are pending.
func (j *Jobs) Steps(ctx context.Context, id string) ([]cove.Step, error) {
	known, err := readSteps(ctx, j.db.read, id)
	if err != nil {
		return nil, fmt.Errorf("steps of job %s: %w", id, err)
	}
	var steps []cove.Step
	for _, key := range cove.StepKeys() {
		steps = append(steps, *known.of(key))
	}
	return steps, nil
}

// UpdateStep changes a step in a transaction: f is given it as it is, and what it leaves is
// stored. A step that has ended stays as it is, and so do all of a job that has.
func (j *Jobs) UpdateStep(ctx context.Context, id string, key cove.StepKey, f func(*cove.Step)) error {
	err := j.db.update(ctx, func(tx *sql.Tx) error {
		job, err := getJob(ctx, tx, id)
		if err != nil || job.State.Terminal() {
			return err
		}
		known, err := readSteps(ctx, tx, id)
		if err != nil {
			return err
		}
		if s := known.of(key); !s.State.Ended() {
			f(s)
			known.changed(key)
		}
		return known.write(ctx, tx, id)
	})
	if err != nil {
		return fmt.Errorf("note step %s of job %s: %w", key, id, err)
	}
	j.notify(id)
	return nil
}

// BeginStep makes a step running, once more if it is already: then with no output.
func BeginStep(s *cove.Step, at time.Time) {
	s.State, s.StartedAt, s.Output = cove.StepRunning, &at, cove.StepOutput{}
	s.Attempt++
}

// EndStep ends a step, which may not have begun.
func EndStep(s *cove.Step, state cove.StepState, at time.Time) {
	if s.StartedAt == nil && state != cove.StepSkipped {
		s.StartedAt, s.Attempt = &at, 1
	}
	if s.StartedAt != nil && at.Before(*s.StartedAt) {
		at = *s.StartedAt // by another clock
	}
	s.State, s.EndedAt = state, &at
}

// steps are the steps of one job that have a row, or are getting one.
type steps struct {
	byKey map[cove.StepKey]*cove.Step
	dirty []cove.StepKey
}

func readSteps(ctx context.Context, q querier, id string) (*steps, error) {
	known := &steps{byKey: map[cove.StepKey]*cove.Step{}}
	all, err := collect(ctx, q, func(row scanner) (cove.Step, error) {
		var s cove.Step
		var doc []byte
		err := row.Scan(&doc)
		if err == nil {
			err = json.Unmarshal(doc, &s)
		}
		return s, err
	}, "SELECT doc FROM job_steps WHERE job = ?", id)
	for _, s := range all {
		known.byKey[s.Key] = &s
	}
	return known, err
}

func (k *steps) of(key cove.StepKey) *cove.Step {
	s := k.byKey[key]
	if s == nil {
		s = &cove.Step{Key: key, State: cove.StepPending}
		k.byKey[key] = s
	}
	keys := cove.StepKeys()
	s.Index, s.Total = slices.Index(keys, key)+1, len(keys)
	return s
}

// lastFailed is the last step, in their order, that has failed; empty: none has.
func (k *steps) lastFailed() (key cove.StepKey) {
	for _, s := range k.byKey {
		if s.State == cove.StepFailed && (key == "" || s.Index > k.byKey[key].Index) {
			key = s.Key
		}
	}
	return key
}

func (k *steps) changed(key cove.StepKey) {
	if !slices.Contains(k.dirty, key) {
		k.dirty = append(k.dirty, key)
	}
}

func (k *steps) write(ctx context.Context, tx *sql.Tx, id string) error {
	for _, key := range k.dirty {
		doc, err := json.Marshal(k.byKey[key])
		if err != nil {
			return err
		}
		_, err = tx.ExecContext(ctx, "INSERT INTO job_steps (job, key, doc) VALUES (?, ?, ?) ON CONFLICT (job, key) DO UPDATE SET doc = excluded.doc", id, key, string(doc))
		if err != nil {
			return err
		}
	}
	return nil
}

// supervisorSteps are those that a job's supervisor tells of. Of the others, the server alone
// knows: what is in a sprite, its agent can change.
var supervisorSteps = []cove.StepKey{cove.StepInstallAgent, cove.StepInstallDeps, cove.StepClone, cove.StepSetupScript, cove.StepConfigureAgent, cove.StepVerifyCommit}

// maxStepText bounds what a supervisor says of a step, in bytes.
const maxStepText = 4000

// foldSteps notes what new events tell of the steps.
func foldSteps(ctx context.Context, tx *sql.Tx, id string, events []cove.JobEvent) error {
	if !slices.ContainsFunc(events, tellsOfSteps) {
		return nil
	}
	known, err := readSteps(ctx, tx, id)
	if err != nil {
		return err
	}
	for _, ev := range events {
		switch ev.Type {
		case "step":
			known.turn(ev)
		case "output":
			if ev.Stream == "setup" {
				known.said(ev)
			}
		case "state":
			known.state(ev)
		}
	}
	return known.write(ctx, tx, id)
}

func tellsOfSteps(ev cove.JobEvent) bool {
	return ev.Type == "step" || ev.Type == "output" && ev.Stream == "setup" || ev.Type == "state"
}

// turn takes a change of a step's state.
func (k *steps) turn(ev cove.JobEvent) {
	if ev.Step == nil || !slices.Contains(supervisorSteps, ev.Step.Key) {
		return
	}
	s := k.of(ev.Step.Key)
	if s.State.Ended() {
		return
	}
	switch state := ev.Step.State; {
	case state == cove.StepRunning:
		for _, key := range supervisorSteps { // one runs at a time
			if other := k.of(key); other.State == cove.StepRunning && key != s.Key {
				EndStep(other, cove.StepFailed, ev.Time)
				other.Error = "its end was not reported"
				k.changed(key)
			}
		}
		BeginStep(s, ev.Time)
	case state.Ended():
		EndStep(s, state, ev.Time)
		s.TimedOut = state == cove.StepFailed && ev.Step.TimedOut
	default:
		return
	}
	for _, text := range []struct{ to, from *string }{{&s.Detail, &ev.Step.Detail}, {&s.Warning, &ev.Step.Warning}, {&s.Error, &ev.Step.Error}} {
		if *text.from != "" {
			*text.to = short(*text.from)
		}
	}
	k.changed(s.Key)
}

// said adds a line to the output of the step that runs.
func (k *steps) said(ev cove.JobEvent) {
	for _, key := range supervisorSteps {
		if s := k.of(key); s.State == cove.StepRunning {
			text := ev.Text
			if !ev.Cut {
				text += "\n"
			}
			s.Output.Append(text)
			k.changed(key)
		}
	}
}

// state takes a change of the job's state: a supervisor that says anything is well, and
// with the agent's start the preparation is over.
func (k *steps) state(ev cove.JobEvent) {
	for _, key := range cove.StepKeys() {
		s := k.of(key)
		heard := key == cove.StepStartSupervisor || key == cove.StepHealthCheck
		switch {
		case s.State.Ended() || !heard && ev.State != cove.JobRunning:
			continue
		case s.State == cove.StepRunning:
			EndStep(s, cove.StepCompleted, ev.Time)
		case ev.State == cove.JobRunning:
			EndStep(s, cove.StepSkipped, ev.Time)
		default:
			continue
		}
		k.changed(key)
	}
}

// endSteps ends the steps of a job that ends.
func endSteps(ctx context.Context, tx *sql.Tx, id string, job cove.Job) error {
	known, err := readSteps(ctx, tx, id)
	if err != nil {
		return err
	}
	at := now()
	for _, key := range cove.StepKeys() {
		s := known.of(key)
		switch {
		case s.State.Ended():
			continue
		case s.State == cove.StepRunning:
			EndStep(s, cove.StepFailed, at)
			s.Error = "the job ended: " + string(job.State)
			if job.Outcome != nil {
				s.Error = short(job.Outcome.Reason)
			}
			if job.Failure != nil {
				s.Error, s.Hint = short(job.Failure.Message), job.Failure.Hint
			}
		default:
			EndStep(s, cove.StepSkipped, at)
			s.Detail = "the job ended before this step"
		}
		known.changed(key)
	}
	return known.write(ctx, tx, id)
}

// short is a text within its bound.
func short(text string) string {
	if len(text) <= maxStepText {
		return text
	}
	n := maxStepText
	for n > 0 && !utf8.RuneStart(text[n]) {
		n--
	}
	return text[:n] + "…"
}
