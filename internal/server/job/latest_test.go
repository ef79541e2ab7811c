package job

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/cove-dev/cove"
)

// TestLatest: a job shows the last line that it has said, in one line and within its bound.
// Everybody who follows the progress hears of it, and a follower that begins anew goes on with
// it.
func TestLatest(t *testing.T) {
	s := newSite(t)
	o := s.open(t.TempDir())
	job, err := o.client.CreateJob(t.Context(), farRequest())
	if err != nil {
		t.Fatal(err)
	}
	f := &follower{all: &followers{jobs: o.Store.Jobs, logger: o.jobSprites.steps.logger}, id: job.ID}
	seq := int64(0)
	tell := func(want string, events ...cove.JobEvent) {
		t.Helper()
		for i := range events {
			seq++
			events[i].Seq, events[i].Time = seq, time.Now()
		}
		if err := f.take(t.Context(), events); err != nil {
			t.Fatal(err)
		}
		got, err := o.Store.Jobs.Get(t.Context(), job.ID)
		if err != nil || got.Latest == nil || got.Latest.Said != want {
			t.Fatalf("the job has said %+v, %v; want %q", got.Latest, err, want)
		}
	}
	tell("Reading\u202e files", cove.JobEvent{Type: "output", Stream: "setup", Text: "first"}, cove.JobEvent{Type: "output", Stream: "setup", Text: "\x1b\x07Reading\u202e files\r\n"})
	tell("Reading\u202e files", cove.JobEvent{Type: "output", Stream: "setup", Text: "  "}, cove.JobEvent{Type: "notice", Text: "for people"})
	tell(strings.Repeat("é", 98)+"…", cove.JobEvent{Type: "output", Stream: "setup", Text: strings.Repeat("é", 5000)})
	changes, err := o.Store.Changes.After(t.Context(), []string{cove.TopicProgress}, job.ID, 0, 10)
	if err != nil || len(changes) != 1 || changes[0].Name != job.ID {
		t.Errorf("changes: %+v, %v", changes, err)
	}
	f.teller = nil
	tell(strings.Repeat("é", 98)+"…", cove.JobEvent{Type: "notice", Text: "for people"})
	tell("done", cove.JobEvent{Type: "output", Stream: "stdout", Text: "done"})
}

// TestLatestOnce: events that could not be stored are read again, and counted once.
func TestLatestOnce(t *testing.T) {
	m, client := newManager(t)
	job, err := client.CreateJob(t.Context(), request())
	if err == nil {
		err = m.Store.Jobs.Update(t.Context(), job.ID, func(j *cove.Job) error { j.Agent, j.State = "opencode", cove.JobRunning; return nil })
	}
	if err != nil {
		t.Fatal(err)
	}
	f := &follower{all: m.followers, id: job.ID}
	turn := func(seq int64) []cove.JobEvent {
		return []cove.JobEvent{{Seq: seq, Time: time.Now(), Type: "output", Stream: "stdout", Text: `{"type":"step_finish","part":{"reason":"tool-calls","cost":0.5}}`}}
	}
	if err := f.append(t.Context(), turn(1)); err != nil {
		t.Fatal(err)
	}
	cut, cancel := context.WithCancel(t.Context())
	cancel()
	if err := f.append(cut, turn(2)); err == nil {
		t.Fatal("events are stored in a context that has ended")
	}
	if err := f.append(t.Context(), turn(2)); err != nil {
		t.Fatal(err)
	}
	if got, err := m.Store.Jobs.Get(t.Context(), job.ID); err != nil || got.Latest == nil || got.Latest.Turns != 2 || got.Latest.CostUSD != 1 {
		t.Errorf("the job has %+v, %v", got.Latest, err)
	}
}
