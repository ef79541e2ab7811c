package job

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/server/unidiff"
	"github.com/cove-dev/cove/sprites"
)

// differ asks the sprites of jobs what these have changed. The server has no repository: git runs
// in the sprite, as the agent did, and what it prints is hostile.
type differ struct {
	client *cove.Client
	slots  chan struct{} // each holds a diff in memory
}

const (
	diffsAtOnce  = 4
	diffLimit    = time.Minute
	maxCommits   = 200
	maxCommitLog = 256 << 10 // bytes of the commits
)

// diffScript prints the difference to a commit, of another one or, without that, of the files as they
// are, with those that git does not know yet. It leaves the repository's index alone.
const diffScript = `
export GIT_OPTIONAL_LOCKS=0 GIT_PAGER=cat
if [ -z "$2" ]; then
	i=$(mktemp) || exit
	trap 'rm -f "$i"' EXIT
	cp "$(git rev-parse --git-path index)" "$i" || exit
	export GIT_INDEX_FILE="$i"
	git -c core.fsmonitor=false add --all --intent-to-add . 2>/dev/null
fi
git -c core.fsmonitor=false -c core.quotePath=true --no-pager diff --no-ext-diff --no-textconv --no-color --find-renames --submodule=short --unified=3 --src-prefix=a/ --dst-prefix=b/ "$1" ${2:+"$2"} --
`

func newDiffer(client *cove.Client) *differ {
	return &differ{client: client, slots: make(chan struct{}, diffsAtOnce)}
}

// Diff says what a job has changed.
func (m *Manager) Diff(ctx context.Context, id string) (cove.JobDiff, error) {
	job, err := m.Store.Jobs.Get(ctx, id)
	if err != nil {
		return cove.JobDiff{}, err
	}
	return m.jobSprites.differ.diff(ctx, job)
}

func (d *differ) diff(ctx context.Context, job cove.Job) (cove.JobDiff, error) {
	out := cove.JobDiff{Job: job.ID, Base: job.Base, Commits: []cove.JobDiffCommit{}, Files: []cove.JobDiffFile{}}
	if job.State.Terminal() {
		out.Head = job.Head
		if job.Leftover != "" {
			out.Head = job.Leftover
		}
	}
	switch {
	case job.State == cove.JobInstalling || job.State == cove.JobQueued || job.State == cove.JobPreparing || job.Workdir == "" || !commitID().MatchString(job.Base):
		if job.State.Terminal() {
			return out, nil // it ended before it had anything to change
		}
		return out, fail.Newf("job_queued", "try again when it runs: cove job show "+job.ID, "job %s has changed nothing yet (%s)", job.ID, job.State)
	case job.State.Terminal() && (out.Head == "" || out.Head == job.Base):
		return out, nil
	case job.WorkDeleted:
		return out, gone(job)
	}
	select {
	case d.slots <- struct{}{}:
		defer func() { <-d.slots }()
	case <-ctx.Done():
		return out, ctx.Err()
	}
	ctx, cancel := context.WithTimeout(ctx, diffLimit)
	defer cancel()
	text, cut, err := d.run(ctx, job, unidiff.MaxBytes, "/bin/sh", "-c", diffScript, "sh", job.Base, out.Head)
	if err != nil {
		return out, err
	}
	out.Files, out.Cut = unidiff.Parse(text)
	if cut && out.Cut == "" {
		out.Cut = unidiff.CutBytes
	}
	if out.Files == nil {
		out.Files = []cove.JobDiffFile{}
	}
	unidiff.RiskyFirst(out.Files)
	tip := "HEAD"
	if out.Head != "" {
		tip = out.Head
	}
	text, _, err = d.run(ctx, job, maxCommitLog, "git", "--no-pager", "log", "-z", "--no-color", "--no-show-signature", "--max-count="+strconv.Itoa(maxCommits), "--format=%H%x1f%an%x1f%at%x1f%s", job.Base+".."+tip, "--")
	out.Commits = commits(text)
	return out, err
}

// run runs a command where a job's clone is, and returns the beginning of what it prints.
func (d *differ) run(ctx context.Context, job cove.Job, limit int, argv ...string) (text string, cut bool, err error) {
	stdout, said := &beginning{left: limit}, head{}
	cmd := spriteOf(d.client, job).CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = job.Workdir, stdout, &said
	err = cmd.Run()
	switch exit := (*sprites.ExitError)(nil); {
	case errors.Is(err, errEnough):
		return stdout.String(), true, nil
	case errors.Is(err, sprites.ErrNotFound) || errors.Is(err, sprites.ErrGone):
		return "", false, gone(job)
	case errors.As(err, &exit):
		return "", false, fail.Newf("not_kept", "see it after a pull: cove pull "+job.ID, "git in sprite %s can't say what job %s has changed: %v: %s", job.Sprite, job.ID, err, clip(said.String()))
	case err != nil && ctx.Err() != nil:
		return "", false, fail.Newf("timeout", "see it after a pull: cove pull "+job.ID, "sprite %s did not say in %v what job %s has changed", job.Sprite, diffLimit, job.ID)
	}
	return stdout.String(), false, err
}

// gone says that the sprite of a job is not there, and how its changes are seen.
func gone(job cove.Job) error {
	if job.PulledAt != nil {
		return fail.Newf("sprite_gone", fmt.Sprintf("in the clone that pulled it: git diff %.12s refs/cove/%s/head", job.Base, job.ID), "the sprite of job %s is not there any more: what it changed was pulled", job.ID)
	}
	return fail.Newf("sprite_gone", "do it again: cove job retry "+job.ID, "the sprite of job %s is not there any more, and nobody has pulled what it changed", job.ID)
}

// commits reads what git log printed. It was cut at a byte, maybe.
func commits(text string) []cove.JobDiffCommit {
	all := []cove.JobDiffCommit{}
	for entry := range strings.SplitSeq(text, "\x00") {
		fields := strings.SplitN(entry, "\x1f", 4)
		if len(fields) != 4 || !commitID().MatchString(fields[0]) || len(all) == maxCommits {
			continue
		}
		c := cove.JobDiffCommit{ID: fields[0], Author: short(fields[1]), Subject: short(fields[3])}
		if sec, err := strconv.ParseInt(fields[2], 10, 64); err == nil && sec >= 0 && sec < maxDate {
			c.Time = time.Unix(sec, 0).UTC()
		}
		all = append(all, c)
	}
	return all
}

// maxDate is the year 3000, in seconds: later ones are nonsense.
const maxDate = 32503680000

func short(s string) string { return strings.ToValidUTF8(s[:min(len(s), 300)], "\uFFFD") }

// errEnough ends a command that prints more than is wanted.
var errEnough = errors.New("that is enough")

// beginning keeps the first bytes that are written to it.
type beginning struct {
	strings.Builder
	left int
}

func (b *beginning) Write(p []byte) (int, error) {
	n := min(len(p), b.left)
	b.left -= n
	_, _ = b.Builder.Write(p[:n])
	if n < len(p) {
		return n, errEnough
	}
	return n, nil
}
