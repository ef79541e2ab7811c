package sprite

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

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

// Checkpoint seals what a sprite's disk is now, as a checkpoint. A sprite that is awake
// stays awake: its programs are paused for a moment, and go on over another layer, with
// their memory and connections. Once begun, the checkpoint goes on even if ctx ends.
func (h *Host) Checkpoint(ctx context.Context, name string, req sprites.CheckpointRequest) (sprites.Checkpoint, error) {
	if err := CheckLabels(req.Labels); err != nil {
		return sprites.Checkpoint{}, err
	}
	if len(req.Comment) > maxComment {
		return sprites.Checkpoint{}, fail.Newf(CodeBadRequest, "", "the comment has %d bytes, more than the %d allowed", len(req.Comment), maxComment)
	}
	keep := cmp.Or(req.Memory, sprites.KeepNever)
	if !slices.Contains([]sprites.KeepMemory{sprites.KeepNever, sprites.KeepAuto, sprites.KeepAlways}, keep) {
		return sprites.Checkpoint{}, fail.Newf(CodeBadRequest, "", "memory must be never, auto or always, not %.20q", keep)
	}
	var out sprites.Checkpoint
	err := h.lives.alone(ctx, name, func(ctx context.Context, m *machine, row store.Sprite) error {
		if m.now().live() != nil { // files that are open for writing would be copied, and both stay
			err := h.disk.admit(h.tasks.ctx, m)
			if e, ok := errors.AsType[*fail.Error](err); ok && e.Code == CodeDiskLimit {
				return e
			}
		}
		c := &store.Checkpoint{Comment: req.Comment, Labels: req.Labels}
		memory, err := h.sealer.seal(ctx, m, row, c, keep)
		if err != nil {
			return err
		}
		out, err = h.checkpoints.describe(ctx, row.ID, c.Name)
		if err == nil {
			out.Cove.MemoryNotKept, out.Cove.OpenFiles = memory.why, memory.open
		}
		return err
	})
	return out, err
}

const maxComment = 4096

// Restore brings a sprite back to a checkpoint. First it makes a checkpoint of the
// present state, which the answer names. All sessions end. If the checkpoint has the
// memory, the sprite goes on from that, unless boot says otherwise or it can't; else it
// boots.
func (h *Host) Restore(ctx context.Context, name, id string, boot bool) (sprites.Restored, error) {
	var out sprites.Restored
	awake, restored := false, ""
	err := h.lives.alone(ctx, name, func(ctx context.Context, m *machine, row store.Sprite) error {
		done, err := h.checkpoints.want(ctx, row.ID, id)
		if err != nil {
			return err
		}
		defer done()
		to, err := h.checkpoints.find(ctx, row, id)
		if err == nil {
			err = h.checkpoints.checkWhole(ctx, row, id)
		}
		if err != nil {
			return err
		}
		if awake, err = h.lives.undo(m); err != nil {
			return err
		}
		if err := h.memories.drop(ctx, row.ID); err != nil {
			return err
		}
		fault.Reach(fault.RestoreStopped)
		replaced, err := h.sealer.goBack(ctx, m, row, to)
		if err != nil {
			return err
		}
		restored = row.ID
		out = sprites.Restored{Checkpoint: to.Name, Replaced: replaced}
		if to.Memory == "" || boot {
			return nil
		}
		if err := h.memories.recall(ctx, row.ID, to.Memory); err != nil {
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
		hint := "delete the checkpoint of its former disk, if nobody needs it: cove checkpoint rm -s " + name + " " + out.Replaced + "; or " + e.Hint
		return out, fail.Newf(e.Code, hint, "the disk of sprite %s is back at %s, but the sprite does not start: %s", name, id, e.Message)
	}
	if err != nil {
		return out, fmt.Errorf("the disk of sprite %s is back at %s, but the sprite does not start: %w", name, id, err)
	}
	defer lease.Release()
	if out.Memory {
		status := lease.Sandbox().Status()
		out.Memory, out.Unused = status.Woken, status.Unused
	}
	out.Booted = !out.Memory
	return out, nil
}

// DeleteCheckpoint forgets a checkpoint. The one that the sprite goes on from stays.
func (h *Host) DeleteCheckpoint(ctx context.Context, name, id string) error {
	row, err := h.rows.named(ctx, name)
	if err != nil {
		return err
	}
	c, err := h.checkpoints.find(ctx, row, id)
	if err != nil {
		return err
	}
	defer h.layers.collect()
	defer h.disk.reviewNow(ctx, row.ID)
	err = h.checkpoints.delete(ctx, row.ID, c)
	if errors.Is(err, store.ErrInUse) {
		return fail.Newf(CodeActiveCheckpoint, "make another checkpoint, or restore another one, first", "sprite %s goes on from %s, so that checkpoint can't be deleted", name, id)
	}
	return err
}

// Checkpoints describes what a sprite is now, and its checkpoints, the newest first;
// those that nobody asked for only with auto.
func (h *Host) Checkpoints(ctx context.Context, name string, auto bool) ([]sprites.Checkpoint, error) {
	row, err := h.rows.named(ctx, name)
	if err != nil {
		return nil, err
	}
	all, err := h.checkpoints.describeAll(ctx, row)
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
		if _, err := h.checkpoints.find(ctx, row, id); err != nil {
			return sprites.Checkpoint{}, err
		}
	}
	return h.checkpoints.describe(ctx, row.ID, id)
}
