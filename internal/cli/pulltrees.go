package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/cli/config"
	"github.com/cove-dev/cove/internal/cli/gitwork"
	"github.com/cove-dev/cove/internal/cli/push"
	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/lib/filesync"
	"github.com/cove-dev/cove/internal/lib/printable"
	"github.com/cove-dev/cove/internal/lib/riskypath"
	"github.com/cove-dev/cove/sprites"
)

// pulled is what a pull brought of a job: its commits, and the folders of [[pull.sync]].
type pulled struct {
	push.Pulled
	Trees []pulledTree `json:"trees,omitempty"`
}

// pulledTree is what came of one folder.
type pulledTree struct {
	From   string           `json:"from"`
	To     string           `json:"to"`
	Absent string           `json:"absent,omitempty"` // why there is nothing to bring
	Risky  []gitwork.Risk   `json:"risky,omitempty"`  // what was left in the sprite, for the person to decide; the first of them
	Report *filesync.Report `json:"report,omitempty"`
}

// treePuller brings the folders that the settings name, once a job has succeeded.
type treePuller struct {
	inv    *invocation
	client *cove.Client
	top    string // of the work tree
	trees  []config.Tree
	policy filesync.Policy
	accept bool // also brings files that could make something run here
	done   []pulledTree
}

// pullTrees returns a treePuller for the folders that the settings name for this work tree.
func pullTrees(ctx context.Context, inv *invocation, c *cove.Client, policy filesync.Policy) (*treePuller, error) {
	s, p, err := loadSettings(ctx)
	if err != nil {
		return nil, err
	}
	t := &treePuller{inv: inv, client: c, top: p.Top, policy: policy}
	if p.Top != "" {
		t.trees, err = s.Trees(p.Top)
	}
	return t, err
}

// pull brings all folders that it can.
func (t *treePuller) pull(ctx context.Context, job cove.Job) error {
	if job.State != cove.JobSucceeded {
		return nil
	}
	var errs error
	t.done = nil
	for _, tree := range t.trees {
		errs = errors.Join(errs, t.one(ctx, job, tree))
	}
	return errs
}

func (t *treePuller) one(ctx context.Context, job cove.Job, tree config.Tree) error {
	if err := insideTree(t.top, tree.To); err != nil {
		return err
	}
	y := &filesync.Sync{
		Verb: filesync.Pull, Local: filepath.Join(t.top, filepath.FromSlash(tree.To)), Remote: tree.From,
		// All jobs have one base: files that the last job brought here are not the person's changes.
		Pair: "jobs", As: tree.From,
		Rules: filesync.Rules{Exclude: tree.Patterns()}, Policy: t.policy, MaxBytes: push.MaxBundle, Merge: gitwork.MergeFile,
	}
	if !path.IsAbs(tree.From) {
		y.Remote = path.Join(job.Workdir, tree.From)
	}
	sprite := t.client.At(job.Backend).Sprite(job.Sprite)
	result := pulledTree{From: tree.From, To: tree.To}
	y.AcceptRisky = t.accept
	hold, err := t.hold(ctx, tree, &result)
	if err == nil {
		y.Connect, err = filesync.Dialer(ctx, sprite)
	}
	if y.Hold = hold; err == nil {
		result.Report, err = syncOnce(ctx, t.inv, y, sprite)
	}
	if t.leaveOut(y, tree, &result, err) {
		result.Report, err = syncOnce(ctx, t.inv, y, sprite)
	}
	if result.Report != nil {
		for _, risk := range result.Report.Held.Paths {
			result.risk(risk.Path, risk.Why)
		}
	}
	e, ok := errors.AsType[*fail.Error](err)
	switch {
	case errors.Is(err, sprites.ErrNotFound):
		result.Absent, err = "the sprite is gone", nil
	case ok && e.Code == filesync.CodeRisky && slices.Contains(e.Paths, "."):
		result.risk(tree.To, whyRepository)
		result.Report, err = nil, nil
	case ok && e.Code == filesync.CodeNotFound && result.Report == nil:
		result.Absent, err = "there is no such folder", nil
	case ok:
		showConflicts(t.inv, job.Sprite, result.Report)
		err = fail.Newf(e.Code, treeHint(job, y, e), "the commits are here, but not %s of the sprite: %s", tree.From, e.Message)
	}
	t.done = append(t.done, result)
	return err
}

// hold returns a function that reports whether a file must stay in the sprite. It judges a
// file by its name in the work tree, and by what the person's programs read there.
func (t *treePuller) hold(ctx context.Context, tree config.Tree, result *pulledTree) (func(name string) bool, error) {
	if t.accept {
		return nil, nil
	}
	repo, err := gitwork.Open(ctx, t.top)
	if err != nil {
		return nil, err
	}
	_, head, err := repo.Head(ctx)
	if err != nil {
		return nil, err
	}
	inside, err := repo.Inside(ctx, head)
	if err != nil {
		return nil, err
	}
	return func(name string) bool {
		why := riskypath.Path(name)
		if why == "" {
			why = inside(path.Join(tree.To, name))
		}
		if why != "" {
			result.risk(name, why)
		}
		return why != ""
	}, nil
}

// risk notes what was left in the sprite.
func (t *pulledTree) risk(name, why string) {
	if len(t.Risky) < maxShownFiles && !slices.ContainsFunc(t.Risky, func(r gitwork.Risk) bool { return r.Path == name }) {
		t.Risky = append(t.Risky, gitwork.Risk{Path: name, Why: why})
	}
}

const whyRepository = "git would take the folder for a repository, and run what its config and hooks say"

// leaveOut has the folders left in the sprite that a sync was refused for, because git
// would take them for repositories. It reports whether there are such.
func (t *treePuller) leaveOut(y *filesync.Sync, tree config.Tree, result *pulledTree, err error) bool {
	e, ok := errors.AsType[*fail.Error](err)
	if !ok || e.Code != filesync.CodeRisky {
		return false
	}
	for _, dir := range e.Paths {
		if dir == "." || strings.ContainsAny(dir, "\r\n") {
			return false
		}
		y.Rules.Exclude = append(y.Rules.Exclude, excludePattern(dir))
		result.risk(dir, whyRepository)
	}
	return true
}

// treeHint says how to bring a folder by hand.
func treeHint(job cove.Job, y *filesync.Sync, e *fail.Error) string {
	if e.Code == filesync.CodeRisky {
		return fmt.Sprintf("look at them in the sprite: cove exec -s %s -- ls %s; then take them: cove pull %s --accept-risky", job.Sprite, printable.Word(y.Remote), job.ID)
	}
	if e.Code != filesync.CodeConflict {
		return "then pull again: cove pull " + job.ID
	}
	return fmt.Sprintf("choose: cove pull %s --on-conflict theirs (the sprite's), ours or both\nor by hand: cove sync pull -s %s --no-ignore %s %s",
		job.ID, job.Sprite, printable.Word(y.Remote), printable.Word(y.Local))
}

// insideTree checks that no part of the way from a work tree's top to a folder is a link.
// The commits that have just come may have put one there.
func insideTree(top, to string) error {
	at := top
	for part := range strings.SplitSeq(to, "/") {
		at = filepath.Join(at, part)
		info, err := os.Lstat(at)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		if !info.IsDir() {
			return fail.Newf("rejected", "look at it, move it away, and pull again", "the commits are here, but nothing came into %s: %s is not a folder", to, at)
		}
	}
	return nil
}

// printTrees tells people what came besides the commits.
func printTrees(w io.Writer, trees []pulledTree) {
	for _, t := range trees {
		from, to := printable.Name(t.From), printable.Name(t.To)
		r := t.Report
		switch {
		case t.Absent != "":
			fmt.Fprintf(w, "Nothing from %s: %s.\n", from, t.Absent)
		case r == nil || len(r.Conflicts) > 0: // the error says why
		case r.Changes() == 0:
			fmt.Fprintf(w, "From %s into %s: nothing new.\n", from, to)
		default:
			fmt.Fprintf(w, "From %s into %s: %d added, %d modified, %d merged, %d deleted (%s).\n",
				from, to, r.Added.Count, r.Modified.Count, r.Merged.Count, r.Deleted.Count, printable.Bytes(r.Bytes))
		}
		for _, risk := range t.Risky {
			fmt.Fprintf(w, "  ! %s was left out, and comes with --accept-risky: %s\n", printable.Name(risk.Path), risk.Why)
		}
	}
}
