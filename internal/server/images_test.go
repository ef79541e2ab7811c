package server_test

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/server"
	"github.com/cove-dev/cove/internal/server/image"
	"github.com/cove-dev/cove/internal/server/sprite"
	"github.com/cove-dev/cove/internal/test/covetest"
	"github.com/cove-dev/cove/sprites"
)

// shelf is the host's way to a store of images that is made later.
type shelf struct{ store *image.Store }

func (s *shelf) Resolve(ctx context.Context, reference string) (string, error) {
	one, err := s.store.Get(ctx, reference)
	return one.Digest, err
}

// withImages starts a server with a store of images.
func withImages(t *testing.T, more ...func(*server.Server)) *covetest.Server {
	t.Helper()
	in := &shelf{}
	return covetest.Start(t, covetest.Options{Host: &sprite.Host{Images: in}, Configure: func(s *server.Server) {
		store, err := image.New(image.Options{Dir: filepath.Join(s.Dir, "oci"), Store: s.Store.Images})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := store.Close(); err != nil {
				t.Error(err)
			}
		})
		in.store, s.Images = store, store
		for _, change := range more {
			change(s)
		}
	}})
}

// pushed puts an image into a registry of the test's own, and returns its reference and digest.
func pushed(t *testing.T, repository string) (reference, digest string) {
	t.Helper()
	web := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	t.Cleanup(web.Close)
	reference = strings.TrimPrefix(web.URL, "http://") + "/" + repository
	tag, err := name.NewTag(reference)
	if err != nil {
		t.Fatal(err)
	}
	img, err := random.Image(1<<20, 2)
	if err == nil {
		var file *v1.ConfigFile
		if file, err = img.ConfigFile(); err == nil {
			file = file.DeepCopy()
			file.OS, file.Architecture = "linux", runtime.GOARCH
			img, err = mutate.ConfigFile(img, file)
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.Write(tag, img); err != nil {
		t.Fatal(err)
	}
	hash, err := img.Digest()
	if err != nil {
		t.Fatal(err)
	}
	return reference, hash.String()
}

// TestImages: a pull answers with the image. A description of it lists the sprites that the
// token reaches. An image that a sprite uses stays.
func TestImages(t *testing.T) {
	s := withImages(t)
	reference, digest := pushed(t, "team/tools:1")
	owner := cove.Images{Client: s.Client()}
	got, err := owner.Pull(t.Context(), reference, nil)
	if err != nil || got.Digest != digest || !slices.Equal(got.Names, []string{reference}) || len(got.Layers) != 2 || got.DiskBytes < 1<<20 {
		t.Fatalf("got %+v, %v, want %s", got, err, digest)
	}
	for _, sprite := range []string{"ci-1", "other"} {
		info, err := s.Client().Create(t.Context(), sprites.CreateRequest{Name: sprite, Config: &sprites.Config{Image: reference}})
		if err != nil || info.Cove.Base != digest {
			t.Fatalf("create %s: %+v, %v", sprite, info.Cove, err)
		}
	}
	if out := mcpText(t, mcpClient(t, s, s.Token, ""), "create", map[string]any{"name": "mcp", "image": reference}); !strings.Contains(out, "mcp") {
		t.Errorf("create over MCP: %s", out)
	}
	if info, err := s.Client().Get(t.Context(), "mcp"); err != nil || info.Cove.Base != digest {
		t.Errorf("over MCP: got %+v, %v", info.Cove, err)
	}
	if err := s.Client().Delete(t.Context(), "mcp", sprites.DeleteOptions{}); err != nil {
		t.Error(err)
	}
	ci := cove.Images{Client: &cove.Client{Client: &sprites.Client{URL: s.URL, Token: token(t, s, cove.TokenScope{Prefix: "ci-"}, "read", "write").Secret}}}
	list, err := ci.List(t.Context())
	if err != nil || len(list) != 1 || !slices.Equal(list[0].UsedBy, []string{"ci-1"}) {
		t.Errorf("a token of one sprite sees %+v, %v", list, err)
	}
	if _, err := ci.Pull(t.Context(), reference, nil); !errors.Is(err, sprites.ErrForbidden) {
		t.Errorf("a token without admin pulls: %v", err)
	}
	for _, name := range []string{reference, digest, strings.TrimPrefix(digest, "sha256:")[:12]} {
		one, err := owner.Get(t.Context(), name)
		if err != nil || one.Digest != digest || !slices.Equal(one.UsedBy, []string{"ci-1", "other"}) {
			t.Errorf("%s: got %+v, %v", name, one, err)
		}
	}
	if err := owner.Remove(t.Context(), reference); !hasCode(err, "image_in_use") || !strings.Contains(err.Error(), "other") {
		t.Errorf("remove an image in use: %v", err)
	}
	if pruned, err := owner.Prune(t.Context(), cove.ImagePruning{All: true}); err != nil || len(pruned.Images) > 0 {
		t.Errorf("prune: %+v, %v", pruned, err)
	}
	for _, sprite := range []string{"ci-1", "other"} {
		if err := s.Client().Delete(t.Context(), sprite, sprites.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	if err := owner.Remove(t.Context(), reference); err != nil {
		t.Error(err)
	}
	if _, err := owner.Get(t.Context(), digest); !hasCode(err, "image_not_found") {
		t.Errorf("an image that was removed: %v", err)
	}
}

// TestImageErrors: a pull and an import that fail say why, as the last line of their answer.
func TestImageErrors(t *testing.T) {
	s := withImages(t)
	all := cove.Images{Client: s.Client()}
	reference, _ := pushed(t, "team/tools:1")
	if _, err := all.Pull(t.Context(), reference+"9", nil); !hasCode(err, "image_not_found") {
		t.Errorf("no such tag: %v", err)
	}
	if _, err := all.Pull(t.Context(), "Not A Name", nil); !hasCode(err, "bad_reference") {
		t.Errorf("no reference: %v", err)
	}
	if _, err := all.Import(t.Context(), bytes.NewReader(make([]byte, 1<<20)), "", nil); !hasCode(err, "image_bad") {
		t.Errorf("zeros: %v", err)
	}
	if _, err := all.Import(t.Context(), strings.NewReader("no archive"), "", nil); !hasCode(err, "image_bad") {
		t.Errorf("text: %v", err)
	}
}

func hasCode(err error, code string) bool {
	e, ok := errors.AsType[*sprites.Error](err)
	return ok && e.Code == code
}

// TestPruneImages: a prune removes images without a name, steps of builds, and caches. It
// removes images with a name only if asked to, and never the default image. It says before
// what would go.
func TestPruneImages(t *testing.T) {
	s := withImages(t, func(s *server.Server) { s.DefaultImage = "default:1" })
	all := cove.Images{Client: s.Client()}
	build := func(text string, names ...string) cove.Image {
		t.Helper()
		image, err := all.Build(t.Context(), cove.ImageBuild{Dockerfile: text, Names: names}, nil, nil)
		must(t, err)
		return image
	}
	names := func() (got []string) {
		t.Helper()
		list, err := all.List(t.Context())
		must(t, err)
		for _, one := range list {
			got = append(got, one.Names...)
		}
		slices.Sort(got)
		return got
	}
	text := "FROM scratch\nWORKDIR /a\nWORKDIR /b\n"
	app := build(text, "app:1")
	unnamed := build(text + "WORKDIR /c\n")
	build("FROM scratch\nWORKDIR /d\n", "default:1")
	if list, err := all.ListAll(t.Context(), true); err != nil || len(list.Images) != 4 || list.DiskBytes <= app.Bytes {
		t.Errorf("all images: %+v, %v", list, err)
	}
	would, err := all.Prune(t.Context(), cove.ImagePruning{DryRun: true})
	failIf(t, err != nil || len(would.Images) != 2 || would.Steps != 2 || len(would.Names) != 0 || !slices.Contains(would.Images, unnamed.Digest) || would.Bytes == 0, "would remove %+v (%v)", would, err)
	done, err := all.Prune(t.Context(), cove.ImagePruning{})
	failIf(t, err != nil || !slices.Equal(done.Images, would.Images) || done.Bytes != would.Bytes || done.Steps != 2, "removed %+v (%v), want %+v", done, err, would)
	if got := names(); !slices.Equal(got, []string{"app:1", "default:1"}) {
		t.Errorf("after a prune there are %v", got)
	}
	done, err = all.Prune(t.Context(), cove.ImagePruning{All: true})
	failIf(t, err != nil || !slices.Equal(done.Names, []string{"app:1"}) || !slices.Equal(done.Images, []string{app.Digest}), "with all, removed %+v (%v)", done, err)
	if got := names(); !slices.Equal(got, []string{"default:1"}) {
		t.Errorf("after a prune of all there are %v", got)
	}
	resp, err := s.Client().Do(t.Context(), sprites.Request{Method: "POST", Path: "/v1/images/prune"})
	must(t, err)
	defer resp.Body.Close()
	if text, err := io.ReadAll(resp.Body); err != nil || !strings.Contains(string(text), `"images":[],"names":[]`) {
		t.Errorf("with nothing to do: %s, %v", text, err)
	}
}

// TestBuildRefusals: what can't be built is refused before the first step, and says why.
func TestBuildRefusals(t *testing.T) {
	s := withImages(t)
	all := cove.Images{Client: s.Client()}
	for what, test := range map[string]struct{ text, code, says string }{
		"too many layers":     {"FROM scratch AS a\n" + strings.Repeat("COPY <<x /x\nx\n", 100) + "FROM a\n" + strings.Repeat("COPY <<x /x\nx\n", 28), "dockerfile_unsupported", "Dockerfile:257: the image would have more than 127 layers"},
		"no stage, no image":  {"FROM scratch\nWORKDIR /x\nCOPY --from=127.0.0.1:1/nostage /a /b\n", "registry_unreachable", `Dockerfile:3: no stage before this one is named "127.0.0.1:1/nostage"; taken as an image: `},
		"a RUN with no image": {"FROM scratch\nRUN x\n", "dockerfile_bad", "nothing could run there"},
		"a name of an image":  {"FROM 127.0.0.1:1/none\n", "registry_unreachable", "the registry 127.0.0.1:1 can't be reached"},
	} {
		steps := 0
		_, err := all.Build(t.Context(), cove.ImageBuild{Dockerfile: test.text}, nil, func(e cove.ImageBuildEvent) {
			if e.Type == cove.BuildStep && what != "a RUN with no image" {
				steps++
			}
		})
		if !hasCode(err, test.code) || !strings.Contains(err.Error(), test.says) || steps > 0 {
			t.Errorf("%s: after %d steps %v", what, steps, err)
		}
		if e, ok := errors.AsType[*sprites.Error](err); ok && e.Code == "registry_unreachable" && !strings.Contains(e.Hint, "cove image list") {
			t.Errorf("%s: the hint is %q", what, e.Hint)
		}
	}
	// As in Docker, an argument that nothing declares is no error.
	var warned string
	_, err := all.Build(t.Context(), cove.ImageBuild{Dockerfile: "FROM scratch\nARG ONE\nWORKDIR /x\n", Args: map[string]string{"TOW": "1"}}, nil, func(e cove.ImageBuildEvent) {
		if e.Type == cove.BuildWarning {
			warned += e.Text
		}
	})
	if err != nil || !strings.Contains(warned, `ARG "TOW"`) || !strings.Contains(warned, "ONE") {
		t.Errorf("an unknown argument: %q, %v", warned, err)
	}
}

// TestBuildVolume: the folders of a VOLUME are in the image, and new folders have a time of now.
func TestBuildVolume(t *testing.T) {
	s := withImages(t)
	began := time.Now().Add(-time.Minute)
	all := cove.Images{Client: s.Client()}
	_, err := all.Build(t.Context(), cove.ImageBuild{Dockerfile: "FROM scratch\nVOLUME /data /logs/all\nVOLUME [\"cache\"]\n", Names: []string{"v:1"}}, nil, nil)
	must(t, err)
	saved, err := all.Save(t.Context(), "v:1")
	must(t, err)
	defer saved.Close()
	archive, err := io.ReadAll(saved)
	must(t, err)
	img, err := tarball.Image(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(archive)), nil }, nil)
	must(t, err)
	var got []string
	files := mutate.Extract(img)
	defer files.Close()
	for r := tar.NewReader(files); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		must(t, err)
		got = append(got, strings.TrimSuffix(h.Name, "/"))
		if h.Typeflag != tar.TypeDir || h.ModTime.Before(began) {
			t.Errorf("%s is a %c of %v", h.Name, h.Typeflag, h.ModTime)
		}
	}
	slices.Sort(got)
	if want := []string{"cache", "data", "logs", "logs/all"}; !slices.Equal(got, want) {
		t.Errorf("it has %v, want %v", got, want)
	}
}

// TestNoDefaultImage: if the default image is not here, a sprite that names no image is refused, and
// the hint has more than a pull.
func TestNoDefaultImage(t *testing.T) {
	s := withImages(t, func(s *server.Server) { s.DefaultImage = "default:1" })
	_, err := s.Client().Create(t.Context(), sprites.CreateRequest{Name: "paint"})
	e, ok := errors.AsType[*sprites.Error](err)
	if !ok || e.Code != "image_not_found" || !strings.Contains(e.Message, "the server's default image default:1") || !strings.Contains(e.Hint, "cove image pull default:1;") || !strings.Contains(e.Hint, "cove image build -t default:1 ") {
		t.Errorf("got %v", err)
	}
	if _, err := s.Client().Create(t.Context(), sprites.CreateRequest{Name: "paint", Config: &sprites.Config{Image: "other:1"}}); !hasCode(err, "image_not_found") || strings.Contains(err.Error(), "default") {
		t.Errorf("another image: %v", err)
	}
}

// TestPruneNothing: without images the answer is an empty list, not null.
func TestPruneNothing(t *testing.T) {
	a := ask(t, withImages(t), "POST /v1/images/prune", "")
	failIf(t, a.StatusCode != http.StatusOK || !strings.Contains(string(a.body), `"images":[]`), "got %d %s", a.StatusCode, a.body)
}
