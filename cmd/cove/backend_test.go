package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/sprites"
)

// farVariable has the hosts of tests keep their sprites at a backend.
const farVariable = "COVE_TEST_FAR"

// goFar gives a host another one's server as its backend, which it reaches by the
// public protocol alone.
func (h *host) goFar() {
	h.t.Helper()
	dir := filepath.Join(filepath.Dir(h.home), "far")
	h.far = &host{t: h.t, bin: h.bin, home: filepath.Join(dir, "home"), data: filepath.Join(dir, "data"), ns: h.ns}
	for _, d := range []string{h.far.home, h.far.data} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			h.t.Fatal(err)
		}
	}
	h.t.Cleanup(func() {
		if err := endServer(h.bin, h.far.data, h.far.home); err != nil {
			h.t.Errorf("end the far server: %v", err)
		}
	})
	h.far.serve(nil)
	c := h.far.client()
	h.far.addr = strings.TrimPrefix(c.URL, "http://")
	target, err := url.Parse(c.URL)
	if err != nil {
		h.t.Fatal(err)
	}
	filter := httptest.NewServer(protocolOnly(h.t, target))
	h.t.Cleanup(filter.Close)
	h.env = append(h.env, "COVE_BACKEND=far", "SPRITES_TOKEN="+c.Token)
	h.write("home/.config/cove/config.toml", "[backends.far]\nurl = \""+filter.URL+"\"\n")
}

// place is the host whose data folder has the sandboxes.
func (h *host) place() *host {
	if h.far != nil {
		return h.far
	}
	return h
}

// public are the calls of the protocol that any server of it may have.
var public = []*regexp.Regexp{
	regexp.MustCompile(`^(GET|POST) /v1/sprites$`),
	regexp.MustCompile(`^(GET|PUT|DELETE) /v1/sprites/[^/]+$`),
	regexp.MustCompile(`^(GET|POST) /v1/sprites/[^/]+/(exec|policy/network|checkpoints|services)$`),
	regexp.MustCompile(`^GET /v1/sprites/[^/]+/(exec/[^/]+|fs/read|fs/list|proxy|services/.*|checkpoints/[^/]+)$`),
	regexp.MustCompile(`^POST /v1/sprites/[^/]+/(exec/[^/]+/kill|fs/rename|fs/copy|fs/chmod|checkpoint|checkpoints/[^/]+/restore|services/.*)$`),
	regexp.MustCompile(`^PUT /v1/sprites/[^/]+/(fs/write|services/[^/]+)$`),
	regexp.MustCompile(`^DELETE /v1/sprites/[^/]+/(fs/delete|services/[^/]+|checkpoints/[^/]+)$`),
}

// protocolOnly is a server that has of a cove's what the public protocol has: none
// of its own calls, none of its own fields, and no cove-guest to be found.
func protocolOnly(t testing.TB, target *url.URL) http.Handler {
	proxy := &httputil.ReverseProxy{
		FlushInterval: -1,
		Rewrite: func(p *httputil.ProxyRequest) {
			p.SetURL(target)
			p.Out.Host = target.Host
			p.Out.Header.Del("Accept-Encoding")
		},
		ModifyResponse: func(resp *http.Response) error {
			resp.Header.Del("Sprite-Version")
			if !strings.HasPrefix(resp.Header.Get("Content-Type"), "application/json") || strings.Count(resp.Request.URL.Path, "/") > 3 {
				return nil
			}
			body, err := io.ReadAll(resp.Body)
			if err != nil {
				return err
			}
			body = withoutCove(body)
			resp.Body, resp.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
			resp.Header.Set("Content-Length", fmt.Sprint(len(body)))
			return nil
		},
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		call := r.Method + " " + r.URL.Path
		known := slices.ContainsFunc(public, func(re *regexp.Regexp) bool { return re.MatchString(call) })
		if !known || strings.HasPrefix(r.URL.Query().Get("path"), "/.sprite/bin/") {
			http.Error(w, "404 page not found", http.StatusNotFound)
			return
		}
		if err := onlyPublic(r); err != nil {
			t.Errorf("%s: %v", call, err)
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		proxy.ServeHTTP(w, r)
	})
}

// onlyPublic refuses a body with fields that are cove's own.
func onlyPublic(r *http.Request) error {
	var doc any
	switch {
	case r.Method == http.MethodPost && r.URL.Path == "/v1/sprites":
		doc = new(struct {
			Name        string          `json:"name"`
			URLSettings json.RawMessage `json:"url_settings"`
			Labels      []string        `json:"labels"`
			Config      json.RawMessage `json:"config"`
			Environment json.RawMessage `json:"environment"`
			WaitFor     bool            `json:"wait_for_capacity"`
		})
	case r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, "/policy/network"):
		doc = new(struct {
			Rules []struct {
				Domain  string `json:"domain"`
				Action  string `json:"action"`
				Include string `json:"include"`
			} `json:"rules"`
		})
	default:
		return nil
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return err
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	dec := json.NewDecoder(bytes.NewReader(body))
	dec.DisallowUnknownFields()
	return dec.Decode(doc)
}

// withoutCove takes cove's own part out of what describes sprites.
func withoutCove(body []byte) []byte {
	var doc map[string]any
	if json.Unmarshal(body, &doc) != nil {
		return body
	}
	delete(doc, "cove")
	if list, ok := doc["sprites"].([]any); ok {
		for _, one := range list {
			if info, ok := one.(map[string]any); ok {
				delete(info, "cove")
			}
		}
	}
	out, err := json.Marshal(doc)
	if err != nil {
		return body
	}
	return out
}

// newFarHost is a host whose sprites are at a backend.
func newFarHost(t *testing.T) *host {
	t.Helper()
	h := newHost(t)
	if h.far == nil {
		h.goFar()
	}
	return h
}

const twoSteps = "## One\n```sh\necho one >one; git add one; git commit -q -m one\n```\n" +
	"## Two\n```sh\nwhile ! [ -e /tmp/go ]; do sleep 0.1; done\n```\n"

// At a backend that knows the protocol alone this machine's server looks after the
// job, also when it and the backend were killed in between; the supervisor is brought
// there, and with the job its sprite goes.
func TestBackend(t *testing.T) {
	h := newFarHost(t)
	repo := h.repository("repo", map[string]string{"plan.md": twoSteps, "note.txt": "1\n"})
	job, sprite := h.push(repo, "--agent", "shell", "plan.md")
	h.untilStep(job)
	h.farTools(sprite)
	got := h.job(job)
	if got.Backend != "far" || got.SpriteID == "" || got.NetworkPolicy == nil {
		t.Fatalf("got %+v", got)
	}
	for _, rule := range got.NetworkPolicy.Rules {
		if rule.Domain == "" || len(rule.Ports) > 0 {
			t.Errorf("among rules of names alone is %+v", rule)
		}
	}
	if out, code := h.try("", "cove", "backend", "rm", "far"); code == 0 || !strings.Contains(out, "job list") {
		t.Errorf("a backend in use was forgotten: %d, %s", code, out)
	}
	h.endServer(syscall.SIGKILL)
	h.far.endServer(syscall.SIGKILL)
	h.far.serve(nil, "--addr", h.far.addr)
	h.run("", "cove", "exec", "-s", sprite, "touch", "/tmp/go")
	h.run(repo, "cove", "pull", job, "--wait")
	if got := strings.TrimSpace(h.run(repo, "git", "log", "-1", "--format=%s")); got != "one" {
		t.Errorf("the branch is at %q", got)
	}
	h.run("", "cove", "job", "rm", job)
	if _, err := h.far.client().Get(t.Context(), sprite); !errors.Is(err, sprites.ErrNotFound) {
		t.Errorf("sprite %s is left there: %v", sprite, err)
	}
	h.sealed(h.far.client().Token)
	h.run("", "cove", "backend", "rm", "far")
}

// sealed looks for a backend's token in the files of the data folder.
func (h *host) sealed(token string) {
	h.t.Helper()
	err := filepath.WalkDir(h.data, func(name string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return nil //nolint:nilerr // what is removed meanwhile has no token
		}
		if text, _ := os.ReadFile(name); bytes.Contains(text, []byte(token)) {
			h.t.Errorf("%s has the backend's token", name)
		}
		return nil
	})
	if err != nil {
		h.t.Fatal(err)
	}
}

// Jobs at a backend end as others do: stopped, lost with their sprite, and refused
// where the agent would have no key.
func TestBackendEnds(t *testing.T) {
	h := newFarHost(t)
	repo := h.repository("repo", map[string]string{"plan.md": twoSteps})
	out, code := h.try(repo, "cove", "push", "--agent", "claude", "plan.md")
	if code == 0 || !strings.Contains(out, "--env ANTHROPIC_API_KEY=") {
		t.Errorf("without a key: %d, %s", code, out)
	}
	stopped, _ := h.push(repo, "--agent", "shell", "plan.md")
	h.untilStep(stopped)
	h.run("", "cove", "job", "stop", stopped)
	if got := h.job(stopped); got.State != cove.JobCancelled || got.Commits != 1 {
		t.Errorf("stopped: %+v", got)
	}
	lost, sprite := h.push(repo, "--agent", "shell", "plan.md")
	h.untilStep(lost)
	h.run("", "cove", "rm", sprite)
	if out, code := h.try("", "cove", "job", "wait", lost); code == 0 || !strings.Contains(out, "its sprite was deleted") {
		t.Errorf("lost: %d, %s", code, out)
	}
	h.env = append(h.env, "SPRITES_TOKEN=wrong")
	if out, code := h.try(repo, "cove", "push", "--agent", "shell", "plan.md"); code == 0 || !strings.Contains(out, "token") {
		t.Errorf("with a wrong token: %d, %s", code, out)
	}
	h.env = append(h.env, "SPRITES_TOKEN=")
	if out, code := h.try(repo, "cove", "list"); code == 0 || !strings.Contains(out, "set SPRITES_TOKEN") {
		t.Errorf("without a token: %d, %s", code, out)
	}
	// What the service's own client keeps.
	settings, err := os.ReadFile(filepath.Join(h.home, ".config/cove/config.toml"))
	if err != nil {
		t.Fatal(err)
	}
	at := strings.Split(string(settings), `"`)[1]
	h.write("home/.sprites/sprites.json", fmt.Sprintf(`{"version":"1","current_selection":{"url":%q,"org":"acme"},"urls":{%q:{"url":%q,"orgs":{"acme":{"name":"acme","api_token":%q}}}}}`,
		at, at, at, h.far.client().Token))
	h.run("", "cove", "list")
}

// The suites of jobs, git and trees pass at a backend: by make soak all of them, else
// a sample.
func TestBackendSuites(t *testing.T) {
	if os.Getenv(farVariable) != "" {
		t.Skip("it is what runs this")
	}
	requireSandbox(t)
	t.Parallel()
	run := "^(TestGitG1|TestJobJ7)$"
	if soak() {
		run = "^(TestGit|TestJob|TestSync)"
	}
	cmd := exec.Command(os.Args[0], "-test.run", run, "-test.parallel", "2", "-test.timeout", "30m", "-test.v")
	cmd.Env = append(os.Environ(), farVariable+"=1", "COVE_SOAK=")
	out, err := cmd.CombinedOutput()
	passed := strings.Count(string(out), "--- PASS: Test")
	if err != nil || passed == 0 || strings.Contains(string(out), "--- FAIL") {
		t.Fatalf("%v\n%s", err, out)
	}
	t.Logf("%d tests passed", passed)
	for line := range strings.Lines(string(out)) {
		if strings.Contains(line, "--- SKIP") {
			t.Log(line)
		}
	}
}
