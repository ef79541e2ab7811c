package images

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/cove-dev/cove/internal/test/e2e"
)

// browserImage builds the default image and the one with a browser, over a Debian. Playwright
// must find the browser without a path or a flag, as an ordinary user. Root must be able to
// run it.
func browserImage(t *testing.T, debian string) {
	h := e2e.NewLoneHost(t)
	h.Run("", "cove", "image", "import", debian, "--name", "debian:local")
	var allow []string
	for _, addr := range mirrors(t, debian) {
		allow = append(allow, "--allow", addr)
	}
	for _, build := range [][]string{
		{"--tag", "default:1", "--build-arg", "BASE=debian:local", folderOf(t, "default")},
		{"--tag", "browser:1", folderOf(t, "browser")},
	} {
		h.Run("", "cove", append(append([]string{"image", "build"}, allow...), build...)...)
	}
	h.Run("", "cove", "create", "paint", "--image", "browser:1", "--include", e2e.JSModules(t))
	if sandbox := e2e.Browse(h, "paint", `{"channel": "chrome", "chromiumSandbox": true}`); !strings.Contains(sandbox, "You are adequately sandboxed.") {
		t.Errorf("the browser says of its sandbox: %s", sandbox)
	}
	h.Run("", "cove", "exec", "-s", "paint", "--user", "root", "--", "chromium", "--headless", "--screenshot=/tmp/root.png", "http://127.0.0.1:8080/")
	got := h.Run("", "cove", "exec", "-s", "paint", "--", "sh", "-c", `head -c 4 /tmp/root.png | tail -c 3; echo; for at in "$PUPPETEER_EXECUTABLE_PATH" "$CHROME_BIN" "$CHROME_PATH" /opt/google/chrome/chrome; do "$at" --version | cut -d' ' -f1; done; for lang in zh und-zsye; do fc-match --format '%{family}\n' :lang=$lang; done`)
	if want := "PNG\n" + strings.Repeat("Chromium\n", 4) + "WenQuanYi Zen Hei"; !strings.HasPrefix(got, want) || !strings.Contains(got, "Noto Color Emoji") {
		t.Errorf("got %q, want %q and an emoji font", got, want)
	}
}

// folderOf returns the folder of one of the images in the repository.
func folderOf(t *testing.T, name string) string {
	t.Helper()
	dir, err := filepath.Abs("../../../images/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return dir
}
