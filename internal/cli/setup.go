package cli

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/cli/config"
	"github.com/cove-dev/cove/internal/cli/gitwork"
	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/lib/guestbin"
	"github.com/cove-dev/cove/internal/lib/printable"
	"github.com/cove-dev/cove/internal/server/agents"
	"github.com/cove-dev/cove/sprites"
)

// Paths of a sprite, and an exit code of its guest.
const (
	spriteHome      = "/home/sprite"
	guestProgram    = "/.sprite/bin/cove-guest"
	environmentFile = "/.sprite/environment.json" // as the guest reads it

	guestNotSetUp = 6 // exit code of cove-guest job is-set-up
)

func newSetupCommand(inv *invocation) *cobra.Command {
	var agent string
	cmd := &cobra.Command{
		Use:   "setup [NAME]",
		Short: "Prepare a sprite, and check that an agent is ready in it",
		Long: `Prepares a sprite for work:

  - gives it the variables of the environment files, for every later command (see cove help env)
  - runs the setup script, .cove/setup.sh or that of --setup, at the top of a clone of this
    repository
  - installs the agent, if it is not there
  - starts the agent once, as the sprite's user, with the environment and the network that it
    will have

cove skips the steps that are done. The script runs again only if it has changed.

The script prepares the sprite for all later jobs, each of which has a clone of its own. Steps
that a clone needs, such as its dependencies, belong in the plan.`,
		Example: `  cove setup paint --agent shell
  cove setup paint --setup ./tools.sh --setup-timeout 20m
  cove setup paint --json | jq '.steps[] | {step, result, ms}'`,
		Args:              maxArgs(1),
		ValidArgsFunction: completeOneSprite(inv),
	}
	cmd.RunE = verb(func(ctx context.Context, args []string) error {
		name, err := inv.sprite.named(ctx, cmd, args)
		if err != nil {
			return err
		}
		s, places, err := loadSettings(ctx)
		if err != nil {
			return err
		}
		if err := setDefaults(inv, cmd, s, config.Agent, config.SetupTimeout); err != nil {
			return err
		}
		who, err := findAgent(cmd, places, agent)
		if err != nil {
			return err
		}
		p := &preparation{inv: inv, agent: agent, who: who, places: places, steps: steps{inv: inv}}
		if p.script, err = setupScript(cmd, s, places); err != nil {
			return err
		}
		if p.vars, err = spriteEnvironment(inv, places, name); err != nil {
			return err
		}
		p.vars = withoutSecrets(inv, p.vars)
		c, err := inv.server.client(ctx)
		if err != nil {
			return err
		}
		p.client, p.sprite = c, c.Sprite(name)
		err = p.run(ctx)
		return p.steps.end(stepsJSON{Sprite: name, Agent: agent}, err)
	})
	registerAgent(cmd, &agent, config.Default(config.Agent), "the agent that will work in it: ")
	registerSetup(cmd)
	return cmd
}

// preparation is one cove setup.
type preparation struct {
	inv    *invocation
	client *cove.Client
	sprite *sprites.Sprite
	agent  string
	who    agents.Agent
	places config.Places
	script *cove.SetupScript // nil: none
	vars   []config.EnvVar   // of the files
	steps  steps
}

func (p *preparation) run(ctx context.Context) error {
	work, err := agents.Trial(p.who, spriteHome)
	if err != nil {
		return err
	}
	for _, s := range []struct {
		name string
		do   func(context.Context, agents.Work) (string, string, error)
	}{{"sprite", p.wake}, {"environment", p.environment}, {"script", p.runScript}, {"agent", p.install}, {"connector", p.connector}} {
		if err := p.steps.do(s.name, func() (string, string, error) { return s.do(ctx, work) }); err != nil {
			return err
		}
	}
	return nil
}

// wake checks that the sprite exists, and that it runs a command.
func (p *preparation) wake(ctx context.Context, _ agents.Work) (string, string, error) {
	info, err := p.client.Get(ctx, p.sprite.Name())
	if errors.Is(err, sprites.ErrNotFound) {
		return "", "", hinted(err, "make it: cove create "+p.sprite.Name())
	}
	if err != nil {
		return "", "", err
	}
	if err := p.sprite.CommandContext(ctx, "true").Run(); err != nil {
		return "", "", spriteError(err)
	}
	if info.Status == sprites.StatusRunning {
		return stepAlready, "awake", nil
	}
	return stepDone, "woken", nil
}

// environment writes the variables of the files for every command of the sprite.
func (p *preparation) environment(ctx context.Context, _ agents.Work) (string, string, error) {
	want := map[string]string{}
	for _, v := range p.vars {
		want[v.Name] = v.Value
	}
	have := map[string]string{}
	if err := p.readEnvironment(ctx, &have); err != nil {
		return "", "", err
	}
	detail := printable.Count(len(want), "variable")
	switch {
	case maps.Equal(want, have) && len(want) == 0:
		return stepNone, "no variables", nil
	case maps.Equal(want, have):
		return stepAlready, detail, nil
	}
	text, err := json.Marshal(want)
	if err != nil {
		return "", "", err
	}
	err = p.sprite.WriteFile(ctx, environmentFile, bytes.NewReader(append(text, '\n')), sprites.WriteOptions{Mode: 0o644, AsRoot: true})
	return stepDone, detail, err
}

// maxEnvironment bounds the file of a sprite's variables, in bytes.
const maxEnvironment = 1 << 20

// readEnvironment reads the variables that the sprite has. A file that can't be parsed, or is
// too long, counts as missing: it will be replaced.
func (p *preparation) readEnvironment(ctx context.Context, have *map[string]string) error {
	f, err := p.sprite.Open(ctx, environmentFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	text, err := io.ReadAll(io.LimitReader(f, maxEnvironment+1))
	if err != nil {
		return err
	}
	var read map[string]string
	if len(text) <= maxEnvironment && json.Unmarshal(text, &read) == nil && read != nil {
		*have = read
	}
	return nil
}

// withoutEnv is an agent's environment without the variables that the files have: a sprite
// that is set up has those already.
func withoutEnv(env []string, files []config.EnvVar) []string {
	return slices.DeleteFunc(slices.Clone(env), func(kv string) bool {
		name, _, _ := strings.Cut(kv, "=")
		return slices.ContainsFunc(files, func(v config.EnvVar) bool { return v.Name == name })
	})
}

// runScript makes the guest run the setup script in a clone, unless it has run already.
func (p *preparation) runScript(ctx context.Context, work agents.Work) (string, string, error) {
	if p.script == nil {
		return stepNone, "no " + config.DefaultScript, nil
	}
	dir := ".cove/setup/run-" + randomName()
	spec := cove.JobSpec{JobIdentity: cove.JobIdentity{ID: "setup"}, Workdir: "work", Env: overEnv(work.Env, pairs(p.vars)), JobPreparation: cove.JobPreparation{SetupScript: p.script}}
	var repo *gitwork.Repo
	if p.places.Top != "" {
		var err error
		if repo, err = p.describe(ctx, &spec); err != nil {
			return "", "", err
		}
	}
	if err := p.writeSpec(ctx, dir, spec); err != nil {
		return "", "", err
	}
	defer p.forget(ctx, dir)
	err := p.sprite.CommandContext(ctx, guestProgram, "job", "is-set-up", dir).Run()
	if err == nil {
		return stepAlready, p.script.Name + " has been run", nil
	}
	if exit, ok := errors.AsType[*sprites.ExitError](err); !ok || exit.Code != guestNotSetUp {
		return "", "", fmt.Errorf("ask what has been set up: %w", err)
	}
	if repo != nil {
		if err := p.upload(ctx, repo, dir, &spec); err != nil {
			return "", "", err
		}
	}
	return stepDone, p.script.Name + " was run", p.execute(ctx, dir)
}

// describe fills in what the clone will be made from.
func (p *preparation) describe(ctx context.Context, spec *cove.JobSpec) (*gitwork.Repo, error) {
	repo, err := gitwork.Open(ctx, p.places.Top)
	if err != nil {
		return nil, err
	}
	branch, base, err := repo.Head(ctx)
	if err != nil {
		return nil, err
	}
	id, err := repo.ID(ctx, base)
	if err != nil {
		return nil, err
	}
	spec.SetupScript.Repository = id
	spec.Branch, spec.Base, spec.Author, spec.Workdir = branch, base, repo.Author(), repo.Name()
	return repo, nil
}

func (p *preparation) writeSpec(ctx context.Context, dir string, spec cove.JobSpec) error {
	text, err := json.Marshal(spec)
	if err != nil {
		return err
	}
	return p.sprite.WriteFile(ctx, path.Join(dir, "job.json"), bytes.NewReader(text), sprites.WriteOptions{Mode: 0o600})
}

// forget removes the files of a run. The guest does it, too, if it gets so far.
func (p *preparation) forget(ctx context.Context, dir string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupLimit)
	defer cancel()
	if err := p.sprite.Remove(ctx, dir, true); err != nil && !errors.Is(err, fs.ErrNotExist) {
		p.inv.detail("remove %s: %v", dir, err)
	}
}

// upload sends the repository's bundle.
func (p *preparation) upload(ctx context.Context, repo *gitwork.Repo, dir string, spec *cove.JobSpec) error {
	file, err := repo.TempFile("setup-")
	if err != nil {
		return err
	}
	defer file.Remove()
	modules, _, err := repo.Modules(ctx, spec.Base)
	if err != nil {
		return err
	}
	if spec.Shallow, err = repo.Cut(ctx, spec.Base, 0, modules); err != nil {
		return err
	}
	bundle, err := repo.Bundle(ctx, file, gitwork.Outgoing{Base: spec.Base, Shallow: spec.Shallow, Modules: modules})
	if err != nil {
		return err
	}
	if _, err := file.Seek(0, io.SeekStart); err != nil {
		return err
	}
	spec.Bundle, spec.BundleSHA256 = "in.bundle", bundle.SHA256
	if err := p.writeSpec(ctx, dir, *spec); err != nil {
		return err
	}
	shown := p.inv.newProgress("upload", bundle.Size)
	defer shown.Close()
	return p.sprite.WriteFile(ctx, path.Join(dir, spec.Bundle), countingReader{file, shown}, sprites.WriteOptions{Size: bundle.Size})
}

// execute runs the script, and shows what it prints.
func (p *preparation) execute(ctx context.Context, dir string) error {
	cmd := p.sprite.CommandContext(ctx, guestProgram, "job", "set-up", dir)
	var said lastText
	cmd.Stdout, cmd.Stderr = p.inv.remarks(), &said
	err := cmd.Run()
	if _, ok := errors.AsType[*sprites.ExitError](err); ok {
		text := strings.TrimPrefix(strings.TrimSpace(said.String()), "cove-guest: ")
		if !p.inv.global.quiet && !p.inv.global.json { // what it printed was shown
			text = headline(text)
		}
		return fail.New("setup_failed", cmp.Or(text, err.Error()), "change the script, and try again: cove setup "+p.sprite.Name())
	}
	return err
}

// install makes sure that the agent is there, and starts it once.
func (p *preparation) install(ctx context.Context, work agents.Work) (string, string, error) {
	if err := bring(ctx, p.sprite, work); err != nil {
		return "", "", err
	}
	_, before := p.verify(ctx, work)
	if _, _, err := p.each(ctx, work, work.Commands()); err != nil {
		return "", "", err
	}
	version, err := p.verify(ctx, work)
	switch {
	case err != nil:
		return "", "", err
	case before == nil:
		return stepAlready, p.agent + ": " + version, nil
	}
	return stepDone, p.agent + " installed: " + version, nil
}

// each runs commands of the agent's. They find the agent's files in the trial's folder.
func (p *preparation) each(ctx context.Context, work agents.Work, commands [][]string) (string, string, error) {
	if len(commands) > 0 {
		defer p.forget(ctx, agents.TrialDir)
		for name, file := range work.Files {
			err := p.sprite.WriteFile(ctx, path.Join(agents.TrialDir, name), bytes.NewReader(file.Data), sprites.WriteOptions{Mode: file.Mode})
			if err != nil {
				return "", "", err
			}
		}
	}
	for _, argv := range commands {
		cmd := p.sprite.CommandContext(ctx, argv[0], argv[1:]...)
		cmd.Env = withoutEnv(work.Env, p.vars)
		var said lastText
		both := io.MultiWriter(&said, p.inv.remarks()) // an installation takes a while
		cmd.Stdout, cmd.Stderr = both, both
		if err := cmd.Run(); err != nil {
			return "", "", agentError("the agent "+p.agent+" can't be installed", p.sprite, err, said.String())
		}
	}
	if len(commands) == 0 {
		return stepNone, "it has no commands for that", nil
	}
	return stepDone, printable.Count(len(commands), "command"), nil
}

// bring brings an agent's programs that are cove's own, and says where they are.
func bring(ctx context.Context, sprite *sprites.Sprite, work agents.Work) error {
	for _, name := range work.Programs {
		path, err := guestbin.BringProgram(ctx, sprite, name)
		if err != nil {
			return err
		}
		work.Place(name, path)
	}
	return nil
}

// verify starts the agent as a job would, and returns what it says of itself.
func (p *preparation) verify(ctx context.Context, work agents.Work) (string, error) {
	return startAgent(ctx, p.sprite, p.agent, work.Verify, withoutEnv(work.Env, p.vars))
}

// startAgent starts an agent in a sprite, with its environment, and returns what it
// says of itself.
func startAgent(ctx context.Context, sprite *sprites.Sprite, agent string, argv, env []string) (string, error) {
	// By a shell: an exec would take a program of another processor for a script.
	cmd := sprite.CommandContext(ctx, "/bin/sh", append([]string{"-c", `exec "$0" "$@"`}, argv...)...)
	cmd.Env = env
	var said lastText
	cmd.Stdout, cmd.Stderr = &said, &said
	if err := cmd.Run(); err != nil {
		return "", agentError("the agent "+agent+" does not start", sprite, err, said.String())
	}
	line, _, _ := strings.Cut(strings.TrimSpace(said.String()), "\n")
	return printable.Line(line), nil
}

// agentFailure is an agent that is not ready.
type agentFailure struct {
	what string // it does not
	code int
	said string
}

func (e *agentFailure) Error() string {
	text := fmt.Sprintf("%s: exit code %d", e.what, e.code)
	if e.said != "" {
		text += ": " + e.said
	}
	return text
}

// agentError says why an agent is not ready, of a command that failed.
func agentError(what string, sprite *sprites.Sprite, err error, said string) error {
	exit, ok := errors.AsType[*sprites.ExitError](err)
	if !ok {
		return err
	}
	failed := &agentFailure{what, exit.Code, printable.Text(strings.TrimSpace(said))}
	return fail.Wrap("agent_missing", failed, "see why: cove diagnose "+sprite.Name()+"; what it may reach: cove policy log -s "+sprite.Name())
}

// connector says how the agent will reach its model.
func (p *preparation) connector(ctx context.Context, work agents.Work) (string, string, error) {
	if len(work.Connectors) == 0 {
		return stepNone, "the agent asks no model", nil
	}
	var details []string
	for _, name := range work.Connectors {
		def, err := p.client.Connector(ctx, name)
		switch {
		case errors.Is(err, sprites.ErrNotFound):
			return stepNone, fmt.Sprintf("there is no connector %s: the agent has no key (cove secret set %s; cove connector put %s)", name, name, name), nil
		case err != nil:
			return "", "", err
		}
		details = append(details, name+", to "+def.Upstream)
	}
	return stepAlready, strings.Join(details, "; "), nil
}
