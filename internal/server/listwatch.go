package server

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"time"

	"github.com/cove-dev/cove/internal/server/store"
	"github.com/cove-dev/cove/sprites"
)

const (
	watchInterval = 20 * time.Second // of heartbeats
	watchGrace    = 2 * time.Second  // for the last words when the server ends
)

// watch streams the state of the sprites that a list would give (section 17.3). It sends a
// line for each, then a heartbeat. From then on it sends a line for each change, with
// heartbeats in between. A sprite that is deleted, or does not match any more, gets a last
// line. max_results has no meaning here.
//
// For a reader, the server keeps only what the reader has been told. Changes that come while
// it does not read are merged. If it does not read for long, it is dropped.
func (l *spriteList) watch(w http.ResponseWriter, r *http.Request) error {
	done, err := l.watchers.add(principalOf(r))
	if err != nil {
		return err
	}
	defer done()
	changed, cancel := l.sprites.Watch()
	defer cancel()
	ctx := r.Context()
	lw := &listWatch{list: l, patience: l.patience, w: w, rc: http.NewResponseController(w), told: map[string]told{}}
	lw.scope, lw.filter = spriteFilters(r)
	events, err := lw.look(ctx)
	if err != nil {
		return err
	}
	events = append(events, lw.heartbeat())
	// The end of the server does not wait for a reader that does not read.
	stop := context.AfterFunc(ctx, func() { _ = lw.rc.SetWriteDeadline(time.Now().Add(watchGrace)) })
	defer stop()
	w.Header().Set("Content-Type", "application/x-ndjson")
	beat := time.NewTicker(lw.patience)
	defer beat.Stop()
	for {
		err := lw.send(ctx, events)
		if err == nil {
			events, err = lw.next(ctx, changed, beat.C)
		}
		if ctx.Err() != nil {
			return nil // the client has left, or the server ends
		}
		if err != nil { // too late for an answer: cut the stream
			panic(http.ErrAbortHandler)
		}
	}
}

// listWatch is one watch.
type listWatch struct {
	list          *spriteList
	w             http.ResponseWriter
	rc            *http.ResponseController
	patience      time.Duration
	scope, filter store.SpriteFilter

	told map[string]told // by name
	org  sprites.Totals
}

// told is what a reader knows of a sprite.
type told struct {
	id      string
	status  sprites.Status
	sandbox int64 // its incarnation, while it runs
	updated int64 // microseconds
}

// next waits for something to tell.
func (lw *listWatch) next(ctx context.Context, changed <-chan struct{}, beat <-chan time.Time) ([]sprites.StateEvent, error) {
	for {
		due := false
		select {
		case <-changed:
		case <-beat:
			due = true
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		events, err := lw.look(ctx)
		if err != nil || len(events) > 0 {
			return events, err
		}
		if due {
			return []sprites.StateEvent{lw.heartbeat()}, nil
		}
	}
}

func (lw *listWatch) heartbeat() sprites.StateEvent {
	return lw.event(sprites.StateEvent{Type: "heartbeat"})
}

// look reads the list and returns what is new in it.
func (lw *listWatch) look(ctx context.Context) ([]sprites.StateEvent, error) {
	list, err := lw.list.host.List(ctx, lw.filter)
	if err != nil {
		return nil, err
	}
	if lw.org, err = lw.list.totals(ctx, lw.scope); err != nil {
		return nil, err
	}
	var events []sprites.StateEvent
	here := make(map[string]bool, len(list))
	for _, info := range list {
		here[info.Name] = true
		now := told{id: info.ID, status: info.Status, updated: info.UpdatedAt.UnixMicro()}
		e := sprites.StateEvent{Name: info.Name, Status: info.Status, LastRunning: info.LastRunning, LastWarming: info.LastWarming}
		if info.Status == sprites.StatusRunning {
			e.RunningVersion, now.sandbox = sprites.Version, info.Cove.Incarnation
		}
		if lw.told[info.Name] != now {
			lw.told[info.Name] = now
			events = append(events, lw.event(e))
		}
	}
	var gone []string
	for name := range lw.told {
		if !here[name] {
			gone = append(gone, name)
			delete(lw.told, name)
		}
	}
	slices.Sort(gone)
	for _, name := range gone {
		events = append(events, lw.event(sprites.StateEvent{Name: name, Status: sprites.StatusDeleted}))
	}
	return events, nil
}

// event fills in the fields that all lines have.
func (lw *listWatch) event(e sprites.StateEvent) sprites.StateEvent {
	e.Timestamp, e.Org = time.Now().UTC(), lw.org
	return e
}

// send writes lines, each within the reader's time.
func (lw *listWatch) send(ctx context.Context, events []sprites.StateEvent) error {
	enc := json.NewEncoder(lw.w)
	for _, e := range events {
		if err := lw.inTime(ctx, func() error { return enc.Encode(e) }); err != nil {
			return err
		}
	}
	return lw.inTime(ctx, lw.rc.Flush)
}

// inTime gives a write the reader's time, unless the watch is over.
func (lw *listWatch) inTime(ctx context.Context, write func() error) error {
	if err := lw.rc.SetWriteDeadline(time.Now().Add(lw.patience)); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	return write()
}
