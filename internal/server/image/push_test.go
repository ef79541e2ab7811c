package image

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	memory "github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/validate"

	"github.com/cove-dev/cove/internal/lib/fail"
)

// checkSound compares all of an image with its digests, read as another tool reads it.
func checkSound(t testing.TB, image v1.Image, layers int) {
	t.Helper()
	c, err := image.ConfigFile()
	must(t, err)
	of := 0
	for _, h := range c.History {
		if !h.EmptyLayer {
			of++
		}
	}
	if of != layers || len(c.RootFS.DiffIDs) != layers || c.RootFS.Type != "layers" || c.Created.IsZero() {
		t.Errorf("its configuration: %+v", c)
	}
	if err := validate.Image(image); err != nil {
		t.Error(err)
	}
}

// uploads counts the blobs that a registry is sent.
type uploads struct {
	mu sync.Mutex
	n  int
}

func (u *uploads) hook(w http.ResponseWriter, r *http.Request, next http.Handler) {
	if r.Method == http.MethodPatch {
		u.mu.Lock()
		u.n++
		u.mu.Unlock()
	}
	next.ServeHTTP(w, r)
}

func (u *uploads) take() int {
	u.mu.Lock()
	defer u.mu.Unlock()
	n := u.n
	u.n = 0
	return n
}

// TestPush: an image that was made here is in the registry as it is here, and only blobs that the
// registry has not are sent.
func TestPush(t *testing.T) {
	r := newRegistry(t)
	s := storeIn(t, t.TempDir(), r)
	base, err := s.Pull(t.Context(), r.push(t, "base:1", imageOf(t, noise(t, "a", 1<<20), layerOf(t, file("b", "1")))), PullOptions{})
	must(t, err)
	made := compose(t, s, Draft{Parent: base.Digest, Layer: writing(t, file("c", "1")), Names: []string{r.host + "/team/made:1"}})
	var sent uploads
	r.on(sent.hook)
	var last Progress
	phases := map[string]bool{}
	as, err := s.Push(t.Context(), r.host+"/team/made:1", "", PushOptions{func(p Progress) { last = p; phases[p.Phase] = true }})
	must(t, err)
	if as != r.host+"/team/made:1" || last.Phase != Done || last.LayersDone != 3 || last.Layers != 3 || !phases[Resolving] || !phases[Uploading] {
		t.Errorf("pushed as %s; told of %v, at last %+v", as, phases, last)
	}
	if n := sent.take(); n != 2 {
		t.Errorf("%d blobs were sent, want a layer and a configuration", n)
	}
	remoteImage := func(text string) v1.Image {
		ref, err := name.ParseReference(text)
		must(t, err)
		image, err := remote.Image(ref, remote.WithAuthFromKeychain(me), remote.WithTransport(r.server.Client().Transport))
		must(t, err)
		return image
	}
	there := remoteImage(as)
	if got := digestOf(t, there); got != made.Digest {
		t.Errorf("the registry has %s, want %s", got, made.Digest)
	}
	checkSound(t, there, 3)
	_, err = s.Push(t.Context(), made.Digest, as, PushOptions{})
	must(t, err)
	if n := sent.take(); n != 0 {
		t.Errorf("%d blobs were sent again", n)
	}
	more := compose(t, s, Draft{Parent: made.Digest, Layer: writing(t, file("d", "1"))})
	_, err = s.Push(t.Context(), more.Digest, as, PushOptions{})
	must(t, err)
	if got := digestOf(t, remoteImage(as)); got != more.Digest || sent.take() != 2 {
		t.Errorf("the tag is %s, want %s", got, more.Digest)
	}
	other := storeIn(t, t.TempDir(), r)
	if got, err := other.Pull(t.Context(), as, PullOptions{}); err != nil || got.Digest != more.Digest {
		t.Errorf("pulled by another server: %+v, %v", got, err)
	}

	_, err = s.Push(t.Context(), "none:1", "", PushOptions{})
	wantCode(t, err, "image_not_found")
	_, err = s.Push(t.Context(), more.Digest, "", PushOptions{})
	wantCode(t, err, "bad_reference", "names no registry")
	if e, _ := errors.AsType[*fail.Error](err); e == nil || !strings.Contains(e.Hint, "cove image push "+more.Digest) {
		t.Errorf("the hint of %v", err)
	}
	_, err = s.Push(t.Context(), made.Digest, as+"@"+made.Digest, PushOptions{})
	wantCode(t, err, "bad_reference", "digest")
	s.o.Keychain = asKeychain{Username: "you", Password: "x"}
	_, err = s.Push(t.Context(), made.Digest, as, PushOptions{})
	wantCode(t, err, "image_denied", r.host)
	s.o.Keychain = me
	cancelled, cancel := context.WithCancelCause(t.Context())
	mine := errors.New("mine")
	r.on(func(w http.ResponseWriter, req *http.Request, next http.Handler) {
		if req.Method == http.MethodPatch {
			_, _ = io.Copy(io.Discard, req.Body)
			cancel(mine)
			<-req.Context().Done()
			return
		}
		next.ServeHTTP(w, req)
	})
	another := compose(t, s, Draft{Layer: writing(t, file("e", "1"))})
	if _, err := s.Push(cancelled, another.Digest, r.host+"/other/made:1", PushOptions{}); !errors.Is(err, mine) {
		t.Errorf("cancelled: %v", err)
	}
	must(t, os.Remove(s.path(blobFolder, hexOf(made.Layers[2].Digest))))
	_, err = s.Push(t.Context(), made.Digest, as, PushOptions{})
	wantCode(t, err, "image_bad", "lost")
}

// TestPushRedirects: a registry says where a blob is sent. That must not be an address of this
// machine or its networks, nor an unencrypted one.
func TestPushRedirects(t *testing.T) {
	r := newRegistry(t)
	var dialed sync.Map
	s := storeIn(t, t.TempDir(), r, func(o *Options) { // all names are the test's registry
		o.Transport = &http.Transport{
			TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true,
			DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
				dialed.Store(addr, true)
				return new(net.Dialer).DialContext(ctx, network, r.host)
			},
		}
	})
	made := compose(t, s, Draft{Layer: writing(t, file("a", "1"))})
	const public = "203.0.113.5" // of nobody
	for to, code := range map[string]string{
		"https://127.0.0.1:9/x": "registry_unreachable", "https://localhost:9/x": "image_bad", "http://elsewhere.invalid:9/x": "image_bad",
		"https://169.254.169.254:9/x": "registry_unreachable", "https://[fd00:ec2::254]:9/x": "registry_unreachable",
	} {
		r.on(func(w http.ResponseWriter, req *http.Request, next http.Handler) {
			if req.Method == http.MethodPost {
				w.Header().Set("Location", to)
				w.WriteHeader(http.StatusAccepted)
				return
			}
			next.ServeHTTP(w, req)
		})
		_, err := s.Push(t.Context(), made.Digest, public+"/x:1", PushOptions{})
		wantCode(t, err, code, "redirects to")
		dialed.Range(func(addr, _ any) bool {
			if strings.HasSuffix(addr.(string), ":9") {
				t.Errorf("%s: %v was dialed", to, addr)
			}
			return true
		})
	}
	r.on(nil)
	_, err := s.Push(t.Context(), made.Digest, public+"/x:1", PushOptions{})
	must(t, err)
}

// TestPushHanging: a registry that takes nothing for five minutes is given up, one that is slow is
// not.
func TestPushHanging(t *testing.T) {
	for what, test := range map[string]struct {
		serve func(w http.ResponseWriter, r *http.Request, next http.Handler)
		code  string // empty: none
	}{
		"at a layer": {func(_ http.ResponseWriter, r *http.Request, _ http.Handler) {
			_, _ = io.Copy(io.Discard, r.Body)
			<-r.Context().Done()
		}, "timeout"},
		"slowly": {func(w http.ResponseWriter, r *http.Request, next http.Handler) {
			var got bytes.Buffer
			for {
				time.Sleep(stuckTimeout - time.Second)
				if _, err := io.CopyN(&got, r.Body, 300_000); err != nil {
					break
				}
			}
			r.Body = io.NopCloser(&got)
			next.ServeHTTP(w, r)
		}, ""},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				network := &pipes{conns: make(chan net.Conn), closed: make(chan bool)}
				inner := memory.New(memory.Logger(log.New(io.Discard, "", 0)))
				server := &http.Server{ErrorLog: log.New(io.Discard, "", 0), Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					if r.Method == http.MethodPatch {
						test.serve(w, r, inner)
						return
					}
					inner.ServeHTTP(w, r)
				})}
				var wg sync.WaitGroup
				wg.Go(func() { _ = server.Serve(network) })
				transport := &http.Transport{DialContext: network.dial}
				defer func() {
					transport.CloseIdleConnections()
					must(t, server.Close())
					wg.Wait()
				}()
				s := storeIn(t, t.TempDir(), nil, func(o *Options) { o.Transport = transport })
				made := compose(t, s, Draft{Layer: writing(t, file("a", random(1<<20)))})
				start := time.Now()
				_, err := s.Push(t.Context(), made.Digest, "registry.localhost/x:1", PushOptions{})
				took := time.Since(start)
				if test.code == "" {
					must(t, err)
				} else {
					wantCode(t, err, test.code, "registry.localhost", stuckTimeout.String())
				}
				if took < stuckTimeout {
					t.Errorf("took %v", took)
				}
			})
		})
	}
}

// TestSave: other tools and this store read an archive of images, and have the same images.
// They read it as one of docker save or as an OCI layout.
func TestSave(t *testing.T) {
	r := newRegistry(t)
	s := storeIn(t, t.TempDir(), r)
	base, err := s.Pull(t.Context(), r.push(t, "base:1", imageOf(t, layerOf(t, file("a", "1")), layerOf(t, file("b", "1")))), PullOptions{})
	must(t, err)
	made := compose(t, s, Draft{Parent: base.Digest, Layer: writing(t, file("c", "1")), Names: []string{"made:1", "made:2"}})
	var b bytes.Buffer
	must(t, s.Save(t.Context(), []string{"made:1", base.Digest, "made:2", r.host + "/base:1"}, &b))
	saved := bytes.Clone(b.Bytes())
	dir := t.TempDir()
	blobs := map[string]int{}
	for in := tar.NewReader(bytes.NewReader(saved)); ; {
		h, err := in.Next()
		if err == io.EOF {
			break
		}
		must(t, err)
		must(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, h.Name)), 0o700))
		text, err := io.ReadAll(in)
		must(t, err)
		must(t, os.WriteFile(filepath.Join(dir, h.Name), text, 0o600))
		blobs[h.Name]++
	}
	for at, n := range blobs {
		if n != 1 {
			t.Errorf("%s is in it %d times", at, n)
		}
	}
	if len(blobs) != 3+2+2+3 { // documents, manifests, configurations, layers
		t.Errorf("it has %v", blobs)
	}
	// As an OCI layout.
	at, err := layout.FromPath(dir)
	must(t, err)
	index, err := at.ImageIndex()
	must(t, err)
	list, err := index.IndexManifest()
	must(t, err)
	var named []string
	for _, m := range list.Manifests {
		named = append(named, m.Annotations[nameAnnotation]+" "+m.Annotations[refAnnotation])
	}
	full := strings.TrimPrefix(name.DefaultRegistry, "index.") + "/library/made:"
	if want := []string{full + "1 1", " ", full + "2 2", r.host + "/base:1 1"}; !slices.Equal(named, want) {
		t.Errorf("the layout's names are %q, want %q", named, want)
	}
	h, err := v1.NewHash(made.Digest)
	must(t, err)
	image, err := at.Image(h)
	must(t, err)
	checkSound(t, image, 3)
	// As one of docker save.
	tag, err := name.NewTag("made:2")
	must(t, err)
	image, err = tarball.Image(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(saved)), nil }, &tag)
	must(t, err)
	checkSound(t, image, 3)
	// Here.
	other := storeIn(t, t.TempDir(), nil)
	for as, want := range map[string]string{"made:1": made.Digest, r.host + "/base:1": base.Digest} {
		got, err := other.Import(t.Context(), bytes.NewReader(saved), as, nil)
		if err != nil || got.Digest != want || !slices.Equal(got.Names, []string{as}) {
			t.Errorf("imported %s: %+v, %v", as, got, err)
		}
	}
	// One image: its names come with it.
	b.Reset()
	must(t, s.Save(t.Context(), []string{"made:1", "made:2"}, &b))
	if got, err := storeIn(t, t.TempDir(), nil).Import(t.Context(), &b, "", nil); err != nil || got.Digest != made.Digest || !slices.Equal(got.Names, []string{"made:1", "made:2"}) {
		t.Errorf("imported: %+v, %v", got, err)
	}

	b.Reset()
	wantCode(t, s.Save(t.Context(), nil, &b), "bad_reference")
	wantCode(t, s.Save(t.Context(), []string{"made:1", "none:1"}, &b), "image_not_found")
	ended, end := context.WithCancelCause(t.Context())
	mine := errors.New("mine")
	if err := s.Save(ended, []string{"made:1"}, writerFunc(func(b []byte) (int, error) { end(mine); return len(b), nil })); !errors.Is(err, mine) {
		t.Errorf("cancelled: %v", err)
	}
	must(t, os.Truncate(s.path(blobFolder, hexOf(made.Layers[2].Digest)), 1))
	wantCode(t, s.Save(t.Context(), []string{"made:1"}, &b), "image_bad", "lost")
	if b.Len() > 0 {
		t.Errorf("%d bytes were written of an archive that can't be", b.Len())
	}
	var docker []map[string]any
	raw, err := os.ReadFile(filepath.Join(dir, "manifest.json"))
	must(t, err)
	must(t, json.Unmarshal(raw, &docker))
	if len(docker) != 2 || fmt.Sprint(docker[0]["RepoTags"]) != "[made:1 made:2]" {
		t.Errorf("manifest.json: %s", raw)
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }

// TestSaved: while an image is saved, nobody removes it.
func TestSaved(t *testing.T) {
	s := storeIn(t, t.TempDir(), nil)
	compose(t, s, Draft{Layer: writing(t, file("a", "1")), Names: []string{"made:1"}})
	r, w := io.Pipe()
	done := make(chan error, 1)
	go func() { done <- errors.Join(s.Save(t.Context(), []string{"made:1"}, w), w.Close()) }()
	if _, err := io.ReadFull(r, make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	wantCode(t, s.Remove(t.Context(), "made:1", nobody), "image_in_use")
	if _, err := io.Copy(io.Discard, r); err != nil {
		t.Error(err)
	}
	must(t, <-done)
	must(t, s.Remove(t.Context(), "made:1", nobody))
}
