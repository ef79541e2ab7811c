package main

import (
	"context"

	"github.com/cove-dev/cove/internal/server/image"
	"github.com/cove-dev/cove/internal/shim/base"
)

// images has the images of the store for the host, which names them, and the runtime, whose
// disks lie on them.
type images struct{ store *image.Store }

// Resolve returns the digest of an image that is here. What a registry would say is asked by
// who pulls.
func (i images) Resolve(ctx context.Context, reference string) (digest string, err error) {
	one, err := i.store.Get(ctx, reference)
	return one.Digest, err
}

// ground is an image as disks lie on it.
func (i images) ground(ctx context.Context, digest string) (base.Image, error) {
	one, err := i.store.Get(ctx, digest)
	if err != nil {
		return base.Image{}, err
	}
	lowers, err := i.store.Lowers(digest)
	if err != nil {
		return base.Image{}, err
	}
	return base.Image{Digest: digest, Lowers: lowers, Env: one.Config.Env, User: one.Config.User, Workdir: one.Config.Workdir}, nil
}
