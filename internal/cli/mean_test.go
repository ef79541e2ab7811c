package cli

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestSameVerb: a subcommand that is called otherwise is named, also before a flag of its own.
func TestSameVerb(t *testing.T) {
	for line, want := range map[string]string{
		"backend add far":                "did you mean cove backend put?",
		"backend add far --token-stdin":  "did you mean cove backend put?",
		"profile create nightly n.toml":  "did you mean cove profile put?",
		"profile update nightly":         "did you mean cove profile edit?",
		"secret add anthropic":           "did you mean cove secret set?",
		"webhook add ci":                 "did you mean cove webhook put?",
		"connector add ci --upstream x":  "did you mean cove connector put?",
		"connector get 'a b'":            "did you mean cove connector show?",
		"token add laptop":               "did you mean cove token create?",
		"token new laptop --all":         "did you mean cove token create?",
		"environment delete 3f9c":        "did you mean cove environment rm?",
		"environment describe 3f9c":      "did you mean cove environment show?",
		"job delete a3f7b2":              "did you mean cove job rm?",
		"token frobnicate":               "cove token --help",
		"token --frobnicate":             "cove token --help",
		"new paint --image debian:12":    "cove create NAME",
		"environment list --frobnicates": "cove environment list --help",
	} {
		var errs bytes.Buffer
		code := Main(t.Context(), strings.Fields(line), Streams{In: strings.NewReader(""), Out: &errs, Err: &errs})
		if code != exitUsage || !strings.Contains(errs.String(), "hint: "+want) {
			t.Errorf("%s: exit code %d, want %q in:\n%s", line, code, want, errs.String())
		}
	}
}

// TestBackendRefuses: if a backend refuses the token, the hint names the variable and the
// settings that can hold a token. It also has a command that tries another token.
func TestBackendRefuses(t *testing.T) {
	far := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, `{"error":"unauthorized","message":"no"}`, http.StatusUnauthorized)
	}))
	t.Cleanup(far.Close)
	dir := t.TempDir()
	t.Chdir(dir)
	t.Setenv("COVE_DATA", t.TempDir())
	t.Setenv("XDG_CONFIG_HOME", dir)
	t.Setenv("SPRITES_TOKEN", "wrong")
	if err := os.MkdirAll(filepath.Join(dir, "cove"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "cove", "config.toml"), []byte("[backends.far]\nurl = '"+far.URL+"'\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{"list --backend far", "info paint --backend far"} {
		var errs bytes.Buffer
		code := Main(t.Context(), strings.Fields(line), Streams{In: strings.NewReader(""), Out: &errs, Err: &errs})
		for _, want := range []string{"SPRITES_TOKEN=TOKEN cove list --backend far", "[backends.far]", "cove config show"} {
			if code == 0 || !strings.Contains(errs.String(), want) {
				t.Errorf("%s: exit code %d, want %q in:\n%s", line, code, want, errs.String())
			}
		}
	}
}
