package sprite

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"

	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/lib/fault"
	"github.com/cove-dev/cove/internal/server/store"
	"github.com/cove-dev/cove/sprites"
)

// Fork makes copies of a sprite: of its settings, and of its disk as it is now or was at a
// checkpoint. If the sprite is awake, or its memory was kept, its programs go on in each
// copy, unless req.Boot is set. Each has a name, a machine's id and a network of its own;
// its policy is a copy, and its own from then on. A fork does not get the grants of
// connectors. A sprite that is awake stands still for a moment. Forks of one that is held
// sleep. Unless inward is true, a sprite is not forked if its policy opens something of
// the host's own network.
func (h *Host) Fork(ctx context.Context, name string, req sprites.ForkRequest, inward bool) ([]sprites.Info, error) {
	f := forker{store: h.Store.Sprites, memories: h.memories, checkpoints: h.checkpoints, sealer: h.sealer, logger: h.Logger}
	names, err := f.names(ctx, req)
	if err != nil {
		return nil, err
	}
	var made []sprites.Info
	awake := false
	err = h.lives.alone(ctx, name, func(ctx context.Context, m *machine, from store.Sprite) error {
		if !inward {
			if err := h.network.mayInherit(ctx, from); err != nil {
				return err
			}
		}
		awake = req.Checkpoint == "" && m.now().live() != nil && m.now().held == nil
		memory, forget, err := f.memory(ctx, m, from, req)
		if err != nil {
			return err
		}
		defer forget()
		if err := h.checkpoints.checkWhole(ctx, from, req.Checkpoint); err != nil {
			return err
		}
		for _, name := range names {
			row, err := f.fork(ctx, from, req, name, memory)
			if err != nil {
				return err
			}
			made = append(made, h.info(row))
		}
		return nil
	})
	if err != nil {
		return made, err
	}
	if awake && !req.Boot {
		h.startAll(ctx, made)
		for i, info := range made {
			if now, err := h.Get(ctx, info.Name); err == nil {
				made[i] = now
			}
		}
	}
	return made, nil
}

// mayInherit refuses forks of a sprite whose rules were given to it alone.
func (n *network) mayInherit(ctx context.Context, from store.Sprite) error {
	e, ok := errors.AsType[*fail.Error](n.opensInward(ctx, from.Name, from.Policy))
	if !ok || e.Code != CodeForbidden { // one that is malformed opens nothing
		return nil
	}
	return fail.Newf(CodeForbidden, "fork it with a token that has the verb admin, or see its rules and remove that one first: cove policy show -s "+from.Name, "sprite %s can't be forked with this token: %s", from.Name, e.Message)
}

// forker makes forks of a sprite whose machine is taken.
type forker struct {
	store       *store.Sprites
	memories    *memories
	checkpoints *checkpoints
	sealer      *sealer
	logger      *slog.Logger
}

// names are the names of the forks that are asked for, if they can be made.
func (f forker) names(ctx context.Context, req sprites.ForkRequest) ([]string, error) {
	names := req.Names
	if req.Name != "" || len(names) == 0 {
		names = append([]string{req.Name}, names...)
	}
	if len(names) > sprites.MaxForks {
		return nil, fail.Newf(CodeBadRequest, "make them in several calls", "%d forks at once are more than the %d allowed", len(names), sprites.MaxForks)
	}
	if err := CheckLabels(req.Labels); err != nil {
		return nil, err
	}
	for i, name := range names {
		if err := CheckName(name); err != nil {
			return nil, err
		}
		if _, err := f.store.Get(ctx, name); err == nil || slices.Contains(names[:i], name) {
			return nil, nameTaken(name)
		}
	}
	return names, nil
}

// memory returns the name of the memory that the forks go on from; it is empty if there
// is none. If no checkpoint is asked for, it seals the sprite's present state first.
// forget ends the use of the memory.
func (f forker) memory(ctx context.Context, m *machine, from store.Sprite, req sprites.ForkRequest) (memory string, forget func(), err error) {
	if req.Checkpoint != "" {
		c, err := f.checkpoints.find(ctx, from, req.Checkpoint)
		if req.Boot {
			c.Memory = ""
		}
		return c.Memory, func() {}, err
	}
	keep := sprites.KeepAlways // a fork that had nothing running for want of asking would be none
	if req.Boot {
		keep = sprites.KeepNever
	}
	now, err := f.sealer.seal(ctx, m, from, nil, keep) // what it was is then a sealed layer
	return now.name, func() { f.memories.forget(now.name) }, err
}

// fork makes one fork.
func (f forker) fork(ctx context.Context, from store.Sprite, req sprites.ForkRequest, name, memory string) (store.Sprite, error) {
	row := store.Sprite{
		ID: randomHex(8), Name: name, MachineID: randomHex(16), Labels: req.Labels, Status: sprites.StatusCold,
		URL:  sprites.URLSettings{Auth: "sprite"}, // the source's URL may be public; the fork's is not
		Base: from.Base, Include: slices.Clone(from.Include), Env: maps.Clone(from.Env), Config: from.Config,
		Policy: from.Policy, IdleSeconds: from.IdleSeconds, Hibernate: from.Hibernate, Retention: from.Retention, Owner: req.Owner, // a job's sprite is forked for somebody else
		// The fork needs an address that the source never had. Otherwise the
		// connections that it inherits from the source would look alive, and wait for
		// ever.
		Incarnation: from.Incarnation,
	}
	if memory != "" {
		err := f.store.MarkMemoryUnreferenced(ctx, row.ID) // until the store has the fork
		if err == nil {
			err = f.memories.recall(ctx, row.ID, memory)
		}
		if err != nil {
			f.logger.Error("a fork starts without its memory", "sprite", name, "err", err)
		} else {
			row.Status = sprites.StatusWarm
		}
		fault.Reach(fault.ForkRecalled)
	}
	err := onLayer(func() (err error) {
		if row.Layer, err = f.checkpoints.sealed(ctx, from, req.Checkpoint); err != nil {
			return err
		}
		return f.store.Create(ctx, &row)
	})
	if err == nil {
		fault.Reach(fault.ForkStored)
		return row, nil
	}
	if row.Status == sprites.StatusWarm {
		err = errors.Join(err, f.memories.discard(ctx, row.ID))
	}
	if errors.Is(err, store.ErrExists) {
		err = nameTaken(name)
	}
	if errors.Is(err, store.ErrNoImage) { // its source was removed, and then the image
		err = goneImage(row)
	}
	return row, err
}

func nameTaken(name string) error {
	return fail.Newf(CodeNameTaken, "choose another name, or remove it with: cove rm "+name, "there is a sprite named %s already", name)
}
