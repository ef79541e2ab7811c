package profile_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/server/profile"
	"github.com/cove-dev/cove/sprites"
)

func full() cove.Profile {
	return cove.Profile{Name: "nightly", Revision: 3, ProfileSettings: cove.ProfileSettings{
		Backend: "cloud", Agent: "acp", AgentCommand: "agent --acp", Permissions: "ask", Model: "p/m", TimeoutSec: 60,
		Guards: cove.Guards{IdleSec: 5, Turns: 6}, MCP: []cove.MCPServer{{Connector: "linear", Tools: []string{"*"}}},
		NetworkPolicy: &sprites.NetworkPolicy{Rules: []sprites.NetworkRule{{Include: "agent"}}},
		Config:        &sprites.Config{RAMMB: 100, CPUs: 2, StorageGB: 7, Image: "team:1"},
		Include:       []string{"/opt/tools"},
		SetupScript:   &cove.SetupScript{Name: "setup", Text: "true"},
		Env:           map[string]string{"A": "profile", "B": "profile"},
		Author:        &cove.Person{Name: "Robot", Email: "robot@example.org"},
		MaxJobs:       4,
	}}
}

// TestApply: a request gets what it leaves out, and keeps what it says.
func TestApply(t *testing.T) {
	p := full()
	got := profile.Apply(p, cove.JobRequest{Author: cove.Person{Name: "Ada"}})
	want := cove.JobRequest{
		JobSettings: cove.JobSettings{
			Profile: "nightly", ProfileRevision: 3, Backend: "cloud", Agent: "acp", AgentCommand: "agent --acp", Permissions: "ask", Model: "p/m",
			TimeoutSec: 60, Guards: p.Guards, MCP: p.MCP, NetworkPolicy: p.NetworkPolicy,
		},
		Author: *p.Author, Config: p.Config, Include: p.Include, Env: []string{"A=profile", "B=profile"}, SetupScript: p.SetupScript,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}

	said := cove.JobRequest{
		JobSettings: cove.JobSettings{
			Agent: "shell", TimeoutSec: 7, Guards: cove.Guards{Turns: 1}, MCP: []cove.MCPServer{{Connector: "other"}},
			NetworkPolicy: &sprites.NetworkPolicy{},
		},
		Config: &sprites.Config{CPUs: 1, StorageMB: 5}, Include: []string{"/x"}, Env: []string{"B=mine", "C=mine"},
	}
	got = profile.Apply(p, said)
	want = said
	want.Profile, want.ProfileRevision, want.Backend, want.Author, want.SetupScript = "nightly", 3, "cloud", *p.Author, p.SetupScript
	want.Guards = cove.Guards{IdleSec: 5, Turns: 1}
	want.Config = &sprites.Config{RAMMB: 100, CPUs: 1, StorageMB: 5, Image: "team:1"}
	want.Env = []string{"A=profile", "B=mine", "C=mine"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if p.Config.CPUs != 2 || said.Config.RAMMB != 0 {
		t.Error("the profile, or the request, was changed")
	}
}

// TestApplyToSprite: a sprite that is there has an image, a policy and folders already.
func TestApplyToSprite(t *testing.T) {
	got := profile.Apply(full(), cove.JobRequest{JobSettings: cove.JobSettings{Sprite: "paint"}})
	if got.Config != nil || got.NetworkPolicy != nil || got.Include != nil || got.Backend != "" {
		t.Errorf("got %+v", got)
	}
	if got.Agent != "acp" || got.TimeoutSec != 60 {
		t.Errorf("got %+v", got)
	}
}

func TestHidden(t *testing.T) {
	p := full()
	if got := profile.Hidden(p); got.Env["A"] != "" || len(got.Env) != 2 || p.Env["A"] != "profile" {
		t.Errorf("got %q, of %q", got.Env, p.Env)
	}
}
