package store

import (
	"context"
	"crypto/cipher"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"time"
)

// Secret is what there is to know of a secret without its value.
type Secret struct {
	Name      string
	CreatedAt time.Time
	UpdatedAt time.Time
}

// Secrets are values that are kept encrypted, each bound to its name. Their key is a
// file of its own, made with the first secret and never again while there is one.
type Secrets struct {
	db   *database
	path string // of the key
}

// Set stores a secret, in place of one of the same name. A key that is missing or
// another than that of the secrets that are there is ErrKey.
func (s *Secrets) Set(ctx context.Context, name, value string) error {
	err := s.db.update(ctx, func(tx *sql.Tx) error {
		key, err := s.keyFor(ctx, tx)
		if err != nil {
			return err
		}
		at := micros(now())
		_, err = tx.ExecContext(ctx, `INSERT INTO secrets (name, sealed, created_at, updated_at) VALUES (?1, ?2, ?3, ?3)
			ON CONFLICT (name) DO UPDATE SET sealed = excluded.sealed, updated_at = excluded.updated_at`, name, seal(key, name, []byte(value)), at)
		return err
	})
	if err != nil {
		return fmt.Errorf("store secret %s: %w", name, err)
	}
	return nil
}

// keyFor returns the key for another secret: the one that the others were sealed
// with, and a new one only where there are none.
func (s *Secrets) keyFor(ctx context.Context, tx *sql.Tx) (cipher.AEAD, error) {
	var name string
	var sealed []byte
	err := tx.QueryRowContext(ctx, `SELECT name, sealed FROM secrets
		UNION ALL SELECT '`+backendSeal+`' || name, sealed FROM backends LIMIT 1`).Scan(&name, &sealed)
	none := errors.Is(err, sql.ErrNoRows)
	if err != nil && !none {
		return nil, err
	}
	key, err := readKey(s.path)
	switch {
	case none && errors.Is(err, fs.ErrNotExist):
		return makeKey(s.path)
	case err != nil:
		return nil, missingKey(s.path, err)
	case none:
		return key, nil
	}
	if _, err := unseal(key, name, sealed); err != nil {
		return nil, fmt.Errorf("%w: %s is not the one that secret %s was sealed with; put that back", ErrKey, s.path, name)
	}
	return key, nil
}

// Value returns a secret's value; ErrNotFound if there is none of that name.
func (s *Secrets) Value(ctx context.Context, name string) (string, error) {
	var sealed []byte
	if err := s.db.read.QueryRowContext(ctx, "SELECT sealed FROM secrets WHERE name = ?", name).Scan(&sealed); err != nil {
		return "", fmt.Errorf("secret %s: %w", name, notFound(err))
	}
	return s.open(name, sealed)
}

// open is the value that was sealed under a name.
func (s *Secrets) open(name string, sealed []byte) (string, error) {
	key, err := readKey(s.path)
	if err != nil {
		return "", fmt.Errorf("secret %s: %w", name, missingKey(s.path, err))
	}
	value, err := unseal(key, name, sealed)
	if err != nil {
		return "", fmt.Errorf("secret %s: %w: it does not open with %s, or was moved or damaged; set it anew once that is the right key", name, ErrKey, s.path)
	}
	return string(value), nil
}

// List returns the secrets without their values, by name.
func (s *Secrets) List(ctx context.Context) ([]Secret, error) {
	list, err := collect(ctx, s.db.read, func(row scanner) (Secret, error) {
		var v Secret
		var created, updated sql.NullInt64
		err := row.Scan(&v.Name, &created, &updated)
		v.CreatedAt, v.UpdatedAt = fromMicros(created), fromMicros(updated)
		return v, err
	}, "SELECT name, created_at, updated_at FROM secrets ORDER BY name")
	if err != nil {
		return nil, fmt.Errorf("list secrets: %w", err)
	}
	return list, nil
}

// Delete forgets a secret. It needs no key.
func (s *Secrets) Delete(ctx context.Context, name string) error {
	err := s.db.update(ctx, func(tx *sql.Tx) error {
		return exactlyOne(tx.ExecContext(ctx, "DELETE FROM secrets WHERE name = ?", name))
	})
	if err != nil {
		return fmt.Errorf("delete secret %s: %w", name, err)
	}
	return nil
}
