package sprite

import (
	"context"
	"errors"
	"log/slog"

	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/server/store"
)

// rows reads the sprites in the store, and notes there what has happened to them.
type rows struct {
	sprites *store.Sprites
	tasks   *tasks
	logger  *slog.Logger
}

// named reads a sprite by name.
func (r *rows) named(ctx context.Context, name string) (store.Sprite, error) {
	if CheckName(name) != nil {
		return store.Sprite{}, NoSprite(name)
	}
	row, err := r.sprites.Get(ctx, name)
	if errors.Is(err, store.ErrNotFound) {
		return row, NoSprite(name)
	}
	if o, ok := ctx.Value(onlyKey{}).(only); ok && err == nil && o.name == name && o.id != row.ID {
		return store.Sprite{}, NoSprite(name)
	}
	return row, err
}

// only is the one sprite that a context knows by a name.
type only struct{ name, id string }

type onlyKey struct{}

// Only returns a context for calls of a Host, which find by that name the sprite of that ID or
// none. So a caller changes the sprite that it has judged, even if the name becomes another's.
func Only(ctx context.Context, name, id string) context.Context {
	return context.WithValue(ctx, onlyKey{}, only{name, id})
}

// NoSprite is the error for a name that no sprite has.
func NoSprite(name string) error {
	if CheckName(name) != nil {
		return fail.Newf(CodeNotFound, "", "there is no sprite %.80q, nor can there be: a name has letters, digits and hyphens", name)
	}
	return fail.Newf(CodeNotFound, "see what there is with: cove list", "there is no sprite named %s", name)
}

// note changes a sprite's row after something has happened to its sandbox. If the write
// fails, on a full disk for example, it logs that. Memory counts more than the store,
// and the next start makes them agree.
func (r *rows) note(id string, f func(*store.Sprite)) {
	_, err := r.sprites.Update(r.tasks.lasting(), id, func(s *store.Sprite) error {
		f(s)
		return nil
	})
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		r.logger.Error("noting the state of a sprite", "id", id, "err", err)
	}
}
