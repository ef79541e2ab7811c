package images

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"io"
	"io/fs"
	"log"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/test/e2e"
	"github.com/cove-dev/cove/internal/test/need"
)

// packed is a folder as the layer of an image.
func packed(t testing.TB, dir string) v1.Layer {
	t.Helper()
	var text bytes.Buffer
	out := tar.NewWriter(&text)
	err := filepath.WalkDir(dir, func(at string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		st, err := d.Info()
		if err != nil {
			return err
		}
		target := ""
		if st.Mode()&fs.ModeSymlink != 0 {
			if target, err = os.Readlink(at); err != nil {
				return err
			}
		}
		h, err := tar.FileInfoHeader(st, target)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(dir, at)
		if err != nil {
			return err
		}
		if h.Name = rel; d.IsDir() {
			h.Name += "/"
		}
		if err := out.WriteHeader(h); err != nil || !st.Mode().IsRegular() {
			return err
		}
		data, err := os.ReadFile(at)
		if err == nil {
			_, err = out.Write(data)
		}
		return err
	})
	if err == nil {
		err = out.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(text.Bytes())), nil })
	if err != nil {
		t.Fatal(err)
	}
	return layer
}

// imageOf is an image of folders, the lowest first, for this machine.
func imageOf(t testing.TB, config v1.Config, dirs ...string) v1.Image {
	t.Helper()
	image := empty.Image
	for _, dir := range dirs {
		var err error
		if image, err = mutate.AppendLayers(image, packed(t, dir)); err != nil {
			t.Fatal(err)
		}
	}
	file, err := image.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	file = file.DeepCopy()
	file.OS, file.Architecture, file.Config = "linux", runtime.GOARCH, config
	if image, err = mutate.ConfigFile(image, file); err != nil {
		t.Fatal(err)
	}
	return image
}

// TestImageVerbs: an image comes from a registry, a file or a folder, sprites and jobs start from
// it, and one that is in use stays.
func TestImageVerbs(t *testing.T) {
	need.Program(t, "busybox", "busybox-static")
	h := e2e.NewHost(t)
	web := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	t.Cleanup(web.Close)
	reference, mine := strings.TrimPrefix(web.URL, "http://")+"/team/small:1", strings.TrimPrefix(web.URL, "http://")+"/mine:1"
	tag, err := name.NewTag(reference)
	if err != nil {
		t.Fatal(err)
	}
	top := folder(t)
	write(t, filepath.Join(top, "etc/greeting"), "hello\n")
	small := busyboxLayer(t)
	first := imageOf(t, v1.Config{Env: []string{"COLOUR=blue", "PATH=/bin"}}, small, top)
	if err := remote.Write(tag, first); err != nil {
		t.Fatal(err)
	}
	digest, err := first.Digest()
	if err != nil {
		t.Fatal(err)
	}

	// A tag is resolved once: the sprite stays with what it was made from.
	h.Run("", "cove", "create", "paint", "--image", reference)
	if got := h.Run("", "cove", "exec", "-s", "paint", "--", "sh", "-c", "cat /etc/greeting; echo $COLOUR; id -un"); got != "hello\nblue\nsprite\n" {
		t.Errorf("got %q", got)
	}
	write(t, filepath.Join(top, "etc/greeting"), "moved\n")
	if err := remote.Write(tag, imageOf(t, v1.Config{}, small, top)); err != nil {
		t.Fatal(err)
	}
	h.Run("", "cove", "image", "pull", reference)
	h.Run("", "cove", "restart", "paint")
	h.Run("", "cove", "create", "second", "--image", reference)
	for sprite, want := range map[string]string{"paint": "hello\n", "second": "moved\n"} {
		if got := h.Run("", "cove", "exec", "-s", sprite, "--", "cat", "/etc/greeting"); got != want {
			t.Errorf("%s: got %q, want %q", sprite, got, want)
		}
	}
	if out := h.Run("", "cove", "info", "paint"); !strings.Contains(out, digest.String()) {
		t.Errorf("info does not name the image %s:\n%s", digest, out)
	}

	// From a file, standard input and a folder, by another name.
	file := filepath.Join(filepath.Dir(h.Home), "saved.tar")
	other, err := name.NewTag("saved:2")
	if err != nil {
		t.Fatal(err)
	}
	if err := tarball.WriteToFile(file, other, imageOf(t, v1.Config{User: "nobody"}, small)); err != nil {
		t.Fatal(err)
	}
	h.Run("", "cove", "image", "import", file, "--name", mine)
	h.Run("", "cove", "create", "third", "--image", mine)
	if got := h.Run("", "cove", "exec", "-s", "third", "--", "id", "-un"); got != "nobody\n" {
		t.Errorf("got %q", got)
	}
	dir := filepath.Join(filepath.Dir(h.Home), "layout")
	folder, err := layout.Write(dir, empty.Index)
	if err == nil {
		err = folder.AppendImage(imageOf(t, v1.Config{Env: []string{"SHAPE=round"}}, small))
	}
	if err != nil {
		t.Fatal(err)
	}
	h.Run("", "cove", "create", "fourth", "--image", "oci:"+dir)
	if got := h.Run("", "cove", "exec", "-s", "fourth", "--", "sh", "-c", "echo $SHAPE"); got != "round\n" {
		t.Errorf("got %q", got)
	}

	// In use, and not.
	if out, code := h.Try("", "cove", "image", "rm", mine); code == 0 || !strings.Contains(out, "third") {
		t.Errorf("an image in use: exit code %d: %s", code, out)
	}
	h.Run("", "cove", "rm", "third")
	h.Run("", "cove", "image", "rm", mine)
	if out, code := h.Try("", "cove", "create", "fifth", "--image", mine); code == 0 || !strings.Contains(out, "cove: pull image "+mine) {
		t.Errorf("an image that is gone: exit code %d: %s", code, out)
	}
	h.Run("", "cove", "image", "prune")
	var list cove.ImageList
	if err := json.Unmarshal([]byte(h.Run("", "cove", "image", "list", "--json")), &list); err != nil {
		t.Fatal(err)
	}
	users := map[string]int{}
	for _, i := range list.Images {
		for _, s := range i.UsedBy {
			users[s]++
		}
		if len(i.UsedBy) == 0 {
			t.Errorf("%s is left, and no sprite uses it", i.Digest)
		}
	}
	if len(users) != 3 || users["paint"] != 1 || users["second"] != 1 || users["fourth"] != 1 {
		t.Errorf("images are used by %v", users)
	}
	if out := h.Run("", "cove", "image", "info", reference); !strings.Contains(out, "second") {
		t.Errorf("got %s", out)
	}

	// A job's sprite.
	repo := h.Repository("repo", map[string]string{"plan.md": "# Copy\n\n## Copy it\n\n```sh\ncat /etc/greeting >greeting.txt\n```\n"})
	out, code := h.Try(repo, "cove", "run", "plan.md", "--agent", "shell", "--image", reference)
	if code == 0 || !strings.Contains(out, "git") {
		t.Errorf("run in an image without git: exit code %d: %s", code, out)
	}
	job, sprite := h.Push(repo, "plan.md", "--agent", "shell", "--image", reference)
	out, code = h.Try(repo, "cove", "pull", job, "--wait=10m")
	if code == 0 {
		t.Errorf("push in an image without git: exit code %d: %s", code, out)
	}
	if out := h.Run("", "cove", "info", sprite); !strings.Contains(out, reference) {
		t.Errorf("the job's sprite is not over the image:\n%s", out)
	}
}
