package hostile

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cove-dev/cove/internal/test/e2e"
)

// plantedFiles are files that run code on the machine that pulls the work. They cover
// each kind of hostile statement 44, and similar ones.
var plantedFiles = []string{
	".mcp.json", ".claude/settings.json", ".cursor/mcp.json", "AGENTS.md", // agents
	".vscode/tasks.json", ".devcontainer/devcontainer.json", // editors
	".bashrc", "dotfiles/.zshenv", ".profile", ".envrc", ".config/fish/config.fish", // shells
	".github/workflows/ci.yml", ".gitlab-ci.yml", "Jenkinsfile", // CI
	".husky/pre-commit", ".gitattributes", ".cove/setup.sh", // hooks, git, cove itself
}

// TestHostile44: files that an agent, an editor, a shell or CI would run are listed and
// held for review. That holds for each way into a branch, in submodules too. They are
// taken when the person says so, never because a repository does (hostile statement 44).
// TestSoakMoments shows that a kill in the middle leaves the old or the new.
func TestHostile44(t *testing.T) {
	h := e2e.NewGitHost(t)
	h.Clone("lib")
	c := h.Clone("super")
	c.Git("submodule", "-q", "add", "file://"+filepath.Join(filepath.Dir(h.Home), "lib"), "lib")
	c.Commit("a submodule")
	plant := "for f in " + strings.Join(plantedFiles, " ") + "\ndo mkdir -p $(dirname $f); echo planted > $f\ndone\necho fine > fine.txt"
	job, _ := c.Push(h.Plan(plant))
	holds(c, job, plantedFiles...)

	// The hints do what they say.
	doc, _ := c.Pull(job)
	next, _ := doc["next"].([]any)
	if len(next) != 2 {
		t.Fatalf("next: %v", next)
	}
	if out := h.Run("super", "sh", "-c", fmt.Sprint(next[0])); strings.Count(out, "+planted") != len(plantedFiles) {
		t.Errorf("%s: %s", next[0], out)
	}
	if out := h.Run("super", "cove", "job", "diff", job, "--", ".mcp.json", ".envrc"); strings.Count(out, "+planted") != 2 {
		t.Errorf("two of them: %s", out)
	}
	before := c.Git("rev-parse", "main")
	if out, code := h.Try("super", "sh", "-c", fmt.Sprint(next[1])); code != 0 || !strings.Contains(out, "Fast-forwarded main") || !strings.Contains(out, "! .mcp.json") {
		t.Errorf("%s: %d, %s", next[1], code, out)
	}
	if c.Read(".mcp.json") != "planted\n" || c.Git("status", "--porcelain") != "" {
		t.Error("what was accepted is not there")
	}
	if out := c.Run("", "cove", "job", "show", job, "--json"); !strings.Contains(out, `"pulled_at"`) {
		t.Errorf("the sprite was not let go of: %s", out)
	}
	if doc, code := c.Pull(job); code != 0 || doc["already"] != true {
		t.Errorf("again: %d, %v", code, doc)
	}
	c.Git("reset", "-q", "--hard", before)

	// The branch has gone on; a check is removed; a repository says that all is well.
	c.File(".github/workflows/check.yml", "mine\n")
	c.File(".cove/config.toml", "")
	c.Commit("mine")
	job, _ = c.Push(h.Plan("rm -r .github\necho x > x"))
	c.File("more", "more\n")
	mine := c.Commit("more")
	if doc, code := c.Pull(job); code != 4 || doc["reason"] != "branch_moved" {
		t.Errorf("moved on: %d, %v", code, doc)
	}
	head := c.Git("rev-parse", "refs/cove/"+job+"/head")
	for _, args := range [][]string{{"merge", job}, {"rebase", job}, {"cherry-pick", job, head[:10]}} {
		args = append([]string{"job"}, args...)
		out, code := h.Try("super", "cove", args...)
		if code != 4 || !strings.Contains(out, "! .github/workflows/check.yml: runs in CI") || !strings.Contains(out, "hint: cove "+strings.Join(args, " ")+" --accept-risky") {
			t.Errorf("%v: %d, %s", args, code, out)
		}
		if c.Git("rev-parse", "main") != mine || c.Git("status", "--porcelain") != "" {
			t.Fatalf("%v: something moved", args)
		}
		h.Run("super", "cove", append(args, "--accept-risky")...)
		if _, err := os.Stat(filepath.Join(filepath.Dir(h.Home), "super/.github")); err == nil || c.Read("x") != "x\n" {
			t.Errorf("%v, accepted: it is not there", args)
		}
		c.Git("reset", "-q", "--hard", mine)
	}
	c.File(".cove/config.toml", "[pull]\nrisky = \"list\"\n")
	if out, code := h.Try("super", "cove", "pull", job); code != 1 || !strings.Contains(out, "a repository may not set it") {
		t.Errorf("a repository's setting: %d, %s", code, out)
	}
	c.Git("checkout", "-q", ".")

	// A submodule; then cove run and cove job wait.
	job, _ = c.Push(h.Plan("cd lib\nmkdir .vscode\necho planted > .vscode/tasks.json\necho x > x\ngit add .\ngit commit -qm inside\ncd ..\ngit add lib"))
	holds(c, job, "lib/.vscode/tasks.json")
	if out := h.Run("super", "cove", "job", "diff", job, "lib/.vscode/tasks.json"); !strings.Contains(out, "+++ b/lib/.vscode/tasks.json\n@@ -0,0 +1 @@\n+planted") || strings.Contains(out, "b/lib/x") {
		t.Errorf("the submodule's diff: %s", out)
	}
	before = c.Git("rev-parse", "main")
	out, code := h.Try("super", "cove", "run", "--agent", "shell", "-s", e2e.GitSprite, h.Plan("echo planted > .envrc"))
	if code != 4 || !strings.Contains(out, "--accept-risky") || c.Git("rev-parse", "main") != before {
		t.Errorf("run: %d, %s", code, out)
	}
	_, rest, ok := strings.Cut(out, "hint: cove job diff ")
	if !ok {
		t.Fatalf("run: %s", out)
	}
	job, _, _ = strings.Cut(rest, " ")
	if out, code := h.Try("super", "cove", "job", "wait", job, "--pull", "--json"); code != 4 || !strings.Contains(out, `"reason": "risky"`) {
		t.Errorf("job wait: %d, %s", code, out)
	}

	// On a terminal the person is asked. With the person's own setting there is no
	// question.
	answers(c, job, "n", "hint: cove pull "+job+" --accept-risky")
	if c.Git("rev-parse", "main") != before {
		t.Fatal("no was taken for yes")
	}
	answers(c, job, "y", "Fast-forwarded main")
	if c.Read(".envrc") != "planted\n" {
		t.Error("yes was taken for no")
	}
	c.Git("reset", "-q", "--hard", before)
	h.Env = append(h.Env, "COVE_PULL_RISKY=list")
	if doc := c.Forwarded(job); !strings.Contains(fmt.Sprint(doc["risky"]), ".envrc") {
		t.Errorf("what is only listed: %v", doc)
	}
}

// holds pulls a job whose changes must be held because of exactly these files.
func holds(c e2e.Clone, job string, paths ...string) {
	c.T.Helper()
	head, index := c.Git("rev-parse", "main"), c.Read(".git/index")
	doc, code := c.Pull(job)
	if code != 4 || doc["result"] != "kept" || doc["reason"] != "risky" {
		c.T.Fatalf("not held: %d, %v", code, doc)
	}
	var risky []struct{ Path, Why string }
	text, err := json.Marshal(doc["risky"])
	if err == nil {
		err = json.Unmarshal(text, &risky)
	}
	if err != nil {
		c.T.Fatal(err)
	}
	var listed []string
	for _, r := range risky {
		if listed = append(listed, r.Path); r.Why == "" {
			c.T.Errorf("%s is held without a reason", r.Path)
		}
	}
	want := slices.Sorted(slices.Values(paths))
	if slices.Sort(listed); !slices.Equal(listed, want) {
		c.T.Errorf("held %q, want %q", listed, want)
	}
	if c.Git("rev-parse", "main") != head || c.Git("status", "--porcelain", "--ignored") != "" || c.Read(".git/index") != index {
		c.T.Error("the branch, the index or the work tree is not as it was")
	}
	if c.Git("rev-parse", "refs/cove/"+job+"/head") != doc["head"] {
		c.T.Error("the commits are not here")
	}
	if out := c.Run("", "cove", "job", "show", job, "--json"); strings.Contains(out, `"pulled_at"`) {
		c.T.Errorf("what is held counts as pulled: %s", out)
	}
}

// answers pulls on a terminal, and answers the question there.
func answers(c e2e.Clone, job, answer, want string) {
	c.T.Helper()
	tmux := func(args ...string) string {
		return c.Run(c.Dir, "tmux", append([]string{"-S", filepath.Join(filepath.Dir(c.Home), answer+".sock")}, args...)...)
	}
	tmux("new-session", "-d", "-x", "120", "-y", "40", "sh")
	defer tmux("kill-server")
	for _, step := range []struct{ keys, shows string }{{"cove pull " + job, "Move main all the same? [y/N]"}, {answer, want}} {
		tmux("send-keys", step.keys, "Enter")
		e2e.Await(c.T, step.shows, func() bool { return strings.Contains(tmux("capture-pane", "-p", "-J"), step.shows) })
	}
}
