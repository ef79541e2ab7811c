package store

import (
	"context"
	"database/sql"
	"fmt"
	"time"
)

// Install is what the installation of an agent has left: the sealed layer of a disk,
// on the base, with which disks may begin.
type Install struct {
	Key       string // of all that it depends on
	Layer     string
	Agent     string
	Version   string
	Took      time.Duration // the installation
	CreatedAt time.Time
	UsedAt    time.Time
}

// InstallOwner begins the owner of a sprite that is there to install an agent.
const InstallOwner = "install:"

// InstallName begins its name.
const InstallName = "install-"

// Installs are the installations of agents that sprites share.
type Installs struct{ db *database }

const installColumns = "key, layer, agent, version, took_micros, created_at, used_at"

func scanInstall(row scanner) (in Install, err error) {
	var took int64
	var created, used sql.NullInt64
	err = row.Scan(&in.Key, &in.Layer, &in.Agent, &in.Version, &took, &created, &used)
	in.Took, in.CreatedAt, in.UsedAt = time.Duration(took)*time.Microsecond, fromMicros(created), fromMicros(used)
	return in, err
}

// Keep makes the disk of a sprite an install, in place of one with the same key.
// Nothing may write the disk any more. In the same transaction, the sprite becomes one
// that may only be deleted.
func (t *Installs) Keep(ctx context.Context, sprite string, in Install) error {
	err := t.db.update(ctx, func(tx *sql.Tx) error {
		at := micros(now())
		_, err := tx.ExecContext(ctx, `INSERT OR REPLACE INTO installs (`+installColumns+`)
			SELECT ?, layer, ?, ?, ?, ?, ? FROM sprites WHERE id = ? AND deleting = 0 AND next = '{}'`,
			in.Key, in.Agent, in.Version, in.Took.Microseconds(), at, at, sprite)
		if err != nil {
			return err
		}
		return exactlyOne(tx.ExecContext(ctx, "UPDATE sprites SET deleting = 1 WHERE id = ? AND deleting = 0 AND next = '{}'", sprite))
	})
	if err != nil {
		return fmt.Errorf("keep the installation of %s: %w", in.Agent, err)
	}
	return nil
}

// Use returns an install, and notes that it was used; ErrNotFound if there is none.
func (t *Installs) Use(ctx context.Context, key string) (in Install, err error) {
	err = t.db.update(ctx, func(tx *sql.Tx) error {
		in, err = scanInstall(tx.QueryRowContext(ctx, "UPDATE installs SET used_at = ? WHERE key = ? RETURNING "+installColumns, micros(now()), key))
		return notFound(err)
	})
	if err != nil {
		return in, fmt.Errorf("install %s: %w", key, err)
	}
	return in, nil
}

// List returns all installs, the newest first.
func (t *Installs) List(ctx context.Context) ([]Install, error) {
	list, err := collect(ctx, t.db.read, scanInstall, "SELECT "+installColumns+" FROM installs ORDER BY created_at DESC, key")
	if err != nil {
		return nil, fmt.Errorf("list the installs: %w", err)
	}
	return list, nil
}

// Drop forgets an install, if it has not been used since a time. Disks that began with
// it keep what they have; what nobody has may go.
func (t *Installs) Drop(ctx context.Context, key string, since time.Time) (gone bool, err error) {
	err = t.db.update(ctx, func(tx *sql.Tx) error {
		result, err := tx.ExecContext(ctx, "DELETE FROM installs WHERE key = ? AND used_at <= ?", key, micros(since))
		if err != nil {
			return err
		}
		n, err := result.RowsAffected()
		gone = n > 0
		return err
	})
	if err != nil {
		return false, fmt.Errorf("drop install %s: %w", key, err)
	}
	return gone, nil
}
