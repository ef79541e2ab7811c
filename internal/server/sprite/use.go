package sprite

import (
	"context"

	"github.com/cove-dev/cove/internal/lib/fail"
)

// Use wakes a sprite if it sleeps, and keeps it awake until the lease is
// released. why is what Info names as the reason. Callers at the same time share
// one start, which goes on when one of them gives up.
func (h *Host) Use(ctx context.Context, name, why string) (*Lease, error) {
	row, err := h.rows.named(ctx, name)
	if err != nil {
		return nil, err
	}
	if row.Deleting {
		return nil, fail.Newf(CodeDeleting, "delete it again if that takes too long", "sprite %s is being deleted", name)
	}
	m := h.machines.of(row)
	l := newLease(m, h.rows, why)
	for {
		busy, next, err := l.acquire()
		switch next {
		case boots:
			h.lives.run(m, func() { h.lives.boot(m, row) })
		case resumes:
			h.lives.run(m, func() { h.lives.resume(m) })
		}
		if err == nil && busy == nil {
			return l, nil
		}
		if err == nil {
			err = busy.wait(ctx)
		}
		if err != nil {
			l.Release()
			return nil, err
		}
	}
}
