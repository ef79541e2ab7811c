package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/cove-dev/cove"
)

// MaxComments bounds the comments on one job.
const MaxComments = 500

// ErrTooManyComments says that a job has as many as it may have.
var ErrTooManyComments = errors.New("the job already has as many comments as are allowed")

// Comments are those that people made on what jobs have changed.
type Comments struct{ db *database }

// Add stores a comment on a job's changes, and returns it with its number and time.
func (k *Comments) Add(ctx context.Context, job string, c cove.JobComment) (cove.JobComment, error) {
	c.CreatedAt = now()
	err := k.db.update(ctx, func(tx *sql.Tx) error {
		if _, err := getJob(ctx, tx, job); err != nil {
			return err
		}
		var n int
		if err := tx.QueryRowContext(ctx, "SELECT count(*) FROM job_comments WHERE job = ?", job).Scan(&n); err != nil {
			return err
		}
		if n >= MaxComments {
			return ErrTooManyComments
		}
		result, err := tx.ExecContext(ctx, "INSERT INTO job_comments (job, path, side, line, quote, text, token, created_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
			job, c.Path, c.Side, c.Line, c.Quote, c.Text, c.By, micros(c.CreatedAt))
		if err != nil {
			return err
		}
		c.ID, err = result.LastInsertId()
		return err
	})
	if err != nil {
		return c, fmt.Errorf("comment on job %s: %w", job, err)
	}
	return c, nil
}

// List returns those on a job's changes, by file and line.
func (k *Comments) List(ctx context.Context, job string) ([]cove.JobComment, error) {
	return collect(ctx, k.db.read, func(row scanner) (c cove.JobComment, err error) {
		var created sql.NullInt64
		err = row.Scan(&c.ID, &c.Path, &c.Side, &c.Line, &c.Quote, &c.Text, &c.By, &created)
		c.CreatedAt = fromMicros(created)
		return c, err
	}, "SELECT id, path, side, line, quote, text, token, created_at FROM job_comments WHERE job = ? ORDER BY path, line, side DESC, id", job)
}

// Delete deletes comments on a job's changes by their numbers; without any, all.
func (k *Comments) Delete(ctx context.Context, job string, ids []int64) error {
	err := k.db.update(ctx, func(tx *sql.Tx) error {
		if len(ids) == 0 {
			_, err := tx.ExecContext(ctx, "DELETE FROM job_comments WHERE job = ?", job)
			return err
		}
		for _, id := range ids {
			if _, err := tx.ExecContext(ctx, "DELETE FROM job_comments WHERE job = ? AND id = ?", job, id); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("delete comments on job %s: %w", job, err)
	}
	return nil
}
