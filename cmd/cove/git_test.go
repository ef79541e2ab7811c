package main

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
)

// The tests of git both ways: repositories of every shape go into a real sandbox,
// and what the shell agent does there comes back.

// clone is a repository on a host, whose jobs run in one sprite.
type clone struct {
	*host
	dir string
}

const gitSprite = "git"

// newGitHost is a host with the sprite that its jobs run in.
func newGitHost(t *testing.T) *host {
	t.Helper()
	h := newHost(t)
	h.write("home/.gitconfig", "[user]\n\tname = Ada\n\temail = ada@example.org\n[init]\n\tdefaultBranch = main\n[advice]\n\tdetachedHead = false\n[protocol \"file\"]\n\tallow = always\n"+
		"[filter \"lfs\"]\n\tprocess =\n\tclean = cat\n\tsmudge = cat\n\trequired = false\n") // also where git-lfs is installed
	h.run("", "cove", "create", gitSprite)
	return h
}

// clone makes a repository with three commits.
func (h *host) clone(name string, initArgs ...string) clone {
	h.t.Helper()
	c := clone{h, name}
	h.write(name+"/a.txt", "1\n")
	c.git(append([]string{"init", "-q"}, initArgs...)...)
	for i := range 3 {
		c.file("a.txt", strings.Repeat("line\n", i+1))
		c.commit(fmt.Sprint("commit ", i+1))
	}
	return c
}

func (c clone) git(args ...string) string {
	c.t.Helper()
	return strings.TrimSpace(c.run(c.dir, "git", args...))
}

func (c clone) file(name, text string) {
	c.t.Helper()
	c.write(c.dir+"/"+name, text)
}

func (c clone) read(name string) string {
	c.t.Helper()
	data, err := os.ReadFile(filepath.Join(filepath.Dir(c.home), c.dir, name))
	if err != nil {
		c.t.Error(err)
	}
	return string(data)
}

func (c clone) commit(subject string) string {
	c.t.Helper()
	c.git("add", "-A")
	c.git("commit", "-q", "-m", subject)
	return c.git("rev-parse", "HEAD")
}

// plan is one for the shell agent, outside of any repository.
func (h *host) plan(steps ...string) string {
	h.t.Helper()
	var b strings.Builder
	for i, step := range steps {
		fmt.Fprintf(&b, "## Step %d\n```sh\n%s\n```\n", i+1, step)
	}
	h.write("plan.md", b.String())
	return filepath.Join(filepath.Dir(h.home), "plan.md")
}

// push begins a job and waits for its end. Args are push's.
func (c clone) push(plan string, args ...string) (job string, doc map[string]any) {
	c.t.Helper()
	out := c.run(c.dir, "cove", append([]string{"push", "--agent", "shell", "-s", gitSprite, "--json", plan}, args...)...)
	if err := json.Unmarshal([]byte(out), &doc); err != nil {
		c.t.Fatalf("%v in %s", err, out)
	}
	job = fmt.Sprint(doc["job"])
	if out, code := c.try(c.dir, "cove", "job", "wait", job); code != 0 {
		log, _ := c.try(c.dir, "cove", "job", "logs", job)
		c.t.Fatalf("job %s: %s\n%s", job, out, log)
	}
	return job, doc
}

// pull pulls, and returns what --json says with the exit code.
func (c clone) pull(job string, args ...string) (doc map[string]any, code int) {
	c.t.Helper()
	out, code := c.try(c.dir, "cove", append([]string{"pull", job, "--json"}, args...)...)
	if err := json.Unmarshal([]byte(out), &doc); err != nil {
		c.t.Fatalf("%v in %s", err, out)
	}
	return doc, code
}

// forwarded pulls what must be a fast-forward.
func (c clone) forwarded(job string, args ...string) map[string]any {
	c.t.Helper()
	doc, code := c.pull(job, args...)
	if code != 0 || doc["result"] != "fast-forward" {
		c.t.Errorf("pull of %s: %d, %v", job, code, doc)
	}
	return doc
}

// roundTrip has an agent add a file, and expects the commit on the branch.
func (c clone) roundTrip(pushArgs ...string) {
	c.t.Helper()
	head := c.git("rev-parse", "HEAD")
	fsck := `test -z "$(git fsck --full --no-dangling 2>&1)"`
	job, _ := c.push(c.plan(fsck+"\ngit rev-parse HEAD > seen\ngit status --porcelain | grep -v seen && exit 1\ngit symbolic-ref -q HEAD"), pushArgs...)
	c.forwarded(job)
	if got := c.git("show", "HEAD:seen"); got != head || c.git("rev-parse", "HEAD^") != head {
		c.t.Errorf("%s: the agent saw %s, not %s", c.dir, got, head)
	}
}

// TestGitG1: a dirty tree is refused, included or ignored, as was chosen, and the
// index is not touched. What was included is pulled on top of itself.
func TestGitG1(t *testing.T) {
	c := newGitHost(t).clone("dirty")
	plan := c.plan("ls > seen\ncat a.txt staged new >> seen 2>/dev/null || true")
	old := c.git("rev-parse", "HEAD")
	c.file("a.txt", "changed\n")
	c.file("staged", "staged\n")
	c.git("add", "staged")
	c.file("new", "new\n")
	index, status := c.read(".git/index"), c.git("status", "--porcelain")
	untouched := func(what string) {
		t.Helper()
		if c.read(".git/index") != index || c.git("status", "--porcelain") != status {
			t.Errorf("%s: index or status changed:\n%s", what, c.git("status", "--porcelain"))
		}
	}
	out, code := c.try("dirty", "cove", "push", "--agent", "shell", "-s", gitSprite, plan)
	if code != 1 || !strings.Contains(out, "--dirty include") || !strings.Contains(out, "--dirty ignore") || !strings.Contains(out, "a.txt, staged, new") {
		t.Errorf("refuse: %d, %s", code, out)
	}
	untouched("refuse")
	ignored, doc := c.push(plan, "--dirty", "ignore")
	if doc["base"] != old {
		t.Errorf("ignore: began with %v", doc["base"])
	}
	untouched("ignore")
	included, _ := c.push(plan, "--dirty", "include")
	untouched("include")
	if out, code := c.try("dirty", "cove", "pull", included, "--wait=10m"); code != 0 || !strings.Contains(out, ": 1 commit, on top of "+c.git("rev-parse", "--short=10", "HEAD^")+", the snapshot of your own uncommitted changes.") {
		t.Errorf("pull: %d, %s", code, out)
	}
	if got := c.read("seen"); got != "a.txt\nnew\nseen\nstaged\nchanged\nstaged\nnew\n" || c.git("status", "--porcelain") != "" {
		t.Errorf("include: the agent saw %q, status %q", got, c.git("status", "--porcelain"))
	}
	if got := c.git("rev-parse", "HEAD~2"); got != old {
		t.Errorf("the snapshot is not on top of %s", old)
	}
	if doc, code := c.pull(ignored); code != 4 || doc["result"] != "kept" {
		t.Errorf("the other job: %d, %v", code, doc)
	}
	if got := c.git("show", "refs/cove/"+ignored+"/head:seen"); !strings.HasPrefix(got, "a.txt\nseen\nline") {
		t.Errorf("ignore: the agent saw %q", got)
	}
}

// TestGitG2: repositories of every shape make the round trip.
func TestGitG2(t *testing.T) {
	h := newGitHost(t)
	plain := h.clone("plain")
	url := "file://" + filepath.Join(filepath.Dir(h.home), "plain")
	plain.git("config", "uploadpack.allowFilter", "true")

	for _, branch := range []string{"feature/x/y", "ünï-ço.dé", `a@b'"$x`} {
		plain.git("checkout", "-q", "-b", branch)
		plain.roundTrip()
	}
	plain.git("checkout", "-q", "main")
	plain.git("worktree", "add", "-q", "-b", "linked", "../linked")
	clone{h, "linked"}.roundTrip()

	h.run("", "git", "clone", "-q", "--depth", "2", url, "shallow")
	clone{h, "shallow"}.roundTrip()
	h.run("", "git", "clone", "-q", "--shared", "plain", "borrower")
	clone{h, "borrower"}.roundTrip()
	h.clone("sha256", "--object-format=sha256").roundTrip()
	replaced := h.clone("replaced")
	replaced.git("replace", "HEAD~1", replaced.git("commit-tree", "-m", "false", "HEAD~1^{tree}"))
	replaced.roundTrip()

	// A partial clone has not all of its history, but the last commit.
	h.run("", "git", "clone", "-q", "--filter=blob:none", url, "partial")
	partial := clone{h, "partial"}
	if out, code := h.try("partial", "cove", "push", "--agent", "shell", h.plan("true")); code != 1 || !strings.Contains(out, "--depth 1") {
		t.Errorf("partial: %d, %s", code, out)
	}
	partial.roundTrip("--depth", "1")

	h.run("", "git", "clone", "-q", "--bare", "plain", "bare.git")
	bare := clone{h, "bare.git"}
	job, _ := bare.push(h.plan("echo x > x"))
	bare.forwarded(job)
	if got := bare.git("show", "main:x"); got != "x" {
		t.Errorf("bare: got %q", got)
	}
	// Without a branch the commits become one.
	plain.git("checkout", "-q", "--detach")
	job, _ = plain.push(h.plan("echo x > x"))
	if doc, code := plain.pull(job); code != 0 || doc["result"] != "kept" || doc["branch"] != "cove-"+job || plain.git("show", "cove-"+job+":x") != "x" {
		t.Errorf("detached: %d, %v", code, doc)
	}
	h.run("", "git", "init", "-q", "unborn")
	if out, code := h.try("unborn", "cove", "push", "--agent", "shell", h.plan("true")); code != 1 || !strings.Contains(out, "git add -A && git commit") {
		t.Errorf("unborn: %d, %s", code, out)
	}
	plain.git("update-ref", "refs/heads/-x", "main")
	plain.git("symbolic-ref", "HEAD", "refs/heads/-x")
	if out, code := h.try("plain", "cove", "push", "--agent", "shell", h.plan("true")); code != 1 || !strings.Contains(out, "git switch -c") {
		t.Errorf("a dash: %d, %s", code, out)
	}
}

// TestGitG2Submodules: submodules go along, with those inside of them; what is done in
// one comes back into its own repository, also what was left uncommitted.
func TestGitG2Submodules(t *testing.T) {
	h := newGitHost(t)
	inner, lib := h.clone("inner"), h.clone("lib")
	_ = inner
	url := func(name string) string { return "file://" + filepath.Join(filepath.Dir(h.home), name) }
	lib.git("submodule", "-q", "add", url("inner"), "deep/inner")
	lib.commit("inner")
	c := h.clone("super")
	c.git("submodule", "-q", "add", url("lib"), "lib")
	c.git("submodule", "-q", "add", url("inner"), "other")
	c.git("submodule", "-q", "update", "--init", "--recursive")
	c.commit("submodules")
	before := c.git("-C", "lib", "rev-parse", "HEAD")

	job, _ := c.push(h.plan(
		"test -z \"$(git status --porcelain)\"\ngit submodule status --recursive | grep -v '^ ' && exit 1\ncat lib/a.txt lib/deep/inner/a.txt > seen",
		"cd lib/deep/inner\necho new > new\ngit add .\ngit commit -qm innermost\ncd ../..\necho x >> a.txt\ngit commit -qam inside\ncd ..\ngit add lib",
		"true"))
	h.run("", "cove", "exec", "-s", gitSprite, "sh", "-c", "true")
	doc := c.forwarded(job)
	if got := c.read("seen"); got != strings.Repeat("line\n", 6) {
		t.Errorf("the agent saw %q", got)
	}
	modules, _ := json.Marshal(doc["submodules"])
	if !strings.Contains(string(modules), `"path":"lib/deep/inner"`) || !strings.Contains(string(modules), `"subject":"inside"`) {
		t.Errorf("submodules: %s", modules)
	}
	messages := fmt.Sprint(doc["messages"])
	if !strings.Contains(messages, "git submodule update --recursive -- lib]") || c.git("-C", "lib", "rev-parse", "HEAD") != before {
		t.Errorf("messages: %s", messages)
	}
	c.git("-C", "lib", "config", "remote.origin.url", "/nonexistent") // all is here
	if out, code := h.try("super", "cove", "push", "--agent", "shell", h.plan("true")); code != 1 || !strings.Contains(out, "hint: where a submodule is only behind what was pulled: git submodule update --recursive -- lib\n") {
		t.Errorf("behind: %d, %s", code, out)
	}
	c.git("submodule", "-q", "update", "--recursive", "--", "lib")
	if c.read("lib/deep/inner/new") != "new\n" || c.git("status", "--porcelain") != "" || c.git("-C", "lib", "fsck", "--no-dangling") != "" {
		t.Errorf("after the update: %s", c.git("status", "--porcelain"))
	}
	if c.git("fsck", "--no-dangling") != "" {
		t.Error("fsck")
	}

	c.file("lib/deep/inner/a.txt", "dirty\n")
	c.file("other/untracked", "dirty\n")
	out, code := h.try("super", "cove", "push", "--agent", "shell", "-s", gitSprite, h.plan("true"), "--dirty", "include")
	if code != 1 || !strings.Contains(out, "lib/deep/inner/a.txt, other/untracked") || !strings.Contains(out, "git -C lib/deep/inner add") || !strings.Contains(out, "git -C other add") {
		t.Errorf("a dirty submodule: %d, %s", code, out)
	}
	c.git("-C", "lib/deep/inner", "checkout", "-q", ".")
	c.git("-C", "other", "clean", "-q", "-f")
	c.git("submodule", "-q", "deinit", "other")
	job, doc = c.push(h.plan("ls other > seen"), "--dirty", "ignore")
	if !strings.Contains(fmt.Sprint(doc["messages"]), "other") {
		t.Errorf("one that is not there: %v", doc)
	}
	c.forwarded(job)

	// A submodule that is gone when its commits come.
	job, _ = c.push(h.plan("echo x >> lib/a.txt\ngit -C lib commit -qam gone\ngit add lib"), "--dirty", "ignore")
	c.git("submodule", "-q", "deinit", "-f", "lib")
	if out, code := h.try("super", "cove", "pull", job); code != 1 || !strings.Contains(out, "git submodule update --init") {
		t.Errorf("without its submodule: %d, %s", code, out)
	}
	c.git("submodule", "-q", "update", "--init", "--recursive", "lib")
	c.forwarded(job)
	c.git("submodule", "-q", "update", "--recursive", "lib")

	// Left uncommitted inside.
	out = h.run("super", "cove", "push", "--agent", "shell", "-s", gitSprite, "--json", h.plan("echo left >> lib/a.txt\nexit 1"))
	job = jsonField(t, out, "job")
	h.try("", "cove", "job", "wait", job)
	doc, _ = c.pull(job)
	modules, _ = json.Marshal(doc["submodules"])
	if !strings.Contains(fmt.Sprint(doc["messages"]), "take them: git -C lib cherry-pick --no-commit refs/cove/"+job+"/leftover") {
		t.Errorf("messages: %v", doc["messages"])
	}
	if !strings.Contains(string(modules), `"leftover":"`) || !strings.HasSuffix(c.git("-C", "lib", "show", "refs/cove/"+job+"/leftover:a.txt"), "left") {
		t.Errorf("left in a submodule: %v", doc)
	}
}

// TestGitG2LFS: the content of large files goes along and comes back, and the
// repository has pointers all the time. What is not here is named.
func TestGitG2LFS(t *testing.T) {
	h := newGitHost(t)
	c := h.clone("lfs")
	pointer := func(content string) (text, oid string) {
		oid = digestOf(content)
		return fmt.Sprintf("version https://git-lfs.github.com/spec/v1\noid sha256:%s\nsize %d\n", oid, len(content)), oid
	}
	big, gone := strings.Repeat("large ", 100_000), "nowhere"
	text, oid := pointer(big)
	c.file(".gitattributes", "*.bin filter=lfs diff=lfs merge=lfs -text\n")
	c.file("big.bin", text)
	c.file("copy.bin", text)
	missing, _ := pointer(gone)
	c.file("gone.bin", missing)
	c.file(".git/lfs/objects/"+oid[:2]+"/"+oid[2:4]+"/"+oid, big)
	c.commit("large files")
	job, doc := c.push(h.plan("sha256sum < big.bin > seen\ncmp big.bin copy.bin\ngrep -q oid gone.bin\ntest \"$(git status --porcelain)\" = '?? seen'",
		"printf made > made.bin\nprintf changed > copy.bin"))
	if !strings.Contains(fmt.Sprint(doc["messages"]), "gone.bin") {
		t.Errorf("what is missing: %v", doc["messages"])
	}
	doc = c.forwarded(job)
	if !strings.Contains(fmt.Sprint(doc["messages"]), "git lfs checkout") || !strings.HasPrefix(c.read("seen"), oid) {
		t.Errorf("messages: %v, seen: %s", doc["messages"], c.read("seen"))
	}
	made, madeID := pointer("made")
	if got := c.read("made.bin"); got != made || c.read(".git/lfs/objects/"+madeID[:2]+"/"+madeID[2:4]+"/"+madeID) != "made" {
		t.Errorf("what the agent made: %q", got)
	}
	if changed, _ := pointer("changed"); c.git("show", "HEAD:copy.bin") != strings.TrimSpace(changed) {
		t.Errorf("what it changed: %q", c.git("show", "HEAD:copy.bin"))
	}
	// The second time it is there.
	_, doc = c.push(h.plan("sha256sum < big.bin | grep " + oid))
	if sent, ok := doc["sent"].(float64); !ok || sent > 2000 {
		t.Errorf("sent %v bytes", doc["sent"])
	}
}

// TestGitG2LFSModules: so it is in submodules, each of which has its large files in its
// own repository. An agent's large file becomes a pointer also where none came along.
func TestGitG2LFSModules(t *testing.T) {
	h := newGitHost(t)
	large := func(content string) (text, object string) {
		oid := digestOf(content)
		return fmt.Sprintf("version https://git-lfs.github.com/spec/v1\noid sha256:%s\nsize %d\n", oid, len(content)), "lfs/objects/" + oid[:2] + "/" + oid[2:4] + "/" + oid
	}
	url := func(name string) string { return "file://" + filepath.Join(filepath.Dir(h.home), name) }
	for _, name := range []string{"inner", "lib"} {
		c := h.clone(name)
		c.file(".gitattributes", "*.bin filter=lfs diff=lfs merge=lfs -text\n")
		for _, content := range []string{"of " + name, "gone from " + name} {
			text, _ := large(content)
			c.file(strings.Fields(content)[0]+".bin", text)
		}
		if name == "lib" {
			c.git("submodule", "-q", "add", url("inner"), "deep/inner")
		}
		c.commit("large files")
	}
	c := h.clone("super")
	c.git("submodule", "-q", "add", url("lib"), "lib")
	c.git("submodule", "-q", "update", "--init", "--recursive")
	c.commit("submodules")
	lib, inner := ".git/modules/lib/", ".git/modules/lib/modules/deep/inner/"
	for dir, content := range map[string]string{lib: "of lib", inner: "of inner"} {
		_, object := large(content)
		c.file(dir+object, content)
	}
	job, doc := c.push(h.plan("cat lib/of.bin lib/deep/inner/of.bin > seen\ngrep -q oid lib/gone.bin\ntest \"$(git status --porcelain)\" = '?? seen'",
		"cd lib/deep/inner\nprintf innermost > made.bin\ngit add .\ngit commit -qm made\ncd ../..\nprintf made > made.bin\ngit add .\ngit commit -qm made\ncd ..\ngit add lib"))
	messages := fmt.Sprint(doc["messages"])
	if !strings.Contains(messages, "lib/gone.bin, lib/deep/inner/gone.bin;") || !strings.Contains(messages, "git -C lib lfs pull && git -C lib/deep/inner lfs pull") || strings.Contains(messages, "of.bin") {
		t.Errorf("what is missing: %s", messages)
	}
	doc = c.forwarded(job)
	if c.read("seen") != "of libof inner" || !strings.Contains(fmt.Sprint(doc["messages"]), "git -C lib lfs checkout && git -C lib/deep/inner lfs checkout") {
		t.Errorf("the agent saw %q; %v", c.read("seen"), doc["messages"])
	}
	for dir, content := range map[string]string{lib: "made", inner: "innermost"} {
		text, object := large(content)
		in := map[string]string{lib: "lib", inner: "lib/deep/inner"}[dir]
		if got := c.git("-C", in, "show", "refs/cove/"+job+"/head:made.bin"); got != strings.TrimSpace(text) || c.read(dir+object) != content {
			t.Errorf("%s: what the agent made: %q", in, got)
		}
	}
	c.git("submodule", "-q", "update", "--recursive")
	// The second time it is there; and with nothing here, pointers are made all the same.
	if _, doc = c.push(h.plan("cmp lib/of.bin lib/deep/inner/of.bin && exit 1\ngrep lib lib/of.bin")); strings.Contains(fmt.Sprint(doc["messages"]), "of.bin") {
		t.Errorf("what the sprite has is missing: %v", doc["messages"])
	}
	none := h.clone("none")
	none.file(".gitattributes", "*.bin filter=lfs -text\n")
	none.commit("attributes")
	job, _ = none.push(h.plan("printf only > only.bin"))
	none.forwarded(job)
	text, object := large("only")
	if none.read("only.bin") != text || none.read(".git/"+object) != "only" {
		t.Errorf("without any: %q", none.read("only.bin"))
	}
}

// TestGitG3: the results are under the job's refs, and no branch moves but the one
// that was recorded.
func TestGitG3(t *testing.T) {
	h := newGitHost(t)
	c := h.clone("refs")
	main := c.git("rev-parse", "main")
	job, _ := c.push(h.plan("echo x > x"))
	c.git("checkout", "-q", "-b", "other")
	if doc, code := c.pull(job, "--into", "none"); code != 0 || doc["result"] != "kept" || c.git("rev-parse", "main") != main || c.git("rev-parse", "other") != main {
		t.Errorf("into none: %d, %v", code, doc)
	}
	if got := c.git("for-each-ref", "--format=%(refname)", "refs/cove"); got != "refs/cove/"+job+"/base\nrefs/cove/"+job+"/head" {
		t.Errorf("refs: %s", got)
	}
	if doc, code := c.pull(job, "--into", "branch"); code != 0 || c.git("rev-parse", "cove-"+job) != doc["head"] || c.git("rev-parse", "main") != main {
		t.Errorf("into branch: %d, %v", code, doc)
	}
	c.forwarded(job)
	if c.git("show", "main:x") != "x" || c.git("rev-parse", "other") != main || c.git("branch", "--show-current") != "other" || c.git("status", "--porcelain") != "" {
		t.Error("the branch that is checked out moved, or the recorded one did not")
	}
	// A branch that is deleted meanwhile is not made again.
	c.git("checkout", "-q", "main")
	job, _ = c.push(h.plan("echo y > y"))
	c.git("checkout", "-q", "other")
	c.git("branch", "-q", "-D", "main")
	if doc, code := c.pull(job); code != 4 || doc["result"] != "kept" || !strings.Contains(fmt.Sprint(doc["next"]), "git branch main refs/cove/"+job) {
		t.Errorf("a branch that is gone: %d, %v", code, doc)
	}
}

// TestGitG4: where the branch has gone on, the commits are kept, what a merge would do
// is said, and each of the ways that are offered works, or changes nothing.
func TestGitG4(t *testing.T) {
	h := newGitHost(t)
	c := h.clone("moved")
	jobs := map[string]string{}
	plan := h.plan("echo x > x", "echo y > y")
	for _, how := range []string{"merge", "rebase", "cherry-pick"} {
		jobs[how], _ = c.push(plan)
	}
	conflicting, _ := c.push(h.plan("echo theirs > a.txt"))
	c.file("mine", "mine\n")
	mine := c.commit("mine")
	doc, code := c.pull(jobs["merge"])
	if code != 4 || doc["result"] != "kept" || doc["merges"] != true || !strings.Contains(fmt.Sprint(doc["next"]), "cove job merge "+jobs["merge"]) {
		t.Errorf("moved on: %d, %v", code, doc)
	}
	if out := h.run("moved", "cove", "job", "diff", jobs["rebase"]); !strings.Contains(out, "+++ b/y\n@@ -0,0 +1 @@\n+y\n") {
		t.Errorf("diff: %s", out)
	}
	if out := h.run("moved", "cove", "job", "log", jobs["rebase"]); strings.Count(out, "\ncommit ") != 1 || !strings.Contains(out, "    Step 2") {
		t.Errorf("log: %s", out)
	}
	first := c.git("rev-parse", "refs/cove/"+jobs["rebase"]+"/head^")
	if out := h.run("moved", "cove", "job", "show", jobs["rebase"], first[:9]); !strings.Contains(out, "+x") || strings.Contains(out, "+y") {
		t.Errorf("show: %s", out)
	}
	h.try("moved", "cove", "pull", jobs["cherry-pick"])
	picked := c.git("rev-parse", "refs/cove/"+jobs["cherry-pick"]+"/head")
	for how, want := range map[string]string{"merge": "Merge job " + jobs["merge"], "rebase": "Step 2\nStep 1", "cherry-pick": "Step 2"} {
		c.git("reset", "-q", "--hard", mine)
		args := []string{"job", how, jobs[how]}
		if how == "cherry-pick" {
			args = append(args, picked[:8])
		}
		h.run("moved", "cove", args...)
		if got := c.git("log", "--first-parent", "--format=%s", mine+".."); got != want || c.git("status", "--porcelain") != "" {
			t.Errorf("%s: %q, %s", how, got, c.git("status", "--porcelain"))
		}
		if got := c.read("y"); got != "y\n" {
			t.Errorf("%s: y is %q", how, got)
		}
	}
	c.git("reset", "-q", "--hard", mine)
	c.file("a.txt", "mine\n")
	mine = c.commit("in the way")
	if doc, code := c.pull(conflicting); code != 4 || fmt.Sprint(doc["conflicts"]) != "[a.txt]" {
		t.Errorf("conflict: %d, %v", code, doc)
	}
	for _, how := range []string{"merge", "rebase"} {
		out, code := h.try("moved", "cove", "job", how, conflicting)
		if code != 3 || !strings.Contains(out, "a.txt") || !strings.Contains(out, "hint: git switch") || c.git("rev-parse", "main") != mine || c.git("status", "--porcelain") != "" {
			t.Errorf("%s with a conflict: %d, %s", how, code, out)
		}
	}
}

// TestGitG5: a job without commits is no error, and has nothing to bring.
func TestGitG5(t *testing.T) {
	h := newGitHost(t)
	c := h.clone("idle")
	head := c.git("rev-parse", "main")
	job, _ := c.push(h.plan("ls"))
	if doc, code := c.pull(job); code != 0 || doc["result"] != "no-changes" || c.git("rev-parse", "main") != head {
		t.Errorf("got %d, %v", code, doc)
	}
	if out, code := h.try("idle", "cove", "job", "merge", job); code != 1 || !strings.Contains(out, "no commits") {
		t.Errorf("merge: %d, %s", code, out)
	}
	if out, code := h.try("idle", "cove", "job", "diff", job); code != 0 || out != "" {
		t.Errorf("diff: %d, %s", code, out)
	}
}

// TestGitG6: what the agent did not commit comes on a ref of its own.
func TestGitG6(t *testing.T) {
	h := newGitHost(t)
	c := h.clone("left")
	out := h.run("left", "cove", "push", "--agent", "shell", "-s", gitSprite, "--json", h.plan("echo done > done", "echo left > left\nrm a.txt\nexit 3"))
	job := jsonField(t, out, "job")
	h.try("left", "cove", "job", "wait", job)
	doc, code := c.pull(job)
	if code != 4 || doc["result"] != "kept" || !strings.Contains(fmt.Sprint(doc["leftover"]), "left") {
		t.Errorf("got %d, %v", code, doc)
	}
	ref := "refs/cove/" + job
	if got := c.git("diff", "--name-status", ref+"/head", ref+"/leftover"); got != "D\ta.txt\nA\tleft" {
		t.Errorf("left: %s", got)
	}
	if out := h.run("left", "cove", "job", "diff", job, "--leftover", "--stat"); !strings.Contains(out, "left") || strings.Contains(out, "done") {
		t.Errorf("diff: %s", out)
	}
	h.run("left", "cove", "job", "merge", job)
	if c.read("done") != "done\n" || c.read("a.txt") == "" {
		t.Error("the commits of a job that failed could not be merged")
	}
}

// TestGitG7: a bundle that was cut off or changed is rejected, and no hook runs.
func TestGitG7(t *testing.T) {
	h := newGitHost(t)
	c := h.clone("tampered")
	ran := filepath.Join(filepath.Dir(h.home), "ran")
	for _, hook := range []string{"post-merge", "post-checkout", "reference-transaction", "post-index-change", "pre-commit", "post-commit"} {
		c.file(".git/hooks/"+hook, "#!/bin/sh\ntouch "+ran+"\n")
		h.run("tampered", "chmod", "+x", ".git/hooks/"+hook)
	}
	h.run("", "rm", "-f", ran)
	head, refs := c.git("rev-parse", "main"), c.git("for-each-ref", "refs/heads")
	h.run("", "rm", "-f", ran) // git itself runs hooks
	for name, tamper := range map[string]string{
		"cut off": "truncate -s -30 $f", "changed": "printf tampered | dd of=$f bs=1 seek=300 conv=notrunc 2>/dev/null", "gone": "rm $f",
	} {
		job, _ := c.push(h.plan("head -c 3000 /dev/urandom > more.bin"))
		h.run("", "cove", "exec", "-s", gitSprite, "sh", "-c", "f=.cove/jobs/"+job+"/out.bundle; "+tamper)
		out, code := h.try("tampered", "cove", "pull", job)
		if want := map[bool]int{true: 1, false: 5}[name == "gone"]; code != want {
			t.Errorf("%s: %d, %s", name, code, out)
		}
		if _, err := os.Stat(ran); err == nil {
			t.Fatalf("%s: a hook ran", name)
		}
	}
	if c.git("rev-parse", "main") != head || c.git("for-each-ref", "refs/heads") != refs {
		t.Error("something moved")
	}
}

// TestGitG8: jobs at once on one repository, pulled at once.
func TestGitG8(t *testing.T) {
	h := newGitHost(t)
	c := h.clone("parallel")
	var jobs []string
	for i := range 3 {
		out := h.run("parallel", "cove", "push", "--agent", "shell", "-s", gitSprite, "--json", h.plan(fmt.Sprintf("sleep 0.3; echo %d > f%d", i, i)))
		jobs = append(jobs, jsonField(t, out, "job"))
	}
	codes := make(chan int, len(jobs))
	for _, job := range jobs {
		go func() {
			cmd := h.command("parallel", "cove", "pull", job, "--wait=10m")
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
		h.run("parallel", "cove", "job", "merge", job)
	}
	for i := range jobs {
		if c.read(fmt.Sprintf("f%d", i)) != fmt.Sprintf("%d\n", i) {
			t.Errorf("the work of job %d is missing", i)
		}
	}
	if c.git("status", "--porcelain") != "" || c.git("fsck", "--no-dangling") != "" {
		t.Error("not clean")
	}
}

// TestGitG9: what jobs leave behind is listed, and goes when it is no longer needed: on
// both sides by job rm, here by job refs --prune. What is nowhere else stays.
func TestGitG9(t *testing.T) {
	h := newGitHost(t)
	c := h.clone("tidy")
	plan := h.plan("date +%N > f")
	merged, _ := c.push(plan)
	c.forwarded(merged)
	kept, _ := c.push(plan)
	c.pull(kept, "--into", "none")
	unpulled, _ := c.push(plan)
	idle, _ := c.push(h.plan("ls"))
	// As processes leave them that were killed.
	c.file(".git/cove/in-dead/objects/x", "x")
	c.file(".git/cove/in-dead.work/y", "y")
	jobs := func(args ...string) string {
		t.Helper()
		var doc struct {
			Jobs []struct {
				Job       string
				Elsewhere bool
			}
			Removed []string
		}
		if err := json.Unmarshal([]byte(h.run("tidy", "cove", append([]string{"job", "refs", "--json"}, args...)...)), &doc); err != nil {
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
	if got := jobs("--prune"); got != "[keptfalse unpulledtrue] 2" || c.git("for-each-ref", "refs/cove/"+merged, "refs/cove/"+idle) != "" {
		t.Errorf("pruned to %s", got)
	}
	if _, err := os.Stat(filepath.Join(filepath.Dir(h.home), "tidy/.git/cove/in-dead.work")); err == nil {
		t.Error("what a killed process left is still there")
	}
	out, code := h.try("tidy", "cove", "job", "rm", kept)
	if code != 0 || !strings.Contains(out, "refs/cove/"+kept+"/head") || c.git("rev-parse", "refs/cove/"+kept+"/head") == "" {
		t.Errorf("rm of one whose commits are nowhere else: %d, %s", code, out)
	}
	c.pull(unpulled, "--into", "branch")
	h.run("tidy", "cove", "job", "rm", unpulled)
	if got := jobs(); got != "[keptfalse] 0" {
		t.Errorf("left: %s", got)
	}
	if got := h.run("", "cove", "exec", "-s", gitSprite, "sh", "-c", "ls work .cove/jobs"); strings.Contains(got, unpulled) || strings.Contains(got, kept) {
		t.Errorf("left in the sprite: %s", got)
	}
	if got := jobs("--prune", "--force"); got != "[] 1" {
		t.Errorf("forced: %s", got)
	}
}

// TestGitG10: a depth bounds what is sent, and the agent's repository is sound. A
// second push sends only what is new.
func TestGitG10(t *testing.T) {
	h := newGitHost(t)
	c := h.clone("deep")
	for i := range 20 {
		c.file("noise", strings.Repeat(digestOf(fmt.Sprint(i)), 400))
		h.run("deep", "sh", "-c", "head -c 20000 /dev/urandom > noise")
		c.commit(fmt.Sprint("noise ", i))
	}
	sound := "test -z \"$(git fsck --full --strict --no-dangling 2>&1)\"\n"
	push := func(step string, args ...string) float64 {
		t.Helper()
		job, doc := c.push(h.plan(sound+step), args...)
		c.forwarded(job)
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
	c.file("one", "more\n")
	c.commit("one more")
	if sent := push("test $(git rev-list --count HEAD) = 27\necho 4 > x"); sent > 2000 {
		t.Errorf("one commit: %v bytes", sent)
	}
	// A sprite that is wrong about what it has gets all of it the next time.
	h.run("", "cove", "exec", "-s", gitSprite, "sh", "-c", "rm -f .cove/repositories/*/pack/*.pack")
	out := h.run("deep", "cove", "push", "--agent", "shell", "-s", gitSprite, "--json", h.plan("true"))
	job := jsonField(t, out, "job")
	if out, code := h.try("deep", "cove", "job", "wait", job); code == 0 || !strings.Contains(out, "push again") {
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
