package image

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/cove-dev/cove/internal/lib/fail"
)

const (
	// idleTimeout is how long a registry may send nothing.
	idleTimeout = time.Minute

	// A download that ends early is gone on with. After so many tries in a row that brought
	// nothing, it fails.
	maxTries  = 3
	tryAgain  = 500 * time.Millisecond // doubled each time
	copyBlock = 256 << 10
)

// accepted are the kinds of manifest that this package reads.
var accepted = strings.Join([]string{
	string(types.OCIImageIndex), string(types.DockerManifestList), string(types.OCIManifestSchema1), string(types.DockerManifestSchema2),
}, ", ")

// registry is one repository of a registry.
type registry struct {
	s      *Store
	ref    name.Reference
	client *http.Client
}

// errIdle ends a request that brings nothing.
var errIdle = errors.New("nothing came for " + idleTimeout.String())

// watched is ctx that ends if touch is not called for idleTimeout. The caller calls stop.
func watched(ctx context.Context) (_ context.Context, touch, stop func()) {
	return watchedFor(ctx, idleTimeout, errIdle)
}

// watchedFor is watched for another time. idle is why the context ends then.
func watchedFor(ctx context.Context, most time.Duration, idle error) (_ context.Context, touch, stop func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	timer := time.AfterFunc(most, func() { cancel(idle) })
	return ctx, func() { timer.Reset(most) }, func() { timer.Stop(); cancel(nil) }
}

// connect logs in to the registry that a name is of.
func (s *Store) connect(ctx context.Context, ref name.Reference) (*registry, error) {
	r := &registry{s: s, ref: ref}
	watch, _, stop := watched(ctx)
	defer stop()
	auth, err := authn.Resolve(watch, s.o.Keychain, ref.Context())
	if err != nil {
		return nil, fail.Wrap("image_denied", fmt.Errorf("find the login for %s: %w", ref.Context().RegistryStr(), err), r.login())
	}
	t, err := transport.NewWithContext(watch, ref.Context().Registry, auth, guard{RoundTripper: s.o.Transport, of: ref.Context().Registry}, []string{ref.Scope(transport.PullScope)})
	if err != nil {
		return nil, r.explain(ctx, watch, err)
	}
	r.client = &http.Client{Transport: t}
	return r, nil
}

func (r *registry) login() string { return "docker login " + r.ref.Context().RegistryStr() }

// explain gives an error of a request a code. watch is the request's context, and ctx the
// caller's.
func (r *registry) explain(ctx, watch context.Context, err error) error {
	host := r.ref.Context().RegistryStr()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if cause := context.Cause(watch); cause == errIdle || cause == errStuck {
		return &fail.Error{Code: "timeout", Message: fmt.Sprintf("the registry %s does not answer", host), Err: cause}
	}
	if refused, ok := errors.AsType[*fail.Error](err); ok {
		return refused // without the address, which may have a signature
	}
	said, ok := errors.AsType[*transport.Error](err)
	if !ok {
		return &fail.Error{Code: "registry_unreachable", Message: fmt.Sprintf("the registry %s can't be reached", host), Hint: "check the image's name; list the images that are here: cove image list; or import one from a file: cove image import FILE", Err: err}
	}
	text := fmt.Sprintf("%.300s", http.StatusText(said.StatusCode))
	if len(said.Errors) > 0 {
		text = fmt.Sprintf("%.300q", said.Errors[0].Message)
		if said.Errors[0].Message == "" {
			text = fmt.Sprintf("%.300q", string(said.Errors[0].Code))
		}
	}
	switch said.StatusCode {
	case http.StatusUnauthorized, http.StatusForbidden:
		return fail.Newf("image_denied", r.login(), "the registry %s denies access to %s, or has no such image (%s)", host, familiar(r.ref.Name()), text)
	case http.StatusNotFound:
		return fail.Newf("image_not_found", "", "the registry %s has no %s (%s)", host, familiar(r.ref.Name()), text)
	}
	return fail.Newf("registry_unreachable", "", "the registry %s answers with %d (%s)", host, said.StatusCode, text)
}

// get asks for something of the repository. The answer's status is among want.
func (r *registry) get(ctx context.Context, what string, header http.Header, want ...int) (*http.Response, error) {
	u := url.URL{Scheme: "https", Host: r.ref.Context().RegistryStr(), Path: "/v2/" + r.ref.Context().RepositoryStr() + "/" + what}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return nil, err
	}
	req.Header = header
	resp, err := r.client.Do(req)
	if refused, ok := errors.AsType[*fail.Error](err); ok {
		return nil, refused // without the address, which may have a signature
	}
	if err != nil {
		return nil, err
	}
	if err := transport.CheckError(resp, want...); err != nil {
		return nil, errors.Join(err, resp.Body.Close())
	}
	return resp, nil
}

// manifest reads the manifest or index of a tag or digest.
func (r *registry) manifest(ctx context.Context, id string) (document, error) {
	watch, touch, stop := watched(ctx)
	defer stop()
	resp, err := r.get(watch, "manifests/"+id, http.Header{"Accept": {accepted}}, http.StatusOK)
	if err != nil {
		return document{}, r.explain(ctx, watch, err)
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(io.LimitReader(&touching{resp.Body, touch}, MaxDocument+1))
	if err != nil {
		return document{}, r.explain(ctx, watch, err)
	}
	if len(raw) > MaxDocument {
		return document{}, bad("its manifest has more than %d bytes", MaxDocument)
	}
	d := newDocument(raw)
	if strings.HasPrefix(id, "sha256:") && d.digest.String() != id {
		return document{}, bad("the manifest that came as %s has the digest %s", id, d.digest)
	}
	return d, nil
}

// touching says of each read that something came.
type touching struct {
	io.Reader
	touch func()
}

func (t *touching) Read(b []byte) (int, error) {
	n, err := t.Reader.Read(b)
	if n > 0 {
		t.touch()
	}
	return n, err
}

// blob downloads a blob. If the connection ends early, it goes on where that stopped.
func (r *registry) blob(ctx context.Context, d v1.Descriptor) error {
	p, err := r.s.openPart(d)
	if err != nil {
		return err
	}
	defer p.close()
	for tries, best := 0, p.have; p.have < d.Size; {
		err := r.more(ctx, p)
		if p.have == d.Size {
			break
		}
		if p.have > best {
			tries, best = 0, p.have
		} else {
			tries++
		}
		switch {
		case errors.Is(err, errTooLong):
			return errors.Join(bad("%s: %v", d.Digest, err), p.restart())
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case tries == 0:
			continue
		case !retryable(err) || tries == maxTries:
			return err
		}
		select {
		case <-time.After(tryAgain << tries):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return p.commit()
}

// retryable reports whether the next try may bring more.
func retryable(err error) bool {
	e, ok := errors.AsType[*fail.Error](err)
	return ok && e.Code == "registry_unreachable"
}

// more asks for what a blob still lacks. It returns an error, unless that is all there.
func (r *registry) more(ctx context.Context, p *part) error {
	watch, touch, stop := watched(ctx)
	defer stop()
	header := http.Header{"Accept-Encoding": {"identity"}} // some would say that a layer is compressed on the way, and the transport take that off
	if p.have > 0 {
		header.Set("Range", fmt.Sprintf("bytes=%d-%d", p.have, p.d.Size-1))
	}
	resp, err := r.get(watch, "blobs/"+p.d.Digest.String(), header, http.StatusOK, http.StatusPartialContent)
	if err != nil {
		said, ok := errors.AsType[*transport.Error](err)
		if ok && said.StatusCode == http.StatusRequestedRangeNotSatisfiable {
			err = errors.Join(err, p.restart())
		}
		if ok && said.StatusCode == http.StatusNotFound {
			return fail.Newf("image_bad", "", "the registry %s has the image, but not its blob %s", r.ref.Context().RegistryStr(), p.d.Digest)
		}
		return r.explain(ctx, watch, err)
	}
	defer resp.Body.Close()
	if p.have > 0 && (resp.StatusCode != http.StatusPartialContent || !strings.HasPrefix(resp.Header.Get("Content-Range"), fmt.Sprintf("bytes %d-", p.have))) {
		if resp.StatusCode == http.StatusPartialContent {
			return errors.Join(fail.Newf("registry_unreachable", "", "the registry %s sent another part of %s than it was asked for", r.ref.Context().RegistryStr(), p.d.Digest), p.restart())
		}
		if err := p.restart(); err != nil { // it sends all again
			return err
		}
	}
	_, err = io.CopyBuffer(struct{ io.Writer }{p}, struct{ io.Reader }{&touching{resp.Body, touch}}, make([]byte, copyBlock))
	switch {
	case p.have == p.d.Size && err == nil:
		return nil
	case errors.Is(err, errTooLong):
		return err
	case err == nil, errors.Is(err, io.ErrUnexpectedEOF):
		return fail.Newf("registry_unreachable", "try again: the bytes received so far are kept", "the registry %s sent %d of the %d bytes of %s", r.ref.Context().RegistryStr(), p.have, p.d.Size, p.d.Digest)
	}
	return r.explain(ctx, watch, err)
}
