package gitwork_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/cove-dev/cove/internal/cli/gitwork"
)

const job = "a3f7b2"

// env is an environment that keeps git from this machine's settings, and from maintenance, which
// newer versions do beside the test.
func env(home string) []string {
	return []string{"PATH=" + os.Getenv("PATH"), "HOME=" + home, "LC_ALL=C", "GIT_CONFIG_NOSYSTEM=1",
		"GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=maintenance.auto", "GIT_CONFIG_VALUE_0=false",
		"GIT_AUTHOR_NAME=T", "GIT_AUTHOR_EMAIL=t@example.com", "GIT_COMMITTER_NAME=T", "GIT_COMMITTER_EMAIL=t@example.com"}
}

// home gives the test, and git in it, a home folder with this .gitconfig.
func home(t *testing.T, config string) string {
	t.Helper()
	dir := t.TempDir()
	write(t, filepath.Join(dir, ".gitconfig"), config)
	t.Setenv("HOME", dir)
	t.Setenv("XDG_CONFIG_HOME", "")
	t.Setenv("GIT_CONFIG_NOSYSTEM", "1")
	return dir
}

// repo is a real repository of a test.
type repo struct {
	t    testing.TB
	dir  string
	home string
}

// git runs plain git and returns its output, trimmed.
func (r repo) git(args ...string) string {
	r.t.Helper()
	return r.pipe("", args...)
}

func (r repo) pipe(stdin string, args ...string) string {
	r.t.Helper()
	cmd := exec.Command("git", args...)
	cmd.Dir, cmd.Env, cmd.Stdin = r.dir, env(r.home), strings.NewReader(stdin)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		r.t.Fatalf("git %v: %v\n%s", args, err, stderr.String())
	}
	return strings.TrimSpace(string(out))
}

func (r repo) write(name, content string) {
	r.t.Helper()
	write(r.t, filepath.Join(r.dir, name), content)
}

func (r repo) link(name, target string) {
	r.t.Helper()
	name = filepath.Join(r.dir, name)
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		r.t.Fatal(err)
	}
	if err := os.Symlink(target, name); err != nil {
		r.t.Fatal(err)
	}
}

func (r repo) read(name string) string {
	r.t.Helper()
	data, err := os.ReadFile(filepath.Join(r.dir, name))
	if err != nil {
		r.t.Fatal(err)
	}
	return string(data)
}

// commit commits everything and returns the commit.
func (r repo) commit(message string) string {
	r.t.Helper()
	r.git("add", "-A")
	r.git("commit", "-q", "--allow-empty", "-m", message)
	return r.git("rev-parse", "HEAD")
}

func write(t testing.TB, path, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

// newRepo makes a repository with one commit on main.
func newRepo(t testing.TB) repo {
	t.Helper()
	r := repo{t, t.TempDir(), t.TempDir()}
	r.git("init", "-q", "-b", "main")
	r.write("README", "hello\n")
	r.write("src/a.txt", "one\n")
	r.commit("first")
	return r
}

// agent is the clone that a job works in.
func (r repo) agent() repo {
	r.t.Helper()
	dir := filepath.Join(r.t.TempDir(), "clone")
	r.git("clone", "-q", "--no-local", r.dir, dir)
	return repo{r.t, dir, r.home}
}

// bundle is what a job leaves: refs/cove/JOB/head from base on.
func (r repo) bundle(base string) (path string, want gitwork.Expect) {
	r.t.Helper()
	head := r.git("rev-parse", "HEAD")
	ref := gitwork.JobRef(job, "head")
	r.git("update-ref", ref, head)
	path = filepath.Join(r.t.TempDir(), "out.bundle")
	r.git("bundle", "create", "-q", path, ref, "^"+base)
	return path, expect(r.t, path, base, head)
}

func expect(t testing.TB, path, base, head string) gitwork.Expect {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(data)
	return gitwork.Expect{Job: job, Base: base, Head: head, SHA256: hex.EncodeToString(sum[:]), Size: int64(len(data))}
}

// open opens the repository with the package under test.
func (r repo) open() *gitwork.Repo {
	r.t.Helper()
	g, err := gitwork.Open(r.t.Context(), r.dir)
	if err != nil {
		r.t.Fatal(err)
	}
	return g
}

// imports imports a bundle under the lock.
func (r repo) imports(path string, want gitwork.Expect) error {
	r.t.Helper()
	g := r.open()
	lock, err := g.Lock(r.t.Context())
	if err != nil {
		r.t.Fatal(err)
	}
	defer lock.Unlock()
	file, err := os.Open(path)
	if err != nil {
		r.t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	return g.Import(r.t.Context(), file, want)
}

// forward fast-forwards main to head under the lock.
func (r repo) forward(base, head string) error {
	r.t.Helper()
	g := r.open()
	lock, err := g.Lock(r.t.Context())
	if err != nil {
		r.t.Fatal(err)
	}
	defer lock.Unlock()
	if _, err := g.Recover(r.t.Context(), lock); err != nil {
		return err
	}
	_, err = g.FastForward(r.t.Context(), lock, gitwork.Forward{Job: job, Branch: "main", Base: base, Head: head})
	return err
}

// state is all of a repository that a rejected bundle must leave alone.
func (r repo) state() string {
	r.t.Helper()
	var files []string
	for _, dir := range []string{filepath.Join(r.dir, ".git", "objects"), filepath.Join(r.dir, ".git", "cove")} {
		_ = filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
			if err == nil && !d.IsDir() && d.Name() != "lock" {
				files = append(files, path)
			}
			return nil
		})
	}
	return r.git("for-each-ref") + "\n" + r.git("status", "--porcelain") + "\n" + strings.Join(files, "\n")
}

func itoa(n int) string { return strconv.Itoa(n) }
