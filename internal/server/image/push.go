package image

import (
	"cmp"
	"context"
	"errors"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"github.com/cove-dev/cove/internal/lib/fail"
)

// PushOptions are those of Push.
type PushOptions struct {
	Progress func(Progress) // as that of PullOptions
}

// stuckTimeout is how long a push may stand still. Registries that have received a large blob
// compare its digest before they answer.
const stuckTimeout = 5 * time.Minute

// errStuck ends a push that stands still.
var errStuck = errors.New("nothing moved for " + stuckTimeout.String())

// Push sends an image that is here to the registry of a name, and returns the name. If the
// name is empty, nameOrDigest is the name. Blobs that the registry has are not sent. A tag in
// the registry that is another image's becomes this image's, after all blobs are there.
func (s *Store) Push(ctx context.Context, nameOrDigest, to string, o PushOptions) (as string, err error) {
	i, release, err := openStored(ctx, s, nameOrDigest)
	if err != nil {
		return "", err
	}
	defer release()
	if to == "" && i.name == "" {
		return "", fail.Newf("bad_reference", "cove image push "+nameOrDigest+" REGISTRY/NAME:TAG", "%q names no registry", nameOrDigest)
	}
	ref, err := newName(cmp.Or(to, i.name))
	if err != nil {
		return "", err
	}
	if err := i.whole(); err != nil {
		return "", err
	}
	m := &meter{tell: o.Progress}
	m.phase(Resolving)
	i.reading = func(d v1.Descriptor) func(int64) { return m.gauge(Uploading, d.Digest.String(), d.Size) }
	watch, touch, stop := watchedFor(ctx, stuckTimeout, errStuck)
	defer stop()
	if err := upload(watch, s, i, ref, m, touch); err != nil {
		r := &registry{s: s, ref: ref}
		return "", pushError(r, r.explain(ctx, watch, err))
	}
	m.phase(Done)
	return familiar(ref.Name()), nil
}

// upload sends the blobs of an image, several at once, and its manifest last.
func upload(ctx context.Context, s *Store, i *stored, ref name.Reference, m *meter, touch func()) error {
	image, err := partial.CompressedToImage(i)
	if err != nil {
		return err
	}
	p, err := remote.NewPusher(
		remote.WithAuthFromKeychain(s.o.Keychain), remote.WithJobs(atOnce),
		remote.WithTransport(touchingTransport{guard{RoundTripper: s.o.Transport, of: ref.Context().Registry, all: true}, touch}),
	)
	if err != nil {
		return err
	}
	layers, err := image.Layers()
	if err != nil {
		return err
	}
	m.begin(len(layers))
	if err := eachAtOnce(ctx, layers, func(ctx context.Context, l v1.Layer) error {
		if err := p.Upload(ctx, ref.Context(), l); err != nil {
			return err
		}
		m.layerDone()
		return nil
	}); err != nil {
		return err
	}
	return p.Push(ctx, ref, image)
}

// eachAtOnce calls f for each layer, atOnce at the same time. It returns the first error, which
// cancels the others.
func eachAtOnce(ctx context.Context, layers []v1.Layer, f func(context.Context, v1.Layer) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	next := make(chan v1.Layer, len(layers))
	for _, l := range layers {
		next <- l
	}
	close(next)
	var wg sync.WaitGroup
	for range atOnce {
		wg.Go(func() {
			for l := range next {
				if ctx.Err() != nil {
					return
				}
				if err := f(ctx, l); err != nil {
					cancel(err)
				}
			}
		})
	}
	wg.Wait()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return nil
}

// pushError is an error of explain, as a push has it.
func pushError(r *registry, err error) error {
	e, ok := errors.AsType[*fail.Error](err)
	if !ok {
		return err
	}
	host := r.ref.Context().RegistryStr()
	switch {
	case e.Code == "image_denied" && host == name.DefaultRegistry:
		e.Hint = r.login() + "\na name says which registry: cove image push NAME REGISTRY/NAME:TAG"
	case e.Code == "image_not_found":
		return fail.Newf("image_not_found", "create the repository there first, if that registry requires it", "the registry %s does not accept a push to %s", host, familiar(r.ref.Name()))
	}
	return err
}

// touchingTransport reports that something moves: for each request, and whenever a part of it
// is sent.
type touchingTransport struct {
	http.RoundTripper
	touch func()
}

func (t touchingTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	t.touch()
	if req.Body != nil && req.Body != http.NoBody {
		req = req.Clone(req.Context()) // which a RoundTripper may not change
		req.Body = struct {
			io.Reader
			io.Closer
		}{&touching{req.Body, t.touch}, req.Body}
	}
	resp, err := t.RoundTripper.RoundTrip(req)
	if err == nil {
		t.touch()
	}
	return resp, err
}
