package filesync

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// A work is an end's folder for one root, with its stage, its journal, and its backups:
//
//	stage/NAME           a file, link or new folder as it is to be, by what it is for
//	left/                the stage of an attempt that was not ended, while the next one takes over
//	journal              which backup's operations are being carried out, and which way
//	backups/ID/ops       the operations, in order
//	backups/ID/files/N   what operation N replaced or deleted
//	backups/ID/info      about the backup, JSON; called pending until it is whole
//
// It is on the root's file system, so that everything gets there and back by
// renames.
type work struct {
	dir  string
	root string

	// step is called with a name before each change to a disk. Tests end the
	// process there, or return an error as if the system had.
	step func(name string) error
}

// Retention.
const (
	keepBackups = 10
	keepStaged  = 7 * 24 * time.Hour // of an attempt that was not ended
)

// keyOf is the name of a root among others.
func keyOf(parts ...string) string {
	sum := sha256.Sum256([]byte(strings.Join(parts, "\x00")))
	return hex.EncodeToString(sum[:8])
}

// workPlaces are the places of a root's work folder, the best first: in the user's state
// folder, beside the root, inside the root.
func workPlaces(state, root string) []string {
	key := keyOf(root)
	return []string{filepath.Join(state, workName, key), filepath.Join(filepath.Dir(root), workName, key), filepath.Join(root, workName, key)}
}

// findWork returns the work folder of a root if there is one, else nil.
func findWork(state, root string) *work {
	for _, dir := range workPlaces(state, root) {
		if info, err := os.Lstat(dir); err == nil && info.IsDir() {
			return &work{dir: dir, root: root, step: func(string) error { return nil }}
		}
	}
	return nil
}

// makeWork returns the work folder of a root that exists. If there is none, it makes one at a
// place where files can be renamed into the root.
func makeWork(state, root string) (*work, error) {
	if w := findWork(state, root); w != nil {
		return w, w.makeDirs()
	}
	var errs error
	for _, dir := range workPlaces(state, root) {
		err := os.MkdirAll(filepath.Dir(dir), 0o700)
		if err == nil {
			err = os.Mkdir(dir, 0o700)
		}
		if err == nil {
			if err = canRename(dir, root); err == nil {
				w := &work{dir: dir, root: root, step: func(string) error { return nil }}
				return w, errors.Join(w.hide(), w.makeDirs())
			}
			_ = os.Remove(dir)
			_ = os.Remove(filepath.Dir(dir)) // if nobody else's
		}
		errs = errors.Join(errs, err)
	}
	return nil, errs
}

func (w *work) makeDirs() error {
	for _, name := range []string{"stage", "backups"} {
		if err := os.Mkdir(filepath.Join(w.dir, name), 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	return nil
}

// hide keeps git from listing the folder if it is in a repository.
func (w *work) hide() error {
	file := filepath.Join(filepath.Dir(w.dir), ".gitignore")
	if _, err := os.Lstat(file); err == nil {
		return nil
	}
	return os.WriteFile(file, []byte("*\n"), 0o600)
}

// canRename tries to move a file from the folder dir to the folder root. Two mounts of one
// file system look alike, but no file can be moved between them.
func canRename(dir, root string) error {
	f, err := os.CreateTemp(dir, "probe-*")
	if err != nil {
		return err
	}
	_ = f.Close()
	target := filepath.Join(root, workName+"-"+filepath.Base(dir))
	if err := os.Rename(f.Name(), target); err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return os.Remove(target)
}

// sweep removes what was staged long ago and never used.
func (w *work) sweep() error {
	info, err := os.Stat(filepath.Join(w.dir, "stage"))
	if err != nil || info.ModTime().After(time.Now().Add(-keepStaged)) {
		return nil
	}
	return w.unstage()
}

// unstage forgets everything that is staged.
func (w *work) unstage() error {
	return errors.Join(removeAll(filepath.Join(w.dir, "left")), removeAll(filepath.Join(w.dir, "stage")), w.makeDirs())
}

// removeAll deletes a folder of ours, even if a mode in it forbids that.
func removeAll(dir string) error {
	if err := os.RemoveAll(dir); err == nil {
		return nil
	}
	_ = filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if d != nil && d.IsDir() {
			_ = os.Chmod(name, 0o700)
		}
		return nil
	})
	return os.RemoveAll(dir)
}

// stageName is the name that a file or link is staged under. The same entry gives the same
// name, so that a later attempt finds it.
func stageName(e *Entry) string {
	return keyOf(e.Path, fmt.Sprint(e.Size, e.Mtime), e.Target) + keyOf(e.Target, e.Path)
}

// Backup describes what one sync replaced and deleted.
type Backup struct {
	ID      string    `json:"id"`
	Time    time.Time `json:"time"`
	Verb    string    `json:"verb"` // push, pull, undo
	Changes int64     `json:"changes"`
	Bytes   int64     `json:"bytes"` // of what is kept
}

// backups lists the backups, the newest first.
func (w *work) backups() ([]Backup, error) {
	entries, err := os.ReadDir(filepath.Join(w.dir, "backups"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var list []Backup
	for _, e := range slices.Backward(entries) {
		text, err := os.ReadFile(filepath.Join(w.dir, "backups", e.Name(), "info"))
		var b Backup
		if err == nil && json.Unmarshal(text, &b) == nil && b.ID == e.Name() {
			list = append(list, b)
		}
	}
	return list, nil
}

// prune removes all backups but the newest, and what is left of unfinished ones.
func (w *work) prune() error {
	entries, err := os.ReadDir(filepath.Join(w.dir, "backups"))
	kept := 0
	for _, e := range slices.Backward(entries) {
		dir := filepath.Join(w.dir, "backups", e.Name())
		if _, missing := os.Lstat(filepath.Join(dir, "info")); missing == nil && kept < keepBackups {
			kept++
		} else {
			err = errors.Join(err, os.RemoveAll(dir))
		}
	}
	return err
}

func (w *work) backupDir(id string) string { return filepath.Join(w.dir, "backups", id) }

var backupID = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[0-9A-Za-z][0-9A-Za-z.-]{0,63}$`) })

// checkID refuses text that is not a backup's id: an id becomes the name of a file.
func checkID(id string) error {
	if !backupID().MatchString(id) {
		return failedf(CodeUsage, hintBackups, "%q is not the id of a backup", id)
	}
	return nil
}

// journal says which operations are being carried out.
type journal struct {
	ID   string `json:"id"`
	Back bool   `json:"back"` // they are being taken back
	Kept bool   `json:"kept"` // they are, and the backup is to be listed because of what it keeps
}

// readJournal returns nil if no operation is under way.
func (w *work) readJournal() (*journal, error) {
	text, err := os.ReadFile(filepath.Join(w.dir, "journal"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var j journal
	if err == nil {
		err = json.Unmarshal(text, &j)
	}
	if err == nil {
		err = checkID(j.ID)
	}
	return &j, err
}

// writeJournal writes the journal. From then on the operations will be carried out, whatever
// happens.
func (w *work) writeJournal(j journal) error {
	if err := w.draftJournal(j); err != nil {
		return err
	}
	if err := syncFile(w.draft()); err != nil {
		return err
	}
	return w.placeJournal()
}

// draft is the journal's name before it counts.
func (w *work) draft() string { return filepath.Join(w.dir, "journal.new") }

func (w *work) draftJournal(j journal) error {
	text, err := json.Marshal(j)
	if err != nil {
		return err
	}
	return os.WriteFile(w.draft(), text, 0o600)
}

// placeJournal makes the draft, which is durable, the journal.
func (w *work) placeJournal() error {
	if err := w.step("write journal"); err != nil {
		return err
	}
	if err := os.Rename(w.draft(), filepath.Join(w.dir, "journal")); err != nil {
		return err
	}
	return syncFile(w.dir)
}

// syncFile makes a file, or the names in a folder, durable.
func syncFile(name string) error {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// endJournal says that the operations are done, or taken back.
func (w *work) endJournal() error {
	if err := w.step("remove journal"); err != nil {
		return err
	}
	// If a power cut brings it back, all its operations are found done.
	return os.Remove(filepath.Join(w.dir, "journal"))
}

// syncAll makes everything durable that was written to the file system of dir.
func syncAll(dir string) error {
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := unix.Syncfs(fd); err != nil && err != unix.ENOSYS {
		return err
	}
	return nil
}
