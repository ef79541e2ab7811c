package job

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strconv"
	"strings"
	"time"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/lib/keylock"
	"github.com/cove-dev/cove/sprites"
)

// differ asks git what jobs have changed. The server has no repository, and no git of the host's reads what an
// agent wrote. For a running job, git runs in the job's sprite, where the agent may make it
// say anything. For a job that has ended, the objects come from that sprite, and git runs in a
// separate one. Its output is hostile in any case.
type differ struct {
	client *cove.Client
	apart  *apart
	heard  *room         // of the memory of all diffs
	fills  chan struct{} // has one for each diff that is parsed or judged
	locks  keylock.Mutex // of jobs: one diff of a job is made at a time
}

const (
	diffLimit    = 2 * time.Minute // objects from a sprite may take packLimit of it
	maxCommits   = 200
	maxCommitLog = 256 << 10 // bytes of the commits
	roomRetry    = 10 * time.Second
)

// diffPrologue makes the programs the system's, not those that the agent may have put first in
// PATH. It takes from git what the sprite's environment would say to it. A monitor of files
// that the agent has set is not asked.
const diffPrologue = `
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/run/current-system/sw/bin
[ -x /usr/bin/git ] && PATH=/usr/bin:/bin
export PATH GIT_OPTIONAL_LOCKS=0 GIT_PAGER=cat GIT_NO_REPLACE_OBJECTS=1 GIT_GRAFT_FILE=/dev/null LC_ALL=C
unset GIT_DIR GIT_WORK_TREE GIT_INDEX_FILE GIT_OBJECT_DIRECTORY GIT_ALTERNATE_OBJECT_DIRECTORIES GIT_EXTERNAL_DIFF GIT_EXEC_PATH
base=$1 head=$2 bundle=$3 sum=$4 count=$5 began=$6
git() { command git -c core.fsmonitor=false -c advice.graftFileDeprecated=false "$@"; }
trap 'exit 1' HUP INT TERM
`

// diffSetup prepares what is compared, beside the job's clone. That comes from the job's
// bundle, or without one from the files as they are ($tip), including those that git does not
// know yet. The clone is left alone. While the bundle is unpacked, only the clone's packs are
// there, if they suffice. Otherwise git would also read and compare each loose object of the
// clone. That took two thirds of the time of a review of 5,000 files.
const diffSetup = `
objects=$(cd "$(git rev-parse --git-path objects)" && pwd -P) || exit
d=$(mktemp -d) || exit
trap 'rm -rf "$d"' EXIT
if [ -n "$head" ] && [ -n "$bundle" ]; then
	if [ "$(sha256sum <"$bundle" | cut -d ' ' -f 1)" != "$sum" ]; then
		echo "$bundle is not as it was collected" >&2
		exit 1
	fi
	shallow=$(git rev-parse --git-path shallow) || exit
	export GIT_CONFIG_NOSYSTEM=1 GIT_CONFIG_GLOBAL=/dev/null GIT_ATTR_NOSYSTEM=1 XDG_CONFIG_HOME=/dev/null
	[ ${#base} = 64 ] && format=--object-format=sha256 || format=
	git init -q --bare --template= $format "$d/git" || exit
	export GIT_DIR="$d/git"
	mkdir -p "$d/git/objects/info" "$d/packed" && ln -s "$objects/pack" "$d/packed/pack" || exit
	[ ! -f "$shallow" ] || cp "$shallow" "$d/git/shallow" || exit
	from="$d/git/objects/info/alternates" done=
	unbundle() { git update-ref refs/base "$began" && git bundle unbundle "$bundle" >/dev/null; }
	printf '%s\n' "$d/packed" >"$from" || exit
	unbundle 2>/dev/null && done=1
	printf '%s\n' "$objects" >"$from" || exit
	[ -n "$done" ] || unbundle || exit
elif [ -z "$head" ]; then
	cp "$(git rev-parse --git-path index)" "$d/index" || exit
	mkdir -p "$d/objects/info" && printf '%s\n' "$objects" >"$d/objects/info/alternates" || exit
	export GIT_INDEX_FILE="$d/index" GIT_OBJECT_DIRECTORY="$d/objects"
	git -c advice.addEmbeddedRepo=false add --all --ignore-errors . 2>/dev/null
	tip=$(git write-tree) || exit
fi
`

// diffTell makes git tell what changed, in the order that told reads. The list of files does
// not depend on their lines. Git counts the lines of all files, unless that takes 40 s or too
// much memory, and of none that is longer than 16 MiB. It tells the lines of the files that
// the server asks for, in the server's order ($d/order has a pattern for each).
const diffTell = `
: "${tip:=$head}"
end() { printf '\0'; }
ids() { while read -r id && [ -n "$id" ]; do printf '%s\n' "$id"; done; }
paths() { while read -r path && [ -n "$path" ]; do printf '%b\0' "$path"; done; }
git diff-tree -r -z --raw --no-abbrev --no-renames --no-ext-diff --no-textconv --no-color --ignore-submodules=none "$base" "$tip" || exit
end
git ls-tree -r -t -z --full-tree "$tip" || exit
end
git ls-tree -z --full-tree --name-only "$base" || exit
end
git config --blob "$tip:.gitmodules" --list >/dev/null 2>&1 && printf 'readable\0'
end
ids | git cat-file --batch-check --buffer
echo
ids | git cat-file --batch --buffer
echo
ids | git cat-file --batch-check --buffer
echo
ends=$(git rev-parse --git-path shallow)
[ ! -s "$ends" ] || git rev-list "$base..${head:-HEAD}" | grep -xFf "$ends" | tr '\n' '\0'
end
git --no-pager log -z --no-color --no-show-signature --max-count="$count" --format=%H%x1f%an%x1f%at%x1f%s "$base..${head:-HEAD}" -- || exit
end
timed=
command -v timeout >/dev/null && timed='timeout 40'
$timed git -c core.fsmonitor=false -c advice.graftFileDeprecated=false -c core.bigFileThreshold=16m diff-tree -r -z --numstat --no-renames --no-ext-diff --no-textconv --no-color --ignore-submodules=none "$base" "$tip" >"$d/counts" 2>"$d/said"
counted=$?
case $counted in
0) cat "$d/counts" || exit ;;
124 | 137 | 143) ;;
*) grep -qi 'out of memory\|cannot allocate' "$d/said" || { cat "$d/said" >&2; exit "$counted"; } ;;
esac
end
paths >"$d/paths"
tr -c 'A-Za-z0-9/.\000_-' '?' <"$d/paths" | tr '\000' '\n' >"$d/order"
[ ! -s "$d/paths" ] || xargs -0 git -c core.fsmonitor=false -c advice.graftFileDeprecated=false -c core.quotePath=true --literal-pathspecs --no-pager diff -O"$d/order" --no-ext-diff --no-textconv --no-color --find-renames --submodule=short --unified=3 --src-prefix=a/ --dst-prefix=b/ "$base" "$tip" -- <"$d/paths"
`

func newDiffer(client *cove.Client, installs *installs, folder string, logger *slog.Logger) *differ {
	fills := make(chan struct{}, fillsAtOnce)
	return &differ{
		client: client, heard: &room{all: maxHeard, each: eachHeard}, fills: fills,
		apart: &apart{
			client: client, installs: installs, folder: folder, logger: logger,
			slots: make(chan struct{}, apartAtOnce), fills: fills, packs: &room{all: maxPacks, each: eachPacks},
		},
	}
}

// Diff says what a job has changed. If the job has ended, that is its commits, which a pull
// brings to a branch. Its uncommitted changes are a part of their own (cove.DiffLeftover). The
// diff counts as held in memory until the caller calls done, which is nil after an error. The
// diffs of a token (by) leave room for those of others. An empty by is the server's owner, who
// may have all the room.
func (m *Manager) Diff(ctx context.Context, id, part, by string) (diff cove.JobDiff, done func(), err error) {
	job, err := m.Store.Jobs.Get(ctx, id)
	if err != nil {
		return diff, nil, err
	}
	d := m.jobSprites.differ
	hold := &share{of: d.heard, by: by}
	if diff, err = d.diff(ctx, job, part, hold); err != nil {
		hold.shrink(0)
		return diff, nil, err
	}
	return diff, func() { hold.shrink(0) }, nil
}

func (d *differ) diff(ctx context.Context, job cove.Job, part string, hold *share) (cove.JobDiff, error) {
	out := cove.JobDiff{Job: job.ID, Base: job.Base, Part: part, Commits: []cove.JobDiffCommit{}, Files: []cove.JobDiffFile{}}
	out.Compares = cove.DiffFiles
	if job.State.Terminal() {
		out.Compares = cove.DiffCommits
		out.Head, out.Leftover = job.Head, job.Leftover
		if part == cove.DiffLeftover {
			out.Base, out.Head = cmp.Or(job.Head, job.Base), job.Leftover
		}
	}
	switch {
	case job.State == cove.JobInstalling || job.State == cove.JobQueued || job.State == cove.JobPreparing || job.Workdir == "" || !commitID().MatchString(job.Base):
		if job.State.Terminal() {
			return out, nil // it ended before it had anything to change
		}
		return out, fail.Newf("job_queued", "try again when it runs: cove job show "+job.ID, "job %s has changed nothing yet (%s)", job.ID, job.State)
	case job.State.Terminal() && (out.Head == "" || out.Head == out.Base):
		return out, nil
	case job.WorkDeleted:
		return out, gone(job)
	case !job.State.Terminal() && part == cove.DiffLeftover:
		return out, fail.Newf("job_running", "ask without a part: its files are compared as they are", "job %s has not ended, so nothing is left uncommitted yet", job.ID)
	}
	ctx, cancel := context.WithTimeout(ctx, diffLimit)
	defer cancel()
	unlock, err := d.locks.Lock(ctx, job.ID)
	if err != nil {
		return out, fail.Newf("timeout", "see it after a pull: cove pull "+job.ID, "other diffs of job %s have taken all the time", job.ID)
	}
	defer unlock()
	if job.State.Terminal() {
		return d.ended(ctx, job, out, hold)
	}
	what, err := d.run(ctx, job, out, hold)
	if err != nil {
		return out, err
	}
	_, err = d.fill(ctx, what, &out, hold)
	return out, err
}

// fill puts what was told into a diff. It returns how much of hold the diff needs, and shrinks
// hold to that.
func (d *differ) fill(ctx context.Context, what *told, out *cove.JobDiff, hold *share) (weight int64, err error) {
	select {
	case d.fills <- struct{}{}:
		defer func() { <-d.fills }()
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	what.fill(out)
	weight = what.namedWeight() + diffWeight*int64(len(what.diff))
	hold.shrink(weight)
	return weight, nil
}

// ended is the diff of a job that has ended, as long as the sprite with its work is there.
func (d *differ) ended(ctx context.Context, job cove.Job, out cove.JobDiff, hold *share) (cove.JobDiff, error) {
	if kept, ok := d.apart.again(out); ok {
		_, err := d.client.At(job.Backend).Get(ctx, job.Sprite)
		if errors.Is(err, sprites.ErrNotFound) || errors.Is(err, sprites.ErrGone) {
			err = gone(job)
		}
		if err == nil {
			err = d.failed(ctx, job, hold.add(kept.weight), "")
		}
		return kept.JobDiff, err
	}
	var there, here head // what git said, in the job's sprite and in that of the review
	what, err := d.apart.tell(ctx, out, hold, &here, func(ctx context.Context, w io.Writer) error {
		cmd := d.command(ctx, job, diffPrologue+diffSetup+diffPack, out)
		cmd.Stdout, cmd.Stderr = &packWriter{w, maxPack}, &there
		return cmd.Run()
	})
	if errors.Is(err, errNoPlace) {
		what, err = d.run(ctx, job, out, hold)
	} else {
		out.Apart, err = true, d.failed(ctx, job, err, strings.TrimSpace(there.String()+" "+here.String()))
	}
	if err != nil {
		return out, err
	}
	weight, err := d.fill(ctx, what, &out, hold)
	if err != nil {
		return out, err
	}
	if out.Apart {
		d.apart.keep(keptDiff{out, weight})
	}
	return out, nil
}

// command is a script in a job's sprite, where its clone is.
func (d *differ) command(ctx context.Context, job cove.Job, script string, of cove.JobDiff) *sprites.Cmd {
	cmd := spriteOf(d.client, job).CommandContext(ctx, "/bin/sh", "-c", script, "sh", of.Base, of.Head, job.Bundle.Path, job.Bundle.SHA256, strconv.Itoa(maxCommits), job.Base)
	cmd.Dir = job.Workdir
	return cmd
}

// run has a job's sprite tell what the job has changed.
func (d *differ) run(ctx context.Context, job cove.Job, of cove.JobDiff, hold *share) (what *told, err error) {
	var said head
	what, err = hear(ctx, d.fills, hold, func(ctx context.Context) *sprites.Cmd {
		cmd := d.command(ctx, job, diffPrologue+diffSetup+diffTell, of)
		cmd.Stderr = &said
		return cmd
	}, nil)
	return what, d.failed(ctx, job, err, said.String())
}

// failed says why the changes of a job can't be told; nil: they can.
func (d *differ) failed(ctx context.Context, job cove.Job, err error, said string) error {
	switch exit := (*sprites.ExitError)(nil); {
	case errors.Is(err, errNoRoom):
		e := fail.Newf("limit", "try again when others are done, or see it after a pull: cove pull "+job.ID, "the changes of job %s can't be shown now: %v", job.ID, errNoRoom)
		e.RetryAfter = roomRetry
		return e
	case errors.Is(err, sprites.ErrNotFound) || errors.Is(err, sprites.ErrGone):
		return gone(job)
	case errors.As(err, &exit):
		return fail.Newf("not_kept", "see it after a pull: cove pull "+job.ID, "git in sprite %s can't say what job %s has changed: %v: %s", job.Sprite, job.ID, err, clip(said))
	case errors.Is(err, errNonsense) || errors.Is(err, errMissing) || errors.Is(err, errPackTooLong):
		return fail.Newf("not_kept", "see it after a pull: cove pull "+job.ID, "git in sprite %s can't say what job %s has changed: %v", job.Sprite, job.ID, err)
	case errors.Is(err, context.DeadlineExceeded) || err != nil && ctx.Err() != nil:
		return fail.Newf("timeout", "see it after a pull: cove pull "+job.ID, "sprite %s did not say in time what job %s has changed", job.Sprite, job.ID)
	}
	return err
}

// gone says that the sprite of a job is not there, and how its changes are seen.
func gone(job cove.Job) error {
	if job.PulledAt != nil {
		return fail.Newf("sprite_gone", fmt.Sprintf("in the clone that pulled it: git diff %.12s refs/cove/%s/head", job.Base, job.ID), "the sprite of job %s is not there any more: what it changed was pulled", job.ID)
	}
	again := "push its plan again" // the repository was in the sprite
	if job.URL != "" {
		again = "retry it: cove job retry " + job.ID
	}
	return fail.Newf("sprite_gone", again, "the sprite of job %s is not there any more, and nobody has pulled what it changed", job.ID)
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
