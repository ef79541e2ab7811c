package push

import (
	"context"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/cli/gitwork"
)

// wrapped is a plan and a repository, ready to be sent.
type wrapped struct {
	repo *gitwork.Repo
	load *load
	file *gitwork.TempFile // the bundle; its owner removes it
	req  cove.JobRequest
}

// wrap does the part of a push that is done on this machine.
func (c *Courier) wrap(ctx context.Context, opts Options) (w *wrapped, err error) {
	plan, name, err := ReadPlan(opts)
	if err != nil {
		return nil, err
	}
	w = &wrapped{}
	if w.repo, err = gitwork.Open(ctx, opts.Dir); err != nil {
		return nil, err
	}
	if w.load, err = c.load(ctx, w.repo, opts); err != nil {
		return nil, err
	}
	network, err := withRemotes(ctx, w.repo, opts)
	if err != nil {
		return nil, err
	}
	if w.file, err = w.repo.TempFile("push-"); err != nil {
		return nil, err
	}
	if w.load.bundle, err = c.pack(ctx, w.repo, w.file, w.load); err != nil {
		w.file.Remove()
		return nil, err
	}
	w.req = cove.JobRequest{
		Early:       true,
		Plan:        plan,
		Author:      w.repo.Author(),
		Config:      opts.Config,
		Include:     opts.Include,
		Env:         opts.Env,
		SetupScript: opts.SetupScript,
		Settings:    opts.Settings,
		JobSettings: opts.JobSettings,
		JobSource:   cove.JobSource{PlanName: name, Repository: w.repo.Name(), RepoID: w.load.id, Branch: w.load.branch, Base: w.load.Base},
	}
	w.req.NetworkPolicy = network
	return w, nil
}

// Preview is what a push would be.
type Preview struct {
	cove.JobPreview

	Asked      bool     `json:"asked"` // a server, which has looked at the request
	Branch     string   `json:"branch"`
	Base       string   `json:"base"`
	Commits    int      `json:"commits"` // that would be sent
	Bytes      int64    `json:"bytes"`   // of the bundle
	LargeFiles int      `json:"large_files,omitempty"`
	LargeBytes int64    `json:"large_bytes,omitempty"`
	Messages   []string `json:"messages,omitempty"` // as in Result

	Repository string `json:"repository,omitempty"` // as in Result
}

// Preview does the part of a push that is done on this machine, and calls ask with the
// request that a push would send. It sends nothing. If opts.Dirty is include, it makes the
// snapshot, as unreferenced objects.
func (c *Courier) Preview(ctx context.Context, opts Options, ask func(context.Context, cove.JobRequest) (cove.JobPreview, error)) (Preview, error) {
	if opts.Remote {
		req, err := remoteRequest(ctx, opts)
		if err != nil {
			return Preview{}, err
		}
		p := Preview{Branch: opts.Branch, Repository: opts.URL}
		p.JobPreview, err = ask(ctx, req)
		return p, err
	}
	w, err := c.wrap(ctx, opts)
	if err != nil {
		return Preview{}, err
	}
	defer w.file.Remove()
	p := Preview{Branch: w.load.branch, Base: w.load.Base, Bytes: w.load.bundle.Size, LargeFiles: len(w.load.large), LargeBytes: w.load.largeBytes(), Messages: w.load.messages}
	if p.Commits, err = w.repo.Count(ctx, w.load.Outgoing); err != nil {
		return p, err
	}
	p.JobPreview, err = ask(ctx, w.req)
	return p, err
}
