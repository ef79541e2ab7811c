package store

import (
	"context"
	"crypto/cipher"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/shim/connect"
)

// Secret is what there is to know of a secret without its value.
type Secret struct {
	Name      string
	CreatedAt time.Time
	UpdatedAt time.Time
	Ends      string            // the last four characters of its value; "": not shown, see ends
	Login     *cove.SecretLogin // nil: it is none of a login's
}

// Secrets are values that are kept encrypted, each bound to its name. Their key also seals
// the tokens of backends and the settings of jobs. It is a file of its own, which is made
// only if there is none, and nothing that was sealed.
type Secrets struct {
	db   *database
	path string // of the key
}

// Set stores a secret, in place of one of the same name. A key that is missing or
// another than that of the secrets that are there is ErrKey.
func (s *Secrets) Set(ctx context.Context, name, value string) error {
	return s.store(ctx, name, value, nil)
}

// SetLogin is Set for the token of a login.
func (s *Secrets) SetLogin(ctx context.Context, name, token string, login cove.SecretLogin) error {
	return s.store(ctx, name, token, &login)
}

func (s *Secrets) store(ctx context.Context, name, value string, login *cove.SecretLogin) error {
	err := s.db.update(ctx, func(tx *sql.Tx) error { return s.set(ctx, tx, name, value, login) })
	if err != nil {
		return fmt.Errorf("store secret %s: %w", name, err)
	}
	return nil
}

// set stores a secret in a transaction. Login says whose token it is; nil: none of a login's.
func (s *Secrets) set(ctx context.Context, tx *sql.Tx, name, value string, login *cove.SecretLogin) error {
	var about sql.NullString
	if login != nil {
		text, err := json.Marshal(login)
		if err != nil {
			return err
		}
		about = sql.NullString{String: string(text), Valid: true}
	}
	key, err := s.keyFor(ctx, tx)
	if err != nil {
		return err
	}
	at := micros(now())
	_, err = tx.ExecContext(ctx, `INSERT INTO secrets (name, sealed, created_at, updated_at, login) VALUES (?1, ?2, ?3, ?3, ?4)
		ON CONFLICT (name) DO UPDATE SET sealed = excluded.sealed, updated_at = excluded.updated_at, login = excluded.login`, name, seal(key, name, []byte(value)), at, about)
	return err
}

// sealedRows are the names and values of all that is sealed.
const sealedRows = `SELECT name, sealed FROM secrets
	UNION ALL SELECT '` + backendSeal + `' || name, sealed FROM backends
	UNION ALL SELECT '` + jobSeal + `' || id, sealed FROM jobs WHERE sealed IS NOT NULL`

// key returns the key, which opens some of the rows that are sealed; nil: there is no such
// row, and no key. Other errors than a database's are ErrKey.
func (s *Secrets) key(ctx context.Context, q querier) (cipher.AEAD, error) {
	key, keyErr := readKey(s.path)
	if keyErr != nil && !errors.Is(keyErr, fs.ErrNotExist) {
		return nil, keyProblem(s.path, keyErr)
	}
	rows, err := q.QueryContext(ctx, sealedRows)
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }()
	none := true
	for ; rows.Next(); none = false {
		if keyErr != nil {
			return nil, keyProblem(s.path, keyErr)
		}
		var name string
		var sealed []byte
		if err := rows.Scan(&name, &sealed); err != nil {
			return nil, err
		}
		if _, err := unseal(key, name, sealed); err == nil {
			return key, nil
		}
	}
	if err := rows.Err(); err != nil || none {
		return key, err
	}
	return nil, fmt.Errorf("%w: %s is not the one that the secrets were sealed with", ErrKey, s.path)
}

// checkKey is a KeyError for a database file whose key is not there. A file of an earlier
// cove, and one that can't be read without its log, are not judged.
func checkKey(ctx context.Context, path string) (err error) {
	if info, err := os.Stat(path); err != nil || info.Size() == 0 {
		return nil //nolint:nilerr // there is no store
	}
	db, err := openWithoutLog(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	dir := filepath.Dir(path)
	if _, err := (&Secrets{path: filepath.Join(dir, KeyFile)}).key(ctx, db); errors.Is(err, ErrKey) {
		return &KeyError{Dir: dir, Err: err}
	}
	return nil
}

// keyFor returns the key for another row. It makes one only if there is none, and no row
// that was sealed.
func (s *Secrets) keyFor(ctx context.Context, tx *sql.Tx) (cipher.AEAD, error) {
	key, err := s.key(ctx, tx)
	if key == nil && err == nil {
		return makeKey(s.path)
	}
	return key, err
}

// forget gives up the rows that the key does not open. A job whose settings are given up
// stays, without them.
func (s *Secrets) forget(ctx context.Context, tx *sql.Tx) error {
	key, err := readKey(s.path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return keyProblem(s.path, err)
	}
	type row struct {
		name   string
		sealed []byte
	}
	all, err := collect(ctx, tx, func(from scanner) (r row, err error) {
		err = from.Scan(&r.name, &r.sealed)
		return r, err
	}, sealedRows)
	for _, r := range all {
		if err != nil {
			return err
		}
		if key != nil {
			if _, err := unseal(key, r.name, r.sealed); err == nil {
				continue
			}
		}
		query, name := "DELETE FROM secrets WHERE name = ?", r.name
		if backend, ok := strings.CutPrefix(name, backendSeal); ok {
			query, name = "DELETE FROM backends WHERE name = ?", backend
		} else if job, ok := strings.CutPrefix(name, jobSeal); ok {
			query, name = "UPDATE jobs SET sealed = NULL WHERE id = ?", job
		}
		_, err = tx.ExecContext(ctx, query, name)
	}
	return err
}

// Value returns a secret's value; ErrNotFound if there is none of that name.
func (s *Secrets) Value(ctx context.Context, name string) (string, error) {
	value, err := s.Whole(ctx, name)
	return value.Text, err
}

// Whole is Value with what goes with a login's token.
func (s *Secrets) Whole(ctx context.Context, name string) (v connect.Value, err error) {
	var sealed []byte
	var about sql.NullString
	if err := s.db.read.QueryRowContext(ctx, "SELECT sealed, login FROM secrets WHERE name = ?", name).Scan(&sealed, &about); err != nil {
		return v, fmt.Errorf("secret %s: %w", name, notFound(err))
	}
	if v.Login, err = loginOf(about); err != nil {
		return v, fmt.Errorf("secret %s: %w", name, err)
	}
	v.Text, err = s.open(name, sealed)
	return v, err
}

func loginOf(about sql.NullString) (*cove.SecretLogin, error) {
	if !about.Valid {
		return nil, nil
	}
	var login cove.SecretLogin
	if err := json.Unmarshal([]byte(about.String), &login); err != nil {
		return nil, fmt.Errorf("read whose login it is: %w", err)
	}
	return &login, nil
}

// open is the value that was sealed under a secret's name, or a backend's.
func (s *Secrets) open(name string, sealed []byte) (string, error) {
	value, err := s.unsealed(name, sealed)
	if err != nil {
		return "", fmt.Errorf("secret %s: %w; once the key is the right one, set the secret again", name, err)
	}
	return string(value), nil
}

// damaged reports whether a value that does not open was damaged: the key opens another one.
func (s *Secrets) damaged(ctx context.Context) bool {
	key, err := s.key(ctx, s.db.read)
	return key != nil && err == nil
}

// unsealed is what was sealed under a name. That it does not open is ErrKey.
func (s *Secrets) unsealed(name string, sealed []byte) ([]byte, error) {
	key, err := readKey(s.path)
	if err != nil {
		return nil, keyProblem(s.path, err)
	}
	value, err := unseal(key, name, sealed)
	if err != nil {
		return nil, fmt.Errorf("%w: the value was not sealed with %s, or was moved or damaged", ErrKey, s.path)
	}
	return value, nil
}

// endsOf returns the last four characters of a value, so that people can tell secrets apart.
// Issuers of keys show the same. It returns nothing of a value of fewer than 24 characters,
// which may be a password that a person chose. Nor does it of a value that is not of
// printable ASCII.
func endsOf(value string) string {
	const shortest, shown = 24, 4
	if len(value) < shortest || strings.ContainsFunc(value, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return ""
	}
	return value[len(value)-shown:]
}

// List returns the secrets without their values, by name. A value that does not open has no
// end to show.
func (s *Secrets) List(ctx context.Context) ([]Secret, error) {
	key, keyErr := readKey(s.path)
	list, err := collect(ctx, s.db.read, func(row scanner) (Secret, error) {
		var v Secret
		var created, updated sql.NullInt64
		var about sql.NullString
		var sealed []byte
		if err := row.Scan(&v.Name, &created, &updated, &about, &sealed); err != nil {
			return v, err
		}
		v.CreatedAt, v.UpdatedAt = fromMicros(created), fromMicros(updated)
		if keyErr == nil {
			if value, err := unseal(key, v.Name, sealed); err == nil {
				v.Ends = endsOf(string(value))
			}
		}
		login, err := loginOf(about)
		v.Login = login
		return v, err
	}, "SELECT name, created_at, updated_at, login, sealed FROM secrets ORDER BY name")
	if err != nil {
		return nil, fmt.Errorf("list secrets: %w", err)
	}
	return list, nil
}

// SecretInUseError says who needs a secret. It is ErrInUse.
type SecretInUseError struct {
	Jobs       []string // that have not ended, by ID
	Connectors []string
	Profiles   []string
	Webhooks   []string
}

func (e *SecretInUseError) Error() string {
	var users []string
	for _, id := range e.Jobs {
		users = append(users, "job "+id)
	}
	for what, names := range map[string][]string{"connector ": e.Connectors, "profile ": e.Profiles, "webhook ": e.Webhooks} {
		for _, name := range names {
			users = append(users, what+name)
		}
	}
	slices.Sort(users)
	return "it is needed by: " + strings.Join(users, ", ")
}

// Unwrap is ErrInUse.
func (e *SecretInUseError) Unwrap() error { return ErrInUse }

// Delete forgets a secret. It needs no key. Unless it is forced, a secret that a connector, a
// profile or a webhook names, or a job that has not ended, is a SecretInUseError.
func (s *Secrets) Delete(ctx context.Context, name string, force bool) error {
	err := s.db.update(ctx, func(tx *sql.Tx) error {
		if !force {
			if err := unused(ctx, tx, name); err != nil {
				return err
			}
		}
		return exactlyOne(tx.ExecContext(ctx, "DELETE FROM secrets WHERE name = ?", name))
	})
	if err != nil {
		return fmt.Errorf("delete secret %s: %w", name, err)
	}
	return nil
}

// unused is a SecretInUseError for a secret that is there and needed.
func unused(ctx context.Context, tx *sql.Tx, name string) error {
	if there, err := hasSecret(ctx, tx, name); err != nil || !there {
		return err
	}
	jobs, err := collect(ctx, tx, func(row scanner) (id string, err error) {
		err = row.Scan(&id)
		return id, err
	}, `SELECT id FROM jobs WHERE EXISTS (SELECT 1 FROM json_each(doc->'$.secrets') s WHERE s.value = ?)
		AND state IN ('installing', 'queued', 'preparing', 'running', 'waiting') ORDER BY created_at, id`, name)
	if err != nil {
		return err
	}
	all, err := collect(ctx, tx, scanConnector, "SELECT "+connectorColumns+" FROM connectors c ORDER BY name")
	if err != nil {
		return err
	}
	e := &SecretInUseError{Jobs: jobs}
	for _, c := range all {
		if slices.Contains(connect.SecretsOf(c), name) {
			e.Connectors = append(e.Connectors, c.Name)
		}
	}
	profiles, err := collect(ctx, tx, scanProfile, "SELECT "+profileColumns+" FROM profiles ORDER BY name")
	if err != nil {
		return err
	}
	for _, p := range profiles {
		if slices.Contains(connect.EnvSecrets(slices.Concat(p.Variables(), cove.MCPEnv(p.MCP))), name) {
			e.Profiles = append(e.Profiles, p.Name)
		}
	}
	e.Webhooks, err = collect(ctx, tx, func(row scanner) (hook string, err error) {
		err = row.Scan(&hook)
		return hook, err
	}, "SELECT name FROM webhooks WHERE secret = ? ORDER BY name", name)
	if err != nil {
		return err
	}
	if len(e.Jobs)+len(e.Connectors)+len(e.Profiles)+len(e.Webhooks) > 0 {
		return e
	}
	return nil
}

func hasSecret(ctx context.Context, q querier, name string) (there bool, err error) {
	err = q.QueryRowContext(ctx, "SELECT EXISTS (SELECT 1 FROM secrets WHERE name = ?)", name).Scan(&there)
	return there, err
}

// Has reports whether there is a secret. It needs no key.
func (s *Secrets) Has(ctx context.Context, name string) (bool, error) {
	there, err := hasSecret(ctx, s.db.read, name)
	if err != nil {
		return false, fmt.Errorf("secret %s: %w", name, diskError(err))
	}
	return there, nil
}
