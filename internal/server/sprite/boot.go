package sprite

import (
	"context"
	"log/slog"
	"maps"

	"github.com/cove-dev/cove/internal/server/store"
)

// booter starts sandboxes.
type booter struct {
	runtime     Runtime
	store       *store.Store
	layers      *layerKeeper
	checkpoints *checkpoints
	network     *network
	url         func(name string) string // nil: nowhere
	tasks       *tasks
	logger      *slog.Logger
	binds       bindings
}

// boot starts the sandbox of a sprite, for which one of the pool's, or nil, is
// used if it can be.
func (b *booter) boot(ctx context.Context, row store.Sprite, spare Sandbox) (Sandbox, error) {
	ctx, cancel := context.WithTimeout(ctx, bootLimit)
	defer cancel()
	if spare != nil {
		done, err := b.assign(ctx, row, spare)
		if err != nil {
			return nil, err
		}
		if done {
			return spare, nil
		}
	}
	n, err := b.store.Sprites.Next(ctx, row.ID)
	if err != nil {
		return nil, err
	}
	machine, unpin, err := b.describe(ctx, row, n)
	if err != nil {
		return nil, err
	}
	defer unpin()
	return b.runtime.Boot(ctx, machine)
}

// describe is what a runtime must know of a sprite. Its layers stay until unpin
// is called.
func (b *booter) describe(ctx context.Context, row store.Sprite, incarnation int64) (_ Machine, unpin func(), err error) {
	// Read the row again: from now on, a replacement of the policy sees the start.
	if row, err = b.store.Sprites.Get(ctx, row.Name); err != nil {
		return Machine{}, nil, err
	}
	network, err := b.network.of(ctx, row)
	if err != nil {
		return Machine{}, nil, err
	}
	connectors, err := b.network.connectors(ctx, row.Name)
	if err != nil {
		return Machine{}, nil, err
	}
	if err := b.checkpoints.checkLayers(ctx, row); err != nil { // before its memory is used up
		return Machine{}, nil, err
	}
	chain, unpin, err := b.layers.pinShort(ctx, row.ID, row.Layer)
	if err != nil {
		return Machine{}, nil, err
	}
	return Machine{
		ID:          row.ID,
		Hostname:    row.Name,
		MachineID:   row.MachineID,
		Incarnation: incarnation,
		Base:        row.Base,
		Layers:      chain,
		Include:     row.Include,
		Bare:        row.Owner == store.BuildOwner,
		Binds:       b.binds.of(row.ID),
		Env:         b.environment(row),
		MemoryMB:    row.Config.RAMMB,
		CPUs:        row.Config.CPUs,
		Network:     network,
		Connectors:  connectors,

		NetworkPolicy: row.Policy,
	}, unpin, nil
}

// environment is the sprite's own, with its URL, which programs inside look for.
func (b *booter) environment(row store.Sprite) map[string]string {
	const key = "SPRITE_URL"
	if _, ok := row.Env[key]; ok || b.url == nil {
		return row.Env
	}
	env := map[string]string{key: b.url(row.Name)}
	maps.Copy(env, row.Env)
	return env
}

// assign makes a sandbox of the pool that of a sprite. One that can't be is ended.
func (b *booter) assign(ctx context.Context, row store.Sprite, sb Sandbox) (bool, error) {
	if a, ok := sb.(Assigner); ok && !ended(sb) {
		machine, unpin, err := b.describe(ctx, row, row.Incarnation)
		if err != nil {
			return false, err
		}
		defer unpin()
		if err = a.Assign(ctx, machine); err == nil {
			return true, nil
		}
		b.logger.Warn("a sandbox of the pool can't be used; starting another", "sprite", row.Name, "err", err)
	}
	return false, stop(b.tasks.lasting(), sb, 0, b.logger)
}
