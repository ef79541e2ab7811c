package gitwork_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cove-dev/cove/internal/cli/gitwork"
	"github.com/cove-dev/cove/internal/test/executable"
)

// A program that a job plants, or that the person's own configuration would run on the
// job's files, leaves a canary if it runs.
func TestNothingRuns(t *testing.T) {
	canaries := t.TempDir()
	touch := func(name string) string { return "touch " + filepath.Join(canaries, name) + "; cat" }
	home(t, `[filter "evil"]
	clean = `+touch("global-clean")+`
	smudge = `+touch("global-smudge")+`
	process = touch `+filepath.Join(canaries, "global-process")+`
	required = true
[diff "evil"]
	textconv = touch `+filepath.Join(canaries, "global-textconv")+`; cat
	command = touch `+filepath.Join(canaries, "global-diff")+`
[diff]
	external = touch `+filepath.Join(canaries, "global-external")+`
[merge "evil"]
	driver = touch `+filepath.Join(canaries, "global-merge")+`
[core]
	fsmonitor = touch `+filepath.Join(canaries, "global-fsmonitor")+`
	pager = touch `+filepath.Join(canaries, "global-pager")+`
	hooksPath = `+filepath.Join(canaries, "hooks")+`
[credential]
	helper = !touch `+filepath.Join(canaries, "credential")+`
[commit]
	gpgSign = true
[gpg]
	program = touch `+filepath.Join(canaries, "gpg")+`
`)
	t.Setenv("GIT_EXTERNAL_DIFF", "touch "+filepath.Join(canaries, "env-external"))
	t.Setenv("GIT_SSH_COMMAND", "touch "+filepath.Join(canaries, "env-ssh"))
	t.Setenv("GIT_DIR", "/nonexistent")
	t.Setenv("GIT_INDEX_FILE", "/nonexistent")

	r := newRepo(t)
	for _, hook := range strings.Fields("post-merge post-checkout reference-transaction pre-commit post-commit post-index-change post-rewrite fsmonitor-watchman") {
		for _, dir := range []string{filepath.Join(r.dir, ".git/hooks"), filepath.Join(canaries, "hooks")} {
			script := filepath.Join(dir, hook)
			executable.Write(t, script, "#!/bin/sh\ntouch "+filepath.Join(canaries, "hook-"+hook)+"\n")
		}
	}
	base := r.git("rev-parse", "HEAD")
	a := r.agent()
	a.write(".gitattributes", "* filter=evil diff=evil merge=evil\nlocal filter=local diff=local merge=local\n")
	a.write("README", "the job's\n")
	a.write("local", "the job's\n")
	a.write(".gitmodules", "[submodule \"s\"]\n\tpath = s\n\turl = "+r.dir+"\n")
	// In the agent's own configuration, which must not travel.
	a.commit("attributes")
	a.git("update-index", "--add", "--cacheinfo", "160000,"+base+",s")
	a.git("commit", "-q", "-m", "submodule")
	head := a.git("rev-parse", "HEAD")
	for key, value := range map[string]string{
		"core.fsmonitor": "touch " + filepath.Join(canaries, "agent-fsmonitor"), "diff.external": "touch " + filepath.Join(canaries, "agent-external"),
		"filter.evil.smudge": touch("agent-smudge"), "include.path": filepath.Join(a.dir, "evil.config"), "core.sshCommand": "touch " + filepath.Join(canaries, "agent-ssh"),
		"uploadpack.packObjectsHook": "touch " + filepath.Join(canaries, "agent-packhook"),
	} {
		a.git("config", key, value)
	}
	write(t, filepath.Join(a.dir, ".git/hooks/post-checkout"), "#!/bin/sh\ntouch "+filepath.Join(canaries, "agent-hook")+"\n")
	a.git("update-ref", "refs/cove/"+job+"/head", head)
	path := filepath.Join(t.TempDir(), "b")
	a.git("-c", "core.fsmonitor=false", "bundle", "create", "-q", path, "refs/cove/"+job+"/head", "^"+base)

	// In the configuration of the person's repository.
	for key, value := range map[string]string{
		"core.fsmonitor": "touch " + filepath.Join(canaries, "local-fsmonitor"), "filter.local.clean": touch("local-clean"),
		"filter.local.smudge": touch("local-smudge"), "filter.local.process": "touch " + filepath.Join(canaries, "local-process"),
		"filter.local.required": "true", "diff.local.textconv": "touch " + filepath.Join(canaries, "local-textconv"),
		"diff.local.command": "touch " + filepath.Join(canaries, "local-diff"), "merge.local.driver": "touch " + filepath.Join(canaries, "local-merge"),
		"core.hooksPath": filepath.Join(r.dir, ".git/hooks"), "core.alternateRefsCommand": "touch " + filepath.Join(canaries, "local-alternates"),
	} {
		r.git("config", key, value)
	}
	clearCanaries(t, canaries)
	if err := r.imports(path, expect(t, path, base, head)); err != nil {
		t.Fatal(err)
	}
	g := r.open()
	sum, err := g.Summary(t.Context(), base, head)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.forward(base, head); err != nil {
		t.Fatal(err)
	}
	if r.read("README") != "the job's\n" || r.read("local") != "the job's\n" {
		t.Errorf("files are %q and %q", r.read("README"), r.read("local"))
	}
	if err := g.CheckClean(t.Context()); err != nil {
		t.Error(err)
	}
	r.write("README", "edited\n")
	if _, err := g.Snapshot(t.Context(), head); err == nil {
		t.Error("a filtered file was taken into a snapshot")
	}
	seen := canariesIn(t, canaries)
	if len(seen) > 0 {
		t.Errorf("ran: %v", seen)
	}
	why := map[string]string{}
	for _, risk := range sum.Risky {
		why[risk.Path] = risk.Why
	}
	if why[".gitattributes"] == "" || why[".gitmodules"] == "" || !strings.Contains(why["s"], "submodule") || why["README"] != "" {
		t.Errorf("risky: %v", why)
	}
	// The same things do run in plain git: the canaries can sing.
	plain := exec.Command("git", "add", "README")
	plain.Dir, plain.Env = r.dir, env(os.Getenv("HOME"))
	_ = plain.Run() // filters that do nothing but leave a canary fail
	if len(canariesIn(t, canaries)) == 0 {
		t.Error("plain git ran nothing either: the test proves nothing")
	}
}

func canariesIn(t *testing.T, dir string) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if !e.IsDir() {
			names = append(names, e.Name())
		}
	}
	return names
}

func clearCanaries(t *testing.T, dir string) {
	t.Helper()
	for _, name := range canariesIn(t, dir) {
		if err := os.Remove(filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
}

// A file that can make something run, by its name or by a link, is found; others are not.
func TestRisky(t *testing.T) {
	home(t, "")
	r := newRepo(t)
	for name, target := range map[string]string{".claude/skills": "../skills", "pkg/CLAUDE.md": "GUIDE.md", "shown": "README"} {
		r.link(name, target)
	}
	r.write(".gitignore", "*.log\n!keep.log\n.env\n")
	r.write("a/.gitignore", "x\ny\n")
	r.write("b/.gitignore", "x\n")
	r.write("c/.gitignore", "x\n")
	r.git("config", "core.hooksPath", "tools/run")
	base := r.commit("before")
	risky := []string{".github/workflows/ci.yml", ".GitHub/Workflows/x.yml", ".gitlab-ci.yml", "sub/.husky/pre-commit", "Jenkinsfile", ".vscode/tasks.json",
		".claude/settings.json", ".mcp.json", "pkg/.envrc", ".gitattributes", "tools/hooks/pre-push", "AGENTS.md", ".cargo/config.toml", ".lfsconfig",
		".bashrc", ".zprofile", ".cove/setup.sh", "tools/run/anything", "skills/x/SKILL.md", "pkg/GUIDE.md"}
	plain := []string{"src/main.go", "hooks/useState.js", "github/x", "docs/claude.txt", "a.json", "GUIDE.md", "d/.gitignore", "tools/x"}
	for _, name := range append(append([]string{}, risky...), plain...) {
		r.write(name, "x\n")
	}
	r.write(".gitignore", "bin/\n*.log\n!keep.log\n.env\ndist/\n") // ignores more
	r.write("a/.gitignore", "y\n")                                 // ignores less
	r.write("b/.gitignore", "x\n!xx\n")
	if err := os.Remove(filepath.Join(r.dir, "c/.gitignore")); err != nil {
		t.Fatal(err)
	}
	links := map[string]string{"in": "src/main.go", "up": "../outside", "abs": "/etc/passwd", "src/far": "../../x", "src/near": "../README", "dotgit": ".git/config"}
	for name, target := range links {
		r.link(name, target)
	}
	head := r.commit("all")
	sum, err := r.open().Summary(t.Context(), base, head)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, risk := range sum.Risky {
		got[risk.Path] = risk.Why
		if risk.Why == "" {
			t.Errorf("%s without a reason", risk.Path)
		}
	}
	risky = append(risky, "up", "abs", "src/far", "dotgit", "a/.gitignore", "b/.gitignore", "c/.gitignore")
	for _, name := range risky {
		if got[name] == "" {
			t.Errorf("%s is not listed", name)
		}
	}
	if len(got) != len(risky) || !strings.HasSuffix(got["skills/x/SKILL.md"], "by the link .claude/skills") {
		t.Errorf("listed: %v", got)
	}
}

// If a change must be looked at first, no branch moves. The commands that the refusal
// names work with any file name.
func TestForwardHolds(t *testing.T) {
	home(t, "")
	r := newRepo(t)
	base := r.git("rev-parse", "HEAD")
	r.git("checkout", "-q", "-b", "work")
	r.write("x", "1\n")
	head := r.commit("work")
	r.git("checkout", "-q", "main")
	g := r.open()
	lock, err := g.Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Unlock()
	forward := func(paths ...string) (bool, error) {
		f := gitwork.Forward{Job: job, Branch: "main", Base: base, Head: head, Hold: func(_ context.Context, old, to string) (held []gitwork.Risk, err error) {
			if old != base && old != head || to != head {
				t.Errorf("asked of %s and %s", old, to)
			}
			for _, p := range paths {
				held = append(held, gitwork.Risk{Path: p, Why: "x"})
			}
			return held, nil
		}}
		return g.FastForward(t.Context(), lock, f)
	}
	for _, test := range []struct {
		paths []string
		look  string
	}{
		{[]string{".mcp.json", "a b", ".mcp.json"}, "cove job diff " + job + " -- .mcp.json 'a b'"},
		{[]string{"-x;y", "$(z)"}, "cove job diff " + job + " -- '-x;y' '$(z)'"},
		{[]string{"a\x1b[31m"}, "cove job diff " + job},
		{strings.Fields("a b c d e f g h i j k"), "cove job diff " + job},
	} {
		_, err := forward(test.paths...)
		e, ok := errors.AsType[*gitwork.RefusedError](err)
		if !ok || e.Code != "risky" || e.ExitCode() != 4 || !slices.Equal(e.Next, []string{test.look, "cove pull " + job + " --accept-risky"}) {
			t.Errorf("%q: %v, %q", test.paths, err, e.Next)
		}
		if r.git("rev-parse", "main") != base || r.git("status", "--porcelain") != "" {
			t.Errorf("%q: something moved", test.paths)
		}
	}
	if already, err := forward(); already || err != nil || r.git("rev-parse", "main") != head {
		t.Errorf("nothing to hold: %v, %v", already, err)
	}
	if already, err := forward(".mcp.json"); !already || err != nil {
		t.Errorf("what the branch has already is held: %v", err)
	}
}
