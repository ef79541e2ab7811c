package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// plantedKey is in each file of plantedPlaces.
const plantedKey = "sk-ant-oat01-planted-planted-planted-planted"

// plantedPlaces are where agents, and others, keep credentials in a home, and where
// some might lie among settings.
var plantedPlaces = []string{
	".claude/.credentials.json", ".claude/auth.json", ".claude/.env", ".claude/oauth_token", ".claude/history.jsonl", ".claude/projects/x/1.jsonl",
	".claude/settings.local.json", ".claude/plugins/x.md", ".claude/skills/one/.env", ".claude/skills/one/auth.json", ".claude/skills/one/login.keychain-db",
	".claude/skills/one/note.md", ".claude/commands/deploy.md", ".claude/agents/x.md", ".claude.json", ".claude.json.backup",
	".codex/auth.json", ".gemini/oauth_creds.json", ".config/opencode/auth.json", ".local/share/opencode/auth.json", ".pi/agent/auth.json",
	".netrc", ".npmrc", ".git-credentials", ".config/gh/hosts.yml", ".ssh/id_ed25519", ".aws/credentials", ".config/gcloud/x.json",
	"Library/Keychains/login.keychain-db", ".local/share/keyrings/login.keyring", ".env",
}

// TestAgentSettings copies a person's settings for an agent into a sprite: they are
// there, and of the credentials that lie around them none is.
func TestAgentSettings(t *testing.T) {
	h := newHost(t)
	for _, name := range plantedPlaces {
		h.write("home/"+name, `{"token": "`+plantedKey+`"}`)
	}
	h.write("home/.claude/CLAUDE.md", "Use tabs.\n")
	h.write("home/.claude/skills/one/SKILL.md", "Do it well.\n")
	h.write("home/.claude/settings.json", `{"model": "opus", "env": {"ANTHROPIC_API_KEY": "`+plantedKey+`"}}`)
	if err := os.Symlink("../.ssh/id_ed25519", filepath.Join(h.home, ".claude", "rules")); err != nil {
		t.Fatal(err)
	}
	tools := filepath.Join(filepath.Dir(h.home), "agent")
	h.write("agent/claude", "#!/bin/sh\ncase $* in --version) echo 1; exit ;; esac\ncat ~/.claude/CLAUDE.md\necho '{\"type\":\"result\",\"subtype\":\"success\",\"result\":\"done\"}'\n")
	if err := os.Chmod(filepath.Join(tools, "claude"), 0o755); err != nil {
		t.Fatal(err)
	}
	h.serve(nil)
	repo := h.repository("repo", map[string]string{"plan.md": "Do it.\n"})
	flags := []string{"push", "plan.md", "--agent", "claude", "--include", tools, "--env", "PATH=" + tools + ":/.sprite/bin:/usr/local/bin:/usr/bin:/bin"}
	out, code := h.try(repo, "cove", append(flags, "--agent-settings")...)
	if code != 0 {
		t.Fatalf("push exited with %d: %s", code, out)
	}
	for _, want := range []string{"Stays here: ~/.claude/skills/one/note.md: something in line 1 looks like a key.", "Stays here: ~/.claude/rules: ", "3 files of your settings for claude in ~/.claude go along."} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in %s", want, out)
		}
	}
	if strings.Contains(out, plantedKey) {
		t.Errorf("a credential is shown: %s", out)
	}
	job := strings.Fields(out[strings.LastIndex(out, "Job "):])[1]
	h.run("", "cove", "job", "wait", job)
	got := h.job(job)
	if want := []string{".claude/CLAUDE.md", ".claude/settings.json", ".claude/skills/one/SKILL.md"}; !slices.Equal(got.Settings, want) {
		t.Errorf("the job has %q", got.Settings)
	}
	if logs := h.run("", "cove", "job", "logs", job); !strings.Contains(logs, "Use tabs.") {
		t.Errorf("the agent did not read them: %s", logs)
	}
	if got := h.sh(got.Sprite, "cat .claude/settings.json .claude/skills/one/SKILL.md"); !strings.Contains(got, `"model": "opus"`) || !strings.Contains(got, "Do it well.") {
		t.Errorf("got %s", got)
	}
	found := h.run("", "cove", "exec", "-s", got.Sprite, "--user", "root", "--", "sh", "-c", "grep -rl 'planted-planted' /home /tmp /etc /root /var /run /.sprite 2>/dev/null; true")
	if strings.TrimSpace(found) != "" {
		t.Errorf("inside is a credential: %s", found)
	}
	h.keyInNoFile(plantedKey)

	// Nobody asked: nothing goes along. A new sprite for the same job has them again.
	job, sprite := h.push(repo, flags[1:]...)
	h.try("", "cove", "job", "wait", job)
	if got := h.sh(sprite, "ls .claude 2>/dev/null || true"); strings.Contains(got, "CLAUDE.md") {
		t.Errorf("unasked: %s", got)
	}
	if out, code := h.try(repo, "cove", "push", "plan.md", "--agent", "shell", "--agent-settings"); code != 1 || !strings.Contains(out, "cove knows nothing") {
		t.Errorf("of an agent without settings: exit code %d: %s", code, out)
	}
}

// keyInNoFile looks for a key in all that the server has written.
func (h *host) keyInNoFile(key string) {
	h.t.Helper()
	_, code := h.try("", "grep", "-rlF", key, h.data)
	if code != 1 {
		h.t.Errorf("grep for the key in the data folder: exit code %d", code)
	}
}
