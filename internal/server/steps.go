package server

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"time"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/server/sprite"
	"github.com/cove-dev/cove/internal/server/stephint"
)

// steps tells how far the preparation of a job is; with follow, what changes until it is over.
func (g *jobRoutes) steps(w http.ResponseWriter, r *http.Request) error {
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
	stream := &stepStream{enc: json.NewEncoder(w), sent: all.Steps}
	err = stream.enc.Encode(cove.StepNews{Snapshot: &all})
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
			err = stream.send(all.Steps)
		case <-quiet.C:
			_, err = io.WriteString(w, "\n")
		case <-r.Context().Done():
			return nil
		}
	}
	if err == nil {
		_ = stream.enc.Encode(cove.StepNews{Over: true}) // it may have gone
	}
	return nil
}

func (g *jobRoutes) readSteps(r *http.Request) (cove.JobSteps, error) {
	job, err := g.job(r)
	if err != nil {
		return cove.JobSteps{}, err
	}
	steps, err := g.jobs.Steps(r.Context(), job.ID)
	stephint.Fill(job, steps)
	return cove.JobSteps{Job: job.ID, State: job.State, Steps: steps}, err
}

// stepStream sends a client what has changed in the steps of a job.
type stepStream struct {
	enc  *json.Encoder
	sent []cove.Step
}

func (s *stepStream) send(steps []cove.Step) error {
	for i, step := range steps {
		last := s.sent[i].Output.Size()
		if step.Attempt != s.sent[i].Attempt {
			last = 0 // it has begun anew
		}
		at, text := step.Output.From(last)
		news := cove.StepNews{Step: &step, At: at, Text: text}
		output := step.Output
		step.Output = cove.StepOutput{}
		before := s.sent[i]
		before.Output = cove.StepOutput{}
		if text == "" && sameStep(before, step) {
			continue
		}
		if err := s.enc.Encode(news); err != nil {
			return err
		}
		s.sent[i] = step
		s.sent[i].Output = output
	}
	return nil
}

// sameStep compares steps without their output.
func sameStep(a, b cove.Step) bool {
	return a.State == b.State && a.Attempt == b.Attempt && a.Detail == b.Detail && a.Warning == b.Warning && a.Error == b.Error && a.Hint == b.Hint
}
