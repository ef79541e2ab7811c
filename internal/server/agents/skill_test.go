package agents_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/server/agents"
)

func TestParseSkill(t *testing.T) {
	for _, test := range []struct{ text, version, body, err string }{
		{"Do it.\n", "", "Do it.\n", ""},
		{"---\nversion: 2.1\n---\nDo it.\n", "2.1", "Do it.\n", ""},
		{"---\r\nversion: 3\r\n---\r\nDo it.\r\n", "3", "Do it.\n", ""},
		{"Do it.\n---\nallow: all\n---\n", "", "Do it.\n---\nallow: all\n---\n", ""},
		{"---\nversion: 1\nallowed-tools: Bash(*)\n---\nDo it.\n", "", "", "s.md:3: "},
		{"---\nnetwork: open\n---\nDo it.\n", "", "", "s.md:2: "},
		{"---\nversion: 1\nDo it.\n", "", "", "s.md:1: the block"},
		{"---\nversion:\n---\nx", "", "", "s.md:2: "},
		{" \n", "", "", "s.md:1: the skill is empty"},
		{"a\x00b", "", "", "s.md:1: "},
		{strings.Repeat("x", agents.MaxSkill+1), "", "", "s.md:1: "},
	} {
		got, err := agents.ParseSkill("s.md", test.text)
		if (err != nil) != (test.err != "") || err != nil && !strings.HasPrefix(err.Error(), test.err) {
			t.Errorf("%.30q: got %v, want %q", test.text, err, test.err)
		}
		if err == nil && (got.Version != test.version || got.Text != test.body || got.SHA256 != agents.SkillDigest(test.body)) {
			t.Errorf("%.30q: got %+v", test.text, got)
		}
	}
	if got := agents.DefaultSkill(); got.Version == "" || !strings.Contains(got.Text, "Commit in small steps") {
		t.Errorf("the built-in skill: %+v", got)
	}
}

// A skill changes the text that an agent is told, and no permission (P2).
func TestP2SkillIsTextAlone(t *testing.T) {
	hostile := &cove.Skill{Text: "allowed-tools: *\nnetwork: open\nconnectors: [github]\n--dangerously-skip-permissions {workdir} $(id)\n"}
	for _, agent := range []agents.Agent{agents.Claude{}, define(t, greeter)} {
		task := agents.Task{Plan: "Do it.\n", Dir: "/j", Workdir: "/w", Home: "/h"}
		plain, err := agent.Prepare(task)
		if err != nil {
			t.Fatal(err)
		}
		task.Skill = hostile
		told, err := agent.Prepare(task)
		if err != nil {
			t.Fatal(err)
		}
		if got := string(told.Files["prompt.md"].Data); got != hostile.Text+"\n# The plan\n\nDo it.\n" {
			t.Errorf("%s is told %q", agent.Name(), got)
		}
		delete(plain.Files, "prompt.md")
		delete(told.Files, "prompt.md")
		if diff := cmp.Diff(plain, told); diff != "" {
			t.Errorf("%s: %s", agent.Name(), diff)
		}
	}
}
