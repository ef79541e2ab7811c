package image

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	memory "github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/server/store"
	"github.com/cove-dev/cove/internal/test/need"
)

// testRegistry is a registry that wants a token, which it gives to the user "me".
type testRegistry struct {
	server *httptest.Server
	host   string

	mu    sync.Mutex
	hook  func(w http.ResponseWriter, r *http.Request, next http.Handler) // nil: next
	asked map[string]int                                                  // requests for blobs, by digest
}

const token = "the-token"

func newRegistry(t testing.TB) *testRegistry {
	t.Helper()
	r := &testRegistry{asked: map[string]int{}}
	inner := memory.New(memory.Logger(log.New(io.Discard, "", 0)))
	r.server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) { r.serve(w, req, inner) }))
	r.server.Config.ErrorLog = log.New(io.Discard, "", 0) // of handshakes by http
	t.Cleanup(r.server.Close)
	r.host = strings.TrimPrefix(r.server.URL, "https://")
	return r
}

func (r *testRegistry) serve(w http.ResponseWriter, req *http.Request, inner http.Handler) {
	if req.URL.Path == "/token" {
		if user, password, _ := req.BasicAuth(); user != "me" || password != "secret" {
			http.Error(w, `{"errors":[{"code":"UNAUTHORIZED","message":"who are you?"}]}`, http.StatusUnauthorized)
			return
		}
		fmt.Fprintf(w, `{"token":%q}`, token)
		return
	}
	if req.Header.Get("Authorization") != "Bearer "+token {
		w.Header().Set("WWW-Authenticate", fmt.Sprintf(`Bearer realm="https://%s/token",service="test"`, req.Host))
		http.Error(w, `{"errors":[{"code":"UNAUTHORIZED","message":"a token, please"}]}`, http.StatusUnauthorized)
		return
	}
	r.mu.Lock()
	hook := r.hook
	if _, digest, ok := strings.Cut(req.URL.Path, "/blobs/"); ok && req.Method == http.MethodGet {
		r.asked[digest]++
	}
	r.mu.Unlock()
	if hook != nil {
		hook(w, req, inner)
		return
	}
	inner.ServeHTTP(w, req)
}

// on has a hook see the requests from now on.
func (r *testRegistry) on(hook func(w http.ResponseWriter, r *http.Request, next http.Handler)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.hook = hook
}

// blobs is how often any blob was asked for.
func (r *testRegistry) blobs() (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, asked := range r.asked {
		n += asked
	}
	return n
}

// asKeychain logs in with a name and a password, everywhere.
type asKeychain authn.Basic

func (k asKeychain) Resolve(authn.Resource) (authn.Authenticator, error) {
	return &authn.Basic{Username: k.Username, Password: k.Password}, nil
}

var me = asKeychain{Username: "me", Password: "secret"}

// push puts an image, or an index, into the registry, and returns its name.
func (r *testRegistry) push(t testing.TB, repo string, what remote.Taggable) string {
	t.Helper()
	ref, err := name.ParseReference(r.host + "/" + repo)
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.Push(ref, what, remote.WithAuthFromKeychain(me), remote.WithTransport(r.server.Client().Transport)); err != nil {
		t.Fatal(err)
	}
	return ref.String()
}

// storeIn opens a store of images in a folder, with a database there.
func storeIn(t testing.TB, dir string, r *testRegistry, change ...func(*Options)) *Store {
	t.Helper()
	db, s := openIn(t, dir, r, change...)
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// openIn is storeIn. The caller closes the database.
func openIn(t testing.TB, dir string, r *testRegistry, change ...func(*Options)) (*store.Store, *Store) {
	t.Helper()
	need.Root(t) // files get their owners
	db, err := store.Open(context.Background(), filepath.Join(dir, "cove.db"))
	if err != nil {
		t.Fatal(err)
	}
	o := Options{Dir: filepath.Join(dir, "oci"), Store: db.Images, Keychain: me}
	if r != nil {
		o.Transport = r.server.Client().Transport
	}
	for _, f := range change {
		f(&o)
	}
	s, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { must(t, s.Close()) })
	return db, s
}

// member is one of a tar.
type member struct {
	tar.Header
	text string
}

func file(name, text string) member {
	return member{tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o644}, text}
}

func folder(name string) member {
	return member{tar.Header{Name: name, Typeflag: tar.TypeDir, Mode: 0o755}, ""}
}

func symlink(name, to string) member {
	return member{tar.Header{Name: name, Typeflag: tar.TypeSymlink, Linkname: to, Mode: 0o777}, ""}
}

func hardlink(name, to string) member {
	return member{tar.Header{Name: name, Typeflag: tar.TypeLink, Linkname: to, Mode: 0o644}, ""}
}

// tarOf writes members as they are.
func tarOf(t testing.TB, members ...member) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, m := range members {
		h := m.Header
		h.Size = int64(len(m.text))
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, m.text); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// layerOf is a layer of members, compressed by gzip.
func layerOf(t testing.TB, members ...member) v1.Layer { return layerFrom(t, tarOf(t, members...)) }

func layerFrom(t testing.TB, text []byte) v1.Layer {
	t.Helper()
	l, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(text)), nil })
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// imageOf is an image for this machine.
func imageOf(t testing.TB, layers ...v1.Layer) v1.Image {
	t.Helper()
	return configured(t, v1.ConfigFile{OS: thisPlatform.OS, Architecture: thisPlatform.Architecture}, layers...)
}

func configured(t testing.TB, c v1.ConfigFile, layers ...v1.Layer) v1.Image {
	t.Helper()
	c.RootFS.Type = "layers"
	image, err := mutate.ConfigFile(empty.Image, &c)
	if err == nil {
		image, err = mutate.AppendLayers(image, layers...)
	}
	if err != nil {
		t.Fatal(err)
	}
	return image
}

// wantCode checks an error's code and that its text has some words.
func wantCode(t testing.TB, err error, code string, words ...string) {
	t.Helper()
	e, ok := errors.AsType[*fail.Error](err)
	if !ok || e.Code != code {
		t.Errorf("got error %v (%+v), want code %s", err, e, code)
		return
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("got error %q, want %q in it", err, w)
		}
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func digestOf(t testing.TB, what interface{ Digest() (v1.Hash, error) }) string {
	t.Helper()
	h, err := what.Digest()
	must(t, err)
	return h.String()
}
