package hostile

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cove-dev/cove/internal/test/e2e"
)

// TestRepositoriesInTrees: git takes a folder with HEAD, objects and refs for a
// repository. When the person, or a shell prompt, asks git for the status in it, git would
// run a command of the sprite's. Such a folder is held by each way here: a pull (also in
// pieces by several jobs, and in a submodule), [[pull.sync]], sync pull and cp. A change
// of files in the tree that the person's own git reads is held too. Once a folder is
// accepted, plain git does run the command.
func TestRepositoriesInTrees(t *testing.T) {
	h := e2e.NewGitHost(t)
	h.Clone("lib")
	c := h.Clone("super")
	c.Git("submodule", "-q", "add", "file://"+filepath.Join(filepath.Dir(h.Home), "lib"), "lib")
	c.File(".gitignore", "dist\n")
	c.File("tools/gitconfig", "[alias]\n\tx = status\n")
	if err := os.Symlink("lib/editor", h.Path("super/.vscode")); err != nil {
		t.Fatal(err)
	}
	c.Commit("a submodule, what git reads, and a link into the submodule")
	c.Git("config", "include.path", "../tools/gitconfig")
	h.Write("home/.config/cove/config.toml", "[[pull.sync]]\nfrom = \"dist\"\nto = \"dist\"\nrepository = \""+h.Path("super")+"\"\n")
	canary := h.Path("canary")
	config := `printf '[core]\n\trepositoryformatversion = 0\n\tbare = false\n\tworktree = "."\n\tfsmonitor = "touch ` + canary + `; false"\n' > `
	embed := func(dir string) string {
		return "mkdir -p " + dir + "/objects " + dir + "/refs\ntouch " + dir + "/objects/.keep " + dir + "/refs/.keep\necho 'ref: refs/heads/main' > " + dir + "/HEAD\n" + config + dir + "/config"
	}
	quiet := func(what string) {
		t.Helper()
		h.Try("super", "sh", "-c", "for d in $(find . -type d -not -path '*/.git/*' -not -name .git); do (cd $d && git status); done")
		if _, err := os.Stat(canary); err == nil {
			t.Fatalf("%s: git ran what the sprite wrote", what)
		}
	}

	// In one job, with a changed file that git reads, and a file that is only listed.
	job, _ := c.Push(h.Plan(embed("docs") + "\necho '[alias]' > tools/gitconfig\necho 'all:' > Makefile"))
	holds(c, job, "docs/HEAD", "docs/config", "docs/objects/.keep", "docs/refs/.keep", "tools/gitconfig")
	doc, _ := c.Pull(job)
	if listed := fmt.Sprint(doc["listed"]); listed != "[map[path:Makefile why:runs when you build or test]]" {
		t.Errorf("listed: %s", listed)
	}
	if out, _ := h.Try("super", "cove", "pull", job); !strings.Contains(out, "! docs/config: git takes the folder docs for a repository") || !strings.Contains(out, "* Makefile: runs when you build or test") {
		t.Errorf("pull: %s", out)
	}
	if out := h.Run("super", "cove", "job", "diff", job, "--json"); !strings.Contains(out, `"listed": [`) {
		t.Errorf("job diff: %s", out)
	}
	quiet("a pull that is held")

	// In pieces; and in a submodule.
	job, _ = c.Push(h.Plan("mkdir -p page/objects\ntouch page/objects/.keep\necho 'ref: refs/heads/main' > page/HEAD\n" + config + "page/config"))
	c.Forwarded(job)
	job, _ = c.Push(h.Plan("mkdir page/refs\ntouch page/refs/.keep"))
	holds(c, job, "page/refs/.keep")
	last := job
	job, _ = c.Push(h.Plan("cd lib\n" + embed("in") + "\nmkdir editor\necho x > editor/x\ngit add .\ngit commit -qm inside\ncd ..\ngit add lib"))
	holds(c, job, "lib/editor/x", "lib/in/HEAD", "lib/in/config", "lib/in/objects/.keep", "lib/in/refs/.keep")
	quiet("pieces, and a submodule")

	// By [[pull.sync]], which brings the rest.
	job, _ = c.Push(h.Plan("mkdir dist\necho app > dist/app\n" + embed("dist/docs") + "\necho fine > fine"))
	doc = c.Forwarded(job)
	var trees []struct{ Risky []struct{ Path, Why string } }
	text, err := json.Marshal(doc["trees"])
	if err == nil {
		err = json.Unmarshal(text, &trees)
	}
	if err != nil || len(trees) != 1 || len(trees[0].Risky) != 1 || trees[0].Risky[0].Path != "docs" {
		t.Errorf("trees: %v, %s", err, text)
	}
	if _, err := os.Stat(h.Path("super/dist/docs")); err == nil || c.Read("dist/app") != "app\n" {
		t.Error("[[pull.sync]] brought the folder, or not the rest")
	}
	quiet("[[pull.sync]]")

	// By sync pull, and by cp.
	h.Sh(e2e.GitSprite, "mkdir -p tree; cd tree; echo a > a; "+strings.ReplaceAll(embed("docs"), "\n", "; "))
	out, code := h.Try("super", "cove", "sync", "pull", "-s", e2e.GitSprite, "tree", "dist/tree", "--no-ignore")
	if _, err := os.Stat(h.Path("super/dist/tree")); code != 4 || !strings.Contains(out, `the folder "docs"`) || err == nil {
		t.Errorf("sync pull: %d, %s", code, out)
	}
	_, rest, ok := strings.Cut(out, "leave it out: ")
	command, _, _ := strings.Cut(rest, "\n")
	if !ok {
		t.Fatalf("sync pull: %s", out)
	}
	h.Run("super", "sh", "-c", command)
	if c.Read("dist/tree/a") != "a\n" {
		t.Errorf("%s: not there", command)
	}
	out, code = h.Try("super", "cove", "cp", e2e.GitSprite+":tree", "dist/copy")
	if _, err := os.Stat(h.Path("super/dist/copy")); code != 5 || !strings.Contains(out, "take its folder for a repository") || err == nil {
		t.Errorf("cp: %d, %s", code, out)
	}
	out, code = h.Try("super", "cove", "cp", e2e.GitSprite+":tree/docs/config", "page/config")
	if code != 0 {
		t.Errorf("cp of one file, which makes nothing whole: %d, %s", code, out)
	}
	c.Git("checkout", "-q", "page")
	quiet("sync pull and cp")

	// The canary is touched once the last piece was accepted.
	_, _ = h.Try("super", "sh", "-c", "git checkout -q refs/cove/"+last+"/head && cd page && git status")
	if _, err := os.Stat(canary); err != nil {
		t.Error("plain git runs nothing either: the test proves nothing")
	}
}
