package shim

import (
	"context"
	"errors"

	"github.com/cove-dev/cove/internal/lib/fault"
)

// setPaused pauses the sandbox, or resumes it.
func (s *Shim) setPaused(ctx context.Context, paused bool) error {
	change := s.resume
	if paused {
		change = s.pause
	}
	return s.moves.run(ctx, func(context.Context) error {
		if s.record.get().Paused == paused {
			return nil
		}
		return s.unlessEnded(change())
	})
}

// pause freezes the sandbox in memory. The state file says so before: if the shim
// dies in between, the next shim does the rest. The caller holds moves.turn.
func (s *Shim) pause() error {
	if err := s.record.set(func(st *State) { st.Paused = true }); err != nil {
		return errors.Join(err, s.record.set(func(st *State) { st.Paused = false }))
	}
	fault.Reach(fault.PauseNoted)
	if err := s.containers.runsc(s.record.get()).freeze(); err != nil {
		return errors.Join(err, s.containers.runsc(s.record.get()).thaw(), s.record.set(func(st *State) { st.Paused = false }))
	}
	fault.Reach(fault.PauseFrozen)
	return nil
}

// resume undoes pause; in the file last of all. moves.turn is held.
func (s *Shim) resume() error {
	if err := s.containers.runsc(s.record.get()).thaw(); err != nil {
		return err
	}
	fault.Reach(fault.ResumeThawed)
	err := s.record.set(func(st *State) { st.Paused = false })
	fault.Reach(fault.ResumeNoted)
	return err
}
