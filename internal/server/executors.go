package server

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/server/harness"
	"github.com/cove-dev/cove/internal/server/store"
	"github.com/cove-dev/cove/sprites"
)

// maxTests bounds the tests of executors at once.
const maxTests = 8

// statusLimit is for how long executors are asked whether they are there.
const statusLimit = 10 * time.Second

// unended are the states of jobs that have not ended.
var unended = []cove.JobState{cove.JobInstalling, cove.JobQueued, cove.JobPreparing, cove.JobRunning, cove.JobWaiting}

// executorRoutes tests the places where jobs work.
type executorRoutes struct {
	harness  *harness.Harness
	refusals refusals
	running  *quota

	backends *store.Backends
	jobs     *store.Jobs
	client   *cove.Client // of the server's own
}

// list asks each executor for a sign of life: one page of its sprites. None waits for another.
func (g *executorRoutes) list(w http.ResponseWriter, r *http.Request) error {
	backends, err := g.backends.List(r.Context())
	if err != nil {
		return err
	}
	jobs, err := g.jobs.List(r.Context(), store.JobFilter{States: unended})
	if err != nil {
		return err
	}
	list := cove.ExecutorList{Executors: make([]cove.ExecutorStatus, 1+len(backends))}
	ctx, cancel := context.WithTimeout(r.Context(), statusLimit)
	defer cancel()
	var asking sync.WaitGroup
	for i := range list.Executors {
		e := &list.Executors[i]
		if i > 0 {
			e.Backend, e.URL = backends[i-1].Name, backends[i-1].URL
		}
		for _, job := range jobs {
			if job.Backend == e.Backend {
				e.Jobs++
			}
		}
		asking.Go(func() { g.ask(ctx, e) })
	}
	asking.Wait()
	writeJSON(w, http.StatusOK, list)
	return nil
}

func (g *executorRoutes) ask(ctx context.Context, e *cove.ExecutorStatus) {
	begun := time.Now()
	_, err := g.client.At(e.Backend).List(ctx, sprites.ListOptions{MaxResults: 1})
	e.MS, e.Connected = float64(time.Since(begun).Microseconds())/1000, err == nil
	if err == nil {
		return
	}
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		err = fail.Newf("timeout", "check the connection: cove ping --backend "+e.Backend, "the backend %s did not answer within %s", e.Backend, statusLimit)
	}
	_, body := g.refusals.describe(err)
	if b, ok := body.(sprites.ErrorBody); ok {
		e.Error = &b
	}
}

// test tells of each step of a test. A caller that goes away ends the test; the handler
// returns when nothing of the test is left.
func (g *executorRoutes) test(w http.ResponseWriter, r *http.Request) error {
	var req cove.ExecutorTest
	if err := readObject(w, r, maxBody, &req, "the test", `it is {"backend":"NAME"}, or {} for the server itself`); err != nil {
		return err
	}
	done, err := g.running.add(principalOf(r))
	if err != nil {
		return err
	}
	defer done()
	trial, err := g.harness.Prepare(r.Context(), req)
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/x-ndjson")
	w.WriteHeader(http.StatusOK)
	lines := &newsLines{w: w, rc: http.NewResponseController(w)}
	lines.flush()
	stop := make(chan struct{})
	var telling sync.WaitGroup
	telling.Go(func() { lines.keepUp(stop) })
	defer telling.Wait() // w is of no use after this handler
	defer close(stop)
	trial.Run(r.Context(), lines.tell)
	return nil
}

// newsLines writes the news of a test. Whether anybody reads them is the context's to say.
type newsLines struct {
	mu sync.Mutex
	w  io.Writer
	rc *http.ResponseController
}

func (l *newsLines) flush() { _ = l.rc.Flush() }

func (l *newsLines) tell(news cove.ExecutorNews) {
	l.mu.Lock()
	defer l.mu.Unlock()
	_ = json.NewEncoder(l.w).Encode(news)
	l.flush()
}

// keepUp writes an empty line now and then, until stop is closed.
func (l *newsLines) keepUp(stop <-chan struct{}) {
	tick := time.NewTicker(aliveInterval)
	defer tick.Stop()
	for {
		select {
		case <-stop:
			return
		case <-tick.C:
		}
		l.mu.Lock()
		_, _ = io.WriteString(l.w, "\n")
		l.flush()
		l.mu.Unlock()
	}
}
