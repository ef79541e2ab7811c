package bench

import (
	"testing"
	"time"

	"github.com/cove-dev/cove/internal/test/e2e"
	"github.com/cove-dev/cove/sprites"
)

// BenchmarkWake times a command in a running sprite, in a paused one, and in one whose
// memory is on disk. Beside it stands bare runsc's time to resume an idle sandbox, and to
// restore it. Each round waits for a sprite to fall asleep: -benchtime 10x.
func BenchmarkWake(b *testing.B) {
	_, restores := floorMoves(b, 7)
	floor := startFloor(b)
	floor.keepRunning(b)
	client, _ := benchServer(b)
	ctx := b.Context()
	idle, never := int64(1), int64(0)
	if _, err := client.Create(ctx, sprites.CreateRequest{Name: "paint", IdleSeconds: &idle, HibernateSeconds: &never}); err != nil {
		b.Fatal(err)
	}
	exec := func() error { return e2e.RunIn(client, "paint", "true") }
	var running, paused, hibernated, resumes []time.Duration
	for b.Loop() {
		timed(b, exec) // it may be asleep
		running = append(running, timed(b, exec))
		e2e.Await(b, "the pause", func() bool {
			info, err := client.Get(ctx, "paint")
			return err == nil && info.Cove.Paused
		})
		paused = append(paused, timed(b, exec))
		if _, err := client.Sprite("paint").Suspend(ctx); err != nil {
			b.Fatal(err)
		}
		hibernated = append(hibernated, timed(b, exec))
		floor.run(b, floorCall{N: 1, Args: []string{"pause", floorID}})
		resumes = append(resumes, floor.run(b, floorCall{N: 1, Args: []string{"resume", floorID}})...)
	}
	b.ReportMetric(e2e.Median(running), "running-ms")
	b.ReportMetric(e2e.Median(paused), "paused-ms")
	b.ReportMetric(e2e.Median(resumes), "runsc-resume-ms")
	b.ReportMetric(e2e.Median(paused)-e2e.Median(running), "paused-wake-ms")
	b.ReportMetric(e2e.Median(hibernated), "hibernated-ms")
	b.ReportMetric(e2e.Median(restores), "runsc-restore-ms")
	b.ReportMetric(e2e.Median(hibernated)/e2e.Median(restores), "hibernated/runsc")
	b.ReportMetric(0, "ns/op")
}
