package server

import (
	"context"
	"errors"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/server/image"
	"github.com/cove-dev/cove/internal/server/sprite"
	"github.com/cove-dev/cove/internal/server/store"
)

// stays are the images that a prune leaves though no sprite that people see uses them. They
// are the default image, and the images of hidden sprites at work.
func (g *imageRoutes) stays(ctx context.Context) (map[string]bool, error) {
	stays := map[string]bool{}
	if g.image != "" {
		one, err := g.images.Get(ctx, g.image)
		if e, ok := errors.AsType[*fail.Error](err); err != nil && (!ok || e.Code != sprite.CodeImageNotFound) {
			return nil, err
		}
		stays[one.Digest] = true
	}
	rows, err := g.sprites.List(ctx, store.SpriteFilter{})
	if err != nil {
		return nil, err
	}
	for _, row := range rows {
		stays[row.Base] = true
	}
	return stays, nil
}

// pruned removes images and caches, or says only which those are.
func (g *imageRoutes) pruned(ctx context.Context, dry bool, used func(digest string, names []string) bool) (p cove.ImagePruned, err error) {
	steps, err := g.hidden(ctx)
	if err != nil {
		return p, err
	}
	would, err := image.Prunable(ctx, g.images, used)
	if err != nil {
		return p, err
	}
	done := would.Pruned
	if dry {
		p.CacheBytes, err = g.builder.CacheBytes(ctx)
	} else if done, err = g.images.Prune(ctx, used); err == nil {
		p.CacheBytes, err = g.builder.Prune(ctx)
	}
	if err != nil {
		return p, err
	}
	p.Images, p.Names, p.Bytes = append([]string{}, done.Images...), []string{}, done.Bytes+p.CacheBytes
	for _, digest := range p.Images {
		switch names := would.Names[digest]; {
		case len(names) > 0:
			p.Names, p.Named = append(p.Names, names...), p.Named+1
		case steps[digest]:
			p.Steps++
		}
	}
	return p, nil
}
