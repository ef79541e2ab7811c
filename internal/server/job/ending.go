package job

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/server/agents"
	"github.com/cove-dev/cove/internal/server/store"
	"github.com/cove-dev/cove/sprites"
)

// The supervisor of a job runs as the user of the job's agent, which may stop it, or hold up
// its git. So the server also enforces the job's limit and its stop. If the supervisor does
// not end the job within a grace period, the server does. The sandbox's first process, which
// the agent can't signal, kills the job's processes, and another process collects the work.
// The row says so (JobEnding.Forced), so that the next server goes on with it.

const (
	stopGrace    = time.Minute      // from a stop, or the end of a job's time, to the end of its agent; a supervisor takes half at most
	collectLimit = 10 * time.Minute // of collecting a job's work
	tellLimit    = 45 * time.Second // of telling a supervisor to stop; less than stopGrace
	killGrace    = 10 * time.Second // for processes that were killed to be gone
	giveUpLimit  = time.Minute      // of each try to end a job without its work

	endTick     = time.Second
	ranInterval = time.Minute // how often a row is told how much of its time a job has had

	// A job that waits lets its sprite sleep. But the agent can write the log that says so. So
	// the time that the sprite is awake all the same has a limit: the job's own, and at least
	// this.
	leastAwakeWait = 24 * time.Hour
	awakeInterval  = 15 * time.Second // how often it is asked whether the sprite is awake
	awakeLimit     = 5 * time.Second  // of asking
)

// Why the server ends a job by force (JobEnding.Forced), as in JobEnd.Reason.
const (
	forcedStop    = "stopped"
	forcedTimeout = "timeout"
	forcedCollect = "collect" // its agent has ended, and its work is not collected in time
)

// endLimits are how long each part of a job's end may take.
type endLimits struct{ grace, collect time.Duration }

// collectSec is what a supervisor is given as the limit of its collecting.
func (l endLimits) collectSec() int64 { return max(1, int64(l.collect/time.Second)) }

// endClock counts the time of a job. Time does not count while its sprite is held, or its
// state is unknown.
type endClock struct {
	last time.Time

	asks  bool // the job's agent may ask a person
	awake bool // the sprite is, of a job that waits

	ran        time.Duration // as the job's time limit has it
	waited     time.Duration // for a person, with the sprite awake
	stopping   time.Duration // since its stop was asked for
	collecting time.Duration // since its agent ended
	forced     time.Duration // since the server began to end it
	patient    time.Duration // of forced: until then, the step of the follower is not cut off again
}

// tick adds the time since the last tick. A longer jump than of two ticks is a sleep of
// the machine.
func (c *endClock) tick(job cove.Job, now time.Time) {
	passed := min(now.Sub(c.last), 2*endTick)
	c.last = now
	switch {
	case job.Held != nil || job.Unknown != nil:
	case job.Forced != "":
		c.forced += passed
	case job.Exited != nil:
		c.collecting += passed
	default:
		if job.Stopping {
			c.stopping += passed
		}
		switch {
		case !c.waits(job):
			c.ran += passed
		case c.awake:
			c.waited += passed
		}
	}
}

// waits reports whether a job waits for a person: for a message, or for the answer to a question
// that the server knows. The state alone proves nothing: the agent can write into the job's
// log.
func (c *endClock) waits(job cove.Job) bool {
	return job.State == cove.JobWaiting && (job.Converse || c.asks && job.Question != nil)
}

// awakeWait is how long a job may wait for a person with its sprite awake.
func awakeWait(job cove.Job) time.Duration {
	return max(time.Duration(job.TimeoutSec)*time.Second, leastAwakeWait)
}

// unsaved reports whether a job's row must be told how much of its time the job has had.
func (c *endClock) unsaved(job cove.Job) bool {
	return c.ran >= ran(job)+ranInterval || c.waited >= waited(job)+ranInterval
}

// due is why a job must be ended by force now; empty: it must not.
func (c *endClock) due(job cove.Job, l endLimits) string {
	limit := time.Duration(job.TimeoutSec) * time.Second
	switch {
	case job.Forced != "":
	case job.Exited != nil:
		if c.collecting >= l.collect+l.grace {
			return forcedCollect
		}
	case job.Stopping && c.stopping >= l.grace:
		return forcedStop
	case limit > 0 && (c.ran >= limit+l.grace || c.waited >= awakeWait(job)+l.grace):
		return forcedTimeout
	}
	return ""
}

// over reports whether the end by force has taken too long, too. The end without the work, which
// follows, has a time of its own.
func (c *endClock) over(l endLimits) bool { return c.forced >= max(c.patient, l.collect+2*l.grace) }

// errForced is the cause if a step is cut off because the server ends the job by force, or
// gives that up.
var errForced = errors.New("the server ends the job by force")

// ender watches over the end of one job. The job's follower does the work.
type ender struct {
	id     string
	jobs   *store.Jobs
	limits endLimits
	client *cove.Client
	logger *slog.Logger

	mu     sync.Mutex
	cut    context.CancelCauseFunc // of the follower's step; nil: it is between two; guarded by mu
	giveUp bool                    // the end by force has taken too long; guarded by mu
}

// step is the context of a step of the follower. If the sandbox does not answer, the step has
// no end of its own. The caller must call done.
func (e *ender) step(ctx context.Context) (step context.Context, done func()) {
	step, cut := context.WithCancelCause(ctx)
	e.mu.Lock()
	e.cut = cut
	e.mu.Unlock()
	return step, func() {
		e.mu.Lock()
		e.cut = nil
		e.mu.Unlock()
		cut(nil)
	}
}

func (e *ender) cutOff(giveUp bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.giveUp = e.giveUp || giveUp
	if e.cut != nil {
		e.cut(errForced)
	}
}

func (e *ender) givenUp() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.giveUp
}

// watch looks after a job's time until ctx ends, or the job.
func (e *ender) watch(ctx context.Context) {
	changed, stop := e.jobs.Watch(e.id)
	defer stop()
	tick := time.NewTicker(endTick)
	defer tick.Stop()
	clock, asked, known := endClock{last: time.Now()}, time.Time{}, false
	for {
		job, err := e.jobs.Get(ctx, e.id)
		if ctx.Err() != nil || err == nil && job.State.Terminal() {
			return
		}
		if err == nil {
			if job.Question != nil && !known {
				clock.asks, known = e.asks(ctx, job), true
			}
			err = e.look(ctx, job, &clock)
		}
		if err != nil && ctx.Err() == nil {
			e.logger.Error("looking after the end of a job", "job", e.id, "err", err)
		}
		for quiet := true; quiet; {
			select {
			case <-ctx.Done():
				return
			case <-changed:
				quiet = false
			case now := <-tick.C:
				if clock.waits(job) && now.Sub(asked) >= awakeInterval {
					clock.awake, asked = e.awake(ctx, job, clock.awake), now
				}
				clock.tick(job, now)
				quiet = clock.due(job, e.limits) == "" && !clock.over(e.limits) && !clock.unsaved(job)
			}
		}
	}
}

func ran(job cove.Job) time.Duration    { return time.Duration(job.RanSec) * time.Second }
func waited(job cove.Job) time.Duration { return time.Duration(job.WaitedSec) * time.Second }

// asks reports whether a job's agent may ask a person, by its kind and its permissions.
func (e *ender) asks(ctx context.Context, job cove.Job) bool {
	agent, err := agentOf(job.Agent, job.Definition)
	if _, asks := agent.(agents.Questioner); err != nil || !asks {
		return false
	}
	req, err := settingsOf(ctx, e.jobs, job.ID)
	return err == nil && req.Permissions == agents.PermissionAsk
}

// awake reports whether a job's sprite is awake; if that can't be learned, the last known
// answer holds.
func (e *ender) awake(ctx context.Context, job cove.Job, was bool) bool {
	ctx, cancel := context.WithTimeout(ctx, awakeLimit)
	defer cancel()
	info, err := e.client.At(job.Backend).Get(ctx, job.Sprite)
	if err != nil {
		return was
	}
	return info.Status == sprites.StatusRunning
}

// look acts on a job's time: it notes the time that the job has had, and begins its end by
// force if that is due.
func (e *ender) look(ctx context.Context, job cove.Job, clock *endClock) error {
	clock.ran, clock.waited = max(clock.ran, ran(job)), max(clock.waited, waited(job))
	why := clock.due(job, e.limits)
	if clock.over(e.limits) {
		clock.patient = clock.forced + giveUpLimit
		e.cutOff(true)
	}
	if why == "" && !clock.unsaved(job) {
		return nil
	}
	err := e.jobs.Update(ctx, e.id, func(j *cove.Job) error {
		j.RanSec, j.WaitedSec = int64(clock.ran/time.Second), int64(clock.waited/time.Second)
		if j.Forced == "" && !j.State.Terminal() {
			j.Forced = why
		}
		return nil
	})
	if err == nil && why != "" {
		e.logger.Warn("a job does not end; ending it by force", "job", e.id, "why", why)
		e.cutOff(false)
	}
	return err
}

// force ends a job in the supervisor's place. It kills what is left of the job, has its work
// collected, and copies the log with its end.
func (f *follower) force(ctx context.Context, job cove.Job) error {
	if f.ender.givenUp() {
		return f.endUncollected(ctx, job, fmt.Sprintf("collecting its work took longer than %v", f.all.limits.collect))
	}
	err := f.all.supervisors.kill(ctx, job)
	if err == nil {
		err = f.all.supervisors.finalize(ctx, job, job.Forced)
	}
	if err == nil {
		var code int
		var said string
		if code, said, err = f.copyLog(ctx, job); err == nil && code != 0 {
			err = fmt.Errorf("%w: the follower exited with %d: %s", errBadLog, code, said)
		}
	}
	_, exit := errors.AsType[*sprites.ExitError](err)
	if exit || errors.Is(err, errBadLog) {
		if f.failed++; f.failed >= tries {
			return f.endUncollected(ctx, job, "collecting its work failed: "+err.Error())
		}
	}
	if errors.Is(err, sprites.ErrNotFound) {
		return f.loseDeleted(ctx, job, err)
	}
	return err
}

// endUncollected ends a job by force without its work, which stays in the sprite.
func (f *follower) endUncollected(ctx context.Context, job cove.Job, why string) error {
	now, err := f.all.jobs.Get(ctx, job.ID)
	if err != nil || now.State.Terminal() {
		return err
	}
	killing, cancel := context.WithTimeout(ctx, min(f.all.limits.grace, giveUpLimit/2)) // the sandbox may not answer
	err = f.all.supervisors.kill(killing, now)
	cancel()
	if err != nil {
		f.all.logger.Warn("ending a job whose work can't be collected", append(about(job), "err", err)...)
	}
	result := cove.JobEnd{Phase: "collect", Reason: now.Forced, ExitCode: -1, Uncollected: why}
	return f.all.finisher.end(ctx, now, cove.JobEvent{Seq: now.LastSeq + 1, Time: time.Now().UTC(), Type: "end", Result: &result})
}

// forcedEnd is the end of a job that the server has ended by force: its reason is the
// server's to say.
func forcedEnd(job cove.Job, end cove.JobEnd) cove.JobEnd {
	switch job.Forced {
	case forcedStop:
		end.Reason, end.Detail = forcedStop, ""
	case forcedTimeout:
		end.Reason, end.Detail = forcedTimeout, fmt.Sprintf("its time (%v) is up", time.Duration(job.TimeoutSec)*time.Second)
		if most := awakeWait(job); waited(job) >= most {
			end.Detail = fmt.Sprintf("it waited for a person for %v while its sprite was awake", most)
		}
	case forcedCollect:
		if end.Reason != forcedCollect || job.Exited == nil {
			break // the supervisor was in time after all
		}
		if end.Reason, end.ExitCode = job.Exited.Reason, job.Exited.ExitCode; end.Uncollected == "" {
			end.Phase = "done"
		} else {
			end.Reason = cmp.Or(end.Reason, end.Uncollected)
		}
	}
	return end
}

// endReason is why a job has ended: the log's reason, and what the server knows besides.
func endReason(job cove.Job, outcome cove.Outcome) string {
	reason := outcome.Reason
	if outcome.Kind == agents.Cancelled || outcome.Kind == agents.Lost {
		reason = cmp.Or(job.StopReason, reason)
	}
	if job.Forced == forcedStop || job.Forced == forcedTimeout {
		reason += " (by force: its supervisor did not end it)"
	}
	return reason
}

// noteExit notes that a job's agent has ended: only its work must still be collected.
func noteExit(ctx context.Context, jobs *store.Jobs, id string, batch []cove.JobEvent) error {
	for _, ev := range batch {
		if ev.Type != "exit" {
			continue
		}
		exit := cove.JobExit{Reason: clip(ev.Reason)}
		if ev.ExitCode != nil {
			exit.ExitCode = *ev.ExitCode
		}
		job, err := jobs.Get(ctx, id)
		if err != nil || job.Exited != nil || job.State.Terminal() {
			return err
		}
		return jobs.Update(ctx, id, func(j *cove.Job) error { j.Exited = &exit; return nil })
	}
	return nil
}
