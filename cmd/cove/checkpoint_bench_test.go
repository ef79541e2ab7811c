package main

import (
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/cove-dev/cove/sprites"
)

// floorMoves is what bare runsc takes to save a sandbox that does nothing, which goes on,
// and to restore one, each some times.
func floorMoves(b *testing.B, n int) (saves, restores []time.Duration) {
	b.Helper()
	f := startFloor(b)
	bundle := "--bundle=" + filepath.Join(f.dir, "bundle")
	f.run(b, floorCall{N: 1, Argv: []string{"sleep", "100000"}, Args: []string{"run", "--detach", bundle, floorID}})
	for i := range n {
		image := "--image-path=" + filepath.Join(b.TempDir(), fmt.Sprint("image", i))
		f.run(b, floorCall{N: 1, Args: []string{"pause", floorID}})
		saves = append(saves, f.run(b, floorCall{N: 1, Args: []string{"checkpoint", "--leave-running", image, floorID}})...)
		f.run(b, floorCall{N: 1, Args: []string{"delete", "--force", floorID}})
		restores = append(restores, f.run(b, floorCall{N: 1, Args: []string{"restore", "--detach", bundle, image, floorID}})...)
	}
	f.run(b, floorCall{N: 1, Args: []string{"delete", "--force", floorID}})
	return saves, restores
}

// BenchmarkCheckpoint prints for how long a checkpoint stands still what runs, for an
// empty disk and for one with a gigabyte in 100,000 files that were just written, beside
// what bare runsc takes to save and to restore; how long a restore with the memory, and
// the waking of a sprite that sleeps, take to their first command; and what ten forks of
// what runs take in all. Nothing is made more often than it has to be: -benchtime 1x.
func BenchmarkCheckpoint(b *testing.B) {
	const times = 7
	saves, restores := floorMoves(b, times)
	save, back := median(saves), median(restores)
	client, _ := benchServer(b)
	ctx := b.Context()
	must := func(err error) {
		b.Helper()
		if err != nil {
			b.Fatal(err)
		}
	}
	pauses := func(s *sprites.Sprite) float64 {
		var all []time.Duration
		for range times {
			c, err := s.Checkpoint(ctx, sprites.CheckpointRequest{}, nil)
			must(err)
			all = append(all, time.Duration(c.Cove.PauseMilliseconds*float64(time.Millisecond)))
		}
		return median(all)
	}
	for b.Loop() {
		empty, err := client.Create(ctx, sprites.CreateRequest{Name: "empty"})
		must(err)
		s := client.Sprite(empty.Name)
		must(s.CommandContext(ctx, "true").Run())
		idle := pauses(s)
		_, err = s.Checkpoint(ctx, sprites.CheckpointRequest{Memory: sprites.KeepAuto}, nil)
		must(err)
		var backs, wakes []time.Duration
		for range times {
			began := time.Now()
			_, err := s.RestoreCheckpoint(ctx, fmt.Sprintf("v%d", times+1), sprites.RestoreRequest{}, nil)
			must(err)
			must(s.CommandContext(ctx, "true").Run())
			backs = append(backs, time.Since(began))
			_, err = s.Suspend(ctx)
			must(err)
			began = time.Now()
			must(s.CommandContext(ctx, "true").Run())
			wakes = append(wakes, time.Since(began))
		}

		_, err = client.Create(ctx, sprites.CreateRequest{Name: "full"})
		must(err)
		s = client.Sprite("full")
		const many = `import os
data = os.urandom(10486)
for d in range(100):
    os.makedirs('many/%d' % d)
    for f in range(1000):
        with open('many/%d/%d' % (d, f), 'wb') as out: out.write(data)
`
		must(s.CommandContext(ctx, "python3", "-c", many).Run())
		full := pauses(s)
		began := time.Now()
		forks := sprites.ForkRequest{}
		for n := range 10 {
			forks.Names = append(forks.Names, fmt.Sprintf("fork-%d", n))
		}
		_, err = s.Forks(ctx, forks)
		must(err)
		forked := time.Since(began).Seconds()

		b.ReportMetric(save, "runsc-save-ms")
		b.ReportMetric(back, "runsc-restore-ms")
		b.ReportMetric(idle, "pause-empty-ms")
		b.ReportMetric(full, "pause-1GB-ms")
		b.ReportMetric(full/idle, "pause-1GB/empty")
		b.ReportMetric(full/(save+back), "pause-1GB/runsc")
		b.ReportMetric(median(backs)/back, "restore-exec/runsc")
		b.ReportMetric(median(wakes)/back, "wake-exec/runsc")
		b.ReportMetric(forked, "ten-forks-s")
		b.ReportMetric(0, "ns/op")
	}
}
