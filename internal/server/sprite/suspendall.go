package sprite

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/cove-dev/cove/internal/server/store"
)

// suspendsAtOnce is how many memories are written at once. A memory that takes longer than
// suspendPatience goes on, but the next one begins. A hostile sprite may hang, and must not
// cost others their memory.
const (
	suspendsAtOnce  = 4
	suspendPatience = 2 * time.Second
)

// SuspendAll makes all sprites sleep with their memory, even those in use. It is for an
// end of the server that would end their sandboxes, too. It returns how many did, and the
// names of those that did not until ctx ended. Nothing may begin to use a sprite
// meanwhile.
//
// Memories that are written at once may take the room from each other, so that none fits. So
// those for which there was no room are written again, one by one, the smallest first. The next
// server says of the others why their memory is gone.
func (h *Host) SuspendAll(ctx context.Context) (asleep int, awake []string) {
	var mu sync.Mutex
	var short []shortMachine
	ended := func(m *machine, err error) (lacks *NoRoomError) {
		mu.Lock()
		defer mu.Unlock()
		if err == nil {
			asleep++
			return nil
		}
		lacks, _ = errors.AsType[*NoRoomError](err)
		return lacks
	}
	atOnce(ctx, h.machines.live(), suspendsAtOnce, suspendPatience, func(m *machine) {
		err := h.lives.suspendNow(ctx, m)
		lacks := ended(m, err)
		mu.Lock()
		defer mu.Unlock()
		if lacks != nil {
			short = append(short, shortMachine{m, lacks})
		} else if err != nil {
			awake = append(awake, m.name)
			if errors.Is(err, ErrNetworks) {
				noteNotKept(h, m, err)
			}
		}
	})
	slices.SortFunc(short, func(a, b shortMachine) int { return cmp.Compare(a.lacks.Needed, b.lacks.Needed) })
	for _, s := range short {
		err := h.lives.suspendNow(ctx, s.machine)
		if lacks := ended(s.machine, err); lacks != nil {
			s.lacks = lacks
		}
		if err != nil {
			awake = append(awake, s.machine.name)
			noteNotKept(h, s.machine, s.lacks)
		}
	}
	return asleep, awake
}

// shortMachine is a machine for whose memory there was no room.
type shortMachine struct {
	machine *machine
	lacks   *NoRoomError
}

// notKept begins a sprite's Lost if its sandbox is about to end with the server.
const notKept = "its sandbox ended with the server, and its memory was not kept: "

// noteNotKept notes why a memory is not kept, for the next server.
func noteNotKept(h *Host, m *machine, why error) {
	h.rows.note(m.id, func(row *store.Sprite) { row.Lost = notKept + why.Error() })
}

// atOnce calls do for each of some things, for a limited number (places) at once. Calls that
// take longer than patience do not count. If ctx has ended, it begins all the rest at once.
// It returns when all calls have returned.
func atOnce[T any](ctx context.Context, all []T, places int, patience time.Duration, do func(T)) {
	free := make(chan struct{}, places)
	var wg sync.WaitGroup
	for _, one := range all {
		wg.Go(func() {
			select {
			case free <- struct{}{}:
				leave := sync.OnceFunc(func() { <-free })
				defer leave()
				defer time.AfterFunc(patience, leave).Stop()
			case <-ctx.Done():
			}
			do(one)
		})
	}
	wg.Wait()
}

// errAwake says that a machine has a sandbox yet, because there was no time.
var errAwake = errors.New("it is still awake")

// suspendNow has a machine sleep. It returns nil if the machine has no sandbox any more.
func (l *lifecycle) suspendNow(ctx context.Context, m *machine) error {
	for ctx.Err() == nil {
		busy, next, err := m.stopping(true, true)
		if next == ends {
			done := make(chan error, 1)
			if !l.run(m, func() { done <- l.endSandbox(m, true) }) {
				return nil
			}
			select {
			case err := <-done: // which was logged
				return err
			case <-ctx.Done():
				return errAwake
			}
		}
		if busy == nil || err != nil {
			return nil
		}
		_ = busy.wait(ctx) // it is asked again
	}
	return errAwake
}
