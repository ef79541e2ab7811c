package main

import (
	"context"
	"fmt"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/server/image"
	"github.com/cove-dev/cove/internal/shim/base"
)

// images has the images of the store for the host, which names them, and the runtime, whose
// disks lie on them.
type images struct{ store *image.Store }

// Resolve returns the digest of an image that is here. It asks no registry: only a pull does.
func (i images) Resolve(ctx context.Context, reference string) (digest string, err error) {
	one, err := i.store.Get(ctx, reference)
	if err == nil && len(one.Layers) == 0 {
		err = fail.Newf("image_bad", "choose another image", "the image %s has no files: nothing could run in it", reference)
	}
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
	img := base.Image{
		Digest: digest, Lowers: lowers, Env: one.Config.Env, User: one.Config.User, Workdir: one.Config.Workdir,
		HTTPPort: cove.ImageConfig{Ports: one.Config.Ports}.HTTPPort(),
	}
	if len(one.Config.Shell) > 0 {
		img.Shell = one.Config.Shell[0]
	}
	return img, nil
}

// unfit removes from a data folder what cove added to an image that is gone.
func unfit(dir string) func(digest string) error {
	return func(digest string) error { return base.RemoveFittings(filepath.Join(dir, "base"), digest) }
}

// leaves returns a check that what is about to be written leaves the reserve of a folder's disk.
func leaves(dir string, reserve int64) func(bytes int64) error {
	return func(bytes int64) error {
		var st unix.Statfs_t
		if err := unix.Statfs(dir, &st); err != nil {
			return fmt.Errorf("look how full the disk of %s is: %w", dir, err)
		}
		if int64(st.Bavail)*st.Bsize-bytes < reserve {
			return fail.New("no_space", "the server's disk has no room left for this image", "make room: cove image prune; of images that no sprite uses, too: cove image prune --all")
		}
		return nil
	}
}
