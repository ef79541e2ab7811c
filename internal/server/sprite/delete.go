package sprite

import (
	"context"
	"errors"
	"fmt"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/lib/fault"
	"github.com/cove-dev/cove/internal/server/store"
)

// Delete removes a sprite and its disk. Without force it refuses if a job still uses
// the sprite, or has left commits in it that nobody has pulled. Once begun it goes on
// when ctx ends, and over a restart of the server.
func (h *Host) Delete(ctx context.Context, name string, force bool) error {
	row, err := h.rows.named(ctx, name)
	if err != nil {
		return err
	}
	if !force {
		if err := deletable(ctx, h.Store, row); err != nil {
			return err
		}
	}
	m := h.machines.of(row)
	if !m.kill() {
		return errDeleting(name)
	}
	done := make(chan error, 1)
	if !h.tasks.begin(func() { done <- h.lives.destroy(m) }) {
		m.deleteFailed()
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
func deletable(ctx context.Context, st *store.Store, row store.Sprite) error {
	job, err := st.Jobs.Blocking(ctx, row.Name, row.ID)
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
			"sprite %s holds the only copy of what job %s could not collect: %s", row.Name, job.ID, job.Uncollected)
	}
	return fail.Newf(CodeUnpulledWork, fmt.Sprintf("get it with: %s; or lose it with --force", job.Bring()),
		"sprite %s holds the work of job %s, which nobody has pulled", row.Name, job.ID)
}

// destroy ends a dead machine's sandbox and removes its disk and row. If that
// fails the sprite stays, and can be deleted again.
func (l *lifecycle) destroy(m *machine) (err error) {
	ctx := l.tasks.lasting()
	defer func() {
		if err == nil {
			l.machines.drop(m)
		} else {
			m.deleteFailed()
		}
	}()
	if m.now().live() == nil {
		if err := elsewhere(l.runtime, store.Sprite{ID: m.id, Name: m.name}); err != nil {
			return err
		}
	}
	_, err = l.store.Sprites.Update(ctx, m.id, func(s *store.Sprite) error { s.Deleting = true; return nil })
	if errors.Is(err, store.ErrNotFound) {
		return nil // another delete came first
	}
	if err != nil {
		return err
	}
	fault.Reach(fault.DeleteNoted)
	l.layers.abandon(m.id)
	l.interrupt(m, 0)
	if sb := m.ask(false); sb != nil {
		if err := l.stop(sb, 0); err != nil {
			return err
		}
		m.set(nil)
	}
	fault.Reach(fault.DeleteStopped)
	if err := l.runtime.Destroy(ctx, m.id); err != nil {
		l.rows.note(m.id, func(s *store.Sprite) { s.LastError = err.Error() })
		if e := occupied(m.name, err); e != nil {
			return e
		}
		return err
	}
	defer l.layers.collect()
	fault.Reach(fault.DeleteRemoved)
	if err := loseWork(ctx, l.store, m.name); err != nil {
		l.logger.Error("noting what jobs have lost with their sprite", "sprite", m.name, "err", err)
	}
	checkpoints, err := l.store.Sprites.Checkpoints(ctx, m.id)
	if err != nil {
		return err
	}
	if err := l.store.Sprites.Delete(ctx, m.id); err != nil {
		return err
	}
	fault.Reach(fault.DeleteStored)
	for _, c := range checkpoints {
		l.memories.forget(c.Memory)
	}
	return nil
}

// loseWork notes, for jobs with results that nobody has pulled, that the results are
// gone.
func loseWork(ctx context.Context, st *store.Store, name string) error {
	jobs, err := st.Jobs.List(ctx, store.JobFilter{Sprite: name})
	if err != nil {
		return err
	}
	for _, job := range jobs {
		if !job.State.Terminal() || job.Bundle.Size == 0 || job.PulledAt != nil {
			continue
		}
		err := st.Jobs.Update(ctx, job.ID, func(j *cove.Job) error {
			j.Bundle, j.WorkDeleted = cove.Artifact{}, true
			j.Error = "its work was deleted with its sprite"
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}
