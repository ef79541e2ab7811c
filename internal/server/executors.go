package server

import (
	"encoding/json"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/server/harness"
)

// maxTests bounds the tests of executors at once.
const maxTests = 8

// executorRoutes tests the places in which jobs work.
type executorRoutes struct {
	harness  *harness.Harness
	refusals refusals
	running  *quota
}

// test tells of each step of a test. A caller that goes away ends the test; the handler
// returns when nothing is left of it.
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
