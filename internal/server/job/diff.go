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
	"github.com/cove-dev/cove/internal/lib/keylock"
	"github.com/cove-dev/cove/internal/server/unidiff"
	"github.com/cove-dev/cove/sprites"
)

// differ asks the sprites of jobs what these have changed. The server has no repository: git runs
// in the sprite, and what it prints is hostile. Of a job that has ended it reads the bundle that a pull
// takes, in a repository of its own, where nothing that the agent has set in its own hides a change.
// Still a sprite is its agent's, who may be root there: only the pull, elsewhere, is sure.
type differ struct {
	client *cove.Client
	locks  keylock.Mutex // of jobs: one diff of a job is made at a time
}

const (
	diffLimit    = time.Minute
	maxCommits   = 200
	maxCommitLog = 256 << 10 // bytes of the commits
)

// diffScript has git print the difference to a commit, or the commits since ("log"). Without a bundle it is
// that of the files as they are, with those that git does not know yet; the repository's index is left alone.
// The programs are the system's, not those that the agent may have put first.
const diffScript = `
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/run/current-system/sw/bin
[ -x /usr/bin/git ] && PATH=/usr/bin:/bin
export PATH GIT_OPTIONAL_LOCKS=0 GIT_PAGER=cat GIT_NO_REPLACE_OBJECTS=1 GIT_GRAFT_FILE=/dev/null LC_ALL=C
unset GIT_DIR GIT_WORK_TREE GIT_INDEX_FILE GIT_OBJECT_DIRECTORY GIT_ALTERNATE_OBJECT_DIRECTORIES GIT_EXTERNAL_DIFF GIT_EXEC_PATH
verb=$1 base=$2 head=$3 bundle=$4 sum=$5
trap 'exit 1' HUP INT TERM
if [ -n "$head" ] && [ -n "$bundle" ]; then
	if [ "$(sha256sum <"$bundle" | cut -d ' ' -f 1)" != "$sum" ]; then
		echo "$bundle is not as it was collected" >&2
		exit 1
	fi
	objects=$(cd "$(git rev-parse --git-path objects)" && pwd -P) || exit
	shallow=$(git rev-parse --git-path shallow) || exit
	export GIT_CONFIG_NOSYSTEM=1 GIT_CONFIG_GLOBAL=/dev/null GIT_ATTR_NOSYSTEM=1 XDG_CONFIG_HOME=/dev/null
	d=$(mktemp -d) || exit
	trap 'rm -rf "$d"' EXIT
	[ ${#base} = 64 ] && format=--object-format=sha256 || format=
	git init -q --bare --template= $format "$d/git" || exit
	export GIT_DIR="$d/git"
	mkdir -p "$d/git/objects/info" && printf '%s\n' "$objects" >"$d/git/objects/info/alternates" || exit
	[ ! -f "$shallow" ] || cp "$shallow" "$d/git/shallow" || exit
	git update-ref refs/base "$base" || exit
	git bundle unbundle "$bundle" >/dev/null || exit
elif [ -z "$head" ] && [ "$verb" = diff ]; then
	i=$(mktemp) || exit
	trap 'rm -f "$i"' EXIT
	cp "$(git rev-parse --git-path index)" "$i" || exit
	export GIT_INDEX_FILE="$i"
	git -c core.fsmonitor=false add --all --intent-to-add . 2>/dev/null
fi
if [ "$verb" = diff ]; then
	git -c core.fsmonitor=false -c core.quotePath=true --no-pager diff --no-ext-diff --no-textconv --no-color --find-renames --submodule=short --unified=3 --src-prefix=a/ --dst-prefix=b/ "$base" ${head:+"$head"} --
else
	git --no-pager log -z --no-color --no-show-signature --max-count="$6" --format=%H%x1f%an%x1f%at%x1f%s "$base..${head:-HEAD}" --
fi
`

func newDiffer(client *cove.Client) *differ { return &differ{client: client} }

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
	ctx, cancel := context.WithTimeout(ctx, diffLimit)
	defer cancel()
	unlock, err := d.locks.Lock(ctx, job.ID)
	if err != nil {
		return out, fail.Newf("timeout", "see it after a pull: cove pull "+job.ID, "other diffs of job %s have taken all the time", job.ID)
	}
	defer unlock()
	text, cut, err := d.run(ctx, job, unidiff.MaxBytes, "diff", job.Base, out.Head)
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
	text, _, err = d.run(ctx, job, maxCommitLog, "log", job.Base, out.Head)
	out.Commits = commits(text)
	return out, err
}

// run runs diffScript where a job's clone is, and returns the beginning of what it prints.
func (d *differ) run(ctx context.Context, job cove.Job, limit int, verb, base, tip string) (text string, cut bool, err error) {
	stdout, said := &beginning{left: limit}, head{}
	cmd := spriteOf(d.client, job).CommandContext(ctx, "/bin/sh", "-c", diffScript, "sh", verb, base, tip, job.Bundle.Path, job.Bundle.SHA256, strconv.Itoa(maxCommits))
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
