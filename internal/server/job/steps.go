package job

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"
	"unicode/utf8"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/server/stephint"
	"github.com/cove-dev/cove/internal/server/store"
	"github.com/cove-dev/cove/sprites"
)

// steps notes the progress of jobs' preparation, for people who watch. The supervisor's steps
// are in its log (store.Jobs.AppendEvents); the others are noted here. A note that fails does
// not end the work.
type steps struct {
	jobs   *store.Jobs
	logger *slog.Logger
}

// run does a step of a job's, within its limit. It has ended when run returns, or panics.
func (s *steps) run(ctx context.Context, job cove.Job, key cove.StepKey, f func(context.Context) error) error {
	s.begin(ctx, job.ID, key)
	panicked := true
	defer func() {
		if panicked {
			s.fail(ctx, job.ID, key, errors.New("a fault in cove: see the server's log"))
		}
	}()
	err := within(ctx, job, key, f)
	panicked = false
	if err != nil {
		s.fail(ctx, job.ID, key, err)
	} else {
		s.complete(ctx, job.ID, key, "")
	}
	return err
}

// overtime is the cause if a context ends because its step has taken longer than it may.
type overtime struct {
	key   cove.StepKey
	limit time.Duration
}

func (e overtime) Error() string {
	return fmt.Sprintf("%s took longer than the %v that it has", e.key, e.limit)
}

// within does a step of a job's within its limit.
func within(ctx context.Context, job cove.Job, key cove.StepKey, f func(context.Context) error) error {
	late := overtime{key, cove.StepLimit(job.StepLimits, key)}
	limited, cancel := context.WithTimeoutCause(ctx, late.limit, late)
	defer cancel()
	err := f(limited)
	if err == nil || ctx.Err() != nil || !errors.Is(context.Cause(limited), late) {
		return err
	}
	return fail.Wrap("step_timeout", fmt.Errorf("%w: %w", late, err), stephint.MoreTime(job, key))
}

func (s *steps) begin(ctx context.Context, job string, key cove.StepKey) {
	s.note(ctx, job, key, func(step *cove.Step) { store.BeginStep(step, stepTime()) })
}

// complete ends a step well. Detail may be empty.
func (s *steps) complete(ctx context.Context, job string, key cove.StepKey, detail string) {
	s.note(ctx, job, key, func(step *cove.Step) {
		store.EndStep(step, cove.StepCompleted, stepTime())
		step.Detail = detail
	})
}

// skip says why a step is not needed.
func (s *steps) skip(ctx context.Context, job string, key cove.StepKey, why string) {
	s.note(ctx, job, key, func(step *cove.Step) {
		store.EndStep(step, cove.StepSkipped, stepTime())
		step.Detail = why
	})
}

// warn notes a problem of a step. The step is begun again later.
func (s *steps) warn(ctx context.Context, job string, key cove.StepKey, warning string) {
	s.note(ctx, job, key, func(step *cove.Step) { step.State, step.Warning = cove.StepPending, warning })
}

// output notes everything that a step has printed.
func (s *steps) output(ctx context.Context, job string, key cove.StepKey, out cove.StepOutput) {
	s.note(ctx, job, key, func(step *cove.Step) { step.Output = out })
}

// fail ends a step by an error. A context that has ended is why, if it has.
func (s *steps) fail(ctx context.Context, job string, key cove.StepKey, err error) {
	if ctx.Err() != nil {
		err = fmt.Errorf("cancelled: %w", context.Cause(ctx))
	}
	s.note(ctx, job, key, func(step *cove.Step) {
		store.EndStep(step, cove.StepFailed, stepTime())
		step.Error, step.Hint = clip(err.Error()), hintOf(err)
		_, step.TimedOut = errors.AsType[overtime](err)
	})
}

// noteLimit is how long a note may take. Even a cancelled step is noted.
const noteLimit = 10 * time.Second

func (s *steps) note(ctx context.Context, job string, key cove.StepKey, f func(*cove.Step)) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), noteLimit)
	defer cancel()
	var ended *cove.Step
	err := s.jobs.UpdateStep(ctx, job, key, func(step *cove.Step) {
		if f(step); step.State.Ended() { // it had not before: else f is not called
			ended = step
		}
	})
	if err != nil {
		s.logger.Warn("noting how far a job's preparation is", "job", job, "step", key, "err", err)
	} else if ended != nil {
		logEnded(ctx, s.jobs, s.logger, job, *ended)
	}
}

// logEnded writes a line into the log for each step of a job that has ended.
func logEnded(ctx context.Context, jobs *store.Jobs, logger *slog.Logger, id string, list ...cove.Step) {
	job, err := jobs.Get(ctx, id)
	if err != nil {
		return // it has just been deleted, or the next line says what is wrong
	}
	for _, step := range list {
		logger.Info("a step of a job's preparation has ended", append(about(job), "step", step.Key, "state", step.State, "elapsed_ms", step.Duration().Milliseconds())...)
	}
}

// about are the fields that the log's lines about a job have.
func about(job cove.Job) []any {
	return []any{"job", job.ID, "executor", cmp.Or(job.Backend, "server"), "sprite", job.Sprite}
}

func stepTime() time.Time { return time.Now().UTC().Truncate(time.Microsecond) }

// retried runs f for a step that will be begun again if it fails. A failure is only a warning:
// it does not end the step. The detail says something of a step that went well; it may be
// empty.
func (s *steps) retried(ctx context.Context, job cove.Job, key cove.StepKey, f func(context.Context) (detail string, err error)) error {
	s.begin(ctx, job.ID, key)
	var detail string
	err := within(ctx, job, key, func(ctx context.Context) (err error) {
		detail, err = f(ctx)
		return err
	})
	if err != nil {
		s.warn(ctx, job.ID, key, clip(err.Error()))
	} else {
		s.complete(ctx, job.ID, key, detail)
	}
	return err
}

// progress says how far a step is that runs.
func (s *steps) progress(ctx context.Context, job string, key cove.StepKey, detail string) {
	s.note(ctx, job, key, func(step *cove.Step) { step.Detail = detail })
}

// installed says where a job's agent is from. Nil: its supervisor will bring it, if need be.
func (s *steps) installed(ctx context.Context, job cove.Job) {
	switch {
	case job.Install == nil:
	case key(job.Install) != "":
		s.complete(ctx, job.ID, cove.StepInstallAgent, job.Install.Detail)
	default:
		s.warn(ctx, job.ID, cove.StepInstallAgent, job.Install.Detail)
	}
}

// hintOf is the hint of an error; empty: it has none.
func hintOf(err error) string {
	if e, ok := errors.AsType[*sprites.Error](err); ok {
		return e.Hint
	}
	if e, ok := errors.AsType[*fail.Error](err); ok {
		return e.Hint
	}
	return ""
}

// stepLog is an io.Writer for what the commands of a step print. Its user has a lock.
type stepLog struct {
	out cove.StepOutput
	cut []byte // the beginning of a character
}

func (l *stepLog) Write(p []byte) (int, error) {
	text := slices.Concat(l.cut, p)
	whole := len(text)
	for i := whole - 1; i >= 0 && i > whole-utf8.UTFMax; i-- {
		if utf8.RuneStart(text[i]) {
			if !utf8.FullRune(text[i:]) {
				whole = i
			}
			break
		}
	}
	l.out.Append(string(text[:whole]))
	l.cut = slices.Clone(text[whole:])
	return len(p), nil
}
