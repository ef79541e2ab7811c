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

	"github.com/cove-dev/cove/internal/test/e2e"
	"github.com/cove-dev/cove/internal/test/need"
)

// TestExportWithBase: a sprite exported with its image goes on where nobody has the image. If
// it was exported without, the import pulls the image, or says how to get it. An incomplete
// archive leaves nothing.
func TestExportWithBase(t *testing.T) {
	need.Program(t, "busybox", "busybox-static")
	h := e2e.NewHost(t)
	web := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	t.Cleanup(web.Close)
	reference := strings.TrimPrefix(web.URL, "http://") + "/team/small:1"
	tag, err := name.NewTag(reference)
	if err != nil {
		t.Fatal(err)
	}
	image := imageOf(t, v1.Config{User: "nobody", Env: []string{"SHAPE=round", "PATH=/usr/bin:/bin"}}, busyboxLayer(t))
	if err := remote.Write(tag, image); err != nil {
		t.Fatal(err)
	}
	hash, err := image.Digest()
	if err != nil {
		t.Fatal(err)
	}
	digest := hash.String()
	h.Run("", "cove", "create", "paint", "--image", reference)
	h.Run("", "cove", "exec", "-s", "paint", "--user", "root", "--", "sh", "-ec", "echo mine >/srv; rm /bin/ed; echo x >/etc/own")
	at := func(name string) string { return filepath.Join(filepath.Dir(h.Home), name) }
	var done struct {
		Base, Image, File string
		Bytes             int64
		WithBase          bool `json:"with_base"`
	}
	if err := json.Unmarshal([]byte(h.Run("", "cove", "export", "paint", "--with-base", "-o", at("with"), "--json")), &done); err != nil {
		t.Fatal(err)
	}
	if st, err := os.Stat(at("with")); err != nil || done.Base != digest || done.Image != reference || !done.WithBase || done.Bytes != st.Size() {
		t.Errorf("the export says %+v", done)
	}
	if out, code := h.Try("", "cove", "export", "paint", "-o", at("without")); code != 0 || !strings.Contains(out, reference) || !strings.Contains(out, "not in it") {
		t.Errorf("the export says %s", out)
	}
	h.Run("", "cove", "create", "tools", "--image", "host")
	if out, code := h.Try("", "cove", "export", "tools", "--with-base", "-o", at("no")); code == 0 || !strings.Contains(out, "leave --with-base out") {
		t.Errorf("over the host base: %d, %s", code, out)
	}
	// Only a token that may save an image may export its files.
	_, secret := h.Token("writer", "--all", "--verbs", "read,write")
	less := func(args ...string) (string, int) {
		return h.Try("", "sh", "-c", "COVE_TOKEN="+secret+" COVE_URL="+h.Client().URL+" "+strings.Join(args, " "))
	}
	if out, code := less("cove", "export", "paint", "--with-base", "-o", at("no")); code == 0 || !strings.Contains(out, "admin") {
		t.Errorf("without admin: %d, %s", code, out)
	}
	if _, err := os.Stat(at("no")); err == nil {
		t.Error("a refused export has left a file")
	}
	h.Run("", "cove", "rm", "paint", "tools", "--yes")
	h.Run("", "cove", "image", "rm", reference, "--yes")

	// From here on, the server does not have the image.
	none := func(what string) {
		t.Helper()
		if out := h.Run("", "cove", "image", "list", "--json") + h.Run("", "cove", "list", "--json"); strings.Contains(out, digest) || strings.Contains(out, `"paint"`) {
			t.Errorf("%s has left %s", what, out)
		}
	}
	if out, code := h.Try("", "sh", "-c", "cove import < "+at("without")); code == 0 || !strings.Contains(out, "cove image pull "+reference+"@"+digest) || !strings.Contains(out, "--pull") || !strings.Contains(out, "cove export paint --with-base") {
		t.Errorf("without the image: %d, %s", code, out)
	}
	whole, err := os.ReadFile(at("with"))
	if err != nil {
		t.Fatal(err)
	}
	middle := len(whole) / 2
	broken := append([]byte{}, whole...)
	broken[middle] ^= 0x55
	late := append([]byte{}, whole...)
	late[len(late)-300] ^= 0x55 // in the disk or at its end: the image has come by then
	for what, text := range map[string][]byte{"half of it": whole[:middle], "all but its end": whole[:len(whole)-100], "another byte": broken, "another byte at its end": late} {
		if err := os.WriteFile(at("bad"), text, 0o600); err != nil {
			t.Fatal(err)
		}
		if out, code := h.Try("", "sh", "-c", "cove import < "+at("bad")); code != 5 {
			t.Errorf("%s: exit code %d, %s", what, code, out)
		}
		none(what)
	}
	if out, code := less("cove", "import", "<", at("with")); code == 0 || !strings.Contains(out, "admin") {
		t.Errorf("without admin: %d, %s", code, out)
	}
	none("a refused import")

	const look = `cat /srv /etc/own /etc/os-release; ls /bin/ed 2>/dev/null || echo none; id -un; echo $SHAPE`
	const want = "mine\nx\nID=small\nnone\nnobody\nround\n"
	if out, code := h.Try("", "sh", "-c", "cove import < "+at("with")); code != 0 || !strings.Contains(out, "cove image tag "+hash.Hex[:12]+" NAME") {
		t.Errorf("the import says %s", out)
	}
	if got := h.Sh("paint", look); got != want {
		t.Errorf("with its image: got %q", got)
	}
	h.Run("", "cove", "image", "tag", hash.Hex[:12], "small:here")
	// If the image is there, the import needs no further rights.
	if out, code := less("cove", "import", "again", "<", at("with")); code != 0 {
		t.Errorf("where the image is: %d, %s", code, out)
	}
	h.Run("", "cove", "rm", "paint", "again", "--yes")
	h.Run("", "cove", "image", "rm", "small:here", "--yes")
	h.Run("", "sh", "-c", "cove import --pull < "+at("without"))
	if got := h.Sh("paint", look); got != want {
		t.Errorf("with an image that was pulled: got %q", got)
	}
	h.Run("", "cove", "rm", "paint", "--yes")
}

func TestExportWithBaseOrdinaryUser(t *testing.T) {
	e2e.AsOrdinaryUser(t, "^TestExportWithBase$", "20m")
}
