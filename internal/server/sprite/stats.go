package sprite

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/cove-dev/cove/sprites"
)

// A Meter is a Sandbox that can say what it uses. Usage reads a few files of the machine's, and
// asks nothing of the sandbox.
type Meter interface {
	Sandbox
	Usage() Usage
}

// Usage is what a sandbox uses, or has used since it started. 0 is what is not known, as sprites.Sample says.
type Usage struct {
	Memory         int64         // bytes, now
	CPU            time.Duration // of processors
	Written        int64         // bytes, to files
	Received, Sent int64         // bytes, from and to the network
}

const (
	sampleEvery = time.Minute
	samplesKept = time.Hour
)

// meters measures the sandboxes that run, and keeps what it has measured in the last hour. It is
// in memory alone: a new server begins with nothing.
type meters struct {
	mu  sync.Mutex // no other lock is taken while it is held
	all map[string][]sprites.Sample
}

// start measures until ctx ends.
func (ms *meters) start(ctx context.Context, of *machines) {
	of.tasks.more(func() {
		tick := time.NewTicker(sampleEvery)
		defer tick.Stop()
		for {
			ms.look(of, time.Now())
			select {
			case <-tick.C:
			case <-ctx.Done():
				return
			}
		}
	})
}

// look measures all once, and forgets what is old.
func (ms *meters) look(of *machines, now time.Time) {
	taken := map[string]sprites.Sample{}
	for _, m := range of.list() {
		if s, ok := measure(m, now); ok {
			taken[m.id] = s
		}
	}
	ms.mu.Lock()
	defer ms.mu.Unlock()
	if ms.all == nil {
		ms.all = map[string][]sprites.Sample{}
	}
	for id, s := range taken {
		ms.all[id] = append(ms.all[id], s)
	}
	for id, kept := range ms.all {
		kept = slices.DeleteFunc(kept, func(s sprites.Sample) bool { return now.Sub(s.Time) > samplesKept })
		if ms.all[id] = kept; len(kept) == 0 {
			delete(ms.all, id)
		}
	}
}

// measure measures a sprite that runs; ok is false if it does not, or can't be measured.
func measure(m *machine, now time.Time) (s sprites.Sample, ok bool) {
	state := m.now()
	if state.sandbox == nil || state.dead || state.paused {
		return s, false
	}
	meter, ok := state.sandbox.(Meter)
	if !ok {
		return s, false
	}
	u := meter.Usage()
	_, disk, _ := m.disk.read()
	return sprites.Sample{
		Time: now.UTC(), MemoryBytes: u.Memory, CPUMicroseconds: u.CPU.Microseconds(), WrittenBytes: u.Written, DiskBytes: disk,
		ReceivedBytes: u.Received, SentBytes: u.Sent,
	}, true
}

// Stats is what a host has measured of a sprite in the last hour, and what it uses now. It wakes
// nothing.
func Stats(ctx context.Context, h *Host, name string) (sprites.Stats, error) {
	row, err := h.rows.named(ctx, name)
	if err != nil {
		return sprites.Stats{}, err
	}
	stats := sprites.Stats{Samples: h.machines.meters.of(row.ID)}
	if m := h.machines.known(row.ID); m != nil {
		if s, ok := measure(m, time.Now()); ok {
			stats.Samples = append(stats.Samples, s)
		}
	}
	return stats, nil
}

// of is what was measured of a sprite.
func (ms *meters) of(id string) []sprites.Sample {
	ms.mu.Lock()
	defer ms.mu.Unlock()
	return append([]sprites.Sample{}, ms.all[id]...)
}
