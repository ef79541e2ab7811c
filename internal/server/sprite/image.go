package sprite

import (
	"context"
	"errors"
	"io"
	"regexp"
	"strings"
	"sync"

	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/server/archive"
	"github.com/cove-dev/cove/internal/server/store"
	"github.com/cove-dev/cove/internal/shim/base"
)

// Images are the images that the disks of sprites can lie on. The Runtime has to find what
// Resolve returns. Errors for people are *fail.Error.
type Images interface {
	// Resolve returns the digest of the image that a reference names now. The image is here
	// when it returns.
	Resolve(ctx context.Context, reference string) (digest string, err error)
}

// ImageArchives are Images that leave with a sprite, and come with one.
type ImageArchives interface {
	// Pack returns the archive of an image that is here. The caller calls done after it has written
	// it, or not.
	Pack(ctx context.Context, digest string) (a archive.Image, done func(), err error)

	// Bring takes the image with a digest from an archive, which may be anybody's. It stays
	// until finish is called, and after that if used is true.
	Bring(ctx context.Context, digest string, r io.Reader) (finish func(used bool), err error)

	// Pull gets the image of a digest from the registry that a reference names.
	Pull(ctx context.Context, reference, digest string) error
}

// reference is what a reference to an image can consist of. All else is the business of Images.
var reference = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._:/@+-]{0,510}$`) })

func checkReference(ref string) error {
	if !reference().MatchString(ref) {
		return fail.Newf(CodeBadRequest, "for example: debian:12", "%.200q can't be the name of an image", ref)
	}
	return nil
}

// baseOf returns the name of the base that a new sprite's disk lies on.
func baseOf(ctx context.Context, h *Host, name, ref string) (string, error) {
	if ref == "" {
		return defaultBase, nil
	}
	if _, err := h.Store.Sprites.Get(ctx, name); err == nil {
		return "", nameTaken(name) // before an image is fetched for it
	}
	return resolve(ctx, h.Images, ref)
}

// resolve returns the digest of the image that a reference names now. nil has no images.
func resolve(ctx context.Context, images Images, ref string) (digest string, err error) {
	if images == nil {
		return "", fail.Newf(CodeNotAvailable, "", "this server has no images: sprites start from its machine's own tools")
	}
	digest, err = images.Resolve(ctx, ref)
	if err == nil && !base.IsImage(digest) {
		err = fail.Newf(CodeImageNotFound, "", "image %s has no digest: %.100q", ref, digest)
	}
	return digest, err
}

// pinned is a reference to an image that no tag moves.
func pinned(ref, digest string) string {
	switch {
	case reference().MatchString(ref) && strings.HasSuffix(ref, "@"+digest):
		return ref
	case !reference().MatchString(ref) || strings.ContainsRune(ref, '@') || strings.HasPrefix(ref, "sha256:"):
		return digest
	}
	return ref + "@" + digest
}

// imageError is an error of a sprite's image as a caller gets it; nil: err is none. before
// begins its text.
func imageError(row store.Sprite, before string, err error) *fail.Error {
	if !base.IsImage(row.Base) {
		return nil
	}
	e, ok := errors.AsType[*fail.Error](err)
	switch {
	case errors.Is(err, ErrNoImage), ok && e.Code == CodeImageNotFound:
		ref := pinned(row.Config.Image, row.Base)
		return fail.Newf(CodeImageNotFound, "get it again: cove image pull "+ref+", or: cove image import SOURCE", "%s: its image %s is not here any more. Its disk is kept", before, ref)
	case errors.Is(err, base.ErrImage):
		return fail.Newf(CodeImageBad, "create another sprite from another image", "%s: %v", before, err)
	}
	return nil
}

// goneImage says that the image of a new sprite was removed before the sprite was stored.
func goneImage(row store.Sprite) *fail.Error {
	ref := pinned(row.Config.Image, row.Base)
	return fail.Newf(CodeImageNotFound, "get it again: cove image pull "+ref, "the image %s was removed meanwhile", ref)
}
