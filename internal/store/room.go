package store

import (
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

// walRoom is what keepRoom holds for the write-ahead log. SQLite begins the log anew at
// some 4 MiB (wal_autocheckpoint, 1,000 pages), if the database can grow. On a full disk
// the rest is for the writes that make room: a delete takes a few pages.
const walRoom = 6 << 20

// keepRoom has the file system set room aside for the log of a database, of which no other
// file can take anything, so that a store can be opened and written to on a full disk:
// otherwise nobody could delete anything. SQLite overwrites its log in place while it is
// open, and removes it at the end. If the log is missing, this makes it, empty. A file
// system that can't do this, and a disk that is full by now, leave a store without.
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
