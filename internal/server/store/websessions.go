package store

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"errors"
	"fmt"
	"time"
)

// WebSession is a browser that is logged in to the web page. Its cookie is a secret, and the
// store has only the cookie's hash.
type WebSession struct {
	ID          string
	Hash        [sha256.Size]byte
	Token       string // the name of the principal whose rights it has
	Browser     string
	Address     string
	CreatedAt   time.Time
	ConfirmedAt time.Time
	LastUsed    time.Time
	ExpiresAt   time.Time
}

// MaxWebSessions is how many browsers are logged in by one token: one more, and the one that
// was used longest ago is logged out.
const MaxWebSessions = 50

// WebSessions are the sessions of the web page.
type WebSessions struct{ db *database }

const webSessionColumns = "id, hash, token, browser, address, created_at, confirmed_at, last_used, expires_at"

func scanWebSession(row scanner) (WebSession, error) {
	var s WebSession
	var hash []byte
	var created, confirmed, used, expires sql.NullInt64
	err := row.Scan(&s.ID, &hash, &s.Token, &s.Browser, &s.Address, &created, &confirmed, &used, &expires)
	copy(s.Hash[:], hash)
	s.CreatedAt, s.ConfirmedAt, s.LastUsed, s.ExpiresAt = fromMicros(created), fromMicros(confirmed), fromMicros(used), fromMicros(expires)
	return s, err
}

// Create adds a session, and forgets those that have expired.
func (w *WebSessions) Create(ctx context.Context, s WebSession) error {
	err := w.db.update(ctx, func(tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, "DELETE FROM web_sessions WHERE expires_at < ?", micros(now())); err != nil {
			return err
		}
		_, err := tx.ExecContext(ctx, `DELETE FROM web_sessions WHERE id IN
			(SELECT id FROM web_sessions WHERE token = ? ORDER BY last_used DESC LIMIT -1 OFFSET ?)`, s.Token, MaxWebSessions-1)
		if err != nil {
			return err
		}
		return exactlyOne(tx.ExecContext(ctx, "INSERT INTO web_sessions ("+webSessionColumns+") VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
			s.ID, s.Hash[:], s.Token, s.Browser, s.Address, micros(s.CreatedAt), micros(s.ConfirmedAt), micros(s.LastUsed), micros(s.ExpiresAt)))
	})
	if err != nil {
		return fmt.Errorf("store a session of the web page: %w", err)
	}
	return nil
}

// webFolder is the setting that names the data folder whose sessions the store has.
const webFolder = "web_folder"

// Settle forgets all sessions if they belong to another data folder than the named one. Then
// the store is a copy, and a browser that is logged out of the original would stay logged in
// here.
func (w *WebSessions) Settle(ctx context.Context, folder string) error {
	settings := Settings{db: w.db}
	if was, err := settings.Get(ctx, webFolder); was == folder || err != nil && !errors.Is(err, ErrNotFound) {
		return err
	}
	err := w.db.update(ctx, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, "DELETE FROM web_sessions")
		return err
	})
	if err != nil {
		return fmt.Errorf("forget the sessions of the web page: %w", err)
	}
	return settings.Set(ctx, webFolder, folder)
}

// ByHash returns the session whose cookie has the hash, also one that has expired.
func (w *WebSessions) ByHash(ctx context.Context, hash [sha256.Size]byte) (WebSession, error) {
	return w.one(ctx, "hash = ?", hash[:])
}

// Get returns the session of an ID, also one that has expired.
func (w *WebSessions) Get(ctx context.Context, id string) (WebSession, error) {
	return w.one(ctx, "id = ?", id)
}

func (w *WebSessions) one(ctx context.Context, where string, arg any) (WebSession, error) {
	s, err := scanWebSession(w.db.read.QueryRowContext(ctx, "SELECT "+webSessionColumns+" FROM web_sessions WHERE "+where, arg))
	if err != nil {
		return s, fmt.Errorf("session of the web page: %w", notFound(err))
	}
	return s, nil
}

// List returns the sessions that have not expired, the one that was used last first. An empty
// token means those of all.
func (w *WebSessions) List(ctx context.Context, token string) ([]WebSession, error) {
	list, err := collect(ctx, w.db.read, scanWebSession,
		"SELECT "+webSessionColumns+" FROM web_sessions WHERE (?1 = '' OR token = ?1) AND expires_at >= ?2 ORDER BY last_used DESC, id", token, micros(now()))
	if err != nil {
		return nil, fmt.Errorf("list the sessions of the web page: %w", err)
	}
	return list, nil
}

// Used notes when a session was last used. A zero confirmed leaves ConfirmedAt as it is.
func (w *WebSessions) Used(ctx context.Context, id string, at, confirmed time.Time) error {
	return w.db.update(ctx, func(tx *sql.Tx) error {
		return exactlyOne(tx.ExecContext(ctx, "UPDATE web_sessions SET last_used = ?, confirmed_at = ifnull(?, confirmed_at) WHERE id = ?", micros(at), micros(confirmed), id))
	})
}

// Delete forgets a session.
func (w *WebSessions) Delete(ctx context.Context, id string) error {
	err := w.db.update(ctx, func(tx *sql.Tx) error {
		return exactlyOne(tx.ExecContext(ctx, "DELETE FROM web_sessions WHERE id = ?", id))
	})
	if err != nil {
		return fmt.Errorf("session %s of the web page: %w", id, err)
	}
	return nil
}
