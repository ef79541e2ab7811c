package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/cove-dev/cove"
)

// backendSeal begins the name that a backend's token is sealed under. No secret's
// name has a colon.
const backendSeal = "backend:"

// Backends are the servers elsewhere in whose sprites jobs work. Their tokens are
// kept as secrets are, with the same key.
type Backends struct {
	db      *database
	secrets *Secrets
}

// Put names a backend, or changes one. Errors are those of Secrets.Set, and ErrInUse:
// the address of one that jobs need stays what it is.
func (b *Backends) Put(ctx context.Context, name string, req cove.BackendRequest) error {
	err := b.db.update(ctx, func(tx *sql.Tx) error {
		var url string
		err := tx.QueryRowContext(ctx, "SELECT url FROM backends WHERE name = ?", name).Scan(&url)
		if err == nil && url != req.URL {
			err = needed(ctx, tx, name)
		}
		if err != nil && !errors.Is(err, sql.ErrNoRows) {
			return err
		}
		key, err := b.secrets.keyFor(ctx, tx)
		if err != nil {
			return err
		}
		at := micros(now())
		_, err = tx.ExecContext(ctx, `INSERT INTO backends (name, url, sealed, created_at, updated_at) VALUES (?1, ?2, ?3, ?4, ?4)
			ON CONFLICT (name) DO UPDATE SET url = excluded.url, sealed = excluded.sealed, updated_at = excluded.updated_at`,
			name, req.URL, seal(key, backendSeal+name, []byte(req.Token)), at)
		return err
	})
	if err != nil {
		return fmt.Errorf("store backend %s: %w", name, err)
	}
	return nil
}

// Get returns a backend's address and token; ErrNotFound if there is none of that
// name.
func (b *Backends) Get(ctx context.Context, name string) (url, token string, err error) {
	var sealed []byte
	if err := b.db.read.QueryRowContext(ctx, "SELECT url, sealed FROM backends WHERE name = ?", name).Scan(&url, &sealed); err != nil {
		return "", "", fmt.Errorf("backend %s: %w", name, notFound(err))
	}
	token, err = b.secrets.open(backendSeal+name, sealed)
	return url, token, err
}

// List returns the backends, by name.
func (b *Backends) List(ctx context.Context) ([]cove.Backend, error) {
	list, err := collect(ctx, b.db.read, func(row scanner) (cove.Backend, error) {
		var v cove.Backend
		var created, updated sql.NullInt64
		err := row.Scan(&v.Name, &v.URL, &created, &updated)
		v.CreatedAt, v.UpdatedAt = fromMicros(created), fromMicros(updated)
		return v, err
	}, "SELECT name, url, created_at, updated_at FROM backends ORDER BY name")
	if err != nil {
		return nil, fmt.Errorf("list backends: %w", err)
	}
	return list, nil
}

// Delete forgets a backend. It needs no key. One whose jobs need it still is ErrInUse.
func (b *Backends) Delete(ctx context.Context, name string) error {
	err := b.db.update(ctx, func(tx *sql.Tx) error {
		if err := needed(ctx, tx, name); err != nil {
			return err
		}
		return exactlyOne(tx.ExecContext(ctx, "DELETE FROM backends WHERE name = ?", name))
	})
	if err != nil {
		return fmt.Errorf("forget backend %s: %w", name, err)
	}
	return nil
}

// needed returns ErrInUse if a backend is needed. Jobs there need it until they have
// ended and their work was pulled. An environment there needs it while it is being
// deleted.
func needed(ctx context.Context, tx *sql.Tx, name string) error {
	var n int
	err := tx.QueryRowContext(ctx, `SELECT count(*) FROM jobs WHERE doc->>'$.backend' = ?
		AND (state IN ('installing', 'queued', 'preparing', 'running', 'waiting') OR doc->>'$.bundle.size' > 0 AND doc->>'$.pulled_at' IS NULL)`, name).Scan(&n)
	if err == nil && n > 0 {
		return fmt.Errorf("jobs there that need it: %d: %w", n, ErrInUse)
	}
	if err == nil {
		err = tx.QueryRowContext(ctx, "SELECT count(*) FROM environments WHERE substr(place, 1, instr(place, '/')) = ? AND state = 'destroying'", place(name, "")).Scan(&n)
	}
	if err == nil && n > 0 {
		err = fmt.Errorf("environments there that are to be deleted: %d: %w", n, ErrInUse)
	}
	return err
}
