package sprite

import (
	"context"
	"fmt"
	"time"

	"github.com/cove-dev/cove/internal/store"
	"github.com/cove-dev/cove/sprites"
)

// Stop ends a sprite's sandbox, if it has one, whoever uses it: the next use
// starts another, from the same disk, with the programs that the server has then.
// Once begun it goes on when ctx ends.
func (h *Host) Stop(ctx context.Context, name string) error {
	row, err := h.row(ctx, name)
	if err != nil {
		return err
	}
	for {
		busy, ended, err := h.stopping(row)
		switch {
		case err != nil:
			return err
		case busy != nil: // whether it starts or ends: look again
			_ = busy.wait(ctx)
		case ended == nil:
			return nil
		default:
			select {
			case err := <-ended:
				if err != nil {
					return fmt.Errorf("stop sprite %s: %w", name, err)
				}
				return nil
			case <-ctx.Done():
			}
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
}

// stopping begins the end of a sprite's sandbox, and returns what tells of it; or
// what to wait for before asking again; or nothing, if it has none.
func (h *Host) stopping(row store.Sprite) (busy *transition, ended <-chan error, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	m := h.machines[row.ID]
	switch {
	case h.closed:
		return nil, nil, newError(CodeUnavailable, "try again in a moment", "the server is shutting down")
	case row.Deleting || m != nil && m.dead:
		return nil, nil, newError(CodeDeleting, "", "sprite %s is being deleted", row.Name)
	case m == nil:
		return nil, nil, nil
	case m.busy != nil:
		return m.busy, nil, nil
	case m.sandbox == nil:
		return nil, nil, nil
	}
	m.disarm()
	m.beginEnd()
	done := make(chan error, 1)
	h.wg.Go(func() { done <- h.endSandbox(m) })
	return nil, done, nil
}

// beginEnd makes the machine one whose sandbox is ending; endSandbox must follow.
// Host.mu is held.
func (m *machine) beginEnd() {
	m.busy, m.ending = &transition{done: make(chan struct{})}, m.sandbox
}

// endSandbox ends the sandbox of a machine for which beginEnd was called. If that
// fails the sprite goes on as it was.
func (h *Host) endSandbox(m *machine) error {
	h.mu.Lock()
	sb, busy := m.ending, m.busy
	h.mu.Unlock()
	err := h.stop(sb, stopGrace)
	h.mu.Lock()
	m.busy = nil
	if err == nil {
		m.sandbox = nil
	} else {
		m.ending = nil
		h.arm(m)
	}
	h.mu.Unlock()
	if err == nil {
		h.note(m.id, func(s *store.Sprite) { s.Status = sprites.StatusCold })
	}
	close(busy.done)
	return err
}

// stop ends a sandbox. It is not cut short by the Host's end.
func (h *Host) stop(sb Sandbox, grace time.Duration) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(h.ctx), grace+stopLimit)
	defer cancel()
	err := sb.Stop(ctx, grace)
	if err != nil {
		h.Logger.Error("ending a sandbox", "id", sb.ID(), "err", err)
	}
	return err
}
