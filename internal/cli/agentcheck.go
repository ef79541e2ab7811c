package cli

import (
	"context"
	"errors"
	"time"

	"github.com/spf13/cobra"

	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/server/agents"
)

// checkLimit bounds an installation that is tried out.
const checkLimit = 15 * time.Minute

func newAgentCheckCommand(inv *invocation) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "check NAME",
		Short: "Check that an agent can be installed and started, in a sprite made for that",
		Long: `Makes a sprite with the network of a job, installs the agent in it, and sets it up. It then
starts the agent once to see its version, checks its key and the way to its model, and deletes
the sprite. Each step is timed. The model gets no request. cove doctor --deep --agent NAME runs a
whole job.

The exit code is 1 if a step fails.`,
		Example: `  cove agent check claude
  cove agent check greeter --json | jq '.steps[] | {step, result, ms}'`,
		Args:              exactArgs("the agent's name"),
		Annotations:       map[string]string{"agents": "one"},
		ValidArgsFunction: completeAgent,
	}
	cmd.RunE = verb(func(ctx context.Context, args []string) error {
		places, err := findPlaces(ctx)
		if err != nil {
			return err
		}
		who, err := findAgent(cmd, places, args[0])
		if err != nil {
			return err
		}
		return checkAgent(ctx, inv, who)
	})
	return cmd
}

// checkAgent does the agent's part of a job, without the rest, and removes all that it made.
func checkAgent(ctx context.Context, inv *invocation, who agents.Agent) error {
	work, err := agents.Trial(who, spriteHome)
	if err != nil {
		return err
	}
	c, err := inv.server.client(ctx)
	if err != nil {
		return err
	}
	d := &deep{inv: inv, agent: who.Name(), client: c, name: "agent-check-" + randomName(), steps: steps{inv: inv}}
	ctx, cancel := context.WithTimeout(ctx, checkLimit)
	defer cancel()
	err = d.checkAgent(ctx, work)
	if undoErr := d.undo(ctx); err == nil {
		err = undoErr
	}
	return d.steps.end(stepsJSON{Sprite: d.name, Agent: d.agent}, err)
}

func (d *deep) checkAgent(ctx context.Context, work agents.Work) error {
	p := &preparation{inv: d.inv, client: d.client, sprite: d.client.Sprite(d.name), agent: d.agent}
	for _, s := range []struct {
		name string
		do   func(context.Context) (result, detail string, err error)
	}{
		{"create", done(d.create)},
		{"policy", done(d.policy)},
		{"install", func(ctx context.Context) (string, string, error) { return p.each(ctx, work, work.Install) }},
		{"setup", func(ctx context.Context) (string, string, error) { return p.each(ctx, work, work.Setup) }},
		{"verify", done(func(ctx context.Context) (string, error) { return p.verify(ctx, work) })},
		{"connector", func(ctx context.Context) (string, string, error) { return p.connector(ctx, work) }},
	} {
		err := d.steps.do(s.name, func() (string, string, error) { return s.do(ctx) })
		if errors.Is(err, context.DeadlineExceeded) {
			err = fail.Wrap("timed_out", err, "see what it waits for: cove create NAME; cove setup NAME --agent "+d.agent)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// done is a step that does something, or fails.
func done(do func(context.Context) (string, error)) func(context.Context) (string, string, error) {
	return func(ctx context.Context) (string, string, error) {
		detail, err := do(ctx)
		return stepDone, detail, err
	}
}
