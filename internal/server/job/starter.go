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
	"runtime"
	"slices"
	"strings"
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
}

// begin has a job that is queued, and whose lock is held, start with what is there.
func (s *starter) begin(ctx context.Context, job cove.Job, req cove.JobStart) (cove.Job, error) {
	id := job.ID
	if req.BundleSize > 0 {
		s.steps.complete(ctx, id, cove.StepUploadRepository, fmt.Sprintf("%d bytes", req.BundleSize+req.LargeBytes))
	} else if job.ResumeOf == "" {
		s.steps.skip(ctx, id, cove.StepUploadRepository, "the sprite clones "+job.URL)
	} else {
		s.steps.skip(ctx, id, cove.StepUploadRepository, "the job goes on in a clone that is there")
	}
	if err := s.bringSupervisor(ctx, job); err != nil {
		return job, fmt.Errorf("give job %s to its sprite: %w", id, err)
	}
	err := s.steps.retried(ctx, id, cove.StepCopySettings, func() error {
		return s.patiently(ctx, job, func() error { return s.hand(ctx, job, req) })
	})
	if err != nil {
		return job, fmt.Errorf("give job %s to its sprite: %w", id, err)
	}
	// From here on the job may run, and goes on whatever becomes of the request.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), startLimit)
	defer cancel()
	err = s.jobs.Update(ctx, id, func(j *cove.Job) error {
		now := time.Now().UTC()
		j.State, j.StartedAt, j.Upload, j.Installing = cove.JobPreparing, &now, "", nil
		if req.BundleSize > 0 {
			j.Input = cove.Artifact{Path: job.Upload, Size: req.BundleSize, SHA256: req.BundleSHA256}
		}
		j.Shallow, j.LargeBytes = req.Shallow, req.LargeBytes
		return nil
	})
	if err != nil {
		return job, err
	}
	s.steps.begin(ctx, id, cove.StepStartSupervisor)
	if err := s.supervisors.launch(ctx, job); job.Backend != "" && err != nil && unheard(err) {
		// It may run. If it does not, the follower starts it.
		s.steps.warn(ctx, id, cove.StepStartSupervisor, clip(err.Error()))
	} else if err != nil {
		s.steps.fail(ctx, id, cove.StepStartSupervisor, err)
		outcome := cove.Outcome{Kind: agents.PrepareFailed, Reason: "its supervisor did not start: " + err.Error(), ExitCode: 1}
		_, finishErr := s.finisher.finish(ctx, id, cove.JobFailed, outcome, func(j *cove.Job) { j.Error = outcome.Reason })
		return job, errors.Join(fail.Newf("start_failed", "see the server's log", "job %s: %s", id, outcome.Reason), finishErr)
	} else {
		s.steps.complete(ctx, id, cove.StepStartSupervisor, "")
	}
	s.steps.begin(ctx, id, cove.StepHealthCheck) // its log's first event ends it
	s.followers.follow(id)
	return s.jobs.Get(ctx, id)
}

// bringSupervisor sees that the sprite of a job at a backend can run the supervisor, and has it.
func (s *starter) bringSupervisor(ctx context.Context, job cove.Job) error {
	if job.Backend == "" {
		s.steps.skip(ctx, job.ID, cove.StepProbeArch, "the server's own sprites have its architecture")
		s.steps.skip(ctx, job.ID, cove.StepUploadSupervisor, "the server's own sprites have the supervisor")
		return nil
	}
	sprite := spriteOf(s.client, job)
	err := s.steps.retried(ctx, job.ID, cove.StepProbeArch, func() error {
		return s.patience.try(ctx, func() error { return probeArch(ctx, sprite, job.Backend) })
	})
	if err != nil {
		return err
	}
	return s.steps.retried(ctx, job.ID, cove.StepUploadSupervisor, func() error {
		return s.patience.try(ctx, func() error {
			_, err := guestbin.Bring(ctx, sprite)
			return err
		})
	})
}

// patiently calls f, and again if the job is at a backend that may do it later.
func (s *starter) patiently(ctx context.Context, job cove.Job, f func() error) error {
	if job.Backend == "" {
		return f()
	}
	return s.patience.try(ctx, f)
}

// machines are what uname calls the architectures that Go has other words for.
var machines = map[string]string{"x86_64": "amd64", "aarch64": "arm64"}

// probeArch refuses a sprite in which this server's supervisor can't run. Nothing that
// answers is as good as the right answer: its start will tell.
func probeArch(ctx context.Context, sprite *sprites.Sprite, backend string) error {
	out, err := sprite.CommandContext(ctx, "uname", "-m").Output()
	if _, ok := errors.AsType[*sprites.ExitError](err); ok {
		return nil
	} else if err != nil {
		return err
	}
	machine := strings.TrimSpace(string(out[:min(len(out), 64)]))
	if arch, ok := machines[machine]; ok && arch != runtime.GOARCH {
		return fail.Newf("wrong_arch", "choose a backend, or a server, of the same architecture",
			"sprite %s of the backend %s is %s, and this server's supervisor is for %s", sprite.Name(), backend, arch, runtime.GOARCH)
	}
	return nil
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
	work, err := agent.Prepare(t)
	if err != nil {
		return err
	}
	for _, name := range work.Programs {
		path, err := guestbin.BringProgram(ctx, spriteOf(s.client, job), name)
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
	env, err := resolved(ctx, s.secrets, req.Env)
	if err != nil {
		return err
	}
	bundle, branch := job.Upload, cmp.Or(job.Branch, "cove-"+job.ID)
	if job.URL != "" {
		bundle = bundleIn(job.ID) // its folder has what else comes
		branch = job.Branch       // empty: the one that the repository has for its default
	}
	spec, err := json.Marshal(cove.JobSpec{
		ID: job.ID, JobOrigin: cove.JobOrigin{Earlier: earlier(job), Remote: job.URL, Depth: job.Depth}, Bundle: bundle, BundleSHA256: start.BundleSHA256, Workdir: t.Workdir,
		Branch: branch, Base: job.Base, Author: req.Author,
		Shallow: start.Shallow, Store: cove.RepositoryStore(job.RepoID, start.Shallow),
		Program: work.Program, Needs: needs(work, job.Install), Installs: len(installCommands(work, job.Install)), Setup: slices.Concat(installCommands(work, job.Install), work.Setup), Argv: work.Argv, Env: append(work.Env, env...),
		Guards: job.Guards, Turn: work.Turn, Input: work.Input,
		TimeoutSec: job.TimeoutSec, GraceSec: int64(agentGrace / time.Second), CollectSec: s.followers.limits.collectSec(), TTY: job.Interactive,
		SetupScript: script, Notices: notices(job.Install),
	})
	if err != nil {
		return err
	}
	return sprite.WriteFile(ctx, t.Dir+"/job.json", bytes.NewReader(spec), sprites.WriteOptions{Mode: 0o600})
}
