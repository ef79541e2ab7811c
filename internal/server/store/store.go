// Package store keeps what a server must not forget: sprites, tokens, jobs with
// their events, secrets, connectors, images, and settings. It is SQLite in WAL mode, and the only SQL of cove.
//
// One process owns a store (see Lock): no other can even read the database meanwhile.
// Its methods may be called from any
// goroutine. Times have microseconds, and are UTC.
package store

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/cove-dev/cove/internal/lib/fault"
	"github.com/cove-dev/cove/internal/lib/private"
)

// Errors to be found by errors.Is.
var (
	ErrNotFound = errors.New("not found")
	ErrExists   = errors.New("exists already")
	ErrInUse    = errors.New("is in use")
	ErrNoImage  = errors.New("its image is not there")
)

// KeyFile is the key of the secrets, in the folder of the database.
const KeyFile = "secret.key"

// Store is an open database. Its parts share it. If its disk is full, the errors of its
// methods are syscall.ENOSPC; if the disk is read-only or faulty, ErrDisk.
type Store struct {
	Sprites      *Sprites
	Tokens       *Tokens
	Jobs         *Jobs
	Comments     *Comments
	Environments *Environments
	Secrets      *Secrets
	Backends     *Backends
	Connectors   *Connectors
	Settings     *Settings
	Installs     *Installs
	Images       *Images
	Builds       *Builds
	Profiles     *Profiles
	Epoch        *Epoch
	Webhooks     *Webhooks
	Changes      *Changes
	WebSessions  *WebSessions

	db *database
}

// Open opens the database file at path, makes it if it does not exist, and brings it to
// this version's schema. It refuses a file of a later version. It refuses a file that is
// older than its folder (OlderError), and one with another one's log beside it
// (ForeignLogError). It does not change a file that it refuses.
//
// If something is sealed, the key must be there, and be the one that it was sealed with. Else
// it is a KeyError.
func Open(ctx context.Context, path string) (*Store, error) { return Options{}.Open(ctx, path) }

// OpenOlder is Open, but it accepts an older file, with its own log or none. Epoch.Older then says so.
func OpenOlder(ctx context.Context, path string) (*Store, error) {
	return Options{Older: true}.Open(ctx, path)
}

// Options are ways to open a store that Open refuses.
type Options struct {
	Older        bool // see OpenOlder
	ForgetSealed bool // give up what the key does not open: secrets, backends, and the settings of jobs
}

// Open is the function Open, with the options.
func (o Options) Open(ctx context.Context, path string) (*Store, error) {
	db, err := openDatabase(ctx, path, o)
	if e, ok := errors.AsType[*sqlite.Error](err); ok && e.Code()&0xff == sqlite3.SQLITE_BUSY {
		return nil, &private.RefusedError{Dir: filepath.Dir(path), Why: "has a cove.db that another program has open", Hint: "end that program; see which one it is: fuser -v " + path}
	}
	if err != nil {
		return nil, fmt.Errorf("open the store %s: %w", path, diskError(err))
	}
	changes := &Changes{db: db}
	if err := changes.begin(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("open the store %s: %w", path, err), db.close())
	}
	secrets := &Secrets{db: db, path: db.key}
	environments := &Environments{db: db, watchers: watchers{also: db.told}}
	return &Store{
		Environments: environments,
		Sprites:      &Sprites{db: db, watchers: watchers{also: environments.notify}},
		Tokens:       &Tokens{db: db},
		Jobs:         &Jobs{db: db, secrets: secrets, environments: environments},
		Comments:     &Comments{db: db},
		Secrets:      secrets,
		Backends:     &Backends{db: db, secrets: secrets},
		Connectors:   &Connectors{db: db},
		Settings:     &Settings{db: db},
		Installs:     &Installs{db: db},
		Images:       &Images{db: db},
		Builds:       &Builds{db: db},
		Profiles:     &Profiles{db: db},
		Epoch:        &Epoch{db: db},
		Webhooks:     &Webhooks{db: db, secrets: secrets},
		Changes:      changes,
		WebSessions:  &WebSessions{db: db},
		db:           db,
	}, nil
}

// Folder is the folder of the database, the server's data folder.
func (s *Store) Folder() string { return filepath.Dir(s.db.path) }

// Close closes the database. Nothing of the store may be used afterwards.
func (s *Store) Close() error { return s.db.close() }

// database has one connection for writing, so that writers wait for each other in
// Go and not in SQLite's polling, and several for reading.
type database struct {
	path  string
	key   string // the file with the key of the secrets
	read  *sql.DB
	write *sql.DB
	epoch epochFile

	events    chan struct{} // see Webhooks.Changed
	committed watchers      // of everything
}

const readers = 4

func openDatabase(ctx context.Context, path string, opts Options) (*database, error) {
	db := &database{path: path, events: make(chan struct{}, 1), key: filepath.Join(filepath.Dir(path), KeyFile), epoch: epochFile{path: filepath.Join(filepath.Dir(path), EpochFile)}}
	err := makePrivate(path)
	if err != nil {
		return nil, err
	}
	if err := checkLog(ctx, path); err != nil {
		return nil, err
	}
	db.openWrite()
	forward, err := db.checkEpoch(ctx, opts.Older)
	if err == nil {
		err = db.migrate(ctx, opts.ForgetSealed)
	}
	if err == nil && !opts.ForgetSealed {
		_, err = (&Secrets{path: db.key}).key(ctx, db.write)
	}
	if err == nil {
		err = db.startEpoch(ctx, forward)
	}
	if err == nil && opts.ForgetSealed {
		err = db.update(ctx, func(tx *sql.Tx) error { return (&Secrets{path: db.key}).forget(ctx, tx) })
	}
	if errors.Is(err, ErrKey) {
		err = &KeyError{Dir: filepath.Dir(path), Err: err}
	}
	if err != nil {
		return nil, errors.Join(err, db.epoch.close(), db.write.Close())
	}
	_ = keepRoom(path)           // without it, a store works until the disk is full
	_ = os.Remove(path + "-shm") // an earlier cove's, which nobody has open: the database is locked
	db.read = sql.OpenDB(connector(dsn(path, "deferred")))
	db.read.SetMaxOpenConns(readers)
	db.read.SetMaxIdleConns(readers)
	return db, nil
}

// openWrite opens the connection for writing.
func (db *database) openWrite() {
	db.write = sql.OpenDB(connector(dsn(db.path, "immediate")))
	db.write.SetMaxOpenConns(1)
}

// makePrivate makes the database file, so that SQLite does not do so by the umask, and
// takes from other users what they could read. SQLite gives its other files the mode
// that the database has.
func makePrivate(path string) error {
	for _, end := range []string{"", "-wal", "-journal"} {
		if _, err := os.Lstat(path + end); end != "" && errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err := private.File(path + end); err != nil {
			return err
		}
	}
	return nil
}

// dsn names the file and its settings for the driver. A path is escaped, so that
// no part of it is taken for a setting.
func dsn(path, lock string) string {
	u := url.URL{Scheme: "file", Path: path}
	if path != "" && path[0] != '/' {
		u = url.URL{Scheme: "file", Opaque: (&url.URL{Path: path}).EscapedPath()}
	}
	u.RawQuery = url.Values{
		"vfs":     {"unix-excl"}, // the index of the log is in memory, and no file (see room.go)
		"_txlock": {lock},
		"_pragma": {
			"busy_timeout(10000)",
			"journal_mode(WAL)",
			"synchronous(FULL)",
			"foreign_keys(1)",
		},
	}.Encode()
	return u.String()
}

// connector opens connections by a name from dsn. The last connection to be closed leaves
// the log, and with it the log's room.
type connector string

func (c connector) Driver() driver.Driver { return new(sqlite.Driver) }

func (c connector) Connect(context.Context) (driver.Conn, error) {
	conn, err := c.Driver().Open(string(c))
	if err != nil {
		return nil, err
	}
	if _, err := conn.(sqlite.FileControl).FileControlPersistWAL("main", 1); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return conn, nil
}

func (db *database) close() error {
	err := db.read.Close()
	applied := logApplied(db.write)
	if err = errors.Join(err, db.write.Close(), db.epoch.close()); err == nil && applied {
		err = voidLog(db.path)
	}
	return err
}

// update runs f in a transaction that is committed if f returns nil, and advances the
// epoch in it.
func (db *database) update(ctx context.Context, f func(*sql.Tx) error) error {
	tx, err := db.write.BeginTx(ctx, nil)
	if err != nil {
		return diskError(err)
	}
	var epoch int64
	if err = f(tx); err == nil {
		err = tx.QueryRowContext(ctx, "UPDATE epoch SET was = n, n = n + 1 RETURNING n").Scan(&epoch)
	}
	if err != nil {
		if undo := tx.Rollback(); undo != nil && !errors.Is(undo, sql.ErrTxDone) {
			err = errors.Join(err, undo)
		}
		return diskError(err)
	}
	if err := tx.Commit(); err != nil {
		return diskError(err)
	}
	fault.Reach(fault.EpochStored)
	db.epoch.note(epoch)
	fault.Reach(fault.EpochNoted)
	db.committed.notify()
	return nil
}

// querier is a *sql.DB or a *sql.Tx.
type querier interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// collect runs a query and scans every row.
func collect[T any](ctx context.Context, q querier, scan func(scanner) (T, error), query string, args ...any) ([]T, error) {
	rows, err := q.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, diskError(err)
	}
	defer func() { _ = rows.Close() }() // rows.Err has what matters
	var all []T
	for rows.Next() {
		v, err := scan(rows)
		if err != nil {
			return nil, err
		}
		all = append(all, v)
	}
	return all, diskError(rows.Err())
}

// scanner is a row.
type scanner interface{ Scan(dest ...any) error }

// exactlyOne turns a write that changed no row into ErrNotFound.
func exactlyOne(res sql.Result, err error) error {
	if err != nil {
		return err
	}
	n, err := res.RowsAffected()
	if err == nil && n == 0 {
		err = ErrNotFound
	}
	return err
}

// notFound replaces the SQL error for a missing row, and tells of the disk (diskError).
func notFound(err error) error {
	if errors.Is(err, sql.ErrNoRows) {
		return ErrNotFound
	}
	return diskError(err)
}

// micros and its inverse keep times as numbers; zero is NULL.
func micros(t time.Time) any {
	if t.IsZero() {
		return nil
	}
	return t.UnixMicro()
}

func fromMicros(n sql.NullInt64) time.Time {
	if !n.Valid {
		return time.Time{}
	}
	return time.UnixMicro(n.Int64).UTC()
}

// now is the time as the store keeps it.
func now() time.Time { return time.Now().UTC().Truncate(time.Microsecond) }
