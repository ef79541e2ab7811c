package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Clone is a repository on a host, whose jobs run in one sprite.
type Clone struct {
	*Host
	Dir string
}

// GitSprite is the sprite that the jobs of a clone run in.
const GitSprite = "git"

// NewGitHost makes a host with the sprite that its jobs run in.
func NewGitHost(t *testing.T) *Host {
	t.Helper()
	h := NewHost(t)
	h.Write("home/.gitconfig", "[user]\n\tname = Ada\n\temail = ada@example.org\n[init]\n\tdefaultBranch = main\n[advice]\n\tdetachedHead = false\n[protocol \"file\"]\n\tallow = always\n"+
		"[filter \"lfs\"]\n\tprocess =\n\tclean = cat\n\tsmudge = cat\n\trequired = false\n") // also where git-lfs is installed
	h.Run("", "cove", "create", GitSprite)
	return h
}

// Clone makes a repository with three commits.
func (h *Host) Clone(name string, initArgs ...string) Clone {
	h.T.Helper()
	c := Clone{h, name}
	h.Write(name+"/a.txt", "1\n")
	c.Git(append([]string{"init", "-q"}, initArgs...)...)
	for i := range 3 {
		c.File("a.txt", strings.Repeat("line\n", i+1))
		c.Commit(fmt.Sprint("commit ", i+1))
	}
	return c
}

// Git runs git there, and returns its output, without white space around it.
func (c Clone) Git(args ...string) string {
	c.T.Helper()
	return strings.TrimSpace(c.Run(c.Dir, "git", args...))
}

// File writes a file.
func (c Clone) File(name, text string) {
	c.T.Helper()
	c.Write(c.Dir+"/"+name, text)
}

// Read returns a file's text.
func (c Clone) Read(name string) string {
	c.T.Helper()
	data, err := os.ReadFile(filepath.Join(filepath.Dir(c.Home), c.Dir, name))
	if err != nil {
		c.T.Error(err)
	}
	return string(data)
}

// Commit commits all changes, and returns the commit.
func (c Clone) Commit(subject string) string {
	c.T.Helper()
	c.Git("add", "-A")
	c.Git("commit", "-q", "-m", subject)
	return c.Git("rev-parse", "HEAD")
}

// Plan writes a plan for the shell agent, outside any repository, and returns its path.
func (h *Host) Plan(steps ...string) string {
	h.T.Helper()
	var b strings.Builder
	for i, step := range steps {
		fmt.Fprintf(&b, "## Step %d\n```sh\n%s\n```\n", i+1, step)
	}
	h.Write("plan.md", b.String())
	return filepath.Join(filepath.Dir(h.Home), "plan.md")
}

// Push begins a job and waits for its end. args are further arguments of cove push.
func (c Clone) Push(plan string, args ...string) (job string, doc map[string]any) {
	c.T.Helper()
	out := c.Run(c.Dir, "cove", append([]string{"push", "--agent", "shell", "-s", GitSprite, "--json", plan}, args...)...)
	if err := json.Unmarshal([]byte(out), &doc); err != nil {
		c.T.Fatalf("%v in %s", err, out)
	}
	job = fmt.Sprint(doc["job"])
	if out, code := c.Try(c.Dir, "cove", "job", "wait", job); code != 0 {
		log, _ := c.Try(c.Dir, "cove", "job", "logs", job)
		c.T.Fatalf("job %s: %s\n%s", job, out, log)
	}
	return job, doc
}

// Pull pulls, and returns the output of --json with the exit code.
func (c Clone) Pull(job string, args ...string) (doc map[string]any, code int) {
	c.T.Helper()
	out, code := c.Try(c.Dir, "cove", append([]string{"pull", job, "--json"}, args...)...)
	if err := json.Unmarshal([]byte(out), &doc); err != nil {
		c.T.Fatalf("%v in %s", err, out)
	}
	return doc, code
}

// Forwarded pulls a job. The pull must be a fast-forward.
func (c Clone) Forwarded(job string, args ...string) map[string]any {
	c.T.Helper()
	doc, code := c.Pull(job, args...)
	if code != 0 || doc["result"] != "fast-forward" {
		c.T.Errorf("pull of %s: %d, %v", job, code, doc)
	}
	return doc
}
