package image

import (
	"strings"

	"github.com/google/go-containerregistry/pkg/name"

	"github.com/cove-dev/cove/internal/lib/fail"
)

// maxReference bounds a name that somebody gives.
const maxReference = 1024

// parse reads a name as people write it: debian, debian:12, reg.example/x@sha256:….
func parse(text string) (name.Reference, error) {
	if len(text) > maxReference {
		return nil, fail.Newf("bad_reference", "", "the name of an image has at most %d bytes, this one has %d", maxReference, len(text))
	}
	ref, err := name.ParseReference(text, name.WeakValidation)
	if err == nil {
		if digest, ok := ref.(name.Digest); ok && !strings.HasPrefix(digest.DigestStr(), "sha256:") {
			return nil, fail.Newf("bad_reference", "", "%q has a digest other than SHA-256", text)
		}
		return ref, nil
	}
	return nil, fail.Newf("bad_reference", "a name is like debian:12, or registry.example/group/image:tag, or image@sha256:DIGEST", "%q is not the name of an image", text)
}

// pinnedTo is the digest that a name has.
func pinnedTo(ref name.Reference) (digest string, ok bool) {
	if d, ok := ref.(name.Digest); ok {
		return d.DigestStr(), true
	}
	return "", false
}

// familiar is a name as people write it: the default registry is left out.
func familiar(full string) string {
	short, ok := strings.CutPrefix(full, name.DefaultRegistry+"/")
	if !ok {
		return full
	}
	if rest, ok := strings.CutPrefix(short, "library/"); ok && !strings.Contains(rest, "/") {
		return rest
	}
	return short
}
