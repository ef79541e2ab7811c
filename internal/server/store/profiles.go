package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/cove-dev/cove"
)

// ErrRevision says that a profile is of another revision than was expected.
var ErrRevision = errors.New("it has changed since it was read")

// Profiles are the profiles of jobs.
type Profiles struct{ db *database }

const profileColumns = "name, revision, doc, created_at, updated_at"

func scanProfile(row scanner) (cove.Profile, error) {
	var p cove.Profile
	var doc []byte
	var created, updated sql.NullInt64
	if err := row.Scan(&p.Name, &p.Revision, &doc, &created, &updated); err != nil {
		return p, err
	}
	p.CreatedAt, p.UpdatedAt = fromMicros(created), fromMicros(updated)
	if err := json.Unmarshal(doc, &p.ProfileSettings); err != nil {
		return p, fmt.Errorf("read profile %s: %w", p.Name, err)
	}
	return p, nil
}

// Put stores a profile under the next revision, and returns it. If expected is not 0, one of
// another revision, or none, is ErrRevision.
func (k *Profiles) Put(ctx context.Context, name string, expected int64, settings cove.ProfileSettings) (cove.Profile, error) {
	doc, err := json.Marshal(settings)
	if err != nil {
		return cove.Profile{}, err
	}
	var stored cove.Profile
	err = k.db.update(ctx, func(tx *sql.Tx) error {
		before, err := getProfile(ctx, tx, name)
		if err != nil && !errors.Is(err, ErrNotFound) {
			return err
		}
		if expected != 0 && before.Revision != expected {
			return ErrRevision
		}
		_, err = tx.ExecContext(ctx, `INSERT INTO profiles (name, revision, doc, created_at, updated_at) VALUES (?1,
				1 + (SELECT coalesce(max(doc->>'$.profile_revision'), 0) FROM jobs WHERE doc->>'$.profile' = ?1), ?2, ?3, ?3) -- one of that name may have been deleted
			ON CONFLICT (name) DO UPDATE SET revision = revision + 1, doc = excluded.doc, updated_at = excluded.updated_at`,
			name, string(doc), micros(now()))
		if err != nil {
			return err
		}
		stored, err = getProfile(ctx, tx, name)
		return err
	})
	if err != nil {
		return stored, fmt.Errorf("store profile %s: %w", name, err)
	}
	return stored, nil
}

// Get returns a profile; ErrNotFound if there is none.
func (k *Profiles) Get(ctx context.Context, name string) (cove.Profile, error) {
	return getProfile(ctx, k.db.read, name)
}

func getProfile(ctx context.Context, q querier, name string) (cove.Profile, error) {
	p, err := scanProfile(q.QueryRowContext(ctx, "SELECT "+profileColumns+" FROM profiles WHERE name = ?", name))
	if err != nil {
		return p, fmt.Errorf("profile %s: %w", name, notFound(err))
	}
	return p, nil
}

// List returns all profiles, by name.
func (k *Profiles) List(ctx context.Context) ([]cove.Profile, error) {
	list, err := collect(ctx, k.db.read, scanProfile, "SELECT "+profileColumns+" FROM profiles ORDER BY name")
	if err != nil {
		return nil, fmt.Errorf("list profiles: %w", err)
	}
	return list, nil
}

// Delete forgets a profile.
func (k *Profiles) Delete(ctx context.Context, name string) error {
	err := k.db.update(ctx, func(tx *sql.Tx) error {
		return exactlyOne(tx.ExecContext(ctx, "DELETE FROM profiles WHERE name = ?", name))
	})
	if err != nil {
		return fmt.Errorf("delete profile %s: %w", name, err)
	}
	return nil
}

// TakeTurn gives a job its turn among the jobs of its profile, in order of age. At most limit
// of them may be at work at once. It returns 0 if the job has its turn, or else its place
// among those that wait, from 1. The job keeps its turn until it has ended. From the moment
// of its turn, its row has no place.
func (j *Jobs) TakeTurn(ctx context.Context, id, profile string, limit int) (place int, err error) {
	take := func(q querier) (free bool, err error) {
		rows, err := collect(ctx, q, func(row scanner) (turn turn, err error) {
			err = row.Scan(&turn.id, &turn.taken)
			return turn, err
		}, `SELECT id, doc->>'$.turn_at' IS NOT NULL OR state <> 'installing' FROM jobs
			WHERE state NOT IN ('succeeded', 'failed', 'timed_out', 'cancelled', 'lost') AND doc->>'$.profile' = ?
				AND NOT coalesce(doc->>'$.stopping' AND doc->>'$.held' IS NOT NULL, FALSE) -- nothing of it runs on
			ORDER BY created_at, id`, profile)
		if err != nil {
			return false, err
		}
		left, ahead, found := limit, 0, false
		place = 0
		for _, row := range rows {
			switch {
			case row.id == id && row.taken:
				return false, nil
			case row.taken:
				left--
			case row.id == id:
				found = true
			case !found:
				ahead++
			}
		}
		if !found {
			return false, fmt.Errorf("job %s: %w", id, ErrNotFound)
		}
		if limit > 0 && ahead >= left {
			place = ahead - max(left, 0) + 1
			return false, nil
		}
		return true, nil
	}
	free, err := take(j.db.read) // most look in vain, and are to hold up no writer
	if err == nil && free {
		err = j.db.update(ctx, func(tx *sql.Tx) error {
			if free, err := take(tx); err != nil || !free {
				return err
			}
			_, err := tx.ExecContext(ctx, "UPDATE jobs SET doc = json_remove(json_set(doc, '$.turn_at', ?), '$.place') WHERE id = ?", now().Format(timeFormat), id)
			return err
		})
		if err == nil {
			j.notify(id)
		}
	}
	if err != nil {
		return 0, fmt.Errorf("the turn of job %s: %w", id, err)
	}
	return place, nil
}

// timeFormat is how times stand in a document.
const timeFormat = "2006-01-02T15:04:05.999999Z07:00"

// turn is a job that has, or waits for, its turn.
type turn struct {
	id    string
	taken bool
}
