package push

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/cli/gitwork"
	"github.com/cove-dev/cove/internal/lib/printable"
	"github.com/cove-dev/cove/internal/lib/riskypath"
	"github.com/cove-dev/cove/sprites"
)

// describeModules says what came for submodules. It judges their files like those of the
// repository itself.
func describeModules(ctx context.Context, repo *gitwork.Repo, job cove.Job, p *Pulled) ([]module, error) {
	modules, err := modulesOf(ctx, repo, job)
	if err != nil {
		return nil, err
	}
	for _, m := range modules {
		p.Modules = append(p.Modules, m.Module)
		if m.Head != "" {
			p.held = append(slices.Clip(p.held), m.risky...)
		}
		p.Risky = append(slices.Clip(p.Risky), m.risky...)
		p.Listed = append(slices.Clip(p.Listed), m.listed...)
	}
	p.Risky, p.held = unknown(p.Risky, modules), unknown(p.held, modules)
	return modules, nil
}

// module is a Module, with its repository.
type module struct {
	Module
	repo  *gitwork.Repo
	risky []gitwork.Risk // paths are from the top of the outermost work tree

	listed []gitwork.Risk // likewise
	left   []gitwork.File // uncommitted, above the commits
}

// modulesOf lists a job's work in submodules, as far as it is here.
func modulesOf(ctx context.Context, repo *gitwork.Repo, job cove.Job) ([]module, error) {
	changes, err := repo.ModuleChanges(ctx, job.ID, job.Base)
	if err != nil {
		return nil, err
	}
	if len(changes) == 0 {
		return nil, nil
	}
	inside, err := repo.Inside(ctx, cmp.Or(job.Head, job.Base))
	if err != nil {
		return nil, err
	}
	var modules []module
	for _, change := range changes {
		m := module{Module{Path: change.Path, Base: change.Commit, Head: change.Head, Leftover: change.Leftover, Ref: gitwork.JobRef(job.ID, "head")}, change.Repo, nil, nil, nil}
		if m.Head == "" {
			m.Ref = gitwork.JobRef(job.ID, "leftover")
		}
		sum, err := change.Repo.Summary(ctx, m.Base, cmp.Or(m.Head, m.Leftover))
		if err != nil {
			return nil, err
		}
		m.Commits, m.Files, m.Log = sum.Commits, sum.Files, sum.Log
		held := map[string]bool{}
		for _, risk := range sum.Risky {
			held[risk.Path] = true
			m.risky = append(m.risky, m.place(risk))
		}
		for _, f := range sum.Files {
			at := path.Join(m.Path, f.Path)
			if why := cmp.Or(riskypath.Path(at), inside(at)); why != "" && !held[f.Path] {
				held[f.Path] = true
				m.risky = append(m.risky, m.place(gitwork.Risk{Path: f.Path, Why: why}))
			}
		}
		for _, risk := range sum.Listed {
			if !held[risk.Path] {
				m.listed = append(m.listed, m.place(risk))
			}
		}
		if m.Head != "" && m.Leftover != "" {
			above, err := change.Repo.Summary(ctx, m.Head, m.Leftover)
			if err != nil {
				return nil, err
			}
			m.left = above.Files
		}
		modules = append(modules, m)
	}
	return modules, nil
}

// place makes a path of a submodule one from the top of the outermost work tree.
func (m *module) place(risk gitwork.Risk) gitwork.Risk {
	risk.Path = path.Join(m.Path, risk.Path)
	if m.Head == "" {
		risk.Why += inLeftover
	}
	return risk
}

const inLeftover = " (in what was left uncommitted)"

// unknown leaves out the submodules that point to commits that came for them: the files of
// those commits are among the risks themselves.
func unknown(risky []gitwork.Risk, modules []module) []gitwork.Risk {
	left := []gitwork.Risk{}
	for _, risk := range risky {
		came := slices.ContainsFunc(modules, func(m module) bool {
			return risk.Path == m.Path && risk.Commit != "" && (risk.Commit == m.Head || risk.Commit == m.Leftover)
		})
		if !came {
			left = append(left, risk)
		}
	}
	return left
}

// follow says how to bring the files of submodules to the commits that the branch has now. It
// does so, too, for the files of Git LFS in the repositories in large ("" is the repository
// itself). The order matters.
func follow(modules []module, large []string) (messages []string) {
	update, checkout := "", []string{}
	for _, m := range modules {
		inside := slices.ContainsFunc(modules, func(other module) bool { return strings.HasPrefix(m.Path, other.Path+"/") })
		if m.Head != "" && !inside {
			update += " " + printable.Word(m.Path)
		}
	}
	for _, module := range large {
		checkout = append(checkout, gitIn(module)+" lfs checkout")
	}
	if update != "" {
		messages = append(messages, "the files of submodules are as before; to get their new commits: git submodule update --recursive --"+update)
	}
	if len(checkout) > 0 {
		messages = append(messages, "the files of Git LFS are pointers until you type: "+strings.Join(checkout, " && "))
	}
	return messages
}

// sayLeftovers tells of changes that were left uncommitted in submodules.
func (p *Pulled) sayLeftovers() {
	for _, m := range p.Modules {
		if m.Leftover != "" {
			p.say("changes in the submodule %s were left uncommitted; look at them: cove job diff %s --leftover; take them: %s cherry-pick --no-commit %s",
				m.Path, p.Job, gitIn(m.Path), gitwork.JobRef(p.Job, "leftover"))
		}
	}
}

// maxLarge bounds the large files of one job: each is asked for.
const maxLarge = 20_000

// bringLarge fetches the large files that the job's commits point to, in submodules, too, if
// they are not here. It names a file that the sprite doesn't have, and keeps its pointer. It
// returns the places that have large files: paths of submodules, and "" for the repository.
func (c *Courier) bringLarge(ctx context.Context, repo *gitwork.Repo, job cove.Job, p *Pulled, modules []module) ([]string, error) {
	files := p.Files
	if p.Leftover != nil {
		files = slices.Concat(files, p.Leftover.Files)
	}
	b := &largeBringer{Courier: c, job: job, count: maxLarge, room: MaxBundle}
	if err := b.bring(ctx, repo, "", cmp.Or(job.Head, job.Base), files); err != nil {
		return nil, err
	}
	for _, m := range modules {
		if err := b.bring(ctx, m.repo, m.Path, cmp.Or(m.Head, m.Leftover), slices.Concat(m.Files, m.left)); err != nil {
			return nil, err
		}
	}
	if len(b.missing) > 0 {
		p.say("only pointers came of this content of Git LFS: %s", gitwork.SomeNames(b.missing))
	}
	return b.here, nil
}

// largeBringer fetches the large files of a job.
type largeBringer struct {
	*Courier
	job   cove.Job
	count int   // how many more are taken
	room  int64 // likewise, bytes

	missing []string // paths
	here    []string // repositories with content that is here
}

// bring fetches those among the files of a commit of a submodule, or with "" of the
// repository itself.
func (b *largeBringer) bring(ctx context.Context, repo *gitwork.Repo, at, commit string, files []gitwork.File) error {
	large, err := repo.LargeFilesAmong(ctx, commit, files)
	if err != nil {
		return err
	}
	if b.count -= len(large); b.count < 0 {
		return &gitwork.RejectedError{Reason: fmt.Sprintf("it has more than %d large files", maxLarge)}
	}
	lack := 0
	for _, f := range large {
		if file, err := repo.OpenLarge(f); err == nil {
			_ = file.Close()
			continue
		}
		if b.room -= f.Size; b.room < 0 {
			return &gitwork.RejectedError{Reason: fmt.Sprintf("its large files have more than %d bytes", int64(MaxBundle))}
		}
		err := b.bringOne(ctx, repo, f)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, sprites.ErrNotFound) {
			b.missing = append(b.missing, path.Join(at, f.Path))
			lack++
		} else if err != nil {
			return err
		}
	}
	if len(large) > lack {
		b.here = append(b.here, at)
	}
	return nil
}

func (b *largeBringer) bringOne(ctx context.Context, repo *gitwork.Repo, f gitwork.LargeFile) error {
	body, err := b.Files.Open(ctx, placeOf(b.job), path.Dir(b.job.Bundle.Path)+"/"+cove.LargeFilesOut+"/"+f.OID)
	if err != nil {
		return err
	}
	defer func() { _ = body.Close() }() // was read to the end, or is given up
	return repo.StoreLarge(f, body)
}
