package images

import (
	"encoding/json"
	"io"
	"log"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/test/e2e"
	"github.com/cove-dev/cove/internal/test/need"
)

// changes makes changes of all kinds that a layer has. look prints their results.
const (
	changes = `set -e
rm /etc/greeting
rm -r /srv/old && mkdir /srv/old && echo new >/srv/old/n
echo a >/srv/a && ln /srv/a /srv/b && chown 1234:567 /srv/a && chmod 4755 /srv/a
ln -s ../.. /srv/l && mkdir -p '/srv/odd 	name/deep'
truncate -s 64M /srv/sparse && echo end >>/srv/sparse
chmod 700 /srv/kept && chown 12:34 /srv/kept`
	look = `cd / && ls etc srv srv/old && stat -c '%n %F %u:%g %a %h %s %Y' srv/a srv/b srv/l srv/sparse srv/old/n srv/kept/k && stat -c '%n %u:%g %a %Y' srv/kept 'srv/odd 	name/deep'
test srv/a -ef srv/b && cat srv/a srv/old/n srv/kept/k && tail -c 4 srv/sparse && du -k srv/sparse`
)

// TestImageMade: an image made of a sprite has the sprite's changes of its image, and nothing
// that cove put there. It is pushed to a registry, read by other tools, and used for new
// sprites.
func TestImageMade(t *testing.T) { made(t) }

// TestImageMadeOrdinaryUser is TestImageMade on an ordinary user's server.
func TestImageMadeOrdinaryUser(t *testing.T) {
	if os.Geteuid() != 0 {
		made(t)
		return
	}
	e2e.RequireSandbox(t)
	t.Parallel()
	e2e.AsOrdinaryUser(t, "^TestImageMadeOrdinaryUser$", "15m")
}

func made(t *testing.T) {
	need.Program(t, "busybox", "busybox-static")
	h := e2e.NewHost(t)
	web := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	t.Cleanup(web.Close)
	host := strings.TrimPrefix(web.URL, "http://")
	tag, err := name.NewTag(host + "/base:1")
	if err != nil {
		t.Fatal(err)
	}
	top := folder(t)
	for at, text := range map[string]string{"etc/greeting": "hello\n", "srv/old/x": "x\n", "srv/kept/k": "kept\n"} {
		write(t, filepath.Join(top, at), text)
	}
	if err := remote.Write(tag, imageOf(t, v1.Config{User: "0", Env: []string{"COLOUR=blue", "PATH=/bin"}}, busyboxLayer(t), top)); err != nil {
		t.Fatal(err)
	}
	describe := func(name string) (image cove.Image) {
		t.Helper()
		if err := json.Unmarshal([]byte(h.Run("", "cove", "image", "info", name, "--json")), &image); err != nil {
			t.Fatal(err)
		}
		return image
	}

	h.Run("", "cove", "create", "paint", "--image", tag.String())
	h.Run("", "cove", "exec", "-s", "paint", "--", "true")
	h.Run("", "cove", "image", "commit", "paint", "fresh:1")
	if fresh := describe("fresh:1"); len(fresh.Layers) != 2 {
		t.Errorf("an image of a fresh sprite has layers of cove's: %+v", fresh.Layers)
	}
	h.Run("", "cove", "exec", "-s", "paint", "--", "sh", "-c", changes)
	want := h.Run("", "cove", "exec", "-s", "paint", "--", "sh", "-c", look)
	h.Run("", "cove", "checkpoint", "create", "-s", "paint")
	h.Run("", "cove", "exec", "-s", "paint", "--", "sh", "-c", "echo later >/srv/later")
	h.Run("", "cove", "image", "commit", "paint@v1", "made:1")
	h.Run("", "cove", "image", "commit", "paint", "made:2")
	h.Run("", "cove", "create", "again", "--image", "made:1")
	if got := h.Run("", "cove", "exec", "-s", "again", "--", "sh", "-c", look); got != want {
		t.Errorf("the image has\n%s\nand the sprite\n%s", got, want)
	}
	h.Run("", "cove", "rm", "again")
	if out := h.Run("", "cove", "image", "info", "made:2"); !strings.Contains(out, "COLOUR=blue") {
		t.Errorf("its environment: %s", out)
	}

	// To a registry, and to a file.
	h.Run("", "cove", "image", "push", "made:1", host+"/team/made:1")
	h.Run("", "cove", "image", "tag", "made:2", host+"/team/made:2")
	h.Run("", "cove", "image", "push", host+"/team/made:2")
	for text, image := range map[string]cove.Image{"made:1": describe("made:1"), "made:2": describe("made:2")} {
		ref, err := name.NewTag(host + "/team/" + text)
		if err != nil {
			t.Fatal(err)
		}
		if d, err := remote.Head(ref); err != nil || d.Digest.String() != image.Digest {
			t.Errorf("the registry has %+v as %s, %v, want %s", d, text, err, image.Digest)
		}
	}
	file := filepath.Join(filepath.Dir(h.Home), "made.tar")
	h.Run("", "cove", "image", "save", "made:2", "--output", file)
	if _, err := tarball.ImageFromPath(file, nil); err != nil {
		t.Errorf("another tool reads the archive: %v", err)
	}
	if st, err := os.Stat(file); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("the archive is %v, %v", st, err)
	}
	h.Run("", "cove", "image", "rm", "made:2", host+"/team/made:2")
	h.Run("", "cove", "image", "import", file)
	h.Run("", "cove", "create", "back", "--image", "made:2")
	if got := h.Run("", "cove", "exec", "-s", "back", "--", "cat", "/srv/later", "/srv/a"); got != "later\na\n" {
		t.Errorf("the image that came back has %q", got)
	}

	// Refused.
	if out, code := h.Try("", "cove", "image", "save", "made:2", "none:1"); code == 0 || !strings.Contains(out, "none:1") {
		t.Errorf("save an image that is not there: %d, %s", code, out)
	}
	h.Run("", "cove", "create", "plain")
	if out, code := h.Try("", "cove", "image", "commit", "plain", "x:1"); code == 0 || !strings.Contains(out, "cove create NAME --image") {
		t.Errorf("commit a sprite without an image: %d, %s", code, out)
	}
	if out, code := h.Try("", "cove", "image", "commit", "paint@v9", "x:1"); code == 0 || !strings.Contains(out, "v9") {
		t.Errorf("commit at no checkpoint: %d, %s", code, out)
	}
}
