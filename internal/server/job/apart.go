package job

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/server/store"
	"github.com/cove-dev/cove/sprites"
)

// Bounds of the sprites that tell the changes of jobs that have ended.
const (
	apartAtOnce = 3
	apartMemory = 1024      // MiB
	apartDisk   = 2048      // MiB
	maxPack     = 512 << 20 // bytes of the objects that come from a job's sprite
	maxPacks    = 1 << 30   // bytes of those of all reviews, and
	eachPacks   = 768 << 20 // of those of one token, beside the first of each:
	freePack    = 16 << 20
	packLimit   = time.Minute // for them to come
	maxKept     = 4           // diffs that are kept; each may have some MiB
)

// diffPack makes git, in a job's sprite, write the objects that diffTell reads. Its commits
// are those between $base and $head, and those from $base back to where the others branched
// off. It also has both trees, the files that differ, and the targets of $head's symbolic
// links. Objects are named by their contents: root in that sprite can leave some out, which is
// noticed, but can't pass others off as them.
const diffPack = `
ids() { sed -n -e '/^:\{0,1\}160000 /d' -e '/ 0*$/d' -e 's/^:\{0,1\}[0-9]* //p'; }
{
	git rev-list --no-walk "$base" "$head" &&
	git rev-list --objects --no-walk --filter=blob:none "$base" "$head" &&
	git rev-list --boundary "$base..$head" | sed 's/^-//' &&
	git rev-list --boundary "$base..$head" | sed -n 's/^-//p' | while read -r id; do
		git rev-list --boundary "$base" --not "$id^@" | sed 's/^-//' || exit
	done &&
	git diff-tree -r --raw --no-abbrev --no-renames "$base" "$head" | cut -d ' ' -f 1,3 | ids &&
	git diff-tree -r --raw --no-abbrev --no-renames "$base" "$head" | cut -d ' ' -f 2,4 | ids &&
	git ls-tree -r --full-tree "$head" | sed -n 's/^120000 blob \([0-9a-f]*\).*/\1/p'
} | git pack-objects -q --stdout
`

// diffUnpack reads the objects in a sprite that has run nothing of the job: $sum bytes, which
// together must be a pack. It cuts the history where a parent is missing; if diffTell lists
// such a commit, it says so.
const diffUnpack = `
export GIT_CONFIG_NOSYSTEM=1 GIT_CONFIG_GLOBAL=/dev/null GIT_ATTR_NOSYSTEM=1 XDG_CONFIG_HOME=/dev/null
d=$(mktemp -d) || exit
trap 'rm -rf "$d"' EXIT
[ ${#base} = 64 ] && format=--object-format=sha256 || format=
git init -q --bare --template= $format "$d/git" || exit
export GIT_DIR="$d/git"
head -c "$sum" >"$d/pack" && git index-pack --stdin <"$d/pack" >/dev/null || exit
rm "$d/pack"
git cat-file --batch-all-objects --batch-check='%(objecttype) %(objectname)' | sed -n 's/^commit //p' >"$d/commits" || exit
git rev-list --no-walk --parents --stdin <"$d/commits" >"$d/parents" || exit
awk '{ there[$1] = 1; for (i = 2; i <= NF; i++) { parents[++n] = $i; child[n] = $1 } } END { for (i in parents) if (!(parents[i] in there)) print child[i] }' "$d/parents" | sort -u >"$d/git/shallow" || exit
[ -s "$d/git/shallow" ] || rm "$d/git/shallow"
git rev-list "$base..$head" >"$d/commits" || exit
`

// apart tells the changes of jobs that have ended, in a place that their agents can't
// influence: a new sprite for each. It is removed afterwards, by the next server if this one
// ends first.
type apart struct {
	client   *cove.Client
	installs *installs // looks after sprites that nobody else acts in
	logger   *slog.Logger
	folder   string        // the objects of each review come to a file there
	slots    chan struct{} // has one for each sprite that there is
	packs    *room         // of the objects of all reviews
	fills    chan struct{} // differ.fills

	mu   sync.Mutex
	kept []keptDiff // the one that was asked for last at the end; guarded by mu
}

// keptDiff is a diff with the memory that an answer with it takes.
type keptDiff struct {
	cove.JobDiff
	weight int64
}

// errNoPlace is of a server that can't make a sprite.
var errNoPlace = errors.New("no sprite can be made here")

// again is a diff that was told before between the same commits, if it is kept.
func (a *apart) again(of cove.JobDiff) (d keptDiff, ok bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	i := slices.IndexFunc(a.kept, func(d keptDiff) bool {
		return d.Job == of.Job && d.Base == of.Base && d.Head == of.Head && d.Part == of.Part
	})
	if i < 0 {
		return d, false
	}
	d = a.kept[i]
	a.kept = append(slices.Delete(a.kept, i, i+1), d)
	return d, true
}

// keep keeps a diff, and forgets the least recently used one if there are more than maxKept.
func (a *apart) keep(d keptDiff) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.kept = append(a.kept, d)
	a.kept = slices.Clone(a.kept[max(0, len(a.kept)-maxKept):])
}

// collect copies the objects from a job's sprite into a file without a name.
func (a *apart) collect(ctx context.Context, room *share, pack func(context.Context, io.Writer) error) (file *os.File, size int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, packLimit)
	defer cancel()
	if err := os.MkdirAll(a.folder, 0o700); err != nil {
		return nil, 0, err
	}
	if file, err = os.CreateTemp(a.folder, "objects-*"); err != nil {
		return nil, 0, err
	}
	if err = os.Remove(file.Name()); err == nil {
		err = pack(ctx, roomWriter{w: file, of: room})
	}
	if err == nil {
		size, err = file.Seek(0, io.SeekCurrent)
	}
	if err == nil {
		_, err = file.Seek(0, io.SeekStart)
	}
	if err != nil {
		_ = file.Close()
		return nil, 0, err
	}
	return file, size, nil
}

// tell copies the objects from the job's sprite (pack writes them), and runs git on them in a
// sprite of its own. If the job's sprite makes it wait, that takes no room from other reviews.
// The answer takes its memory from hold.
func (a *apart) tell(ctx context.Context, of cove.JobDiff, hold *share, said io.Writer, pack func(context.Context, io.Writer) error) (*told, error) {
	room := &share{of: a.packs, by: hold.asker(), free: freePack}
	defer room.shrink(0)
	objects, size, err := a.collect(ctx, room, pack)
	if err != nil {
		return nil, err
	}
	defer objects.Close()
	select {
	case a.slots <- struct{}{}:
		defer func() { <-a.slots }()
	case <-ctx.Done():
		return nil, fmt.Errorf("%w: %w", errNoRoom, ctx.Err())
	}
	name := store.InstallName + randomID(4)
	a.installs.setBuilding(name, true)
	defer a.installs.setBuilding(name, false)
	defer func() {
		undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoLimit)
		defer cancel()
		if gone := a.client.Delete(undo, name, sprites.DeleteOptions{Force: true}); gone != nil && !errors.Is(gone, sprites.ErrNotFound) {
			a.logger.Warn("deleting the sprite of a review; it will be tried again", "sprite", name, "err", gone)
		}
	}()
	_, err = a.client.Create(ctx, sprites.CreateRequest{
		Base: sprites.HostBase, // its git is the host's, whatever the job's image is
		Name: name, Owner: store.InstallOwner + "review:" + of.Job, Config: &sprites.Config{RAMMB: apartMemory, StorageMB: apartDisk},
		NetworkPolicy: &sprites.NetworkPolicy{Rules: []sprites.NetworkRule{{Include: publishPreset}}},
	})
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errNoPlace, err)
	}
	return hear(ctx, a.fills, hold, func(ctx context.Context) *sprites.Cmd {
		cmd := a.client.Sprite(name).CommandContext(ctx, "/bin/sh", "-c", diffPrologue+diffUnpack+diffTell, "sh", of.Base, of.Head, "", strconv.FormatInt(size, 10), strconv.Itoa(maxCommits), "")
		cmd.Stderr = said
		return cmd
	}, func(_ context.Context, w io.Writer) error {
		_, err := io.Copy(w, objects)
		return err
	})
}

// packWriter is an error if more is written than it takes.
type packWriter struct {
	w    io.Writer
	left int64
}

var errPackTooLong = fmt.Errorf("it has more than %d MiB of objects to compare", maxPack>>20)

func (b *packWriter) Write(p []byte) (int, error) {
	if b.left -= int64(len(p)); b.left < 0 {
		return 0, errPackTooLong
	}
	return b.w.Write(p)
}
