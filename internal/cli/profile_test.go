package cli

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/sprites"
)

// TestProfileText: what is printed of a profile is read as the same.
func TestProfileText(t *testing.T) {
	want := cove.ProfileSettings{
		Description: "\"quoted\" and ünicode", Agent: "claude", TimeoutSec: 7200, MaxJobs: 10, Guards: cove.Guards{CostUSD: 1.5, DiskBytes: 5 << 40},
		NetworkPolicy: &sprites.NetworkPolicy{Rules: []sprites.NetworkRule{{Include: "agent"}, {Domain: "example.org", Action: "allow", Ports: []string{"443"}}}},
		Config:        &sprites.Config{Image: "team:1", RAMMB: 4096},
		Env:           map[string]string{"CI": "1", "MULTI": "a\nb'''\"\"\""},
		SetupScript:   &cove.SetupScript{Name: "setup", Text: "#!/bin/sh\necho 'x' \"y\" \\\n"},
		Author:        &cove.Person{Name: "Robot", Email: "robot@example.org"},
		MCP:           []cove.MCPServer{{Connector: "linear", Tools: []string{"*"}}},
	}
	text, err := profileText(cove.Profile{ProfileSettings: want})
	if err != nil {
		t.Fatal(err)
	}
	got, err := parseProfile("p.toml", []byte(text))
	if err != nil {
		t.Fatalf("%v in\n%s", err, text)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s\n%s", diff, text)
	}
}

func TestParseProfileErrors(t *testing.T) {
	for text, want := range map[string]string{
		"agent = ":              "line 1",
		"agnet = 'shell'":       `unknown field "agnet"`,
		"max_jobs = 'ten'":      "max_jobs",
		"[config]\nram = 1":     `unknown field "ram"`,
		"max_jobs = 1.5":        "max_jobs",
		"env = ['A=1']":         "env",
		"name = 'x'":            `unknown field "name"`,
		"timeout_seconds = '1'": "timeout_seconds",
	} {
		_, err := parseProfile("p.toml", []byte(text))
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "p.toml") {
			t.Errorf("%q: got %v, want %q", text, err, want)
		}
	}
}

// TestProfileExample: the profile in the help is one.
func TestProfileExample(t *testing.T) {
	long := newProfileCommand(newInvocation(Streams{})).Long
	_, text, found := strings.Cut(long, "prints it so):\n")
	if !found {
		t.Fatal("the help has no profile")
	}
	got, err := parseProfile("help", []byte(text))
	if err != nil || got.MaxJobs != 10 || got.SetupScript == nil || got.NetworkPolicy == nil || len(got.NetworkPolicy.Rules) != 2 {
		t.Errorf("got %+v, %v", got, err)
	}
}
