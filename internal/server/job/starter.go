package job

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/lib/guestbin"
	"github.com/cove-dev/cove/internal/server/agents"
	"github.com/cove-dev/cove/internal/server/store"
	"github.com/cove-dev/cove/sprites"
)

// starter starts jobs whose repository is in their sprite. It hands a sprite what the
// supervisor and the agent need, and has the job followed.
type starter struct {
	jobs        *store.Jobs
	secrets     *store.Secrets
	client      *cove.Client
	steps       *steps
	patience    *patience
	connectors  *connectors
	supervisors *supervisors
	finisher    *finisher
	followers   *followers

	mu      sync.Mutex
	handing map[string]context.CancelCauseFunc // by job: ends the handing over; guarded by mu
}

// errStopped is why a job is not handed to its sprite: somebody has stopped it meanwhile.
var errStopped = errors.New("it was stopped before it began")

// halt ends the handing over of a job to its sprite, if that is under way. A job that may
// run already goes on.
func (s *starter) halt(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if cancel := s.handing[id]; cancel != nil {
		cancel(errStopped)
	}
}

// haltable is a context that halt ends until done is called.
func (s *starter) haltable(ctx context.Context, id string) (_ context.Context, done func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.handing == nil {
		s.handing = map[string]context.CancelCauseFunc{}
	}
	s.handing[id] = cancel
	return ctx, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.handing, id)
		cancel(nil)
	}
}

// begin starts a queued job with the repository in its sprite. The caller holds the job's
// lock.
func (s *starter) begin(ctx context.Context, job cove.Job, req cove.JobStart) (cove.Job, error) {
	ctx, done := s.haltable(ctx, job.ID)
	defer done()
	begun, err := s.start(ctx, job, req)
	if err != nil && errors.Is(context.Cause(ctx), errStopped) {
		err = fail.Newf("job_ended", "push again", "job %s: %v", job.ID, errStopped)
	}
	return begun, err
}

func (s *starter) start(ctx context.Context, job cove.Job, req cove.JobStart) (cove.Job, error) {
	id := job.ID
	if req.BundleSize > 0 {
		s.steps.complete(ctx, id, cove.StepUploadRepository, fmt.Sprintf("%d bytes", req.BundleSize+req.LargeBytes))
	} else if job.ResumeOf == "" {
		s.steps.skip(ctx, id, cove.StepUploadRepository, "the sprite clones "+job.URL)
	} else {
		s.steps.skip(ctx, id, cove.StepUploadRepository, "the job resumes in an existing clone")
	}
	var err error
	if job.Arch, err = s.bringSupervisor(ctx, job); err != nil {
		return job, fmt.Errorf("give job %s to its sprite: %w", id, err)
	}
	err = s.steps.retried(ctx, job, cove.StepCopySettings, func(ctx context.Context) (string, error) {
		return "", s.patiently(ctx, job, func() error { return s.hand(ctx, job, req) })
	})
	if err != nil {
		return job, fmt.Errorf("give job %s to its sprite: %w", id, err)
	}
	// From here on the job may run, and goes on whatever becomes of the request. The launch has
	// the limit of its step. Its result must be stored, also if the launch took all of that.
	ctx = context.WithoutCancel(ctx)
	err = s.jobs.Update(ctx, id, func(j *cove.Job) error {
		now := time.Now().UTC()
		j.State, j.StartedAt, j.Upload, j.Installing = cove.JobPreparing, &now, "", nil
		if req.BundleSize > 0 {
			j.Input = cove.Artifact{Path: job.Upload, Size: req.BundleSize, SHA256: req.BundleSHA256}
		}
		j.Arch, j.Shallow, j.LargeBytes = job.Arch, req.Shallow, req.LargeBytes
		return nil
	})
	if err != nil {
		return job, err
	}
	s.steps.begin(ctx, id, cove.StepStartSupervisor)
	if err := within(ctx, job, cove.StepStartSupervisor, func(ctx context.Context) error { return s.supervisors.launch(ctx, job) }); job.Backend != "" && err != nil && unheard(err) {
		// It may run. If it does not, the follower starts it.
		s.steps.warn(ctx, id, cove.StepStartSupervisor, clip(err.Error()))
	} else if err != nil {
		s.steps.fail(ctx, id, cove.StepStartSupervisor, err)
		outcome := cove.Outcome{Kind: agents.PrepareFailed, Reason: "its supervisor did not start: " + err.Error(), ExitCode: 1}
		_, finishErr := s.finisher.finish(ctx, id, cove.JobFailed, outcome, func(j *cove.Job) { j.Error = outcome.Reason })
		if finishErr != nil { // its follower finds out, and ends it
			s.followers.follow(id)
		}
		s.finisher.withdrawals.after(ctx, id)
		return job, errors.Join(fail.Newf("start_failed", cmp.Or(hintOf(err), "see its steps: cove job show "+id), "job %s: %s", id, outcome.Reason), finishErr)
	} else {
		s.steps.complete(ctx, id, cove.StepStartSupervisor, "")
	}
	s.steps.begin(ctx, id, cove.StepHealthCheck) // its log's first event ends it
	s.followers.follow(id)
	return s.jobs.Get(ctx, id)
}

// bringSupervisor sees that the sprite of a job at a backend can run the supervisor, and has it.
// It returns the sprite's architecture; empty: it is the server's.
func (s *starter) bringSupervisor(ctx context.Context, job cove.Job) (arch string, err error) {
	if job.Backend == "" {
		s.steps.skip(ctx, job.ID, cove.StepProbeArch, "the server's own sprites have its architecture")
		s.steps.skip(ctx, job.ID, cove.StepUploadSupervisor, "the server's own sprites have the supervisor")
		return "", nil
	}
	sprite := spriteOf(s.client, job)
	err = s.steps.retried(ctx, job, cove.StepProbeArch, func(ctx context.Context) (string, error) {
		err := s.patience.try(ctx, func() (err error) { arch, err = guestbin.Arch(ctx, sprite); return err })
		return arch, err
	})
	if err != nil {
		return "", err
	}
	return arch, s.steps.retried(ctx, job, cove.StepUploadSupervisor, func(ctx context.Context) (string, error) {
		upload := upload{steps: s.steps, job: job.ID}
		program := guestbin.Program{Arch: arch, Progress: func(sent, size int64) { upload.tell(ctx, sent, size) }}
		err := s.patience.try(ctx, func() error {
			upload.tries++
			_, err := program.Bring(ctx, sprite)
			return err
		})
		return upload.done(), err
	})
}

// upload tells how much of the supervisor has been sent.
type upload struct {
	steps *steps
	job   string
	tries int
	size  int64     // 0: nothing is sent
	last  time.Time // that it was told
}

// uploadInterval is how often it is told at most.
const uploadInterval = 500 * time.Millisecond

func (u *upload) tell(ctx context.Context, sent, size int64) {
	u.size = size
	if now := time.Now(); sent == size || now.Sub(u.last) >= uploadInterval {
		u.last = now
		u.steps.progress(ctx, u.job, cove.StepUploadSupervisor, fmt.Sprintf("%d of %d bytes", sent, size)+u.again())
	}
}

// again says which try it is, if it is not the first.
func (u *upload) again() string {
	if u.tries < 2 {
		return ""
	}
	return fmt.Sprintf(", try %d of %d", u.tries, patientTries)
}

func (u *upload) done() string {
	if u.size == 0 {
		return "the sprite had it already"
	}
	return fmt.Sprintf("%d bytes", u.size) + u.again()
}

// patiently calls f, and again if the job is at a backend that may do it later.
func (s *starter) patiently(ctx context.Context, job cove.Job, f func() error) error {
	if job.Backend == "" {
		return f()
	}
	return s.patience.try(ctx, f)
}

// hand writes what the supervisor and the agent need into the job's folder.
func (s *starter) hand(ctx context.Context, job cove.Job, start cove.JobStart) error {
	req, err := settingsOf(ctx, s.jobs, job.ID)
	if err != nil {
		return err
	}
	agent, err := agentOf(job.Agent, job.Definition)
	if err != nil {
		return err
	}
	t := taskOf(req, job)
	if t.Price, err = s.connectors.price(ctx, req); err != nil {
		return err
	}
	var masked []string
	for i, server := range t.MCP { // t has servers of its own: settingsOf has read them anew
		var used []string
		if t.MCP[i].Env, used, err = resolved(ctx, s.secrets, server.Env); err != nil {
			return err
		}
		masked = append(masked, used...)
	}
	work, err := agent.Prepare(t)
	if err != nil {
		return err
	}
	for _, name := range work.Programs {
		path, err := guestbin.Program{Name: name, Arch: job.Arch}.Bring(ctx, spriteOf(s.client, job))
		if err != nil {
			return err
		}
		work.Place(name, path)
	}
	if err := s.connectors.grant(ctx, job, work.Connectors); err != nil {
		return err
	}
	if err := s.connectors.grantRepository(ctx, job); err != nil {
		return err
	}
	if err := s.jobs.Update(ctx, job.ID, func(j *cove.Job) error { j.Handed = true; return nil }); err != nil {
		return err
	}
	sprite := spriteOf(s.client, job)
	for name, file := range work.Files {
		err := sprite.WriteFile(ctx, path.Join(t.Dir, name), bytes.NewReader(file.Data), sprites.WriteOptions{Mode: file.Mode})
		if err != nil {
			return err
		}
	}
	for _, f := range req.Settings {
		mode := fs.FileMode(0o644)
		if f.Executable {
			mode = 0o755
		}
		err := sprite.WriteFile(ctx, path.Join(t.Home, f.Path), strings.NewReader(f.Text), sprites.WriteOptions{Mode: mode})
		if err != nil {
			return err
		}
	}
	script := req.SetupScript
	if script != nil {
		script.Repository = cmp.Or(req.RepoID, req.URL)
	}
	env, used, err := resolved(ctx, s.secrets, req.Env)
	if err != nil {
		return err
	}
	bundle, branch := job.Upload, cmp.Or(job.Branch, "cove-"+job.ID)
	if job.URL != "" {
		bundle = bundleIn(job.ID) // its folder gets everything else
		branch = job.Branch       // empty: the one that the repository has for its default
	}
	spec, err := json.Marshal(cove.JobSpec{
		JobIdentity: cove.JobIdentity{ID: job.ID, Execution: job.Execution}, JobOrigin: cove.JobOrigin{Earlier: earlier(job), Remote: job.URL, Depth: job.Depth}, Bundle: bundle, BundleSHA256: start.BundleSHA256, Workdir: t.Workdir,
		Branch: branch, Base: job.Base, Author: req.Author,
		Shallow: start.Shallow, Store: cove.RepositoryStore(job.RepoID, start.Shallow),
		Program: work.Program, Installs: len(installCommands(work, job.Install)), Setup: slices.Concat(installCommands(work, job.Install), work.Setup), Argv: work.Argv, Env: append(work.Env, env...),
		Guards: job.Guards, Turn: work.Turn, Input: work.Input,
		TimeoutSec: job.TimeoutSec, GraceSec: int64(agentGrace / time.Second), CollectSec: s.followers.limits.collectSec(), TTY: job.Interactive,
		JobPreparation: cove.JobPreparation{Needs: needs(work, job.Install), SetupScript: script, Notices: notices(job.Install), StepLimits: job.StepLimits, Masked: append(masked, used...)},
	})
	if err != nil {
		return err
	}
	return sprite.WriteFile(ctx, t.Dir+"/job.json", bytes.NewReader(spec), sprites.WriteOptions{Mode: 0o600})
}
