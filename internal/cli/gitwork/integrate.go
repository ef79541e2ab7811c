package gitwork

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/lib/printable"
)

// How is the way that a job's commits come into a branch that has moved on.
type How string

// The ways. Each ends with a fast-forward of the branch to the commit that it has made.
const (
	Merge      How = "merge"       // a merge commit
	Rebase     How = "rebase"      // all of the job's commits, one by one, on top of the branch
	CherryPick How = "cherry-pick" // likewise, but only those that were named
)

// ConflictError says that an integration stopped at conflicts. Nothing was changed.
type ConflictError struct {
	How    How
	Branch string
	Commit string // at which it stopped; empty for a merge
	Paths  []string
	Next   []string // commands that do the same, and let the person resolve it
}

func (e *ConflictError) Error() string {
	text := fmt.Sprintf("the %s into %s stops at conflicts, and nothing was changed", e.How, printable.Name(e.Branch))
	if e.Commit != "" {
		text += fmt.Sprintf("; at the commit %.12s", e.Commit)
	}
	return text + ": " + SomeNames(e.Paths)
}

// ExitCode is the command line's exit code for this error.
func (e *ConflictError) ExitCode() int { return 3 }

// Integrate brings a job's commits, or with CherryPick those named, into the branch of f.
// It works in a repository and a work tree of its own. There it writes only files with
// conflicts, and no attribute counts. Then it moves f's branch as FastForward does. It
// returns the branch's new commit, which is the old one if there was nothing to do. The
// caller holds lock.
func (r *Repo) Integrate(ctx context.Context, lock *Lock, f Forward, how How, commits []string) (head string, err error) {
	old, err := r.Resolve(ctx, f.ref())
	if err != nil {
		return "", err
	}
	if old == "" {
		return "", f.refuse("branch_gone", fmt.Sprintf("there is no branch %s", printable.Name(f.Branch)), "git branch "+printable.Word(f.Branch)+" "+JobRef(f.Job, "head"))
	}
	if had, err := r.ancestor(ctx, f.Head, old); err != nil || had {
		return old, err
	}
	b, err := r.bench(ctx, old)
	if err != nil {
		return "", err
	}
	defer b.remove()
	if how == Merge {
		head, err = b.merge(ctx, r, f)
	} else {
		if how == Rebase {
			commits, err = b.between(ctx, f, old)
		}
		if err == nil {
			head, err = b.pick(ctx, r, f, how, commits)
		}
	}
	if err != nil || head == old {
		return head, err
	}
	q, err := r.receive(ctx, b.scratch, []string{head}, old, f.Head)
	if err != nil {
		return "", fmt.Errorf("%s: %w", how, err)
	}
	defer q.remove()
	done, err := r.movePack(q)
	defer done()
	if err != nil {
		return "", fmt.Errorf("%s: %w", how, err)
	}
	f.Head = head
	if f.Again == "" {
		f.Again = fmt.Sprintf("cove job %s %s", how, f.Job)
	}
	_, err = r.FastForward(ctx, lock, f)
	return head, err
}

// JobCommits are the commits of a job with the given names. These are object names, which
// may be short.
func (r *Repo) JobCommits(ctx context.Context, base, head string, names []string) ([]string, error) {
	s, err := r.scratch(ctx)
	if err != nil {
		return nil, err
	}
	defer s.remove()
	var all []string
	w := &recordWriter{end: '\n', each: func(id string) { all = append(all, id) }}
	if _, err := s.git.run(ctx, call{args: []string{"rev-list", "--stdin"}, stdin: revisions([]string{head}, []string{base}), stdout: w}); err != nil {
		return nil, err
	}
	var found []string
	for _, name := range names {
		short := strings.ToLower(name)
		hits := slices.DeleteFunc(slices.Clone(all), func(id string) bool { return len(short) < 4 || !strings.HasPrefix(id, short) })
		if len(hits) != 1 {
			return nil, &fail.Error{Code: "no_commit", Message: fmt.Sprintf("%s does not name one of the job's commits (there are %d)", printable.Name(name), len(all)),
				Hint: "name one by its first letters, as in the list of: cove job log JOB"}
		}
		found = append(found, hits[0])
	}
	return found, nil
}

// bench is a repository with a work tree, for making commits.
type bench struct {
	*scratch
	work string
}

// noAttributes overrides every .gitattributes file.
const noAttributes = "* !text !crlf !eol !ident !filter !diff !merge !working-tree-encoding !conflict-marker-size !whitespace\n"

// bench makes a bench that is at a commit, without writing any of its files. The caller
// holds the lock.
func (r *Repo) bench(ctx context.Context, commit string) (*bench, error) {
	q, err := r.quarantine(ctx)
	if err != nil {
		return nil, err
	}
	b := &bench{scratch: q, work: q.dir + ".work"}
	if err := b.fill(ctx, r, commit); err != nil {
		b.remove()
		return nil, fmt.Errorf("make a work tree: %w", err)
	}
	return b, nil
}

func (b *bench) fill(ctx context.Context, r *Repo, commit string) error {
	if err := os.Mkdir(b.work, 0o700); err != nil {
		return err
	}
	info := filepath.Join(b.dir, "info")
	if err := os.MkdirAll(info, 0o700); err != nil {
		return err
	}
	for name, text := range map[string]string{"attributes": noAttributes, "sparse-checkout": "/.cove-nothing\n"} {
		if err := os.WriteFile(filepath.Join(info, name), []byte(text), 0o600); err != nil {
			return err
		}
	}
	me := r.Author()
	b.git.dir, b.git.workTree = b.work, b.work
	b.git.settings = append(b.git.settings,
		setting{"user.name", me.Name}, setting{"user.email", me.Email}, setting{"core.attributesFile", os.DevNull},
		setting{"core.sparseCheckout", "true"}, setting{"core.sparseCheckoutCone", "false"}, setting{"rerere.enabled", "false"})
	if _, err := b.git.text(ctx, "update-ref", "--no-deref", "HEAD", commit); err != nil {
		return err
	}
	_, err := b.git.run(ctx, call{args: []string{"read-tree", "-m", "-u", "HEAD"}, timeout: patiently})
	return err
}

func (b *bench) remove() {
	_ = os.RemoveAll(b.work) // or it is swept later
	b.scratch.remove()
}

// merge makes a merge commit of the job's head.
func (b *bench) merge(ctx context.Context, r *Repo, f Forward) (string, error) {
	_, err := b.git.run(ctx, call{
		args: []string{"merge", "-q", "--no-ff", "--no-edit", "--no-verify", "--no-gpg-sign", "--no-log", "--no-stat", "--no-autostash",
			"-m", "Merge job " + f.Job, f.Head},
		env: identity(r.Author()), timeout: patiently,
	})
	if err != nil {
		return "", b.stopped(ctx, err, f, &ConflictError{How: Merge, Branch: f.Branch,
			Next: []string{"git switch " + printable.Word(f.Branch) + " && git merge " + JobRef(f.Job, "head")}})
	}
	return b.git.text(ctx, "rev-parse", "HEAD")
}

// between lists the job's commits that the branch lacks, the oldest first. Merges
// among them are left out, as in any rebase.
func (b *bench) between(ctx context.Context, f Forward, old string) ([]string, error) {
	var list []string
	w := &recordWriter{end: '\n', each: func(id string) { list = append(list, id) }}
	_, err := b.git.run(ctx, call{args: []string{"rev-list", "--reverse", "--topo-order", "--no-merges", "--stdin"},
		stdin: revisions([]string{f.Head}, []string{f.Base, old}), stdout: w, timeout: patiently})
	return list, err
}

// pick makes the commits again, on top of the bench's commit. It skips those that change
// nothing there.
func (b *bench) pick(ctx context.Context, r *Repo, f Forward, how How, commits []string) (string, error) {
	me := identity(r.Author())[2:] // the committer; the authors stay
	args := append([]string{"cherry-pick", "--allow-empty", "--allow-empty-message", "--no-gpg-sign"}, "--stdin")
	in := call{args: args, stdin: strings.NewReader(strings.Join(commits, "\n") + "\n"), env: me, timeout: patiently}
	for range len(commits) + 1 {
		_, err := b.git.run(ctx, in)
		if err == nil {
			return b.git.text(ctx, "rev-parse", "HEAD")
		}
		at, atErr := b.git.text(ctx, "rev-parse", "--verify", "-q", "CHERRY_PICK_HEAD")
		conflict := &ConflictError{How: how, Branch: f.Branch, Commit: at, Next: []string{"git switch " + printable.Word(f.Branch) + " && git cherry-pick " + strings.Join(commits, " ")}}
		if how == Rebase {
			conflict.Next = []string{f.rebaseByHand()}
		}
		if err := b.stopped(ctx, err, f, conflict); err != nil && (atErr != nil || !errors.Is(err, errNoConflict)) {
			return "", err
		}
		in = call{args: []string{"cherry-pick", "--skip"}, env: me, timeout: patiently}
	}
	return "", fmt.Errorf("%s: git does not finish", how)
}

var errNoConflict = errors.New("git stopped without a conflict")

// stopped turns git's error into conflict, if git stopped at a conflict.
func (b *bench) stopped(ctx context.Context, err error, f Forward, conflict *ConflictError) error {
	if exitCode(err) <= 0 {
		return err
	}
	w := &recordWriter{each: func(entry string) {
		if _, path, ok := strings.Cut(entry, "\t"); ok && !slices.Contains(conflict.Paths, path) {
			conflict.Paths = append(conflict.Paths, path)
		}
	}}
	if _, listErr := b.git.run(ctx, call{args: []string{"ls-files", "-u", "-z"}, stdout: w}); listErr != nil {
		return errors.Join(err, listErr)
	}
	if len(conflict.Paths) == 0 {
		return fmt.Errorf("%w in job %s: %w", errNoConflict, f.Job, err)
	}
	return conflict
}
