package push

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/cli/gitwork"
	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/lib/printable"
	"github.com/cove-dev/cove/sprites"
)

// Into says what a pull does with the commits besides keeping them under their ref.
type Into string

// The choices. The zero value is IntoFF.
const (
	IntoFF     Into = "ff"     // fast-forward the recorded branch
	IntoBranch Into = "branch" // a new branch cove-JOB
	IntoNone   Into = "none"
)

// PullOptions say what to pull. Dir and Job are required.
type PullOptions struct {
	Dir  string
	Job  string
	Wait time.Duration // for the job's end; 0: not
	Into Into

	// AcceptRisky moves the branch even if a change can make programs run on the person's
	// machine. Otherwise such commits are kept, and the person must look at them first.
	AcceptRisky bool

	// Besides, if not nil, brings other files of the job. It is called after the commits
	// are here and the repository is checked. It is called before the server is told,
	// because the server may then delete the sprite; after an error, it is not told.
	Besides func(ctx context.Context, job cove.Job) error

	looks bool // the commits are only looked at: the job does not count as pulled
}

// jobFailed is the code of a refusal to move a branch to the commits of a job that did not succeed.
const jobFailed = "job_failed"

// The results of a pull.
const (
	FastForward = "fast-forward"
	Kept        = "kept" // under Ref, and not in the recorded branch
	NoChanges   = "no-changes"
	Rejected    = "rejected"
)

// Pulled is what `cove pull --json` prints. Text that a sandbox chose is unchanged in it,
// except in Messages and in the subjects of Log: print such text with printable.Name.
type Pulled struct {
	Job      string           `json:"job"`
	Result   string           `json:"result"`
	Reason   string           `json:"reason,omitempty"` // of kept: the code of the *RefusedError; risky: held for review
	State    cove.JobState    `json:"state"`
	Commits  int              `json:"commits"`
	Ref      string           `json:"ref"`
	Base     string           `json:"base"`
	Head     string           `json:"head"`
	Branch   string           `json:"branch"` // the branch that has the commits now; for kept the recorded one, or the new one
	Files    []gitwork.File   `json:"files"`
	Risky    []gitwork.Risk   `json:"risky"`  // held for review, if AcceptRisky is not set
	Listed   []gitwork.Risk   `json:"listed"` // not held: files that run when the person builds or tests
	Log      []gitwork.Commit `json:"log"`
	Leftover *Leftover        `json:"leftover,omitempty"`
	Modules  []Module         `json:"submodules,omitempty"` // that have commits
	Snapshot string           `json:"snapshot,omitempty"`   // of the person's own changes: the branch has this commit now, too, below Log
	Already  bool             `json:"already,omitempty"`    // an earlier pull had brought them
	Moved    bool             `json:"moved,omitempty"`      // this pull has moved the branch
	Messages []string         `json:"messages,omitempty"`
	Next     []string         `json:"next,omitempty"` // commands to choose from

	// If the branch has gone on: what a merge would do, as far as git could tell.
	Merges    bool     `json:"merges,omitempty"` // it would have no conflicts
	Conflicts []string `json:"conflicts,omitempty"`

	Uncollected bool `json:"uncollected,omitempty"` // something of the work is in the sprite alone

	held []gitwork.Risk // the risky files in the commits that the branch would move to
}

// Leftover is what the agent left uncommitted, as a commit on a ref of its own.
type Leftover struct {
	Ref   string         `json:"ref"`
	SHA   string         `json:"sha"`
	Files []gitwork.File `json:"files"`

	take string // the command that takes it
}

// Module is what came for a submodule. The refs are those of its own repository.
type Module struct {
	Path     string           `json:"path"`
	Base     string           `json:"base"`
	Head     string           `json:"head,omitempty"`
	Leftover string           `json:"leftover,omitempty"`
	Ref      string           `json:"ref"`
	Commits  int              `json:"commits"`
	Files    []gitwork.File   `json:"files"`
	Log      []gitwork.Commit `json:"log"`
}

func (p *Pulled) say(format string, args ...any) {
	p.Messages = append(p.Messages, printable.Name(fmt.Sprintf(format, args...)))
}

// Pull brings a job's commits into the repository, under refs/cove/JOB/, and then to the
// place that Into says. Its result is valid even with an error. A *RefusedError of gitwork
// (exit code 4) means that the commits are kept, a *RejectedError (5) that nothing was
// changed. An error with the code uncollected (75) means that some of the work is only in
// the sprite. Pulling again is harmless.
func (c *Courier) Pull(ctx context.Context, opts PullOptions) (Pulled, error) {
	p := Pulled{Job: opts.Job, Files: []gitwork.File{}, Risky: []gitwork.Risk{}, Listed: []gitwork.Risk{}, Log: []gitwork.Commit{}}
	if !jobID().MatchString(opts.Job) {
		p.Job = ""
		return p, badJob(opts.Job)
	}
	switch opts.Into {
	case "", IntoFF, IntoBranch, IntoNone:
	default:
		return p, fail.New("bad_option", fmt.Sprintf("--into %s is not one of the choices", printable.Name(string(opts.Into))), "use ff, branch or none")
	}
	repo, err := gitwork.Open(ctx, opts.Dir)
	if err != nil {
		return p, err
	}
	job, err := c.finished(ctx, repo, opts)
	if err != nil {
		return p, keptHere(ctx, repo, opts.Job, err)
	}
	p.State, p.Branch, p.Base, p.Head, p.Ref = job.State, job.Branch, job.Base, job.Head, gitwork.JobRef(job.ID, "head")
	if err := c.checkRepo(ctx, repo, job); err != nil {
		return p, err
	}
	err = c.bring(ctx, repo, job, opts, &p)
	left := uncollected(job)
	p.Uncollected = left != nil
	if left != nil && err != nil {
		p.say("%s; %s", left.Message, left.Hint)
	}
	if _, ok := errors.AsType[*gitwork.RejectedError](err); ok {
		p.Result = Rejected
		p.say("the commits are still in the sprite: cove console -s %s", job.Sprite)
		return p, err
	}
	refused, ok := errors.AsType[*gitwork.RefusedError](err)
	if err != nil && !ok {
		return p, err
	}
	if ok {
		p.Result, p.Reason, p.Next, p.Merges, p.Conflicts = Kept, refused.Code, refused.Next, refused.Merges, refused.Conflicts
	}
	// The refs are safe from here on, whether the branch was moved or not. The job counts as pulled, and
	// its sprite may be deleted, only once the work is where the person wanted it.
	if opts.Besides != nil {
		if more := opts.Besides(ctx, job); more != nil {
			return p, errors.Join(err, more)
		}
	}
	if left != nil && !hasWork(job) {
		return p, left // the server is not told that all is well: the sprite alone has the work
	}
	if opts.looks {
		return p, err
	}
	// No pull puts the commits of a failed job into a branch, so this pull has done all that it can. The
	// commits of any other job must be in a branch: the person may have merged them by hand.
	if err != nil && refused.Code != jobFailed {
		if merged, lookErr := repo.Elsewhere(ctx, job.Head); lookErr != nil || !merged {
			return p, err
		}
	}
	if markErr := c.tellPulled(ctx, job); markErr != nil && !(p.Already && errors.Is(markErr, sprites.ErrNotFound)) {
		return p, errors.Join(err, markErr)
	}
	if left != nil && err == nil {
		err = left
	}
	return p, err
}

// tellPulled tells the server that a job's work is where the person wanted it. The job counts as pulled
// then, and its sprite may go. A job that has cloned nothing has nothing to tell of.
func (c *Courier) tellPulled(ctx context.Context, job cove.Job) error {
	head := cmp.Or(job.Head, job.Base)
	if head == "" {
		return nil
	}
	if _, err := c.Jobs.MarkPulled(ctx, job.ID, head); err != nil {
		return fmt.Errorf("the commits are here, but the server was not told (pull again to do so): %w", err)
	}
	return nil
}

// uncollected says which of a job's work did not come, and how to copy it; nil: all came.
func uncollected(job cove.Job) *fail.Error {
	if job.Uncollected == "" {
		return nil
	}
	what := "not all that the agent left could be collected"
	if !hasWork(job) {
		what = "nothing that the agent left could be collected"
	}
	return fail.New("uncollected", printable.Name(fmt.Sprintf("%s (%s); the sprite %s alone has it", what, job.Uncollected, job.Sprite)), CopyOut(job))
}

// CopyOut is the command that copies the files of a job's clone from its sprite into a new
// folder here, without git's own files.
func CopyOut(job cove.Job) string {
	return fmt.Sprintf("copy its files out: cove sync pull -s %s %s ./job-%s", printable.Word(job.Sprite), printable.Word(job.Workdir), job.ID)
}

// finished gets the job, waiting for its end if asked. It does not wait for a job of another
// repository.
func (c *Courier) finished(ctx context.Context, repo *gitwork.Repo, opts PullOptions) (cove.Job, error) {
	job, err := c.Jobs.Job(ctx, opts.Job)
	if opts.Wait > 0 && err == nil && !job.State.Terminal() && job.Base != "" {
		if err := c.checkRepo(ctx, repo, job); err != nil {
			return job, err
		}
	}
	_, answered := errors.AsType[*sprites.Error](err)
	if opts.Wait > 0 && (err == nil && !job.State.Terminal() || err != nil && !answered) { // a server that is away may come back
		waiting, cancel := context.WithTimeout(ctx, opts.Wait)
		defer cancel()
		waited, waitErr := c.Jobs.WaitJob(waiting, opts.Job)
		switch {
		case waitErr == nil:
			job, err = waited, nil
		case waiting.Err() != nil && ctx.Err() == nil: // it is as it was
		default:
			err = waitErr
		}
	}
	if errors.Is(err, sprites.ErrNotFound) {
		return job, fail.New("bad_job", "there is no job "+opts.Job, "list them with: cove job list")
	}
	if err != nil {
		return job, err
	}
	if job.ID != opts.Job {
		return job, &fail.Error{Code: "bad_answer", Message: "the server answered with another job, " + printable.Name(job.ID)}
	}
	if !job.State.Terminal() && job.Held != nil {
		return job, fail.New("not_finished", fmt.Sprintf("job %s is not finished: %s", job.ID, printable.Name(job.Held.Message)), printable.Name(job.Held.Hint))
	}
	if !job.State.Terminal() {
		hint := "wait for it with: cove pull " + job.ID + " --wait 30m"
		switch {
		case job.State == cove.JobQueued:
			hint = "it waits for its repository; if its push is gone, push again, and forget this one: cove job rm --force " + job.ID
		case opts.Wait > 0:
			hint = "it goes on; wait longer: cove pull " + job.ID + " --wait"
		}
		return job, fail.New("not_finished", fmt.Sprintf("job %s is not finished (%s)", job.ID, printable.Name(string(job.State))), hint)
	}
	return job, nil
}

// keptHere is the error for a job that the server has forgotten. If the job's commits are
// here, the error says so.
func keptHere(ctx context.Context, repo *gitwork.Repo, id string, err error) error {
	e, ok := errors.AsType[*fail.Error](err)
	if !ok || e.Code != "bad_job" {
		return err
	}
	ref := gitwork.JobRef(id, "head")
	if at, refErr := repo.Resolve(ctx, ref); refErr != nil || at == "" {
		return err
	}
	hint := "see them: git log -p " + gitwork.JobRef(id, "base") + ".." + ref + "; take them: git merge " + ref
	left := gitwork.JobRef(id, "leftover")
	if at, refErr := repo.Resolve(ctx, left); refErr == nil && at != "" {
		hint += "; what it left uncommitted: git cherry-pick --no-commit " + left
	}
	return fail.New(e.Code, e.Message+" any more, but its commits are here", hint)
}

// checkRepo checks that this is the repository that the job came from, or a clone of it.
// It looks for the commit that the job started from, which identifies the whole history.
func (c *Courier) checkRepo(ctx context.Context, repo *gitwork.Repo, job cove.Job) error {
	if job.Branch != "" && !repo.ValidBranch(ctx, job.Branch) {
		return &fail.Error{Code: "bad_answer", Message: fmt.Sprintf("the server says that job %s is for the branch %s, which can't be one", job.ID, printable.Name(job.Branch))}
	}
	if job.Base == "" { // its sprite has cloned nothing
		return nil
	}
	base, err := repo.Resolve(ctx, job.Base)
	if err != nil || base != "" && base == job.Base {
		return err
	}
	if job.URL != "" {
		return fail.New("wrong_repository", fmt.Sprintf("job %s cloned %s, and its commit %.12s is not in this repository", job.ID, printable.Name(job.URL), printable.Name(job.Base)),
			"in a clone of it, git fetch; or "+CloneFirst(job))
	}
	return fail.New("wrong_repository", fmt.Sprintf("job %s was pushed from another repository, %s (its commit %.12s is not here)",
		job.ID, printable.Name(job.Repository), printable.Name(job.Base)), "cd into that one and pull there")
}

// bring does the work of a pull in the repository.
func (c *Courier) bring(ctx context.Context, repo *gitwork.Repo, job cove.Job, opts PullOptions, p *Pulled) error {
	if !hasWork(job) {
		p.Result, p.Ref = NoChanges, ""
		switch {
		case job.State == cove.JobSucceeded || job.Uncollected != "":
		case job.State == cove.JobLost: // it is not known what it had made
			p.say("%s; see why: cove job logs %s", ending(job), job.ID)
		default:
			p.say("%s, and it left nothing; see why: cove job logs %s", ending(job), job.ID)
		}
		return nil
	}
	here, err := arrived(ctx, repo, job)
	if err != nil {
		return err
	}
	var file *gitwork.TempFile
	switch {
	case here:
		p.Already = true
	case job.WorkDeleted:
		return fail.New("work_gone", "the work of job "+job.ID+" was deleted with its sprite", "forget the job with: cove job rm "+job.ID)
	default:
		if file, err = repo.TempFile("pull-"); err != nil {
			return err
		}
		defer file.Remove()
		if err := c.download(ctx, job, file.File); err != nil {
			return err
		}
	}
	lock, err := repo.Lock(ctx)
	if err != nil {
		return err
	}
	defer lock.Unlock()
	did, err := repo.Recover(ctx, lock)
	if err != nil {
		return err
	}
	if did != "" {
		p.say("%s", did)
	}
	if !here {
		err := repo.Import(ctx, file.File, gitwork.Expect{
			Job: job.ID, Base: job.Base, Head: job.Head, Leftover: job.Leftover, SHA256: job.Bundle.SHA256, Size: job.Bundle.Size,
		})
		if err != nil {
			return err
		}
	}
	if err := describe(ctx, repo, job, p); err != nil {
		return err
	}
	modules, err := describeModules(ctx, repo, job, p)
	if err != nil {
		return err
	}
	large, err := c.bringLarge(ctx, repo, job, p, modules)
	if err != nil {
		return err
	}
	p.sayLeftovers()
	err = place(ctx, repo, lock, job, opts, p)
	if err == nil && p.Result == FastForward {
		p.Messages = append(p.Messages, follow(modules, large)...)
	}
	return err
}

// hasWork reports whether there is something to bring.
func hasWork(job cove.Job) bool {
	return newHead(job) || job.Leftover != ""
}

func newHead(job cove.Job) bool { return job.Head != "" && job.Head != job.Base }

// arrived reports whether the job's refs are in the repository already.
func arrived(ctx context.Context, repo *gitwork.Repo, job cove.Job) (bool, error) {
	for name, want := range map[string]string{"head": job.Head, "leftover": job.Leftover} {
		if want == "" || name == "head" && !newHead(job) {
			continue
		}
		have, err := repo.Resolve(ctx, gitwork.JobRef(job.ID, name))
		if err != nil || have != want {
			return false, err
		}
	}
	return true, nil
}

// download fetches the job's bundle, but not more bytes than the job's record says. The
// import checks its content.
func (c *Courier) download(ctx context.Context, job cove.Job, to *os.File) error {
	if job.Bundle.Size <= 0 {
		return &gitwork.RejectedError{Reason: "the job's record names commits, but no bundle that has them"}
	}
	if job.Bundle.Size > MaxBundle {
		return &gitwork.RejectedError{Reason: fmt.Sprintf("it has %d bytes, and more than %d are not taken", job.Bundle.Size, int64(MaxBundle))}
	}
	body, err := c.Files.Open(ctx, placeOf(job), job.Bundle.Path)
	if err != nil {
		return fmt.Errorf("download the bundle of job %s: %w", job.ID, err)
	}
	defer func() { _ = body.Close() }() // was read to the end, or is given up
	track := c.track("download", job.Bundle.Size)
	counted := writeCounter{to, track}
	if _, err := io.Copy(counted, io.LimitReader(body, job.Bundle.Size+1)); err != nil {
		return fmt.Errorf("download the bundle of job %s: %w", job.ID, err)
	}
	track.done()
	return nil
}

// MaxBundle bounds what is downloaded for one job, in bytes.
const MaxBundle = cove.MaxBundle

type writeCounter struct {
	w io.Writer
	t *tracker
}

func (c writeCounter) Write(p []byte) (int, error) {
	n, err := c.w.Write(p)
	c.t.at(c.t.n + int64(n))
	return n, err
}

// describe says what came.
func describe(ctx context.Context, repo *gitwork.Repo, job cove.Job, p *Pulled) error {
	tip := job.Base
	if newHead(job) {
		tip = job.Head
		sum, err := repo.Summary(ctx, job.Base, job.Head)
		if err != nil {
			return err
		}
		p.Commits, p.Files, p.Risky, p.Listed, p.Log, p.held = sum.Commits, sum.Files, sum.Risky, sum.Listed, sum.Log, sum.Risky
	} else {
		p.Ref = ""
	}
	if job.Leftover == "" {
		return nil
	}
	sum, err := repo.Summary(ctx, tip, job.Leftover)
	if err != nil {
		return err
	}
	p.Leftover = &Leftover{Ref: gitwork.JobRef(job.ID, "leftover"), SHA: job.Leftover, Files: sum.Files}
	for _, risk := range sum.Risky {
		risk.Why += inLeftover
		p.Risky = append(p.Risky, risk)
	}
	for _, risk := range sum.Listed {
		risk.Why += inLeftover
		p.Listed = append(slices.Clip(p.Listed), risk)
	}
	take, err := takeLeftover(ctx, repo, p)
	if err != nil {
		return err
	}
	p.Leftover.take = take
	p.say("the agent left changes uncommitted; look at them: cove job diff %s --leftover; take them: %s", job.ID, take)
	return nil
}

// takeLeftover is the command that puts the uncommitted changes into the work tree. Git picks
// nothing into a file that the person has changed, so the command stashes their changes first.
// A stash does not take an untracked file of theirs: then the command makes a branch.
func takeLeftover(ctx context.Context, repo *gitwork.Repo, p *Pulled) (string, error) {
	var paths []string
	for _, f := range p.Leftover.Files {
		paths = append(paths, f.Path)
	}
	changed, untracked, err := gitwork.Uncommitted(ctx, repo, paths)
	pick := "git cherry-pick --no-commit " + p.Leftover.Ref
	switch {
	case err != nil:
		return "", err
	case len(untracked) > 0:
		return "git branch cove-" + p.Job + "-leftover " + p.Leftover.Ref, nil
	case len(changed) == 0:
		return pick, nil
	}
	aside := "git stash push"
	if !slices.ContainsFunc(changed, func(name string) bool { return printable.Name(name) != name }) {
		aside += " --"
		for _, name := range changed {
			aside += " " + printable.Word(":(top)"+name)
		}
	}
	return aside + " && " + pick + " && git stash pop", nil
}

// place puts the commits where the options say. They are in the repository.
func place(ctx context.Context, repo *gitwork.Repo, lock *gitwork.Lock, job cove.Job, opts PullOptions, p *Pulled) error {
	p.Result = Kept
	if !newHead(job) {
		p.Next = []string{p.Leftover.take}
		if job.State != cove.JobSucceeded {
			p.say("%s, and it made no commits; see why: cove job logs %s", ending(job), job.ID)
		}
		return nil
	}
	switch {
	case opts.Into == IntoNone:
		p.Next = gitwork.Ways(job.ID, job.Branch)
		return nil
	case opts.Into == IntoBranch || job.Branch == "" && job.State == cove.JobSucceeded: // HEAD was detached
		p.Branch = "cove-" + job.ID
		err := repo.SetRef(ctx, "refs/heads/"+p.Branch, job.Head, "")
		if errors.Is(err, gitwork.ErrRefExists) {
			return &gitwork.RefusedError{Code: "branch_exists", Reason: "the branch " + p.Branch + " exists and has other commits", Ref: p.Ref,
				Next: []string{"git branch NAME " + p.Ref}}
		}
		return err
	}
	f := gitwork.Forward{Job: job.ID, Branch: job.Branch, Base: job.Base, Head: job.Head}
	if job.State != cove.JobSucceeded {
		return f.Refuse(jobFailed, ending(job))
	}
	if opts.AcceptRisky {
		f.Again = "cove pull " + job.ID + " --accept-risky"
	} else {
		f.Hold = func(context.Context, string, string) ([]gitwork.Risk, error) { return p.held, nil }
	}
	had, err := repo.Has(ctx, job.Branch, job.Base)
	if err != nil {
		return err
	}
	already, err := repo.FastForward(ctx, lock, f)
	if err != nil {
		return err
	}
	p.Result, p.Moved = FastForward, !already
	if !had {
		p.Snapshot = job.Base
	}
	if already {
		p.Already = true
		p.say("the branch %s has these commits already", job.Branch)
	}
	return nil
}

// ending says how a job that did not succeed ended.
func ending(job cove.Job) string {
	text := "the job " + job.ID + " ended as " + string(job.State)
	if job.Outcome != nil && job.Outcome.Reason != "" {
		text += " (" + job.Outcome.Headline() + ")"
	}
	return printable.Name(text)
}
