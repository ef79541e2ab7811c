package store

import (
	"context"
	"database/sql"
	"fmt"
	"time"
)

// BuildOwner is the owner of a sprite that runs a step of an image's build. Nobody sees it, and
// the next start removes it.
const BuildOwner = "build"

// BuildName begins its name.
const BuildName = "build-"

// BuildStep is a step of a build that was made before: an image, which has no name of its own
// but for the last step's.
type BuildStep struct {
	Key       string // of all that the step depends on
	Image     string // digest
	CreatedAt time.Time
	UsedAt    time.Time
}

// Builds are the steps of builds. A step is forgotten with its image.
type Builds struct{ db *database }

const buildStepColumns = "key, image, created_at, used_at"

func scanBuildStep(row scanner) (s BuildStep, err error) {
	var created, used sql.NullInt64
	err = row.Scan(&s.Key, &s.Image, &created, &used)
	s.CreatedAt, s.UsedAt = fromMicros(created), fromMicros(used)
	return s, err
}

// Use returns a step, and notes that it was used; ErrNotFound if there is none.
func (t *Builds) Use(ctx context.Context, key string) (s BuildStep, err error) {
	s, err = scanBuildStep(t.db.read.QueryRowContext(ctx, "SELECT "+buildStepColumns+" FROM build_steps WHERE key = ?", key))
	if err != nil {
		return s, fmt.Errorf("step %s of a build: %w", key, notFound(err))
	}
	if now().Sub(s.UsedAt) < time.Minute { // a build of many steps waits for no disk
		return s, nil
	}
	err = t.db.update(ctx, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, "UPDATE build_steps SET used_at = ? WHERE key = ?", micros(now()), key)
		return err
	})
	if err != nil {
		return s, fmt.Errorf("step %s of a build: %w", key, err)
	}
	return s, nil
}

// Put notes which image a step has made. An image that is not there is ErrNoImage.
func (t *Builds) Put(ctx context.Context, key, image string) error {
	err := t.db.update(ctx, func(tx *sql.Tx) error {
		if err := hasImage(ctx, tx, image); err != nil {
			return err
		}
		at := micros(now())
		// The image before is still one of a build, which nobody asks for any more.
		if _, err := tx.ExecContext(ctx, "UPDATE OR REPLACE build_steps SET key = 'old ' || image WHERE key = ? AND image <> ?", key, image); err != nil {
			return err
		}
		_, err := tx.ExecContext(ctx, "INSERT OR REPLACE INTO build_steps ("+buildStepColumns+") VALUES (?, ?, ?, ?)", key, image, at, at)
		return err
	})
	if err != nil {
		return fmt.Errorf("note a step of a build: %w", err)
	}
	return nil
}

// List returns all steps, the one that was used last first.
func (t *Builds) List(ctx context.Context) ([]BuildStep, error) {
	list, err := collect(ctx, t.db.read, scanBuildStep, "SELECT "+buildStepColumns+" FROM build_steps ORDER BY used_at DESC, key")
	if err != nil {
		return nil, fmt.Errorf("list the steps of builds: %w", err)
	}
	return list, nil
}
