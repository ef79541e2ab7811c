package store

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"sync"

	"github.com/cove-dev/cove"
)

// Errors of jobs.
var (
	// ErrTerminal says that a job has ended, or that a change would end it in
	// another way than by Finish.
	ErrTerminal = errors.New("the end of a job is set once, by Finish")

	// ErrEventGap says that events before the given ones are missing.
	ErrEventGap = errors.New("events are missing in between")
)

// Jobs are the jobs and their events. Job.LastSeq is the store's own: it is the
// number of the last event appended, whatever is written to it.
type Jobs struct {
	db           *database
	secrets      *Secrets // their key seals the settings
	environments *Environments
	parts        logParts // that a search has read

	mu       sync.Mutex
	watchers map[string]map[chan struct{}]struct{} // by job
}

const jobColumns = `doc, last_seq, (SELECT json_set(e.doc, '$.state', e.state) FROM environments e WHERE e.job = jobs.id), latest,
	CASE WHEN state IN ('installing', 'queued', 'preparing') THEN (SELECT s.key FROM job_steps s WHERE s.job = jobs.id AND s.doc->>'$.state' = 'running' LIMIT 1) END`

func scanJob(row scanner) (cove.Job, error) {
	var job cove.Job
	var doc, environment, latest []byte
	var step sql.NullString
	var seq int64
	if err := row.Scan(&doc, &seq, &environment, &latest, &step); err != nil {
		return job, err
	}
	if err := errors.Join(json.Unmarshal(doc, &job), json.Unmarshal(latest, &job.Latest)); err != nil {
		return job, fmt.Errorf("read a job: %w", err)
	}
	job.LastSeq = seq
	if step.String != "" {
		if job.Latest == nil {
			job.Latest = &cove.JobLatest{}
		}
		job.Latest.Step = cove.StepKey(step.String)
	}
	if environment == nil {
		return job, nil
	}
	var e cove.Environment
	if err := json.Unmarshal(environment, &e); err != nil {
		return job, fmt.Errorf("read the environment of job %s: %w", job.ID, err)
	}
	job.OwnsSprite, job.SpriteID = true, cmp.Or(e.SpriteID, job.SpriteID)
	if r := e.Removal; r != nil && e.State == cove.EnvironmentDestroying {
		job.SpriteRemoval = &cove.SpriteRemoval{Since: r.Since, Tries: r.Tries, NextAt: r.NextAt, Error: e.Error, Hint: e.Hint}
	}
	return job, nil
}

// jobDoc is a row's document. It leaves out that which the environment and other columns tell.
func jobDoc(job cove.Job) (string, error) {
	job.OwnsSprite, job.SpriteRemoval, job.Latest = false, nil, nil
	doc, err := json.Marshal(job)
	return string(doc), err
}

// place is what the column sprite has: a name has no slash.
func place(backend, sprite string) string {
	if backend == "" {
		return sprite
	}
	return backend + "/" + sprite
}

// jobSeal begins the name that a job's settings are sealed under. No secret's name has a
// colon.
const jobSeal = "job:"

// A NoSecretError says that a job refers to a secret that is not there.
type NoSecretError struct{ Name string }

func (e *NoSecretError) Error() string { return "there is no secret " + e.Name }

// MaxWaiting is how many jobs of one token may wait: for their preparation or their repository, for
// a person, or because they are held.
const MaxWaiting = 100

// A WaitingError says that a token has as many jobs that wait as it may.
type WaitingError struct{ Count int }

func (e *WaitingError) Error() string {
	return fmt.Sprintf("%d jobs of the same token wait already", e.Count)
}

// ErrForgotten says that the settings of a job were sealed with a key that was lost.
var ErrForgotten = errors.New("its settings were sealed with a key that was lost")

// ErrDamaged says that the settings of a job do not open, with a key that opens others.
var ErrDamaged = errors.New("its settings were damaged in the store, and can't be decrypted with the server's key")

// Create adds a job and a snapshot of its settings, which is JSON of the caller's
// choice and never changes. It is kept as secrets are. An ID that is taken is ErrExists. If
// one of the job's secrets is not there, it is a NoSecretError. If MaxWaiting jobs of the job's token
// wait, it is a WaitingError.
//
// A job that owns its sprite gets the row of an environment with it, planned. One in the
// sprite of an environment that is being destroyed is ErrDestroying.
func (j *Jobs) Create(ctx context.Context, job cove.Job, settings json.RawMessage) error {
	return j.create(ctx, job, settings, func(*sql.Tx) error { return nil })
}

// create is Create, with what else is stored in the same transaction.
func (j *Jobs) create(ctx context.Context, job cove.Job, settings json.RawMessage, more func(*sql.Tx) error) error {
	if len(settings) == 0 {
		settings = json.RawMessage("null")
	}
	err := j.db.update(ctx, func(tx *sql.Tx) error {
		if job.CreatedAt.IsZero() {
			job.CreatedAt = now() // in the transaction: jobs that wait are in the order in which they are stored
		}
		doc, err := jobDoc(job)
		if err != nil {
			return err
		}
		if err := mayWait(ctx, tx, job); err != nil {
			return err
		}
		for _, name := range job.Secrets {
			if there, err := hasSecret(ctx, tx, name); err != nil {
				return err
			} else if !there {
				return &NoSecretError{name}
			}
		}
		key, err := j.secrets.keyFor(ctx, tx)
		if err != nil {
			return err
		}
		res, err := tx.ExecContext(ctx,
			`INSERT INTO jobs (id, state, sprite, created_at, doc, sealed) VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO NOTHING`,
			job.ID, job.State, place(job.Backend, job.Sprite), micros(job.CreatedAt), doc, seal(key, jobSeal+job.ID, settings))
		if err = exactlyOne(res, err); errors.Is(err, ErrNotFound) {
			err = ErrExists
		}
		if err == nil && job.OwnsSprite {
			err = planEnvironment(ctx, tx, job)
		} else if err == nil {
			err = checkNotDestroying(ctx, tx, job)
		}
		if err == nil {
			err = followUp(ctx, tx, job)
		}
		if err == nil {
			err = more(tx)
		}
		if err != nil {
			return err
		}
		return queueJob(ctx, tx, cove.Job{}, job)
	})
	if err != nil {
		return fmt.Errorf("store job %s: %w", job.ID, err)
	}
	j.environments.notify()
	return nil
}

// mayWait is a WaitingError if one more job of a token may not wait.
func mayWait(ctx context.Context, tx *sql.Tx, job cove.Job) error {
	if job.By == "" {
		return nil
	}
	var count int
	err := tx.QueryRowContext(ctx, `SELECT count(*) FROM jobs WHERE doc->>'$.by' = ? AND (state IN ('installing', 'queued', 'waiting')
		OR state IN ('preparing', 'running') AND doc->>'$.held' IS NOT NULL)`, job.By).Scan(&count)
	if err == nil && count >= MaxWaiting {
		err = &WaitingError{count}
	}
	return err
}

// Waiting is how many jobs of a profile wait for their turn.
func (j *Jobs) Waiting(ctx context.Context, profile string) (n int, err error) {
	err = j.db.read.QueryRowContext(ctx, "SELECT count(*) FROM jobs WHERE state = 'installing' AND doc->>'$.profile' = ? AND doc->>'$.place' > 0", profile).Scan(&n)
	if err != nil {
		return 0, fmt.Errorf("jobs that wait for the profile %s: %w", profile, err)
	}
	return n, nil
}

// Get returns a job; ErrNotFound if there is none.
func (j *Jobs) Get(ctx context.Context, id string) (cove.Job, error) {
	return getJob(ctx, j.db.read, id)
}

func getJob(ctx context.Context, q querier, id string) (cove.Job, error) {
	job, err := scanJob(q.QueryRowContext(ctx, "SELECT "+jobColumns+" FROM jobs WHERE id = ?", id))
	if err != nil {
		return job, fmt.Errorf("job %s: %w", id, notFound(err))
	}
	return job, nil
}

// Settings returns the snapshot that Create was given. One that was given up with its key
// is ErrForgotten; one that was damaged is ErrDamaged. If the key is not the right one, it is ErrKey.
func (j *Jobs) Settings(ctx context.Context, id string) (json.RawMessage, error) {
	var sealed []byte
	err := notFound(j.db.read.QueryRowContext(ctx, "SELECT sealed FROM jobs WHERE id = ?", id).Scan(&sealed))
	if err == nil && sealed == nil {
		err = ErrForgotten
	}
	var settings []byte
	if err == nil {
		settings, err = j.secrets.unsealed(jobSeal+id, sealed)
		if errors.Is(err, ErrKey) && j.secrets.damaged(ctx) {
			err = ErrDamaged
		}
	}
	if err != nil {
		return nil, fmt.Errorf("settings of job %s: %w", id, err)
	}
	return settings, nil
}

// JobFilter selects jobs; the zero value is all of them.
type JobFilter struct {
	Sprite  string          // empty: of any
	Backend string          // of Sprite
	States  []cove.JobState // empty: in any
	Limit   int             // 0: no limit

	Publishing bool // only those whose commits are to be published
	Handed     bool // only those whose settings may be in their sprites
	Removing   bool // only those that are being deleted

	Group      cove.JobGroup // empty: any
	Text       string        // that stands in its ID, sprite, plan's name, repository, branch, URL, agent or profile; empty: any
	Label      string        // that its sprite, if this server has it, has; empty: any
	Profile    string        // empty: any
	Repository string        // by name; empty: any
	By         string        // the token that asked for it, by ID, or ByOwner; empty: any
	Of         string        // the job that it does again, or goes on with; empty: any, or none
	After      string        // a JobCursor; empty: from the newest on
	Reach      *Reach        // nil: everything
}

// List returns the jobs that filter selects, the newest first.
func (j *Jobs) List(ctx context.Context, filter JobFilter) ([]cove.Job, error) {
	where, args := filter.where()
	query := "SELECT " + jobColumns + " FROM jobs" + where
	if filter.Group != "" {
		query += " AND kind = ?"
		args = append(args, filter.Group)
	}
	if at, id, ok := readCursor(filter.After); ok {
		query += " AND (created_at < ? OR created_at = ? AND id > ?)"
		args = append(args, at, at, id)
	}
	query += " ORDER BY created_at DESC, id"
	if filter.Limit > 0 {
		query += " LIMIT ?"
		args = append(args, filter.Limit)
	}
	jobs, err := collect(ctx, j.db.read, scanJob, query, args...)
	if err != nil {
		return nil, fmt.Errorf("list jobs: %w", err)
	}
	return jobs, nil
}

// Update changes a job in a transaction. It calls f with the job as it is, and stores
// the result unless f returns an error. The function f is called once at most, and must
// not use the store. It can't change a terminal state, nor set one.
func (j *Jobs) Update(ctx context.Context, id string, f func(*cove.Job) error) error {
	err := j.change(ctx, id, func(job *cove.Job) error {
		before := job.State
		if err := f(job); err != nil {
			return err
		}
		if job.State != before && (before.Terminal() || job.State.Terminal()) {
			return fmt.Errorf("%s to %s: %w", before, job.State, ErrTerminal)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("update job %s: %w", id, err)
	}
	return nil
}

// Finish ends a job, if it has not ended. The first caller wins, and the state and
// outcome never change again. If edit is not nil, the winner calls it in the
// transaction, with the job as it is. The function edit sets what else the end brings.
// EndedAt is now unless edit sets it.
func (j *Jobs) Finish(ctx context.Context, id string, state cove.JobState, outcome cove.Outcome, edit func(*cove.Job)) (won bool, err error) {
	if !state.Terminal() {
		return false, fmt.Errorf("finish job %s: %s is not an end", id, state)
	}
	errLost := errors.New("has ended already")
	err = j.change(ctx, id, func(job *cove.Job) error {
		if job.State.Terminal() {
			return errLost
		}
		if edit != nil {
			edit(job)
		}
		job.State = state
		job.Outcome = &outcome
		if job.EndedAt == nil {
			t := now()
			job.EndedAt = &t
		}
		return nil
	})
	switch {
	case errors.Is(err, errLost):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("finish job %s: %w", id, err)
	}
	return true, nil
}

// change rewrites a job in a transaction.
func (j *Jobs) change(ctx context.Context, id string, f func(*cove.Job) error) error {
	err := j.db.update(ctx, func(tx *sql.Tx) error {
		job, err := getJob(ctx, tx, id)
		if err != nil {
			return err
		}
		was := job
		if err := f(&job); err != nil {
			return err
		}
		job.ID, job.CreatedAt = id, was.CreatedAt
		job.StandStill(job.State == cove.JobWaiting || job.Held != nil && !job.State.Terminal(), now())
		if was.State == cove.JobInstalling && job.State != was.State {
			job.Place = 0 // it has ended as it waited for its turn, or goes on
		}
		if job.State.Terminal() && !was.State.Terminal() {
			if err := endSteps(ctx, tx, id, job); err != nil {
				return err
			}
		}
		doc, err := jobDoc(job)
		if err != nil {
			return err
		}
		_, err = tx.ExecContext(ctx, "UPDATE jobs SET state = ?, sprite = ?, doc = ? WHERE id = ?", job.State, place(job.Backend, job.Sprite), doc, id)
		if err == nil {
			err = advanceEnvironment(ctx, tx, was, job)
		}
		if err == nil && was.ResumeOf == "" {
			err = followUp(ctx, tx, cove.Job{ResumeOf: job.ResumeOf})
		}
		if err != nil {
			return err
		}
		return queueJob(ctx, tx, was, job)
	})
	if err == nil {
		j.environments.notify()
		j.notify(id)
	}
	return err
}

// Delete forgets a job and its events, and its environment if that is gone, or was never
// asked for. Another one stays, as an orphan.
func (j *Jobs) Delete(ctx context.Context, id string) error {
	err := j.db.update(ctx, func(tx *sql.Tx) error {
		was, err := getJob(ctx, tx, id)
		if err != nil {
			return err
		}
		if !was.State.Terminal() { // webhooks that heard of its beginning hear of its end
			is := was
			is.State, is.Error = cove.JobCancelled, "it was removed before it had ended"
			if err := queueJob(ctx, tx, was, is); err != nil {
				return err
			}
		}
		if err := forgetEnvironment(ctx, tx, id); err != nil {
			return err
		}
		return exactlyOne(tx.ExecContext(ctx, "DELETE FROM jobs WHERE id = ?", id))
	})
	if err != nil {
		return fmt.Errorf("delete job %s: %w", id, err)
	}
	j.db.told()
	j.environments.notify()
	j.notify(id)
	return nil
}

// AppendEvents appends to a job's log. Events with numbers that are there already stay
// as they are, so a batch may be appended again. If a batch leaves a gap, the error is
// ErrEventGap, and nothing of the batch is stored.
func (j *Jobs) AppendEvents(ctx context.Context, id string, events []cove.JobEvent) error {
	return j.Append(ctx, id, events, nil)
}

func appendEvents(ctx context.Context, tx *sql.Tx, id string, events []cove.JobEvent) error {
	var last int64
	if err := tx.QueryRowContext(ctx, "SELECT last_seq FROM jobs WHERE id = ?", id).Scan(&last); err != nil {
		return notFound(err)
	}
	insert, err := tx.PrepareContext(ctx, "INSERT INTO job_events (job, seq, doc) VALUES (?, ?, ?)")
	if err != nil {
		return err
	}
	defer func() { _ = insert.Close() }()
	var added []cove.JobEvent
	for _, e := range events {
		if e.Seq <= last && e.Seq > 0 {
			continue
		}
		if e.Seq != last+1 {
			return fmt.Errorf("event %d after %d: %w", e.Seq, last, ErrEventGap)
		}
		doc, err := json.Marshal(e)
		if err != nil {
			return err
		}
		if _, err := insert.ExecContext(ctx, id, e.Seq, string(doc)); err != nil {
			return err
		}
		last, added = e.Seq, append(added, e)
	}
	if _, err := tx.ExecContext(ctx, "UPDATE jobs SET last_seq = ? WHERE id = ?", last, id); err != nil {
		return err
	}
	return foldSteps(ctx, tx, id, added)
}

// Events returns up to limit of a job's events, from number from on, in order. A
// job that does not exist has none.
func (j *Jobs) Events(ctx context.Context, id string, from int64, limit int) ([]cove.JobEvent, error) {
	events, err := collect(ctx, j.db.read, func(row scanner) (cove.JobEvent, error) {
		var e cove.JobEvent
		var doc []byte
		err := row.Scan(&doc)
		if err == nil {
			err = json.Unmarshal(doc, &e)
		}
		return e, err
	}, "SELECT doc FROM job_events WHERE job = ? AND seq >= ? ORDER BY seq LIMIT ?", id, from, limit)
	if err != nil {
		return nil, fmt.Errorf("events of job %s: %w", id, err)
	}
	return events, nil
}

// HasInput reports whether a job's log has a message with a key, and does not say that the agent has not taken that
// message.
func (j *Jobs) HasInput(ctx context.Context, id, key string) (bool, error) {
	var n int
	err := j.db.read.QueryRowContext(ctx, `SELECT coalesce(sum(CASE json_extract(doc, '$.type') WHEN 'input' THEN 1 WHEN 'notice' THEN -1 ELSE 0 END), 0)
		FROM job_events WHERE job = ? AND json_extract(doc, '$.key') = ?`, id, key).Scan(&n)
	if err != nil {
		return false, fmt.Errorf("look for a message to job %s: %w", id, err)
	}
	return n > 0, nil
}

// Watch returns a channel that is signalled after each change of a job, its
// events and its deletion included, until cancel is called. Signals are not
// counted: read what there is after Watch, and again after each.
func (j *Jobs) Watch(id string) (changed <-chan struct{}, cancel func()) {
	c := make(chan struct{}, 1)
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.watchers == nil {
		j.watchers = map[string]map[chan struct{}]struct{}{}
	}
	if j.watchers[id] == nil {
		j.watchers[id] = map[chan struct{}]struct{}{}
	}
	j.watchers[id][c] = struct{}{}
	return c, func() {
		j.mu.Lock()
		defer j.mu.Unlock()
		delete(j.watchers[id], c)
		if len(j.watchers[id]) == 0 {
			delete(j.watchers, id)
		}
	}
}

func (j *Jobs) notify(id string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for c := range j.watchers[id] {
		select {
		case c <- struct{}{}:
		default:
		}
	}
}

// Blocking returns a job that forbids the deletion of a sprite of this server; ErrNotFound if
// there is none. A job that has not ended comes first, then one with a result that nobody has
// pulled. The last is a job that could not collect all of its work from the sprite with this
// id.
func (j *Jobs) Blocking(ctx context.Context, sprite, id string) (cove.Job, error) {
	job, err := scanJob(j.db.read.QueryRowContext(ctx, `SELECT `+jobColumns+` FROM jobs
		WHERE sprite = ?1 AND (state IN ('installing', 'queued', 'preparing', 'running', 'waiting')
			OR doc->>'$.bundle.size' > 0 AND doc->>'$.pulled_at' IS NULL
			OR doc->>'$.uncollected' <> '' AND doc->>'$.sprite_id' = ?2)
		ORDER BY state NOT IN ('installing', 'queued', 'preparing', 'running', 'waiting'),
			NOT coalesce(doc->>'$.bundle.size' > 0 AND doc->>'$.pulled_at' IS NULL, FALSE), created_at DESC LIMIT 1`, sprite, id))
	if err != nil {
		return job, fmt.Errorf("jobs of sprite %s: %w", sprite, notFound(err))
	}
	return job, nil
}
