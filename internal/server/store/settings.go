package store

import (
	"context"
	"database/sql"
	"fmt"
)

// Settings are the server's own, by key.
type Settings struct{ db *database }

// Get returns a setting; ErrNotFound if it was never set.
func (s *Settings) Get(ctx context.Context, key string) (string, error) {
	var value string
	if err := s.db.read.QueryRowContext(ctx, "SELECT value FROM settings WHERE key = ?", key).Scan(&value); err != nil {
		return "", fmt.Errorf("setting %s: %w", key, notFound(err))
	}
	return value, nil
}

// Once stores a setting that was never set, and returns what it is then.
func (s *Settings) Once(ctx context.Context, key, value string) (string, error) {
	err := s.db.update(ctx, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, "INSERT INTO settings (key, value) VALUES (?, ?) ON CONFLICT (key) DO NOTHING", key, value)
		return err
	})
	if err != nil {
		return "", fmt.Errorf("store setting %s: %w", key, err)
	}
	return s.Get(ctx, key)
}

// Set stores a setting.
func (s *Settings) Set(ctx context.Context, key, value string) error {
	err := s.db.update(ctx, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, "INSERT INTO settings (key, value) VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value", key, value)
		return err
	})
	if err != nil {
		return fmt.Errorf("store setting %s: %w", key, err)
	}
	return nil
}
