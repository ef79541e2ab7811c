package job

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cove-dev/cove"
)

// TestStepLog: U11: the log has one line for each step that ends, whether the server or the
// supervisor says so. The line has the place, the job and the time it took.
func TestStepLog(t *testing.T) {
	s := newSite(t)
	o := s.open(t.TempDir())
	var log bytes.Buffer
	logger := slog.New(slog.NewJSONHandler(&log, nil))
	o.jobSprites.steps.logger = logger
	job, err := o.client.CreateJob(t.Context(), farRequest())
	if err != nil {
		t.Fatal(err)
	}
	f := &follower{all: &followers{jobs: o.Store.Jobs, logger: logger}, id: job.ID}
	began := time.Now().UTC().Add(-time.Hour)
	turn := func(seq int64, state cove.StepState, at time.Time) cove.JobEvent {
		return cove.JobEvent{Seq: seq, Type: "step", Time: at, Step: &cove.StepTurn{Key: cove.StepClone, State: state}}
	}
	batch := []cove.JobEvent{turn(1, cove.StepRunning, began), turn(2, cove.StepCompleted, began.Add(1500*time.Millisecond)), turn(3, cove.StepFailed, began)}
	for range 2 { // one that comes again is no other end
		if err := f.take(t.Context(), batch); err != nil {
			t.Fatal(err)
		}
	}
	var steps []string
	for line := range strings.Lines(log.String()) {
		var got struct {
			Job, Executor, Sprite, Step, State string
			Elapsed                            *int64 `json:"elapsed_ms"`
		}
		if err := json.Unmarshal([]byte(line), &got); err != nil {
			t.Fatal(err)
		}
		if got.Job != job.ID || got.Executor != "far" || got.Sprite != job.Sprite || got.State == "" || got.Elapsed == nil || *got.Elapsed < 0 {
			t.Errorf("got %s", line)
		}
		if steps = append(steps, got.Step); got.Step == string(cove.StepClone) && *got.Elapsed != 1500 {
			t.Errorf("the supervisor's own times: %s", line)
		}
	}
	want := []string{string(cove.StepCreateSprite), string(cove.StepApplyPolicy), string(cove.StepClone)}
	if steps = slices.DeleteFunc(steps, func(step string) bool { return !slices.Contains(want, step) }); !slices.Equal(steps, want) {
		t.Errorf("the steps are %v, want %v\n%s", steps, want, log.String())
	}
}
