package sprite

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/cove-dev/cove/internal/server/store"
)

// machines is the map of the sprites that have been used, by ID.
type machines struct {
	tasks    *tasks
	places   *places
	defaults times                       // of a sprite that does not say
	idle     func(m *machine, epoch int) // makes a machine sleep after its timer has fired
	meters   *meters

	mu  sync.Mutex // the lock of a machine is never taken while it is held
	all map[string]*machine
}

// times are after how long unused a sprite is paused, and its memory goes to disk. 0: never.
type times struct{ idle, hibernate time.Duration }

// of are a sprite's own times, or the server's present ones.
func (t times) of(row store.Sprite) times {
	own := times{seconds(row.IdleSeconds), seconds(row.Hibernate)}
	if row.IdleSeconds == store.ServersOwn {
		own.idle = t.idle.Truncate(time.Second)
	}
	if row.Hibernate == store.ServersOwn {
		own.hibernate = t.hibernate.Truncate(time.Second)
	}
	return own
}

func seconds(n int64) time.Duration { return time.Duration(n) * time.Second }

// of returns the machine of a sprite, which it makes if there is none.
func (ms *machines) of(row store.Sprite) *machine {
	ms.mu.Lock()
	defer ms.mu.Unlock()
	m := ms.all[row.ID]
	if m == nil {
		m = newMachine(row)
		m.tasks, m.places, m.idle = ms.tasks, ms.places, ms.idle
		m.sleep.times = ms.defaults.of(row)
		ms.all[row.ID] = m
	}
	return m
}

// known is the machine of a sprite; nil: the sprite has not been used.
func (ms *machines) known(id string) *machine {
	ms.mu.Lock()
	defer ms.mu.Unlock()
	return ms.all[id]
}

// heed has the machine of a sprite, if there is one, go by the times and the disk limit of a row.
// Only callbacks of the store call it, as they update the row: there the last row comes last.
func (ms *machines) heed(row store.Sprite) {
	if m := ms.known(row.ID); m != nil {
		m.setTimes(ms.defaults.of(row))
		m.disk.setLimit(row.Config.DiskLimit())
	}
}

// list is all machines.
func (ms *machines) list() []*machine {
	ms.mu.Lock()
	defer ms.mu.Unlock()
	all := make([]*machine, 0, len(ms.all))
	for _, m := range ms.all {
		all = append(all, m)
	}
	return all
}

// live is the machines with a sandbox, or with one that is starting or ending.
func (ms *machines) live() []*machine {
	return slices.DeleteFunc(ms.list(), func(m *machine) bool {
		now := m.now()
		return now.sandbox == nil && now.busy == nil || now.dead
	})
}

// drop forgets the machine of a sprite that is gone.
func (ms *machines) drop(m *machine) {
	ms.mu.Lock()
	if ms.all[m.id] == m {
		delete(ms.all, m.id)
	}
	ms.mu.Unlock()
	m.leave()
}

// sandbox is a sprite's sandbox; nil: it has none.
func (ms *machines) sandbox(id string) Sandbox {
	m := ms.known(id)
	if m == nil {
		return nil
	}
	return m.now().sandbox
}

// booted waits for a boot that is under way, which may have read the store before it
// changed. Then it returns the sprite's sandbox; nil: there is none. A client that leaves
// does not end the wait: the sandbox must still hear of the change. Boots have limits.
func (ms *machines) booted(id string) Sandbox {
	if m := ms.known(id); m != nil {
		if now := m.now(); now.busy != nil && now.sandbox == nil {
			<-now.busy.done
		}
	}
	return ms.sandbox(id)
}

// quietPatience is how long a sandbox that starts, ends or moves has the machine to itself.
// One that takes longer waits for something, such as a guest that does not answer.
const quietPatience = 5 * time.Second

// quiet reports whether no sandbox is starting, ending or moving.
func (ms *machines) quiet() bool {
	return !slices.ContainsFunc(ms.list(), func(m *machine) bool {
		busy := m.now().busy
		return busy != nil && time.Since(busy.begun) < quietPatience
	})
}

// layersInUse are the layers that sandboxes have, as the runtime says and as the machines know.
func layersInUse(ctx context.Context, rt Runtime, ms *machines) (map[string]bool, error) {
	all, err := mounted(ctx, rt)
	if err != nil {
		return nil, err
	}
	held := map[string]bool{}
	for _, l := range all {
		held[l] = true
	}
	for _, m := range ms.list() {
		now := m.now()
		for _, sb := range []Sandbox{now.sandbox, now.ending} {
			if sb != nil && !ended(sb) {
				for _, l := range sb.Status().Layers {
					held[l] = true
				}
			}
		}
	}
	return held, nil
}

// deletedOpen is the hint for a sprite whose deleted files are too large. No command gets
// into one that is held.
func (ms *machines) deletedOpen(id string) string {
	if m := ms.known(id); m != nil && m.now().held != nil {
		return endAndRemove(m.name)
	}
	return closeSome
}

// ownNetworks is the hint for a sprite whose programs have networks of their own. Nothing ends
// them one by one in a sprite that is held.
func (ms *machines) ownNetworks(id string) string {
	switch m := ms.known(id); {
	case m == nil:
		return "end these programs, and try again"
	case m.now().held != nil:
		return endAndRemove(m.name)
	default:
		return fmt.Sprintf(endNetworks, m.name)
	}
}

// places counts the sprites that are awake: their sandbox is not paused, or is about to be
// another.
type places struct {
	limit int // 0: none

	mu    sync.Mutex // no other lock is taken while it is held
	taken int
}

// take takes a place, unless as many are taken as there may be.
func (p *places) take() (taken int, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.limit > 0 && p.taken >= p.limit {
		return p.taken, false
	}
	p.taken++
	return p.taken, true
}

// add counts one that is awake, or, with -1, one that is not any more, whatever the limit.
func (p *places) add(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.taken += n
}

// full reports whether as many are taken as there may be.
func (p *places) full() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.limit > 0 && p.taken >= p.limit
}

// names are, for people, the reasons of some leases, each once.
func names(leases map[*Lease]bool) []string {
	var all []string
	for l := range leases {
		all = append(all, l.why)
	}
	slices.Sort(all)
	return slices.Compact(all)
}
