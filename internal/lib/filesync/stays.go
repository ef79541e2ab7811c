package filesync

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// A program may change a path between the operation that wrote it and the error that takes the
// sync back. Then its work stays where it is, and the original stays in the backup. Such a
// backup has only these originals, and can be undone like any other. The undo puts the original
// at its path, and keeps in its own backup what was there.

// stays are the paths that an applier did not take back.
type stays struct {
	ops   map[int64]op // the operations whose originals are kept, as the backup is to have them
	count int
	first string // path

	inside map[string]*folder // new folders, by their names below the stage
}

// folder is what is left of a new folder that is taken back.
type folder struct {
	paths   int64 // in it that are as they were put
	changed bool  // another one is not
}

// stands reports whether a file, link or folder is still as the operation put it.
func (o *op) stands(now *Entry) bool {
	if now.Type != o.entry.Type || now.Target != o.entry.Target {
		return false
	}
	return now.Type != File || now.Size == o.entry.Size && isTime(o.entry.Mtime, now.Mtime)
}

// isTime reports whether a file that was given one time may have the other because of that. Some
// file systems keep times only to 100 ns, or to two seconds.
func isTime(given, now int64) bool {
	cut := given - now
	return cut == 0 || 0 < cut && cut < int64(2*time.Second) && now%100 == 0
}

// leave notes that a path stays as it is now.
func (a *applier) leave(now *Entry) {
	if a.stays.count++; a.stays.count == 1 {
		a.stays.first = now.Path
	}
}

// keep notes that a path stays as it is now, and that the backup keeps the original that
// operation n has put there.
func (a *applier) keep(n int64, o *op, now *Entry) {
	a.leave(now)
	kind := opPut
	if now.Type == None || now.Type == Dir { // an undo takes no folder away: it fails, and changes nothing
		kind = opRemove
	}
	if a.stays.ops == nil {
		a.stays.ops = map[int64]op{}
	}
	a.stays.ops[n] = op{kind: kind, entry: *now, prior: o.prior}
}

// lookInside compares a path in a new folder with its operation. All operations in a folder
// come here before the folder's own: an undo goes backwards.
func (a *applier) lookInside(o *op) error {
	top, _, _ := strings.Cut(o.from, "/")
	if a.stays.inside == nil {
		a.stays.inside = map[string]*folder{}
	}
	f := a.stays.inside[top]
	if f == nil {
		f = &folder{}
		a.stays.inside[top] = f
	}
	if f.changed {
		return nil
	}
	now, err := a.t.lstat(o.entry.Path)
	if errors.Is(err, fs.ErrPermission) {
		f.changed = true
		return nil
	}
	f.paths++
	f.changed = !o.stands(&now)
	return err
}

// whole reports whether a new folder has what was put into it, unchanged, and nothing else.
func (a *applier) whole(o *op) (bool, error) {
	f := a.stays.inside[o.from]
	delete(a.stays.inside, o.from)
	if f == nil {
		f = &folder{}
	}
	if f.changed {
		return false, nil
	}
	root, err := os.OpenRoot(a.w.root)
	if err != nil {
		return false, err
	}
	defer root.Close()
	there, err := countIn(root, o.entry.Path)
	if errors.Is(err, fs.ErrPermission) || noFolder(err) { // changed meanwhile
		return false, nil
	}
	return f.paths == there, err
}

// countIn counts what is below a folder. A name may have any bytes, so fs.WalkDir can't.
func countIn(root *os.Root, dir string) (int64, error) {
	f, err := root.Open(dir)
	if err != nil {
		return 0, err
	}
	entries, err := f.ReadDir(-1)
	if err = errors.Join(err, f.Close()); err != nil {
		return 0, err
	}
	count := int64(len(entries))
	for _, e := range entries {
		if e.IsDir() {
			more, err := countIn(root, dir+"/"+e.Name())
			if err != nil {
				return 0, err
			}
			count += more
		}
	}
	return count, nil
}

// keepOriginals makes the backup one of the originals that were not put back. The death of the
// process, at any moment, does not have them put back later.
func (a *applier) keepOriginals(id string) error {
	draft, err := os.OpenFile(a.w.opsName(id)+".kept", os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	b := a.w.about(id)
	b.Changes, b.Bytes = 0, 0
	bw := bufio.NewWriterSize(draft, 64<<10)
	var e enc
	err = a.w.eachOp(id, func(n int64, o *op) error {
		// The name of an original is its operation's number, so the numbers stay. A folder
		// that was there before is nothing to an undo.
		kept := op{kind: opMkdir, entry: Entry{Path: o.entry.Path, Type: Dir}, prior: Entry{Type: Dir}}
		if k, ok := a.stays.ops[n]; ok {
			kept = k
			b.Changes++
			if k.prior.Type == File {
				b.Bytes += k.prior.Size
			}
			if err := a.unshare(n, o); err != nil {
				return err
			}
		}
		e.b = e.b[:0]
		encodeOp(&e, kept)
		return writeRecord(bw, e.b)
	})
	if err = errors.Join(err, bw.Flush(), draft.Sync(), draft.Close()); err != nil {
		return err
	}
	text, err := json.Marshal(b)
	if err != nil {
		return err
	}
	if err := os.WriteFile(a.w.pending(id), text, 0o600); err != nil {
		return err
	}
	if err := errors.Join(syncFile(a.w.pending(id)), syncFile(a.w.backupDir(id))); err != nil {
		return err
	}
	if err := a.w.writeJournal(journal{ID: id, Back: true, Kept: true}); err != nil {
		return err
	}
	return a.w.listOriginals(id)
}

// listOriginals ends what keepOriginals has prepared.
func (w *work) listOriginals(id string) error {
	if err := w.step("keep originals"); err != nil {
		return err
	}
	err := os.Rename(w.opsName(id)+".kept", w.opsName(id))
	if err != nil && !errors.Is(err, fs.ErrNotExist) { // a process that died did that
		return err
	}
	return w.done(id)
}

func (w *work) pending(id string) string { return filepath.Join(w.backupDir(id), "pending") }

// about is what the backup of a sync that is taken back says about itself.
func (w *work) about(id string) Backup {
	b := Backup{ID: id, Time: time.Now().UTC()}
	for _, name := range []string{w.pending(id), filepath.Join(w.backupDir(id), "info")} { // info: all but the journal was done
		if text, err := os.ReadFile(name); err == nil && json.Unmarshal(text, &b) == nil {
			break
		}
	}
	b.ID = id
	return b
}

// explain adds to an error that took a sync back what stays of the sync.
func (s *stays) explain(w *work, id string, cause error) error {
	if s.count == 0 {
		return cause
	}
	e := *coded("sync "+w.root, cause)
	e.Message += fmt.Sprintf("; all is as it was but %q", s.first)
	if more := s.count - 1; more > 0 {
		e.Message += fmt.Sprintf(" and %d more", more)
	}
	e.Message += ", changed after the sync wrote there"
	if e.Hint == hintSpace { // it says otherwise
		e.Hint = hintAgain
	}
	if len(s.ops) > 0 {
		e.Message += "; the backup " + id + " has the files from before"
		e.Hint = hintKept
	}
	return &e
}

// sameFile reports whether the original of operation n is the file at its path, too: nothing
// was put there yet.
func (a *applier) sameFile(n int64, fd int, base string) bool {
	kept, err := statAt(a.files, original(n))
	if err != nil {
		return false
	}
	now, err := statAt(fd, base)
	return err == nil && kept.Dev == now.Dev && kept.Ino == now.Ino
}
