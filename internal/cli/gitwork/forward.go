package gitwork

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/cove-dev/cove/internal/lib/printable"
)

// Forward is a fast-forward that a job asks for.
type Forward struct {
	Job    string
	Branch string // short name, as recorded when the job was pushed
	Base   string // the commit that the job started from
	Head   string // the commit to move to; it is in the repository
	Again  string // the command that tries it again; empty: cove pull JOB

	// Hold, if not nil, is called before the branch moves. It returns the changes that a
	// person must look at first; if there are any, the error is a *RefusedError.
	Hold func(ctx context.Context, old, head string) ([]Risk, error)
}

func (f Forward) again() string { return cmp.Or(f.Again, "cove pull "+f.Job) }

func (f Forward) ref() string { return "refs/heads/" + f.Branch }

// FastForward moves the job's branch, never another one, to its head. It moves the ref
// by compare-and-swap. If the branch is checked out, it also changes index and files of
// that work tree. It reports whether the branch had head already. If the branch can't be
// moved, it is as it was, and the error is a *RefusedError. The caller holds lock.
func (r *Repo) FastForward(ctx context.Context, lock *Lock, f Forward) (already bool, err error) {
	for range maxBeginnings {
		already, err = f.once(ctx, r, lock)
		if !errors.Is(err, errMoved) {
			return already, err
		}
	}
	return false, f.refuse("changed", fmt.Sprintf("the branch %s is being changed", printable.Name(f.Branch)), f.again())
}

// maxBeginnings bounds how often a fast-forward begins again because the repository was changed
// meanwhile.
const maxBeginnings = 3

// once is one try of FastForward. If what it looked at is so no longer, it changes
// nothing, and the error is errMoved.
func (f Forward) once(ctx context.Context, r *Repo, lock *Lock) (already bool, err error) {
	old, err := r.Resolve(ctx, f.ref())
	if err != nil {
		return false, err
	}
	if old == "" {
		return false, f.refuse("branch_gone", fmt.Sprintf("the branch %s does not exist any more", printable.Name(f.Branch)),
			"git branch "+printable.Word(f.Branch)+" "+JobRef(f.Job, "head"))
	}
	if had, err := r.ancestor(ctx, f.Head, old); err != nil || had {
		return had, err
	}
	if can, err := r.ancestor(ctx, old, f.Head); err != nil {
		return false, err
	} else if !can {
		return false, r.movedOn(ctx, f, old)
	}
	if err := f.hold(ctx, old); err != nil {
		return false, err
	}
	tree, err := r.whereChecked(ctx, f)
	if err != nil {
		return false, err
	}
	if tree == nil {
		r.step("ref")
		err := r.moveRef(ctx, f.again(), f.ref(), old, f.Head)
		if now, nowErr := r.Resolve(ctx, f.ref()); err != nil && nowErr == nil && now != old {
			return false, errMoved
		}
		return false, err
	}
	return false, tree.apply(ctx, lock, f, old)
}

// rebaseByHand is the command that rebases the job's commits on a branch of their own.
// The person can then resolve conflicts.
func (f Forward) rebaseByHand() string {
	return fmt.Sprintf("git switch -c cove-%[1]s %[2]s && git rebase --onto %[3]s %[4]s", f.Job, JobRef(f.Job, "head"), printable.Word(f.Branch), JobRef(f.Job, "base"))
}

// refuse makes the error, with the ways on from there.
func (f Forward) refuse(code, reason string, next ...string) *RefusedError {
	return &RefusedError{Code: code, Reason: reason, Ref: JobRef(f.Job, "head"), Next: next}
}

// Refuse is the error for a fast-forward that is not tried, with the commands that
// bring the commits in by hand.
func (f Forward) Refuse(code, reason string) *RefusedError {
	return f.refuse(code, reason, Ways(f.Job, f.Branch)...)
}

// hold is the error for changes that the person must look at first; nil: there are none.
func (f Forward) hold(ctx context.Context, old string) error {
	if f.Hold == nil {
		return nil
	}
	held, err := f.Hold(ctx, old, f.Head)
	if err != nil || len(held) == 0 {
		return err
	}
	e := f.refuse("risky", "held for your review: it changes files that could run code on this machine")
	look := "cove job diff " + f.Job + " --"
	for _, risk := range held {
		if !slices.Contains(e.Paths, risk.Path) {
			e.Paths = append(e.Paths, risk.Path)
			look += " " + printable.Word(risk.Path)
		}
	}
	if len(e.Paths) > maxNamed || slices.ContainsFunc(e.Paths, func(p string) bool { return printable.Name(p) != p }) {
		look = "cove job diff " + f.Job
	}
	e.Next = []string{look, f.again() + acceptRisky}
	return e
}

// accepting adds --accept-risky to the cove job commands among ways, if the job has risky
// changes: such a command would hold them, too. If f.Again does not have the flag, the person
// has not accepted the changes, and the command that shows them comes first.
func (f Forward) accepting(ctx context.Context, old string, ways []string) []string {
	own := func(way string) bool { return strings.HasPrefix(way, "cove job ") }
	if !slices.ContainsFunc(ways, own) {
		return ways
	}
	var look []string
	if !strings.HasSuffix(f.Again, acceptRisky) {
		risky, ok := errors.AsType[*RefusedError](f.hold(ctx, old))
		if !ok {
			return ways
		}
		look = risky.Next[:1]
	}
	ways = slices.Clone(ways)
	for i, way := range ways {
		if own(way) {
			ways[i] += acceptRisky
		}
	}
	return append(look[:len(look):len(look)], ways...)
}

const acceptRisky = " --accept-risky"

// maxNamed bounds the files that a command names.
const maxNamed = 10

// Ways are the commands that bring a job's commits into their branch. If branch is empty,
// they bring them into a new branch, or into the one that is checked out.
func Ways(job, branch string) []string {
	ref := JobRef(job, "head")
	if branch == "" {
		return []string{"git switch -c cove-" + job + " " + ref, "git merge " + ref}
	}
	return []string{
		"cove job merge " + job, "cove job rebase " + job, "git branch cove-" + job + " " + ref,
	}
}

// ancestor reports whether commit a is b or in b's history.
func (r *Repo) ancestor(ctx context.Context, a, b string) (bool, error) {
	_, err := r.git.text(ctx, "merge-base", "--is-ancestor", a, b)
	if exitCode(err) == 1 {
		return false, nil
	}
	return err == nil, err
}

// Has reports whether a branch has a commit in its history. One that is not there has none.
func (r *Repo) Has(ctx context.Context, branch, commit string) (bool, error) {
	head, err := r.Resolve(ctx, "refs/heads/"+branch)
	if err != nil || head == "" {
		return false, err
	}
	return r.ancestor(ctx, commit, head)
}

// movedOn is the refusal for a branch that is not in the history of head. It also tries
// out a merge, if git can do so without a work tree (2.38).
func (r *Repo) movedOn(ctx context.Context, f Forward, old string) error {
	e := f.refuse("branch_moved", fmt.Sprintf("the branch %s has moved on since the job started", printable.Name(f.Branch)), Ways(f.Job, f.Branch)...)
	defer func() { e.Next = f.accepting(ctx, old, e.Next) }()
	if had, err := r.ancestor(ctx, f.Base, old); err == nil && !had { // base is a snapshot, or the branch was rewritten
		e.Reason = fmt.Sprintf("the job started from %.12s, which is not in the branch %s", f.Base, printable.Name(f.Branch))
		e.Next = append([]string{"cove job rebase " + f.Job}, slices.DeleteFunc(e.Next, func(next string) bool { return next == "cove job rebase "+f.Job })...)
	}
	if r.major == 2 && r.minor < 38 {
		return e
	}
	s, err := r.scratch(ctx)
	if err != nil {
		return e // the preview is a courtesy
	}
	defer s.remove()
	out, err := s.git.run(ctx, call{args: []string{"merge-tree", "--write-tree", "--name-only", "--no-messages", "-z", old, f.Head}, timeout: patiently})
	switch {
	case err == nil:
		e.Merges = true
	case exitCode(err) == 1:
		names := strings.Split(strings.TrimSuffix(string(out), "\x00"), "\x00")
		e.Conflicts = slices.Compact(names[1:]) // after the tree
		e.Next = []string{
			"git switch " + printable.Word(f.Branch) + " && git merge " + JobRef(f.Job, "head"),
			f.rebaseByHand(), "git branch cove-" + f.Job + " " + JobRef(f.Job, "head"),
		}
	}
	return e
}

// moveRef moves a branch if it is still at old. The reflog gets why.
func (r *Repo) moveRef(ctx context.Context, why, ref, old, head string) error {
	_, err := r.git.text(ctx, "update-ref", "-m", why+": fast-forward", ref, head, old)
	if err != nil {
		return fmt.Errorf("move %s: %w", printable.Name(ref), err)
	}
	return nil
}

// worktree is one work tree of the repository, with the repository as seen from
// there.
type worktree struct {
	*Repo
	other bool // than the one that the repository was opened in
}

// whereChecked finds the work tree that has the branch checked out; nil if none has.
// During a rebase of the branch, a work tree has no branch, but will need it again:
// that is refused.
func (r *Repo) whereChecked(ctx context.Context, f Forward) (*worktree, error) {
	args := []string{"worktree", "list", "--porcelain"}
	end := "\n"
	if r.major > 2 || r.minor >= 36 {
		args, end = append(args, "-z"), "\x00"
	}
	out, err := r.git.run(ctx, call{args: args})
	if err != nil {
		return nil, fmt.Errorf("list work trees: %w", err)
	}
	var found *worktree
	for entry := range strings.SplitSeq(string(out), end+end) {
		path, _, _ := strings.Cut(strings.TrimPrefix(entry, "worktree "), end)
		if path == "" || !exists(path) {
			continue
		}
		has := slices.Contains(strings.Split(entry, end), "branch "+f.ref())
		if !has && !strings.Contains(entry, end+"detached") {
			continue
		}
		tree, err := r.at(ctx, path)
		if errors.Is(err, ErrNotRepository) || err == nil && tree.Bare {
			continue
		}
		if err != nil {
			return nil, err
		}
		if what := tree.busyWith(f.ref()); what != "" {
			return nil, f.refuse("in_progress", fmt.Sprintf("%s is in progress in %s", what, printable.Name(tree.Dir)),
				"git -C "+printable.Word(tree.Dir)+" status", f.again())
		}
		if has {
			found = tree
		}
	}
	return found, nil
}

// at opens another work tree of the same repository.
func (r *Repo) at(ctx context.Context, path string) (*worktree, error) {
	if path == r.Dir {
		return &worktree{Repo: r}, nil
	}
	other, err := Open(ctx, path)
	if err != nil {
		return nil, err
	}
	if other.CommonDir != r.CommonDir {
		return nil, ErrNotRepository
	}
	other.step = r.step
	return &worktree{other, true}, nil
}

// busyWith names an operation under way that the fast-forward of ref would
// disturb; empty if there is none.
func (t *worktree) busyWith(ref string) string {
	for _, dir := range []string{"rebase-merge", "rebase-apply"} {
		name, err := os.ReadFile(filepath.Join(t.GitDir, dir, "head-name"))
		if err == nil && strings.TrimSpace(string(name)) == ref {
			return "a rebase"
		}
	}
	head, err := os.ReadFile(filepath.Join(t.GitDir, "HEAD"))
	if err != nil || strings.TrimSpace(string(head)) != "ref: "+ref {
		return ""
	}
	for _, op := range []struct{ file, what string }{
		{"MERGE_HEAD", "a merge"}, {"CHERRY_PICK_HEAD", "a cherry-pick"}, {"REVERT_HEAD", "a revert"},
		{"rebase-merge", "a rebase"}, {"rebase-apply", "a rebase or am"}, {"sequencer", "a cherry-pick or revert"},
	} {
		if exists(filepath.Join(t.GitDir, op.file)) {
			return op.what
		}
	}
	return ""
}

// apply moves the branch together with index and files. The journal lets it survive a
// killed process. Once it has begun to write, it is not interrupted.
func (t *worktree) apply(ctx context.Context, lock *Lock, f Forward, old string) error {
	j := &journal{Job: f.Job, Why: f.again(), Ref: f.ref(), Old: old, New: f.Head, Worktree: t.Dir, GitDir: t.GitDir}
	files, err := t.changedFiles(ctx, old, f.Head)
	if err != nil {
		return err
	}
	if err := t.modulesInTheWay(ctx, f, files); err != nil {
		return err
	}
	inTheWay, err := t.inTheWay(ctx, files)
	if err != nil {
		return err
	}
	if j.Same, err = t.identical(ctx, files, inTheWay); err != nil {
		return err
	}
	inTheWay = slices.DeleteFunc(inTheWay, j.isSame)
	if len(inTheWay) > 0 {
		j.Same = nil // the snapshot has them, or they are in its way
		if j.From, err = t.snapshotted(ctx, f, old); err != nil {
			return err
		}
	}
	if len(inTheWay) > 0 && j.From == "" {
		return f.overlap(ctx, t, inTheWay)
	}
	ctx = context.WithoutCancel(ctx)
	err = t.carryOut(ctx, lock, j)
	if err == nil {
		return nil
	}
	if errors.Is(err, errIndexLocked) || errors.Is(err, errOtherThanSnapshot) || errors.Is(err, errMoved) { // nothing is done yet
		if err := j.end(t.journalFile()); err != nil {
			return err
		}
		switch {
		case errors.Is(err, errMoved):
			return err
		case errors.Is(err, errOtherThanSnapshot):
			return f.overlap(ctx, t, inTheWay)
		}
		return f.refuse("locked", "another git is at work in "+printable.Name(t.Dir)+", or was killed there and left index.lock behind",
			f.again())
	}
	if _, backErr := t.Recover(ctx, lock); backErr != nil {
		return errors.Join(err, backErr)
	}
	if moved := t.unmoved(ctx, j); errors.Is(moved, errMoved) {
		return moved
	}
	if exitCode(err) > 0 && !errors.Is(err, syscall.ENOSPC) {
		return f.refuse("changed", err.Error(), "git -C "+printable.Word(t.Dir)+" status", f.again())
	}
	return err
}

// overlap is the refusal for uncommitted files in the way. If the job's commits bring a
// snapshot of such files along, a stash could not be applied after them: its changes are
// committed by then.
func (f Forward) overlap(ctx context.Context, t *worktree, paths []string) error {
	was, err := t.ancestor(ctx, f.Base, f.ref())
	if err != nil {
		return err
	}
	with, err := t.ancestor(ctx, f.Base, f.Head)
	if err != nil {
		return err
	}
	next := []string{"cove job rebase " + f.Job}
	if was || !with {
		tracked, err := t.tracked(ctx)
		if err != nil {
			return err
		}
		next = t.makeWay(paths, tracked, f.again())
	}
	e := f.refuse("overlap", "uncommitted files are in the way in "+printable.Name(t.Dir), append(next, "git branch cove-"+f.Job+" "+JobRef(f.Job, "head"))...)
	e.Paths = paths
	return e
}

// maxMoved bounds the files that a command moves.
const maxMoved = 3

// makeWay is the command that moves the files in the way aside, and tries again. It is nil
// if it would be too long, or if a name is not printable. It stashes changes to tracked files,
// and restores them. A stash could not restore an untracked file over a new file of that name.
// So an untracked file is renamed, to the top of the work tree: its folder may be in the way.
func (t *worktree) makeWay(paths []string, tracked map[string]bool, again string) []string {
	git := "git"
	if t.other {
		git += " -C " + printable.Word(t.Dir)
	}
	var first, last []string
	moved := 0
	for _, path := range paths {
		switch {
		case !tracked[path]:
			moved++
			name := filepath.Join(t.Dir, filepath.FromSlash(path))
			first = append(first, "mv -n "+printable.Word(name)+" "+printable.Word(filepath.Join(t.Dir, filepath.Base(name)+".mine")))
			if printable.Name(name) != name {
				return nil
			}
		case last == nil:
			first, last = append(first, git+" stash"), []string{git + " stash pop"}
		}
	}
	if moved > maxMoved {
		return nil
	}
	return []string{strings.Join(slices.Concat(first, []string{again}, last), " && ")}
}

// snapshotted returns the job's base if the work tree may be as the job found it; else "".
// The base must be a snapshot on top of old. Each staged change must be in old or in the
// base, and no untracked file may be where the job adds one. Whether the files are as in the
// snapshot is checked when the index is locked, and the staged changes are checked again.
func (t *worktree) snapshotted(ctx context.Context, f Forward, old string) (string, error) {
	parent, err := t.Resolve(ctx, f.Base+"^")
	if err != nil || parent != old {
		return "", err
	}
	if kept, err := t.stagedIn(ctx, old, f.Base); err != nil || !kept {
		return "", err
	}
	files, err := t.changedFiles(ctx, f.Base, f.Head)
	if err != nil {
		return "", err
	}
	tracked := map[string]bool{}
	w := &recordWriter{each: func(path string) { tracked[path] = true }}
	if _, err := t.git.run(ctx, call{args: []string{"ls-tree", "-r", "-z", "--name-only", "--full-tree", f.Base}, stdout: w, timeout: patiently}); err != nil {
		return "", err
	}
	if ignored, err := t.strangers(files, tracked); err != nil || len(ignored) > 0 {
		return "", err
	}
	return f.Base, nil
}

// stagedIn reports whether each staged change is in old or in the snapshot base. Another one
// would be lost when the index is made to match the snapshot.
func (t *worktree) stagedIn(ctx context.Context, old, base string) (bool, error) {
	files, err := t.changedFiles(ctx, old, base)
	if err != nil {
		return false, err
	}
	known := map[string]bool{}
	for _, file := range files {
		known[file.Path+"\x00"+entry(file.mode, file.blob)] = true
		known[file.Path+"\x00"+entry(file.oldMode, file.oldBlob)] = true
	}
	out, err := t.git.run(ctx, call{args: []string{"diff-index", "--cached", "-z", "--no-renames", "--no-abbrev", "--no-ext-diff", "--ignore-submodules=none", old}, timeout: patiently})
	if err != nil {
		return false, err
	}
	staged, err := parseDiff(string(out))
	if err != nil {
		return false, err
	}
	for _, file := range staged {
		if !known[file.Path+"\x00"+entry(file.mode, file.blob)] {
			return false, nil
		}
	}
	return true, nil
}

// changedFiles lists the changes between two commits by path.
func (r *Repo) changedFiles(ctx context.Context, old, head string) ([]File, error) {
	s, err := r.scratch(ctx)
	if err != nil {
		return nil, err
	}
	defer s.remove()
	return s.diff(ctx, old, head)
}

// inTheWay lists the person's files that a change of files would overwrite: those with
// uncommitted changes, and untracked ones, even ignored. Unmerged files are always listed.
func (t *worktree) inTheWay(ctx context.Context, files []File) ([]string, error) {
	touched := map[string]bool{}
	for _, f := range files {
		touched[f.Path] = true
	}
	dirty, err := t.changes(ctx)
	if err != nil {
		return nil, err
	}
	var hit []string
	for _, c := range dirty {
		if c.unmerged || !c.untracked && touched[c.path] {
			hit = append(hit, c.path)
		}
	}
	tracked, err := t.tracked(ctx)
	if err != nil {
		return nil, err
	}
	unknown, err := t.strangers(files, tracked)
	for _, path := range unknown {
		if !slices.Contains(hit, path) {
			hit = append(hit, path)
		}
	}
	return hit, err
}

// strangers lists the untracked files and folders in the places of files to add.
func (t *worktree) strangers(files []File, tracked map[string]bool) ([]string, error) {
	root, err := os.OpenRoot(t.Dir)
	if err != nil {
		return nil, err
	}
	defer func() { _ = root.Close() }()
	var hit []string
	seen := map[string]bool{}
	for _, f := range files {
		if f.Status != "A" {
			continue
		}
		if path := stranger(root, f.Path, tracked); path != "" && !seen[path] {
			seen[path] = true
			hit = append(hit, path)
		}
	}
	return hit, nil
}

// tracked is the set of the paths in the index, which env may name.
func (r *Repo) tracked(ctx context.Context, env ...string) (map[string]bool, error) {
	set := map[string]bool{}
	w := &recordWriter{each: func(path string) { set[path] = true }}
	_, err := r.git.run(ctx, call{args: []string{"ls-files", "-z"}, stdout: w, env: env})
	return set, err
}

// stranger finds an untracked file that is in the way of a new file. It may be at that path,
// in place of a folder above it, or in a folder that must give way to it. If there is none,
// stranger returns "".
func stranger(root *os.Root, path string, tracked map[string]bool) string {
	for i := range len(path) {
		if path[i] != '/' {
			continue
		}
		info, err := root.Lstat(path[:i])
		if err != nil {
			return "" // nothing there, so nothing below either
		}
		if !info.IsDir() {
			if tracked[path[:i]] {
				return ""
			}
			return path[:i]
		}
	}
	info, err := root.Lstat(path)
	switch {
	case err != nil || tracked[path]:
		return ""
	case !info.IsDir():
		return path
	}
	return strangerIn(root, path, tracked)
}

func strangerIn(root *os.Root, dir string, tracked map[string]bool) string {
	f, err := root.Open(dir)
	if err != nil {
		return dir
	}
	entries, err := f.ReadDir(-1)
	_ = f.Close()
	if err != nil {
		return dir
	}
	for _, e := range entries {
		path := dir + "/" + e.Name()
		if e.IsDir() && !tracked[path] { // a tracked folder is a submodule
			if found := strangerIn(root, path, tracked); found != "" {
				return found
			}
		} else if !tracked[path] {
			return path
		}
	}
	return ""
}
