package config_test

import (
	"encoding/base64"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cove-dev/cove/internal/cli/config"
	"github.com/cove-dev/cove/internal/server/agents"
)

// credential is planted wherever agents and others keep credentials in a home.
const credential = "sk-ant-oat01-Planted0Planted1Planted2Planted3"

// planted are files with credential, and others that must not go along.
var planted = map[string]string{
	".claude/.credentials.json":             `{"claudeAiOauth":{"accessToken":"` + credential + `"}}`,
	".claude/auth.json":                     `{"key":"` + credential + `"}`,
	".claude/.env":                          "ANTHROPIC_API_KEY=" + credential,
	".claude/oauth_token":                   credential,
	".claude/history.jsonl":                 credential,
	".claude/projects/x/1.jsonl":            credential,
	".claude/statsig/x":                     credential,
	".claude/skills/one/.env":               "X=" + credential,
	".claude/skills/one/.env.local":         "X=" + credential,
	".claude/skills/one/auth.json":          `{"x":"` + credential + `"}`,
	".claude/skills/one/client_secret.json": "{}" + credential,
	".claude/skills/one/login.keychain-db":  credential,
	".claude/skills/one/id_ed25519":         credential,
	".claude/skills/one/server.pem":         credential,
	".claude/skills/one/.git/config":        "https://ada:" + credential + "@example.org",
	".claude/skills/one/key.md":             "Use this:\n\n    " + credential + "\n",
	".claude/skills/one/github.md":          "ghp_0123456789abcdefghijABCDEFGHIJ012345",
	".claude/skills/one/aws.md":             "AKIAABCDEFGHIJKLMNOP",
	".claude/skills/one/private.md":         "-----BEGIN OPENSSH PRIVATE KEY-----\nabc",
	".claude/skills/one/jwt.md":             "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.abc",
	".claude/skills/one/password.md":        "x",
	".claude/skills/one/said.md":            "the password: hunter2hunter2",
	".claude/skills/one/url.md":             "postgres://ada:lovelace@db.example/x",
	".claude/skills/one/header.md":          "Authorization: Bearer abcdefghijklmnopqrstuvwx",
	".claude/skills/one/random.md":          "x = q8Zr2LmX0vTn5KcY7bWd4HsJ9pGf6AeU",
	".claude/skills/one/zip.md":             "PK\x03\x04\x00\xff" + credential,
	".claude/commands/base64.md":            base64.StdEncoding.EncodeToString([]byte(credential + "and more of it, to be long")),
	".claude/plugins/x.md":                  credential,
	".claude.json":                          `{"oauthAccount":{"accessToken":"` + credential + `"},"primaryApiKey":"` + credential + `"}`,
	".codex/auth.json":                      credential,
	".gemini/oauth_creds.json":              credential,
	".config/opencode/auth.json":            credential,
	".local/share/opencode/auth.json":       credential,
	".pi/agent/auth.json":                   credential,
	".netrc":                                "machine x password " + credential,
	".config/gh/hosts.yml":                  "oauth_token: " + credential,
	"Library/Keychains/login.keychain-db":   credential,
	".local/share/keyrings/login.keyring":   credential,
	".ssh/id_ed25519":                       credential,
}

// allowed are files that go along.
var allowed = map[string]string{
	".claude/CLAUDE.md":            "Use tabs. A token is a word, the secret of a good test is that it fails.\n",
	".claude/agents/reviewer.md":   "---\nname: reviewer\n---\nSee commit 0123456789abcdef0123456789abcdef01234567.\n",
	".claude/skills/one/SKILL.md":  "---\nname: one\n---\nRun https://example.org/a/rather/long/path/to/some/page-of-documentation\n",
	".claude/skills/one/run.sh":    "#!/bin/sh\necho hello\n",
	".claude/commands/sub/tidy.md": "Tidy up.\n",
	".claude/settings.json":        `{"model":"opus","env":{"ANTHROPIC_API_KEY":"` + credential + `"},"hooks":{"Stop":[]},"apiKeyHelper":"cat ~/.key","permissions":{"deny":["Bash(rm *)"]}}`,
}

// settingsHome is a home with all of these files, and with links to files elsewhere.
func settingsHome(t *testing.T) string {
	t.Helper()
	home := t.TempDir()
	for _, files := range []map[string]string{planted, allowed} {
		for name, text := range files {
			name = filepath.Join(home, name)
			if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(name, []byte(text), 0o700); err != nil {
				t.Fatal(err)
			}
		}
	}
	for name, target := range map[string]string{
		"skills/link": "../../.ssh", "skills/one/link.md": "../../.credentials.json", "rules": "../.ssh", "output-styles/x.md": "/etc/shadow",
	} {
		name = filepath.Join(home, ".claude", name)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(target, name); err != nil {
			t.Fatal(err)
		}
	}
	return home
}

// Credentials are planted in every known place, and none goes along.
func TestAgentSettings(t *testing.T) {
	home := settingsHome(t)
	files, left, err := config.AgentSettings(home, agents.Claude{}.Settings())
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, f := range files {
		got = append(got, f.Path)
		if _, ok := planted[f.Path]; ok || strings.Contains(f.Text, "Planted") || strings.Contains(f.Text, "apiKeyHelper") {
			t.Errorf("%s goes along: %.200q", f.Path, f.Text)
		}
		if want := allowed[f.Path]; f.Text != want && !strings.HasSuffix(f.Path, "settings.json") {
			t.Errorf("%s: got %q, want %q", f.Path, f.Text, want)
		}
		if strings.HasSuffix(f.Path, "settings.json") && (!strings.Contains(f.Text, `"opus"`) || !strings.Contains(f.Text, "Bash(rm *)")) {
			t.Errorf("%s: got %s", f.Path, f.Text)
		}
	}
	for name := range allowed {
		if !slices.Contains(got, name) {
			t.Errorf("%s stays here: %+v", name, left)
		}
	}
	if len(got) != len(allowed) {
		t.Errorf("got %q", got)
	}
	var said []string
	for _, l := range left {
		said = append(said, l.File)
	}
	for _, name := range []string{".claude/skills/one/.env", ".claude/skills/one/key.md", ".claude/skills/link", ".claude/skills/one/link.md", ".claude/rules"} {
		if !slices.Contains(said, name) {
			t.Errorf("nothing is said of %s: %q", name, said)
		}
	}
	for _, l := range left {
		if strings.Contains(l.Why, "Planted") {
			t.Errorf("the credential is shown: %+v", l)
		}
	}
	if files, left, err := config.AgentSettings(t.TempDir(), agents.Claude{}.Settings()); err != nil || len(files)+len(left) > 0 {
		t.Errorf("a home without any: %v, %v, %v", files, left, err)
	}
}
