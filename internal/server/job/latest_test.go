package job

import (
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
