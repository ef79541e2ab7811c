package server_test

import (
	"encoding/json"
	"errors"
	"io"
	"iter"
	"testing"
	"time"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/server"
	"github.com/cove-dev/cove/internal/test/covetest"
	"github.com/cove-dev/cove/sprites"
)

// watch pulls the events of a watch.
func watch(t *testing.T, c *cove.Client, prefix string) func() sprites.StateEvent {
	t.Helper()
	next, stop := iter.Pull2(c.Watch(t.Context(), prefix))
	t.Cleanup(stop)
	return func() sprites.StateEvent {
		t.Helper()
		e, err, ok := next()
		if err != nil || !ok {
			t.Fatalf("the watch ends: %v", err)
		}
		failIf(t, e.Timestamp.IsZero() || e.Org.Name != "local" || (e.Type == "heartbeat") == (e.Name != ""), "got %+v", e)
		return e
	}
}

// Statement 109: a client that watches the list gets a line for each sprite, then one for each
// change, and heartbeats. It sees only sprites with the prefix; the watch ends with the
// server.
func TestWatchList(t *testing.T) {
	s := covetest.Start(t, covetest.Options{Configure: func(s *server.Server) { s.Heartbeat = time.Hour }}) // between the lines that are wanted comes none
	c, ctx := s.Client(), t.Context()
	s.Create("paint-a")
	sp := s.Create("paint-b")
	s.Create("other")
	next := watch(t, c, "paint-")
	want := func(name string, status sprites.Status) sprites.StateEvent {
		t.Helper()
		e := next()
		failIf(t, e.Name != name || e.Status != status, "got %+v, want that %s is %s", e, name, status)
		failIf(t, (e.RunningVersion != "") != (status == sprites.StatusRunning), "the version of %+v", e)
		return e
	}
	want("paint-a", sprites.StatusCold)
	want("paint-b", sprites.StatusCold)
	if e := next(); e.Type != "heartbeat" || e.Org.Cold != 3 || e.Org.Running != 0 {
		t.Errorf("got %+v, want a heartbeat", e)
	}
	s.Create("paint-c")
	want("paint-c", sprites.StatusCold)
	must(t, s.Client().Sprite("other").Command("true").Run()) // of no interest, though it is counted
	must(t, sp.Command("true").Run())
	e := want("paint-b", sprites.StatusRunning)
	failIf(t, e.LastRunning == nil, "got %+v", e)
	_, err := c.Update(ctx, "paint-a", sprites.UpdateRequest{Labels: &[]string{"red"}})
	must(t, err)
	e = want("paint-a", sprites.StatusCold)
	failIf(t, e.Org.Running != 2 || e.Org.Cold != 2, "got %+v", e)
	_, err = c.Restart(ctx, "paint-b")
	must(t, err)
	want("paint-b", sprites.StatusCold)
	must(t, c.Delete(ctx, "paint-a", sprites.DeleteOptions{}))
	want("paint-a", sprites.StatusDeleted)

	// A token sees the sprites that it reaches, and the totals count only those.
	tok := token(t, s, cove.TokenScope{Prefix: "ot"}, "read")
	few := watch(t, &cove.Client{Client: &sprites.Client{URL: s.URL, Token: tok.Secret}}, "")
	if e := few(); e.Name != "other" || e.Org.Running != 1 || e.Org.Cold != 0 {
		t.Errorf("got %+v", e)
	}
	few()
	must(t, c.Delete(ctx, "paint-b", sprites.DeleteOptions{}))
	_, err = c.Restart(ctx, "other")
	must(t, err)
	if e := few(); e.Name != "other" || e.Status != sprites.StatusCold { // before the next change, or it is left out
		t.Errorf("got %+v", e)
	}
	must(t, c.Delete(ctx, "other", sprites.DeleteOptions{}))
	if e := few(); e.Name != "other" || e.Status != sprites.StatusDeleted {
		t.Errorf("got %+v", e)
	}

	resp := open(t, s, "GET /v1/sprites?prefix=none", "", header("Accept", "application/x-ndjson"))
	failIf(t, resp.StatusCode != 200 || resp.Header.Get("Content-Type") != "application/x-ndjson", "got %d %v", resp.StatusCode, resp.Header)
	must(t, s.Server.Close())
	text, err := io.ReadAll(resp.Body)
	var last sprites.StateEvent
	failIf(t, err != nil || json.Unmarshal(text, &last) != nil || last.Type != "heartbeat", "the watch of nothing gave %q, %v", text, err)
	for e, err := range c.Watch(ctx, "") {
		failIf(t, err == nil, "a closed server tells %+v", e)
	}
}

// TestWatchListSlowly: a quiet stream has heartbeats. A stream that is not read is dropped,
// and holds up neither the others nor the server's end.
func TestWatchListSlowly(t *testing.T) {
	s := covetest.Start(t, covetest.Options{Configure: func(s *server.Server) { s.MaxStreams, s.Heartbeat = 1, 50*time.Millisecond }})
	next := watch(t, s.Client(), "")
	for range 3 {
		failIf(t, next().Type != "heartbeat", "got something else")
	}
	a := ask(t, s, "GET /v1/sprites", "", header("Accept", "application/x-ndjson"))
	a.refused(t, 429, "limit")
	wantRetry(t, a)

	// A socket holds some hundred kilobytes for a client that does not read. Nothing holds
	// more than that, so the next client has room.
	s = covetest.Start(t, covetest.Options{Configure: func(s *server.Server) { s.MaxStreams, s.Heartbeat = 1, 100*time.Millisecond }})
	s.Create("paint")
	events, stop := iter.Pull2(s.Server.Client().Watch(t.Context(), ""))
	defer stop()
	_, err, _ := events()
	must(t, err)
	for status := 0; status != 200; {
		for range 50 {
			_, err := s.Client().Update(t.Context(), "paint", sprites.UpdateRequest{ClearLabels: true})
			must(t, err)
		}
		resp := open(t, s, "GET /v1/sprites", "", header("Accept", "application/x-ndjson"))
		status = resp.StatusCode
		must(t, resp.Body.Close())
	}
	for err == nil {
		_, err, _ = events()
	}
	failIf(t, !errors.Is(err, io.ErrUnexpectedEOF), "the end is %v", err)
}
