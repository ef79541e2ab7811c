package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/cove-dev/cove"
)

// JobKey is the key of a request for a job: by it, the same request that comes again gets the same
// job. The zero value is no key.
type JobKey struct {
	Key    string // chosen by the caller
	By     string // the token that asks, by ID; empty: the owner
	Digest string // of the request
}

// ErrKeyTaken says that a key is another request's, or another token's.
var ErrKeyTaken = errors.New("another request has had that key")

// CreateKeyed is Create for a request with a key. The key goes with the job's row, and is gone with
// it. A key that has a job is ErrKeyTaken.
func (j *Jobs) CreateKeyed(ctx context.Context, job cove.Job, settings []byte, key JobKey) error {
	if key.Key == "" {
		return j.Create(ctx, job, settings)
	}
	return j.create(ctx, job, settings, func(tx *sql.Tx) error {
		res, err := tx.ExecContext(ctx, "INSERT INTO job_keys (key, asker, digest, job, made) VALUES (?, ?, ?, ?, 0) ON CONFLICT (key) DO NOTHING", key.Key, key.By, key.Digest, job.ID)
		if err = exactlyOne(res, err); errors.Is(err, ErrNotFound) {
			err = ErrKeyTaken
		}
		return err
	})
}

// Keyed returns the job of a key, and whether its request was carried out to the end (KeyMade). If
// no job has the key it is ErrNotFound; if another request has had it, ErrKeyTaken.
func (j *Jobs) Keyed(ctx context.Context, key JobKey) (job cove.Job, made bool, err error) {
	is := JobKey{Key: key.Key}
	var id string
	err = notFound(j.db.read.QueryRowContext(ctx, "SELECT asker, digest, job, made FROM job_keys WHERE key = ?", key.Key).Scan(&is.By, &is.Digest, &id, &made))
	if err == nil && is != key {
		err = ErrKeyTaken
	}
	if err == nil {
		job, err = j.Get(ctx, id)
	}
	if err != nil {
		return job, false, fmt.Errorf("the job of a key: %w", err)
	}
	return job, made, nil
}

// KeyMade notes that the request of a key was carried out to its end. Until then a server that is
// killed has left half of it.
func (j *Jobs) KeyMade(ctx context.Context, key string) error {
	err := j.db.update(ctx, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, "UPDATE job_keys SET made = 1 WHERE key = ?", key)
		return err
	})
	if err != nil {
		return fmt.Errorf("note the job of a key: %w", err)
	}
	return nil
}
