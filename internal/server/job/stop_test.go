package job

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/cove-dev/cove"
)

// TestStopByLeaver: whoever asks to stop a job, and leaves, does not cut off what the supervisor is
// told. Else the job would run on for a while, and then end by force.
func TestStopByLeaver(t *testing.T) {
	ctx, leave := context.WithCancel(t.Context())
	asked, cut := 0, error(nil)
	m := inBubble(t, func(r *http.Request) (*http.Response, error) {
		if strings.HasSuffix(r.URL.Path, "/exec") {
			asked++
			leave()
			cut = r.Context().Err()
		}
		return nil, errors.New("the sprite does not answer")
	})
	job := m.row(t)
	if err := m.Store.Jobs.Update(ctx, job.ID, func(j *cove.Job) error { j.State = cove.JobRunning; return nil }); err != nil {
		t.Fatal(err)
	}
	if _, err := m.Stop(ctx, job.ID); err == nil || asked != 1 || cut != nil {
		t.Errorf("its supervisor was told %d times, until %v; the caller got %v", asked, cut, err)
	}
	if got, err := m.Store.Jobs.Get(t.Context(), job.ID); err != nil || !got.Stopping {
		t.Errorf("the job is %+v, %v", got.JobEnding, err)
	}
}
