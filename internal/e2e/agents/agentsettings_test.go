package agents

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cove-dev/cove/internal/test/e2e"
)

// plantedKey is in each file of plantedPlaces.
const plantedKey = "sk-ant-oat01-planted-planted-planted-planted"

// plantedPlaces are files of a home that agents and other programs keep credentials in,
// or whose settings might have credentials.
var plantedPlaces = []string{
	".claude/.credentials.json", ".claude/auth.json", ".claude/.env", ".claude/oauth_token", ".claude/history.jsonl", ".claude/projects/x/1.jsonl",
	".claude/settings.local.json", ".claude/plugins/x.md", ".claude/skills/one/.env", ".claude/skills/one/auth.json", ".claude/skills/one/login.keychain-db",
	".claude/skills/one/note.md", ".claude/commands/deploy.md", ".claude/agents/x.md", ".claude.json", ".claude.json.backup",
	".codex/auth.json", ".gemini/oauth_creds.json", ".config/opencode/auth.json", ".local/share/opencode/auth.json", ".pi/agent/auth.json",
	".netrc", ".npmrc", ".git-credentials", ".config/gh/hosts.yml", ".ssh/id_ed25519", ".aws/credentials", ".config/gcloud/x.json",
	"Library/Keychains/login.keychain-db", ".local/share/keyrings/login.keyring", ".env",
}

// TestAgentSettings copies a person's settings for an agent into a sprite, but none of
// the credentials that lie around them.
func TestAgentSettings(t *testing.T) {
	h := e2e.NewHost(t)
	for _, name := range plantedPlaces {
		h.Write("home/"+name, `{"token": "`+plantedKey+`"}`)
	}
	h.Write("home/.claude/CLAUDE.md", "Use tabs.\n")
	h.Write("home/.claude/skills/one/SKILL.md", "Do it well.\n")
	h.Write("home/.claude/settings.json", `{"model": "opus", "env": {"ANTHROPIC_API_KEY": "`+plantedKey+`"}}`)
	if err := os.Symlink("../.ssh/id_ed25519", filepath.Join(h.Home, ".claude", "rules")); err != nil {
		t.Fatal(err)
	}
	tools := filepath.Join(filepath.Dir(h.Home), "agent")
	h.Write("agent/claude", "#!/bin/sh\ncase $* in --version) echo 1; exit ;; esac\ncat ~/.claude/CLAUDE.md\necho '{\"type\":\"result\",\"subtype\":\"success\",\"result\":\"done\"}'\n")
	if err := os.Chmod(filepath.Join(tools, "claude"), 0o755); err != nil {
		t.Fatal(err)
	}
	h.Serve(nil)
	repo := h.Repository("repo", map[string]string{"plan.md": "Do it.\n"})
	flags := []string{"push", "plan.md", "--agent", "claude", "--include", tools, "--env", "PATH=" + tools + ":/.sprite/bin:/usr/local/bin:/usr/bin:/bin"}
	out, code := h.Try(repo, "cove", append(flags, "--agent-settings")...)
	if code != 0 {
		t.Fatalf("push exited with %d: %s", code, out)
	}
	for _, want := range []string{"Not sent: ~/.claude/skills/one/note.md: something in line 1 looks like a key.", "Not sent: ~/.claude/rules: ", "Sent along: 3 files of your settings for claude in ~/.claude."} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in %s", want, out)
		}
	}
	if strings.Contains(out, plantedKey) {
		t.Errorf("a credential is shown: %s", out)
	}
	job := strings.Fields(out[strings.LastIndex(out, "Job "):])[1]
	h.Run("", "cove", "job", "wait", job)
	got := h.Job(job)
	if want := []string{".claude/CLAUDE.md", ".claude/settings.json", ".claude/skills/one/SKILL.md"}; !slices.Equal(got.Settings, want) {
		t.Errorf("the job has %q", got.Settings)
	}
	if logs := h.Run("", "cove", "job", "logs", job); !strings.Contains(logs, "Use tabs.") {
		t.Errorf("the agent did not read them: %s", logs)
	}
	if got := h.Sh(got.Sprite, "cat .claude/settings.json .claude/skills/one/SKILL.md"); !strings.Contains(got, `"model": "opus"`) || !strings.Contains(got, "Do it well.") {
		t.Errorf("got %s", got)
	}
	found := h.Run("", "cove", "exec", "-s", got.Sprite, "--user", "root", "--", "sh", "-c", "grep -rl 'planted-planted' /home /tmp /etc /root /var /run /.sprite 2>/dev/null; true")
	if strings.TrimSpace(found) != "" {
		t.Errorf("inside is a credential: %s", found)
	}
	keyInNoFile(h, plantedKey)

	// Without --agent-settings, no settings are copied.
	job, sprite := h.Push(repo, flags[1:]...)
	h.Try("", "cove", "job", "wait", job)
	if got := h.Sh(sprite, "ls .claude 2>/dev/null || true"); strings.Contains(got, "CLAUDE.md") {
		t.Errorf("unasked: %s", got)
	}
	if out, code := h.Try(repo, "cove", "push", "plan.md", "--agent", "shell", "--agent-settings"); code != 1 || !strings.Contains(out, "cove knows no settings") {
		t.Errorf("of an agent without settings: exit code %d: %s", code, out)
	}
}

// keyInNoFile checks that no file of the server's data folder has a key.
func keyInNoFile(h *e2e.Host, key string) {
	h.T.Helper()
	if found, err := e2e.Canary(key).InFiles(h.Data); err != nil || found != nil {
		h.T.Errorf("the key is in %q, %v", found, err)
	}
}
