package filesync

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// opKind is what an operation does.
type opKind byte

const (
	opRemove opKind = 1 + iota // a file or link goes
	opRmdir                    // a folder goes, if nothing is left in it
	opMkdir                    // a folder comes
	opPut                      // a file or link comes, in another's place if there is one
	opChmod                    // a file's mode changes, and nothing else
)

// op is one operation on a tree. It can be repeated or undone, whether it was carried out
// before or not.
type op struct {
	kind  opKind
	entry Entry // as it is to be; of what goes only the path
	prior Entry // as it must be before; Type None: nothing is there

	// from is, at the target, the path below the stage of the new file, link or folder. A path
	// with a "/" is in a new folder, and comes with that. At the source, from is the path of
	// the content.
	from string
}

// left reports whether a file is still as the operation left it, by its size and time.
func (o *op) left(now *Entry) bool {
	as := &o.entry
	if o.kind == opChmod {
		as = &o.prior
	}
	return now.Type != File || as.stamp().agrees(now.stamp())
}

// inside reports whether an operation is part of the one of a new folder.
func (o *op) inside() bool { return strings.Contains(o.from, "/") }

func encodeOp(e *enc, o op) {
	e.byte(byte(o.kind))
	e.entry(&o.entry)
	e.entry(&o.prior)
	e.string(o.from)
}

func decodeOp(d *dec) (o op, err error) {
	o.kind = opKind(d.byte())
	d.entry(&o.entry)
	d.entry(&o.prior)
	o.from = d.string()
	return o, d.err
}

// An applier carries out operations. It has the work folder's stage and the backup's files
// open, and is for one goroutine.
type applier struct {
	w     *work
	t     *tree
	stage int
	files int
	redo  bool // some of the operations may have been carried out before
	stays stays
}

var (
	errChangedNow = errors.New("it was changed meanwhile")
	errInTheWay   = errors.New("something is there that was not seen before, or is ignored")
)

func openFolder(name string) (int, error) {
	return again(func() (int, error) { return unix.Open(name, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0) })
}

// applier opens what the operations of a backup need.
func (w *work) applier(id string) (*applier, error) {
	t, err := openTree(w.root)
	if err != nil {
		return nil, err
	}
	a := &applier{w: w, t: t, stage: -1, files: -1}
	if a.stage, err = openFolder(filepath.Join(w.dir, "stage")); err == nil {
		a.files, err = openFolder(filepath.Join(w.backupDir(id), "files"))
	}
	if err != nil {
		a.close()
		return nil, err
	}
	return a, nil
}

func (a *applier) close() {
	a.t.close()
	for _, fd := range []int{a.stage, a.files} {
		if fd >= 0 {
			_ = unix.Close(fd)
		}
	}
}

// noFolder reports whether err says that a path is not there, or that there is a file or a link
// in place of a folder.
func noFolder(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP)
}

// forward carries out operation n.
func (a *applier) forward(n int64, o *op) error {
	if o.inside() {
		return nil
	}
	if err := a.w.step("op"); err != nil {
		return err
	}
	fd, base, err := a.t.at(o.entry.Path)
	if err != nil {
		if a.redo && (o.kind == opRemove || o.kind == opRmdir) && noFolder(err) {
			return nil // with its folder, the first time; a file or link may have come in the folder's place
		}
		return err
	}
	switch o.kind {
	case opRemove:
		return a.remove(n, o, fd, base)
	case opRmdir:
		a.t.forget(o.entry.Path)
		err := unix.Unlinkat(fd, base, unix.AT_REMOVEDIR)
		if err == unix.ENOENT || err == unix.ENOTEMPTY || err == unix.EEXIST {
			return nil // what is ignored stays
		}
		if a.redo && err == unix.ENOTDIR {
			return nil // it went the first time, and a file or link came in its place
		}
		return err
	case opMkdir:
		return a.mkdir(o, fd, base)
	case opPut:
		return a.put(n, o, fd, base)
	case opChmod:
		return a.chmod(o, o.entry.Mode)
	}
	return fmt.Errorf("operation %d is unknown", o.kind)
}

func (a *applier) mkdir(o *op, fd int, base string) error {
	if o.from != "" {
		return a.place(o, fd, base)
	}
	err := unix.Mkdirat(fd, base, uint32(o.entry.Mode)|0o700)
	if err != unix.EEXIST {
		return err
	}
	now, err := a.t.lstat(o.entry.Path)
	if err == nil && now.Type != Dir {
		err = errInTheWay
	}
	return err
}

// original is the name of operation n's original among the backup's files.
func original(n int64) string { return strconv.FormatInt(n, 10) }

// kept reports whether the original of operation n is in the backup.
func (a *applier) kept(n int64) bool {
	_, err := statAt(a.files, original(n))
	return err == nil
}

// unchanged checks that a path is still what the plan was made for.
func (a *applier) unchanged(o *op) error {
	now, err := a.t.lstat(o.entry.Path)
	if err == nil && !holdsStill(&o.prior, &now) {
		err = errChangedNow
	}
	return err
}

func (a *applier) remove(n int64, o *op, fd int, base string) error {
	if a.redo && a.kept(n) {
		return nil
	}
	if err := a.unchanged(o); err != nil {
		return err
	}
	return rename(fd, base, a.files, original(n))
}

func (a *applier) put(n int64, o *op, fd int, base string) error {
	if o.prior.Type == None {
		return a.place(o, fd, base)
	}
	if done, err := a.placed(o); done || err != nil {
		return err
	}
	if !a.redo || !a.kept(n) {
		if err := a.unchanged(o); err != nil {
			return err
		}
		err := unix.Linkat(fd, base, a.files, original(n), 0)
		if err == unix.EPERM || err == unix.EMLINK || err == unix.ENOTSUP {
			err = rename(fd, base, a.files, original(n)) // a file of someone else's, in a folder of ours
		}
		if err != nil {
			return err
		}
	}
	if err := a.w.step("replace"); err != nil {
		return err
	}
	return unix.Renameat(a.stage, o.from, fd, base)
}

// placed reports whether what was staged has been moved to its place before.
func (a *applier) placed(o *op) (bool, error) {
	if !a.redo {
		return false, nil
	}
	if _, err := statAt(a.stage, o.from); err != unix.ENOENT {
		return false, err
	}
	now, err := a.t.lstat(o.entry.Path)
	if err == nil && (now.Type != o.entry.Type || now.Size != o.entry.Size) {
		err = errChangedNow
	}
	return true, err
}

// place moves what was staged to a path where nothing is.
func (a *applier) place(o *op, fd int, base string) error {
	if done, err := a.placed(o); done || err != nil {
		return err
	}
	err := rename(a.stage, o.from, fd, base)
	if err == unix.EEXIST || err == unix.ENOTEMPTY {
		return errInTheWay
	}
	return err
}

// rename moves a file to a path where nothing is.
func rename(fromDir int, from string, toDir int, to string) error {
	err := unix.Renameat2(fromDir, from, toDir, to, unix.RENAME_NOREPLACE)
	if err != unix.EINVAL && err != unix.ENOSYS {
		return err
	}
	// Some file systems have no such rename.
	if st, err := statAt(fromDir, from); err == nil && st.Mode&unix.S_IFMT == unix.S_IFDIR {
		if _, err := statAt(toDir, to); err == nil {
			return unix.EEXIST
		}
		return unix.Renameat(fromDir, from, toDir, to)
	}
	if err := unix.Linkat(fromDir, from, toDir, to, 0); err != nil {
		return err
	}
	return unix.Unlinkat(fromDir, from, 0)
}

// chmod sets the bits of a mode that travel; the others stay.
func (a *applier) chmod(o *op, mode fs.FileMode) error {
	f, _, err := a.t.open(o.entry.Path)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	return f.Chmod(info.Mode().Perm()&^modeMask | mode)
}

// back undoes operation n, if it was carried out.
func (a *applier) back(n int64, o *op) error {
	if o.inside() {
		return a.lookInside(o)
	}
	if err := a.w.step("back"); err != nil {
		return err
	}
	fd, base, err := a.t.at(o.entry.Path)
	if err != nil {
		if !noFolder(err) {
			return err
		}
		if o.prior.Type != None && (o.kind == opRemove || o.kind == opPut) && a.kept(n) { // somebody else took its folder away
			a.keep(n, o, &Entry{Path: o.entry.Path})
		}
		return nil // else its folder was not made, so it was not
	}
	switch o.kind {
	case opRemove:
		return a.unremove(n, o, fd, base)
	case opRmdir:
		if err := unix.Mkdirat(fd, base, uint32(o.prior.Mode)|0o700); err != nil && err != unix.EEXIST {
			return err
		}
	case opMkdir:
		if o.prior.Type != None {
			return nil
		}
		if o.from != "" {
			return a.unplace(o, fd, base)
		}
		if err := unix.Unlinkat(fd, base, unix.AT_REMOVEDIR); err != nil && err != unix.ENOENT && err != unix.ENOTEMPTY {
			return err
		}
	case opPut:
		return a.unput(n, o, fd, base)
	case opChmod:
		err := a.chmod(o, o.prior.Mode)
		if !noFolder(err) && !errors.Is(err, errNotFile) && !errors.Is(err, fs.ErrPermission) { // else another has come there
			return err
		}
	}
	return nil
}

// unremove puts back what was deleted, if nothing has come in its place.
func (a *applier) unremove(n int64, o *op, fd int, base string) error {
	if !a.kept(n) {
		return nil
	}
	err := rename(a.files, original(n), fd, base)
	if err != unix.EEXIST {
		return err
	}
	now, err := a.t.lstat(o.entry.Path)
	if err == nil {
		a.keep(n, o, &now)
	}
	return err
}

// unput puts back what was replaced, if the path is still as the operation left it.
func (a *applier) unput(n int64, o *op, fd int, base string) error {
	if o.prior.Type != None {
		if !a.kept(n) || a.sameFile(n, fd, base) {
			return nil
		}
		now, err := a.t.lstat(o.entry.Path)
		if err != nil {
			return err
		}
		if now.Type != None && !o.stands(&now) {
			a.keep(n, o, &now)
			return nil
		}
		return unix.Renameat(a.files, original(n), fd, base)
	}
	return a.unplace(o, fd, base)
}

// unplace moves what was put at a path back into the stage, if it was put there and is
// unchanged.
func (a *applier) unplace(o *op, fd int, base string) error {
	if _, err := statAt(a.stage, o.from); err == nil {
		return nil // it was not put
	}
	now, err := a.t.lstat(o.entry.Path)
	if err != nil || now.Type == None {
		return err
	}
	same := o.stands(&now)
	if same && now.Type == Dir {
		if same, err = a.whole(o); err != nil {
			return err
		}
	}
	if !same {
		a.leave(&now)
		return nil
	}
	return rename(fd, base, a.stage, o.from)
}

// finish gives new folders their modes and times, because nothing more comes into them.
func (a *applier) finish(o *op) error {
	if o.kind != opMkdir {
		return nil
	}
	fd, err := a.t.dir(o.entry.Path)
	if noFolder(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if o.entry.Mode&0o700 != 0o700 {
		dir, err := unix.Openat(fd, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(dir)
		if err := unix.Fchmod(dir, uint32(o.entry.Mode)); err != nil {
			return err
		}
	}
	return setTime(fd, ".", o.entry.Mtime)
}

// setTime sets the modification time of a file in a folder, and of a link itself.
func setTime(dir int, name string, mtime int64) error {
	return unix.UtimesNanoAt(dir, name, []unix.Timespec{{Nsec: unix.UTIME_OMIT}, unix.NsecToTimespec(mtime)}, unix.AT_SYMLINK_NOFOLLOW)
}

func (w *work) opsName(id string) string { return filepath.Join(w.backupDir(id), "ops") }

// writeOps writes the operations to the backup.
func (w *work) writeOps(id string, each func(add func(*op) error) error) (count int64, err error) {
	if err := os.MkdirAll(filepath.Join(w.backupDir(id), "files"), 0o700); err != nil {
		return 0, err
	}
	f, err := os.OpenFile(w.opsName(id), os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return 0, err
	}
	bw := bufio.NewWriterSize(f, 64<<10)
	var e enc
	err = each(func(o *op) error {
		e.b = e.b[:0]
		encodeOp(&e, *o)
		count++
		return writeRecord(bw, e.b)
	})
	return count, errors.Join(err, bw.Flush(), f.Close())
}

// eachOp goes through the operations in order.
func (w *work) eachOp(id string, do func(n int64, o *op) error) error {
	f, err := os.Open(w.opsName(id))
	if err != nil {
		return err
	}
	defer f.Close()
	r := bufio.NewReaderSize(f, 64<<10)
	var buf []byte
	for n := int64(0); ; n++ {
		if buf, err = readRecord(r, buf); err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
		o, err := decodeOp(&dec{b: buf})
		if err == nil {
			err = do(n, &o)
		}
		if err != nil {
			return opError(&o, err)
		}
	}
}

// eachBack goes through the operations from the last to the first.
func (w *work) eachBack(id string, do func(n int64, o *op) error) error {
	var offsets []int64
	at := int64(0)
	f, err := os.Open(w.opsName(id))
	if err != nil {
		return err
	}
	defer f.Close()
	counter := &countReader{r: f}
	r := bufio.NewReaderSize(counter, 64<<10)
	var buf []byte
	for {
		if buf, err = readRecord(r, buf); err == io.EOF {
			break
		} else if err != nil {
			return err
		}
		offsets = append(offsets, at)
		at = counter.n - int64(r.Buffered())
	}
	for n := int64(len(offsets)) - 1; n >= 0; n-- {
		r.Reset(io.NewSectionReader(f, offsets[n], maxRecord+16))
		if buf, err = readRecord(r, buf); err != nil {
			return err
		}
		o, err := decodeOp(&dec{b: buf})
		if err == nil {
			err = do(n, &o)
		}
		if err != nil {
			return opError(&o, err)
		}
	}
	return nil
}

type countReader struct {
	r io.Reader
	n int64
}

func (c *countReader) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n += int64(n)
	return n, err
}

// opError says which path an operation failed on.
func opError(o *op, err error) error {
	if errors.Is(err, errCrash) {
		return err
	}
	switch {
	case errors.Is(err, errChangedNow):
		return failedf(CodeChanged, hintAgain, "%q: %v", o.entry.Path, err)
	case errors.Is(err, errInTheWay):
		return failedf(CodeConflict, hintMove, "%q can't be written: %v", o.entry.Path, err)
	}
	return coded(fmt.Sprintf("write %q", o.entry.Path), err)
}

// errCrash stands for the process's death, in tests: nothing is cleaned up.
var errCrash = errors.New("the process dies here")

// commit carries out the operations of a backup, which writeOps has written. On an error it
// undoes them all.
func (w *work) commit(ctx context.Context, b Backup) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	text, err := json.Marshal(b)
	if err != nil {
		return err
	}
	if err := os.WriteFile(w.pending(b.ID), text, 0o600); err != nil {
		return err
	}
	if err := w.step("sync"); err != nil {
		return err
	}
	if err := w.draftJournal(journal{ID: b.ID}); err != nil {
		return err
	}
	if err := w.syncStaged(b); err != nil { // the journal's draft with it
		return err
	}
	if err := w.placeJournal(); err != nil {
		return err
	}
	// From here on the new tree will come about, even if this process ends.
	if err := w.carryOut(b.ID, false); err != nil {
		return w.takeBack(b.ID, err)
	}
	if err := w.done(b.ID); err != nil {
		return w.takeBack(b.ID, err)
	}
	return nil
}

// done makes the backup ready to be listed, and ends the journal.
func (w *work) done(id string) error {
	err := os.Rename(w.pending(id), filepath.Join(w.backupDir(id), "info"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) { // a process that died did that
		return err
	}
	return w.endJournal()
}

func (w *work) carryOut(id string, redo bool) error {
	a, err := w.applier(id)
	if err != nil {
		return err
	}
	defer a.close()
	a.redo = redo
	if err := w.eachOp(id, a.forward); err != nil {
		return err
	}
	if err := w.eachOp(id, func(n int64, o *op) error { return errors.Join(a.unshare(n, o), a.finish(o)) }); err != nil {
		return err
	}
	return w.syncApplied(id)
}

// fewSyncs is the most operations that are made durable one by one. A sync of the whole file
// system also waits for others' writes to it.
const fewSyncs = 64

// syncStaged makes the staged files and the written operations durable.
func (w *work) syncStaged(b Backup) error {
	if b.Changes > fewSyncs {
		return syncAll(w.dir)
	}
	names := map[string]bool{
		w.draft(): true, filepath.Join(w.dir, "stage"): true, filepath.Join(w.dir, "backups"): true, w.backupDir(b.ID): true,
		filepath.Join(w.backupDir(b.ID), "ops"): true, filepath.Join(w.backupDir(b.ID), "pending"): true,
	}
	err := w.eachOp(b.ID, func(_ int64, o *op) error {
		if o.from == "" {
			return nil
		}
		name := filepath.Join(w.dir, "stage", filepath.FromSlash(o.from))
		names[filepath.Dir(name)] = true
		if o.kind == opMkdir || o.entry.Type == File {
			names[name] = true
		}
		return nil
	})
	if err != nil {
		return err
	}
	if syncEach(names) != nil { // one that can't be opened, for example
		return syncAll(w.dir)
	}
	return nil
}

// syncEach makes files and folders durable, side by side. A file system then writes its own
// journal once for many of them.
func syncEach(names map[string]bool) error {
	errs := make(chan error, len(names))
	for name := range names {
		go func() {
			err := syncFile(name)
			if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
				err = nil // deleted, with what was in it
			}
			errs <- err
		}()
	}
	var err error
	for range names {
		err = errors.Join(err, <-errs)
	}
	return err
}

// syncApplied makes the changes of a tree durable.
func (w *work) syncApplied(id string) error {
	dirs := map[string]bool{filepath.Join(w.backupDir(id), "files"): true}
	err := w.eachOp(id, func(n int64, o *op) error {
		if n < fewSyncs && !o.inside() {
			dirs[filepath.Join(w.root, filepath.Dir(filepath.FromSlash(o.entry.Path)))] = true
		}
		if n == fewSyncs {
			dirs = nil
			return io.EOF
		}
		return nil
	})
	if dirs == nil {
		return syncAll(w.root)
	}
	if err != nil {
		return err
	}
	if syncEach(dirs) != nil {
		return syncAll(w.root)
	}
	return nil
}

// takeBack restores the tree because of cause, which it returns, with what could not be
// restored.
func (w *work) takeBack(id string, cause error) error {
	if errors.Is(cause, errCrash) {
		return cause
	}
	var left *stays
	err := w.writeJournal(journal{ID: id, Back: true})
	if err == nil {
		left, err = w.restore(id)
	}
	if errors.Is(err, errCrash) {
		return errors.Join(cause, err)
	}
	if err != nil {
		e := *coded("sync "+w.root, cause)
		e.Message += fmt.Sprintf("; not all was taken back, and the next sync ends it: %v", err)
		e.Hint = hintAgain
		return &e
	}
	return left.explain(w, id, cause)
}

// restore restores the tree, but for what was changed since, which it returns.
func (w *work) restore(id string) (*stays, error) {
	a, err := w.applier(id)
	if err != nil {
		return nil, err
	}
	defer a.close()
	if err := w.eachBack(id, a.back); err != nil {
		return nil, err
	}
	if err := w.eachOp(id, func(_ int64, o *op) error { return a.restoreMode(o) }); err != nil {
		return nil, err
	}
	if len(a.stays.ops) > 0 {
		return &a.stays, a.keepOriginals(id)
	}
	if err := w.endJournal(); err != nil {
		return nil, err
	}
	return &a.stays, os.RemoveAll(w.backupDir(id))
}

// restoreMode gives a folder that came back its mode and time.
func (a *applier) restoreMode(o *op) error {
	if o.kind != opRmdir || o.prior.Type != Dir {
		return nil
	}
	again := op{kind: opMkdir, entry: o.prior}
	again.entry.Path = o.entry.Path
	return a.finish(&again)
}

// recover ends what a dead process had begun. It goes forwards; it goes back if the process
// did, or if forwards fails.
func (w *work) recover() error {
	j, err := w.readJournal()
	if j == nil || err != nil {
		return err
	}
	if j.Kept {
		return w.listOriginals(j.ID)
	}
	if j.Back {
		_, err := w.restore(j.ID)
		return err
	}
	if err := w.carryOut(j.ID, true); err != nil {
		return w.takeBack(j.ID, err)
	}
	return w.done(j.ID)
}

// count adds an operation to the backup's numbers.
func (b *Backup) count(o *op) {
	b.Changes++
	if o.prior.Type == File && (o.kind == opRemove || o.kind == opPut) {
		b.Bytes += o.prior.Size
	}
}
