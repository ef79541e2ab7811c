package job

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/server/store"
	"github.com/cove-dev/cove/sprites"
)

// inBubble is a manager without a server. It makes its calls by the function.
func inBubble(t *testing.T, call roundTrip) *Manager {
	t.Helper()
	st, err := store.Open(t.Context(), filepath.Join(t.TempDir(), "cove.db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = st.Close() })
	m := &Manager{Store: st, Logger: slog.New(slog.DiscardHandler), Client: &cove.Client{Client: &sprites.Client{URL: "http://cove", HTTPClient: &http.Client{Transport: call}}}}
	m.build("00000000")
	m.followers.Start(context.WithoutCancel(t.Context()))
	t.Cleanup(m.followers.Close)
	return m
}

// row makes a queued job without a sprite.
func (m *Manager) row(t *testing.T) cove.Job {
	t.Helper()
	req := request()
	settings, err := json.Marshal(req)
	if err != nil {
		t.Fatal(err)
	}
	job := newRow(req, made{}, m.DefaultTimeout)
	job.Sprite = "job-" + job.ID
	if err := keep(t.Context(), m.Store.Jobs, job, req, settings); err != nil {
		t.Fatal(err)
	}
	return job
}

// TestLaunchHangs: if the start of a supervisor takes all of its time, its job fails all the
// same. If the failure can't be stored, the job is followed, so that it ends later.
func TestLaunchHangs(t *testing.T) {
	for _, stored := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			var m *Manager
			m = inBubble(t, func(r *http.Request) (*http.Response, error) {
				status, text := http.StatusNotFound, `{"error":"not_found"}`
				switch {
				case r.Method == http.MethodPut && strings.HasSuffix(r.URL.Path, "/fs/write"):
					_, _ = io.Copy(io.Discard, r.Body)
					status, text = http.StatusOK, `{}`
				case strings.HasSuffix(r.URL.Path, "/exec"):
					<-r.Context().Done()
					<-time.After(time.Second) // other limits end at the same moment
					if !stored {
						_ = m.Store.Close()
					}
					return nil, r.Context().Err()
				}
				return &http.Response{StatusCode: status, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(strings.NewReader(text)), Request: r}, nil
			})
			job := m.row(t)
			if _, err := m.starter.begin(t.Context(), job, cove.JobStart{}); err == nil || stored && code(err) != "start_failed" {
				t.Errorf("got %v", err)
			}
			if !stored {
				m.followers.mu.Lock()
				defer m.followers.mu.Unlock()
				if m.followers.following[job.ID] == nil {
					t.Error("the job is not followed")
				}
				return
			}
			if got, err := m.Store.Jobs.Get(t.Context(), job.ID); err != nil || got.State != cove.JobFailed || !strings.Contains(got.Error, "start_supervisor took longer than the 2m0s") {
				t.Errorf("the job is %+v, %v", got, err)
			}
		})
	}
}
