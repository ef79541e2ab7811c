package sprite

import (
	"testing"
	"time"

	"github.com/cove-dev/cove/internal/server/store"
)

// metered is a sandbox that counts how often it was measured.
type metered struct {
	Sandbox
	n int64
}

func (m *metered) Usage() Usage {
	m.n++
	return Usage{Memory: m.n << 20, CPU: time.Duration(m.n) * time.Second}
}

// TestMeters: an hour of samples is kept of a running sandbox. A paused sandbox is not
// sampled. Once a sandbox is gone, its samples are dropped.
func TestMeters(t *testing.T) {
	ms := &machines{all: map[string]*machine{}, meters: &meters{}}
	m := newMachine(store.Sprite{ID: "a", Name: "paint"})
	m.sandbox = &metered{}
	ms.all["a"] = m
	at := time.Now()
	for range 200 {
		at = at.Add(sampleEvery)
		ms.meters.look(ms, at)
	}
	got := ms.meters.of("a")
	if want := int(samplesKept/sampleEvery) + 1; len(got) != want || got[want-1].MemoryBytes != 200<<20 || got[want-1].CPUMicroseconds != 200e6 {
		t.Fatalf("%d samples, want %d; the last: %+v", len(got), want, got[len(got)-1])
	}
	m.paused = true
	at = at.Add(sampleEvery)
	ms.meters.look(ms, at)
	if n := len(ms.meters.of("a")); n != len(got)-1 {
		t.Errorf("paused: %d samples", n)
	}
	delete(ms.all, "a")
	ms.meters.look(ms, at.Add(2*samplesKept))
	if len(ms.meters.all) != 0 {
		t.Errorf("gone: %v", ms.meters.all)
	}
}
