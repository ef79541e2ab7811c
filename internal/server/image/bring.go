package image

import (
	"context"
	"errors"
	"io"
	"os"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/cove-dev/cove/internal/server/store"
	"github.com/cove-dev/cove/internal/shim/layers"
)

// Bring takes the image with a digest, but none of its names, from an archive such as Packed
// writes. The archive may be anybody's. The image is held until finish is called. If used is
// false then, and the image was not here before, it is removed unless somebody else uses or has
// named it by then.
func Bring(ctx context.Context, s *Store, digest string, r io.Reader) (finish func(used bool), err error) {
	hash, err := v1.NewHash(digest)
	if err != nil || hash.Algorithm != "sha256" {
		return nil, bad("%.100q is not the digest of an image", digest)
	}
	release := s.Hold(digest)
	defer func() {
		if err != nil {
			release()
		}
	}()
	_, err = s.o.Store.Get(ctx, digest)
	was := err == nil
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return nil, err
	}
	if err := unarchive(ctx, s, hash, r); err != nil {
		return nil, err
	}
	return func(used bool) {
		release()
		if !used && !was {
			giveUp(context.WithoutCancel(ctx), s, digest)
		}
	}, nil
}

// unarchive takes the image of a digest from an archive.
func unarchive(ctx context.Context, s *Store, hash v1.Hash, r io.Reader) (err error) {
	dir, err := os.MkdirTemp(s.path(stagingFolder), "import-")
	if err != nil {
		return onDisk(err)
	}
	defer func() { err = errors.Join(err, layers.Remove(dir)) }()
	a := &archive{s: s, dir: dir, files: map[string]spooled{}, links: map[string]string{}}
	if err := a.spool(ctx, r, func(int64) {}); err != nil {
		return err
	}
	f, ok := a.find(blobName(hash.Hex))
	if !ok || f.digest != hash.Hex {
		return bad("the archive has no %s, or has it with other content", hash)
	}
	raw, _, err := a.document(blobName(hash.Hex))
	if err != nil {
		return err
	}
	d := newDocument(raw)
	kind, err := d.kind()
	if err != nil {
		return err
	}
	if !kind.IsImage() {
		return bad("%s is not an image", hash)
	}
	if err := a.complete(d); err != nil {
		return err
	}
	_, err = s.take(ctx, d, a, taken{what: hash.String(), meter: &meter{}})
	return err
}

// giveUp removes an image that nobody has named or uses.
func giveUp(ctx context.Context, s *Store, digest string) {
	row, err := s.o.Store.Get(ctx, digest)
	if err == nil && len(row.Names) == 0 {
		err = removeUnheld(ctx, s, row)
	}
	if err != nil && !errors.Is(err, store.ErrNotFound) && !errors.Is(err, store.ErrInUse) && !errors.Is(err, errHeld) && !errors.Is(err, errNamed) {
		s.o.Logger.Warn("an image that came with a sprite is left behind; cove image prune removes it", "image", digest, "err", err)
	}
}
