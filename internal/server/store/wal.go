package store

import (
	"bufio"
	"bytes"
	"context"
	"database/sql"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"

	"modernc.org/sqlite"

	"github.com/cove-dev/cove/internal/lib/private"
)

// A process that was killed leaves a log beside the database, cove.db-wal, that is not void
// (see voidLog). SQLite applies the log at the next open, to whatever database is there then.
// If that is an older copy that was put back, the file would become a mixture of the two. Each
// version of the epoch's page in the log has the epoch and the one before it. So the log is not
// the database's own if the database is from before the log's first transaction or from after
// its last one.
//
// The formats are SQLite's: https://www.sqlite.org/fileformat2.html.

// ForeignLogError says that the log beside a store is another store's.
type ForeignLogError struct {
	Dir         string
	Epoch       int64 // of the database without the log
	First, Last int64 // the epochs from which and to which the log leads
	Alone       bool  // the database is empty, or was gone: SQLite would remove the log
}

func (e *ForeignLogError) Error() string {
	if e.Alone {
		return fmt.Sprintf("cove.db-wal in the data folder %s has changes, but cove.db is missing or empty", e.Dir)
	}
	return fmt.Sprintf("cove.db-wal in the data folder %s belongs to another cove.db: it leads from change %d to %d, and cove.db is at %d", e.Dir, e.First, e.Last, e.Epoch)
}

// Unwrap tells a person what to do.
func (e *ForeignLogError) Unwrap() error {
	return &private.RefusedError{Dir: e.Dir, Why: "has another store's log", Hint: "put back the cove.db that the log belongs to; or keep this cove.db, and move away the other one's log: " +
		filepath.Join(e.Dir, "cove.db-wal")}
}

// checkLog refuses a log that is not the database's own, before SQLite applies it.
func checkLog(ctx context.Context, path string) error {
	log, err := os.Open(path + "-wal")
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer log.Close()
	info, err := log.Stat()
	if err != nil {
		return err
	}
	header := make([]byte, walHeader)
	if _, err := log.ReadAt(header, 0); err != nil {
		return ended(err)
	}
	if bytes.Equal(header, make([]byte, walHeader)) {
		return nil
	}
	// SQLite writes the database's first page before it makes a log.
	if db, err := os.Stat(path); info.Size() > walHeader && (errors.Is(err, os.ErrNotExist) || err == nil && db.Size() == 0) {
		return &ForeignLogError{Dir: filepath.Dir(path), Alone: true}
	}
	root, epoch, err := epochWithoutLog(ctx, path)
	if _, ok := errors.AsType[*sqlite.Error](err); ok {
		return nil // a transfer of the log was cut off, by a kill or a full disk: the file is whole only with it
	}
	if err != nil || root == 0 {
		return err
	}
	first, last, found, err := epochsOf(log, root)
	if err != nil || !found {
		return err
	}
	if epoch < first || epoch > last {
		return &ForeignLogError{Dir: filepath.Dir(path), Epoch: epoch, First: first, Last: last}
	}
	return nil
}

// openWithoutLog opens a database file that is there, for reading it as it is.
func openWithoutLog(path string) (*sql.DB, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	u := url.URL{Scheme: "file", Path: abs, RawQuery: "immutable=1&mode=ro"}
	return sql.Open("sqlite", u.String())
}

// epochWithoutLog reads the epoch of a database file, and which page has it; 0: none.
func epochWithoutLog(ctx context.Context, path string) (root uint32, epoch int64, err error) {
	if info, err := os.Stat(path); errors.Is(err, os.ErrNotExist) || err == nil && info.Size() == 0 {
		return 0, 0, nil
	}
	db, err := openWithoutLog(path)
	if err != nil {
		return 0, 0, err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	err = db.QueryRowContext(ctx, "SELECT rootpage FROM sqlite_schema WHERE type = 'table' AND name = 'epoch'").Scan(&root)
	if errors.Is(err, sql.ErrNoRows) {
		return 0, 0, nil
	}
	if err == nil {
		err = db.QueryRowContext(ctx, "SELECT n FROM epoch").Scan(&epoch)
	}
	return root, epoch, err
}

const (
	walHeader   = 32
	walFrame    = 24 // the header of a frame, before its page
	walMagic    = 0x377f0682
	maxPageSize = 65536
)

// epochsOf reads the transactions of a log: the epoch before the first one, and that of the
// last one. It passes over what SQLite would not apply. found is false if SQLite would apply
// nothing.
func epochsOf(log io.Reader, root uint32) (first, last int64, found bool, err error) {
	in := bufio.NewReaderSize(log, 1<<16)
	header := make([]byte, walHeader)
	if _, err := io.ReadFull(in, header); err != nil {
		return 0, 0, false, ended(err)
	}
	magic, size := binary.BigEndian.Uint32(header), binary.BigEndian.Uint32(header[8:])
	if magic&^1 != walMagic || size < 512 || size > maxPageSize {
		return 0, 0, false, nil
	}
	sum := walSum{order: binary.ByteOrder(binary.LittleEndian)}
	if magic&1 == 1 {
		sum.order = binary.BigEndian
	}
	sum.add(header[:24])
	if !sum.is(header[24:]) {
		return 0, 0, false, nil
	}
	frame := make([]byte, walFrame+size)
	var begun, seen bool // of the transaction that is read, and of any
	var before, now, from int64
	for {
		if _, err := io.ReadFull(in, frame); err != nil {
			return first, last, found, ended(err)
		}
		sum.add(frame[:8])
		sum.add(frame[walFrame:])
		if string(frame[8:16]) != string(header[16:24]) || !sum.is(frame[16:24]) {
			return first, last, found, nil // the end, which an earlier use of the file has left
		}
		if binary.BigEndian.Uint32(frame) == root {
			n, was, ok := epochInPage(frame[walFrame:])
			if !ok {
				return 0, 0, false, errors.New("cove.db-wal has a page that is not understood")
			}
			if now, before, begun = n, was, true; !seen {
				from, seen = before, true
			}
		}
		if binary.BigEndian.Uint32(frame[4:]) != 0 && begun { // the end of a transaction
			first, last, found, begun = from, now, true, false
		}
	}
}

// ended is nil for the end of a log, also in the middle of a frame.
func ended(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return nil
	}
	return err
}

// walSum is the checksum of a log, up to some point.
type walSum struct {
	order  binary.ByteOrder
	s0, s1 uint32
}

func (s *walSum) add(data []byte) {
	for ; len(data) >= 8; data = data[8:] {
		s.s0 += s.order.Uint32(data) + s.s1
		s.s1 += s.order.Uint32(data[4:]) + s.s0
	}
}

func (s *walSum) is(data []byte) bool {
	return binary.BigEndian.Uint32(data) == s.s0 && binary.BigEndian.Uint32(data[4:]) == s.s1
}

// epochInPage reads the only row of the table epoch from its page.
func epochInPage(page []byte) (n, was int64, ok bool) {
	const leaf = 0x0d
	if len(page) < 10 || page[0] != leaf || binary.BigEndian.Uint16(page[3:]) != 1 {
		return 0, 0, false
	}
	at := int(binary.BigEndian.Uint16(page[8:]))
	if at >= len(page) {
		return 0, 0, false
	}
	// The row's length, the row's number, the length of the record's header, and the
	// types of the two columns must be one byte each. That means numbers below 128.
	cell := page[at:]
	if len(cell) < 5 || cell[0] > 127 || int(cell[0]) > len(cell)-2 || cell[1] > 127 || cell[2] != 3 {
		return 0, 0, false
	}
	row := cell[2 : 2+int(cell[0])]
	n, rest, ok := columnInt(row[1], row[3:])
	if !ok {
		return 0, 0, false
	}
	was, _, ok = columnInt(row[2], rest)
	return n, was, ok
}

// columnInt reads an integer of a record by its type.
func columnInt(kind byte, data []byte) (v int64, rest []byte, ok bool) {
	if kind == 8 || kind == 9 {
		return int64(kind - 8), data, true
	}
	size, known := map[byte]int{1: 1, 2: 2, 3: 3, 4: 4, 5: 6, 6: 8}[kind]
	if !known || len(data) < size {
		return 0, nil, false
	}
	v = int64(int8(data[0]))
	for _, b := range data[1:size] {
		v = v<<8 | int64(b)
	}
	return v, data[size:], true
}
