package config_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/cove-dev/cove/internal/cli/config"
	"github.com/cove-dev/cove/internal/server/agents"
)

// agentText is a definition of an agent of that name.
func agentText(name, version string) string {
	return "name = \"" + name + "\"\nversion = \"" + version + "\"\nargv = [\"x\", \"{prompt_file}\"]\nverify = [\"x\"]\n"
}

// A repository's agent is used as far as the person has read it, and never in place of
// another.
func TestAgentTrust(t *testing.T) {
	p := world(t, map[string]string{
		"top/.cove/agents/theirs.toml": agentText("theirs", "1"), "top/.cove/agents/both.toml": agentText("both", "theirs"),
		"top/.cove/agents/claude.toml": agentText("claude", "9"), "home/agents/both.toml": agentText("both", "mine"),
		"top/.cove/agents/named.toml": agentText("other", "1"), "top/.cove/config.toml": "agent = \"theirs\"\n",
	}, nil)
	theirs := func() config.AgentFile {
		t.Helper()
		files, err := p.AgentFiles()
		for _, f := range files {
			if err == nil && f.Name == "theirs" {
				return f
			}
		}
		t.Fatalf("got %+v, %v", files, err)
		return config.AgentFile{}
	}
	if s, err := config.Load(p); err != nil || s.Value(config.Agent).Text != "theirs" {
		t.Errorf("a setting may name it: %v", err)
	}
	if _, err := p.Agent("theirs"); !errors.Is(err, config.ErrUntrusted) {
		t.Errorf("unasked: %v", err)
	}
	if err := p.TrustAgent(theirs(), false); err != nil {
		t.Fatal(err)
	}
	if a, err := p.Agent("theirs"); err != nil || a.Name() != "theirs" {
		t.Errorf("trusted: %v", err)
	}
	if a, err := p.Agent("both"); err != nil || mustWork(t, a) != "mine" {
		t.Errorf("both have one: %v", err)
	}
	if a, err := p.Agent("claude"); err != nil || mustWork(t, a) == "9" {
		t.Errorf("cove's own: %v", err)
	}
	if _, err := p.Agent("named"); err == nil || !strings.Contains(err.Error(), "it defines the agent other, but is called named.toml") {
		t.Errorf("another name: %v", err)
	}
	seen := theirs()
	file := filepath.Join(p.Top, ".cove/agents/theirs.toml")
	if err := os.WriteFile(file, []byte(agentText("theirs", "2")), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Agent("theirs"); !errors.Is(err, config.ErrUntrusted) {
		t.Errorf("with another text: %v", err)
	}
	if err := p.TrustAgent(seen, false); err == nil {
		t.Error("a text is trusted that was not the one that was shown")
	}
	if err := p.TrustAgent(theirs(), false); err != nil {
		t.Fatal(err)
	}
	if err := p.TrustAgent(theirs(), true); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Agent("theirs"); !errors.Is(err, config.ErrUntrusted) {
		t.Errorf("taken back: %v", err)
	}
}

func mustWork(t *testing.T, agent agents.Agent) string {
	t.Helper()
	w, err := agents.Trial(agent, "/h")
	if err != nil {
		t.Fatal(err)
	}
	return w.Version
}

// A link in a repository does not lead to a file outside of it.
func TestAgentLinks(t *testing.T) {
	p := world(t, map[string]string{"home/secret.toml": "key = 'the-secret'\n", "top/x": ""}, nil)
	dir := filepath.Join(p.Top, ".cove", "agents")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(filepath.Dir(p.Personal), "secret.toml"), filepath.Join(dir, "x.toml")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("../../home/secret.toml", filepath.Join(p.Top, ".cove", "skill.md")); err != nil {
		t.Fatal(err)
	}
	files, err := p.AgentFiles()
	if err != nil || len(files) != 1 || files[0].Err == nil || strings.Contains(files[0].Err.Error(), "the-secret") {
		t.Errorf("got %+v, %v", files, err)
	}
	if s, err := p.Skill(); err == nil || s != nil {
		t.Errorf("the skill: %+v, %v", s, err)
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Dir(p.Personal), dir); err != nil {
		t.Fatal(err)
	}
	if files, err := p.AgentFiles(); err == nil || len(files) > 0 {
		t.Errorf("a folder elsewhere: %+v, %v", files, err)
	}
}

// A named pipe is not read, because that would wait for a writer: it is an error.
func TestPipes(t *testing.T) {
	p := world(t, map[string]string{"home/x": "", "top/x": ""}, nil)
	dir := filepath.Join(p.Top, ".cove", "agents")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{filepath.Join(dir, "x.toml"), filepath.Join(p.Top, ".cove", "skill.md"), filepath.Join(p.Top, ".cove", "config.toml"), p.Personal} {
		if err := syscall.Mkfifo(name, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if files, err := p.AgentFiles(); err != nil || len(files) != 1 || files[0].Err == nil || !strings.Contains(files[0].Err.Error(), "it is not a file") {
		t.Errorf("an agent: got %+v, %v", files, err)
	}
	if s, err := p.Skill(); err == nil || s != nil {
		t.Errorf("the skill: got %+v, %v", s, err)
	}
	if _, err := config.Load(p); err == nil || !strings.Contains(err.Error(), "it is not a file") {
		t.Errorf("the settings: got %v", err)
	}
}
