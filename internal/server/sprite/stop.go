package sprite

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/lib/fault"
	"github.com/cove-dev/cove/internal/server/store"
	"github.com/cove-dev/cove/sprites"
)

// Stop ends a sprite's sandbox, even if somebody uses it. If the sprite sleeps, Stop
// drops its memory. The next use boots another sandbox from the same disk, with the
// programs that the server has then. Once begun, Stop goes on even if ctx ends.
func (h *Host) Stop(ctx context.Context, name string) error {
	if err := h.lives.stopSprite(ctx, name, false); err != nil {
		return err
	}
	return h.lives.alone(ctx, name, func(ctx context.Context, m *machine, row store.Sprite) error {
		if m.now().live() != nil {
			return nil // it has been used again
		}
		return h.memories.drop(ctx, row.ID)
	})
}

// Suspend has a sprite sleep with its memory, unless somebody uses it. One that
// sleeps is left so.
func (h *Host) Suspend(ctx context.Context, name string) error {
	return h.lives.stopSprite(ctx, name, true)
}

// A call may be over for its client, and not yet for this process. It is looked at so often, with a
// pause in between. So it does not count for how long this process stands still.
const (
	leavingLooks = 50
	leavingPause = 20 * time.Millisecond
)

// stopSprite ends a sprite's sandbox; to sleep, with its memory.
func (l *lifecycle) stopSprite(ctx context.Context, name string, sleep bool) error {
	row, err := l.rows.named(ctx, name)
	if err != nil {
		return err
	}
	for looks := 1; ; looks++ {
		busy, ended, err := l.beginStop(row, sleep)
		var e *fail.Error
		switch {
		case errors.As(err, &e) && e.Code == CodeInUse && looks < leavingLooks:
			select { // a user that has just left may not be gone yet
			case <-time.After(leavingPause):
			case <-ctx.Done():
			}
		case errors.As(err, &e) && e.Code == CodeInUse:
			return jobInUse(ctx, l.store, row, err)
		case err != nil:
			return err
		case busy != nil && sleep: // whether it starts or ends: look again
			_ = busy.wait(ctx)
		case busy != nil: // it may be at something that does not end by itself
			m := l.machines.of(row)
			interrupted := make(chan struct{})
			if !l.tasks.begin(func() { defer close(interrupted); l.interrupt(m, stopGrace) }) {
				return errClosing()
			}
			select {
			case <-interrupted:
			case <-ctx.Done():
			}
		case ended == nil:
			return nil
		default:
			select {
			case err := <-ended:
				if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) { // which was logged
					return fail.Newf(CodeNoSpace, "free some space, and try again; or "+endAndRemove(name), "sprite %s stays awake: there is no space for its memory on the server's disk", name)
				}
				if errors.Is(err, ErrDeletedOpen) {
					return fail.Newf(CodeDeletedOpen, l.machines.deletedOpen(row.ID), "sprite %s stays awake: %v", name, err)
				}
				if errors.Is(err, ErrNetworks) {
					return fail.Newf(CodeNetworks, l.machines.ownNetworks(row.ID), "sprite %s stays awake: %v", name, err)
				}
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

// interrupt ends the sandbox of a machine that is busy, and returns when it is not busy any
// more. If that takes longer than the grace, the transition is given up: a guest that does
// not answer is no reason to wait. A transition that changes the disk is given up only
// without a grace (a delete). Without a grace, everything is given up at once.
func (l *lifecycle) interrupt(m *machine, grace time.Duration) {
	busy, sb := m.interrupting()
	if busy == nil {
		return
	}
	if sb != nil {
		if err := l.stop(sb, grace); err != nil { // logged
			m.unasked(sb, false)
		}
		if ended(sb) {
			l.rows.note(m.id, func(s *store.Sprite) { s.Status = sprites.StatusCold })
		}
	}
	if grace == 0 || !busy.alone {
		timer := time.AfterFunc(grace, busy.giveUp)
		defer timer.Stop()
	}
	<-busy.done // it has limits of its own
}

// jobInUse is the error for a sprite that a job works in. If there is no such job, it
// is err.
func jobInUse(ctx context.Context, st *store.Store, row store.Sprite, err error) error {
	jobs, listErr := st.Jobs.List(ctx, store.JobFilter{Sprite: row.Name, States: []cove.JobState{cove.JobPreparing, cove.JobRunning, cove.JobWaiting}})
	if listErr != nil || len(jobs) == 0 {
		return err
	}
	id := jobs[0].ID
	return fail.Newf(CodeInUse, fmt.Sprintf("wait for its end: cove job wait %s; or end it: cove job stop %s", id, id),
		"sprite %s is in use: job %s is at work in it (%s)", row.Name, id, jobs[0].State)
}

// beginStop begins the end of a sprite's sandbox, and returns a channel for the result.
// If the machine is busy, it returns the transition to wait for; the caller then asks
// again. If there is no sandbox, it returns neither.
func (l *lifecycle) beginStop(row store.Sprite, sleep bool) (busy *transition, ended <-chan error, err error) {
	if row.Deleting {
		return nil, nil, errDeleting(row.Name)
	}
	m := l.machines.known(row.ID)
	if m == nil {
		return nil, nil, nil
	}
	busy, next, err := m.stopping(sleep, false)
	if next != ends {
		return busy, nil, err
	}
	done := make(chan error, 1)
	if !l.run(m, func() { done <- l.endSandbox(m, sleep) }) {
		return nil, nil, errClosing()
	}
	return nil, done, nil
}

// endSandbox ends the sandbox of a machine that is busy with that; to sleep, it keeps the
// memory, if it can. If that fails the sprite goes on as it was.
func (l *lifecycle) endSandbox(m *machine, sleep bool) error {
	sb := m.now().ending
	var err error
	status := sprites.StatusCold
	if hb, ok := sb.(Hibernator); ok && sleep {
		status = sprites.StatusWarm
		err = l.hibernate(hb)
	} else {
		err = l.stop(sb, graceOf(m))
	}
	busy, freed := m.endEnd(err)
	if err != nil && ended(sb) {
		l.noteEnd(m, sb) // watch took it for the end that was asked for
		err = fail.Newf(CodeUnavailable, "the next use boots it; to see why it ended: cove info "+m.name, "sprite %s has ended, and what ran in it is lost; its files are as they were: %v", m.name, err)
	}
	if freed {
		l.disk.noteHeld(m)
	}
	if err == nil {
		l.rows.note(m.id, func(s *store.Sprite) { s.Status, s.Lost = status, "" })
		if sleep {
			fault.Reach(fault.SleepStored)
		}
	}
	busy.finish(nil)
	return err
}

// undo ends the sandbox of a machine that is taken, for a restore, and reports whether it had
// one.
func (l *lifecycle) undo(m *machine) (awake bool, err error) {
	sb := m.now().live()
	if sb == nil {
		return false, nil
	}
	m.ask(true)
	if err := l.stop(sb, graceOf(m)); err != nil {
		m.unasked(sb, true)
		return true, err
	}
	m.set(nil)
	return true, nil
}

const hibernateLimit = 5 * time.Minute

// hibernate is not cut short by the Host's end.
func (l *lifecycle) hibernate(sb Hibernator) error {
	ctx, cancel := context.WithTimeout(l.tasks.lasting(), hibernateLimit)
	defer cancel()
	err := sb.Hibernate(ctx)
	switch {
	case errors.Is(err, ErrNetworks): // an idle sprite is asked again and again, and is paused all the while
		l.logger.Info("the memory of a sandbox can't be kept; it does not sleep", "why", err)
	case err != nil:
		l.logger.Error("keeping the memory of a sandbox that sleeps; it stays awake", "err", err)
	}
	return err
}

// graceOf is how long what runs in a machine is given to end: one that is held would
// write on meanwhile.
func graceOf(m *machine) time.Duration {
	if m.now().held != nil {
		return 0
	}
	return stopGrace
}

// stop ends a sandbox. It is not cut short by the Host's end.
func (l *lifecycle) stop(sb Sandbox, grace time.Duration) error {
	return stop(l.tasks.lasting(), sb, grace, l.logger)
}

func stop(ctx context.Context, sb Sandbox, grace time.Duration, logger *slog.Logger) error {
	ctx, cancel := context.WithTimeout(ctx, grace+stopLimit)
	defer cancel()
	err := sb.Stop(ctx, grace)
	if err != nil {
		logger.Error("ending a sandbox", "id", sb.ID(), "err", err)
	}
	return err
}
