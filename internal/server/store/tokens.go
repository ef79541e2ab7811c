package store

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/cove-dev/cove"
)

// Token is a token as the store knows it: the hash of its secret, never the
// secret.
type Token struct {
	ID        string
	Name      string
	Hash      [sha256.Size]byte
	Scope     cove.TokenScope
	Verbs     []string
	CreatedAt time.Time
	ExpiresAt time.Time // zero: never
	LastUsed  time.Time // zero: not yet
}

// HashToken is the hash under which a secret is kept. Secrets are long and
// random, so a plain hash is enough.
func HashToken(secret string) [sha256.Size]byte { return sha256.Sum256([]byte(secret)) }

// Tokens are the tokens of the server's API.
type Tokens struct{ db *database }

const tokenColumns = "id, name, hash, scope, verbs, created_at, expires_at, last_used"

func scanToken(row scanner) (Token, error) {
	var t Token
	var hash, scope, verbs []byte
	var created, expires, used sql.NullInt64
	if err := row.Scan(&t.ID, &t.Name, &hash, &scope, &verbs, &created, &expires, &used); err != nil {
		return t, err
	}
	copy(t.Hash[:], hash)
	t.CreatedAt, t.ExpiresAt, t.LastUsed = fromMicros(created), fromMicros(expires), fromMicros(used)
	return t, errors.Join(json.Unmarshal(scope, &t.Scope), json.Unmarshal(verbs, &t.Verbs))
}

// Create adds a token. An ID or a hash that is there is ErrExists.
func (k *Tokens) Create(ctx context.Context, t Token) error {
	scope, err := json.Marshal(t.Scope)
	if err != nil {
		return err
	}
	verbs, err := json.Marshal(t.Verbs)
	if err != nil {
		return err
	}
	err = k.db.update(ctx, func(tx *sql.Tx) error {
		return exactlyOne(tx.ExecContext(ctx, "INSERT INTO tokens ("+tokenColumns+") VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
			t.ID, t.Name, t.Hash[:], string(scope), string(verbs), micros(t.CreatedAt), micros(t.ExpiresAt), micros(t.LastUsed)))
	})
	if errors.Is(err, ErrNotFound) {
		err = ErrExists
	}
	if err != nil {
		return fmt.Errorf("store token %s: %w", t.Name, err)
	}
	return nil
}

// ByHash returns the token with the given hash, also one that has expired.
func (k *Tokens) ByHash(ctx context.Context, hash [sha256.Size]byte) (Token, error) {
	t, err := scanToken(k.db.read.QueryRowContext(ctx, "SELECT "+tokenColumns+" FROM tokens WHERE hash = ?", hash[:]))
	if err != nil {
		return t, fmt.Errorf("token: %w", notFound(err))
	}
	return t, nil
}

// Get returns the token of an ID, also one that has expired.
func (k *Tokens) Get(ctx context.Context, id string) (Token, error) {
	t, err := scanToken(k.db.read.QueryRowContext(ctx, "SELECT "+tokenColumns+" FROM tokens WHERE id = ?", id))
	if err != nil {
		return t, fmt.Errorf("token %s: %w", id, notFound(err))
	}
	return t, nil
}

// List returns all tokens, the oldest first.
func (k *Tokens) List(ctx context.Context) ([]Token, error) {
	tokens, err := collect(ctx, k.db.read, scanToken, "SELECT "+tokenColumns+" FROM tokens ORDER BY created_at, id")
	if err != nil {
		return nil, fmt.Errorf("list tokens: %w", err)
	}
	return tokens, nil
}

// Used notes when a token was last used.
func (k *Tokens) Used(ctx context.Context, id string, at time.Time) error {
	return k.db.update(ctx, func(tx *sql.Tx) error {
		return exactlyOne(tx.ExecContext(ctx, "UPDATE tokens SET last_used = ? WHERE id = ?", micros(at), id))
	})
}

// Delete forgets a token, and the browsers that are logged in by it.
func (k *Tokens) Delete(ctx context.Context, id string) error {
	err := k.db.update(ctx, func(tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, "DELETE FROM web_sessions WHERE token = ?", id); err != nil {
			return err
		}
		return exactlyOne(tx.ExecContext(ctx, "DELETE FROM tokens WHERE id = ?", id))
	})
	if err != nil {
		return fmt.Errorf("token %s: %w", id, err)
	}
	return nil
}
