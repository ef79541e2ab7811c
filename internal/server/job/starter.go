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
	connectors  *connectors
	supervisors *supervisors
	finisher    *finisher
	followers   *followers
}

// begin has a job that is queued, and whose lock is held, start with what is there.
func (s *starter) begin(ctx context.Context, job cove.Job, req cove.JobStart) (cove.Job, error) {
	id := job.ID
	if err := s.hand(ctx, job, req); err != nil {
		return job, fmt.Errorf("give job %s to its sprite: %w", id, err)
	}
	// From here on the job may run, and goes on whatever becomes of the request.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), startLimit)
	defer cancel()
	err := s.jobs.Update(ctx, id, func(j *cove.Job) error {
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
	if err := s.supervisors.launch(ctx, job); err != nil {
		outcome := cove.Outcome{Kind: agents.PrepareFailed, Reason: "its supervisor did not start: " + err.Error(), ExitCode: 1}
		_, finishErr := s.finisher.finish(ctx, id, cove.JobFailed, outcome, func(j *cove.Job) { j.Error = outcome.Reason })
		return job, errors.Join(fail.Newf("start_failed", "see the server's log", "job %s: %s", id, outcome.Reason), finishErr)
	}
	s.followers.follow(id)
	return s.jobs.Get(ctx, id)
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
		script.Repository = req.RepoID
	}
	env, err := resolved(ctx, s.secrets, req.Env)
	if err != nil {
		return err
	}
	spec, err := json.Marshal(cove.JobSpec{
		ID: job.ID, Bundle: job.Upload, Earlier: earlier(job), BundleSHA256: start.BundleSHA256, Workdir: t.Workdir,
		Branch: cmp.Or(job.Branch, "cove-"+job.ID), Base: job.Base, Author: req.Author,
		Shallow: start.Shallow, Store: cove.RepositoryStore(job.RepoID, start.Shallow),
		Setup: commands(work, job.Install), Argv: work.Argv, Env: append(work.Env, env...),
		Guards: job.Guards, Turn: work.Turn, Input: work.Input,
		TimeoutSec: job.TimeoutSec, GraceSec: int64(agentGrace / time.Second), CollectSec: s.followers.limits.collectSec(), TTY: job.Interactive,
		SetupScript: script, Notices: notices(job.Install),
	})
	if err != nil {
		return err
	}
	return sprite.WriteFile(ctx, t.Dir+"/job.json", bytes.NewReader(spec), sprites.WriteOptions{Mode: 0o600})
}
