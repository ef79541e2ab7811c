package harness

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/lib/guestbin"
	"github.com/cove-dev/cove/internal/server/agents"
	"github.com/cove-dev/cove/internal/shim/connect"
	"github.com/cove-dev/cove/sprites"
)

// Plan is the plan of a test. The agent shell runs its commands; any other agent follows its text.
const Plan = "# Say that it works\n\nWrite the file works.txt with the text yes in it, as below, and commit it.\n\n## Write works.txt\n\n```sh\necho yes > works.txt\n```\n"

// prepare is the agent's work in the sprite, with a model or its own default.
func (t *Trial) prepare(model string) (agents.Work, error) {
	work, err := t.agent.Prepare(agents.Task{
		Plan: Plan, PlanName: "test.md", Dir: t.dir(), Workdir: t.workdir(), Branch: "main", Home: t.home, Command: t.job.AgentCommand, Permissions: t.job.Permissions,
		Model: model, Direct: !t.here, Skill: t.job.Skill, Login: agents.LoginOf(t.agent, t.job.Login, t.job.Env),
	})
	if err != nil {
		return work, fail.Newf("bad_agent", "", "prepare the agent %s: %v", t.agent.Name(), err)
	}
	return work, nil
}

// models are those that the agent may ask, the first one first; an empty one is its own choice.
func (t *Trial) models() []string {
	if chooser, ok := t.agent.(agents.Chooser); ok && t.job.Model == "" {
		return chooser.Models()
	}
	return []string{t.job.Model}
}

func (t *Trial) workdir() string { return t.home + "/work/" + t.name }

// begin makes a repository with a first commit.
const begin = `set -e
command -v git >/dev/null || exit 127
mkdir -p "$1"
cd "$1"
git init -q -b main
git config user.name cove
git config user.email cove@localhost
echo "Made by cove test." >README.md
git add README.md
git commit -q -m "Begin"`

// look prints the file that the agent has committed, and the number of commits.
const look = `cd "$1" && git show HEAD:works.txt && git rev-list --count HEAD`

// prompt makes the agent carry out a plan in a repository. It skips an agent without a key.
func (t *Trial) prompt(ctx context.Context) (string, error) {
	env, _, err := t.env(ctx)
	if err != nil {
		return "", err
	}
	work, err := t.choose(ctx, env)
	if err != nil {
		return "", err
	}
	if err := t.makeRepository(ctx); err != nil {
		return "", err
	}
	for name, file := range work.Files {
		if err := t.sprite.WriteFile(ctx, path.Join(t.dir(), name), bytes.NewReader(file.Data), sprites.WriteOptions{Mode: file.Mode}); err != nil {
			return "", err
		}
	}
	for _, name := range work.Programs {
		at, err := guestbin.BringProgram(ctx, t.sprite, name)
		if err != nil {
			return "", err
		}
		work.Place(name, at)
	}
	work.Place(cove.Guest, t.guest)
	if t.here {
		for _, name := range work.Connectors {
			t.granted = append(t.granted, name)
			if err := t.h.Client.GrantConnector(ctx, name, cove.ConnectorGrant{Sprite: t.name}); err != nil {
				return "", err
			}
		}
	}
	env = append(slices.Clone(work.Env), env...)
	for _, argv := range work.Setup {
		if err := t.run(ctx, env, argv[0], argv[1:]...); err != nil {
			return "", fmt.Errorf("set up the agent %s: %w", t.agent.Name(), err)
		}
	}
	events := `cd "$1" && exec 3>"$2" && shift 2 && exec "$@"`
	if err := t.run(ctx, env, "sh", append([]string{"-c", events, "sh", t.workdir(), t.dir() + "/events"}, work.Argv...)...); err != nil {
		return "", fail.Wrap("agent_failed", fmt.Errorf("the agent %s: %w", t.agent.Name(), err), "its output says more")
	}
	said, err := t.sprite.CommandContext(ctx, "sh", "-c", look, "sh", t.workdir()).Output()
	text, commits, _ := strings.Cut(strings.TrimSpace(string(said)), "\n")
	if err != nil {
		return "", fail.Newf("no_result", "its output says more", "the agent %s ended well, but its clone can't be read: %.200q, %v", t.agent.Name(), said, err)
	}
	if text != "yes" || commits == "1" {
		return "", fail.Newf("no_result", "its output says more", "the agent %s ended well, but did not commit what the plan asks for: %.200q", t.agent.Name(), said)
	}
	return "the agent " + t.agent.Name() + " has carried out a plan, and committed it", nil
}

// makeRepository makes a repository for the agent, unless that of the profile is cloned.
func (t *Trial) makeRepository(ctx context.Context) error {
	if t.scripts.cloned {
		return nil
	}
	err := t.run(ctx, nil, "sh", "-c", begin, "sh", t.workdir())
	if exit, ok := errors.AsType[*sprites.ExitError](err); ok && exit.Code == notThere {
		return noGit()
	}
	if err != nil {
		return fmt.Errorf("make a repository: %w", err)
	}
	return nil
}

// env returns the variables that the profile gives the agent, with the values of secrets in
// them. secrets are these values.
func (t *Trial) env(ctx context.Context) (env, secrets []string, err error) {
	env, err = connect.ResolveEnv(t.job.Env, func(name string) (string, error) {
		value, err := t.h.Secret(ctx, name)
		if err != nil {
			err = fail.Wrap("no_secret", fmt.Errorf("a variable of the profile refers to the secret %s: %w", name, err), "cove secret set "+name)
		}
		secrets = append(secrets, value)
		return value, err
	})
	return env, secrets, err
}

// choose prepares the agent with the first model for which there is a key.
func (t *Trial) choose(ctx context.Context, env []string) (agents.Work, error) {
	var missing string
	for _, model := range t.models() {
		work, err := t.prepare(model)
		if err != nil {
			return work, err
		}
		lacks, err := t.lacks(ctx, work, env)
		if lacks == "" || err != nil {
			return work, err
		}
		if missing == "" {
			missing = lacks
		}
	}
	return agents.Work{}, skip("the agent %s has no key here: %s", t.agent.Name(), missing)
}

// lacks says which key an agent lacks; empty: none.
func (t *Trial) lacks(ctx context.Context, work agents.Work, env []string) (string, error) {
	if !t.here {
		given := func(kv string) bool {
			name, value, _ := strings.Cut(kv, "=")
			return slices.Contains(work.Keys, name) && value != ""
		}
		if len(work.Keys) == 0 || slices.ContainsFunc(env, given) {
			return "", nil
		}
		return "test a profile that sets " + work.Keys[0], nil
	}
	for _, name := range work.Connectors {
		def, err := t.h.Client.Connector(ctx, name)
		if errors.Is(err, sprites.ErrNotFound) {
			return "cove secret set " + name + "; cove connector put " + name, nil
		}
		if err != nil {
			return "", err
		}
		secrets, err := t.h.Client.Secrets(ctx)
		if err != nil {
			return "", err
		}
		if unset := connect.Unset(def, secrets); len(unset) > 0 {
			return "cove secret set " + unset[0], nil
		}
	}
	return "", nil
}
