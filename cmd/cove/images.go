package main

import (
	"context"
	"errors"
	"io"
	"path/filepath"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/server/archive"
	"github.com/cove-dev/cove/internal/server/image"
	"github.com/cove-dev/cove/internal/server/sprite"
	"github.com/cove-dev/cove/internal/shim/base"
)

// images has the images of the store. The host resolves their names, and the runtime makes
// disks that lie on them.
type images struct{ store *image.Store }

// Resolve returns the digest of an image that is here. It asks no registry: only a pull does.
func (i images) Resolve(ctx context.Context, reference string) (digest string, err error) {
	one, err := i.store.Get(ctx, reference)
	if err == nil && len(one.Layers) == 0 {
		err = fail.Newf("image_bad", "choose another image", "the image %s has no files: nothing could run in it", reference)
	}
	return one.Digest, err
}

// Pack returns the archive of an image, for that of a sprite.
func (i images) Pack(ctx context.Context, digest string) (a archive.Image, done func(), err error) {
	packed, err := image.Pack(ctx, i.store, digest)
	if err != nil {
		return a, nil, err
	}
	return archive.Image{Bytes: packed.Bytes, Write: func(w io.Writer) error { return packed.Write(ctx, w) }}, packed.Close, nil
}

// Bring takes an image that has come with a sprite.
func (i images) Bring(ctx context.Context, digest string, r io.Reader) (finish func(used bool), err error) {
	return image.Bring(ctx, i.store, digest, r)
}

// Pull gets the image of a digest from its registry.
func (i images) Pull(ctx context.Context, reference, digest string) error {
	one, err := i.store.Pull(ctx, reference, image.PullOptions{})
	if err == nil && one.Digest != digest {
		err = fail.Newf("image_not_found", "", "the image %s does not have the digest %s", reference, digest)
	}
	return err
}

// ground is an image as disks lie on it.
func (i images) ground(ctx context.Context, digest string) (base.Image, error) {
	one, err := i.store.Get(ctx, digest)
	if err != nil {
		return base.Image{}, err
	}
	lowers, err := i.store.Lowers(ctx, digest)
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

// room returns a check that the disk has room for the next bytes of an image. They must leave
// the reserve of the host's disk free, and the room that others have claimed.
func room(host *sprite.Host) func(bytes int64) error {
	return func(bytes int64) error {
		err := sprite.Room(host, bytes)
		if errors.Is(err, sprite.ErrNoRoom) {
			return fail.New("no_space", "the server's disk has no room left for this image", "make room: cove image prune; to also remove images that no sprite uses: cove image prune --all")
		}
		return err
	}
}
