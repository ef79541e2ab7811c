package sprite

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/lib/fault"
	"github.com/cove-dev/cove/internal/server/store"
	"github.com/cove-dev/cove/sprites"
)

// CurrentState is what the list of checkpoints calls what a sprite is now.
const CurrentState = "Current"

const (
	checkpointLimit = 5 * time.Minute
	closePatience   = 10 * time.Second // for what changes a disk when the server ends
)

// Checkpoint seals what a sprite's disk is now, as a checkpoint. A sprite that is
// awake stays so: what runs in it stands still for a moment, and goes on over
// another layer, with its memory and its connections. Once begun it goes on when
// ctx ends.
func (h *Host) Checkpoint(ctx context.Context, name string, req sprites.CheckpointRequest) (sprites.Checkpoint, error) {
	if err := checkLabels(req.Labels); err != nil {
		return sprites.Checkpoint{}, err
	}
	if len(req.Comment) > maxComment {
		return sprites.Checkpoint{}, fail.Newf(CodeBadRequest, "", "a comment of %d bytes is longer than %d", len(req.Comment), maxComment)
	}
	keep := cmp.Or(req.Memory, sprites.KeepNever)
	if !slices.Contains([]sprites.KeepMemory{sprites.KeepNever, sprites.KeepAuto, sprites.KeepAlways}, keep) {
		return sprites.Checkpoint{}, fail.Newf(CodeBadRequest, "", "memory is never, auto or always, not %.20q", keep)
	}
	var out sprites.Checkpoint
	err := h.alone(ctx, name, func(ctx context.Context, m *machine, row store.Sprite) error {
		if m.now().live() != nil { // files that are open for writing would be copied, and both stay
			err := h.disk.admit(h.tasks.ctx, m)
			if e, ok := errors.AsType[*fail.Error](err); ok && e.Code == CodeDiskLimit {
				return e
			}
		}
		c := &store.Checkpoint{Comment: req.Comment, Labels: req.Labels}
		memory, err := h.seal(ctx, m, row, c, keep)
		if err != nil {
			return err
		}
		out, err = h.describeCheckpoint(ctx, row.ID, c.Name)
		if err == nil {
			out.Cove.MemoryNotKept, out.Cove.OpenFiles = memory.why, memory.open
		}
		return err
	})
	return out, err
}

const maxComment = 4096

// alone calls f while nothing else starts, ends or changes a sprite's sandbox or
// disk. Those who use the sandbox go on. f goes on when ctx ends.
func (h *Host) alone(ctx context.Context, name string, f func(context.Context, *machine, store.Sprite) error) error {
	for {
		row, err := h.rows.named(ctx, name)
		if err != nil {
			return err
		}
		m := h.machines.of(row)
		busy, next, err := m.take(row.Deleting)
		if err != nil {
			return err
		}
		if next == resumes {
			h.run(m, func() { h.resume(m) })
		}
		if busy != nil {
			// Whatever becomes of it: look again.
			if err := busy.wait(ctx); errors.Is(err, errFrozen) {
				return err
			}
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			continue
		}
		done := make(chan error, 1)
		begun := h.run(m, func() {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), checkpointLimit)
			defer cancel()
			defer m.finish(nil)
			defer context.AfterFunc(m.now().busy.given, cancel)()
			// The next server settles what is not done by then.
			defer context.AfterFunc(h.tasks.ctx, func() { time.AfterFunc(closePatience, cancel) })()
			row, err := h.Store.Sprites.Get(ctx, name) // as it is now that nobody changes it
			if err == nil && m.now().live() == nil {
				err = elsewhere(h.Runtime, row)
			}
			if err == nil {
				row, err = h.settled(ctx, row, m.now().live())
			}
			if err == nil {
				err = f(ctx, m, row)
			}
			if err != nil && m.now().dead {
				err = errDeleting(name)
			}
			done <- err
		})
		if !begun {
			return errClosing()
		}
		select {
		case err := <-done:
			return err
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// seal makes the layer that a sprite writes the last one of a sealed chain, which c
// then is, unless it is nil, with the name that it gets; and keeps the memory, too, if
// it is to and can. The machine is taken.
func (h *Host) seal(ctx context.Context, m *machine, row store.Sprite, c *store.Checkpoint, keep sprites.KeepMemory) (memory kept, err error) {
	next, err := h.Store.Sprites.Begin(ctx, row.ID, row.Layer, store.Next{Checkpoint: c})
	if err != nil {
		return memory, err
	}
	fault.Reach(fault.SealBegun)
	sb := m.now().live()
	switch {
	case sb != nil:
		if keep != sprites.KeepNever {
			memory.name = randomHex(8)
			if err := h.Store.Sprites.MarkMemoryUnreferenced(ctx, memory.name); err != nil {
				return kept{}, errors.Join(err, h.Store.Sprites.Abort(ctx, row.ID, next))
			}
		}
		pause, err := h.move(ctx, row.ID, sb, next.Layer, Memory{Name: memory.name, Always: keep == sprites.KeepAlways, Leave: h.DiskReserve})
		if err != nil {
			h.forget(memory.name)
			return h.sealFailed(row, next, sb, keep, err)
		}
		if memory.bytes, memory.why, memory.open = pause.Kept, pause.NotKept, pause.Open; memory.why != "" {
			memory.name = ""
		}
		if c != nil {
			c.PauseMicros, c.CopiedBytes = pause.Total.Microseconds(), pause.Copied
		}
		h.Logger.Info("checkpoint", "sprite", row.Name, "pause", pause.Total, "save", pause.Save, "mount", pause.Mount, "copy", pause.Copy, "restore", pause.Restore, "copied", pause.Copied, "kept", pause.Kept)
	case keep != sprites.KeepNever:
		memory = h.keepAsleep(ctx, row.ID)
	}
	fault.Reach(fault.SealMoved)
	if c != nil {
		c.Memory, c.MemoryBytes = memory.name, memory.bytes
	}
	if _, err := h.Store.Sprites.Commit(ctx, row.ID, next); err != nil {
		h.forget(memory.name)
		h.settleLater(row.ID, next.Layer)
		return kept{}, err
	}
	fault.Reach(fault.SealStored)
	h.tend(row.ID)
	return memory, nil
}

// move has a sandbox go on over another layer.
func (h *Host) move(ctx context.Context, id string, sb Sandbox, layer string, memory Memory) (Pause, error) {
	c, ok := sb.(Checkpointer)
	if !ok {
		return Pause{}, fail.Newf(CodeBadRequest, "stop the sprite first: then its disk can be", "this server can't make a checkpoint of a sprite that runs")
	}
	chain, unpin, err := h.layers.pinShort(ctx, id, layer)
	if err != nil {
		return Pause{}, err
	}
	defer unpin()
	pause, err := c.Checkpoint(ctx, chain, memory)
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		h.Logger.Error("a checkpoint on a full disk", "sprite", id, "err", err)
		return Pause{}, fail.Newf(CodeNoSpace, freeSome, "no checkpoint was made: the disk of the server is full")
	}
	if errors.Is(err, ErrDeletedOpen) {
		return Pause{}, fail.Newf(CodeDeletedOpen, h.machines.deletedOpen(id), "no checkpoint was made: %v", err)
	}
	if err != nil {
		e := fail.Newf(CodeUnavailable, "the log of the server says more", "no checkpoint was made")
		e.Err = err
		return Pause{}, e
	}
	return pause, nil
}

// Restore brings a sprite back to a checkpoint. What it is now becomes a checkpoint
// first, named in the answer. All sessions end. If the checkpoint has the memory, the
// sprite goes on from that, unless boot says otherwise or it can't; else it boots.
func (h *Host) Restore(ctx context.Context, name, id string, boot bool) (sprites.Restored, error) {
	var out sprites.Restored
	awake, restored := false, ""
	err := h.alone(ctx, name, func(ctx context.Context, m *machine, row store.Sprite) error {
		to, err := h.checkpoint(ctx, row, id)
		if err == nil {
			err = h.checkWhole(ctx, row, id)
		}
		if err != nil {
			return err
		}
		sb := m.now().live()
		if sb != nil {
			m.asked(sb, true)
			if err := h.stop(sb, graceOf(m)); err != nil {
				m.unasked(sb, true) // its end, if it comes, was not this
				return err
			}
			m.set(nil)
		}
		if err := h.forgetMemory(ctx, row.ID); err != nil {
			return err
		}
		fault.Reach(fault.RestoreStopped)
		list, err := h.Store.Sprites.Checkpoints(ctx, row.ID)
		if err != nil {
			return err
		}
		before := &store.Checkpoint{Name: automatic("pre-restore", list), Auto: true, Comment: "before going back to " + to.Name}
		if _, err = h.seal(ctx, m, row, before, sprites.KeepNever); err != nil {
			return err
		}
		fault.Reach(fault.RestoreSealed)
		var next store.Next
		err = h.onLayer(func() error {
			layer, err := h.sealed(ctx, row, id)
			if err == nil {
				next, err = h.Store.Sprites.Begin(ctx, row.ID, layer, store.Next{Source: to.Name})
			}
			return err
		})
		if err != nil {
			return err
		}
		fault.Reach(fault.RestoreBegun)
		if _, err := h.Store.Sprites.Commit(ctx, row.ID, next); err != nil {
			h.settleLater(row.ID, next.Layer)
			return err
		}
		fault.Reach(fault.RestoreStored)
		h.layers.collect()
		awake, restored = sb != nil, row.ID
		out = sprites.Restored{Checkpoint: to.Name, Replaced: before.Name}
		if to.Memory == "" || boot {
			return nil
		}
		if err := h.recall(ctx, row.ID, to.Memory); err != nil {
			out.Unused = err.Error()
			return nil
		}
		fault.Reach(fault.RestoreRecalled)
		out.Memory = true
		h.rows.note(row.ID, func(s *store.Sprite) { s.Status = sprites.StatusWarm })
		return nil
	})
	if err == nil {
		h.disk.reviewNow(ctx, restored)
	}
	if err != nil || !awake {
		return out, err
	}
	lease, err := h.Use(ctx, name, "restore")
	if e, ok := errors.AsType[*fail.Error](err); ok && (e.Code == CodeDiskLimit || e.Code == CodeNoSpace) {
		hint := "remove what it was before, if nobody needs that: cove checkpoint rm -s " + name + " " + out.Replaced + "; or " + e.Hint
		return out, fail.Newf(e.Code, hint, "sprite %s is what %s was, but does not start: %s", name, id, e.Message)
	}
	if err != nil {
		return out, fmt.Errorf("sprite %s is what %s was, but does not start: %w", name, id, err)
	}
	defer lease.Release()
	if out.Memory {
		status := lease.Sandbox().Status()
		out.Memory, out.Unused = status.Woken, status.Unused
	}
	out.Booted = !out.Memory
	return out, nil
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

// checkpoint finds one of a sprite's.
func (h *Host) checkpoint(ctx context.Context, row store.Sprite, id string) (store.Checkpoint, error) {
	c, err := h.Store.Sprites.Checkpoint(ctx, row.ID, id)
	if errors.Is(err, store.ErrNotFound) {
		return c, fail.Newf(CodeNotFound, "see what there is with: cove checkpoint list -s "+row.Name, "sprite %s has no checkpoint %.80q", row.Name, id)
	}
	return c, err
}

// DeleteCheckpoint forgets a checkpoint. The one that the sprite goes on from stays.
func (h *Host) DeleteCheckpoint(ctx context.Context, name, id string) error {
	row, err := h.rows.named(ctx, name)
	if err != nil {
		return err
	}
	c, err := h.checkpoint(ctx, row, id)
	if err != nil {
		return err
	}
	if row.Source == id {
		return fail.Newf(CodeActiveCheckpoint, "make another checkpoint, or restore another one, first", "sprite %s goes on from %s, so that can't be deleted", name, id)
	}
	defer h.layers.collect()
	defer h.disk.reviewNow(ctx, row.ID)
	return h.deleteCheckpoint(ctx, row.ID, c)
}

// deleteCheckpoint forgets a checkpoint; what only it has is there until a collection.
func (h *Host) deleteCheckpoint(ctx context.Context, id string, c store.Checkpoint) error {
	added, err := h.addedBy(ctx, id, c)
	if err != nil {
		return err
	}
	if err := h.Store.Sprites.DeleteCheckpoint(ctx, id, c.Name, added); err != nil {
		return err
	}
	fault.Reach(fault.ForgetStored)
	h.forget(c.Memory)
	return nil
}

// Checkpoints describes what a sprite is now, and its checkpoints, the newest first;
// those that nobody asked for only with auto.
func (h *Host) Checkpoints(ctx context.Context, name string, auto bool) ([]sprites.Checkpoint, error) {
	row, err := h.rows.named(ctx, name)
	if err != nil {
		return nil, err
	}
	all, err := h.describeCheckpoints(ctx, row)
	if err != nil || auto {
		return all, err
	}
	return slices.DeleteFunc(all, func(c sprites.Checkpoint) bool { return c.IsAuto }), nil
}

// CheckpointOf describes one of a sprite's checkpoints.
func (h *Host) CheckpointOf(ctx context.Context, name, id string) (sprites.Checkpoint, error) {
	row, err := h.rows.named(ctx, name)
	if err != nil {
		return sprites.Checkpoint{}, err
	}
	if id != CurrentState {
		if _, err := h.checkpoint(ctx, row, id); err != nil {
			return sprites.Checkpoint{}, err
		}
	}
	return h.describeCheckpoint(ctx, row.ID, id)
}

func (h *Host) describeCheckpoint(ctx context.Context, spriteID, id string) (sprites.Checkpoint, error) {
	row, err := h.Store.Sprites.ByID(ctx, spriteID)
	if err != nil {
		return sprites.Checkpoint{}, err
	}
	list, err := h.Store.Sprites.Checkpoints(ctx, spriteID)
	if err != nil {
		return sprites.Checkpoint{}, err
	}
	if id == CurrentState {
		return sprites.Checkpoint{ID: id, CreateTime: time.Now().UTC(), SourceID: row.Source, History: history(sourcesOf(list), row.Source, len(list))}, nil
	}
	i := slices.IndexFunc(list, func(c store.Checkpoint) bool { return c.Name == id })
	if i < 0 {
		return sprites.Checkpoint{}, fail.Newf(CodeNotFound, "", "sprite %s has no checkpoint %.80q", row.Name, id)
	}
	disks, err := disksOf(ctx, h.Store.Sprites, spriteID, list)
	if err != nil {
		return sprites.Checkpoint{}, err
	}
	return disks.describe(list[i], history(sourcesOf(list), list[i].Source, len(list))), nil
}

// listedHistory is how much of its history each checkpoint of a list has, so that a
// list is not as long as the square of what it lists.
const listedHistory = 32

// describeCheckpoints describes all, what the sprite is now first.
func (h *Host) describeCheckpoints(ctx context.Context, row store.Sprite) ([]sprites.Checkpoint, error) {
	list, err := h.Store.Sprites.Checkpoints(ctx, row.ID)
	if err != nil {
		return nil, err
	}
	disks, err := disksOf(ctx, h.Store.Sprites, row.ID, list)
	if err != nil {
		return nil, err
	}
	sources := sourcesOf(list)
	all := []sprites.Checkpoint{{ID: CurrentState, CreateTime: time.Now().UTC(), SourceID: row.Source, History: history(sources, row.Source, listedHistory)}}
	for _, c := range list {
		all = append(all, disks.describe(c, history(sources, c.Source, listedHistory)))
	}
	return all, nil
}

func sourcesOf(list []store.Checkpoint) map[string]string {
	sources := make(map[string]string, len(list))
	for _, c := range list {
		sources[c.Name] = c.Source
	}
	return sources
}

// history is what a state grew from, what that grew from, and so on.
func history(sources map[string]string, source string, most int) (names []string) {
	for ; source != "" && len(names) < most; source = sources[source] {
		names = append(names, source)
	}
	return names
}
