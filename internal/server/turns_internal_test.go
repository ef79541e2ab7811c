package server

import (
	"bufio"
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/server/store"
)

// TestTurns: a token has one turn at a time, and the server's owner waits for nobody. A caller
// that gives up leaves nothing.
func TestTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turns := newTurns()
		turns.all = make(chan struct{}, 2)
		take := func(p principal) func() {
			done, err := turns.take(t.Context(), p)
			if err != nil {
				t.Error(err)
			}
			return done
		}
		a := principal{name: "a"}
		done := take(a)
		waiting := make(chan func(), 1)
		go func() { waiting <- take(a) }()
		synctest.Wait()
		if len(waiting) != 0 {
			t.Fatal("a token has two turns at a time")
		}
		take(principal{name: "b"})()
		take(principal{name: "owner", owner: true})()

		ctx, cancel := context.WithCancel(t.Context())
		gone := make(chan error, 1)
		go func() {
			_, err := turns.take(ctx, a)
			gone <- err
		}()
		synctest.Wait()
		cancel()
		if err := <-gone; !errors.Is(err, context.Canceled) {
			t.Errorf("one that gave up: got %v", err)
		}
		done()
		(<-waiting)()

		// All tokens together have as many as there are.
		one, two := take(principal{name: "c"}), take(principal{name: "d"})
		go func() { waiting <- take(a) }()
		synctest.Wait()
		if len(waiting) != 0 {
			t.Error("there are more turns than places")
		}
		take(principal{name: "owner", owner: true})()
		one()
		two()
		(<-waiting)()
		if len(turns.by) != 0 || len(turns.all) != 0 {
			t.Errorf("turns that are over: got %d tokens, %d places", len(turns.by), len(turns.all))
		}
	})
}

// TestEventsTakeTurns: a stream of events reads nothing while its token has another turn. The owner's does, and a
// client that takes nothing keeps no turn.
func TestEventsTakeTurns(t *testing.T) {
	st, err := store.Open(t.Context(), filepath.Join(t.TempDir(), "cove.db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = st.Close() })
	job := cove.Job{ID: "0a1b2c", State: cove.JobRunning, CreatedAt: time.Now(), JobSettings: cove.JobSettings{Agent: "claude"}}
	if err := st.Jobs.Create(t.Context(), job, nil); err != nil {
		t.Fatal(err)
	}
	var events []cove.JobEvent
	for seq := range int64(400) { // more than a connection takes
		events = append(events, cove.JobEvent{Seq: seq + 1, Type: "output", Stream: "stdout", Text: strings.Repeat("x", 64<<10)})
	}
	if err := st.Jobs.Append(t.Context(), job.ID, events, nil); err != nil {
		t.Fatal(err)
	}
	g := jobRecords{&jobRoutes{jobs: st.Jobs, turns: newTurns()}}
	reader := principal{name: "reader", verbs: []string{read}, scope: cove.TokenScope{All: true}}
	by := map[string]principal{"reader": reader, "owner": newPrincipal("owner", "secret")}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.SetPathValue("id", job.ID)
		if err := g.events(w, r.WithContext(context.WithValue(r.Context(), principalKey{}, by[r.URL.Query().Get("as")]))); err != nil {
			t.Error(err)
		}
	}))
	t.Cleanup(s.Close)
	follow := func(as string) *bufio.Reader {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.URL+"/?follow=true&as="+as, nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := http.DefaultClient.Do(req) // which has the headers by then
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = resp.Body.Close() })
		return bufio.NewReader(resp.Body)
	}
	first := func(r *bufio.Reader) {
		t.Helper()
		if line, err := r.ReadString('\n'); err != nil || !strings.Contains(line, `"seq":1,`) {
			t.Errorf("got %.100q, %v", line, err)
		}
	}
	done, err := g.turns.take(t.Context(), reader)
	if err != nil {
		t.Fatal(err)
	}
	theirs := follow("reader")
	got := make(chan struct{})
	go func() {
		_, _ = theirs.Peek(1)
		close(got)
	}()
	first(follow("owner"))
	waits := func() bool {
		g.turns.mu.Lock()
		defer g.turns.mu.Unlock()
		return g.turns.by["reader"].users == 2
	}
	for !waits() {
		select {
		case <-got:
			t.Fatal("a stream reads while its token has another turn")
		default:
			runtime.Gosched()
		}
	}
	done()
	<-got
	first(theirs)
	first(follow("reader")) // the one before takes no more
}
