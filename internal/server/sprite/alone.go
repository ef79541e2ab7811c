package sprite

import (
	"context"
	"errors"
	"time"

	"github.com/cove-dev/cove/internal/server/store"
)

// alone calls f while nothing else starts, ends or changes a sprite's sandbox or
// disk. Those who use the sandbox go on. f goes on when ctx ends.
func (l *lifecycle) alone(ctx context.Context, name string, f func(context.Context, *machine, store.Sprite) error) error {
	for {
		row, err := l.rows.named(ctx, name)
		if err != nil {
			return err
		}
		m := l.machines.of(row)
		busy, next, err := m.take(row.Deleting)
		if err != nil {
			return err
		}
		if next == resumes {
			l.run(m, func() { l.resume(m) })
		}
		if busy != nil {
			// However that transition ends, look again.
			if err := busy.wait(ctx); errors.Is(err, errFrozen) {
				return err
			}
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			continue
		}
		done := make(chan error, 1)
		begun := l.run(m, func() {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), checkpointLimit)
			defer cancel()
			defer m.finish(nil)
			defer context.AfterFunc(m.now().busy.given, cancel)()
			// The next server settles what is not done by then.
			defer context.AfterFunc(l.tasks.ctx, func() { time.AfterFunc(closePatience, cancel) })()
			row, err := l.takenRow(ctx, m)
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

// takenRow is the sprite of a machine that is taken, as it is now that nobody changes it. It may
// have been deleted before, and the name be another sprite's: then nobody needs the machine.
func (l *lifecycle) takenRow(ctx context.Context, m *machine) (store.Sprite, error) {
	row, err := l.store.Sprites.ByID(ctx, m.id)
	if errors.Is(err, store.ErrNotFound) {
		l.machines.drop(m)
		return row, NoSprite(m.name)
	}
	if err == nil && m.now().live() == nil {
		err = elsewhere(l.runtime, row)
	}
	if err == nil {
		row, err = l.settler.settled(ctx, row, m.now().live())
	}
	return row, err
}
