package store

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/cove-dev/cove"
)

// Environments are the sprites that were made for jobs, here or at backends. There is one for
// each sprite and for each job at most. Jobs.Create makes their rows. All changes but those
// in a transaction of the store's own are compare-and-swap: see Update.
//
// Watch tells of each change of an environment, and of each job's.
type Environments struct {
	db *database
	watchers
}

// ErrTransition says that an environment can't come from its state into another.
var ErrTransition = errors.New("an environment can't change that way")

// environmentStates says which states may follow which. Each but gone may be followed by
// itself, too.
var environmentStates = map[cove.EnvironmentState][]cove.EnvironmentState{
	cove.EnvironmentPlanned:    {cove.EnvironmentCreating, cove.EnvironmentDestroying, cove.EnvironmentGone},
	cove.EnvironmentCreating:   {cove.EnvironmentPolicy, cove.EnvironmentUnknown, cove.EnvironmentDestroying, cove.EnvironmentGone},
	cove.EnvironmentPolicy:     {cove.EnvironmentPreparing, cove.EnvironmentFailed, cove.EnvironmentUnknown, cove.EnvironmentDestroying, cove.EnvironmentGone},
	cove.EnvironmentPreparing:  {cove.EnvironmentReady, cove.EnvironmentFailed, cove.EnvironmentUnknown, cove.EnvironmentDestroying, cove.EnvironmentGone},
	cove.EnvironmentReady:      {cove.EnvironmentAsleep, cove.EnvironmentUnknown, cove.EnvironmentDestroying, cove.EnvironmentGone},
	cove.EnvironmentAsleep:     {cove.EnvironmentReady, cove.EnvironmentUnknown, cove.EnvironmentDestroying, cove.EnvironmentGone},
	cove.EnvironmentFailed:     {cove.EnvironmentReady, cove.EnvironmentUnknown, cove.EnvironmentDestroying, cove.EnvironmentGone},
	cove.EnvironmentUnknown:    {cove.EnvironmentCreating, cove.EnvironmentPolicy, cove.EnvironmentPreparing, cove.EnvironmentReady, cove.EnvironmentAsleep, cove.EnvironmentFailed, cove.EnvironmentDestroying, cove.EnvironmentGone},
	cove.EnvironmentDestroying: {cove.EnvironmentGone},
	cove.EnvironmentGone:       nil,
}

// mayBecome reports whether an environment may come from one state into another, or stay.
func mayBecome(from, to cove.EnvironmentState) bool {
	return from == to && from != cove.EnvironmentGone || slices.Contains(environmentStates[from], to)
}

// The columns that a row's document repeats are those that count. Of the jobs, an environment
// has what is the job's own, and whether it is needed.
const environmentQuery = `SELECT e.id, e.version, e.job, e.place, e.state, e.doc, e.created_at, j.id IS NULL,
		coalesce(j.doc->>'$.plan_name', ''), coalesce(j.doc->>'$.repository', ''), coalesce(j.doc->>'$.profile', ''), coalesce(j.doc->>'$.profile_revision', 0),
		EXISTS (SELECT 1 FROM jobs b WHERE b.sprite = e.place AND b.state IN ('installing', 'queued', 'preparing', 'running', 'waiting')),
		EXISTS (SELECT 1 FROM jobs w WHERE w.sprite = e.place AND (w.doc->>'$.bundle.size' > 0 AND w.doc->>'$.pulled_at' IS NULL OR w.doc->>'$.uncollected' <> '' AND w.doc->>'$.sprite_id' = e.doc->>'$.sprite_id'))
	FROM environments e LEFT JOIN jobs j ON j.id = e.job`

func scanEnvironment(row scanner) (cove.Environment, error) {
	var e, is cove.Environment
	var at string
	var doc []byte
	var created sql.NullInt64
	err := row.Scan(&is.ID, &is.Version, &is.Job, &at, &is.State, &doc, &created, &is.Orphan, &is.JobTitle, &is.Repository, &is.Profile, &is.ProfileRevision, &is.Busy, &is.Work)
	if err != nil {
		return e, err
	}
	if err := json.Unmarshal(doc, &e); err != nil {
		return e, fmt.Errorf("read environment %s: %w", is.ID, err)
	}
	e.ID, e.Version, e.Job, e.State, e.Orphan, e.Busy = is.ID, is.Version, is.Job, is.State, is.Orphan, is.Busy
	e.JobTitle, e.Repository, e.Profile, e.ProfileRevision = is.JobTitle, is.Repository, is.Profile, is.ProfileRevision
	e.Work = is.Work && e.State != cove.EnvironmentGone
	e.Backend, e.Name = placed(at)
	e.CreatedAt = fromMicros(created)
	return e.Judged(), nil
}

// placed is the inverse of place.
func placed(at string) (backend, sprite string) {
	if backend, sprite, ok := strings.Cut(at, "/"); ok {
		return backend, sprite
	}
	return "", at
}

func getEnvironment(ctx context.Context, q querier, where string, args ...any) (cove.Environment, error) {
	e, err := scanEnvironment(q.QueryRowContext(ctx, environmentQuery+" WHERE "+where, args...))
	return e, notFound(err)
}

// Get returns an environment; ErrNotFound if there is none.
func (t *Environments) Get(ctx context.Context, id string) (cove.Environment, error) {
	e, err := getEnvironment(ctx, t.db.read, "e.id = ?", id)
	if err != nil {
		err = fmt.Errorf("environment %s: %w", id, err)
	}
	return e, err
}

// OfJob returns the environment that a job has; ErrNotFound if it has none.
func (t *Environments) OfJob(ctx context.Context, job string) (cove.Environment, error) {
	e, err := getEnvironment(ctx, t.db.read, "e.job = ?", job)
	if err != nil {
		err = fmt.Errorf("environment of job %s: %w", job, err)
	}
	return e, err
}

// At returns the environment of a sprite, if that is not gone; otherwise ErrNotFound.
func (t *Environments) At(ctx context.Context, backend, sprite string) (cove.Environment, error) {
	e, err := getEnvironment(ctx, t.db.read, "e.place = ? AND e.state <> 'gone'", place(backend, sprite))
	if err != nil {
		err = fmt.Errorf("environment %s: %w", place(backend, sprite), err)
	}
	return e, err
}

// List returns the environments that filter selects, the newest first.
func (t *Environments) List(ctx context.Context, filter cove.EnvironmentFilter) ([]cove.Environment, error) {
	query, args := environmentQuery+" WHERE ", []any{}
	if n := len(filter.States); n > 0 {
		query += "e.state IN (" + strings.TrimSuffix(strings.Repeat("?,", n), ",") + ")"
		for _, s := range filter.States {
			args = append(args, s)
		}
	} else {
		query += "e.state <> 'gone'"
	}
	if filter.Profile != "" {
		query += " AND j.doc->>'$.profile' = ?"
		args = append(args, filter.Profile)
	}
	if filter.Backend != nil {
		query += " AND substr(e.place, 1, instr(e.place, '/')) = ?"
		args = append(args, place(*filter.Backend, ""))
	}
	list, err := collect(ctx, t.db.read, scanEnvironment, query+" ORDER BY e.created_at DESC, e.id", args...)
	if err != nil {
		return nil, fmt.Errorf("list environments: %w", err)
	}
	return list, nil
}

// Needed reports whether a sprite that was made for a job is still needed. An environment that
// is not gone needs it, and so does a job that works in it. At this server, the sprite's own
// job needs it as long as the job exists.
func (t *Environments) Needed(ctx context.Context, backend, sprite, job string) (needed bool, err error) {
	err = t.db.read.QueryRowContext(ctx, `SELECT EXISTS (SELECT 1 FROM environments WHERE place = ?1 AND state <> 'gone')
		OR EXISTS (SELECT 1 FROM jobs WHERE sprite = ?1 AND state IN ('installing', 'queued', 'preparing', 'running', 'waiting'))
		OR ?2 = '' AND EXISTS (SELECT 1 FROM jobs WHERE id = ?3)`, place(backend, sprite), backend, job).Scan(&needed)
	if err != nil {
		return true, fmt.Errorf("look for what needs %s: %w", place(backend, sprite), err)
	}
	return needed, nil
}

// Update stores an environment that was read before, and returns it. If its row has changed
// since then, or is not there any more, it is ErrRevision, and nothing is stored. A state
// that can't follow the one before is ErrTransition. The name, the place, the times
// and all that is the job's stay.
func (t *Environments) Update(ctx context.Context, e cove.Environment) (stored cove.Environment, err error) {
	err = t.db.update(ctx, func(tx *sql.Tx) error {
		is, err := getEnvironment(ctx, tx, "e.id = ?", e.ID)
		if errors.Is(err, ErrNotFound) || err == nil && is.Version != e.Version {
			return ErrRevision
		}
		if err == nil {
			stored, err = putEnvironment(ctx, tx, is, e)
		}
		return err
	})
	if err != nil {
		return e, fmt.Errorf("environment %s: %w", e.ID, err)
	}
	t.notify()
	return stored, nil
}

// Change calls f with an environment as it is now, and updates the environment with the
// result, unless f returns an error. The function f may be called several times, and may
// use the store.
func (t *Environments) Change(ctx context.Context, id string, f func(*cove.Environment) error) (cove.Environment, error) {
	for {
		e, err := t.Get(ctx, id)
		if err != nil {
			return e, err
		}
		next := e
		if err := f(&next); err != nil {
			return e, err
		}
		if next, err = t.Update(ctx, next); !errors.Is(err, ErrRevision) {
			return next, err
		}
	}
}

// putEnvironment writes a row in a transaction that has read it as was.
func putEnvironment(ctx context.Context, tx *sql.Tx, was, e cove.Environment) (cove.Environment, error) {
	if !mayBecome(was.State, e.State) {
		return e, fmt.Errorf("%s to %s: %w", was.State, e.State, ErrTransition)
	}
	if e.State != was.State {
		e.ChangedAt = now()
	} else {
		e.ChangedAt = was.ChangedAt
	}
	if e.State != cove.EnvironmentUnknown {
		e.Was, e.Unknown = "", nil
	}
	doc, err := environmentDoc(e)
	if err != nil {
		return e, err
	}
	e.Version = was.Version + 1
	_, err = tx.ExecContext(ctx, "UPDATE environments SET version = ?, state = ?, doc = ? WHERE id = ?", e.Version, e.State, doc, e.ID)
	if err == nil {
		err = queueEnvironment(ctx, tx, was, e)
	}
	return e.Judged(), err
}

// Checked notes when environments were checked that are as they were. Their versions stay, and
// nobody who watches is told.
func (t *Environments) Checked(ctx context.Context, ids []string, at time.Time) error {
	if len(ids) == 0 {
		return nil
	}
	list, err := json.Marshal(ids)
	if err == nil {
		err = t.db.update(ctx, func(tx *sql.Tx) error {
			_, err := tx.ExecContext(ctx, "UPDATE environments SET doc = json_set(doc, '$.health.checked_at', ?) WHERE id IN (SELECT value FROM json_each(?))", at.UTC().Format(time.RFC3339Nano), string(list))
			return err
		})
	}
	if err != nil {
		return fmt.Errorf("note the check of environments: %w", err)
	}
	return nil
}

// environmentDoc is a row's document. The columns, and what is the job's, are not in it.
func environmentDoc(e cove.Environment) (string, error) {
	e.Health.Word, e.Health.Detail = "", "" // follow from the rest
	doc, err := json.Marshal(cove.Environment{
		SpriteID: e.SpriteID, Was: e.Was, Step: e.Step, Unknown: e.Unknown, Error: e.Error, Hint: e.Hint, Removal: e.Removal, LateUntil: e.LateUntil, Health: e.Health, ChangedAt: e.ChangedAt, WokenAt: e.WokenAt,
	})
	return string(doc), err
}

// planEnvironment makes the row of a new job's environment. A sprite or an id that has one
// is ErrExists.
func planEnvironment(ctx context.Context, tx *sql.Tx, job cove.Job) error {
	doc, err := environmentDoc(cove.Environment{ChangedAt: job.CreatedAt})
	if err != nil {
		return err
	}
	res, err := tx.ExecContext(ctx, "INSERT INTO environments (id, version, job, place, state, doc, created_at) VALUES (?, 1, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
		cmp.Or(job.Execution, job.ID), job.ID, place(job.Backend, job.Sprite), cove.EnvironmentPlanned, doc, micros(job.CreatedAt))
	if err = exactlyOne(res, err); errors.Is(err, ErrNotFound) {
		err = ErrExists
	}
	return err
}

// Replan plans another environment for a job if the job's own went before it was used. The
// job gets a new execution id with it. If the job's environment is not gone, the error is
// ErrInUse.
func (t *Environments) Replan(ctx context.Context, job, execution string) error {
	err := t.db.update(ctx, func(tx *sql.Tx) error {
		row, err := getJob(ctx, tx, job)
		if err != nil {
			return err
		}
		res, err := tx.ExecContext(ctx, "DELETE FROM environments WHERE job = ? AND state = 'gone'", job)
		if err = exactlyOne(res, err); errors.Is(err, ErrNotFound) {
			err = ErrInUse
		}
		if err != nil {
			return err
		}
		row.Execution, row.SpriteID = execution, ""
		doc, err := jobDoc(row)
		if err == nil {
			_, err = tx.ExecContext(ctx, "UPDATE jobs SET doc = ? WHERE id = ?", doc, job)
		}
		if err != nil {
			return err
		}
		plan := row
		plan.CreatedAt = now()
		return planEnvironment(ctx, tx, plan)
	})
	if err != nil {
		return fmt.Errorf("plan another environment for job %s: %w", job, err)
	}
	t.notify()
	return nil
}

// ErrDestroying says that no job can begin in a sprite, because it is to be deleted.
var ErrDestroying = errors.New("its environment is being destroyed")

// checkNotDestroying is ErrDestroying for a job in the sprite of an environment that is
// destroyed.
func checkNotDestroying(ctx context.Context, tx *sql.Tx, job cove.Job) error {
	var going bool
	err := tx.QueryRowContext(ctx, "SELECT EXISTS (SELECT 1 FROM environments WHERE place = ? AND state = 'destroying')", place(job.Backend, job.Sprite)).Scan(&going)
	if err == nil && going {
		err = ErrDestroying
	}
	return err
}

// advanceEnvironment does with a job's environment what a change of the job brings.
func advanceEnvironment(ctx context.Context, tx *sql.Tx, was, job cove.Job) error {
	if was.State == job.State && (was.Unknown == nil) == (job.Unknown == nil) || !was.OwnsSprite {
		return nil
	}
	e, err := getEnvironment(ctx, tx, "e.job = ?", job.ID)
	if err != nil {
		return err
	}
	next := advanced(e, was, job)
	if next.State == e.State {
		return nil
	}
	if next.State == cove.EnvironmentFailed {
		known, err := readSteps(ctx, tx, job.ID)
		if err != nil {
			return err
		}
		next.Step = known.lastFailed()
	}
	_, err = putEnvironment(ctx, tx, e, next)
	return err
}

// advanced is an environment after its job was changed. News of its place that
// reaches the job reaches the environment, too.
func advanced(e cove.Environment, was, job cove.Job) cove.Environment {
	if job.Unknown == nil && was.Unknown != nil && e.State == cove.EnvironmentUnknown {
		e.State = e.Was
	}
	state := e.State
	if state == cove.EnvironmentUnknown {
		state = e.Was
	}
	prepared := job.State == cove.JobRunning || job.State == cove.JobWaiting || job.State == cove.JobSucceeded
	switch {
	case was.State == job.State:
	case prepared && (state == cove.EnvironmentPreparing || state == cove.EnvironmentFailed):
		e.State, e.Step, e.Error, e.Hint = cove.EnvironmentReady, "", "", ""
	case prepared && !job.State.Terminal() && state == cove.EnvironmentAsleep:
		at := now()
		e.State, e.WokenAt = cove.EnvironmentReady, &at
	case job.State.Terminal() && state == cove.EnvironmentPreparing:
		e.State, e.Error, e.Hint = cove.EnvironmentFailed, job.Error, ""
		if job.Failure != nil {
			e.Hint = job.Failure.Hint
		}
	}
	if job.Unknown != nil && was.Unknown == nil && e.State != cove.EnvironmentUnknown && mayBecome(e.State, cove.EnvironmentUnknown) {
		e.State, e.Was, e.Unknown = cove.EnvironmentUnknown, e.State, job.Unknown
	}
	return e
}

// Inherit gives an environment that was read before to another job, which works in its sprite,
// or has work there. If its row has changed since then, it is ErrRevision; a job that is not
// there, or works elsewhere, is ErrNotFound.
func (t *Environments) Inherit(ctx context.Context, e cove.Environment, heir string) error {
	err := t.db.update(ctx, func(tx *sql.Tx) error {
		job, err := getJob(ctx, tx, heir)
		if err != nil {
			return err
		}
		if job.Sprite != e.Name || job.Backend != e.Backend {
			return ErrNotFound
		}
		res, err := tx.ExecContext(ctx, "UPDATE environments SET job = ?, version = version + 1 WHERE id = ? AND version = ? AND state NOT IN ('destroying', 'gone')", heir, e.ID, e.Version)
		if err = exactlyOne(res, err); errors.Is(err, ErrNotFound) {
			err = ErrRevision
		}
		if err != nil || e.Backend != "" {
			return err
		}
		_, err = tx.ExecContext(ctx, "UPDATE sprites SET owner = ? WHERE name = ? AND owner = ?", JobOwner(heir), e.Name, JobOwner(e.Job))
		return err
	})
	if err != nil {
		return fmt.Errorf("environment %s: %w", e.ID, err)
	}
	t.notify()
	return nil
}

// JobOwner is the owner of a sprite of this server that was made for a job.
func JobOwner(job string) string { return JobOwnerPrefix + job }

// JobOwnerPrefix begins such an owner.
const JobOwnerPrefix = "job:"

// loseEnvironment notes that a sprite of this server is deleted, and with it the environment
// that it is.
func loseEnvironment(ctx context.Context, tx *sql.Tx, sprite string) error {
	e, err := getEnvironment(ctx, tx, "e.place = ? AND e.state NOT IN ('planned', 'creating', 'gone')", sprite)
	if errors.Is(err, ErrNotFound) {
		return nil
	}
	if err == nil {
		next := e
		next.State, next.Error, next.Hint = cove.EnvironmentGone, "", ""
		_, err = putEnvironment(ctx, tx, e, next)
	}
	return err
}

// forgetEnvironment deletes the row of an environment that is gone, and whose job was removed.
func forgetEnvironment(ctx context.Context, tx *sql.Tx, job string) error {
	_, err := tx.ExecContext(ctx, "DELETE FROM environments WHERE job = ? AND state IN ('planned', 'gone')", job)
	return err
}
