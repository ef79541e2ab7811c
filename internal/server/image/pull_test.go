package image

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// TestPull: an image comes from a registry that wants a token. Its names and its digest
// find it, and a second pull downloads nothing.
func TestPull(t *testing.T) {
	r := newRegistry(t)
	created := time.Date(2020, 1, 2, 3, 4, 5, 0, time.UTC)
	image := configured(t, v1.ConfigFile{
		OS: "linux", Architecture: runtime.GOARCH, Variant: "v9", Created: v1.Time{Time: created},
		Config: v1.Config{
			Env: []string{"A=1"}, WorkingDir: "/srv", User: "node", StopSignal: "SIGINT", Shell: []string{"/bin/bash"}, Entrypoint: []string{"/e"}, Cmd: []string{"c"},
			ExposedPorts: map[string]struct{}{"80/tcp": {}, "53/udp": {}}, Labels: map[string]string{"l": "m"},
		},
	}, layerOf(t, file("a", "one")), layerOf(t, file("b", "two")))
	ref := r.push(t, "group/x:tag", image)
	dir := t.TempDir()
	s := storeIn(t, dir, r)
	var told []Progress
	got, err := s.Pull(t.Context(), ref, PullOptions{Progress: func(p Progress) { told = append(told, p) }})
	must(t, err)
	want := Config{
		Env: []string{"A=1"}, Workdir: "/srv", User: "node", StopSignal: "SIGINT", Shell: []string{"/bin/bash"}, Entrypoint: []string{"/e"}, Cmd: []string{"c"},
		Ports: []string{"53/udp", "80/tcp"}, Labels: map[string]string{"l": "m"}, OS: "linux", Architecture: runtime.GOARCH, Variant: "v9",
	}
	if fmt.Sprint(got.Config) != fmt.Sprint(want) {
		t.Errorf("got configuration %+v, want %+v", got.Config, want)
	}
	if got.Digest != digestOf(t, image) || !slices.Equal(got.Names, []string{ref}) || len(got.Layers) != 2 || !got.Created.Equal(created) || got.Pulled.IsZero() {
		t.Errorf("got %+v", got)
	}
	var blobs int64
	files, err := filepath.Glob(filepath.Join(dir, "oci/blobs/sha256/*"))
	must(t, err)
	for _, name := range files {
		data, err := os.ReadFile(name)
		must(t, err)
		blobs += int64(len(data))
		if fmt.Sprintf("%x", sha256.Sum256(data)) != filepath.Base(name) {
			t.Errorf("%s is not what its name says", name)
		}
	}
	if len(files) != 4 || blobs != got.Bytes {
		t.Errorf("%d blobs of %d bytes, want 4 of %d", len(files), blobs, got.Bytes)
	}
	phases := map[string]bool{}
	for _, p := range told {
		phases[p.Phase] = true
	}
	if !phases[Resolving] || !phases[Downloading] || told[len(told)-1].Phase != Done || told[len(told)-1].LayersDone != 2 || told[len(told)-1].Layers != 2 {
		t.Errorf("told %+v", told)
	}

	before := r.blobs()
	again, err := s.Pull(t.Context(), r.host+"/group/x@"+got.Digest, PullOptions{})
	must(t, err)
	if r.blobs() != before || again.Digest != got.Digest || len(again.Names) != 2 {
		t.Errorf("pulled again: %d blobs were asked for; got %+v", r.blobs()-before, again)
	}
	for _, name := range []string{ref, got.Digest, hexOf(got.Digest), got.Digest[:len("sha256:")+12], hexOf(got.Digest)[:12], r.host + "/group/x@" + got.Digest, "elsewhere.example/y@" + got.Digest} {
		if found, err := s.Get(t.Context(), name); err != nil || found.Digest != got.Digest {
			t.Errorf("by %q: got %+v, %v", name, found, err)
		}
	}
	for name, code := range map[string]string{
		hexOf(got.Digest)[:11]: "image_not_found", "debian": "image_not_found", "sha256:" + strings.Repeat("0", 64): "image_not_found", strings.Repeat("0", 12): "image_not_found",
		"": "bad_reference", "UPPER": "bad_reference", "a b": "bad_reference", "x@sha256:12": "bad_reference", strings.Repeat("a/", 1000): "bad_reference",
	} {
		_, err := s.Get(t.Context(), name)
		wantCode(t, err, code)
	}
	list, err := s.List(t.Context())
	if err != nil || len(list) != 1 || list[0].Digest != got.Digest {
		t.Errorf("the list: %+v, %v", list, err)
	}
}

// TestFamiliar: names of the default registry are shown as people write them.
func TestFamiliar(t *testing.T) {
	for text, want := range map[string]string{"debian": "debian:latest", "debian:12": "debian:12", "me/x": "me/x:latest", "reg.example/library/x": "reg.example/library/x:latest"} {
		ref, err := parse(text)
		must(t, err)
		if got := familiar(ref.Name()); got != want {
			t.Errorf("%s: got %s, want %s", text, got, want)
		}
	}
}

// TestTagMoves: a tag is looked up at each pull, and is one image's at a time.
func TestTagMoves(t *testing.T) {
	r := newRegistry(t)
	one, two := imageOf(t, layerOf(t, file("a", "one"))), imageOf(t, layerOf(t, file("a", "two")))
	s := storeIn(t, t.TempDir(), r)
	ref := r.push(t, "x:tag", one)
	_, err := s.Pull(t.Context(), ref, PullOptions{})
	must(t, err)
	r.push(t, "x:tag", two)
	got, err := s.Pull(t.Context(), ref, PullOptions{})
	must(t, err)
	if got.Digest != digestOf(t, two) {
		t.Errorf("got %s, want the second", got.Digest)
	}
	if old, err := s.Get(t.Context(), digestOf(t, one)); err != nil || len(old.Names) != 0 {
		t.Errorf("the first: %+v, %v", old, err)
	}
}

// TestRefused: an error says what is wrong by its code.
func TestRefused(t *testing.T) {
	r := newRegistry(t)
	s := storeIn(t, t.TempDir(), r)
	there := r.push(t, "x:tag", imageOf(t, layerOf(t, file("a", "one"))))
	_, err := s.Pull(t.Context(), r.host+"/no:tag", PullOptions{})
	wantCode(t, err, "image_not_found", "/no:tag")
	_, err = s.Pull(t.Context(), "what?", PullOptions{})
	wantCode(t, err, "bad_reference")
	stranger := storeIn(t, t.TempDir(), r, func(o *Options) { o.Keychain = asKeychain{Username: "you"} })
	_, err = stranger.Pull(t.Context(), there, PullOptions{})
	wantCode(t, err, "image_denied", "/x:tag")
	gone := httptest.NewServer(nil)
	gone.Close()
	_, err = s.Pull(t.Context(), strings.TrimPrefix(gone.URL, "http://")+"/x", PullOptions{})
	wantCode(t, err, "registry_unreachable")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err = s.Pull(ctx, there, PullOptions{}); err != context.Canceled {
		t.Errorf("cancelled: got %v", err)
	}
	if list, err := s.List(t.Context()); err != nil || len(list) != 0 {
		t.Errorf("there is %+v, %v", list, err)
	}
}

// TestPlatform: of an index this machine's image is taken; if there is none, the error says
// which there are.
func TestPlatform(t *testing.T) {
	r := newRegistry(t)
	other := "s390x"
	if runtime.GOARCH == other {
		other = "ppc64le"
	}
	mine, foreignOne := imageOf(t, layerOf(t, file("a", "mine"))), configured(t, v1.ConfigFile{OS: "linux", Architecture: other}, layerOf(t, file("a", "theirs")))
	at := func(image v1.Image, os, arch, variant string) mutate.IndexAddendum {
		return mutate.IndexAddendum{Add: image, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: os, Architecture: arch, Variant: variant}}}
	}
	s := storeIn(t, t.TempDir(), r)
	both := r.push(t, "both:1", mutate.AppendManifests(empty.Index, at(foreignOne, "linux", other, ""), at(foreignOne, "windows", runtime.GOARCH, ""), at(mine, "linux", runtime.GOARCH, ""), at(foreignOne, "unknown", "unknown", "")))
	if got, err := s.Pull(t.Context(), both, PullOptions{}); err != nil || got.Digest != digestOf(t, mine) {
		t.Errorf("of an index: got %+v, %v", got, err)
	}
	none := r.push(t, "none:1", mutate.AppendManifests(empty.Index, at(foreignOne, "linux", other, ""), at(foreignOne, "windows", runtime.GOARCH, "")))
	_, err := s.Pull(t.Context(), none, PullOptions{})
	wantCode(t, err, "image_platform", "linux/"+other, "windows/"+runtime.GOARCH, "this machine is linux/"+runtime.GOARCH)
	single := r.push(t, "single:1", foreignOne)
	_, err = s.Pull(t.Context(), single, PullOptions{})
	wantCode(t, err, "image_platform", "linux/"+other)
	nested := r.push(t, "nested:1", mutate.AppendManifests(empty.Index, mutate.IndexAddendum{Add: mutate.AppendManifests(empty.Index, at(mine, "linux", runtime.GOARCH, ""))}))
	if got, err := s.Pull(t.Context(), nested, PullOptions{}); err != nil || got.Digest != digestOf(t, mine) {
		t.Errorf("of an index in an index: got %+v, %v", got, err)
	}
}

// TestVariant: of several variants the one is taken that every processor of the kind runs.
func TestVariant(t *testing.T) {
	index := v1.IndexManifest{SchemaVersion: 2}
	for i, variant := range []string{"v3", "", "v2"} {
		index.Manifests = append(index.Manifests, v1.Descriptor{
			MediaType: types.OCIManifestSchema1, Size: int64(i), Digest: v1.Hash{Algorithm: "sha256", Hex: strings.Repeat("0", 64)},
			Platform: &v1.Platform{OS: "linux", Architecture: runtime.GOARCH, Variant: variant},
		})
	}
	raw, err := json.Marshal(index)
	must(t, err)
	if got, err := choose(newDocument(raw), "x"); err != nil || got.Size != 1 {
		t.Errorf("got %+v, %v", got, err)
	}
}

// served replaces what the registry says of a tag.
func served(r *testRegistry, raw []byte) {
	r.on(func(w http.ResponseWriter, req *http.Request, next http.Handler) {
		if strings.Contains(req.URL.Path, "/manifests/") {
			_, _ = w.Write(raw)
			return
		}
		next.ServeHTTP(w, req)
	})
}

// TestHostileManifest: a manifest that is too large, or asks for what no image has, is
// refused, and nothing of it is asked for.
func TestHostileManifest(t *testing.T) {
	r := newRegistry(t)
	ref := r.push(t, "x:tag", imageOf(t, layerOf(t, file("a", "one"))))
	hash := v1.Hash{Algorithm: "sha256", Hex: strings.Repeat("a", 64)}
	with := func(change func(m *v1.Manifest)) []byte {
		m := v1.Manifest{SchemaVersion: 2, MediaType: types.OCIManifestSchema1, Config: v1.Descriptor{MediaType: types.OCIConfigJSON, Size: 2, Digest: hash}}
		change(&m)
		raw, err := json.Marshal(m)
		must(t, err)
		return raw
	}
	layer := v1.Descriptor{MediaType: types.OCILayer, Size: 10, Digest: hash}
	s := storeIn(t, t.TempDir(), r)
	for name, test := range map[string]struct {
		raw  []byte
		says string
	}{
		"10,000 layers":     {with(func(m *v1.Manifest) { m.Layers = slices.Repeat([]v1.Descriptor{layer}, 10_000) }), "10000 layers"},
		"128 layers":        {with(func(m *v1.Manifest) { m.Layers = slices.Repeat([]v1.Descriptor{layer}, 128) }), "128 layers"},
		"no end":            {bytes.Repeat([]byte(" "), MaxDocument+1), "more than"},
		"no JSON":           {[]byte("<html>"), "can't be read"},
		"nothing":           {[]byte("{}"), "not known"},
		"deep":              {[]byte(strings.Repeat("[", 100_000)), "can't be read"},
		"schema 1":          {[]byte(`{"schemaVersion":1,"fsLayers":[{}]}`), "schema 1"},
		"both":              {[]byte(`{"schemaVersion":2,"config":{},"manifests":[]}`), "both an image's and an index"},
		"a huge config":     {with(func(m *v1.Manifest) { m.Config.Size = MaxDocument + 1 }), "at most"},
		"a negative config": {with(func(m *v1.Manifest) { m.Config.Size = -1 }), "at most"},
		"no digest":         {[]byte(`{"schemaVersion":2,"config":{"size":2}}`), "not a SHA-256 digest"},
		"another digest":    {bytes.Replace(with(func(*v1.Manifest) {}), []byte(hash.String()), []byte("sha512:"+strings.Repeat("a", 128)), 1), "not a SHA-256 digest"},
		"a digest's path":   {bytes.Replace(with(func(*v1.Manifest) {}), []byte(hash.String()), []byte("sha256:../../../../etc/passwd"), 1), "can't be read"},
		"a huge layer":      {with(func(m *v1.Manifest) { l := layer; l.Size = maxBytes + 1; m.Layers = []v1.Descriptor{l} }), "at most"},
		"huge together":     {with(func(m *v1.Manifest) { l := layer; l.Size = maxBytes/2 + 1; m.Layers = []v1.Descriptor{l, l} }), "together"},
		"an artifact":       {with(func(m *v1.Manifest) { m.Config.MediaType = "application/vnd.cncf.helm.config.v1+json" }), "artifact"},
		"an odd layer":      {with(func(m *v1.Manifest) { l := layer; l.MediaType = "text/plain"; m.Layers = []v1.Descriptor{l} }), "not known"},
	} {
		t.Run(name, func(t *testing.T) {
			before := r.blobs()
			served(r, test.raw)
			_, err := s.Pull(t.Context(), ref, PullOptions{})
			wantCode(t, err, "image_bad", test.says)
			if r.blobs() != before {
				t.Error("a blob was asked for")
			}
			noneLeft(t, s)
		})
	}
	r.on(func(w http.ResponseWriter, req *http.Request, next http.Handler) {
		if strings.Contains(req.URL.Path, "/manifests/") {
			_, _ = w.Write(with(func(*v1.Manifest) {}))
			return
		}
		next.ServeHTTP(w, req)
	})
	_, err := s.Pull(t.Context(), r.host+"/x@sha256:"+strings.Repeat("1", 64), PullOptions{})
	wantCode(t, err, "image_bad", "has the digest")
}

// noneLeft checks that a store has nothing.
func noneLeft(t *testing.T, s *Store) {
	t.Helper()
	for _, dir := range []string{blobFolder, layerFolder, mergedFolder, stagingFolder} {
		left, err := os.ReadDir(s.path(dir))
		if err != nil || len(left) > 0 {
			t.Errorf("%s has %v, %v", dir, left, err)
		}
	}
}

// TestHostileConfig: a configuration that does not go with its manifest is refused.
func TestHostileConfig(t *testing.T) {
	r := newRegistry(t)
	layer := layerOf(t, file("a", "one"))
	image := imageOf(t, layer)
	s := storeIn(t, t.TempDir(), r)
	for name, raw := range map[string]string{"no JSON": "?", "other layers": `{"os":"linux","rootfs":{"diff_ids":[]}}`, "an odd digest": `{"rootfs":{"diff_ids":["sha512:` + strings.Repeat("a", 128) + `"]}}`} {
		ref := r.push(t, "x:tag", rawConfig{image, []byte(raw)})
		_, err := s.Pull(t.Context(), ref, PullOptions{})
		if name == "no JSON" {
			wantCode(t, err, "image_bad", "can't be read")
		} else {
			wantCode(t, err, "image_bad")
		}
	}
}

// rawConfig is an image with another configuration.
type rawConfig struct {
	v1.Image
	raw []byte
}

func (c rawConfig) RawConfigFile() ([]byte, error) { return c.raw, nil }

func (c rawConfig) ConfigName() (v1.Hash, error) {
	h, _, err := v1.SHA256(bytes.NewReader(c.raw))
	return h, err
}

func (c rawConfig) Manifest() (*v1.Manifest, error) {
	m, err := c.Image.Manifest()
	if err != nil {
		return nil, err
	}
	m = m.DeepCopy()
	m.Config.Size = int64(len(c.raw))
	m.Config.Digest, err = c.ConfigName()
	return m, err
}

func (c rawConfig) RawManifest() ([]byte, error) {
	m, err := c.Manifest()
	if err != nil {
		return nil, err
	}
	return json.Marshal(m)
}

func (c rawConfig) Digest() (v1.Hash, error) {
	raw, err := c.RawManifest()
	if err != nil {
		return v1.Hash{}, err
	}
	h, _, err := v1.SHA256(bytes.NewReader(raw))
	return h, err
}

func (c rawConfig) Size() (int64, error) {
	raw, err := c.RawManifest()
	return int64(len(raw)), err
}

// noise is a layer that does not get smaller by compression.
func noise(t testing.TB, name string, size int) v1.Layer {
	t.Helper()
	return layerOf(t, file(name, random(size)))
}

// random is a text that can't be compressed.
func random(size int) string {
	data := make([]byte, size)
	_, _ = rand.Read(data)
	return string(data)
}

// TestResume: a download that ends early goes on where it stopped, in the same pull and in
// the next one.
func TestResume(t *testing.T) {
	r := newRegistry(t)
	layer := noise(t, "a", 1<<20)
	image := imageOf(t, layer)
	ref, digest := r.push(t, "x:tag", image), digestOf(t, layer)
	size, err := layer.Size()
	must(t, err)
	var mu sync.Mutex
	var ranges []string
	ignoreRange, most := false, 300_000
	r.on(func(w http.ResponseWriter, req *http.Request, next http.Handler) {
		if !strings.HasSuffix(req.URL.Path, digest) {
			next.ServeHTTP(w, req)
			return
		}
		mu.Lock()
		ranges = append(ranges, req.Header.Get("Range"))
		if ignoreRange {
			req.Header.Del("Range")
		}
		left := most
		mu.Unlock()
		next.ServeHTTP(&short{w, left}, req)
	})
	dir := t.TempDir()
	s := storeIn(t, dir, r)
	if _, err := s.Pull(t.Context(), ref, PullOptions{}); err != nil {
		t.Errorf("a registry that sends a bit at a time: %v", err)
	}
	if want := []string{"", fmt.Sprintf("bytes=300000-%d", size-1), fmt.Sprintf("bytes=600000-%d", size-1), fmt.Sprintf("bytes=900000-%d", size-1)}; !slices.Equal(ranges, want) {
		t.Errorf("asked for %q, want %q", ranges, want)
	}

	// One that knows no ranges, and never sends all of it.
	mu.Lock()
	ranges, ignoreRange = nil, true
	mu.Unlock()
	dir = t.TempDir()
	s = storeIn(t, dir, r)
	_, err = s.Pull(t.Context(), ref, PullOptions{})
	wantCode(t, err, "registry_unreachable", "300000 of the")
	if list, err := s.List(t.Context()); err != nil || len(list) > 0 {
		t.Errorf("there is %+v, %v", list, err)
	}
	// The next process goes on with it.
	mu.Lock()
	ranges, ignoreRange, most = nil, false, int(size)
	mu.Unlock()
	must(t, s.Close())
	s, err = New(s.o)
	must(t, err)
	t.Cleanup(func() { must(t, s.Close()) })
	if _, err = s.Pull(t.Context(), ref, PullOptions{}); err != nil {
		t.Error(err)
	}
	if want := []string{fmt.Sprintf("bytes=300000-%d", size-1)}; !slices.Equal(ranges, want) {
		t.Errorf("the next pull asked for %q, want %q", ranges, want)
	}
	if left, err := os.ReadDir(s.path(partialFolder)); err != nil || len(left) > 0 {
		t.Errorf("partial downloads are left: %v, %v", left, err)
	}
}

// short sends the first bytes of an answer, and then ends the connection.
type short struct {
	http.ResponseWriter
	left int
}

func (s *short) Write(b []byte) (int, error) {
	if len(b) > s.left {
		_, _ = s.ResponseWriter.Write(b[:s.left])
		if f, ok := s.ResponseWriter.(http.Flusher); ok {
			f.Flush()
		}
		panic(http.ErrAbortHandler)
	}
	s.left -= len(b)
	return s.ResponseWriter.Write(b)
}

// TestWrongBytes: a blob with another digest is never used, nor kept.
func TestWrongBytes(t *testing.T) {
	r := newRegistry(t)
	layer := noise(t, "a", 100_000)
	ref, digest := r.push(t, "x:tag", imageOf(t, layer)), digestOf(t, layer)
	size, err := layer.Size()
	must(t, err)
	for name, body := range map[string][]byte{"other bytes": bytes.Repeat([]byte("x"), int(size)), "more bytes": bytes.Repeat([]byte("x"), int(size)+1)} {
		r.on(func(w http.ResponseWriter, req *http.Request, next http.Handler) {
			if strings.HasSuffix(req.URL.Path, digest) {
				_, _ = w.Write(body)
				return
			}
			next.ServeHTTP(w, req)
		})
		s := storeIn(t, t.TempDir(), r)
		_, err := s.Pull(t.Context(), ref, PullOptions{})
		wantCode(t, err, "image_bad", digest)
		if _, err := os.Lstat(s.path(blobFolder, hexOf(digest))); !os.IsNotExist(err) {
			t.Errorf("%s: the blob is there: %v", name, err)
		}
		r.on(nil)
		if _, err := s.Pull(t.Context(), ref, PullOptions{}); err != nil {
			t.Errorf("%s, and then the right ones: %v", name, err)
		}
	}
	r.on(func(w http.ResponseWriter, req *http.Request, next http.Handler) {
		if strings.HasSuffix(req.URL.Path, digest) {
			http.NotFound(w, req)
			return
		}
		next.ServeHTTP(w, req)
	})
	_, err = storeIn(t, t.TempDir(), r).Pull(t.Context(), ref, PullOptions{})
	wantCode(t, err, "image_bad", "not its blob")
}

// TestAtOnce: if several pulls want the same layer at once, one downloads it, and the
// others see its progress. If that one is cancelled, another goes on.
func TestAtOnce(t *testing.T) {
	r := newRegistry(t)
	shared := noise(t, "a", 3<<20)
	one, two := r.push(t, "one:1", imageOf(t, shared)), r.push(t, "two:1", imageOf(t, shared, layerOf(t, file("b", "b"))))
	digest := digestOf(t, shared)
	begun, goOn := make(chan bool, 100), make(chan bool)
	r.on(func(w http.ResponseWriter, req *http.Request, next http.Handler) {
		if strings.HasSuffix(req.URL.Path, digest) {
			begun <- true
			<-goOn
		}
		next.ServeHTTP(w, req)
	})
	s := storeIn(t, t.TempDir(), r)
	ctx, cancel := context.WithCancel(t.Context())
	first := make(chan error, 1)
	go func() { _, err := s.Pull(ctx, one, PullOptions{}); first <- err }()
	<-begun
	var wg sync.WaitGroup
	var mu sync.Mutex
	watched := map[int]bool{}
	for i, ref := range []string{one, one, two} {
		wg.Go(func() {
			_, err := s.Pull(t.Context(), ref, PullOptions{Progress: func(p Progress) {
				if p.Layer == digest && p.Bytes > 0 {
					mu.Lock()
					watched[i] = true
					mu.Unlock()
				}
			}})
			if err != nil {
				t.Error(err)
			}
		})
	}
	for waiting := 0; waiting < 4; runtime.Gosched() {
		s.turns.mu.Lock()
		waiting = 0
		if turn := s.turns.at[hexOf(digest)]; turn != nil {
			waiting = len(turn.callers)
		}
		s.turns.mu.Unlock()
	}
	cancel()
	if err := <-first; err != context.Canceled {
		t.Errorf("the one that was cancelled: %v", err)
	}
	close(goOn)
	wg.Wait()
	if r.asked[digest] != 2 { // the cancelled one's, and another
		t.Errorf("the layer was asked for %d times", r.asked[digest])
	}
	if len(watched) != 3 {
		t.Errorf("of three, %v saw the download", slices.Collect(maps.Keys(watched)))
	}
	if len(s.turns.at) > 0 || len(s.pinned) > 0 {
		t.Errorf("left: %v, %v", s.turns.at, s.pinned)
	}
}

var _ remote.Taggable = rawConfig{}
