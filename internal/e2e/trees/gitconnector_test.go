package trees

import (
	"bytes"
	"encoding/pem"
	"io"
	"net/http"
	"net/http/cgi"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/cove-dev/cove/internal/test/e2e"
)

// forge is a git server over HTTPS that refuses each request without the token.
type forge struct {
	*httptest.Server
	root    string
	strange atomic.Int32 // requests without it
}

const forgeToken = "ghp_a-token-that-no-sandbox-has"

func newForge(t *testing.T, h *e2e.Host) *forge {
	t.Helper()
	f := &forge{root: t.TempDir()}
	backend := &cgi.Handler{
		Path: filepath.Join(strings.TrimSpace(h.Run("", "git", "--exec-path")), "git-http-backend"),
		Env:  []string{"GIT_PROJECT_ROOT=" + f.root, "GIT_HTTP_EXPORT_ALL=1"},
	}
	f.Server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if user, password, _ := r.BasicAuth(); user != "x-access-token" || password != forgeToken {
			f.strange.Add(1)
			w.Header().Set("WWW-Authenticate", `Basic realm="forge"`)
			http.Error(w, "who are you?", http.StatusUnauthorized)
			return
		}
		if r.TransferEncoding != nil { // CGI has no variable for it
			body, err := io.ReadAll(r.Body)
			if err != nil {
				return
			}
			r.TransferEncoding, r.ContentLength, r.Body = nil, int64(len(body)), io.NopCloser(bytes.NewReader(body))
		}
		backend.ServeHTTP(w, r)
	}))
	t.Cleanup(f.Close)
	repo := filepath.Join(f.root, "ada", "paint.git")
	source := h.Repository("source", map[string]string{"README": "paint\n"})
	h.Run(source, "git", "clone", "-q", "--bare", ".", repo)
	h.Run(source, "git", "-C", repo, "config", "http.receivepack", "true")
	return f
}

// TestGitConnector: git in a sprite clones from a private repository over HTTPS, and
// pushes to it, by its usual URLs. The token is added outside the sprite.
func TestGitConnector(t *testing.T) {
	if os.Getenv(e2e.FarVariable) != "" {
		t.Skip("connectors are a cove's own")
	}
	h := e2e.NewHost(t)
	f := newForge(t, h)
	ca := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: f.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	h.Serve([]string{"SSL_CERT_FILE=" + ca})

	// This stand-in for gh has the login of one host.
	h.Write("gh/gh", "#!/bin/sh\n[ \"$*\" = 'auth token --hostname 127.0.0.1' ] && echo "+forgeToken+"\n")
	gh := filepath.Join(filepath.Dir(h.Home), "gh")
	if err := os.Chmod(filepath.Join(gh, "gh"), 0o755); err != nil {
		t.Fatal(err)
	}
	put := h.Command("", "cove", "connector", "put", "github", "--upstream", f.URL, "--from-gh")
	put.Env = append(put.Env, "PATH="+gh+":"+os.Getenv("PATH"))
	if out, err := put.CombinedOutput(); err != nil || strings.Contains(string(out), forgeToken) {
		t.Fatalf("%v: %s", err, out)
	}
	h.Run("", "git", "config", "--global", "user.name", "Ada Lovelace")
	h.Run("", "git", "config", "--global", "user.email", "ada@example.org")
	h.Run("", "git", "config", "--global", "credential.helper", "store")

	// This sprite is awake before the grant, and reaches nothing else.
	h.Run("", "cove", "create", "paint", "--network", "none", "--git-identity")
	clone := func(sprite, url, dir string) (string, int) {
		return h.Try("", "cove", "exec", "-s", sprite, "--env", "GIT_TERMINAL_PROMPT=0", "--env", "GIT_SSH_COMMAND=false", "--", "git", "clone", "-q", url, dir)
	}
	if out, code := clone("paint", f.URL+"/ada/paint.git", "refused"); code == 0 {
		t.Errorf("granted to nobody: %s", out)
	}
	h.Run("", "cove", "connector", "grant", "github", "--sprite", "paint")
	authority := strings.TrimPrefix(f.URL, "https://")
	for i, url := range []string{f.URL + "/ada/paint.git", f.URL + "/ada/paint", "git@127.0.0.1:ada/paint.git", "ssh://git@127.0.0.1/ada/paint.git"} {
		if out, code := clone("paint", url, "clone"+string(rune('0'+i))); code != 0 {
			t.Errorf("clone %s: %s", strings.ReplaceAll(url, authority, "FORGE"), out)
		}
	}
	h.Run("", "cove", "exec", "-s", "paint", "--", "sh", "-ec", `cd clone0; head -c 3000000 /dev/urandom >big; git add big; git commit -qm 'From inside'; GIT_TRACE_CURL=/tmp/trace git push -q origin HEAD`)
	if out := h.Run("", "git", "-C", filepath.Join(f.root, "ada", "paint.git"), "log", "-1", "--format=%an <%ae> %s"); out != "Ada Lovelace <ada@example.org> From inside\n" {
		t.Errorf("the forge has %s", out)
	}
	if out := h.Run("", "cove", "connector", "log", "github", "-s", "paint"); !strings.Contains(out, "POST /ada/paint.git/git-receive-pack  200") {
		t.Errorf("the log is\n%s", out)
	}
	if n := f.strange.Load(); n != 0 {
		t.Errorf("%d requests came without the token", n)
	}

	// The token is in no file of the sandbox, no environment, and no trace of git's.
	if out, _ := h.Try("", "cove", "exec", "-s", "paint", "--user", "root", "--", "sh", "-c", "grep -rl "+forgeToken[:16]+" /home /root /tmp /etc /run /.sprite /proc/[0-9]*/environ 2>/dev/null"); strings.TrimSpace(out) != "" {
		t.Errorf("the token is in %s", out)
	}
	if out := h.Run("", "cove", "exec", "-s", "paint", "--", "git", "config", "--list"); strings.Contains(out, "credential") {
		t.Errorf("git in the sprite has %s", out)
	}

	// A sprite with an earlier grant has the connector from its boot. A revoked connector
	// is gone.
	h.Run("", "cove", "create", "other", "--network", "none")
	h.Run("", "cove", "connector", "grant", "github", "--sprite", "other")
	if out, code := clone("other", f.URL+"/ada/paint.git", "clone"); code != 0 {
		t.Errorf("granted before its boot: %s", out)
	}
	h.Run("", "cove", "connector", "revoke", "github", "--sprite", "other")
	if out, code := clone("other", f.URL+"/ada/paint.git", "again"); code == 0 {
		t.Errorf("revoked: %s", out)
	}
	if out := h.Run("", "cove", "exec", "-s", "other", "--", "sh", "-c", "git config --list | grep -i insteadof || true"); out != "" {
		t.Errorf("revoked, git still has %s", out)
	}
}
