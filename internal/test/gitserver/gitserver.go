// Package gitserver is a server of git repositories for tests: git's own http-backend, with
// basic authentication in front of it.
package gitserver

import (
	"crypto/subtle"
	"fmt"
	"net/http"
	"net/http/cgi"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// Server serves the bare repositories below Root, by their paths.
type Server struct {
	URL      string // without a slash at the end
	Root     string
	User     string // empty: anybody may read and write
	Password string

	// API answers requests that are not git's, with the same credentials; nil: not found.
	API http.Handler

	t        testing.TB
	git      string
	mu       sync.Mutex
	requests []string // METHOD PATH; guarded by mu
}

// Start starts a server of an empty folder, which ends with the test.
func Start(t testing.TB, user, password string) *Server {
	t.Helper()
	git, err := exec.LookPath("git")
	if err != nil {
		t.Fatal(err)
	}
	s := &Server{Root: t.TempDir(), User: user, Password: password, t: t, git: git}
	server := httptest.NewServer(s)
	t.Cleanup(server.Close)
	s.URL = server.URL
	return s
}

// ServeHTTP is an http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	s.requests = append(s.requests, r.Method+" "+r.URL.Path)
	s.mu.Unlock()
	user, password, _ := r.BasicAuth()
	if token := r.Header.Get("Authorization"); strings.HasPrefix(token, "Bearer ") || strings.HasPrefix(token, "token ") {
		_, password, _ = strings.Cut(token, " ")
		user = s.User
	}
	if token := r.Header.Get("Private-Token"); token != "" {
		user, password = s.User, token
	}
	if s.User != "" && (user != s.User || subtle.ConstantTimeCompare([]byte(password), []byte(s.Password)) == 0) {
		w.Header().Set("WWW-Authenticate", `Basic realm="git"`)
		http.Error(w, "who are you?", http.StatusUnauthorized)
		return
	}
	if s.API != nil && !strings.Contains(r.URL.Path, "/git-") && !strings.HasSuffix(r.URL.Path, "/info/refs") {
		s.API.ServeHTTP(w, r)
		return
	}
	(&cgi.Handler{
		Path: s.git, Args: []string{"-c", "http.receivepack=true", "-c", "safe.directory=*", "http-backend"},
		Env: []string{"GIT_PROJECT_ROOT=" + s.Root, "GIT_HTTP_EXPORT_ALL=1", "GIT_CONFIG_GLOBAL=" + os.DevNull, "GIT_CONFIG_SYSTEM=" + os.DevNull},
	}).ServeHTTP(w, r)
}

// Requests returns the requests so far, as METHOD PATH.
func (s *Server) Requests() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string(nil), s.requests...)
}

// Repository makes a bare repository at path, which ends in .git, of the files in one commit
// on main. It returns its URL.
func (s *Server) Repository(path string, files map[string]string) string {
	s.t.Helper()
	bare := filepath.Join(s.Root, filepath.FromSlash(path))
	work := s.t.TempDir()
	if err := os.MkdirAll(bare, 0o755); err != nil {
		s.t.Fatal(err)
	}
	s.Git(bare, "init", "-q", "--bare", "--initial-branch=main")
	s.Git(work, "init", "-q", "--initial-branch=main")
	for name, text := range files {
		name = filepath.Join(work, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			s.t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			s.t.Fatal(err)
		}
	}
	s.Git(work, "add", "-A")
	s.Git(work, "commit", "-q", "-m", "first")
	s.Git(work, "push", "-q", bare, "main")
	return s.URL + "/" + path
}

// In runs git in the bare repository at path, and returns its output.
func (s *Server) In(path string, args ...string) string {
	s.t.Helper()
	return s.Git(filepath.Join(s.Root, filepath.FromSlash(path)), args...)
}

// Git runs git in a folder, as Ada and without the settings of any user.
func (s *Server) Git(dir string, args ...string) string {
	s.t.Helper()
	cmd := exec.Command(s.git, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL="+os.DevNull, "GIT_CONFIG_SYSTEM="+os.DevNull, "GIT_TERMINAL_PROMPT=0",
		"GIT_AUTHOR_NAME=Ada", "GIT_AUTHOR_EMAIL=ada@example.com", "GIT_COMMITTER_NAME=Ada", "GIT_COMMITTER_EMAIL=ada@example.com")
	out, err := cmd.CombinedOutput()
	if err != nil {
		s.t.Fatal(fmt.Errorf("git %s: %w: %s", strings.Join(args, " "), err, out))
	}
	return strings.TrimSpace(string(out))
}
