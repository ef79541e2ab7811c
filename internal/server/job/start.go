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
	"github.com/cove-dev/cove/sprites"
)

const (
	agentGrace = 10 * time.Second
	startLimit = 2 * time.Minute
	undoLimit  = time.Minute
)

// Start starts the supervisor of a job whose bundle is in place. A job that has
// been started already is left alone.
func (m *Manager) Start(ctx context.Context, id string, req cove.JobStart) (cove.Job, error) {
	if !sha256ID.MatchString(req.BundleSHA256) || req.BundleSize <= 0 {
		return cove.Job{}, fail.Newf("bad_request", "", "the bundle's size and sha256 must be given")
	}
	for _, commit := range req.Shallow {
		if !commitID.MatchString(commit) {
			return cove.Job{}, fail.Newf("bad_request", "", "%.80q is no commit to cut a history off at", commit)
		}
	}
	unlock, err := m.lockJob(ctx, id)
	if err != nil {
		return cove.Job{}, err
	}
	defer unlock()
	job, err := m.Store.Jobs.Get(ctx, id)
	if err != nil {
		return job, err
	}
	switch {
	case job.State.Terminal():
		return job, fail.Newf("job_ended", "push again", "job %s has ended: %s", id, job.State)
	case job.State == cove.JobInstalling:
		return job, stillInstalling(id)
	case job.State != cove.JobQueued:
		return job, nil
	}
	return m.begin(ctx, job, req)
}

// begin has a job that is queued, and whose lock is held, start with what is there.
func (m *Manager) begin(ctx context.Context, job cove.Job, req cove.JobStart) (cove.Job, error) {
	id := job.ID
	if err := m.hand(ctx, job, req); err != nil {
		return job, fmt.Errorf("give job %s to its sprite: %w", id, err)
	}
	// From here on the job may run, and goes on whatever becomes of the request.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), startLimit)
	defer cancel()
	err := m.Store.Jobs.Update(ctx, id, func(j *cove.Job) error {
		now := time.Now().UTC()
		j.State, j.StartedAt, j.Upload, j.Installing = cove.JobPreparing, &now, "", nil
		if req.BundleSize > 0 {
			j.Input = cove.Artifact{Path: job.Upload, Size: req.BundleSize, SHA256: req.BundleSHA256}
		}
		j.Shallow = req.Shallow
		return nil
	})
	if err != nil {
		return job, err
	}
	if err := m.launch(ctx, job); err != nil {
		outcome := cove.Outcome{Kind: agents.PrepareFailed, Reason: "its supervisor did not start: " + err.Error(), ExitCode: 1}
		_, finishErr := m.finish(ctx, id, cove.JobFailed, outcome, func(j *cove.Job) { j.Error = outcome.Reason })
		return job, errors.Join(fail.Newf("start_failed", "see the server's log", "job %s: %s", id, outcome.Reason), finishErr)
	}
	m.follow(id)
	return m.Store.Jobs.Get(ctx, id)
}

// hand writes what the supervisor and the agent need into the job's folder.
func (m *Manager) hand(ctx context.Context, job cove.Job, start cove.JobStart) error {
	settings, err := m.Store.Jobs.Settings(ctx, job.ID)
	if err != nil {
		return err
	}
	var req cove.JobRequest
	if err := json.Unmarshal(settings, &req); err != nil {
		return fmt.Errorf("read the job's settings: %w", err)
	}
	agent, err := agentOf(job.Agent, job.Definition)
	if err != nil {
		return err
	}
	t := taskOf(req, job)
	if t.Price, err = m.price(ctx, req); err != nil {
		return err
	}
	work, err := agent.Prepare(t)
	if err != nil {
		return err
	}
	for _, name := range work.Programs {
		path, err := guestbin.BringProgram(ctx, m.sprite(job), name)
		if err != nil {
			return err
		}
		work.Place(name, path)
	}
	if err := m.grant(ctx, job, work.Connectors); err != nil {
		return err
	}
	sprite := m.sprite(job)
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
	spec, err := json.Marshal(cove.JobSpec{
		ID: job.ID, Bundle: job.Upload, Earlier: earlier(job), BundleSHA256: start.BundleSHA256, Workdir: t.Workdir,
		Branch: cmp.Or(job.Branch, "cove-"+job.ID), Base: job.Base, Author: req.Author,
		Shallow: start.Shallow, Store: cove.RepositoryStore(job.RepoID, start.Shallow),
		Setup: commands(work, job.Install), Argv: work.Argv, Env: append(work.Env, req.Env...),
		Guards: job.Guards, Turn: work.Turn, Input: work.Input,
		TimeoutSec: job.TimeoutSec, GraceSec: int64(agentGrace / time.Second), CollectSec: limitsOf(m).collectSec(), TTY: job.Interactive,
		SetupScript: script, Notices: notices(job.Install),
	})
	if err != nil {
		return err
	}
	return sprite.WriteFile(ctx, t.Dir+"/job.json", bytes.NewReader(spec), sprites.WriteOptions{Mode: 0o600})
}

// launch starts the supervisor in a session of its own, which goes on without a
// client, and leaves it.
func (m *Manager) launch(ctx context.Context, job cove.Job) error {
	forever := time.Duration(0)
	cmd, err := m.command(ctx, job, "run")
	if err != nil {
		return err
	}
	cmd.MaxRunAfterDisconnect = &forever
	var said head
	cmd.Stderr = &said
	if job.Interactive {
		cmd.TTY = &sprites.Terminal{}
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	session := cmd.SessionID()
	if session == "" {
		return errors.Join(cmd.Wait(), errors.New(said.String()))
	}
	info, err := m.Client.At(job.Backend).Get(ctx, job.Sprite)
	if err == nil {
		err = m.Store.Jobs.Update(ctx, job.ID, func(j *cove.Job) error {
			j.Session = session
			if info.Cove != nil {
				j.Incarnation = info.Cove.Incarnation
			}
			if job.Backend == "" {
				j.SpriteID = info.ID
			}
			return nil
		})
	}
	if detachErr := cmd.Detach(); detachErr != nil && !errors.Is(detachErr, sprites.ErrGone) {
		m.Logger.Warn("leaving a supervisor", "job", job.ID, "err", detachErr)
	}
	return err
}

// head keeps the first few kilobytes that are written to it.
type head struct{ buf []byte }

const maxHead = 4 << 10

func (t *head) Write(p []byte) (int, error) {
	t.buf = append(t.buf, p[:min(len(p), maxHead-len(t.buf))]...)
	return len(p), nil
}

func (t *head) String() string { return string(bytes.ToValidUTF8(bytes.TrimSpace(t.buf), []byte("?"))) }
