package environment

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/cove-dev/cove"
)

// ErrNeeded says that a sprite is no orphan: an environment or a job has it, or it is too young.
var ErrNeeded = errors.New("the sprite is not an orphan")

// Orphans are the sprites at all places that this server made and that nothing needs
// (cove.Orphan), sorted by backend and name. It asks each place for one list. unheard has the
// errors of the places that did not return it, by backend.
func (k *Keeper) Orphans(ctx context.Context, now time.Time) (orphans []cove.Orphan, unheard map[string]error, err error) {
	backends, err := k.Client.Backends(ctx)
	if err != nil {
		return nil, nil, err
	}
	places := []string{""}
	for _, b := range backends {
		places = append(places, b.Name)
	}
	unheard = map[string]error{}
	var mu sync.Mutex
	var wg sync.WaitGroup
	for _, backend := range places {
		wg.Go(func() {
			found, err := k.orphansAt(ctx, backend, now)
			mu.Lock()
			defer mu.Unlock()
			if orphans = append(orphans, found...); err != nil {
				unheard[backend] = err
			}
		})
	}
	wg.Wait()
	slices.SortFunc(orphans, func(a, b cove.Orphan) int {
		return cmp.Or(cmp.Compare(a.Backend, b.Backend), cmp.Compare(a.Name, b.Name))
	})
	return orphans, unheard, nil
}

func (k *Keeper) orphansAt(ctx context.Context, backend string, now time.Time) (orphans []cove.Orphan, err error) {
	ctx, cancel := context.WithTimeout(ctx, surveyLimit)
	defer cancel()
	list, err := k.At(backend).List(ctx)
	if err != nil {
		return nil, err
	}
	for _, s := range list { // a row is there before its sprite: one that is not there now will not come
		orphan, err := k.orphan(ctx, backend, s, now)
		if err != nil {
			return nil, err
		}
		if orphan {
			orphans = append(orphans, cove.Orphan{Name: s.Name, Backend: backend, SpriteID: s.SpriteID, Job: s.Job, Status: s.Said, CreatedAt: s.CreatedAt})
		}
	}
	return orphans, nil
}

// orphan reports whether a sprite of this server's is an orphan.
func (k *Keeper) orphan(ctx context.Context, backend string, s Status, now time.Time) (bool, error) {
	if s.CreatedAt.IsZero() || now.Sub(s.CreatedAt) < cove.OrphanAge {
		return false, nil
	}
	needed, err := k.Store.Needed(ctx, backend, s.Name, s.Job)
	return !needed, err
}

// DestroyOrphan deletes a sprite that Orphans has listed. It must still be the same sprite, have
// our mark, and be an orphan; else the error is ErrForeign or ErrNeeded. If the sprite is gone,
// there is no error.
func (k *Keeper) DestroyOrphan(ctx context.Context, o cove.Orphan, now time.Time) error {
	ctx, cancel := context.WithTimeout(ctx, surveyLimit)
	defer cancel()
	s := Status{Name: o.Name, SpriteID: o.SpriteID, Job: o.Job, CreatedAt: o.CreatedAt}
	orphan, err := k.orphan(ctx, o.Backend, s, now)
	if err == nil && !orphan {
		err = ErrNeeded
	}
	if err != nil {
		return err
	}
	return k.At(o.Backend).Remove(ctx, s)
}
