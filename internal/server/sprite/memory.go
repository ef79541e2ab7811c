package sprite

import (
	"context"
	"errors"
	"log/slog"
	"runtime"
	"sync"

	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/server/store"
	"github.com/cove-dev/cove/sprites"
)

// kept is what has become of a memory that was to be kept.
type kept struct {
	name  string // empty: it was not
	bytes int64
	why   string             // it was not, for people
	open  *sprites.OpenFiles // the kinds that too much is open of; nil: none
}

// memories keeps the memories of sleeping sprites and of checkpoints.
type memories struct {
	runtime Runtime
	store   *store.Sprites
	rows    *rows
	tasks   *tasks
	logger  *slog.Logger
}

// keep keeps the memory of a sprite that has no sandbox now.
func (m *memories) keep(ctx context.Context, id string) kept {
	ms := m.runtime.Memories()
	if ms == nil || !ms.Warm(id) {
		return kept{why: "nothing ran in it"}
	}
	name := randomHex(8)
	if err := m.store.MarkMemoryUnreferenced(ctx, name); err != nil {
		m.logger.Error("keeping the memory of a sprite that sleeps", "id", id, "err", err)
		return kept{why: "its memory could not be kept; the log of the server says why"}
	}
	n, err := ms.Keep(ctx, id, name)
	if err != nil {
		m.logger.Error("keeping the memory of a sprite that sleeps", "id", id, "err", err)
		return kept{why: "its memory could not be kept; the log of the server says why"}
	}
	return kept{name: name, bytes: n}
}

// recall makes a sprite go on from a memory. The sprite has no sandbox, and its disk is
// what it was then.
func (m *memories) recall(ctx context.Context, id, memory string) error {
	ms := m.runtime.Memories()
	if ms == nil {
		return errors.New("this server keeps no memories")
	}
	return ms.Recall(ctx, id, memory)
}

// forget removes memories, which the store has marked unreferenced. The next start of the
// server removes what is left of one.
func (m *memories) forget(memories ...string) {
	ms := m.runtime.Memories()
	if ms == nil {
		return
	}
	for _, name := range memories {
		if name == "" {
			continue
		}
		if err := ms.Forget(m.tasks.lasting(), name); err != nil {
			m.logger.Error("removing a memory", "name", name, "err", err)
		}
	}
}

// warm reports whether the memory of a sprite that sleeps is kept.
func (m *memories) warm(id string) bool {
	ms := m.runtime.Memories()
	return ms != nil && ms.Warm(id)
}

// outdated reports whether the memory of a sprite that sleeps is kept, and no boot goes on from it.
func (m *memories) outdated(id string) bool {
	ms := m.runtime.Memories()
	return ms != nil && ms.Outdated(id)
}

// discard removes the memory of a sprite without a sandbox, and notes nothing about it.
func (m *memories) discard(ctx context.Context, id string) error {
	ms := m.runtime.Memories()
	if ms == nil {
		return nil
	}
	return ms.Drop(ctx, id)
}

// drop drops the memory of a sprite without a sandbox: before its disk
// becomes another, or because it is to begin anew.
func (m *memories) drop(ctx context.Context, id string) error {
	if err := m.discard(ctx, id); err != nil {
		return err
	}
	m.rows.note(id, func(s *store.Sprite) { s.Status = sprites.StatusCold })
	return nil
}

// wakers is how many forks are started at a time. It is one more than there are processors,
// because each start waits for a while for the kernel to unmount.
var wakers = runtime.NumCPU() + 1

// startAll starts sprites that were just made. One that does not start is there, and
// starts at its first use.
func (h *Host) startAll(ctx context.Context, infos []sprites.Info) {
	var wg sync.WaitGroup
	free := make(chan struct{}, wakers)
	for _, info := range infos {
		free <- struct{}{}
		wg.Go(func() {
			defer func() { <-free }()
			lease, err := h.Use(ctx, info.Name, "fork")
			if refusal, ok := errors.AsType[*fail.Error](err); ok && refusal.Err == nil {
				h.Logger.Info("a fork stays asleep", "sprite", info.Name, "why", err)
				return
			}
			if err != nil {
				h.Logger.Error("starting a fork", "sprite", info.Name, "err", err)
				return
			}
			lease.Release()
		})
	}
	wg.Wait()
}
