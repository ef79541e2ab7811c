package connect

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// The test asks git what it makes of a URL under the configuration.
func TestGitConfig(t *testing.T) {
	config := filepath.Join(t.TempDir(), "config")
	text := GitConfig(map[string]Upstream{
		"github": {URL: "https://github.com", Git: true},
		"forge":  {URL: "https://forge.example:8443/git%20hub/team\"x/", Git: true},
		"models": {URL: "https://models.example"},
		"unset":  {Refused: "no secret", Git: true},
	})
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for url, want := range map[string]string{
		"https://github.com/ada/paint":                    "http://github.connect.internal/ada/paint",
		"git@github.com:ada/paint.git":                    "http://github.connect.internal/ada/paint.git",
		"ssh://git@github.com/ada/paint.git":              "http://github.connect.internal/ada/paint.git",
		"https://github.com.example/ada":                  "https://github.com.example/ada",
		"https://forge.example:8443/git%20hub/team%22x/p": "http://forge.connect.internal/p",
		"https://forge.example:8443/git%20hub/other/p":    "https://forge.example:8443/git%20hub/other/p",
		"git@forge.example:git%20hub/team%22x/p.git":      "http://forge.connect.internal/p.git",
		"https://models.example/x":                        "https://models.example/x",
	} {
		cmd := exec.Command("git", "ls-remote", "--get-url", url)
		cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL="+config, "GIT_CONFIG_NOSYSTEM=1")
		out, err := cmd.CombinedOutput()
		if got := strings.TrimSpace(string(out)); err != nil || got != want {
			t.Errorf("%s becomes %s (%v), want %s", url, got, err, want)
		}
	}
	if got := GitConfig(nil); got != "" {
		t.Errorf("without connectors: %q", got)
	}
}
