package supervise

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/cove-dev/cove"
)

// Reasons for the end of a job's agent, as in JobEnd.Reason.
const (
	endStopped = "stopped"
	endTimeout = "timeout"
	endIdle    = "idle"
	endTurns   = "turns"
	endDisk    = "disk"
)

// endError is the cause of a context that a guard has ended.
type endError struct{ reason, detail string }

func (e endError) Error() string { return e.reason + ": " + e.detail }

// endedBy returns why ctx has ended, and a guard's details.
func endedBy(ctx context.Context) (reason, detail string) {
	if e, ok := errors.AsType[endError](context.Cause(ctx)); ok {
		return e.reason, e.detail
	}
	return endStopped, ""
}

// guards end a job that goes on too long, is silent for too long, or does too
// much. They count only the time that the sprite is awake and the agent does not wait for a
// person.
type guards struct {
	spec *cove.JobSpec
	log  *journal
	fire context.CancelCauseFunc

	turned  chan struct{} // has an element when waiting has changed
	turning sync.Mutex    // held while waiting changes and the log is told, so that the log has the same order
	wg      sync.WaitGroup

	atWork  atomic.Bool  // the agent is
	waiting atomic.Bool  // the agent, for a person
	heard   atomic.Int64 // lines of the agent's

	places []string // folders whose growth is watched
	before int64    // bytes that they took before the agent started

	mu    sync.Mutex
	turns map[string]bool // by what is the same in a turn's lines
	n     int64           // turns
}

// startGuards starts a job's guards, which listen to its log. The context that it
// returns ends with ctx, or when one fires; close ends them, and waits.
func startGuards(ctx context.Context, spec *cove.JobSpec, log *journal) (context.Context, *guards) {
	ctx, fire := context.WithCancelCause(ctx)
	g := &guards{spec: spec, log: log, fire: fire, turns: map[string]bool{}, turned: make(chan struct{}, 1)}
	log.heard = g.line
	g.wg.Go(func() { g.keepTime(ctx) })
	return ctx, g
}

func (g *guards) close() {
	g.fire(context.Canceled)
	g.wg.Wait()
}

// end ends the job for a reason. The first one stands.
func (g *guards) end(reason, format string, args ...any) {
	g.fire(endError{reason, fmt.Sprintf(format, args...)})
}

// measureDisk notes what the files take before the agent starts.
func (g *guards) measureDisk(ctx context.Context) {
	if g.spec.Guards.DiskBytes <= 0 {
		return
	}
	g.places = []string{g.spec.Workdir, os.TempDir(), "/var/tmp"}
	if home, err := os.UserHomeDir(); err == nil {
		g.places = append(g.places, home)
	}
	g.before = used(ctx, g.places)
}

// checkDisk fires if the files have grown too much since measureDisk.
func (g *guards) checkDisk(ctx context.Context) {
	limit := g.spec.Guards.DiskBytes
	if limit <= 0 {
		return
	}
	if grown := used(ctx, g.places) - g.before; grown > limit && ctx.Err() == nil {
		g.end(endDisk, "its files have grown by %d MiB, over the limit of %d", grown>>20, limit>>20)
	}
}

// agentStarts is called when the job is prepared.
func (g *guards) agentStarts(ctx context.Context) {
	g.atWork.Store(true)
	if g.spec.Guards.DiskBytes > 0 {
		g.wg.Go(func() { g.watchDisk(ctx) })
	}
}

// keepTime fires when the job's time is up, or when nothing was heard for too long.
func (g *guards) keepTime(ctx context.Context) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	limit := time.Duration(g.spec.TimeoutSec) * time.Second
	quietLimit := time.Duration(g.spec.Guards.IdleSec) * time.Second
	clock := runningClock{last: time.Now()}
	var ran, quiet time.Duration
	var heard int64
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		passed := clock.tick(time.Now())
		if g.waiting.Load() {
			quiet = 0
			continue
		}
		ran += passed
		quiet += passed
		if now := g.heard.Load(); now != heard || !g.atWork.Load() {
			heard, quiet = now, 0
		}
		switch {
		case limit > 0 && ran >= limit:
			g.end(endTimeout, "its time (%v) is up", limit)
		case quietLimit > 0 && quiet >= quietLimit:
			g.end(endIdle, "no event for %v", quietLimit)
		}
	}
}

// runningClock measures how long the sprite was awake. Ticks come each second. A jump of the
// clock between two ticks is sleep, and does not count.
type runningClock struct{ last time.Time }

// tick is the time since the last tick.
func (c *runningClock) tick(now time.Time) time.Duration {
	passed := min(now.Sub(c.last), 2*time.Second)
	c.last = now
	return passed
}

// line is called for each line of the agent; for a long one, with its first part.
func (g *guards) line(stream, text string) {
	g.heard.Add(1)
	if over := g.spec.Input; over != nil && matches(over.Over, stream, text) {
		g.wait(true)
	} else if over != nil && over.Again != nil && matches(*over.Again, stream, text) {
		g.wait(false)
	}
	if g.spec.Turn == nil || g.spec.Input == nil && g.spec.Guards.Turns == 0 || !matches(*g.spec.Turn, stream, text) {
		return
	}
	g.wait(false)
	limit := g.spec.Guards.Turns
	if limit == 0 {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if once := g.spec.Turn.Once; once != "" {
		key := fields(text, once)[once]
		if g.turns[key] {
			return
		}
		g.turns[key] = true
	}
	if g.n++; g.n > limit {
		g.end(endTurns, "more than %d turns", limit)
	}
}

// wait notes whether the agent waits for a person.
func (g *guards) wait(is bool) {
	g.turning.Lock()
	defer g.turning.Unlock()
	if g.waiting.CompareAndSwap(!is, is) {
		select {
		case g.turned <- struct{}{}:
		default: // it is known to have changed
		}
		state := cove.JobRunning
		if is {
			state = cove.JobWaiting
		}
		g.log.state(state)
	}
}

// How often an agent's folders are measured, which depends on how long that takes.
const (
	diskInterval = 2 * time.Second
	diskShare    = 20 // one look in that many times its length
)

// watchDisk checks repeatedly whether the files have grown too much.
func (g *guards) watchDisk(ctx context.Context) {
	for pause := diskInterval; ; {
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
		began := time.Now()
		g.checkDisk(ctx)
		pause = max(diskInterval, diskShare*time.Since(began))
	}
}

// used is how much disk space the files below some folders take. Each file counts once, even
// if it has several names or one folder lies in another. Files that can't be read do not
// count.
func used(ctx context.Context, folders []string) int64 {
	type file struct{ dev, ino uint64 }
	seen := map[file]bool{}
	var sum int64
	for _, folder := range folders {
		_ = filepath.WalkDir(folder, func(_ string, d fs.DirEntry, err error) error {
			if ctx.Err() != nil {
				return fs.SkipAll
			}
			if err != nil {
				return nil //nolint:nilerr // gone meanwhile, or not to be read
			}
			info, err := d.Info()
			if err != nil {
				return nil //nolint:nilerr // gone meanwhile
			}
			st, ok := info.Sys().(*syscall.Stat_t)
			if !ok {
				return nil
			}
			id := file{st.Dev, st.Ino}
			if d.IsDir() && seen[id] {
				return fs.SkipDir
			}
			if !seen[id] && (d.IsDir() || st.Nlink > 1) {
				seen[id] = true
			} else if seen[id] {
				return nil
			}
			sum += st.Blocks * 512
			return nil
		})
	}
	return sum
}
