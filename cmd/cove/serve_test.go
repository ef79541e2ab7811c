package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cove-dev/cove/sprites"
)

// A server makes what sandboxes start from while there is a sprite: for one that was just
// created, and for those that an earlier server had. Without any, it does not look through
// this machine's programs. A server that has ended has also ended what it began.
func TestServePrepares(t *testing.T) {
	h := newHost(t)
	dir := filepath.Join(h.data, "base")
	prepared := func() bool {
		t.Helper()
		skeletons, err := filepath.Glob(filepath.Join(dir, "host-*"))
		if err != nil {
			t.Fatal(err)
		}
		return len(skeletons) > 0
	}
	h.run("", "cove", "server", "start")
	h.run("", "cove", "list")
	h.run("", "cove", "server", "stop")
	if prepared() {
		t.Error("a server without a sprite has made a base")
	}
	h.run("", "cove", "server", "start")
	if _, err := h.client().Create(t.Context(), sprites.CreateRequest{Name: "small"}); err != nil {
		t.Fatal(err)
	}
	h.run("", "cove", "server", "stop")
	if !prepared() {
		t.Error("a server with a new sprite has made no base")
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	h.run("", "cove", "server", "start")
	h.run("", "cove", "server", "stop")
	if !prepared() {
		t.Error("a server that began with a sprite has made no base")
	}
	if out := h.run("", "cove", "exec", "-s", "small", "echo", "done"); strings.TrimSpace(out) != "done" {
		t.Errorf("got %q, want done", out)
	}
}

func TestParseConnectors(t *testing.T) {
	env := func(name string) (string, bool) {
		if name == "KEY" {
			return "secret", true
		}
		return "", false
	}
	got, err := parseConnectors([]string{"api=https://example.org/v1", "local=http://127.0.0.1:8080"},
		[]string{"api=x-api-key: $KEY", "api=X-Other: a:b$$", "local=Authorization: Bearer ${KEY}"}, env)
	if err != nil {
		t.Fatal(err)
	}
	if h := got["api"].Header; got["api"].URL != "https://example.org/v1" || h.Get("X-Api-Key") != "secret" || h.Get("X-Other") != "a:b$" {
		t.Errorf("api: got %+v", got["api"])
	}
	if got["local"].Header.Get("Authorization") != "Bearer secret" {
		t.Errorf("local: got %+v", got["local"])
	}
	for name, test := range map[string]struct{ connector, header, want string }{
		"no name":          {"http://x", "", "NAME=URL"},
		"bad name":         {"A_B=http://x", "", "NAME=URL"},
		"no URL":           {"a=", "", "NAME=URL"},
		"another scheme":   {"a=file:///etc/passwd", "", "http or https"},
		"a query":          {"a=http://x/?k=v", "", "http or https"},
		"a password":       {"a=http://u:p@x", "", "--connector-header"},
		"no such":          {"a=http://x", "b=H: v", "--connector b=URL"},
		"no header":        {"a=http://x", "a=value", "HEADER: VALUE"},
		"a header's trick": {"a=http://x", "a=H\r\nX: v", "HEADER: VALUE"},
		"no value":         {"a=http://x", "a=H: ", "empty"},
		"not set":          {"a=http://x", "a=H: $MISSING", "MISSING"},
	} {
		var headers []string
		if test.header != "" {
			headers = []string{test.header}
		}
		if _, err := parseConnectors([]string{test.connector}, headers, env); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: got %v, want %q", name, err, test.want)
		}
	}
	if _, err := parseConnectors([]string{"a=http://x", "a=http://y"}, nil, env); err == nil {
		t.Error("twice is no error")
	}
}
