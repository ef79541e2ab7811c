package cli

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cove-dev/cove/internal/lib/filesync"
)

func TestIsCredential(t *testing.T) {
	for name, test := range map[string]struct {
		text string
		want bool
	}{
		".netrc":                                 {"", true},
		".npmrc":                                 {"//registry/:_authToken=x", true},
		"project/.npmrc":                         {"registry=https://r.example.org", false},
		".pypirc":                                {"", true},
		".cargo/credentials":                     {"", true},
		".cargo/credentials.toml":                {"", true},
		".cargo/config.toml":                     {"", false},
		".aws/credentials":                       {"", true},
		".aws/config":                            {"", false},
		".ssh/id_ed25519":                        {"", true},
		".ssh/id_work":                           {"", true},
		".ssh/id_ed25519.pub":                    {"", false},
		".ssh/known_hosts":                       {"", false},
		".docker/config.json":                    {`{"auths":{"r":{"auth":"x"}}}`, true},
		"other/.docker/config.json":              {`{}`, false},
		".kube/config":                           {"", true},
		".config/gh/hosts.yml":                   {"", true},
		".config/git/credentials":                {"", true},
		".git-credentials":                       {"", true},
		"tls/server.key":                         {"-----BEGIN EC PRIVATE KEY-----", true},
		"tls/server.pem":                         {"-----BEGIN CERTIFICATE-----", false},
		"tls/both.PEM":                           {"-----BEGIN PRIVATE KEY-----", true},
		"keyboard.key":                           {"a b c", false},
		"app/.env":                               {"", true},
		"app/.env.production":                    {"", true},
		"app/.env.example":                       {"", false},
		"app/environment":                        {"", false},
		"src/main.go":                            {"PRIVATE KEY", false},
		".config/gcloud/credentials.db":          {"", true},
		"x/application_default_credentials.json": {"", true},
	} {
		file := filepath.Join(t.TempDir(), name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o700), os.WriteFile(file, []byte(test.text), 0o600)); err != nil {
			t.Fatal(err)
		}
		if got := isCredential(file); got != test.want {
			t.Errorf("%s: got %v", name, got)
		}
	}
}

// A folder is looked through as it travels, and some files are named.
func TestWarnCredentials(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{".env", "a/.netrc", "a/main.go", "ignored/.env"} {
		file := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o700), os.WriteFile(file, nil, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	var errs bytes.Buffer
	inv := newInvocation(Streams{Err: &errs})
	inv.global.quiet, inv.global.json = true, true
	if err := warnCredentials(t.Context(), inv, dir, filesync.Rules{Exclude: []string{"ignored/"}}); err != nil {
		t.Fatal(err)
	}
	if text := errs.String(); !strings.HasPrefix(text, "Warning: ") || !strings.HasSuffix(text, ": .env, a/.netrc\n") {
		t.Errorf("it says %q", text)
	}
	errs.Reset()
	for i := range maxNamed {
		if err := os.WriteFile(filepath.Join(dir, ".env."+string(rune('a'+i))), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	err := errors.Join(warnIncludes(t.Context(), inv, []string{dir, filepath.Join(dir, "nosuch")}))
	if text := errs.String(); err != nil || strings.Count(text, "\n") != 1 || !strings.HasSuffix(text, " and more\n") {
		t.Errorf("it says %q, %v", text, err)
	}
}
