package environment

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/lib/keylock"
	"github.com/cove-dev/cove/internal/server/store"
	"github.com/cove-dev/cove/sprites"
)

// LateLimit is how long a backend may work on a call for a sprite. So long after the call was
// given up, the sprite may still appear. Hosted services say ten minutes.
const LateLimit = 10 * time.Minute

const (
	surveyInterval = 30 * time.Second // between looks at all environments; a tenth more or less
	surveyLimit    = time.Minute      // of the look at one place

	firstRetry = time.Minute // until a failed deletion is retried; doubled each time
	lastRetry  = time.Hour   // the longest time between retries

	maxText = 4000 // of an error in a row
)

// Keeper keeps the rows of environments true. Set its exported fields before it is used. Its
// methods may be called from any goroutine.
type Keeper struct {
	Store        *store.Environments // required
	Client       *cove.Client        // of the server's own; required
	Installation string              // of this server; tells its sprites at backends from others'
	Logger       *slog.Logger        // required

	// Retry retries a call to a backend, if its error may pass; nil: nothing is retried.
	Retry func(context.Context, func() error) error

	// Before is called before each try to delete an environment's sprite. The sprite may not be
	// there, or may belong to another (Attach). Before has a time limit of its own, and reports
	// whether it did anything; nil: there is nothing to do.
	Before func(ctx context.Context, env cove.Environment) bool

	// Supervisor says whether the supervisors of the jobs in an environment's sprite answer. It
	// uses what the server knows already, and makes no call. Nil: nothing is known of any.
	Supervisor func(env cove.Environment) cove.SupervisorSignal

	turns  keylock.Mutex // an environment's sprite is made and deleted by one at a time
	cancel context.CancelFunc
	wg     sync.WaitGroup
}

// Start has the keeper look at all environments, now and then, until Close.
func (k *Keeper) Start(ctx context.Context) {
	ctx, k.cancel = context.WithCancel(ctx)
	k.wg.Go(func() { k.watch(ctx) })
}

// Close ends that, and waits.
func (k *Keeper) Close() {
	if k.cancel != nil {
		k.cancel()
	}
	k.wg.Wait()
}

func (k *Keeper) watch(ctx context.Context) {
	for {
		if err := k.Survey(ctx); err != nil && ctx.Err() == nil {
			k.Logger.Warn("looking at the environments", "err", err)
		}
		tenth := surveyInterval / 10
		select {
		case <-time.After(surveyInterval - tenth + rand.N(2*tenth)):
		case <-ctx.Done():
			return
		}
	}
}

// At is the executor of a backend; empty: of this server.
func (k *Keeper) At(backend string) Executor {
	if backend == "" {
		return here(k.Client)
	}
	retry := k.Retry
	if retry == nil {
		retry = func(_ context.Context, f func() error) error { return f() }
	}
	return there(k.Client.At(backend), k.Installation, retry)
}

// Name is the name of the sprite that is made for a job.
func (k *Keeper) Name(backend, job string) string {
	if backend == "" {
		return spriteName(job)
	}
	return spriteName(k.Installation + "-" + job)
}

// errSettled says that there is nothing to change.
var errSettled = errors.New("nothing is to be changed")

// change is Store.Change, for an f that may return errSettled.
func (k *Keeper) change(ctx context.Context, id string, f func(*cove.Environment) error) (cove.Environment, error) {
	env, err := k.Store.Change(ctx, id, f)
	if errors.Is(err, errSettled) {
		err = nil
	}
	return env, err
}

// before is the state of an environment, or that before it was unknown.
func before(env cove.Environment) cove.EnvironmentState {
	if env.State == cove.EnvironmentUnknown {
		return env.Was
	}
	return env.State
}

// Make makes the sprite of a planned environment. If an earlier call has tried that, Make finds
// the result. Of several calls, only one makes the sprite. If the sprite was not made, the
// environment is gone. If that is not known, the error wraps ErrUnclear, and the environment
// stays creating. It also stays so if the plan's installation is not there (sprites.ErrNotFound).
func (k *Keeper) Make(ctx context.Context, id string, plan Plan) (cove.Environment, error) {
	unlock, err := k.turns.Lock(ctx, id)
	if err != nil {
		return cove.Environment{}, err
	}
	defer unlock()
	env, err := k.change(ctx, id, func(e *cove.Environment) error {
		switch before(*e) {
		case cove.EnvironmentPlanned:
			e.State = cove.EnvironmentCreating
			return nil
		case cove.EnvironmentCreating:
			plan.Asked = true
			if e.LateUntil != nil { // from now on another call is open
				e.LateUntil = nil
				return nil
			}
		case cove.EnvironmentDestroying, cove.EnvironmentGone:
			return fmt.Errorf("environment %s (%s): %w", id, e.State, ErrGone)
		}
		return errSettled
	})
	if err != nil {
		return env, err
	}
	executor := k.At(env.Backend)
	if before(env) != cove.EnvironmentCreating {
		_, err := executor.Status(ctx, env)
		return env, err
	}
	status, err := executor.Provision(ctx, env, plan)
	note, cancel := context.WithTimeout(context.WithoutCancel(ctx), firstRetry)
	defer cancel()
	if err != nil {
		if errors.Is(err, ErrUnclear) {
			var noteErr error
			env, noteErr = k.change(note, id, func(e *cove.Environment) error {
				if before(*e) != cove.EnvironmentCreating {
					return errSettled
				}
				e.LateUntil = late(*e, time.Now())
				return nil
			})
			return env, errors.Join(err, noteErr)
		}
		if again := plan.Install != "" && errors.Is(err, sprites.ErrNotFound); !again {
			var goneErr error
			env, goneErr = k.gone(note, id)
			err = errors.Join(err, goneErr)
		}
		return env, err
	}
	env, noteErr := k.change(note, id, func(e *cove.Environment) error {
		if before(*e) != cove.EnvironmentCreating {
			return errSettled
		}
		e.State, e.SpriteID, e.Error, e.Hint = cove.EnvironmentPolicy, status.SpriteID, "", ""
		if status.Late {
			e.LateUntil = late(*e, time.Now())
		}
		return nil
	})
	return env, noteErr
}

// late is the time until which an environment's place may still make its sprite for a call that was
// given up. It is nil for this server: it makes no sprite after a call has ended.
func late(env cove.Environment, now time.Time) *time.Time {
	if env.Backend == "" {
		return nil
	}
	until := now.UTC().Add(LateLimit)
	return &until
}

// Furnished notes that the network policy of an environment is in force.
func (k *Keeper) Furnished(ctx context.Context, id string) error {
	_, err := k.change(ctx, id, func(e *cove.Environment) error {
		if before(*e) != cove.EnvironmentPolicy {
			return errSettled
		}
		e.State, e.Error, e.Hint = cove.EnvironmentPreparing, "", ""
		return nil
	})
	return err
}

// gone notes that an environment's sprite is not there.
func (k *Keeper) gone(ctx context.Context, id string) (cove.Environment, error) {
	return k.change(ctx, id, func(e *cove.Environment) error {
		if e.State == cove.EnvironmentGone {
			return errSettled
		}
		e.State, e.Error, e.Hint = cove.EnvironmentGone, "", ""
		return nil
	})
}

// Gone notes that an environment's sprite is not there, if its place says so now.
func (k *Keeper) Gone(ctx context.Context, env cove.Environment) error {
	_, err := k.At(env.Backend).Status(ctx, env)
	if isGone(err) {
		_, err = k.gone(ctx, env.ID)
	}
	return err
}

func isGone(err error) bool { return errors.Is(err, ErrGone) || errors.Is(err, ErrForeign) }

// Destroy deletes an environment. It stores that the environment is destroying, and then asks
// its place. If the place fails, the error says why. The row has that error and the time of the
// next try. Sweep, also the next server's, retries until the place says that the sprite is gone.
// A sprite of that name that belongs to another is left alone; the environment is then gone.
// If the sprite is not there, but its place may still make it, there is no error. The
// environment is then destroying, and Sweep looks for the sprite until it can't appear any more.
func (k *Keeper) Destroy(ctx context.Context, id string, reason cove.DestroyReason) (cove.Environment, error) {
	if !reason.Valid() {
		return cove.Environment{}, fmt.Errorf("destroy environment %s for %q: %w", id, reason, ErrReason)
	}
	unlock, err := k.turns.Lock(ctx, id)
	if err != nil {
		return cove.Environment{}, err
	}
	defer unlock()
	env, err := k.change(ctx, id, func(e *cove.Environment) error {
		switch e.State {
		case cove.EnvironmentGone, cove.EnvironmentDestroying:
			return errSettled
		case cove.EnvironmentPlanned: // nobody has asked for its sprite
			e.State = cove.EnvironmentGone
			return nil
		}
		now := time.Now().UTC()
		if before(*e) == cove.EnvironmentCreating && e.LateUntil == nil { // a server has died while it asked
			e.LateUntil = late(*e, now)
		}
		e.State, e.Error, e.Hint = cove.EnvironmentDestroying, "", ""
		e.Removal = &cove.EnvironmentRemoval{Reason: reason, Since: now, NextAt: now}
		return nil
	})
	if err != nil || env.State == cove.EnvironmentGone {
		return env, err
	}
	return k.try(ctx, env, time.Now())
}

// try tries to delete a destroying environment.
func (k *Keeper) try(ctx context.Context, env cove.Environment, now time.Time) (cove.Environment, error) {
	if k.Before != nil && k.Before(ctx, env) { // its time may have been all that ctx had
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(context.WithoutCancel(ctx), firstRetry)
		defer cancel()
	}
	err := k.At(env.Backend).Destroy(ctx, env, reasonOf(env))
	note, cancel := context.WithTimeout(context.WithoutCancel(ctx), firstRetry)
	defer cancel()
	if err == nil || errors.Is(err, ErrForeign) {
		if env.LateUntil != nil && now.Before(*env.LateUntil) {
			return k.awaited(note, env.ID, now)
		}
		return k.gone(note, env.ID)
	}
	env, noteErr := k.change(note, env.ID, func(e *cove.Environment) error {
		if e.State == cove.EnvironmentGone {
			return errSettled
		}
		next := cove.EnvironmentRemoval{Reason: reasonOf(*e)}
		if e.Removal != nil {
			next = *e.Removal
		}
		next.NextAt = time.Now().UTC().Add(min(firstRetry<<min(next.Tries, 10), lastRetry))
		next.Tries++
		e.Removal = &next
		e.Error, e.Hint = told(err)
		return nil
	})
	return env, errors.Join(err, noteErr)
}

// awaited notes that the sprite of a destroying environment is not there, and may still appear.
// Sweep looks for it by its mark, since a sprite that appears has an ID of its own.
func (k *Keeper) awaited(ctx context.Context, id string, now time.Time) (cove.Environment, error) {
	return k.change(ctx, id, func(e *cove.Environment) error {
		if e.State == cove.EnvironmentGone || e.LateUntil == nil {
			return errSettled
		}
		next := cove.EnvironmentRemoval{Reason: reasonOf(*e), Since: now.UTC()}
		if e.Removal != nil {
			next = *e.Removal
		}
		if next.NextAt = now.UTC().Add(firstRetry); next.NextAt.After(*e.LateUntil) {
			next.NextAt = *e.LateUntil
		}
		e.Removal, e.SpriteID, e.Hint = &next, "", ""
		e.Error = "the sprite is not there; the server looks for it until " + e.LateUntil.Format(time.RFC3339) + ": a call to make it was not answered, and may still be carried out"
		return nil
	})
}

func reasonOf(env cove.Environment) cove.DestroyReason {
	if env.Removal != nil && env.Removal.Reason.Valid() {
		return env.Removal.Reason
	}
	return cove.DestroyJobGone
}

// told is what an error says, in bounds, and what to type next.
func told(err error) (text, hint string) {
	if text = err.Error(); len(text) > maxText {
		text = strings.ToValidUTF8(text[:maxText], "") + "…"
	}
	if e, ok := errors.AsType[*sprites.Error](err); ok {
		return text, e.Hint
	}
	if e, ok := errors.AsType[*fail.Error](err); ok {
		return text, e.Hint
	}
	return text, ""
}

// Sweep tries to delete the destroying environments whose next try is due.
func (k *Keeper) Sweep(ctx context.Context, now time.Time) error {
	all, err := k.Store.List(ctx, cove.EnvironmentFilter{States: []cove.EnvironmentState{cove.EnvironmentDestroying}})
	errs := []error{err}
	for _, env := range all {
		if env.Removal != nil && now.Before(env.Removal.NextAt) {
			continue
		}
		if err := k.sweep(ctx, env.ID, now); err != nil {
			errs = append(errs, fmt.Errorf("environment %s: %w", env.ID, err))
		}
	}
	return errors.Join(errs...)
}

func (k *Keeper) sweep(ctx context.Context, id string, now time.Time) error {
	ctx, cancel := context.WithTimeout(ctx, surveyLimit)
	defer cancel()
	unlock, err := k.turns.Lock(ctx, id)
	if err != nil {
		return err
	}
	defer unlock()
	env, err := k.Store.Get(ctx, id)
	if errors.Is(err, store.ErrNotFound) || err == nil && env.State != cove.EnvironmentDestroying {
		return nil
	}
	if err == nil {
		_, err = k.try(ctx, env, now)
	}
	return err
}

// Survey checks all environments, with one list of each place that has some. It wakes no sprite.
// If a place does not answer, its environments are unknown; nothing else of them changes. If an
// environment changes meanwhile, Survey does not change it.
func (k *Keeper) Survey(ctx context.Context) error {
	all, err := k.Store.List(ctx, cove.EnvironmentFilter{}) // before the places are asked: their lists lack younger sprites
	if err != nil {
		return err
	}
	byPlace := map[string][]cove.Environment{}
	for _, env := range all {
		byPlace[env.Backend] = append(byPlace[env.Backend], env)
	}
	var mu sync.Mutex
	var errs []error
	var wg sync.WaitGroup
	for backend, envs := range byPlace {
		wg.Go(func() {
			if err := k.survey(ctx, k.At(backend), backend, envs); err != nil {
				mu.Lock()
				defer mu.Unlock()
				errs = append(errs, fmt.Errorf("at %s: %w", cmp.Or(backend, "this server"), err))
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// survey looks at the environments of one place. One that is shut off meanwhile notes nothing.
func (k *Keeper) survey(ctx context.Context, at Executor, backend string, envs []cove.Environment) error {
	limited, cancel := context.WithTimeout(ctx, surveyLimit)
	defer cancel()
	list, err := at.List(limited)
	if err != nil && (ctx.Err() != nil || backend == "") { // this server is here, whatever it says
		return err
	}
	byID := map[string]Status{}
	for _, s := range list {
		byID[s.SpriteID] = s
	}
	errs := []error{err}
	var same []string // the ids of environments without news
	for _, env := range envs {
		state := before(env)
		if state == cove.EnvironmentPlanned || state == cove.EnvironmentDestroying {
			continue
		}
		status, found := byID[env.SpriteID]
		said := err
		if said == nil && (!found || status.Name != env.Name || env.SpriteID == "") {
			status, said = at.Status(limited, env) // a list alone is no proof that it is gone
		}
		if ctx.Err() != nil {
			return errors.Join(append(errs, context.Cause(ctx))...)
		}
		changed, err := k.note(ctx, env, status, said)
		errs = append(errs, err)
		if !changed {
			same = append(same, env.ID)
		}
	}
	return errors.Join(append(errs, k.Store.Checked(ctx, same, time.Now()))...)
}

// note writes a place's answer about an environment, or the error, unless the row changes
// meanwhile. It reports false if the answer has no news.
func (k *Keeper) note(ctx context.Context, env cove.Environment, status Status, said error) (changed bool, err error) {
	now := time.Now().UTC()
	next := k.checked(seen(env, status, said, now), status, said)
	if next == env {
		return false, nil
	}
	next.Health.CheckedAt = &now
	if _, err = k.Store.Update(ctx, next); errors.Is(err, store.ErrRevision) {
		return true, nil
	}
	return true, err
}

// checked is an environment that has been seen, with its health. Each signal is kept for itself.
// A check fails if the place does not answer, or a supervisor is silent. One that is still
// starting proves nothing, and leaves the failures as they are.
func (k *Keeper) checked(env cove.Environment, status Status, said error) cove.Environment {
	if env.State == cove.EnvironmentGone {
		return env
	}
	h := &env.Health
	h.Supervisor = ""
	if k.Supervisor != nil {
		h.Supervisor = k.Supervisor(env)
	}
	switch {
	case said == nil:
		h.Provider = string(status.Said)
	case env.State == cove.EnvironmentUnknown:
		h.Provider = cove.ProviderUnreachable
	default:
		return env // it is being made
	}
	switch {
	case said != nil || h.Supervisor == cove.SupervisorSilent:
		h.Failures = min(h.Failures+1, cove.DegradedAfter)
	case h.Supervisor != cove.SupervisorStarting:
		h.Failures = 0
	}
	return env
}

// seen is an environment after its place has said its status, or an error.
func seen(env cove.Environment, status Status, said error, now time.Time) cove.Environment {
	state := before(env)
	switch {
	case isGone(said) && state == cove.EnvironmentCreating: // it is still being made
		env.State = state
	case isGone(said):
		env.State, env.Error, env.Hint = cove.EnvironmentGone, "", ""
	case said != nil:
		env.Was, env.State = state, cove.EnvironmentUnknown
		if next := unknown(said, now); env.Unknown == nil {
			env.Unknown = next
		} else if next.Since = env.Unknown.Since; *next != *env.Unknown {
			env.Unknown = next
		}
		return env
	case state == cove.EnvironmentReady || state == cove.EnvironmentAsleep:
		if env.State = status.State; state == cove.EnvironmentAsleep && status.State == cove.EnvironmentReady {
			env.WokenAt = &now
		}
	default:
		env.State = state
	}
	env.Was, env.Unknown = "", nil
	return env
}

// unknown says why nothing is known of the sprites at a place.
func unknown(why error, now time.Time) *cove.JobUnknown {
	u := &cove.JobUnknown{Code: "backend_unreachable", Since: now}
	u.Message, u.Hint = told(why)
	if e, ok := errors.AsType[*sprites.Error](why); ok && e.Code != "" {
		u.Code = e.Code
	}
	return u
}
