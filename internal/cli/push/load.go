package push

import (
	"bufio"
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
	"sync"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/cli/gitwork"
	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/lib/printable"
	"github.com/cove-dev/cove/sprites"
)

// load is the part of a repository that goes to a job.
type load struct {
	gitwork.Outgoing
	id       string // of the repository
	branch   string // empty: HEAD is detached
	large    []large
	bundle   gitwork.Bundle
	policed  bool // not without its network policy
	messages []string
}

func (l *load) say(format string, args ...any) {
	l.messages = append(l.messages, printable.Name(fmt.Sprintf(format, args...)))
}

// load finds out what must go to the job.
func (c *Courier) load(ctx context.Context, repo *gitwork.Repo, opts Options) (*load, error) {
	if opts.Depth < 0 {
		return nil, fail.New("bad_option", "a depth can't be negative", "leave --depth out to send the whole history")
	}
	l := &load{policed: opts.Policed}
	var err error
	l.branch, l.Base, err = chooseBase(ctx, repo, opts.Dirty)
	if isPlan(repo, err, opts.PlanPath) {
		l.say("the plan %s is not committed: its text goes along, the file does not", filepath.Base(opts.PlanPath))
		err = nil
	}
	if err != nil {
		return nil, err
	}
	if err := l.withModules(ctx, repo, opts.Dirty); err != nil {
		return nil, err
	}
	if l.id, err = repo.ID(ctx, l.Base); err != nil {
		return nil, err
	}
	if l.Shallow, err = repo.Cut(ctx, l.Base, opts.Depth, l.Modules); err != nil {
		return nil, err
	}
	store := cove.RepositoryStore(l.id, l.Shallow)
	if opts.Sprite != "" {
		l.Have = c.have(ctx, Place{opts.Backend, opts.Sprite}, store)
	}
	return l, c.withLarge(ctx, repo, l, Place{opts.Backend, opts.Sprite}, store)
}

// large is a large file of the repository, or of a submodule.
type large struct {
	gitwork.LargeFile
	repo *gitwork.Repo
}

// withLarge adds the large files of the commit, and of the submodules, that are here and
// not in the sprite.
func (c *Courier) withLarge(ctx context.Context, repo *gitwork.Repo, l *load, at Place, store string) error {
	files, err := largeFiles(ctx, repo, l)
	if err != nil || len(files) == 0 {
		return err
	}
	there := map[string]bool{}
	if at.Sprite != "" {
		names, err := c.Files.List(ctx, at, store+"/lfs")
		if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, sprites.ErrNotFound) {
			return err
		}
		for _, name := range names {
			there[name] = true
		}
	}
	var missing []string
	for _, f := range files {
		if there[f.OID] {
			continue
		}
		switch file, err := f.repo.OpenLarge(f.LargeFile); {
		case errors.Is(err, fs.ErrNotExist):
			missing = append(missing, f.Path)
		case err != nil:
			return err
		default:
			_ = file.Close()
			there[f.OID] = true
			l.large = append(l.large, f)
		}
	}
	// Another repository may have the content that one lacks.
	missing = slices.DeleteFunc(missing, func(name string) bool {
		i := slices.IndexFunc(files, func(f large) bool { return f.Path == name })
		return there[files[i].OID]
	})
	if len(missing) > 0 {
		l.say("content of Git LFS that is not here will be missing there, too: %s; to get it first: %s", gitwork.SomeNames(missing), l.pullLarge(missing))
	}
	return nil
}

// largeFiles lists the large files of the commit and of the submodules. Their paths begin at
// the top of the outermost work tree.
func largeFiles(ctx context.Context, repo *gitwork.Repo, l *load) ([]large, error) {
	var all []large
	for _, m := range append([]gitwork.Module{{Commit: l.Base, Repo: repo}}, l.Modules...) {
		files, err := m.Repo.LargeFiles(ctx, m.Commit)
		if err != nil {
			return nil, err
		}
		for _, f := range files {
			f.Path = path.Join(m.Path, f.Path)
			all = append(all, large{f, m.Repo})
		}
	}
	return all, nil
}

// pullLarge is the command that gets the content of the files.
func (l *load) pullLarge(missing []string) string {
	var commands []string
	add := func(command string) {
		if !slices.Contains(commands, command) {
			commands = append(commands, command)
		}
	}
	for _, name := range missing {
		in := "" // the innermost submodule
		for _, m := range l.Modules {
			if strings.HasPrefix(name, m.Path+"/") && len(m.Path) > len(in) {
				in = m.Path
			}
		}
		add(gitIn(in) + " lfs pull")
	}
	return strings.Join(commands, " && ")
}

// gitIn is the git command for a submodule; for "", it is that for the current folder.
func gitIn(module string) string {
	if module == "" {
		return "git"
	}
	return "git -C " + printable.Word(module)
}

// largeBytes is the total size of the large files, which are sent beside the bundle.
func (l *load) largeBytes() (total int64) {
	for _, f := range l.large {
		total += f.Size
	}
	return total
}

// sendLarge uploads the large files beside the bundle.
func (c *Courier) sendLarge(ctx context.Context, job cove.Job, load *load) error {
	if len(load.large) == 0 {
		return nil
	}
	track := c.track("large files", load.largeBytes())
	defer track.done()
	for _, f := range load.large {
		if err := c.sendOne(ctx, job, f, track); err != nil {
			return fmt.Errorf("send the large file %s: %w", printable.Name(f.Path), err)
		}
	}
	return nil
}

func (c *Courier) sendOne(ctx context.Context, job cove.Job, f large, track *tracker) error {
	before := track.n
	err := c.outlast(ctx, func() error {
		file, err := f.repo.OpenLarge(f.LargeFile)
		if err != nil {
			return err
		}
		defer func() { _ = file.Close() }()
		return c.Files.Write(ctx, placeOf(job), path.Dir(job.Upload)+"/"+cove.LargeFilesIn+"/"+f.OID, file, f.Size)
	})
	track.at(before + f.Size)
	return err
}

// chooseBase applies the policy for changes that are not committed.
func chooseBase(ctx context.Context, repo *gitwork.Repo, dirty Dirty) (branch, base string, err error) {
	branch, base, err = repo.Head(ctx)
	if err != nil {
		return "", "", err
	}
	switch dirty {
	case DirtyRefuse, "":
		err = repo.CheckClean(ctx)
	case DirtyInclude:
		base, err = repo.Snapshot(ctx, base)
	case DirtyIgnore:
	default:
		err = fail.New("bad_option", fmt.Sprintf("--dirty %s is not one of the choices", printable.Name(string(dirty))), "use refuse, include or ignore")
	}
	return branch, base, err
}

// isPlan reports whether an error is only about the plan's own file. The plan's text is sent
// in any case.
func isPlan(repo *gitwork.Repo, err error, plan string) bool {
	e, ok := errors.AsType[*fail.Error](err)
	if !ok || !errors.Is(e, gitwork.ErrDirty) || len(e.Paths) != 1 || plan == "" {
		return false
	}
	a, errA := os.Stat(plan)
	b, errB := os.Stat(filepath.Join(repo.Dir, e.Paths[0]))
	return errA == nil && errB == nil && os.SameFile(a, b)
}

// withModules adds the submodules. Uncommitted changes inside a submodule are never
// sent. They are an error, unless dirty is DirtyIgnore.
func (l *load) withModules(ctx context.Context, repo *gitwork.Repo, dirty Dirty) error {
	modules, absent, err := repo.Modules(ctx, l.Base)
	if err != nil {
		return err
	}
	if len(absent) > 0 {
		l.say("left out, as they are not checked out here: %s; to send them, too: git submodule update --init --recursive", gitwork.SomeNames(absent))
	}
	if dirty != DirtyIgnore {
		if err := gitwork.CheckModules(ctx, modules); err != nil {
			return err
		}
	}
	l.Modules = modules
	return nil
}

// maxHaveFile bounds what a sprite says it has.
const maxHaveFile = 64 << 10

// have asks a sprite which commits of the repository it has. If the answer is wrong, the
// job fails before it begins, and says so. After an error, have returns nil.
func (c *Courier) have(ctx context.Context, at Place, store string) []string {
	f, err := c.Files.Open(ctx, at, store+"/have")
	if err != nil {
		return nil
	}
	defer func() { _ = f.Close() }()
	var have []string
	sc := bufio.NewScanner(io.LimitReader(f, maxHaveFile))
	for sc.Scan() {
		have = append(have, sc.Text())
	}
	return have
}

// packStages come in this order; git's last words of one may come late.
var packStages = []string{"count", "compress", "bundle"}

// pack writes the bundle into a file, and shows how far it is.
func (c *Courier) pack(ctx context.Context, repo *gitwork.Repo, file io.Writer, l *load) (gitwork.Bundle, error) {
	var mu sync.Mutex // git's two streams are read at once
	track := c.track(packStages[0], 0)
	if c.Progress != nil {
		l.Progress = func(stage string, done, total int64) {
			mu.Lock()
			defer mu.Unlock()
			if slices.Index(packStages, stage) > slices.Index(packStages, track.stage) {
				track.done()
				track = c.track(stage, total)
			}
			if stage == track.stage {
				track.total = total
				track.at(done)
			}
		}
	}
	bundle, err := repo.Bundle(ctx, file, l.Outgoing)
	track.done()
	return bundle, err
}
