package server

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"time"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/server/sprite"
	"github.com/cove-dev/cove/internal/server/stephint"
	"github.com/cove-dev/cove/internal/server/store"
)

// steps tells the progress of a job's preparation; with follow, also the changes until it is
// over.
func (g jobRecords) steps(w http.ResponseWriter, r *http.Request) error {
	follow, err := flag(r, "follow")
	if err != nil {
		return err
	}
	changed, cancel := g.jobs.Watch(r.PathValue("id"))
	defer cancel()
	all, err := g.readSteps(r)
	if err != nil {
		return err
	}
	if !follow {
		writeJSON(w, http.StatusOK, all)
		return nil
	}
	w.Header().Set("Content-Type", "application/x-ndjson")
	enc, teller := json.NewEncoder(w), &stepTeller{}
	send := func() error {
		for _, news := range teller.news(all) {
			if err := enc.Encode(news); err != nil {
				return err
			}
		}
		return nil
	}
	err = send()
	quiet := time.NewTicker(eventInterval)
	defer quiet.Stop()
	flush := http.NewResponseController(w).Flush
	for err == nil && !all.Over() {
		if err = flush(); err != nil {
			break
		}
		select {
		case <-changed:
			all, err = g.readSteps(r)
			if e, ok := errors.AsType[*fail.Error](err); ok && e.Code == sprite.CodeNotFound {
				return nil // it has been deleted
			}
			if err != nil { // too late for an answer: cut the stream
				panic(http.ErrAbortHandler)
			}
			err = send()
		case <-quiet.C:
			_, err = io.WriteString(w, "\n")
		case <-r.Context().Done():
			return nil
		}
	}
	if err == nil {
		_ = enc.Encode(cove.StepNews{Over: true}) // it may have gone
	}
	return nil
}

func (g jobRecords) readSteps(r *http.Request) (cove.JobSteps, error) {
	job, err := g.job(r)
	if err != nil {
		return cove.JobSteps{}, err
	}
	return stepsOf(r.Context(), g.jobs, job)
}

func stepsOf(ctx context.Context, jobs *store.Jobs, job cove.Job) (cove.JobSteps, error) {
	steps, err := jobs.Steps(ctx, job.ID)
	stephint.Fill(job, steps)
	return cove.JobSteps{Job: job.ID, State: job.State, Steps: steps}, err
}

// stepTeller knows what a client has been told of the steps of a job. The zero value has told nothing.
type stepTeller struct {
	steps []cove.Step // without their output
	sizes []int64     // of their output
}

// news is what has changed since the last call: at first, a snapshot.
func (s *stepTeller) news(all cove.JobSteps) (list []cove.StepNews) {
	first := s.steps == nil
	if first {
		s.steps, s.sizes = make([]cove.Step, len(all.Steps)), make([]int64, len(all.Steps))
		list = append(list, cove.StepNews{Snapshot: &all})
	}
	for i, step := range all.Steps {
		last := s.sizes[i]
		if step.Attempt != s.steps[i].Attempt {
			last = 0 // it has begun anew
		}
		at, text := step.Output.From(last)
		size := step.Output.Size()
		step.Output = cove.StepOutput{}
		if !first && (text != "" || !sameStep(s.steps[i], step)) {
			list = append(list, cove.StepNews{Step: &step, At: at, Text: text})
		}
		s.steps[i], s.sizes[i] = step, size
	}
	return list
}

// sameStep compares steps without their output.
func sameStep(a, b cove.Step) bool {
	return a.State == b.State && a.Attempt == b.Attempt && a.Detail == b.Detail && a.Warning == b.Warning && a.Error == b.Error && a.Hint == b.Hint
}
