package sprite

import (
	"context"
	"errors"
	"runtime"
	"sync"

	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/sprites"
)

// kept is what has become of a memory that was to be kept.
type kept struct {
	name  string // empty: it was not
	bytes int64
	why   string             // it was not, for people
	open  *sprites.OpenFiles // of which there is too much; nil: of none
}

// keeper is the runtime, if it keeps memories.
func (h *Host) keeper() (MemoryKeeper, bool) {
	k, ok := h.Runtime.(MemoryKeeper)
	return k, ok
}

// keepAsleep keeps the memory of a sprite that has no sandbox now.
func (h *Host) keepAsleep(ctx context.Context, id string) kept {
	k, ok := h.keeper()
	if !ok || !h.warm(id) {
		return kept{why: "nothing ran in it"}
	}
	name := randomHex(8)
	if err := h.Store.Sprites.MarkMemoryUnreferenced(ctx, name); err != nil {
		h.Logger.Error("keeping the memory of a sprite that sleeps", "id", id, "err", err)
		return kept{why: "its memory could not be kept; the log of the server says why"}
	}
	n, err := k.KeepMemory(ctx, id, name)
	if err != nil {
		h.Logger.Error("keeping the memory of a sprite that sleeps", "id", id, "err", err)
		return kept{why: "its memory could not be kept; the log of the server says why"}
	}
	return kept{name: name, bytes: n}
}

// recall has a sprite that has no sandbox, and whose disk is what it was then, go on
// from a memory.
func (h *Host) recall(ctx context.Context, id, memory string) error {
	k, ok := h.keeper()
	if !ok {
		return errors.New("this server keeps no memories")
	}
	return k.Recall(ctx, id, memory)
}

// forget removes memories, which the store has marked unreferenced. What is left of one goes
// when the server starts.
func (h *Host) forget(memories ...string) {
	k, ok := h.keeper()
	if !ok {
		return
	}
	for _, name := range memories {
		if name == "" {
			continue
		}
		if err := k.ForgetMemory(h.tasks.lasting(), name); err != nil {
			h.Logger.Error("removing a memory", "name", name, "err", err)
		}
	}
}

// wakers is how many forks are started at a time: one more than there are processors, because
// each stands still for a while, in which the kernel takes mounts apart.
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
