package trees

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cove-dev/cove/internal/test/e2e"
)

// The tests of git in both directions: repositories of every shape are pushed to a real
// sandbox, and the shell agent's work is pulled.

// roundTrip has an agent add a file, and expects the commit on the branch.
func roundTrip(c e2e.Clone, pushArgs ...string) {
	c.T.Helper()
	head := c.Git("rev-parse", "HEAD")
	fsck := `test -z "$(git fsck --full --no-dangling 2>&1)"`
	job, _ := c.Push(c.Plan(fsck+"\ngit rev-parse HEAD > seen\ngit status --porcelain | grep -v seen && exit 1\ngit symbolic-ref -q HEAD"), pushArgs...)
	c.Forwarded(job)
	if got := c.Git("show", "HEAD:seen"); got != head || c.Git("rev-parse", "HEAD^") != head {
		c.T.Errorf("%s: the agent saw %s, not %s", c.Dir, got, head)
	}
}

// TestGitG1: changes in a dirty tree are refused, included or ignored, as chosen, and the
// index is not touched. If they were included, a pull works on the same dirty tree.
func TestGitG1(t *testing.T) {
	c := e2e.NewGitHost(t).Clone("dirty")
	plan := c.Plan("ls > seen\ncat a.txt staged new >> seen 2>/dev/null || true")
	old := c.Git("rev-parse", "HEAD")
	c.File("a.txt", "changed\n")
	c.File("staged", "staged\n")
	c.Git("add", "staged")
	c.File("new", "new\n")
	index, status := c.Read(".git/index"), c.Git("status", "--porcelain")
	untouched := func(what string) {
		t.Helper()
		if c.Read(".git/index") != index || c.Git("status", "--porcelain") != status {
			t.Errorf("%s: index or status changed:\n%s", what, c.Git("status", "--porcelain"))
		}
	}
	out, code := c.Try("dirty", "cove", "push", "--agent", "shell", "-s", e2e.GitSprite, plan)
	if code != 1 || !strings.Contains(out, "--dirty include") || !strings.Contains(out, "--dirty ignore") || !strings.Contains(out, "a.txt, staged, new") {
		t.Errorf("refuse: %d, %s", code, out)
	}
	untouched("refuse")
	ignored, doc := c.Push(plan, "--dirty", "ignore")
	if doc["base"] != old {
		t.Errorf("ignore: began with %v", doc["base"])
	}
	untouched("ignore")
	included, _ := c.Push(plan, "--dirty", "include")
	untouched("include")
	if out, code := c.Try("dirty", "cove", "pull", included, "--wait=10m"); code != 0 || !strings.Contains(out, ": 1 commit, on top of "+c.Git("rev-parse", "--short=10", "HEAD^")+", the snapshot of your own uncommitted changes.") {
		t.Errorf("pull: %d, %s", code, out)
	}
	if got := c.Read("seen"); got != "a.txt\nnew\nseen\nstaged\nchanged\nstaged\nnew\n" || c.Git("status", "--porcelain") != "" {
		t.Errorf("include: the agent saw %q, status %q", got, c.Git("status", "--porcelain"))
	}
	if got := c.Git("rev-parse", "HEAD~2"); got != old {
		t.Errorf("the snapshot is not on top of %s", old)
	}
	if doc, code := c.Pull(ignored); code != 4 || doc["result"] != "kept" {
		t.Errorf("the other job: %d, %v", code, doc)
	}
	if got := c.Git("show", "refs/cove/"+ignored+"/head:seen"); !strings.HasPrefix(got, "a.txt\nseen\nline") {
		t.Errorf("ignore: the agent saw %q", got)
	}
}

// TestGitG2: repositories of every shape make the round trip.
func TestGitG2(t *testing.T) {
	h := e2e.NewGitHost(t)
	plain := h.Clone("plain")
	url := "file://" + filepath.Join(filepath.Dir(h.Home), "plain")
	plain.Git("config", "uploadpack.allowFilter", "true")

	for _, branch := range []string{"feature/x/y", "ünï-ço.dé", `a@b'"$x`} {
		plain.Git("checkout", "-q", "-b", branch)
		roundTrip(plain)
	}
	plain.Git("checkout", "-q", "main")
	plain.Git("worktree", "add", "-q", "-b", "linked", "../linked")
	roundTrip(e2e.Clone{Host: h, Dir: "linked"})

	h.Run("", "git", "clone", "-q", "--depth", "2", url, "shallow")
	roundTrip(e2e.Clone{Host: h, Dir: "shallow"})
	h.Run("", "git", "clone", "-q", "--shared", "plain", "borrower")
	roundTrip(e2e.Clone{Host: h, Dir: "borrower"})
	roundTrip(h.Clone("sha256", "--object-format=sha256"))
	replaced := h.Clone("replaced")
	replaced.Git("replace", "HEAD~1", replaced.Git("commit-tree", "-m", "false", "HEAD~1^{tree}"))
	roundTrip(replaced)

	// A partial clone lacks a part of its history, but has its last commit.
	h.Run("", "git", "clone", "-q", "--filter=blob:none", url, "partial")
	partial := e2e.Clone{Host: h, Dir: "partial"}
	if out, code := h.Try("partial", "cove", "push", "--agent", "shell", h.Plan("true")); code != 1 || !strings.Contains(out, "--depth 1") {
		t.Errorf("partial: %d, %s", code, out)
	}
	roundTrip(partial, "--depth", "1")

	h.Run("", "git", "clone", "-q", "--bare", "plain", "bare.git")
	bare := e2e.Clone{Host: h, Dir: "bare.git"}
	job, _ := bare.Push(h.Plan("echo x > x"))
	bare.Forwarded(job)
	if got := bare.Git("show", "main:x"); got != "x" {
		t.Errorf("bare: got %q", got)
	}
	// On a detached HEAD, the commits become a new branch.
	plain.Git("checkout", "-q", "--detach")
	job, _ = plain.Push(h.Plan("echo x > x"))
	if doc, code := plain.Pull(job); code != 0 || doc["result"] != "kept" || doc["branch"] != "cove-"+job || plain.Git("show", "cove-"+job+":x") != "x" {
		t.Errorf("detached: %d, %v", code, doc)
	}
	h.Run("", "git", "init", "-q", "unborn")
	if out, code := h.Try("unborn", "cove", "push", "--agent", "shell", h.Plan("true")); code != 1 || !strings.Contains(out, "git add -A && git commit") {
		t.Errorf("unborn: %d, %s", code, out)
	}
	plain.Git("update-ref", "refs/heads/-x", "main")
	plain.Git("symbolic-ref", "HEAD", "refs/heads/-x")
	if out, code := h.Try("plain", "cove", "push", "--agent", "shell", h.Plan("true")); code != 1 || !strings.Contains(out, "git switch -c") {
		t.Errorf("a dash: %d, %s", code, out)
	}
}

// TestGitG2Submodules: submodules are pushed, also nested ones. The work in a submodule
// is pulled into its own repository, also uncommitted work.
func TestGitG2Submodules(t *testing.T) {
	h := e2e.NewGitHost(t)
	inner, lib := h.Clone("inner"), h.Clone("lib")
	_ = inner
	url := func(name string) string { return "file://" + filepath.Join(filepath.Dir(h.Home), name) }
	lib.Git("submodule", "-q", "add", url("inner"), "deep/inner")
	lib.Commit("inner")
	c := h.Clone("super")
	c.Git("submodule", "-q", "add", url("lib"), "lib")
	c.Git("submodule", "-q", "add", url("inner"), "other")
	c.Git("submodule", "-q", "update", "--init", "--recursive")
	c.Commit("submodules")
	before := c.Git("-C", "lib", "rev-parse", "HEAD")

	job, _ := c.Push(h.Plan(
		"test -z \"$(git status --porcelain)\"\ngit submodule status --recursive | grep -v '^ ' && exit 1\ncat lib/a.txt lib/deep/inner/a.txt > seen",
		"cd lib/deep/inner\necho new > new\ngit add .\ngit commit -qm innermost\ncd ../..\necho x >> a.txt\ngit commit -qam inside\ncd ..\ngit add lib",
		"true"))
	h.Run("", "cove", "exec", "-s", e2e.GitSprite, "sh", "-c", "true")
	doc := c.Forwarded(job)
	if got := c.Read("seen"); got != strings.Repeat("line\n", 6) {
		t.Errorf("the agent saw %q", got)
	}
	modules, _ := json.Marshal(doc["submodules"])
	if !strings.Contains(string(modules), `"path":"lib/deep/inner"`) || !strings.Contains(string(modules), `"subject":"inside"`) {
		t.Errorf("submodules: %s", modules)
	}
	messages := fmt.Sprint(doc["messages"])
	if !strings.Contains(messages, "git submodule update --recursive -- lib]") || c.Git("-C", "lib", "rev-parse", "HEAD") != before {
		t.Errorf("messages: %s", messages)
	}
	c.Git("-C", "lib", "config", "remote.origin.url", "/nonexistent") // all is here
	if out, code := h.Try("super", "cove", "push", "--agent", "shell", h.Plan("true")); code != 1 || !strings.Contains(out, "hint: if a submodule is only behind what was pulled: git submodule update --recursive -- lib\n") {
		t.Errorf("behind: %d, %s", code, out)
	}
	c.Git("submodule", "-q", "update", "--recursive", "--", "lib")
	if c.Read("lib/deep/inner/new") != "new\n" || c.Git("status", "--porcelain") != "" || c.Git("-C", "lib", "fsck", "--no-dangling") != "" {
		t.Errorf("after the update: %s", c.Git("status", "--porcelain"))
	}
	if c.Git("fsck", "--no-dangling") != "" {
		t.Error("fsck")
	}

	c.File("lib/deep/inner/a.txt", "dirty\n")
	c.File("other/untracked", "dirty\n")
	out, code := h.Try("super", "cove", "push", "--agent", "shell", "-s", e2e.GitSprite, h.Plan("true"), "--dirty", "include")
	if code != 1 || !strings.Contains(out, "lib/deep/inner/a.txt, other/untracked") || !strings.Contains(out, "git -C lib/deep/inner add") || !strings.Contains(out, "git -C other add") {
		t.Errorf("a dirty submodule: %d, %s", code, out)
	}
	c.Git("-C", "lib/deep/inner", "checkout", "-q", ".")
	c.Git("-C", "other", "clean", "-q", "-f")
	c.Git("submodule", "-q", "deinit", "other")
	job, doc = c.Push(h.Plan("ls other > seen"), "--dirty", "ignore")
	if !strings.Contains(fmt.Sprint(doc["messages"]), "other") {
		t.Errorf("one that is not there: %v", doc)
	}
	c.Forwarded(job)

	// A submodule that is gone when its commits are pulled.
	job, _ = c.Push(h.Plan("echo x >> lib/a.txt\ngit -C lib commit -qam gone\ngit add lib"), "--dirty", "ignore")
	c.Git("submodule", "-q", "deinit", "-f", "lib")
	if out, code := h.Try("super", "cove", "pull", job); code != 1 || !strings.Contains(out, "git submodule update --init") {
		t.Errorf("without its submodule: %d, %s", code, out)
	}
	c.Git("submodule", "-q", "update", "--init", "--recursive", "lib")
	c.Forwarded(job)
	c.Git("submodule", "-q", "update", "--recursive", "lib")

	// Left uncommitted inside.
	out = h.Run("super", "cove", "push", "--agent", "shell", "-s", e2e.GitSprite, "--json", h.Plan("echo left >> lib/a.txt\nexit 1"))
	job = e2e.JSONField(t, out, "job")
	h.Try("", "cove", "job", "wait", job)
	doc, _ = c.Pull(job)
	modules, _ = json.Marshal(doc["submodules"])
	if !strings.Contains(fmt.Sprint(doc["messages"]), "take them: git -C lib cherry-pick --no-commit refs/cove/"+job+"/leftover") {
		t.Errorf("messages: %v", doc["messages"])
	}
	if !strings.Contains(string(modules), `"leftover":"`) || !strings.HasSuffix(c.Git("-C", "lib", "show", "refs/cove/"+job+"/leftover:a.txt"), "left") {
		t.Errorf("left in a submodule: %v", doc)
	}
}

// TestGitG2LFS: the content of large files is pushed and pulled, and the repository has
// only pointers all the time. Large files that are not here are named.
func TestGitG2LFS(t *testing.T) {
	h := e2e.NewGitHost(t)
	c := h.Clone("lfs")
	pointer := func(content string) (text, oid string) {
		oid = digestOf(content)
		return fmt.Sprintf("version https://git-lfs.github.com/spec/v1\noid sha256:%s\nsize %d\n", oid, len(content)), oid
	}
	big, gone := strings.Repeat("large ", 100_000), "nowhere"
	text, oid := pointer(big)
	c.File(".gitattributes", "*.bin filter=lfs diff=lfs merge=lfs -text\n")
	c.File("big.bin", text)
	c.File("copy.bin", text)
	missing, _ := pointer(gone)
	c.File("gone.bin", missing)
	c.File(".git/lfs/objects/"+oid[:2]+"/"+oid[2:4]+"/"+oid, big)
	c.Commit("large files")
	job, doc := c.Push(h.Plan("sha256sum < big.bin > seen\ncmp big.bin copy.bin\ngrep -q oid gone.bin\ntest \"$(git status --porcelain)\" = '?? seen'",
		"printf made > made.bin\nprintf changed > copy.bin"))
	if !strings.Contains(fmt.Sprint(doc["messages"]), "gone.bin") {
		t.Errorf("what is missing: %v", doc["messages"])
	}
	doc = c.Forwarded(job)
	if !strings.Contains(fmt.Sprint(doc["messages"]), "git lfs checkout") || !strings.HasPrefix(c.Read("seen"), oid) {
		t.Errorf("messages: %v, seen: %s", doc["messages"], c.Read("seen"))
	}
	made, madeID := pointer("made")
	if got := c.Read("made.bin"); got != made || c.Read(".git/lfs/objects/"+madeID[:2]+"/"+madeID[2:4]+"/"+madeID) != "made" {
		t.Errorf("what the agent made: %q", got)
	}
	if changed, _ := pointer("changed"); c.Git("show", "HEAD:copy.bin") != strings.TrimSpace(changed) {
		t.Errorf("what it changed: %q", c.Git("show", "HEAD:copy.bin"))
	}
	// The second time it is there.
	_, doc = c.Push(h.Plan("sha256sum < big.bin | grep " + oid))
	if sent, ok := doc["sent"].(float64); !ok || sent > 2000 {
		t.Errorf("sent %v bytes", doc["sent"])
	}
}

// TestGitG2LFSModules: the same holds in submodules, which have their large files in
// their own repositories. An agent's large file becomes a pointer even if no large file
// was pushed.
func TestGitG2LFSModules(t *testing.T) {
	h := e2e.NewGitHost(t)
	large := func(content string) (text, object string) {
		oid := digestOf(content)
		return fmt.Sprintf("version https://git-lfs.github.com/spec/v1\noid sha256:%s\nsize %d\n", oid, len(content)), "lfs/objects/" + oid[:2] + "/" + oid[2:4] + "/" + oid
	}
	url := func(name string) string { return "file://" + filepath.Join(filepath.Dir(h.Home), name) }
	for _, name := range []string{"inner", "lib"} {
		c := h.Clone(name)
		c.File(".gitattributes", "*.bin filter=lfs diff=lfs merge=lfs -text\n")
		for _, content := range []string{"of " + name, "gone from " + name} {
			text, _ := large(content)
			c.File(strings.Fields(content)[0]+".bin", text)
		}
		if name == "lib" {
			c.Git("submodule", "-q", "add", url("inner"), "deep/inner")
		}
		c.Commit("large files")
	}
	c := h.Clone("super")
	c.Git("submodule", "-q", "add", url("lib"), "lib")
	c.Git("submodule", "-q", "update", "--init", "--recursive")
	c.Commit("submodules")
	lib, inner := ".git/modules/lib/", ".git/modules/lib/modules/deep/inner/"
	for dir, content := range map[string]string{lib: "of lib", inner: "of inner"} {
		_, object := large(content)
		c.File(dir+object, content)
	}
	job, doc := c.Push(h.Plan("cat lib/of.bin lib/deep/inner/of.bin > seen\ngrep -q oid lib/gone.bin\ntest \"$(git status --porcelain)\" = '?? seen'",
		"cd lib/deep/inner\nprintf innermost > made.bin\ngit add .\ngit commit -qm made\ncd ../..\nprintf made > made.bin\ngit add .\ngit commit -qm made\ncd ..\ngit add lib"))
	messages := fmt.Sprint(doc["messages"])
	if !strings.Contains(messages, "lib/gone.bin, lib/deep/inner/gone.bin;") || !strings.Contains(messages, "git -C lib lfs pull && git -C lib/deep/inner lfs pull") || strings.Contains(messages, "of.bin") {
		t.Errorf("what is missing: %s", messages)
	}
	doc = c.Forwarded(job)
	if c.Read("seen") != "of libof inner" || !strings.Contains(fmt.Sprint(doc["messages"]), "git -C lib lfs checkout && git -C lib/deep/inner lfs checkout") {
		t.Errorf("the agent saw %q; %v", c.Read("seen"), doc["messages"])
	}
	for dir, content := range map[string]string{lib: "made", inner: "innermost"} {
		text, object := large(content)
		in := map[string]string{lib: "lib", inner: "lib/deep/inner"}[dir]
		if got := c.Git("-C", in, "show", "refs/cove/"+job+"/head:made.bin"); got != strings.TrimSpace(text) || c.Read(dir+object) != content {
			t.Errorf("%s: what the agent made: %q", in, got)
		}
	}
	c.Git("submodule", "-q", "update", "--recursive")
	// The second push finds the content in the sprite. Without content here, pointers are
	// still made.
	if _, doc = c.Push(h.Plan("cmp lib/of.bin lib/deep/inner/of.bin && exit 1\ngrep lib lib/of.bin")); strings.Contains(fmt.Sprint(doc["messages"]), "of.bin") {
		t.Errorf("what the sprite has is missing: %v", doc["messages"])
	}
	none := h.Clone("none")
	none.File(".gitattributes", "*.bin filter=lfs -text\n")
	none.Commit("attributes")
	job, _ = none.Push(h.Plan("printf only > only.bin"))
	none.Forwarded(job)
	text, object := large("only")
	if none.Read("only.bin") != text || none.Read(".git/"+object) != "only" {
		t.Errorf("without any: %q", none.Read("only.bin"))
	}
}

// TestGitG3: the results are under the job's refs, and only the recorded branch moves.
func TestGitG3(t *testing.T) {
	h := e2e.NewGitHost(t)
	c := h.Clone("refs")
	main := c.Git("rev-parse", "main")
	job, _ := c.Push(h.Plan("echo x > x"))
	c.Git("checkout", "-q", "-b", "other")
	if doc, code := c.Pull(job, "--into", "none"); code != 0 || doc["result"] != "kept" || c.Git("rev-parse", "main") != main || c.Git("rev-parse", "other") != main {
		t.Errorf("into none: %d, %v", code, doc)
	}
	if got := c.Git("for-each-ref", "--format=%(refname)", "refs/cove"); got != "refs/cove/"+job+"/base\nrefs/cove/"+job+"/head" {
		t.Errorf("refs: %s", got)
	}
	if doc, code := c.Pull(job, "--into", "branch"); code != 0 || c.Git("rev-parse", "cove-"+job) != doc["head"] || c.Git("rev-parse", "main") != main {
		t.Errorf("into branch: %d, %v", code, doc)
	}
	c.Forwarded(job)
	if c.Git("show", "main:x") != "x" || c.Git("rev-parse", "other") != main || c.Git("branch", "--show-current") != "other" || c.Git("status", "--porcelain") != "" {
		t.Error("the branch that is checked out moved, or the recorded one did not")
	}
	// A branch that was deleted meanwhile is not made again.
	c.Git("checkout", "-q", "main")
	job, _ = c.Push(h.Plan("echo y > y"))
	c.Git("checkout", "-q", "other")
	c.Git("branch", "-q", "-D", "main")
	if doc, code := c.Pull(job); code != 4 || doc["result"] != "kept" || !strings.Contains(fmt.Sprint(doc["next"]), "git branch main refs/cove/"+job) {
		t.Errorf("a branch that is gone: %d, %v", code, doc)
	}
}

// TestGitG4: if the branch has gone on, a pull keeps the commits and says whether they
// merge. Each offered way (merge, rebase, cherry-pick) works, or changes nothing.
func TestGitG4(t *testing.T) {
	h := e2e.NewGitHost(t)
	c := h.Clone("moved")
	jobs := map[string]string{}
	plan := h.Plan("echo x > x", "echo y > y")
	for _, how := range []string{"merge", "rebase", "cherry-pick"} {
		jobs[how], _ = c.Push(plan)
	}
	conflicting, _ := c.Push(h.Plan("echo theirs > a.txt"))
	c.File("mine", "mine\n")
	mine := c.Commit("mine")
	doc, code := c.Pull(jobs["merge"])
	if code != 4 || doc["result"] != "kept" || doc["merges"] != true || !strings.Contains(fmt.Sprint(doc["next"]), "cove job merge "+jobs["merge"]) {
		t.Errorf("moved on: %d, %v", code, doc)
	}
	if out := h.Run("moved", "cove", "job", "diff", jobs["rebase"]); !strings.Contains(out, "+++ b/y\n@@ -0,0 +1 @@\n+y\n") {
		t.Errorf("diff: %s", out)
	}
	if out := h.Run("moved", "cove", "job", "log", jobs["rebase"]); strings.Count(out, "\ncommit ") != 1 || !strings.Contains(out, "    Step 2") {
		t.Errorf("log: %s", out)
	}
	first := c.Git("rev-parse", "refs/cove/"+jobs["rebase"]+"/head^")
	if out := h.Run("moved", "cove", "job", "show", jobs["rebase"], first[:9]); !strings.Contains(out, "+x") || strings.Contains(out, "+y") {
		t.Errorf("show: %s", out)
	}
	h.Try("moved", "cove", "pull", jobs["cherry-pick"])
	picked := c.Git("rev-parse", "refs/cove/"+jobs["cherry-pick"]+"/head")
	for how, want := range map[string]string{"merge": "Merge job " + jobs["merge"], "rebase": "Step 2\nStep 1", "cherry-pick": "Step 2"} {
		c.Git("reset", "-q", "--hard", mine)
		args := []string{"job", how, jobs[how]}
		if how == "cherry-pick" {
			args = append(args, picked[:8])
		}
		h.Run("moved", "cove", args...)
		if got := c.Git("log", "--first-parent", "--format=%s", mine+".."); got != want || c.Git("status", "--porcelain") != "" {
			t.Errorf("%s: %q, %s", how, got, c.Git("status", "--porcelain"))
		}
		if got := c.Read("y"); got != "y\n" {
			t.Errorf("%s: y is %q", how, got)
		}
	}
	c.Git("reset", "-q", "--hard", mine)
	c.File("a.txt", "mine\n")
	mine = c.Commit("in the way")
	if doc, code := c.Pull(conflicting); code != 4 || fmt.Sprint(doc["conflicts"]) != "[a.txt]" {
		t.Errorf("conflict: %d, %v", code, doc)
	}
	for _, how := range []string{"merge", "rebase"} {
		out, code := h.Try("moved", "cove", "job", how, conflicting)
		if code != 3 || !strings.Contains(out, "a.txt") || !strings.Contains(out, "hint: git switch") || c.Git("rev-parse", "main") != mine || c.Git("status", "--porcelain") != "" {
			t.Errorf("%s with a conflict: %d, %s", how, code, out)
		}
	}
}

// TestGitG5: a job without commits is not an error, and a pull changes nothing.
func TestGitG5(t *testing.T) {
	h := e2e.NewGitHost(t)
	c := h.Clone("idle")
	head := c.Git("rev-parse", "main")
	job, _ := c.Push(h.Plan("ls"))
	if doc, code := c.Pull(job); code != 0 || doc["result"] != "no-changes" || c.Git("rev-parse", "main") != head {
		t.Errorf("got %d, %v", code, doc)
	}
	if out, code := h.Try("idle", "cove", "job", "merge", job); code != 1 || !strings.Contains(out, "no commits") {
		t.Errorf("merge: %d, %s", code, out)
	}
	if out, code := h.Try("idle", "cove", "job", "diff", job); code != 0 || out != "" {
		t.Errorf("diff: %d, %s", code, out)
	}
}

// TestGitG6: the agent's uncommitted changes are pulled to a ref of their own.
func TestGitG6(t *testing.T) {
	h := e2e.NewGitHost(t)
	c := h.Clone("left")
	out := h.Run("left", "cove", "push", "--agent", "shell", "-s", e2e.GitSprite, "--json", h.Plan("echo done > done", "echo left > left\nrm a.txt\nexit 3"))
	job := e2e.JSONField(t, out, "job")
	h.Try("left", "cove", "job", "wait", job)
	doc, code := c.Pull(job)
	if code != 4 || doc["result"] != "kept" || !strings.Contains(fmt.Sprint(doc["leftover"]), "left") {
		t.Errorf("got %d, %v", code, doc)
	}
	ref := "refs/cove/" + job
	if got := c.Git("diff", "--name-status", ref+"/head", ref+"/leftover"); got != "D\ta.txt\nA\tleft" {
		t.Errorf("left: %s", got)
	}
	if out := h.Run("left", "cove", "job", "diff", job, "--leftover", "--stat"); !strings.Contains(out, "left") || strings.Contains(out, "done") {
		t.Errorf("diff: %s", out)
	}
	h.Run("left", "cove", "job", "merge", job)
	if c.Read("done") != "done\n" || c.Read("a.txt") == "" {
		t.Error("the commits of a job that failed could not be merged")
	}
}

// TestGitG7: a bundle that was cut off or changed is rejected, and no hook runs.
func TestGitG7(t *testing.T) {
	h := e2e.NewGitHost(t)
	c := h.Clone("tampered")
	ran := filepath.Join(filepath.Dir(h.Home), "ran")
	for _, hook := range []string{"post-merge", "post-checkout", "reference-transaction", "post-index-change", "pre-commit", "post-commit"} {
		c.File(".git/hooks/"+hook, "#!/bin/sh\ntouch "+ran+"\n")
		h.Run("tampered", "chmod", "+x", ".git/hooks/"+hook)
	}
	h.Run("", "rm", "-f", ran)
	head, refs := c.Git("rev-parse", "main"), c.Git("for-each-ref", "refs/heads")
	h.Run("", "rm", "-f", ran) // git itself runs hooks
	for name, tamper := range map[string]string{
		"cut off": "truncate -s -30 $f", "changed": "printf tampered | dd of=$f bs=1 seek=300 conv=notrunc 2>/dev/null", "gone": "rm $f",
	} {
		job, _ := c.Push(h.Plan("head -c 3000 /dev/urandom > more.bin"))
		h.Run("", "cove", "exec", "-s", e2e.GitSprite, "sh", "-c", "f=.cove/jobs/"+job+"/out.bundle; "+tamper)
		out, code := h.Try("tampered", "cove", "pull", job)
		if want := map[bool]int{true: 1, false: 5}[name == "gone"]; code != want {
			t.Errorf("%s: %d, %s", name, code, out)
		}
		if _, err := os.Stat(ran); err == nil {
			t.Fatalf("%s: a hook ran", name)
		}
	}
	if c.Git("rev-parse", "main") != head || c.Git("for-each-ref", "refs/heads") != refs {
		t.Error("something moved")
	}
}

// TestGitG8: several jobs work on one repository at once, and are pulled at once.
func TestGitG8(t *testing.T) {
	h := e2e.NewGitHost(t)
	c := h.Clone("parallel")
	var jobs []string
	for i := range 3 {
		out := h.Run("parallel", "cove", "push", "--agent", "shell", "-s", e2e.GitSprite, "--json", h.Plan(fmt.Sprintf("sleep 0.3; echo %d > f%d", i, i)))
		jobs = append(jobs, e2e.JSONField(t, out, "job"))
	}
	codes := make(chan int, len(jobs))
	for _, job := range jobs {
		go func() {
			cmd := h.Command("parallel", "cove", "pull", job, "--wait=10m")
			_ = cmd.Run() // the code says it
			codes <- cmd.ProcessState.ExitCode()
		}()
	}
	var got []int
	for range jobs {
		got = append(got, <-codes)
	}
	slices.Sort(got)
	if !slices.Equal(got, []int{0, 4, 4}) {
		t.Errorf("the pulls ended with %v", got)
	}
	for _, job := range jobs {
		h.Run("parallel", "cove", "job", "merge", job)
	}
	for i := range jobs {
		if c.Read(fmt.Sprintf("f%d", i)) != fmt.Sprintf("%d\n", i) {
			t.Errorf("the work of job %d is missing", i)
		}
	}
	if c.Git("status", "--porcelain") != "" || c.Git("fsck", "--no-dangling") != "" {
		t.Error("not clean")
	}
}

// TestGitG9: refs and files that jobs leave are listed, and removed once nobody needs
// them. The command job rm does so on both sides, job refs --prune on this side. Commits
// that are nowhere else stay.
func TestGitG9(t *testing.T) {
	h := e2e.NewGitHost(t)
	c := h.Clone("tidy")
	plan := h.Plan("date +%N > f")
	merged, _ := c.Push(plan)
	c.Forwarded(merged)
	kept, _ := c.Push(plan)
	c.Pull(kept, "--into", "none")
	unpulled, _ := c.Push(plan)
	idle, _ := c.Push(h.Plan("ls"))
	// Folders as killed processes leave them.
	c.File(".git/cove/in-dead/objects/x", "x")
	c.File(".git/cove/in-dead.work/y", "y")
	jobs := func(args ...string) string {
		t.Helper()
		var doc struct {
			Jobs []struct {
				Job       string
				Elsewhere bool
			}
			Removed []string
		}
		if err := json.Unmarshal([]byte(h.Run("tidy", "cove", append([]string{"job", "refs", "--json"}, args...)...)), &doc); err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, job := range doc.Jobs {
			names = append(names, fmt.Sprint(map[string]string{merged: "merged", kept: "kept", unpulled: "unpulled", idle: "idle"}[job.Job], job.Elsewhere))
		}
		slices.Sort(names)
		return fmt.Sprint(names, len(doc.Removed))
	}
	if got := jobs(); got != "[idletrue keptfalse mergedtrue unpulledtrue] 0" {
		t.Errorf("listed %s", got)
	}
	if got := jobs("--prune"); got != "[keptfalse unpulledtrue] 2" || c.Git("for-each-ref", "refs/cove/"+merged, "refs/cove/"+idle) != "" {
		t.Errorf("pruned to %s", got)
	}
	if _, err := os.Stat(filepath.Join(filepath.Dir(h.Home), "tidy/.git/cove/in-dead.work")); err == nil {
		t.Error("what a killed process left is still there")
	}
	out, code := h.Try("tidy", "cove", "job", "rm", kept)
	if code != 0 || !strings.Contains(out, "refs/cove/"+kept+"/head") || c.Git("rev-parse", "refs/cove/"+kept+"/head") == "" {
		t.Errorf("rm of one whose commits are nowhere else: %d, %s", code, out)
	}
	c.Pull(unpulled, "--into", "branch")
	h.Run("tidy", "cove", "job", "rm", unpulled)
	if got := jobs(); got != "[keptfalse] 0" {
		t.Errorf("left: %s", got)
	}
	if got := h.Run("", "cove", "exec", "-s", e2e.GitSprite, "sh", "-c", "ls work .cove/jobs"); strings.Contains(got, unpulled) || strings.Contains(got, kept) {
		t.Errorf("left in the sprite: %s", got)
	}
	if got := jobs("--prune", "--force"); got != "[] 1" {
		t.Errorf("forced: %s", got)
	}
}

// TestGitG10: --depth bounds the commits sent, and the agent's repository is sound. A
// second push sends only new commits.
func TestGitG10(t *testing.T) {
	h := e2e.NewGitHost(t)
	c := h.Clone("deep")
	for i := range 20 {
		c.File("noise", strings.Repeat(digestOf(fmt.Sprint(i)), 400))
		h.Run("deep", "sh", "-c", "head -c 20000 /dev/urandom > noise")
		c.Commit(fmt.Sprint("noise ", i))
	}
	sound := "test -z \"$(git fsck --full --strict --no-dangling 2>&1)\"\n"
	push := func(step string, args ...string) float64 {
		t.Helper()
		job, doc := c.Push(h.Plan(sound+step), args...)
		c.Forwarded(job)
		sent, _ := doc["sent"].(float64)
		return sent
	}
	if sent := push("test $(git rev-list --count HEAD) = 3\necho 1 > x", "--depth", "3"); sent < 60_000 || sent > 80_000 {
		t.Errorf("three commits: %v bytes", sent)
	}
	if sent := push("test $(git rev-list --count HEAD) = 24\necho 2 > x"); sent < 400_000 {
		t.Errorf("all: %v bytes", sent)
	}
	if sent := push("test $(git rev-list --count HEAD) = 25\necho 3 > x"); sent > 1000 {
		t.Errorf("what the sprite has: %v bytes", sent)
	}
	c.File("one", "more\n")
	c.Commit("one more")
	if sent := push("test $(git rev-list --count HEAD) = 27\necho 4 > x"); sent > 2000 {
		t.Errorf("one commit: %v bytes", sent)
	}
	// If a sprite lacks objects that it claims to have, the job says so, and the next
	// push sends all.
	h.Run("", "cove", "exec", "-s", e2e.GitSprite, "sh", "-c", "rm -f .cove/repositories/*/pack/*.pack")
	out := h.Run("deep", "cove", "push", "--agent", "shell", "-s", e2e.GitSprite, "--json", h.Plan("true"))
	job := e2e.JSONField(t, out, "job")
	if out, code := h.Try("deep", "cove", "job", "wait", job); code == 0 || !strings.Contains(out, "push again") {
		t.Errorf("a damaged store: %d, %s", code, out)
	}
	if sent := push("echo 5 > x"); sent < 400_000 {
		t.Errorf("after that: %v bytes", sent)
	}
}

func digestOf(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}

// TestBackendSuites: the tests of git and trees pass at a backend: all of them in make
// soak, else a sample. The test of this name in internal/e2e/jobs does so for jobs.
func TestBackendSuites(t *testing.T) { e2e.AtBackend(t, "^TestGitG1$", "^(TestGit|TestSync)") }
