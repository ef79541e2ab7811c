package sprite

import (
	"context"
	"errors"
	"maps"
	"slices"

	"github.com/cove-dev/cove/internal/store"
	"github.com/cove-dev/cove/sprites"
)

// Fork makes a sprite whose disk is what another's is now, or was at a checkpoint,
// and whose settings are the other's. It has a name, a machine's id and a network
// of its own; its policy is a copy, and its own from then on. Connectors that the
// other was granted are not granted to it. A sprite that is awake stands still for
// a moment.
func (h *Host) Fork(ctx context.Context, name string, req sprites.ForkRequest) (sprites.Info, error) {
	if err := CheckName(req.Name); err != nil {
		return sprites.Info{}, err
	}
	if err := checkLabels(req.Labels); err != nil {
		return sprites.Info{}, err
	}
	if _, err := h.Store.Sprites.Get(ctx, req.Name); err == nil {
		return sprites.Info{}, nameTaken(req.Name)
	}
	row := store.Sprite{
		ID: randomHex(8), Name: req.Name, MachineID: randomHex(16), Labels: req.Labels, Status: sprites.StatusCold,
		URL: sprites.URLSettings{Auth: "sprite"}, // who opened the other's did not open this one's
	}
	err := h.alone(ctx, name, func(ctx context.Context, m *machine, from store.Sprite) error {
		if req.Checkpoint == "" {
			if _, err := h.seal(ctx, m, from, nil); err != nil { // what it was is then a sealed layer
				return err
			}
		}
		if err := h.checkWhole(ctx, from, req.Checkpoint); err != nil {
			return err
		}
		row.Base, row.Include, row.Env, row.Config = from.Base, slices.Clone(from.Include), maps.Clone(from.Env), from.Config
		row.Policy, row.IdleSeconds, row.Owner = from.Policy, from.IdleSeconds, req.Owner // a job's sprite is forked for somebody else
		return h.onLayer(func() (err error) {
			if row.Layer, err = h.sealed(ctx, from, req.Checkpoint); err != nil {
				return err
			}
			return h.Store.Sprites.Create(ctx, &row)
		})
	})
	if errors.Is(err, store.ErrExists) {
		err = nameTaken(req.Name)
	}
	if err != nil {
		return sprites.Info{}, err
	}
	return h.info(row), nil
}

// sealed is the layer that a checkpoint is the chain of, or, without one, what the
// sprite goes on from.
func (h *Host) sealed(ctx context.Context, row store.Sprite, checkpoint string) (string, error) {
	if checkpoint != "" {
		c, err := h.checkpoint(ctx, row, checkpoint)
		return c.Layer, err
	}
	row, err := h.Store.Sprites.ByID(ctx, row.ID)
	if err != nil {
		return "", err
	}
	chain, err := h.Store.Sprites.Chain(ctx, row.Layer)
	if err != nil || len(chain) < 2 {
		return "", err
	}
	return chain[len(chain)-2], nil
}

// onLayer calls f, which looks for a sealed layer and puts something on it. Where
// that was merged into another in between, it is looked for again.
func (h *Host) onLayer(f func() error) (err error) {
	for range 5 {
		if err = f(); !errors.Is(err, store.ErrNotFound) {
			break
		}
	}
	return err
}

func nameTaken(name string) error {
	return newError(CodeNameTaken, "choose another name, or remove it with: cove rm "+name, "there is a sprite named %s already", name)
}
