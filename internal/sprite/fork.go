package sprite

import (
	"cmp"
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
	var from store.Sprite
	err := h.alone(ctx, name, func(ctx context.Context, m *machine, row store.Sprite) error {
		from = row
		if req.Checkpoint == "" {
			_, err := h.seal(ctx, m, row, nil) // what it was is then a sealed layer
			return err
		}
		c, err := h.checkpoint(ctx, row, req.Checkpoint)
		from.Layer = c.Layer
		return err
	})
	if err != nil {
		return sprites.Info{}, err
	}
	row := store.Sprite{
		ID:          randomHex(8),
		Name:        req.Name,
		MachineID:   randomHex(16),
		Layer:       from.Layer,
		Base:        from.Base,
		Include:     slices.Clone(from.Include),
		Env:         maps.Clone(from.Env),
		Config:      from.Config,
		Labels:      req.Labels,
		URL:         sprites.URLSettings{Auth: "sprite"}, // who opened the other's did not open this one's
		Policy:      from.Policy,
		IdleSeconds: from.IdleSeconds,
		Owner:       cmp.Or(req.Owner, from.Owner),
		Status:      sprites.StatusCold,
	}
	err = h.Store.Sprites.Create(ctx, &row)
	switch {
	case errors.Is(err, store.ErrExists):
		return sprites.Info{}, nameTaken(req.Name)
	case errors.Is(err, store.ErrNotFound):
		return sprites.Info{}, newError(CodeNotFound, "see what there is with: cove checkpoint list -s "+name, "checkpoint %.80q of sprite %s has just been deleted", req.Checkpoint, name)
	case err != nil:
		return sprites.Info{}, err
	}
	return h.info(row), nil
}

func nameTaken(name string) error {
	return newError(CodeNameTaken, "choose another name, or remove it with: cove rm "+name, "there is a sprite named %s already", name)
}
