package jobs

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/test/e2e"
)

// echo is an upstream that repeats each request in its answer, as a careless one would.
func echo(t *testing.T) *httptest.Server {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = fmt.Fprintf(w, "%s %s key=%s\n", r.Method, r.URL.Path, r.Header.Get("X-Api-Key"))
		if r.URL.Path == "/check" {
			_, _ = fmt.Fprintln(w, "right:", r.Header.Get("X-Api-Key") == e2e.ConnectorKey)
		}
		_, _ = io.Copy(w, r.Body)
	}))
	t.Cleanup(s.Close)
	return s
}

// TestConnectors: a sprite uses a secret while the secret's connector is granted to it.
// No sprite has the secret itself.
func TestConnectors(t *testing.T) {
	h := e2e.NewHost(t)
	upstream := echo(t)
	h.Serve(nil, "--verbose")
	set := h.Command("", "cove", "secret", "set", "anthropic")
	set.Stdin = strings.NewReader(e2e.ConnectorKey + "\n")
	if out, err := set.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if out := h.Run("", "cove", "secret", "list", "--json"); !strings.Contains(out, `"name": "anthropic"`) || strings.Contains(out, e2e.ConnectorKey) {
		t.Errorf("the list is %s", out)
	}
	h.Run("", "cove", "connector", "put", "anthropic", "--upstream", upstream.URL, "--deny-paths", "/admin*")
	for _, name := range []string{"paint", "other"} {
		h.Run("", "cove", "create", name)
	}
	ask := func(sprite, path string) string {
		t.Helper()
		return h.Run("", "cove", "exec", "-s", sprite, "--", "curl", "-s", "-m", "600", "-H", "x-api-key: placeholder", "http://anthropic.connect.internal"+path)
	}
	if out := ask("paint", "/check"); !strings.Contains(out, "cove connector grant anthropic --sprite paint") {
		t.Errorf("granted to nobody: %s", out)
	}
	h.Run("", "cove", "connector", "grant", "anthropic", "--sprite", "paint")
	begin := time.Now()
	if out := ask("paint", "/check"); out != "GET /check key="+strings.Repeat("*", len(e2e.ConnectorKey))+"\nright: true\n" {
		t.Errorf("granted: %s", out)
	}
	if out := ask("other", "/check"); !strings.Contains(out, "no_connector") {
		t.Errorf("another sprite: %s", out)
	}
	if out := ask("paint", "/admin/keys"); !strings.Contains(out, "denied") {
		t.Errorf("a path that is denied: %s", out)
	}
	t.Logf("three requests in %v", time.Since(begin))
	if out := h.Run("", "cove", "connector", "log", "-s", "paint"); !strings.Contains(out, "anthropic  GET /check  200") || !strings.Contains(out, "GET /admin/keys  403") {
		t.Errorf("the log is:\n%s", out)
	}
	if out := h.Run("", "cove", "connector", "log", "-s", "paint", "--since", "1ns"); strings.Contains(out, "GET ") {
		t.Errorf("the log of the last moment is:\n%s", out)
	}

	// A restarted shim, and a restarted server, have the grant again, but no revoked
	// grant.
	e2e.SignalAll(t, 9, h.Shims()...)
	e2e.Await(t, "the connector comes back with the shim", func() bool {
		out, _ := h.Try("", "cove", "exec", "-s", "paint", "--", "curl", "-s", "-m", "5", "http://anthropic.connect.internal/check")
		return strings.Contains(out, "right: true")
	})
	server := h.PID()
	e2e.SignalAll(t, 9, append(h.Shims(), server)...)
	if err := e2e.AwaitEnd(server); err != nil {
		t.Fatal(err)
	}
	h.Serve(nil, "--verbose")
	e2e.Await(t, "the connector comes back with the server", func() bool {
		out, _ := h.Try("", "cove", "exec", "-s", "paint", "--", "curl", "-s", "-m", "5", "http://anthropic.connect.internal/check")
		return strings.Contains(out, "right: true")
	})
	h.Run("", "cove", "connector", "revoke", "anthropic", "--sprite", "paint")
	if out := ask("paint", "/check"); !strings.Contains(out, "no_connector") {
		t.Errorf("revoked: %s", out)
	}

	// The key is in no sprite, in no log and in no file of the server's.
	for _, name := range []string{"paint", "other"} {
		if out, _ := h.Try("", "cove", "exec", "-s", name, "--", "sh", "-c", "grep -rl "+e2e.ConnectorKey[:15]+" /home /tmp /etc /run /proc/[0-9]*/environ 2>/dev/null"); strings.TrimSpace(out) != "" {
			t.Errorf("%s: the key is in %s", name, out)
		}
	}
	err := filepath.WalkDir(h.Data, func(path string, d os.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return nil //nolint:nilerr // what is gone meanwhile has no key
		}
		if data, err := os.ReadFile(path); err == nil && strings.Contains(string(data), e2e.ConnectorKey) {
			t.Errorf("%s has the key", path)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// TestJobConnector: a job has its agent's connector only while it runs. Its sprite has
// the connector neither before nor after.
func TestJobConnector(t *testing.T) {
	if os.Getenv(e2e.FarVariable) != "" {
		t.Skip("connectors are a cove's own")
	}
	h := e2e.NewHost(t)
	upstream := echo(t)
	h.Serve(nil)
	set := h.Command("", "cove", "secret", "set", "anthropic")
	set.Stdin = strings.NewReader(e2e.ConnectorKey)
	if out, err := set.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	h.Run("", "cove", "connector", "put", "anthropic", "--upstream", upstream.URL)
	// This stand-in for the agent makes a request as the agent would, prints the answer,
	// and waits.
	h.Write("agent/claude", `#!/bin/sh
case $1 in --version) echo 1; exit;; esac
cat >/dev/null
curl -s -m 600 -H "x-api-key: $ANTHROPIC_API_KEY" "$ANTHROPIC_BASE_URL/check" | grep -o 'right: .*'
while ! [ -e /tmp/go ]; do sleep 0.1; done
echo '{"type":"result","subtype":"success","result":"done"}'
`)
	tools := filepath.Join(filepath.Dir(h.Home), "agent")
	if err := os.Chmod(filepath.Join(tools, "claude"), 0o755); err != nil {
		t.Fatal(err)
	}
	repo := h.Repository("repo", map[string]string{"plan.md": "Do it.\n"})
	job, sprite := h.Push(repo, "plan.md", "--agent", "claude", "--include", tools, "--env", "PATH="+tools+":/.sprite/bin:/usr/local/bin:/usr/bin:/bin")
	ask := func() string {
		out, _ := h.Try("", "cove", "exec", "-s", sprite, "--", "curl", "-s", "-m", "600", "http://anthropic.connect.internal/check")
		return out
	}
	e2e.Await(t, "the agent asks", func() bool {
		out, _ := h.Try("", "cove", "job", "logs", job)
		return strings.Contains(out, "right: ")
	})
	if out, _ := h.Try("", "cove", "job", "logs", job); !strings.Contains(out, "right: true") || !strings.Contains(ask(), "right: true") {
		t.Errorf("while it runs: %s", out)
	}
	if out := h.Run("", "cove", "connector", "show", "anthropic"); !strings.Contains(out, "(job "+job+")") {
		t.Errorf("the connector is\n%s", out)
	}
	h.Run("", "cove", "exec", "-s", sprite, "--", "touch", "/tmp/go")
	h.Run("", "cove", "job", "wait", job)
	if out := ask(); !strings.Contains(out, "no_connector") {
		t.Errorf("after the job: %s", out)
	}
	if out := h.Run("", "cove", "connector", "show", "anthropic"); !strings.Contains(out, "nobody") {
		t.Errorf("after the job the connector is\n%s", out)
	}
}

// TestSecretSuffices: an agent needs only that its secret is set. Its connector is made
// for a job, and granted only while the job runs.
func TestSecretSuffices(t *testing.T) {
	h := e2e.NewHost(t)
	h.Serve(nil)
	repo := h.Repository("repo", map[string]string{"plan.md": told("env >env.txt; git add -A; git commit -q -m Environment")})
	show := func() cove.Connector {
		t.Helper()
		var all cove.ConnectorList
		if err := json.Unmarshal([]byte(h.Run("", "cove", "connector", "list", "--json")), &all); err != nil || len(all.Connectors) > 1 {
			t.Fatalf("%+v, %v", all, err)
		}
		return append(all.Connectors, cove.Connector{})[0]
	}
	push := func() {
		t.Helper()
		job, _ := h.Push(repo, append([]string{"plan.md", "--dirty", "ignore"}, standIns(h)...)...)
		if out, code := h.Try("", "cove", "job", "wait", job); code != 0 {
			t.Fatalf("job wait exited with %d: %s", code, out)
		}
	}
	push()
	if got := show(); got.Name != "" {
		t.Errorf("without the secret: got %+v", got)
	}
	if out, code := h.Try(repo, "cove", "run", "plan.md", "--dirty", "ignore", "--agent", "claude"); code != 1 || !strings.Contains(out, "hint: cove secret set anthropic") {
		t.Errorf("an agent that could ask nothing: exit code %d: %s", code, out)
	}
	set := h.Command("", "cove", "secret", "set", "anthropic")
	set.Stdin = strings.NewReader("sk-ant-some-key")
	if out, err := set.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	push()
	if got := show(); got.Name != "anthropic" || got.Upstream != "https://api.anthropic.com" || got.Secret != "anthropic" || len(got.Grants) > 0 {
		t.Errorf("with the secret: got %+v", got)
	}
}
