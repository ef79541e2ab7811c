package job

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/lib/boot"
	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/server/agents"
	"github.com/cove-dev/cove/internal/server/store"
	"github.com/cove-dev/cove/internal/shim/connect"
	"github.com/cove-dev/cove/sprites"
)

// Create makes a job, queued, and a sprite for it where req names none. The row
// is there before the sprite, so that a sprite without a job is never left. It is there
// before the agent is installed, too: if req is Early, that is all that is waited for. If the
// caller goes away, so that nobody hears of the job, it is taken back.
func (m *Manager) Create(ctx context.Context, req cove.JobRequest) (cove.Job, error) {
	return m.once(ctx, keyOf(req), func() (cove.Job, error) {
		job, err := m.createAs(ctx, req, "")
		if err == nil && ctx.Err() != nil {
			err = errors.Join(context.Cause(ctx), m.Delete(context.WithoutCancel(ctx), job.ID, true))
		}
		return job, err
	})
}

func keyOf(req cove.JobRequest) store.JobKey {
	return store.JobKey{Key: req.Key, By: req.By, Digest: req.Digest}
}

// Preview says what Create would make of a request, or refuses it as Create would. It makes
// nothing. It does not check whether a sprite of a backend exists.
func (m *Manager) Preview(ctx context.Context, req cove.JobRequest) (cove.JobPreview, error) {
	return m.intake.preview(ctx, req)
}

// createAs is Create for a job that does another one again, if retryOf is not empty.
func (m *Manager) createAs(ctx context.Context, req cove.JobRequest, retryOf string) (cove.Job, error) {
	req, agent, work, err := m.intake.settle(ctx, req)
	if err != nil {
		return cove.Job{}, err
	}
	if req.Issue != 0 && retryOf == "" { // a retry's plan has it
		if req.Plan, err = m.connectors.withIssue(ctx, req, m.Store.Secrets); err != nil {
			return cove.Job{}, err
		}
	}
	if req.Sprite != "" {
		if _, err := m.Client.At(req.Backend).Get(ctx, req.Sprite); err != nil {
			return cove.Job{}, err
		}
	}
	req.Early = req.Early || req.Begin
	kept := req
	kept.Key = "" // it is this request's alone
	settings, err := json.Marshal(kept)
	if err != nil {
		return cove.Job{}, err
	}
	w, err := m.installs.wants(req, agent)
	if err != nil {
		return cove.Job{}, err
	}
	first, err := m.installs.must(ctx, w)
	if err != nil {
		return cove.Job{}, err
	}
	waits, err := m.preparer.turns.limited(ctx, req)
	if err != nil {
		return cove.Job{}, err
	}
	first = first || waits || req.Begin
	of := made{env: envNames(work.Env, req.Env), retryOf: retryOf}
	if !first {
		if of.install, err = m.installs.install(ctx, w, func(cove.InstallProgress, cove.StepOutput) {}); err != nil {
			return cove.Job{}, err
		}
	}
	for range 20 {
		job := newRow(req, of, m.DefaultTimeout)
		if job.OwnsSprite {
			job.Sprite = m.jobSprites.environments.Name(job.Backend, job.ID)
		}
		if first {
			job, err = m.preparer.create(ctx, job, req, settings, w)
		} else {
			job, err = m.create(ctx, job, req, settings)
		}
		if errors.Is(err, store.ErrExists) || req.Sprite == "" && errors.Is(err, sprites.ErrNameTaken) {
			continue // of some million ids this one is taken
		}
		return job, err
	}
	return cove.Job{}, errors.New("no free job id was found")
}

// envNames are the names of an agent's variables.
func envNames(pairs ...[]string) []string {
	var names []string
	for _, kv := range slices.Concat(pairs...) {
		name, _, _ := strings.Cut(kv, "=")
		names = append(names, name)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// made is the part of a job that comes from its agent.
type made struct {
	env     []string // names
	install *cove.JobInstall
	retryOf string // the job that it does again; empty: none
}

// newRow is the row of a new job, queued, without a name for a sprite of its own. An agent
// without a time limit gets the default.
func newRow(req cove.JobRequest, of made, defaultTimeout time.Duration) cove.Job {
	id := randomID(3)
	job := cove.Job{
		ID:          id,
		State:       cove.JobQueued,
		JobSettings: req.JobSettings,
		JobSource:   req.JobSource,
		JobProgress: cove.JobProgress{Upload: bundleIn(id), Execution: randomID(8)},
		JobResult:   cove.JobResult{Ref: "refs/cove/" + id + "/head"},
		OwnsSprite:  req.Sprite == "",
		Workdir:     workdir(id, req.Repository),
		Settings:    settingsPaths(req.Settings),
		EnvNames:    of.env,
		Secrets:     connect.EnvSecrets(slices.Concat(req.Env, cove.MCPEnv(req.MCP))),
		Install:     of.install,
		RetryOf:     of.retryOf,
		By:          req.By,
	}
	job.Title, job.Headings = agents.Outline(req.Plan)
	job.Skill, job.MCP = nil, shownServers(req.MCP)
	if agents.ReadsSkill(req.Agent) {
		skill := agents.DefaultSkill()
		if req.Skill != nil {
			skill = *req.Skill
		}
		skill.Text = ""
		job.Skill = &skill
	}
	if job.TimeoutSec == 0 {
		job.TimeoutSec = int64(defaultTimeout / time.Second)
	}
	return job
}

// create makes a new job's row, and then its sprite.
func (m *Manager) create(ctx context.Context, job cove.Job, req cove.JobRequest, settings []byte) (cove.Job, error) {
	if err := keep(ctx, m.Store.Jobs, job, req, settings); err != nil {
		return job, err
	}
	m.jobSprites.steps.installed(ctx, job)
	if err := m.jobSprites.furnish(ctx, job, req); errors.Is(err, errLeft) {
		return job, errors.Join(err, m.finisher.giveUp(context.WithoutCancel(ctx), job, err))
	} else if err != nil {
		return job, errors.Join(err, m.Store.Jobs.Delete(context.WithoutCancel(ctx), job.ID))
	}
	m.jobSprites.steps.begin(ctx, job.ID, cove.StepUploadRepository)
	return m.Store.Jobs.Get(ctx, job.ID)
}

func randomID(bytes int) string {
	b := make([]byte, bytes)
	_, _ = rand.Read(b) // never fails
	return hex.EncodeToString(b)
}

// dir is a job's folder in its sprite.
func dir(id string) string { return boot.Home + "/.cove/jobs/" + id }

// bundleIn is where the bundle goes that a job begins from.
func bundleIn(id string) string { return dir(id) + "/in.bundle" }

// workdir is where a job's clone goes.
func workdir(id, repository string) string {
	name := strings.Trim(notInName().ReplaceAllString(repository, "-"), "-.")
	if name == "" {
		name = "repository"
	}
	return boot.Home + "/work/" + id + "/" + name
}

var notInName = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`[^A-Za-z0-9._-]+`) })

// task is what the agent is told of a job.
func task(req cove.JobRequest, id string) agents.Task {
	return agents.Task{
		Plan: req.Plan, PlanName: req.PlanName, Dir: dir(id), Workdir: workdir(id, req.Repository),
		Command: req.AgentCommand, Permissions: req.Permissions,
		Branch: req.Branch, Home: boot.Home, Interactive: req.Interactive, Converse: req.Converse, Direct: req.Backend != "",
		Role:  req.Role,
		Login: req.Login,
		MCP:   req.MCP,
		Model: req.Model, MaxUSD: req.Guards.CostUSD,
		Skill: req.Skill,
	}
}

// agentOf is the agent of a request or a job.
func agentOf(name string, def *cove.AgentDefinition) (agents.Agent, error) {
	agent, err := agents.Of(name, def)
	if problems, ok := errors.AsType[agents.Problems](err); ok {
		return nil, fail.Newf("bad_agent", problems[0].Hint, "%v", err)
	}
	if err != nil {
		return nil, fail.Newf("no_agent", "choose one with --agent", "%v", err)
	}
	return agent, nil
}

func settingsPaths(files []cove.SettingsFile) []string {
	var paths []string
	for _, f := range files {
		paths = append(paths, f.Path)
	}
	return paths
}
