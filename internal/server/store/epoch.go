package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"modernc.org/sqlite"

	"github.com/cove-dev/cove/internal/lib/atomicfile"
	"github.com/cove-dev/cove/internal/lib/private"
)

// The epoch counts the transactions that have changed a store. The store has it, and so
// has a file beside it, which is written after each commit. The file is thus equal to
// the store, or behind it if the process died in between. A file that is ahead says that
// this store is an older one, put back: it does not know what was made since.

// EpochFile is the file, in the folder of the database.
const EpochFile = "epoch"

// epochDigits is the width of the number in the file. All numbers have the same, so that
// each is written over the one before it, in place: the file is never empty, nor torn.
const epochDigits = 20

// olderSetting is set while a server may still find what an older store does not know.
const olderSetting = "older_store"

// OlderError says that a store is older than the folder that it is in.
type OlderError struct {
	Dir   string
	Epoch int64 // of the store
	File  int64 // what the file says
}

func (e *OlderError) Error() string {
	return fmt.Sprintf("cove.db is older than the rest of the data folder %s (it is at change %d, the folder at %d): an older copy was put back, or the newest one was lost", e.Dir, e.Epoch, e.File)
}

// Unwrap tells a person what to do.
func (e *OlderError) Unwrap() error {
	return &private.RefusedError{Dir: e.Dir, Why: "has an older cove.db", Hint: fmt.Sprintf(
		"put the newest cove.db back, and its cove.db-wal if it had one; or go on with this one, which moves to %s what it does not know: cove serve --data %s --accept-older-store",
		filepath.Join(e.Dir, "aside"), e.Dir)}
}

// Epoch is what a store knows of its own age.
type Epoch struct{ db *database }

// Older reports whether what lies beside this store may be newer than it: an older store
// was accepted, or the file was lost. It does so, at each start, until Reconciled.
func (e *Epoch) Older(ctx context.Context) (bool, error) {
	var there bool
	if err := e.db.read.QueryRowContext(ctx, "SELECT EXISTS (SELECT 1 FROM settings WHERE key = ?)", olderSetting).Scan(&there); err != nil {
		return false, fmt.Errorf("check whether the store is an older one: %w", err)
	}
	return there, nil
}

// Reconciled notes that nothing lies beside the store that it does not know.
func (e *Epoch) Reconciled(ctx context.Context) error {
	err := e.db.update(ctx, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, "DELETE FROM settings WHERE key = ?", olderSetting)
		return err
	})
	if err != nil {
		return fmt.Errorf("note that the store is not older any more: %w", err)
	}
	return nil
}

// epochFile is the open file.
type epochFile struct {
	path string

	mu     sync.Mutex
	file   *os.File // nil: it was not opened
	last   int64    // what it says; guarded by mu
	failed error    // the first write that failed; guarded by mu
}

// read returns what the file says; false if there is none, or if it says nothing.
func (f *epochFile) read() (int64, bool, error) {
	file, err := os.Open(f.path)
	if errors.Is(err, os.ErrNotExist) {
		return 0, false, nil
	}
	if err != nil {
		return 0, false, err
	}
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, epochDigits+2))
	if err != nil {
		return 0, false, err
	}
	digits, ended := strings.CutSuffix(string(text), "\n")
	n, err := strconv.ParseInt(digits, 10, 64)
	if err != nil || !ended || len(digits) != epochDigits || n < 0 {
		return 0, false, nil
	}
	return n, true, nil
}

func formatEpoch(n int64) []byte { return fmt.Appendf(nil, "%0*d\n", epochDigits, n) }

// create makes the file, or replaces one that says nothing: whole, or not at all.
func (f *epochFile) create(n int64) error {
	return atomicfile.Write(f.path, formatEpoch(n), 0o600)
}

// open opens the file for note.
func (f *epochFile) open() (err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.file, err = os.OpenFile(f.path, os.O_WRONLY, 0)
	return err
}

// note writes the epoch of a commit, unless a later one was. A write that fails leaves
// the file behind the store, which is allowed; close returns the error.
func (f *epochFile) note(n int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.file == nil || n <= f.last {
		return
	}
	f.last = n
	if _, err := f.file.WriteAt(formatEpoch(n), 0); err != nil && f.failed == nil {
		f.failed = fmt.Errorf("write the store's epoch: %w", err)
	}
}

func (f *epochFile) close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.file == nil {
		return nil
	}
	err := errors.Join(f.failed, f.file.Close())
	f.file = nil
	return err
}

// storedEpoch is the epoch of a database that was perhaps not migrated yet.
func storedEpoch(ctx context.Context, db *sql.DB) (n int64, err error) {
	var there bool
	if err := db.QueryRowContext(ctx, "SELECT EXISTS (SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = 'epoch')").Scan(&there); err != nil || !there {
		return 0, err
	}
	return n, db.QueryRowContext(ctx, "SELECT n FROM epoch").Scan(&n)
}

// checkEpoch compares the database, before anything of it is changed, with the file. The
// number is that at which both have to go on; 0 says that they agree.
func (db *database) checkEpoch(ctx context.Context, accept bool) (forward int64, err error) {
	stored, err := storedEpoch(ctx, db.write)
	if err != nil {
		return 0, err
	}
	said, there, err := db.epoch.read()
	switch {
	case err != nil:
		return 0, err
	case there && said > stored && !accept:
		return 0, &OlderError{Dir: filepath.Dir(db.epoch.path), Epoch: stored, File: said}
	case there && said > stored:
		return said + 1, nil
	case !there && stored > 0: // nobody knows whether it is the newest
		return stored + 1, nil
	}
	return 0, nil
}

// Check returns the error that Open would return. It is an OlderError if the file is older
// than its folder, and a ForeignLogError if it has another one's log. If its key is not
// there or is another one, it is a KeyError. It changes nothing, and is only of use while
// nobody has the store open. A file that can't be read without its log is not judged.
func Check(ctx context.Context, path string) error {
	if err := checkAge(ctx, path); err != nil {
		return err
	}
	return checkKey(ctx, path)
}

func checkAge(ctx context.Context, path string) error {
	if err := checkLog(ctx, path); err != nil {
		return err
	}
	root, stored, err := epochWithoutLog(ctx, path)
	if _, ok := errors.AsType[*sqlite.Error](err); ok {
		return nil
	}
	if err != nil {
		return err
	}
	if log, err := os.Open(path + "-wal"); err == nil {
		_, last, found, err := epochsOf(log, root)
		if log.Close(); err != nil {
			return err
		}
		switch {
		case root == 0:
			return nil // the log may have the table
		case found:
			stored = last
		}
	}
	epoch := epochFile{path: filepath.Join(filepath.Dir(path), EpochFile)}
	said, there, err := epoch.read()
	if err == nil && there && said > stored {
		err = &OlderError{Dir: filepath.Dir(path), Epoch: stored, File: said}
	}
	return err
}

// startEpoch has the database and the file agree. With forward, the store is noted as
// an older one before the file is brought to its number. It forgets the sessions of the web
// page then: some may have been logged out since.
func (db *database) startEpoch(ctx context.Context, forward int64) error {
	if forward > 0 {
		tx, err := db.write.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		_, err = tx.ExecContext(ctx, "UPDATE epoch SET was = n, n = ?", forward)
		if err == nil {
			_, err = tx.ExecContext(ctx, "INSERT INTO settings (key, value) VALUES (?, 'yes') ON CONFLICT (key) DO NOTHING", olderSetting)
		}
		if err == nil {
			_, err = tx.ExecContext(ctx, "DELETE FROM web_sessions")
		}
		if err != nil {
			return errors.Join(err, tx.Rollback())
		}
		if err := tx.Commit(); err != nil {
			return err
		}
	}
	stored, err := storedEpoch(ctx, db.write)
	if err != nil {
		return err
	}
	if _, there, err := db.epoch.read(); err != nil {
		return err
	} else if !there {
		if err := db.epoch.create(stored); err != nil {
			return err
		}
	}
	if err := db.epoch.open(); err != nil {
		return err
	}
	db.epoch.note(stored)
	return nil
}
