package job

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/lib/boot"
	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/lib/keylock"
	"github.com/cove-dev/cove/internal/server/forge"
	"github.com/cove-dev/cove/internal/server/store"
	"github.com/cove-dev/cove/internal/shim/connect"
	"github.com/cove-dev/cove/sprites"
)

// publisher pushes the commits of jobs that have succeeded to the servers of their
// repositories. Neither the agent, nor anything that it may have left in its sprite, ever has
// the right to push. Each publication has a sprite of its own, whose only network is the
// connector. There cove-guest judges the changes as a pull does, and pushes. The server reads
// no more than its verdict. The jobs' rows say what must be done.
type publisher struct {
	jobs       *store.Jobs
	secrets    *store.Secrets
	client     *cove.Client
	connectors *connectors
	installs   *installs // looks after sprites that nobody else acts in
	jobSprites *jobSprites
	locks      *keylock.Mutex // of jobs
	logger     *slog.Logger   // for failures

	wake   chan struct{} // has one: there may be something to do
	wg     sync.WaitGroup
	cancel context.CancelFunc

	mu   sync.Mutex
	busy map[string]bool // jobs that are being published; guarded by mu
}

const (
	publishLimit  = 20 * time.Minute
	publishAtOnce = 4 // so that a slow server does not hold up the others
	publishTries  = 5
	maxVerdict    = 256 << 10
	maxRisky      = 50 // files of a verdict that a row has
	publishPrefix = "cove/"
	publishPreset = "none" // of the network: connectors are all that there is
)

// Start begins to publish, until Close.
func (p *publisher) Start(ctx context.Context) {
	ctx, p.cancel = context.WithCancel(ctx)
	p.wg.Go(func() {
		tick := time.NewTicker(janitorInterval)
		defer tick.Stop()
		for {
			p.all(ctx)
			select {
			case <-p.wake:
			case <-tick.C:
			case <-ctx.Done():
				return
			}
		}
	})
}

// Close waits until nothing is being published. A publication that is cut off is done again by the next
// server.
func (p *publisher) Close() {
	if p.cancel != nil {
		p.cancel()
		p.wg.Wait()
	}
}

// more says that there may be something to publish.
func (p *publisher) more() {
	select {
	case p.wake <- struct{}{}:
	default: // it looks soon anyway
	}
}

// begun is the publication that begins if a job ends with this state and result; nil: nothing
// is published.
func begun(job cove.Job, state cove.JobState, result cove.JobEnd) *cove.JobPublished {
	if job.Publish == "" || state != cove.JobSucceeded || result.Head == "" || result.Head == job.Base {
		return nil
	}
	return &cove.JobPublished{State: cove.PublishPending, Branch: publishPrefix + job.ID}
}

// again has a job's commits published once more, if that has failed. If they are published, or
// will be, it changes nothing.
func (p *publisher) again(ctx context.Context, id string) (cove.Job, error) {
	if job, err := finished(ctx, p.jobs, id); err != nil { // else a preparation may have the lock for long
		return job, err
	}
	unlock, err := p.locks.Lock(ctx, id) // its sprite, which has the commits, stays meanwhile
	if err != nil {
		return cove.Job{}, err
	}
	defer unlock()
	job, err := finished(ctx, p.jobs, id)
	if err == nil {
		err = publishable(job)
	}
	if err != nil || job.Published.State != cove.PublishFailed {
		return job, err
	}
	if job.WorkDeleted {
		return job, fail.Newf("not_kept", "push from a clone that has them", "the sprite of job %s is deleted, and its commits with it", id)
	}
	_, err = spriteOf(p.client, job).Stat(ctx, job.Bundle.Path)
	if errors.Is(err, sprites.ErrNotFound) {
		err = fail.Newf("not_kept", "push from a clone that has them", "the sprite of job %s is not there any more, or does not have its commits", id)
	}
	if err != nil {
		return job, err
	}
	err = p.jobs.Update(ctx, id, func(j *cove.Job) error {
		if j.Published != nil && j.Published.State == cove.PublishFailed {
			j.Published = &cove.JobPublished{State: cove.PublishPending, Branch: j.Published.Branch}
		}
		job = *j
		return nil
	})
	p.more()
	return job, err
}

// publishable returns an error if an ended job has nothing to publish.
func publishable(job cove.Job) error {
	none := func(format string, args ...any) error {
		return fail.Newf("not_published", "see what it has left: cove job show "+job.ID, "job %s %s", job.ID, fmt.Sprintf(format, args...))
	}
	switch {
	case job.Publish == "":
		return none("is not to be published: only the flag --publish or a profile asks for that")
	case job.State != cove.JobSucceeded:
		return none("has not succeeded (%s), so its commits are not published", job.State)
	case job.Published == nil:
		return none("has made no commits, so there is nothing to publish")
	case job.Published.State == cove.PublishHeld:
		var names []string
		for _, r := range job.Published.Risky {
			names = append(names, fmt.Sprintf("%q", r.Path))
		}
		return fail.Newf("risky", "review them in a clone, and push from there: cove pull "+job.ID, "job %s is not published: these files could run code on the machine of anyone who takes them: %s",
			job.ID, strings.Join(names, ", "))
	}
	return nil
}

// all begins the pending publications, at most publishAtOnce at a time.
func (p *publisher) all(ctx context.Context) {
	jobs, err := p.jobs.List(ctx, store.JobFilter{Publishing: true})
	if err != nil && ctx.Err() == nil {
		p.logger.Error("looking for what is to be published", "err", err)
	}
	for _, job := range jobs {
		if !p.take(job.ID) {
			continue
		}
		p.wg.Go(func() {
			err := p.one(ctx, job.ID)
			if err != nil && ctx.Err() == nil {
				p.logger.Warn("publishing the commits of a job", "job", job.ID, "err", err)
			}
			p.letOthers(job.ID)
			if err == nil {
				p.more()
			}
		})
	}
}

// take reports whether a job may be published now, and notes that it is.
func (p *publisher) take(id string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.busy[id] || len(p.busy) >= publishAtOnce {
		return false
	}
	if p.busy == nil {
		p.busy = map[string]bool{}
	}
	p.busy[id] = true
	return true
}

func (p *publisher) letOthers(id string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.busy, id)
}

// one publishes a job's commits, and notes the result.
func (p *publisher) one(ctx context.Context, id string) error {
	job, err := p.jobs.Get(ctx, id)
	if err != nil || !publishing(job) {
		return err
	}
	limited, cancel := context.WithTimeout(ctx, publishLimit)
	defer cancel()
	verdict, err := p.publish(limited, job)
	page := ""
	if err == nil && verdict.Pushed && verdict.Refused == "" && len(verdict.Risky) == 0 && job.Publish == cove.PublishPullRequest {
		page, err = p.open(limited, job)
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	noteErr := p.jobs.Update(ctx, id, func(j *cove.Job) error {
		if j.Published != nil {
			next := published(*j.Published, j.Head, verdict, err)
			next.URL = page
			j.Published = &next
		}
		return nil
	})
	return errors.Join(err, noteErr, p.letGo(ctx, id))
}

// publishing reports whether a job's commits must still be published.
func publishing(job cove.Job) bool {
	return job.Published != nil && job.Published.State == cove.PublishPending
}

// letGo deletes a job's sprite if it was to be deleted after a pull, and the job was pulled
// meanwhile.
func (p *publisher) letGo(ctx context.Context, id string) error {
	unlock, err := p.locks.Lock(ctx, id)
	if err != nil {
		return err
	}
	defer unlock()
	if err := p.jobSprites.letGo(ctx, id); !errors.Is(err, store.ErrNotFound) {
		return err
	}
	return nil
}

// published is the state of a publication after a try.
func published(was cove.JobPublished, head string, v cove.PublishVerdict, err error) cove.JobPublished {
	was.Error, was.Risky = "", nil
	switch {
	case err != nil:
		was.Error = clip(err.Error())
		if was.Tries++; was.Tries < publishTries {
			return was
		}
		was.State = cove.PublishFailed
		if v.Pushed {
			was.Commit = head // without its pull request
		}
	case len(v.Risky) > 0:
		was.State = cove.PublishHeld
		for _, r := range v.Risky[:min(len(v.Risky), maxRisky)] {
			was.Risky = append(was.Risky, cove.RiskyFile{Path: clip(r.Path), Why: clip(r.Why)})
		}
	case v.Pushed && v.Refused == "":
		was.State, was.Commit = cove.PublishDone, head
	default:
		was.State, was.Error = cove.PublishFailed, clip(v.Refused)
	}
	now := time.Now().UTC()
	was.Ended = &now
	return was
}

// publish makes a sprite, and has cove-guest judge and push there.
func (p *publisher) publish(ctx context.Context, job cove.Job) (v cove.PublishVerdict, err error) {
	name, path, err := p.connectors.repositoryConnector(ctx, job.URL)
	if err != nil {
		return v, err
	}
	if name == "" {
		return v, fmt.Errorf("no connector for git leads to %s any more", job.URL)
	}
	if v.Refused, err = p.unfit(ctx, job); err != nil || v.Refused != "" {
		return v, err
	}
	at := store.InstallName + randomID(4)
	p.installs.setBuilding(at, true)
	defer p.installs.setBuilding(at, false)
	defer func() {
		undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoLimit)
		defer cancel()
		if gone := p.client.Delete(undo, at, sprites.DeleteOptions{Force: true}); gone != nil && !errors.Is(gone, sprites.ErrNotFound) {
			p.logger.Warn("deleting the sprite of a publication; it will be tried again", "sprite", at, "err", gone)
		}
	}()
	_, err = p.client.Create(ctx, sprites.CreateRequest{
		Base: sprites.HostBase, // its git is the host's, whatever the job's image is
		Name: at, Owner: store.InstallOwner + "publish:" + job.ID, Config: &sprites.Config{StorageMB: publishDisk(job.Bundle.Size)},
		NetworkPolicy: &sprites.NetworkPolicy{Rules: []sprites.NetworkRule{{Include: publishPreset}}},
	})
	if err != nil {
		return v, err
	}
	sprite := p.client.Sprite(at)
	bundle := dir(job.ID) + "/publish.bundle"
	if err := carry(ctx, spriteOf(p.client, job), file{job.Bundle.Path, job.Bundle.Size, job.Bundle.SHA256}, sprite, bundle); err != nil {
		if _, other := errors.AsType[*fail.Error](err); other {
			v.Refused, err = fmt.Sprintf("its bundle in sprite %s is not as it was collected", job.Sprite), nil
		}
		return v, err
	}
	if err := p.client.GrantConnector(ctx, name, cove.ConnectorGrant{Sprite: at, Git: cove.GitGrant{Repository: path, Push: true}}); err != nil {
		return v, err
	}
	order, err := json.Marshal(cove.PublishOrder{
		Job: job.ID, URL: "http://" + name + "." + connect.Zone + path, Branch: job.Branch, Base: job.Base, Head: job.Head, Leftover: job.Leftover,
		Bundle: bundle, SHA256: job.Bundle.SHA256, Size: job.Bundle.Size, To: job.Published.Branch,
	})
	if err != nil {
		return v, err
	}
	var said head
	out := &limitedBuffer{left: maxVerdict}
	cmd := sprite.CommandContext(ctx, boot.BinDir+"/cove-guest", "publish")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(order), out, &said
	if err := cmd.Run(); err != nil {
		if info, there := p.client.Get(context.WithoutCancel(ctx), at); there == nil && info.Cove != nil && info.Cove.Held != nil {
			v.Refused = fmt.Sprintf("the branch %s and its bundle do not fit in a publication: %s", job.Branch, info.Cove.Held.Message)
			return v, nil
		}
		return v, fmt.Errorf("%w: %s", err, said.String())
	}
	if err := json.Unmarshal(out.Bytes(), &v); err != nil {
		return v, fmt.Errorf("read the verdict: %w", err)
	}
	return v, nil
}

// publishDisk is the limit of the disk of a publication, in MiB. It has room for the branch
// that the job began with, the bundle, its content, and git's copies of both.
func publishDisk(bundle int64) int {
	const room = 16 << 10
	return room + 4*int(min(max(bundle, 0), cove.MaxBundle)>>20)
}

// unfit says why the bundle of a job must not be copied to the disk of this server; empty: it
// may be. The server has no say in how long a bundle is, and the log that tells its length may
// be the agent's.
func (p *publisher) unfit(ctx context.Context, job cove.Job) (why string, err error) {
	info, err := p.client.At(job.Backend).Get(ctx, job.Sprite)
	if err != nil {
		return "", err
	}
	there, err := spriteOf(p.client, job).Stat(ctx, job.Bundle.Path)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, sprites.ErrNotFound) {
		return fmt.Sprintf("its bundle is not in sprite %s any more", job.Sprite), nil
	}
	if err != nil {
		return "", err
	}
	limit := int64(0)
	if info.Config != nil {
		limit = info.Config.DiskLimit()
	}
	return unfit(job, there.Size(), limit), nil
}

// unfit judges a bundle by its size in its sprite, and by the limit of the sprite's disk; 0:
// no limit.
func unfit(job cove.Job, size, limit int64) string {
	switch said := job.Bundle.Size; {
	case said < 0 || said > cove.MaxBundle:
		return fmt.Sprintf("its bundle has %d bytes, and more than %d are not taken", said, int64(cove.MaxBundle))
	case limit > 0 && said > limit:
		return fmt.Sprintf("its bundle has %d bytes; the limit of its sprite %s is %d", said, job.Sprite, limit)
	case size != said:
		return fmt.Sprintf("its bundle in sprite %s is not as it was collected: it has %d bytes, and had %d", job.Sprite, size, said)
	}
	return ""
}

// maxTitle bounds a pull request's title, in bytes.
const maxTitle = 200

// open opens a pull request for the branch that was pushed. The server does so itself: no
// sandbox has the right to.
func (p *publisher) open(ctx context.Context, job cove.Job) (page string, err error) {
	name, path, err := p.connectors.repositoryConnector(ctx, job.URL)
	if err != nil {
		return "", err
	}
	f, err := p.connectors.forge(ctx, name, p.secrets)
	if err != nil {
		return "", err
	}
	title := "Job " + job.ID
	if req, err := settingsOf(ctx, p.jobs, job.ID); err == nil { // else nobody knows the plan any more
		title = titleOf(req.Plan, title)
	}
	page, err = f.Open(ctx, forge.PullRequest{
		Repository: path, Head: job.Published.Branch, Base: job.Branch, Title: title,
		Body: fmt.Sprintf("Job %s of cove: the agent %s, by the plan %s.", job.ID, job.Agent, job.PlanName),
	})
	if err != nil {
		return "", fmt.Errorf("the branch %s is pushed; open a pull request for it: %w", job.Published.Branch, err)
	}
	return page, nil
}

// titleOf is the first line of a plan that has text and does not begin a block of code;
// without such a line, otherwise.
func titleOf(plan, otherwise string) string {
	for line := range strings.Lines(plan) {
		line = strings.TrimSpace(strings.TrimLeft(strings.TrimSpace(line), "#"))
		if line == "" || strings.HasPrefix(line, "```") {
			continue
		}
		if len(line) > maxTitle {
			line = strings.ToValidUTF8(line[:maxTitle], "") + "…"
		}
		return line
	}
	return otherwise
}

// limitedBuffer returns an error if more is written than it takes.
type limitedBuffer struct {
	bytes.Buffer
	left int
}

func (b *limitedBuffer) Write(p []byte) (int, error) {
	if b.left -= len(p); b.left < 0 {
		return 0, errors.New("the answer is too long")
	}
	return b.Buffer.Write(p)
}

// publishChoices are those of a request; empty: nothing is published.
var publishChoices = []string{cove.PublishBranch, cove.PublishPullRequest}

// publishText names them.
func publishText() string { return strings.Join(publishChoices, ", ") }
