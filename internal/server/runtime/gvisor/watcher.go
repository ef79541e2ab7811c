package gvisor

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/cove-dev/cove/internal/shim"
)

// watcher looks after live sandboxes: it waits for their ends, and replaces shims that die.
type watcher struct {
	folder   folder
	base     *preparer
	layers   *layerStore
	launcher *launcher
	tasks    *tasks
	logger   *slog.Logger
}

// follow returns the sandbox object of a live sandbox, and watches it.
func (w *watcher) follow(id string, st shim.State) *sandbox {
	s := &sandbox{id: id, client: shim.Client{Dir: w.folder.run(id)}, folder: w.folder, base: w.base, layers: w.layers, closed: w.tasks.closed, done: make(chan struct{}), state: st}
	w.tasks.begin(func() { w.watch(s) })
	return s
}

// watch waits for the end of a sandbox, and starts a new shim when the one that
// looks after it dies.
func (w *watcher) watch(s *sandbox) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	w.tasks.begin(func() {
		select {
		case <-w.tasks.closed:
			cancel()
		case <-ctx.Done():
		}
	})
	for {
		end, err := s.client.Wait(ctx)
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			s.end(end.Reason)
			return
		}
		w.logger.Warn("a shim died; starting another", "sandbox", s.id, "err", err)
		s.setDown("the process that looks after it died; another is being started")
		network, connectors := s.last()
		st, err := w.launcher.adopt(ctx, s.id, network, connectors)
		switch {
		case err == nil:
			s.adopted(st)
		case ctx.Err() != nil:
			return
		case errors.Is(err, errGone):
			s.end(err.Error())
			return
		default:
			w.logger.Error("take up a sandbox", "sandbox", s.id, "err", err)
			s.setDown("the process that looks after it died, and no other can be started: " + err.Error())
			select {
			case <-ctx.Done():
				return
			case <-time.After(time.Second):
			}
		}
	}
}
