package job

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/lib/boot"
	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/server/agents"
	"github.com/cove-dev/cove/internal/server/store"
	"github.com/cove-dev/cove/sprites"
)

// Bounds on what a caller may ask for.
const (
	maxPlan    = 1 << 20
	maxScript  = 1 << 20
	maxText    = 255 // of names
	maxTimeout = 100 * 24 * time.Hour
	maxEnv     = 1000
	maxTurns   = 1 << 20

	maxSettings     = 500 // files
	maxSettingsSize = 2 << 20
	maxPath         = 500
	maxCommand      = 8 << 10
	maxUSD          = 1e6
)

// label marks the sprites that jobs have made.
const label = store.JobLabel

// Create makes a job, queued, and a sprite for it where req names none. The row
// is there before the sprite, so that a sprite without a job is never left. It is there
// before the agent is installed, too: if req is Early, that is all that is waited for.
func (m *Manager) Create(ctx context.Context, req cove.JobRequest) (cove.Job, error) {
	return m.createAs(ctx, req, "")
}

// createAs is Create for a job that does another one again, if retryOf is not empty.
func (m *Manager) createAs(ctx context.Context, req cove.JobRequest, retryOf string) (cove.Job, error) {
	req, agent, work, err := m.settle(ctx, req)
	if err != nil {
		return cove.Job{}, err
	}
	if req.Sprite != "" {
		if _, err := m.Client.At(req.Backend).Get(ctx, req.Sprite); err != nil {
			return cove.Job{}, err
		}
	}
	settings, err := json.Marshal(req)
	if err != nil {
		return cove.Job{}, err
	}
	w, err := m.shared(req, agent)
	if err != nil {
		return cove.Job{}, err
	}
	first, err := m.mustInstall(ctx, w)
	if err != nil {
		return cove.Job{}, err
	}
	of := made{env: envNames(work.Env, req.Env), retryOf: retryOf}
	if !first {
		if of.install, err = m.install(ctx, w, func(cove.InstallProgress) {}); err != nil {
			return cove.Job{}, err
		}
	}
	for range 20 {
		var job cove.Job
		if first {
			job, err = m.createInstalling(ctx, req, settings, of, w)
		} else {
			job, err = m.create(ctx, req, settings, of)
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

// made is what a job has of its agent's.
type made struct {
	env     []string // names
	install *cove.JobInstall
	retryOf string // the job that it does again; empty: none
}

// row is that of a new job, queued.
func (m *Manager) row(req cove.JobRequest, of made) cove.Job {
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
		Install:     of.install,
		RetryOf:     of.retryOf,
	}
	job.Skill = nil
	if agents.ReadsSkill(req.Agent) {
		skill := agents.DefaultSkill()
		if req.Skill != nil {
			skill = *req.Skill
		}
		skill.Text = ""
		job.Skill = &skill
	}
	if job.TimeoutSec == 0 {
		job.TimeoutSec = int64(m.DefaultTimeout / time.Second)
	}
	if job.OwnsSprite {
		job.Sprite = spriteName(id)
	}
	return job
}

func (m *Manager) create(ctx context.Context, req cove.JobRequest, settings []byte, of made) (cove.Job, error) {
	job := m.row(req, of)
	if err := m.Store.Jobs.Create(ctx, job, settings); err != nil {
		return job, err
	}
	if err := m.furnish(ctx, job, req); errors.Is(err, errLeft) {
		return job, err
	} else if err != nil {
		return job, errors.Join(err, m.Store.Jobs.Delete(context.WithoutCancel(ctx), job.ID))
	}
	return m.Store.Jobs.Get(ctx, job.ID)
}

// errLeft says that a sprite could not be taken back. Its job stays queued until then.
var errLeft = errors.New("its sprite is still there, and will be deleted later")

// furnish makes the job's sprite, or gives the one that is there the job's policy.
// Nothing runs in a new one before it has that. A call that is cut may still be
// carried out: it is waited for instead, and what was made is taken back.
func (m *Manager) furnish(ctx context.Context, job cove.Job, req cove.JobRequest) error {
	asked := ctx
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), startLimit)
	defer cancel()
	made, err := m.furnishAll(ctx, job, req)
	if err == nil {
		err = context.Cause(asked)
	}
	if err == nil || !made {
		return err
	}
	undo, cancel := context.WithTimeout(context.WithoutCancel(asked), undoLimit)
	defer cancel()
	if undoErr := m.Client.At(job.Backend).Delete(undo, job.Sprite, sprites.DeleteOptions{Force: true}); undoErr != nil {
		err = errors.Join(err, fmt.Errorf("%w: %w", errLeft, undoErr))
	}
	return err
}

// furnishAll reports whether it has made a sprite.
func (m *Manager) furnishAll(ctx context.Context, job cove.Job, req cove.JobRequest) (made bool, err error) {
	at := m.Client.At(job.Backend)
	switch {
	case job.Backend != "":
		if made, err = m.furnishAt(ctx, at, job, req); err != nil {
			return made, err
		}
	case job.OwnsSprite:
		_, err := at.Create(ctx, sprites.CreateRequest{
			Name: job.Sprite, Labels: []string{label}, Config: req.Config, Include: req.Include, NetworkPolicy: req.NetworkPolicy,
			Owner: owner(job.ID), LeaseSeconds: int64(m.Lease / time.Second), Install: key(job.Install),
		})
		if errors.Is(err, sprites.ErrNotFound) && key(job.Install) != "" {
			return m.furnishAlone(ctx, job, req) // the installation was dropped in between
		}
		return err == nil, err
	}
	if req.NetworkPolicy != nil {
		err = at.Sprite(job.Sprite).SetNetworkPolicy(ctx, *req.NetworkPolicy)
	}
	return made, err
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
	name := strings.Trim(notInName.ReplaceAllString(repository, "-"), "-.")
	if name == "" {
		name = "repository"
	}
	return boot.Home + "/work/" + id + "/" + name
}

var notInName = regexp.MustCompile(`[^A-Za-z0-9._-]+`)

// task is what the agent is told of a job.
func task(req cove.JobRequest, id string) agents.Task {
	return agents.Task{
		Plan: req.Plan, PlanName: req.PlanName, Dir: dir(id), Workdir: workdir(id, req.Repository),
		Command: req.AgentCommand, Permissions: req.Permissions,
		Branch: req.Branch, Home: boot.Home, Interactive: req.Interactive, Converse: req.Converse, Direct: req.Backend != "",
		MCP:   req.MCP,
		Model: req.Model, MaxUSD: req.Guards.CostUSD,
		Skill: req.Skill,
	}
}

var (
	commitID = regexp.MustCompile(`^([0-9a-f]{40}|[0-9a-f]{64})$`)
	sha256ID = regexp.MustCompile(`^[0-9a-f]{64}$`)
	envName  = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*=`)
)

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

// checkSkill refuses a text that can't be a skill's, and says which it is.
func checkSkill(given *cove.Skill) (*cove.Skill, error) {
	if given == nil {
		return nil, nil
	}
	skill := *given
	for _, text := range []string{skill.Name, skill.Version} {
		if len(text) > maxText || strings.ContainsFunc(text, unicode.IsControl) {
			return nil, fail.Newf("bad_skill", "", "a skill's name and version have at most %d printable characters", maxText)
		}
	}
	if strings.TrimSpace(skill.Text) == "" || len(skill.Text) > agents.MaxSkill || !utf8.ValidString(skill.Text) || strings.ContainsRune(skill.Text, 0) {
		return nil, fail.Newf("bad_skill", "", "a skill is UTF-8 text of at most %d bytes", agents.MaxSkill)
	}
	skill.SHA256 = agents.SkillDigest(skill.Text)
	return &skill, nil
}

// checkSettings refuses files that don't belong below a home.
func checkSettings(files []cove.SettingsFile) error {
	size := 0
	for _, f := range files {
		size += len(f.Text)
		if !fs.ValidPath(f.Path) || f.Path[0] != '.' || f.Path == "." || len(f.Path) > maxPath || strings.ContainsFunc(f.Path, unicode.IsControl) || !strings.Contains(f.Path, "/") {
			return fail.Newf("bad_request", "", "%.80q can't be a file of settings: it lies in a folder of the home whose name begins with a dot", f.Path)
		}
	}
	if len(files) > maxSettings || size > maxSettingsSize {
		return fail.Newf("bad_request", "", "settings are at most %d files, with %d bytes", maxSettings, maxSettingsSize)
	}
	return nil
}

func settingsPaths(files []cove.SettingsFile) []string {
	var paths []string
	for _, f := range files {
		paths = append(paths, f.Path)
	}
	return paths
}

// check refuses a request that can't become a job, and finds its agent.
func check(req cove.JobRequest) (agents.Agent, error) {
	agent, err := agentOf(req.Agent, req.Definition)
	if err != nil {
		return nil, err
	}
	if _, ok := agent.(agents.Converser); req.Converse && !ok {
		return nil, fail.Newf("no_input", "leave out --converse", "the agent %s takes no messages", req.Agent)
	}
	if err := checkCommand(agent, req); err != nil {
		return nil, err
	}
	for what, text := range map[string]string{
		"plan's name": req.PlanName, "repository's name": req.Repository, "author's name": req.Author.Name, "author's address": req.Author.Email,
	} {
		if len(text) > maxText || strings.ContainsFunc(text, func(r rune) bool { return r < ' ' || r == 0x7f }) {
			return nil, fail.Newf("bad_request", "", "the %s must be at most %d printable characters", what, maxText)
		}
	}
	switch {
	case len(req.Model) > maxText || strings.ContainsFunc(req.Model, func(r rune) bool { return r <= ' ' || r > '~' }):
		return nil, fail.Newf("bad_request", "write PROVIDER/MODEL", "a model can't be called %.40q", req.Model)
	case len(req.Plan) > maxPlan:
		return nil, fail.Newf("bad_plan", "", "a plan of %d bytes is more than %d", len(req.Plan), maxPlan)
	case req.Branch != "" && !branchName(req.Branch):
		return nil, fail.Newf("bad_request", "push from one with another name: git switch -c NAME", "%.80q can't be a branch", req.Branch)
	case !commitID.MatchString(req.Base):
		return nil, fail.Newf("bad_request", "", "%.80q is no commit", req.Base)
	case strings.ContainsAny(req.Author.Name+req.Author.Email, "<>"):
		return nil, fail.Newf("bad_request", "", "an author can't have < or > in the name")
	case req.TimeoutSec < 0 || req.TimeoutSec > int64(maxTimeout/time.Second):
		return nil, fail.Newf("bad_request", "0 means the server's default", "the timeout can't be %d seconds", req.TimeoutSec)
	case badGuards(req.Guards):
		return nil, fail.Newf("bad_request", "0 means no such guard", "a guard can't be so large, nor negative")
	case req.Converse && req.Interactive:
		return nil, fail.Newf("bad_request", "choose one of them", "an agent in a terminal takes messages there")
	case req.Interactive && (req.Guards.IdleSec > 0 || req.Guards.Turns > 0):
		return nil, fail.Newf("bad_request", "leave out --max-idle and --max-turns", "what an agent does in a terminal, these guards don't see")
	case req.Sprite != "" && (req.Config != nil || len(req.Include) > 0):
		return nil, fail.Newf("bad_request", "leave out --sprite, or these", "sprite %.40s is there already: its limits and included folders are what they are", req.Sprite)
	case req.Sprite != "" && req.Remove:
		return nil, fail.Newf("bad_request", "leave out --rm, or --sprite", "only a sprite that was made for the job is deleted with it")
	case len(req.Env) > maxEnv:
		return nil, fail.Newf("bad_request", "", "%d environment variables are more than %d", len(req.Env), maxEnv)
	}
	if s := req.SetupScript; s != nil {
		if s.Text == "" || len(s.Text) > maxScript || strings.ContainsRune(s.Text, 0) || len(s.Name) > maxText || strings.ContainsFunc(s.Name, unicode.IsControl) {
			return nil, fail.Newf("bad_request", "", "the setup script must be a text of at most %d bytes, with a name", maxScript)
		}
		if s.TimeoutSec < 0 || s.TimeoutSec > int64(maxTimeout/time.Second) {
			return nil, fail.Newf("bad_request", "0 means ten minutes", "the setup script's time can't be %d seconds", s.TimeoutSec)
		}
	}
	for _, kv := range req.Env {
		if !envName.MatchString(kv) || strings.ContainsRune(kv, 0) {
			return nil, fail.Newf("bad_request", "write KEY=VALUE", "an environment variable can't be %.40q", kv)
		}
	}
	return agent, nil
}

// checkCommand refuses settings of an agent that its command starts, for others, and
// the other way round.
func checkCommand(agent agents.Agent, req cove.JobRequest) error {
	_, asks := agent.(agents.Questioner)
	switch {
	case asks && strings.TrimSpace(req.AgentCommand) == "":
		return fail.Newf("bad_request", `name it: --agent-command "opencode acp"`, "the agent %s needs the command that starts it", req.Agent)
	case !asks && (req.AgentCommand != "" || req.Permissions != ""):
		return fail.Newf("bad_request", "leave out --agent-command and --permissions, or use --agent acp", "the agent %s takes no command, and asks for no permission", req.Agent)
	case len(req.AgentCommand) > maxCommand || strings.ContainsRune(req.AgentCommand, 0):
		return fail.Newf("bad_request", "", "an agent's command is a line of at most %d bytes", maxCommand)
	case req.Permissions != "" && !slices.Contains(agents.PermissionChoices, req.Permissions):
		return fail.Newf("bad_request", "", "permissions %.40q is none of %s", req.Permissions, strings.Join(agents.PermissionChoices, ", "))
	}
	return nil
}

func badGuards(g cove.Guards) bool {
	return g.IdleSec < 0 || g.IdleSec > int64(maxTimeout/time.Second) || g.Turns < 0 || g.Turns > maxTurns || g.DiskBytes < 0 || !(g.CostUSD >= 0 && g.CostUSD <= maxUSD)
}

// branchName reports whether git takes name as a branch's.
func branchName(name string) bool {
	if name == "" || len(name) > maxText || name == "@" || name[0] == '-' || name == "HEAD" {
		return false
	}
	for part := range strings.SplitSeq(name, "/") {
		if part == "" || part[0] == '.' || strings.HasSuffix(part, ".") || strings.HasSuffix(part, ".lock") {
			return false
		}
	}
	bad := func(r rune) bool { return r <= ' ' || r == 0x7f || strings.ContainsRune(`~^:?*[\`, r) }
	return !strings.ContainsFunc(name, bad) && !strings.Contains(name, "..") && !strings.Contains(name, "@{")
}
