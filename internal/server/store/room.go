package store

import (
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"
)

// ErrDisk is the error of a disk that does not do what it should, to be found by
// errors.Is. A full disk's is syscall.ENOSPC.
var ErrDisk = errors.New("the disk is read-only or faulty")

// diskError has errors.Is find why SQLite could not read or write its files, if that is
// the disk's fault.
func diskError(err error) error {
	e, ok := errors.AsType[*sqlite.Error](err)
	if !ok || errors.Is(err, ErrDisk) || errors.Is(err, syscall.ENOSPC) {
		return err
	}
	switch code := e.Code(); code & 0xff { // above that is the detail
	case sqlite3.SQLITE_FULL:
		return fmt.Errorf("%w: %w", err, syscall.ENOSPC)
	case sqlite3.SQLITE_IOERR:
		if code == sqlite3.SQLITE_IOERR_SHMSIZE { // no room for the index of the log
			return fmt.Errorf("%w: %w", err, syscall.ENOSPC)
		}
		return fmt.Errorf("%w: %w", err, ErrDisk)
	case sqlite3.SQLITE_READONLY:
		return fmt.Errorf("%w: %w", err, ErrDisk)
	}
	return err
}

// A sprite can take each byte of the disk as soon as it is free. Then a store can be opened,
// and written to, only if nothing that this takes is given back and asked for again:
//
//   - The log has its room as long as its file exists. SQLite writes over it in place, and
//     with SQLITE_FCNTL_PERSIST_WAL it does not remove the file at the end.
//   - The index of the log would be a file of shared memory, cove.db-shm, which each first
//     opener empties and fills anew. With the VFS unix-excl it is memory of this process,
//     which locks the database against all others until it is closed.
//   - The file of the epoch is written over in place.

// walRoom is what keepRoom holds for the write-ahead log. SQLite begins the log anew at
// some 4 MiB (wal_autocheckpoint, 1,000 pages), if the database can grow. On a full disk
// the rest is for the writes that make room: a delete takes a few pages.
const walRoom = 6 << 20

// keepRoom has the file system set room aside for the log of a database, unless the log has
// it. A file system that can't do this, and a disk that is full by now, leave a store
// without.
func keepRoom(path string) error {
	f, err := os.OpenFile(path+"-wal", os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	err = unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_KEEP_SIZE, 0, walRoom)
	if err != nil {
		err = &fs.PathError{Op: "fallocate", Path: path, Err: err}
	}
	return errors.Join(err, f.Close())
}

// logApplied transfers all of the log to the database, whose only connection has nothing
// under way, and reports whether that was possible. If not, the next open does it.
func logApplied(db *sql.DB) bool {
	var busy, all, applied int
	err := db.QueryRow("PRAGMA wal_checkpoint(PASSIVE)").Scan(&busy, &all, &applied)
	return err == nil && busy == 0 && all == applied
}

// voidLog makes an applied log of a closed database void. Then a copy of the database
// alone is whole. And if an older copy is put back, it is not taken for a part of the
// log.
func voidLog(path string) error {
	f, err := os.OpenFile(path+"-wal", os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(make([]byte, walHeader), 0)
	return errors.Join(err, f.Sync(), f.Close())
}

// emptyLog removes all that a log has, of a database that is closed and has it.
func emptyLog(path string) error {
	f, err := os.OpenFile(path+"-wal", os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
