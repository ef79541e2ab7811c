package sprite

import (
	"context"
	"errors"
	"fmt"

	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/lib/fault"
	"github.com/cove-dev/cove/internal/server/store"
	"github.com/cove-dev/cove/sprites"
)

// Delete removes a sprite and its disk. Without force it refuses where a job
// still uses it, or has left commits in it that nobody has pulled. Once begun it
// goes on when ctx ends, and over a restart of the server.
func (h *Host) Delete(ctx context.Context, name string, force bool) error {
	row, err := h.rows.named(ctx, name)
	if err != nil {
		return err
	}
	if !force {
		if err := h.deletable(ctx, row); err != nil {
			return err
		}
	}
	m := h.machines.of(row)
	if !m.kill() {
		return errDeleting(name)
	}
	done := make(chan error, 1)
	if !h.tasks.begin(func() { done <- h.destroy(m) }) {
		m.spared()
		return errDeleting(name)
	}
	select {
	case err := <-done:
		if err != nil {
			return fmt.Errorf("delete sprite %s: %w", name, err)
		}
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// deletable returns an error if a delete would lose work.
func (h *Host) deletable(ctx context.Context, row store.Sprite) error {
	job, err := h.Store.Jobs.Blocking(ctx, row.Name, row.ID)
	switch {
	case errors.Is(err, store.ErrNotFound):
		return nil
	case err != nil:
		return err
	case !job.State.Terminal():
		return fail.Newf(CodeJobRunning, fmt.Sprintf("stop it with: cove job stop %s; or delete the sprite anyway with --force", job.ID),
			"job %s is at work in sprite %s (%s)", job.ID, row.Name, job.State)
	case job.PulledAt != nil || job.Bundle.Size == 0:
		return fail.Newf(CodeUnpulledWork, fmt.Sprintf("look at it with: cove console -s %s; or lose it with --force", row.Name),
			"sprite %s alone holds what job %s could not collect: %s", row.Name, job.ID, job.Uncollected)
	}
	return fail.Newf(CodeUnpulledWork, fmt.Sprintf("pull it with: cove pull %s; or lose it with --force", job.ID),
		"sprite %s holds the work of job %s, which nobody has pulled", row.Name, job.ID)
}

// destroy ends a dead machine's sandbox and removes its disk and row. If that
// fails the sprite stays, and can be deleted again.
func (h *Host) destroy(m *machine) (err error) {
	ctx := h.tasks.lasting()
	defer func() {
		if err == nil {
			h.machines.drop(m)
		} else {
			m.spared()
		}
	}()
	if m.now().live() == nil {
		if err := elsewhere(h.Runtime, store.Sprite{ID: m.id, Name: m.name}); err != nil {
			return err
		}
	}
	_, err = h.Store.Sprites.Update(ctx, m.id, func(s *store.Sprite) error { s.Deleting = true; return nil })
	if errors.Is(err, store.ErrNotFound) {
		return nil // another delete came first
	}
	if err != nil {
		return err
	}
	fault.Reach(fault.DeleteNoted)
	h.layers.reads.abandon(allOf(m.id))
	h.interrupt(m, 0)
	if sb := m.now().sandbox; sb != nil {
		m.asked(sb, false)
		if err := h.stop(sb, 0); err != nil {
			return err
		}
		m.set(nil)
	}
	fault.Reach(fault.DeleteStopped)
	if err := h.Runtime.Destroy(ctx, m.id); err != nil {
		h.rows.note(m.id, func(s *store.Sprite) { s.LastError = err.Error() })
		if e := occupied(m.name, err); e != nil {
			return e
		}
		return err
	}
	defer h.layers.collect()
	fault.Reach(fault.DeleteRemoved)
	if err := h.loseWork(ctx, m.name); err != nil {
		h.Logger.Error("noting what jobs have lost with their sprite", "sprite", m.name, "err", err)
	}
	checkpoints, err := h.Store.Sprites.Checkpoints(ctx, m.id)
	if err != nil {
		return err
	}
	if err := h.Store.Sprites.Delete(ctx, m.id); err != nil {
		return err
	}
	fault.Reach(fault.DeleteStored)
	for _, c := range checkpoints {
		h.forget(c.Memory)
	}
	return nil
}

// loseWork notes of the jobs whose results nobody has pulled that these are gone.
func (h *Host) loseWork(ctx context.Context, name string) error {
	jobs, err := h.Store.Jobs.List(ctx, store.JobFilter{Sprite: name})
	if err != nil {
		return err
	}
	for _, job := range jobs {
		if !job.State.Terminal() || job.Bundle.Size == 0 || job.PulledAt != nil {
			continue
		}
		err := h.Store.Jobs.Update(ctx, job.ID, func(j *sprites.Job) error {
			j.Bundle, j.WorkDeleted = sprites.Artifact{}, true
			j.Error = "its work was deleted with its sprite"
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}
