package sprite

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/lib/fault"
	"github.com/cove-dev/cove/internal/server/store"
	"github.com/cove-dev/cove/sprites"
)

// sealer makes the layer that a sprite writes the last one of a sealed chain. The machine of
// the sprite is taken for that.
type sealer struct {
	store       *store.Sprites
	machines    *machines
	layers      *layerKeeper
	memories    *memories
	checkpoints *checkpoints
	settler     *settler
	reserve     int64 // what a memory that is kept must leave free
	tasks       *tasks
	logger      *slog.Logger
}

// seal makes the layer that a sprite writes the last one of a sealed chain. If c is not
// nil, that chain becomes the checkpoint c, which gets its name. If keep asks for it,
// and it is possible, the memory is kept, too. The machine is taken.
func (s *sealer) seal(ctx context.Context, m *machine, row store.Sprite, c *store.Checkpoint, keep sprites.KeepMemory) (memory kept, err error) {
	next, err := s.store.Begin(ctx, row.ID, row.Layer, store.Next{Checkpoint: c})
	if err != nil {
		return memory, err
	}
	fault.Reach(fault.SealBegun)
	sb := m.now().live()
	switch {
	case sb != nil:
		if keep != sprites.KeepNever {
			memory.name = randomHex(8)
			if err := s.store.MarkMemoryUnreferenced(ctx, memory.name); err != nil {
				return kept{}, errors.Join(err, s.store.Abort(ctx, row.ID, next))
			}
		}
		pause, err := s.move(ctx, row.ID, sb, next.Layer, Memory{Name: memory.name, Always: keep == sprites.KeepAlways, Leave: s.reserve})
		if err != nil {
			s.memories.forget(memory.name)
			return s.failed(row, next, sb, keep, err)
		}
		if memory.bytes, memory.why, memory.open = pause.Kept, pause.NotKept, pause.Open; memory.why != "" {
			memory.name = ""
		}
		if c != nil {
			c.PauseMicros, c.CopiedBytes = pause.Total.Microseconds(), pause.Copied
		}
		s.logger.Info("checkpoint", "sprite", row.Name, "pause", pause.Total, "save", pause.Save, "mount", pause.Mount, "copy", pause.Copy, "restore", pause.Restore, "copied", pause.Copied, "kept", pause.Kept)
	case keep != sprites.KeepNever:
		memory = s.memories.keep(ctx, row.ID)
	}
	fault.Reach(fault.SealMoved)
	if c != nil {
		c.Memory, c.MemoryBytes = memory.name, memory.bytes
	}
	if _, err := s.store.Commit(ctx, row.ID, next); err != nil {
		s.memories.forget(memory.name)
		s.settler.later(row.ID, next.Layer)
		return kept{}, err
	}
	fault.Reach(fault.SealStored)
	s.checkpoints.tend(row.ID)
	return memory, nil
}

// move has a sandbox go on over another layer.
func (s *sealer) move(ctx context.Context, id string, sb Sandbox, layer string, memory Memory) (Pause, error) {
	c, ok := sb.(Checkpointer)
	if !ok {
		return Pause{}, fail.Newf(CodeBadRequest, "stop the sprite first", "this server can't make a checkpoint of a running sprite")
	}
	chain, unpin, err := s.layers.pinShort(ctx, id, layer)
	if err != nil {
		return Pause{}, err
	}
	defer unpin()
	pause, err := c.Checkpoint(ctx, chain, memory)
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		s.logger.Error("a checkpoint on a full disk", "sprite", id, "err", err)
		return Pause{}, fail.Newf(CodeNoSpace, freeSome, "no checkpoint was made: the disk of the server is full")
	}
	if errors.Is(err, ErrDeletedOpen) {
		return Pause{}, fail.Newf(CodeDeletedOpen, s.machines.deletedOpen(id), "no checkpoint was made: %v", err)
	}
	if errors.Is(err, ErrNetworks) {
		return Pause{}, fail.Newf(CodeNetworks, s.machines.ownNetworks(id), "no checkpoint was made: %v", err)
	}
	if err != nil {
		e := fail.Newf(CodeUnavailable, "the log of the server says more", "no checkpoint was made")
		e.Err = err
		return Pause{}, e
	}
	return pause, nil
}

// failed settles a seal if the sandbox could not be moved, or its answer was lost. It
// returns the results of seal.
func (s *sealer) failed(row store.Sprite, next store.Next, sb Sandbox, keep sprites.KeepMemory, err error) (kept, error) {
	was, unknown := s.settler.settle(settleLimit, row.ID, next, sb)
	switch {
	case unknown != nil:
		s.settler.later(row.ID, next.Layer)
		return kept{}, notKnown(row.Name, errors.Join(err, unknown))
	case was == noSandbox:
		e := fail.Newf(CodeUnavailable, "use it as before: its next use boots it; the log of the server says more",
			"no checkpoint was made, and the sandbox of sprite %s has ended; its files are as they were", row.Name)
		e.Err = err
		if inner, ok := errors.AsType[*fail.Error](err); ok && inner.Err != nil {
			e.Err = inner.Err // it said so, too
		}
		return kept{}, e
	case was == moved:
		s.checkpoints.tend(row.ID)
		if next.Checkpoint == nil && keep != sprites.KeepNever {
			return kept{}, err // it was for the memory
		}
		s.logger.Warn("a checkpoint was made, but its answer was lost", "sprite", row.Name, "err", err)
		if keep != sprites.KeepNever {
			return kept{why: "the answer of the process that looks after its sandbox was lost"}, nil
		}
		return kept{}, nil
	}
	return kept{}, err
}

// outdated makes a checkpoint of a sprite's disk if its memory is another version's.
// Then its programs will not go on, and they may not have written all of their data.
// The machine is taken.
func (s *sealer) outdated(m *machine, row store.Sprite) error {
	if !s.memories.outdated(row.ID) {
		return nil
	}
	ctx, cancel := context.WithTimeout(s.tasks.lasting(), checkpointLimit)
	defer cancel()
	row, err := s.store.ByID(ctx, row.ID)
	if err != nil {
		return err
	}
	list, err := s.store.Checkpoints(ctx, row.ID)
	if err != nil {
		return err
	}
	before := &store.Checkpoint{Name: automatic("pre-upgrade", list), Auto: true, Comment: "before it booted, because its memory was another version's"}
	_, err = s.seal(ctx, m, row, before, sprites.KeepNever)
	return err
}

// goBack makes a disk go on from a checkpoint. First it makes a checkpoint of the present
// state, and returns the name of that.
func (s *sealer) goBack(ctx context.Context, m *machine, row store.Sprite, to store.Checkpoint) (replaced string, err error) {
	list, err := s.store.Checkpoints(ctx, row.ID)
	if err != nil {
		return "", err
	}
	before := &store.Checkpoint{Name: automatic("pre-restore", list), Auto: true, Comment: "before the restore of " + to.Name}
	if _, err = s.seal(ctx, m, row, before, sprites.KeepNever); err != nil {
		return "", err
	}
	fault.Reach(fault.RestoreSealed)
	var next store.Next
	err = onLayer(func() error {
		layer, err := s.checkpoints.sealed(ctx, row, to.Name)
		if err == nil {
			next, err = s.store.Begin(ctx, row.ID, layer, store.Next{Source: to.Name})
		}
		return err
	})
	if err != nil {
		return "", err
	}
	fault.Reach(fault.RestoreBegun)
	if _, err := s.store.Commit(ctx, row.ID, next); err != nil {
		s.settler.later(row.ID, next.Layer)
		return "", err
	}
	fault.Reach(fault.RestoreStored)
	s.layers.collect()
	return before.Name, nil
}

// automatic names a checkpoint that nobody asked for: after what comes next, the number
// of the last one, and the time.
func automatic(what string, list []store.Checkpoint) string {
	last := 0
	for _, c := range list {
		var n int
		if _, err := fmt.Sscanf(c.Name, "v%d", &n); err == nil {
			last = max(last, n)
		}
	}
	name := fmt.Sprintf("%s-v%d-%d", what, last, time.Now().Unix())
	for n := 2; slices.ContainsFunc(list, func(c store.Checkpoint) bool { return c.Name == name }); n++ {
		name = fmt.Sprintf("%s-v%d-%d-%d", what, last, time.Now().Unix(), n)
	}
	return name
}
