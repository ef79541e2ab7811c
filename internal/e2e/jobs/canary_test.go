package jobs

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/test/e2e"
)

// The values that TestCanaries plants.
const (
	inStore     e2e.Canary = "canary-store/0123456789+abc"
	inConnector e2e.Canary = "canary-connector/1123456789+abc"
	inBackend   e2e.Canary = "canary-backend-2123456789-abc"
	inLogin     e2e.Canary = "canary-login/6123456789+abc"
	inRefresh   e2e.Canary = "canary-refresh/7123456789+abc"
	byReference e2e.Canary = "canary-reference/3123456789+abc"
	asItIs      e2e.Canary = "canary-variable/4123456789+abc"
	printed     e2e.Canary = "canary-printed/5123456789+abc"
)

// TestCanaries: after jobs with failures, secrets are nowhere that they do not belong. The
// sprite's own disk and memory have a job's variables: they are the agent's.
func TestCanaries(t *testing.T) {
	if os.Getenv(e2e.FarVariable) != "" {
		t.Skip("secrets are a cove's own")
	}
	h := e2e.NewHost(t)
	upstream := echo(t)
	h.Serve(nil, "--verbose")
	var said bytes.Buffer // all that was answered
	try := func(dir string, args ...string) (string, int) {
		t.Helper()
		out, code := h.Try(dir, "cove", args...)
		fmt.Fprintf(&said, "%q: %s\n", args, out)
		return out, code
	}
	call := func(method, path, body string) (int, string) {
		t.Helper()
		c := h.Client()
		req, err := http.NewRequestWithContext(t.Context(), method, c.URL+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+c.Token)
		req.Header.Set("Content-Type", "application/json")
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&said, "%s %s: %d %v %s\n", method, path, resp.StatusCode, resp.Header, text)
		return resp.StatusCode, string(text)
	}
	for name, value := range map[string]e2e.Canary{"unused": inStore, "api": inConnector, "jobkey": byReference} {
		if err := h.Client().SetSecret(t.Context(), name, string(value)); err != nil {
			t.Fatal(err)
		}
	}
	if err := h.Client().PutBackend(t.Context(), "far", cove.BackendRequest{URL: "http://127.0.0.1:1", Token: string(inBackend)}); err != nil {
		t.Fatal(err)
	}
	h.Run("", "cove", "connector", "put", "api", "--upstream", upstream.URL, "--header", "X-Api-Key: {secret}")
	h.Run("", "cove", "connector", "grant", "api", "--label", "cove-job")
	if err := os.MkdirAll(filepath.Join(h.Home, ".codex"), 0o700); err != nil {
		t.Fatal(err)
	}
	login := `{"tokens":{"access_token":"` + string(inLogin) + `","refresh_token":"` + string(inRefresh) + `","account_id":"the-account"}}`
	if err := os.WriteFile(filepath.Join(h.Home, ".codex", "auth.json"), []byte(login), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, code := try("", "secret", "set", "chatgpt", "--from-login"); code != 0 {
		t.Fatalf("the login: %s", out)
	}
	h.Run("", "cove", "connector", "put", "chatgpt", "--upstream", upstream.URL, "--paths", "/check", "--methods", "GET")
	h.Run("", "cove", "connector", "grant", "chatgpt", "--label", "cove-job")
	own := filepath.Join(h.Home, ".config", "cove", "sandboxes")
	if err := os.MkdirAll(own, 0o700); err != nil {
		t.Fatal(err)
	}
	variables := "FROM_FILE='pre {secret:jobkey}'\nPLAIN=" + string(asItIs) + "\n"
	if err := os.WriteFile(filepath.Join(own, "job.env"), []byte(variables), 0o600); err != nil {
		t.Fatal(err)
	}

	// The agent proves that it has the values, without printing them.
	const script = "# Plan\n```sh\nfor v in \"$KEY\" \"$FROM_FILE\" \"$PLAIN\"; do printf %s \"$v\" | sha256sum; done\n" +
		"curl -s -m 600 http://api.connect.internal/check\ncurl -s -m 600 http://chatgpt.connect.internal/check\nenv >/tmp/env; false || exit 3\n```\n"
	repo := h.Repository("repo", map[string]string{"plan.md": script, "shows.md": "```sh\necho \"it is $KEY, and $PLAIN\"; echo \"$SAME\" >~/kept\n```\n"})
	push := []string{"push", "--agent", "shell", "--env", "KEY={secret:jobkey}"}
	out, code := try(repo, append(push, "plan.md", "--json")...)
	if code != 0 {
		t.Fatalf("the push: %s", out)
	}
	job := e2e.JSONField(t, out, "job")
	try("", "job", "wait", job)
	logs, _ := try("", "job", "logs", job)
	for _, v := range []string{string(byReference), "pre " + string(byReference), string(asItIs)} {
		if want := fmt.Sprintf("%x", sha256.Sum256([]byte(v))); !strings.Contains(logs, want) {
			t.Errorf("the agent was not given %q:\n%s", v, logs)
		}
	}
	if got := h.Job(job); got.State != cove.JobFailed || fmt.Sprint(got.Secrets) != "[jobkey]" {
		t.Errorf("the job is %s, with the secrets %v; want failed, with jobkey", got.State, got.Secrets)
	}

	// Failures of each kind.
	for want, args := range map[string][]string{
		"cove secret set nobody":        {"push", "--agent", "shell", "--env", "KEY={secret:nobody}", "plan.md"},
		"write {secret:NAME}":           {"push", "--agent", "shell", "--env", "KEY={secret}", "plan.md"},
		"which only a job can be given": {"create", "other", "--env", "KEY={secret:jobkey}"},
		"is needed by: connector api":   {"secret", "rm", "api"},
		"--env KEY refers to a secret":  {"exec", "-s", "job-" + job, "--env", "KEY={secret:jobkey}", "--", "true"},
		"--env K refers to a secret":    {"service", "put", "-s", "job-" + job, "--env", "K={secret:jobkey}", "web", "--", "true"},
	} {
		if out, code := try(repo, args...); code == 0 || !strings.Contains(out, want) {
			t.Errorf("%q: got %d %s", args, code, out)
		}
	}
	h.Write("repo/.cove/sandbox.env", "TAKEN={secret:jobkey}\n")
	if out, code := try(repo, append(push, "plan.md")...); code == 0 || !strings.Contains(out, "sandbox.env:1: TAKEN: a repository can't refer to a secret") {
		t.Errorf("a repository that takes a secret: %d, %s", code, out)
	}
	if err := os.RemoveAll(filepath.Join(filepath.Dir(h.Home), "repo", ".cove")); err != nil {
		t.Fatal(err)
	}
	if list := h.Run("", "cove", "job", "list", "--json"); strings.Count(list, `"id"`) != 1 {
		t.Errorf("a refused job has a row: %s", list)
	}
	base := strings.TrimSpace(h.Run(repo, "git", "rev-parse", "HEAD"))
	asked := func(env ...string) string {
		body, err := json.Marshal(cove.JobRequest{
			Plan: "```sh\ntrue\n```\n", Env: env, JobSettings: cove.JobSettings{Agent: "shell"},
			JobSource: cove.JobSource{PlanName: "p", Repository: "r", Branch: "main", Base: base}, Author: cove.Person{Name: "A", Email: "a@example.org"},
		})
		if err != nil {
			t.Fatal(err)
		}
		return string(body)
	}
	for _, body := range []string{
		asked(string(asItIs) + "=x"), asked("KEY="+string(asItIs), "KEY="+string(asItIs)), asked("KEY=" + string(asItIs) + "\x00"), asked("KEY=" + string(asItIs) + "{secret:nobody}"),
		`{"env":["KEY=` + string(asItIs) + `"}`,
	} {
		if code, text := call("POST", "/v1/jobs", body); code != 400 {
			t.Errorf("%s: got %d %s", body, code, text)
		}
	}
	again, _ := try("", "job", "retry", job, "--json")
	try("", "job", "wait", e2e.JSONField(t, again, "id"))
	for _, path := range []string{"/v1/jobs", "/v1/jobs/" + job, "/v1/jobs/" + job + "/events", "/v1/secrets", "/v1/connectors", "/v1/backends", "/v1/sprites", "/v1/sprites/job-" + job, "/v1/backends/far/v1/sprites"} {
		call("GET", path, "")
	}
	call("POST", "/v1/jobs/preview", asked("KEY={secret:jobkey}", "PLAIN="+string(asItIs)))
	try(repo, append(push, "plan.md", "--dry-run")...)
	try("", "env", "show", "--json")
	try("", "connector", "log", "-s", "job-"+job)

	look := func(when string) {
		t.Helper()
		for what, c := range map[string]e2e.Canary{"a secret": inStore, "a connector's secret": inConnector, "a backend's token": inBackend, "a login's token": inLogin, "its refresh token": inRefresh, "a variable by reference": byReference, "a variable": asItIs} {
			var but []string
			if c == byReference || c == asItIs {
				but = []string{"layers", "images", "memories"} // the sprites' own disks and memories have the value
			}
			found, err := c.InFiles(h.Data, but...)
			processes, looked := c.InProcesses()
			if err != nil || looked == 0 {
				t.Errorf("%v; %d processes", err, looked)
			}
			if found = append(found, processes...); found != nil {
				t.Errorf("%s: %s is in %s", when, what, strings.Join(found, "\n  "))
			}
			for line := range bytes.Lines(said.Bytes()) {
				if c.In(line) != nil {
					t.Errorf("%s: %s was answered: %s", when, what, line)
				}
			}
		}
	}
	look("while the server runs")
	h.EndServer(syscall.SIGKILL)
	look("after the server was killed")
	h.Serve(nil, "--verbose")
	look("with the next server")
	h.Run("", "cove", "secret", "rm", "--force", "api")

	// A value that is printed on purpose is found: if an agent prints a variable, its log has
	// the value, unless it is a secret.
	shown, _ := h.Push(repo, "shows.md", "--agent", "shell", "--env", "KEY={secret:jobkey}", "--env", "PLAIN="+string(printed), "--env", "SAME="+string(byReference))
	h.Run("", "cove", "job", "wait", shown)
	text, err := json.Marshal(h.Events(shown))
	if err != nil || printed.In(text) == nil || byReference.In(text) != nil {
		t.Errorf("the printed value is not in the events, or the secret is: %s, %v", text, err)
	}
	found, err := printed.InFiles(h.Data, "layers", "images", "memories")
	if err != nil || !strings.Contains(strings.Join(found, " "), filepath.Join(h.Data, "cove.db")) {
		t.Errorf("the printed value is not found in the database: %q, %v", found, err)
	}
	if in, err := byReference.InFiles(filepath.Join(h.Data, "layers")); err != nil || in == nil {
		t.Errorf("no sprite's disk has its job's variable, so this shows nothing: %v", err)
	}
}
