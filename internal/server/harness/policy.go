package harness

import (
	"context"
	"errors"

	"github.com/cove-dev/cove/internal/shim/policy"
	"github.com/cove-dev/cove/sprites"
)

// refusedHost is a name that no preset allows.
const refusedHost = "cove-test.example"

// AgentPolicy is the one of a job that does not say.
func AgentPolicy() sprites.NetworkPolicy {
	return sprites.NetworkPolicy{Rules: []sprites.NetworkRule{{Include: policy.Agent}}}
}

// notThere is the exit code of a command that is not there.
const notThere = 127

// TryPolicy gives a sprite of a cove server AgentPolicy, and sees that it is in force.
func TryPolicy(ctx context.Context, sprite *sprites.Sprite) (detail string, err error) {
	if err := sprite.SetNetworkPolicy(ctx, AgentPolicy()); err != nil {
		return "", err
	}
	err = sprite.CommandContext(ctx, "getent", "hosts", refusedHost).Run()
	exit, refused := errors.AsType[*sprites.ExitError](err)
	switch {
	case !refused:
		return "", errors.Join(errors.New("a name that no rule allows can be looked up inside"), err)
	case exit.Code == notThere:
		return "set, but not tried: the sprite has no getent", nil
	}
	seen := false
	err = sprite.NetworkLog(ctx, sprites.NetworkLogOptions{}, func(e sprites.NetworkEvent) error {
		seen = seen || e.Name == refusedHost
		return nil
	})
	if err == nil && !seen {
		err = errors.New("the refusal is not in the log of the sprite's network")
	}
	return "in force: another name was refused and logged", err
}
