package push

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"

	"github.com/cove-dev/cove/internal/gitwork"
	"github.com/cove-dev/cove/sprites"
)

// describeModules says what came for submodules.
func (c *Courier) describeModules(ctx context.Context, repo *gitwork.Repo, job sprites.Job, p *Pulled) error {
	changes, err := repo.ModuleChanges(ctx, job.ID, job.Base)
	if err != nil {
		return err
	}
	here := map[string]bool{}
	for _, change := range changes {
		m := Module{Path: change.Path, Base: change.Commit, Head: change.Head, Leftover: change.Leftover, Ref: gitwork.JobRef(job.ID, "head")}
		if m.Head == "" {
			m.Ref = gitwork.JobRef(job.ID, "leftover")
		}
		sum, err := change.Repo.Summary(ctx, m.Base, cmp.Or(m.Head, m.Leftover))
		if err != nil {
			return err
		}
		m.Commits, m.Files, m.Log = sum.Commits, sum.Files, sum.Log
		for _, risk := range sum.Risky {
			risk.Path = path.Join(m.Path, risk.Path)
			p.Risky = append(p.Risky, risk)
		}
		here[m.Path] = true
		p.Modules = append(p.Modules, m)
	}
	for i, risk := range p.Risky {
		if here[risk.Path] {
			p.Risky[i].Why = "a submodule, which moves to other commits"
		}
	}
	return nil
}

// sayModules tells how the submodules' work trees follow their commits.
func (p *Pulled) sayModules() {
	for _, m := range p.Modules {
		if m.Head != "" {
			p.say("the submodule %s has new commits, and its files are as before: git submodule update -- %s", m.Path, gitwork.Quote(m.Path))
		} else {
			p.say("changes in the submodule %s were left uncommitted; they are in %s there", m.Path, m.Ref)
		}
	}
}

// maxLarge bounds the large files of one job: each is asked for.
const maxLarge = 20_000

// bringLarge fetches the large files that the job's commits point to, as far as they
// are not here. One that the sprite doesn't have is named, and its pointer stays.
func (c *Courier) bringLarge(ctx context.Context, repo *gitwork.Repo, job sprites.Job, p *Pulled) error {
	files := p.Files
	if p.Leftover != nil {
		files = append(append([]gitwork.File{}, files...), p.Leftover.Files...)
	}
	large, err := repo.LargeFilesAmong(ctx, cmp.Or(job.Head, job.Base), files)
	if err != nil || len(large) == 0 {
		return err
	}
	if len(large) > maxLarge {
		return &gitwork.RejectedError{Reason: fmt.Sprintf("it has %d large files, and more than %d are not taken", len(large), maxLarge)}
	}
	var missing []string
	room := int64(MaxBundle)
	for _, f := range large {
		if file, err := repo.OpenLarge(f); err == nil {
			_ = file.Close()
			continue
		}
		if room -= f.Size; room < 0 {
			return &gitwork.RejectedError{Reason: fmt.Sprintf("its large files have more than %d bytes", int64(MaxBundle))}
		}
		err := c.bringOne(ctx, repo, job, f)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, sprites.ErrNotFound) {
			missing = append(missing, f.Path)
		} else if err != nil {
			return err
		}
	}
	if len(large) > len(missing) {
		p.say("the files of Git LFS are pointers until you type: git lfs checkout")
	}
	if len(missing) > 0 {
		p.say("content of Git LFS that did not come, but pointers to it: %s", gitwork.SomeNames(missing))
	}
	return nil
}

func (c *Courier) bringOne(ctx context.Context, repo *gitwork.Repo, job sprites.Job, f gitwork.LargeFile) error {
	body, err := c.Files.Open(ctx, placeOf(job), path.Dir(job.Bundle.Path)+"/"+sprites.LargeFilesOut+"/"+f.OID)
	if err != nil {
		return err
	}
	defer func() { _ = body.Close() }() // was read to the end, or is given up
	return repo.StoreLarge(f, body)
}
