package filesync

import (
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// writeUndo writes the operations that undo backup id, as a backup of their own, newID, which
// can be undone in turn. The files that the old backup kept are staged for it.
func (w *work) writeUndo(id, newID string) (Backup, error) {
	b := Backup{ID: newID, Time: time.Now().UTC(), Verb: "undo"}
	t, err := openTree(w.root)
	if err != nil {
		return b, err
	}
	defer t.close()
	st, err := openTree(filepath.Join(w.dir, "stage"))
	if err != nil {
		return b, err
	}
	defer st.close()
	files, err := openFolder(filepath.Join(w.backupDir(id), "files"))
	if err != nil {
		return b, err
	}
	defer unix.Close(files)
	u := &undoer{t: t, files: files, layout: layout{t: t, stage: st}}
	count, err := w.writeOps(newID, func(add func(*op) error) error {
		put := func(o *op) error { b.count(o); return add(o) }
		if err := w.eachBack(id, func(n int64, o *op) error { return u.gone(o, put) }); err != nil {
			return err
		}
		return w.eachBack(id, func(n int64, o *op) error { return u.back(n, o, put) })
	})
	b.Changes = count
	if err == nil && len(u.changed) > 0 {
		err = failedf(CodeConflict, hintLook,
			"%s changed since: %q; nothing was undone", pathsHave(u.count), u.changed)
	}
	return b, err
}

// undoer makes the opposites of operations.
type undoer struct {
	t       *tree
	files   int // folder of what the backup kept
	layout  layout
	changed []string // the first paths that are not what the sync left
	count   int
}

// now returns what is at a path, and notes a change if that is not what operation o left
// there.
func (u *undoer) now(o *op) (Entry, error) {
	now, err := u.t.lstat(o.entry.Path)
	want := o.entry
	switch {
	case err != nil:
		return now, err
	case o.kind == opRemove || o.kind == opRmdir:
		want = Entry{}
	case o.kind == opChmod:
		want.Mtime = now.Mtime
	}
	same := now.Type == want.Type && now.Size == want.Size && now.Target == want.Target
	if same && now.Type == File {
		same = now.Mtime == want.Mtime && now.Mode == want.Mode
	}
	if o.kind == opRemove && now.Type == Dir {
		return Entry{}, nil // it took the file's place, and goes before the file comes back
	}
	if !same && o.kind != opRmdir && o.kind != opMkdir {
		if u.count++; len(u.changed) < keptNames {
			u.changed = append(u.changed, o.entry.Path)
		}
	}
	return now, nil
}

// gone adds the operation that deletes what operation o made.
func (u *undoer) gone(o *op, add func(*op) error) error {
	switch {
	case o.kind == opMkdir && o.prior.Type == None:
		return add(&op{kind: opRmdir, entry: Entry{Path: o.entry.Path, Type: Dir}, prior: o.entry})
	case o.kind == opPut && o.prior.Type == None:
		now, err := u.now(o)
		if err != nil {
			return err
		}
		return add(&op{kind: opRemove, entry: Entry{Path: o.entry.Path}, prior: now})
	}
	return nil
}

// back adds the operations that restore what operation n, o, replaced or deleted.
func (u *undoer) back(n int64, o *op, add func(*op) error) error {
	switch o.kind {
	case opRmdir:
		if _, err := u.now(o); err != nil {
			return err
		}
		dir := op{kind: opMkdir, entry: o.prior}
		dir.entry.Path, dir.entry.Type = o.entry.Path, Dir
		if err := u.layout.place(&dir); err != nil {
			return err
		}
		return add(&dir)
	case opChmod:
		now, err := u.now(o)
		if err != nil {
			return err
		}
		entry := now
		entry.Mode = o.prior.Mode
		return add(&op{kind: opChmod, entry: entry, prior: now})
	case opRemove, opPut:
		if o.prior.Type == None {
			return nil
		}
		now, err := u.now(o)
		if err != nil {
			return err
		}
		put := op{kind: opPut, entry: o.prior, prior: now}
		put.entry.Path = o.entry.Path
		if err := errors.Join(u.layout.place(&put), u.stage(n, &put)); err != nil {
			return err
		}
		return add(&put)
	}
	return nil
}

// stage stages a copy of a backup's file.
func (u *undoer) stage(n int64, o *op) error {
	fd, base, err := u.layout.stage.at(o.from)
	if err == nil {
		err = keepCopy(u.files, original(n), fd, base, false) // commit makes it durable
	}
	if err != nil {
		return fmt.Errorf("take %q from the backup: %w", o.entry.Path, err)
	}
	return nil
}
