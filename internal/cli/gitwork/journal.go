package gitwork

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/cove-dev/cove/internal/lib/atomicfile"
	"github.com/cove-dev/cove/internal/lib/printable"
)

// A fast-forward of a checked-out branch changes three things: files, index, ref.
// A process killed in between must not leave them at odds for good. So:
//
//  1. "journal": the plan of all changes is written, and is on the disk.
//  2. "lock": index.lock is made, with our mark in it. From here to the end no
//     other git changes the index, begins a commit or checks anything out there. The
//     branch and HEAD are read again: until now, another git could change them.
//  3. "files": git reads the new tree into a copy of the index and changes the
//     files. It was checked before that all of them are as in the old commit; git
//     checks it again. The git process inherits the repository's lock, so that
//     nobody recovers while it still runs.
//  4. "index": the copy becomes the index, by one rename. The index from before keeps
//     a name of its own.
//  5. "ref": the branch is moved, by compare-and-swap. A commit that began before 2 can
//     still move it first, because git moves a branch without index.lock. Then all is
//     undone.
//  6. "unlock": index.lock goes, then the journal.
//
// The next process that holds the repository's lock and finds the journal recovers.
// If the index is the new one (killed after 4), it goes forward: it does 5 and 6. If
// the branch was moved before 5, it puts the index from before in place, and goes back.
// In all other cases it goes back, too. It restores each changed path that is not as in
// the old commit, but only if cove made its content. Such a path is missing, is as in the
// new commit, or has the beginning of that. Anything else the person has edited
// since, and it stays. Recovery may itself be killed, and done again.
//
// A job that began with a snapshot of uncommitted changes can be applied on top of
// just these. From is then that snapshot: the files are as in it, and not as in the
// old commit. The copy of the index is first made to match the snapshot. If the
// fast-forward is undone, the index stays what it was.
type journal struct {
	Job      string `json:"job"`
	Why      string `json:"why"` // the command
	Ref      string `json:"ref"`
	Old      string `json:"old"`
	From     string `json:"from,omitempty"` // the commit that the files were as in; empty: Old
	New      string `json:"new"`
	Worktree string `json:"worktree"`
	GitDir   string `json:"git_dir"`
	Mark     string `json:"mark"` // the content of our index.lock

	// Same are the paths of new files that were there already, untracked, and as in New. They
	// are the person's, and stay when all else is undone. They are bytes: JSON would change
	// names that are no UTF-8.
	Same [][]byte `json:"same,omitempty"`
}

var (
	errIndexLocked       = errors.New("index.lock exists")
	errMoved             = errors.New("the branch, HEAD or a file in the way was changed meanwhile")
	errSwitched          = errors.New("another branch was checked out while the files were written")
	errOtherThanSnapshot = errors.New("the files are not as in the snapshot")
)

// from is the commit that the files were as in.
func (j *journal) from() string { return cmp.Or(j.From, j.Old) }

func (j *journal) lockFile() string { return filepath.Join(j.GitDir, "index.lock") }
func (j *journal) index() string    { return filepath.Join(j.GitDir, "index") }
func (j *journal) copy() string     { return filepath.Join(j.GitDir, "cove-index") }
func (j *journal) was() string      { return j.copy() + ".was" } // the index from before

func (r *Repo) journalFile() string { return filepath.Join(r.CommonDir, "cove", "journal") }

// write puts the journal on the disk.
func (j *journal) write(path string) error {
	j.Mark = "cove: a pull of job " + j.Job + " is under way, or was killed; the next cove pull ends it\n" + rand.Text() + "\n"
	data, err := json.Marshal(j)
	if err != nil {
		return err
	}
	return atomicfile.Write(path, data, 0o600)
}

// carryOut does the six steps. After an error the caller recovers.
func (t *worktree) carryOut(ctx context.Context, lock *Lock, j *journal) error {
	t.step("journal")
	if err := j.write(t.journalFile()); err != nil {
		return fmt.Errorf("write journal: %w", err)
	}
	t.step("lock")
	if err := j.takeIndex(); err != nil {
		return err
	}
	if err := t.unmoved(ctx, j); err != nil {
		return err
	}
	t.step("files")
	if err := copyIndex(j.index(), j.copy()); err != nil {
		return err
	}
	if j.From != "" {
		if err := t.asSnapshot(ctx, j); err != nil {
			return err
		}
	}
	if err := t.addSame(ctx, j); err != nil {
		return err
	}
	if err := t.stillFree(ctx, j); err != nil {
		return err
	}
	_, err := t.git.run(ctx, call{
		args:    []string{"read-tree", "-m", "-u", j.from(), j.New},
		env:     []string{"GIT_INDEX_FILE=" + j.copy()},
		files:   []*os.File{lock.file},
		timeout: patiently,
	})
	if err != nil {
		return err
	}
	// A switch of branches that had let go of index.lock before may have come to its end.
	if on, err := t.isOn(ctx, j.Ref); err != nil || !on {
		return cmp.Or(err, errSwitched)
	}
	t.step("index")
	if err := j.keepIndex(); err != nil {
		return err
	}
	if err := os.Rename(j.copy(), j.index()); err != nil {
		return err
	}
	t.step("ref")
	if err := t.moveRef(ctx, j.Why, j.Ref, j.Old, j.New); err != nil {
		return err
	}
	t.step("unlock")
	return j.end(t.journalFile())
}

// unmoved checks that the plan still holds: the branch is where it was, it is checked out,
// and no merge or rebase is under way. Else the error is errMoved.
func (t *worktree) unmoved(ctx context.Context, j *journal) error {
	now, err := t.Resolve(ctx, j.Ref)
	if err != nil {
		return err
	}
	on, err := t.isOn(ctx, j.Ref)
	if err != nil {
		return err
	}
	if now != j.Old || !on || t.busyWith(j.Ref) != "" {
		return errMoved
	}
	return nil
}

// stillFree checks that no untracked file has come where the job adds one. Git itself would
// overwrite an ignored file. If there is one, the error is errMoved.
func (t *worktree) stillFree(ctx context.Context, j *journal) error {
	files, err := t.changedFiles(ctx, j.from(), j.New)
	if err != nil {
		return err
	}
	tracked, err := t.tracked(ctx, "GIT_INDEX_FILE="+j.copy())
	if err != nil {
		return err
	}
	if unknown, err := t.strangers(files, tracked); err != nil || len(unknown) > 0 {
		return cmp.Or(err, errMoved)
	}
	return nil
}

// keepIndex gives the index, if there is one, another name.
func (j *journal) keepIndex() error {
	if err := os.Remove(j.was()); err != nil && !isNotExist(err) {
		return err
	}
	err := os.Link(j.index(), j.was())
	if err == nil || isNotExist(err) {
		return nil
	}
	return copyIndex(j.index(), j.was()) // Linux may refuse a link to a file of another user's
}

// isOn reports whether the work tree has the branch ref checked out.
func (t *worktree) isOn(ctx context.Context, ref string) (bool, error) {
	head, err := t.git.text(ctx, "symbolic-ref", "-q", "HEAD")
	if exitCode(err) == 1 { // detached
		return false, nil
	}
	return head == ref, err
}

// asSnapshot makes the copy of the index match the snapshot, if the files do.
func (t *worktree) asSnapshot(ctx context.Context, j *journal) error {
	if kept, err := t.stagedIn(ctx, j.Old, j.From); err != nil || !kept { // another git may have staged more
		return cmp.Or(err, errOtherThanSnapshot)
	}
	tree, err := t.addAll(ctx, j.copy())
	if errors.Is(err, ErrFiltered) {
		return errOtherThanSnapshot
	}
	if err != nil {
		return err
	}
	want, err := t.git.text(ctx, "rev-parse", "--verify", "--end-of-options", j.From+"^{tree}")
	if err == nil && want != tree {
		return errOtherThanSnapshot
	}
	return err
}

// takeIndex makes index.lock with our mark in it, in one step.
func (j *journal) takeIndex() error {
	mine := j.copy() + ".mark"
	if err := atomicfile.Write(mine, []byte(j.Mark), 0o600); err != nil {
		return err
	}
	defer func() { _ = os.Remove(mine) }()
	err := os.Link(mine, j.lockFile())
	if os.IsExist(err) {
		return errIndexLocked
	}
	return err
}

// holds reports whether index.lock is there and ours.
func (j *journal) holds() bool {
	f, err := os.Open(j.lockFile())
	if err != nil {
		return false
	}
	defer func() { _ = f.Close() }()
	data, err := io.ReadAll(io.LimitReader(f, 4096))
	return err == nil && string(data) == j.Mark
}

// end removes what is ours, the journal last.
func (j *journal) end(path string) error {
	for _, name := range []string{j.copy(), j.was(), j.copy() + ".lock", j.copy() + ".mark"} {
		if err := os.Remove(name); err != nil && !isNotExist(err) {
			return err
		}
	}
	if j.holds() {
		if err := os.Remove(j.lockFile()); err != nil && !isNotExist(err) {
			return err
		}
	}
	return os.Remove(path)
}

// Recover completes or undoes a fast-forward whose process was killed. It says in a
// sentence what it did; empty: there was none. The caller holds lock.
func (r *Repo) Recover(ctx context.Context, lock *Lock) (string, error) {
	data, err := os.ReadFile(r.journalFile())
	if isNotExist(err) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("recover an interrupted pull: %w", err)
	}
	j := &journal{}
	if err := json.Unmarshal(data, j); err != nil || j.Mark == "" {
		// Only a whole journal is ever renamed into place.
		return "", fmt.Errorf("recover an interrupted pull: %s is damaged; look at git status, then delete it", printable.Name(r.journalFile()))
	}
	done, err := r.recover(context.WithoutCancel(ctx), lock, j)
	if err == nil {
		err = j.end(r.journalFile())
	}
	if err != nil {
		return "", fmt.Errorf("recover the interrupted pull of job %s: %w", j.Job, err)
	}
	return done, nil
}

func (r *Repo) recover(ctx context.Context, lock *Lock, j *journal) (string, error) {
	if !exists(j.Worktree) || !exists(j.GitDir) {
		return "an interrupted pull was in a work tree that is gone", nil
	}
	t, err := r.at(ctx, j.Worktree)
	if errors.Is(err, ErrNotRepository) {
		return "an interrupted pull was in a work tree that is gone", nil
	}
	if err != nil {
		return "", err
	}
	now, err := t.Resolve(ctx, j.Ref)
	if err != nil {
		return "", err
	}
	if now == j.New {
		return fmt.Sprintf("the interrupted pull of job %s was already complete", j.Job), nil
	}
	changed := func() string {
		return fmt.Sprintf("a pull of job %s was interrupted, and the branch has been changed since: look at git status in %s", j.Job, printable.Name(j.Worktree))
	}
	if now != j.Old && !j.holds() { // with our lock there, files and index are as we left them
		return changed(), nil
	}
	if !j.holds() && exists(j.lockFile()) {
		return "", fmt.Errorf("%w: another git is at work in %s", errIndexLocked, printable.Name(j.Worktree))
	}
	files, err := t.changedFiles(ctx, j.Old, j.New)
	if err != nil {
		return "", err
	}
	is, err := t.indexIs(ctx, files)
	if err != nil {
		return "", err
	}
	on, err := t.isOn(ctx, j.Ref)
	switch {
	case err != nil:
		return "", err
	case is == "new" && (now != j.Old || !on):
		if err := os.Rename(j.was(), j.index()); isNotExist(err) {
			return changed(), nil
		} else if err != nil {
			return "", err
		}
		return t.undo(ctx, lock, j)
	case is == "new":
		if err := t.moveRef(ctx, j.Why, j.Ref, j.Old, j.New); err != nil {
			return "", err
		}
		return fmt.Sprintf("the interrupted pull of job %s has been completed", j.Job), nil
	case j.From != "" && j.holds():
		return t.undo(ctx, lock, j)
	case is == "other":
		return fmt.Sprintf("a pull of job %s was interrupted, and the index has been changed since: look at git status in %s", j.Job, printable.Name(j.Worktree)), nil
	}
	if !j.holds() {
		if err := j.takeIndex(); err != nil {
			return "", err
		}
	}
	return t.undo(ctx, lock, j)
}

// undo puts the files back.
func (t *worktree) undo(ctx context.Context, lock *Lock, j *journal) (string, error) {
	files, err := t.changedFiles(ctx, j.from(), j.New)
	if err != nil {
		return "", err
	}
	if err := t.putBack(ctx, lock, j, files); err != nil {
		return "", err
	}
	return fmt.Sprintf("the interrupted pull of job %s has been undone", j.Job), nil
}

// indexIs says which commit the index agrees with, for the changed files: "old",
// "new" or "other".
func (t *worktree) indexIs(ctx context.Context, files []File) (string, error) {
	var out bytes.Buffer
	if _, err := t.git.run(ctx, call{args: []string{"ls-files", "-s", "-z"}, stdout: &out}); err != nil {
		return "", err
	}
	entries := map[string]string{} // path to "MODE BLOB"
	for line := range strings.SplitSeq(out.String(), "\x00") {
		if what, path, ok := strings.Cut(line, "\t"); ok {
			entries[path] = strings.TrimSuffix(what, " 0")
		}
	}
	isOld, isNew := true, true
	for _, f := range files {
		have := entries[f.Path]
		isOld = isOld && have == entry(f.oldMode, f.oldBlob)
		isNew = isNew && have == entry(f.mode, f.blob)
	}
	switch {
	case isOld:
		return "old", nil
	case isNew:
		return "new", nil
	}
	return "other", nil
}

func entry(mode, blob string) string {
	if mode == "000000" {
		return ""
	}
	return mode + " " + blob
}

// putBack restores the files that we changed, and refreshes the index for them.
func (t *worktree) putBack(ctx context.Context, lock *Lock, j *journal, files []File) error {
	notOld, err := t.differs(ctx, j.from())
	if err != nil {
		return err
	}
	notNew, err := t.differs(ctx, j.New)
	if err != nil {
		return err
	}
	root, err := os.OpenRoot(t.Dir)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	var restore bytes.Buffer
	for _, f := range files {
		if j.isSame(f.Path) {
			continue
		}
		if f.Status == "A" {
			if err := t.takeAway(ctx, root, f, notNew[f.Path]); err != nil {
				return err
			}
			continue
		}
		if !notOld[f.Path] {
			continue
		}
		ours := f.Status != "D" && !notNew[f.Path]
		if !ours {
			if ours, err = t.begun(ctx, root, f); err != nil {
				return err
			}
		}
		if ours {
			restore.WriteString(f.Path + "\x00")
		}
	}
	if err := os.Remove(j.copy() + ".lock"); err != nil && !isNotExist(err) { // of a git that was killed
		return err
	}
	if j.From == "" {
		err = copyIndex(j.index(), j.copy())
	} else if err = os.Remove(j.copy()); err == nil || isNotExist(err) {
		_, err = t.git.run(ctx, call{args: []string{"read-tree", j.From}, env: []string{"GIT_INDEX_FILE=" + j.copy()}, timeout: patiently})
	}
	if err != nil {
		return err
	}
	_, err = t.git.run(ctx, call{
		args:    []string{"checkout-index", "-f", "-u", "-z", "--stdin"},
		stdin:   &restore,
		env:     []string{"GIT_INDEX_FILE=" + j.copy()},
		files:   []*os.File{lock.file},
		timeout: patiently,
	})
	if err != nil || j.From != "" {
		return err
	}
	return os.Rename(j.copy(), j.index())
}

// differs is the set of a commit's paths whose files differ from the commit.
func (t *worktree) differs(ctx context.Context, commit string) (map[string]bool, error) {
	index, err := tempFile(filepath.Join(t.CommonDir, "cove", "tmp"), "index-")
	if err != nil {
		return nil, err
	}
	defer index.remove()
	if err := os.Remove(index.Name()); err != nil { // an empty file is no index
		return nil, err
	}
	env := []string{"GIT_INDEX_FILE=" + index.Name()}
	if _, err := t.git.run(ctx, call{args: []string{"read-tree", commit}, env: env, timeout: patiently}); err != nil {
		return nil, err
	}
	// Exit code 1 says that something differs.
	if _, err := t.git.run(ctx, call{args: []string{"update-index", "-q", "--refresh"}, env: env, timeout: patiently}); err != nil && exitCode(err) != 1 {
		return nil, err
	}
	out, err := t.git.run(ctx, call{args: []string{"diff-files", "-z", "--name-only", "--no-ext-diff", "--ignore-submodules"}, env: env, timeout: patiently})
	if err != nil {
		return nil, err
	}
	set := map[string]bool{}
	for path := range strings.SplitSeq(string(out), "\x00") {
		set[path] = true
	}
	return set, nil
}

// takeAway deletes a file that we added, if it is of our making, and the folders
// that are empty without it.
func (t *worktree) takeAway(ctx context.Context, root *os.Root, f File, notNew bool) error {
	if _, err := root.Lstat(f.Path); err != nil {
		return nil // not there, or not reachable without leaving the tree: not ours
	}
	if notNew {
		if ours, err := t.begun(ctx, root, f); err != nil || !ours {
			return err
		}
	}
	if err := root.Remove(f.Path); err != nil && !isNotExist(err) {
		return err
	}
	for dir := filepath.Dir(f.Path); dir != "."; dir = filepath.Dir(dir) {
		if root.Remove(dir) != nil { // not empty
			break
		}
	}
	return nil
}

// begun reports whether a path is missing, or its content is the beginning of
// what the new commit has there.
func (t *worktree) begun(ctx context.Context, root *os.Root, f File) (bool, error) {
	info, err := root.Lstat(f.Path)
	if isNotExist(err) {
		return true, nil
	}
	if err != nil || !info.Mode().IsRegular() || f.Status == "D" {
		return false, nil
	}
	if info.Size() == 0 {
		return true, nil
	}
	file, err := root.Open(f.Path)
	if err != nil {
		return false, nil
	}
	defer func() { _ = file.Close() }()
	cmp := &beginning{r: file}
	_, err = t.git.run(ctx, call{
		args:   []string{"cat-file", "--filters", "--path=" + f.Path, f.blob},
		stdout: cmp, timeout: time.Minute,
	})
	if errors.Is(err, errDiffers) {
		return false, nil
	}
	return err == nil && cmp.ended(), err
}

// beginning compares the bytes that are written to it with those of r, until r ends.
type beginning struct {
	r    io.Reader
	over bool // r has ended
}

var errDiffers = errors.New("the file differs")

func (b *beginning) Write(p []byte) (int, error) {
	if b.over {
		return len(p), nil
	}
	have := make([]byte, len(p))
	n, err := io.ReadFull(b.r, have)
	if !bytes.Equal(have[:n], p[:n]) {
		return 0, errDiffers
	}
	if err == io.EOF || err == io.ErrUnexpectedEOF {
		b.over = true
	} else if err != nil {
		return 0, err
	}
	return len(p), nil
}

// ended reports whether r has nothing beyond what was compared.
func (b *beginning) ended() bool {
	if b.over {
		return true
	}
	var one [1]byte
	_, err := io.ReadFull(b.r, one[:])
	return err == io.EOF
}
