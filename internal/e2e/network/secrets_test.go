package network

import (
	"compress/gzip"
	"encoding/base64"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cove-dev/cove/internal/shim/gateway"
	"github.com/cove-dev/cove/internal/test/e2e"
)

// http serves an address of a namespace by HTTP.
func (i *island) http(ns int, addr string, handler http.HandlerFunc) {
	i.T.Helper()
	var l net.Listener
	err := gateway.InNetNS(ns, func() (err error) {
		l, err = net.Listen("tcp", addr)
		return err
	})
	if err != nil {
		i.T.Fatal(err)
	}
	server := &http.Server{Handler: handler, ReadHeaderTimeout: time.Minute}
	done := make(chan struct{})
	go func() { defer close(done); _ = server.Serve(l) }()
	i.T.Cleanup(func() { _ = server.Close(); <-done })
}

const vaultKey = "sk-vault/key+that=stays 0123456789"

// vault is an upstream that repeats the secret in every way that it can.
func vault(w http.ResponseWriter, r *http.Request) {
	key := r.Header.Get("X-Api-Key")
	flush := http.NewResponseController(w).Flush
	switch r.URL.Path {
	case "/check":
		_, _ = fmt.Fprint(w, "right: ", key == vaultKey)
	case "/reflect":
		w.Header().Set("X-Back", key)
		w.Header().Set("Trailer", "X-Last")
		_, _ = fmt.Fprintf(w, "%s %s %q", key, url.QueryEscape(key), key)
		w.Header().Set("X-Last", key)
	case "/error":
		http.Error(w, "the key "+key+" is not known here", http.StatusUnauthorized)
	case "/stream":
		w.Header().Set("Content-Type", "text/event-stream")
		for _, c := range "data: " + key + "\n\n" {
			_, _ = io.WriteString(w, string(c))
			_ = flush()
		}
	case "/gzip":
		w.Header().Set("Content-Encoding", "gzip")
		z := gzip.NewWriter(w)
		_, _ = io.WriteString(z, key)
		_ = z.Close()
	case "/away":
		http.Redirect(w, r, "http://apart.test/stolen", http.StatusTemporaryRedirect)
	case "/cookie":
		http.SetCookie(w, &http.Cookie{Name: "session", Value: "of-the-vault"})
	}
}

// TestSecretsStay: a secret goes to its connector's upstream and nowhere else, and
// does not come back (hostile statements 37 and 38).
func TestSecretsStay(t *testing.T) {
	i := newIsland(t)
	i.http(i.NS, "127.0.0.1:9000", vault)
	var mu sync.Mutex
	var stolen []string // all that anybody else was ever sent
	i.http(i.sea, islandOther+":8080", func(_ http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		body, _ := io.ReadAll(r.Body)
		stolen = append(stolen, fmt.Sprintf("%s %s %v %s", r.Method, r.URL, r.Header, body))
	})
	i.sprite("paint")
	i.policy("paint", allow("apart.test", "allowed.test")...)
	set := i.Command("", "cove", "secret", "set", "vault")
	set.Stdin = strings.NewReader(vaultKey)
	if err := i.Within(set.Run); err != nil {
		t.Fatal(err)
	}
	if out, code := i.Try("", "cove", "connector", "put", "clear", "--upstream", "http://allowed.test", "--header", "X-Api-Key: {secret:vault}"); code == 0 || !strings.Contains(out, "in the clear") {
		t.Errorf("a secret over plain HTTP: %s", out)
	}
	i.Run("", "cove", "connector", "put", "vault", "--upstream", "http://127.0.0.1:9000", "--header", "X-Api-Key: {secret}")
	i.Run("", "cove", "connector", "grant", "vault", "--sprite", "paint")
	i.Run("", "cove", "exec", "-s", "paint", "--detach", "--", "sh", "-c", "kept="+e2e.Planted+"; sleep 100000; echo $kept")

	ask := func(args ...string) string {
		t.Helper()
		var out string
		e2e.Await(t, "an answer of the resolver", func() bool { // curl waits for it some seconds
			out, _ = i.Try("", "cove", append([]string{"exec", "-s", "paint", "--", "curl", "-sS", "-i", "--raw", "-m", "600"}, args...)...)
			return !strings.Contains(out, "curl: (6)")
		})
		for _, form := range []string{vaultKey, url.QueryEscape(vaultKey), base64.StdEncoding.EncodeToString([]byte(vaultKey)), "of-the-vault"} {
			if strings.Contains(out, form) {
				t.Errorf("%s: the answer has the secret:\n%s", strings.Join(args, " "), out)
			}
		}
		return out
	}
	const base = "http://vault.connect.internal"
	for path, want := range map[string]string{
		"/check": "right: true", "/reflect": strings.Repeat("*", len(vaultKey)), "/error": "is not known here", "/stream": strings.Repeat("*", len(vaultKey)), "/gzip": "502 ", "/cookie": "200 ",
	} {
		if out := ask(base + path); !strings.Contains(out, want) {
			t.Errorf("%s: %s", path, out)
		}
	}
	// A redirect, a Host header or a proxy's URL may lead elsewhere, but without the
	// secret.
	ask("-L", base+"/away", "--connect-to", "apart.test:80:"+islandOther+":8080", "-H", "X-Api-Key: placeholder")
	ask("--connect-to", "apart.test:80:"+islandOther+":8080", "-H", "Host: vault.connect.internal", "http://apart.test/")
	for _, args := range [][]string{
		{"-H", "Host: apart.test", base + "/check"}, {"-x", base, "http://apart.test/check"}, {"-x", base, "--proxytunnel", "http://apart.test:8080/check"},
		{"--path-as-is", base + "/../check"}, {base + "@apart.test:8080/"},
	} {
		if out := ask(args...); strings.Contains(out, "right: true") {
			t.Errorf("%s: %s", strings.Join(args, " "), out)
		}
	}
	mu.Lock()
	for _, what := range stolen {
		if strings.Contains(what, vaultKey[:8]) {
			t.Errorf("it was sent elsewhere: %s", what)
		}
	}
	if len(stolen) == 0 {
		t.Error("nobody else was sent anything, so this shows nothing")
	}
	mu.Unlock()
	e2e.KeyNowhere(i.Host, vaultKey)
}

// TestControlHolds: programs in a sprite can't change what it may do, nor control other
// sprites. The sprite's URL does not lead to the server's API either (hostile statements
// 39 and 40).
func TestControlHolds(t *testing.T) {
	h := e2e.NewHost(t)
	h.Serve(nil)
	h.Run("", "cove", "create", "paint", "--network", "none", "--memory", "512M", "--idle", "0")
	h.Run("", "cove", "create", "other", "--idle", "0") // or its state changes by itself
	h.Run("", "cove", "exec", "-s", "other", "--", "true")
	state := func() string {
		t.Helper()
		e2e.Await(t, "the end of what keeps them awake", func() bool { // a command that has just ended may do so still
			return len(h.Info("paint").Cove.AwakeBy)+len(h.Info("other").Cove.AwakeBy) == 0
		})
		var all strings.Builder
		for _, args := range [][]string{
			{"policy", "show", "-s", "paint", "--json"}, {"policy", "show", "-s", "other", "--json"}, {"token", "list", "--json"}, {"secret", "list", "--json"},
			{"connector", "list", "--json"}, {"list", "--json"}, {"info", "paint"},
		} {
			out := h.Run("", "cove", args...)
			for line := range strings.Lines(out) {
				if !strings.Contains(line, `_at"`) && !strings.Contains(line, "last running") {
					all.WriteString(line)
				}
			}
		}
		return all.String()
	}
	h.Run("", "cove", "exec", "-s", "paint", "--", "true")
	before := state()
	script := `ask() {
	got=$(curl -s -m 10 -o /tmp/body -w '%{http_code}' -X $1 -H 'Content-Type: application/json' -d "$body" "${@:3}$2")
	case $got in 2*) echo "LET IN: $* $(head -c 200 /tmp/body)";; esac
	echo "$got"
}
body='{"name":"evil","rules":[{"domain":"*","action":"allow"}],"value":"0123456789","config":{"ram_mb":99999}}'
while read -r method path; do
	ask $method "$path" --unix-socket /.sprite/api.sock http://sprite
	ask $method "$path" http://127.0.0.1:7070
	ask $method "$path" http://$(hostname -i | cut -d' ' -f1):7070
done <<'CALLS'
POST /v1/sprites
GET /v1/sprites/other
PUT /v1/sprites/other
DELETE /v1/sprites/other
PUT /v1/sprites/paint
POST /v1/sprites/other/exec?cmd=id
POST /v1/sprites/paint/policy/network
POST /v1/policy/network
PUT /v1/git/config
POST /v1/tokens
PUT /v1/secrets/x
GET /v1/secrets
PUT /v1/connectors/x
POST /v1/connectors/x/grants
POST /v1/jobs
GET /v1/fs/read?path=/etc/shadow
POST /v1/exec?cmd=id
CALLS`
	out, _ := h.Try("", "cove", "exec", "-s", "paint", "--user", "root", "--", "bash", "-c", script)
	if strings.Contains(out, "LET IN") || strings.Count(out, "\n") != 3*17 {
		t.Errorf("from inside:\n%s", out)
	}
	if after := state(); after != before {
		t.Errorf("what is set has changed from\n%s\nto\n%s", before, after)
	}

	// The sprite's URL leads to the sprite, whatever the path and the headers say.
	h.Run("", "cove", "exec", "-s", "paint", "--detach", "--", "sh", "-c", "mkdir /tmp/web; cd /tmp/web; echo it is paint >index.html; mkdir v1; echo paint has sprites >v1/sprites; exec python3 -m http.server 8080")
	h.Run("", "cove", "url", "paint", "--public")
	api := e2e.JSONString(t, filepath.Join(h.Data, "server.json"), "url")
	_, port, _ := net.SplitHostPort(strings.TrimPrefix(api, "http://"))
	token, err := os.ReadFile(filepath.Join(h.Data, "token"))
	if err != nil {
		t.Fatal(err)
	}
	get := func(path string, header map[string]string) (int, string) {
		t.Helper()
		req, err := http.NewRequest("GET", api+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Host = "paint.localhost:" + port
		for k, v := range header {
			req.Header.Set(k, v)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		body, _ := io.ReadAll(resp.Body)
		return resp.StatusCode, string(body)
	}
	e2e.Await(t, "the sprite's server", func() bool { code, _ := get("/", nil); return code == 200 })
	for name, header := range map[string]map[string]string{
		"plainly": nil, "with the owner's token": {"Authorization": "Bearer " + strings.TrimSpace(string(token))},
		"forwarded": {"X-Forwarded-Host": "127.0.0.1:" + port, "X-Forwarded-For": "127.0.0.1", "Forwarded": "host=127.0.0.1", "X-Original-URL": "/v1/sprites", "X-Rewrite-URL": "/v1/tokens"},
	} {
		if code, body := get("/v1/sprites", header); code != 200 || body != "paint has sprites\n" {
			t.Errorf("%s: got %d %s", name, code, body)
		}
		for _, path := range []string{"/v1/tokens", "/v1/sprites/other", "/v1/secrets", "/v1/jobs"} {
			if code, body := get(path, header); code != 404 || strings.Contains(body, `"code"`) {
				t.Errorf("%s: %s: got %d %s", name, path, code, body)
			}
		}
	}
	// A token for one sprite does not work for another.
	one := strings.TrimSpace(h.Run("", "cove", "token", "create", "one", "-s", "paint", "-q"))
	for name, want := range map[string]int{"paint": 200, "other": 403} {
		req, err := http.NewRequest("GET", api+"/v1/sprites/"+name, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+one)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode != want && (name == "paint" || resp.StatusCode < 400) {
			t.Errorf("with a token for paint, %s answers %d", name, resp.StatusCode)
		}
	}
}
