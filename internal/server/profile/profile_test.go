package profile_test

import (
	"reflect"
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
			Profile: "nightly", ProfileRevision: 3, ProfilePolicy: true, Backend: "cloud", Agent: "acp", AgentCommand: "agent --acp", Permissions: "ask", Model: "p/m",
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

// TestApplyTakesAll: each setting of a profile gets into a job, but for those that are the server's own.
func TestApplyTakesAll(t *testing.T) {
	servers := map[string]bool{"Description": true, "MaxJobs": true, "MaxWaitSec": true}
	settings := reflect.TypeFor[cove.ProfileSettings]()
	for i := range settings.NumField() {
		name := settings.Field(i).Name
		p := cove.Profile{Name: "all"}
		if name != "URL" {
			p.URL = "https://example.org/a.git" // by which a job has a branch, and publishes
		}
		without := profile.Apply(p, cove.JobRequest{})
		fill(reflect.ValueOf(&p.ProfileSettings).Elem().Field(i))
		if with := profile.Apply(p, cove.JobRequest{}); reflect.DeepEqual(with, without) != servers[name] {
			t.Errorf("%s: a job has %+v by it", name, with)
		}
		delete(servers, name)
	}
	if len(servers) > 0 {
		t.Errorf("there are no %v", servers)
	}
}

// fill sets a value to another than its type's zero.
func fill(v reflect.Value) {
	switch v.Kind() {
	case reflect.String:
		v.SetString("x")
	case reflect.Int, reflect.Int64:
		v.SetInt(1)
	case reflect.Float64:
		v.SetFloat(1)
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem())
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fill(v.Index(0))
	case reflect.Map:
		key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		fill(key)
		fill(value)
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(key, value)
	case reflect.Struct:
		for _, field := range v.Fields() {
			fill(field)
		}
	default:
		panic("a profile has a " + v.Kind().String())
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

// TestApplyURL: a request gets the profile's repository only if it has none.
func TestApplyURL(t *testing.T) {
	p := cove.Profile{Name: "plain", ProfileSettings: cove.ProfileSettings{URL: "https://example.org/a.git", Branch: "main"}}
	for name, test := range map[string]struct{ asked, want cove.JobSource }{
		"nothing":  {cove.JobSource{}, cove.JobSource{URL: p.URL, Branch: "main"}},
		"a branch": {cove.JobSource{Branch: "topic"}, cove.JobSource{URL: p.URL, Branch: "topic"}},
		"a bundle": {cove.JobSource{Base: "a"}, cove.JobSource{Base: "a"}},
		"another":  {cove.JobSource{URL: "https://example.org/b.git"}, cove.JobSource{URL: "https://example.org/b.git"}},
	} {
		if got := profile.Apply(p, cove.JobRequest{JobSource: test.asked}).JobSource; got != test.want {
			t.Errorf("%s: got %+v, want %+v", name, got, test.want)
		}
	}
	if got := profile.Trial(p); got.URL != p.URL || got.Base != "" {
		t.Errorf("the trial is of %+v", got.JobSource)
	}
}

// TestApplyNoPolicy: a profile without network rules opens the network no further than a push
// without a profile does.
func TestApplyNoPolicy(t *testing.T) {
	got := profile.Apply(cove.Profile{Name: "plain"}, cove.JobRequest{})
	if got.NetworkPolicy == nil || len(got.NetworkPolicy.Rules) != 1 || got.NetworkPolicy.Rules[0].Include != "agent" || got.ProfilePolicy {
		t.Errorf("got %+v", got.NetworkPolicy)
	}
}

func TestHidden(t *testing.T) {
	p := full()
	got := profile.Hidden(p)
	if got.Env["A"] != "" || len(got.Env) != 2 || p.Env["A"] != "profile" {
		t.Errorf("got %q, of %q", got.Env, p.Env)
	}
	if got.Include != nil || got.SetupScript != nil || got.NetworkPolicy != nil || got.MCP != nil || got.AgentCommand != "" || got.Agent != "acp" {
		t.Errorf("got %+v", got)
	}
}

// TestGives: a profile Gives if it has a setting that only an administrator may give. Overrides names
// the settings that its jobs then may not replace.
func TestGives(t *testing.T) {
	if profile.Gives(cove.Profile{ProfileSettings: cove.ProfileSettings{Agent: "shell", Env: map[string]string{"A": "secret:x"}, NetworkPolicy: &sprites.NetworkPolicy{}}}) {
		t.Error("a plain one gives much")
	}
	for name, s := range map[string]cove.ProfileSettings{
		"a folder": {Include: []string{"/opt"}}, "a secret": {Env: map[string]string{"A": "x{secret:name}"}}, "a server": {MCP: []cove.MCPServer{{Connector: "x"}}},
		"an agent": {Definition: &cove.AgentDefinition{}}, "a backend": {Backend: "far"}, "a repository": {URL: "https://example.org/a.git"},
	} {
		if !profile.Gives(cove.Profile{ProfileSettings: s}) {
			t.Errorf("%s is not much", name)
		}
	}
	if got := profile.Overrides(cove.JobRequest{JobSettings: cove.JobSettings{TimeoutSec: 5, Model: "m"}, Env: []string{"A=1"}}); got != nil {
		t.Errorf("got %q", got)
	}
	if got := profile.Overrides(cove.JobRequest{JobSettings: cove.JobSettings{Agent: "a", Sprite: "s", NetworkPolicy: &sprites.NetworkPolicy{}}}); len(got) != 3 {
		t.Errorf("got %q", got)
	}
}

// TestAsked: a job of a profile has nothing beyond it, and all that somebody has added.
func TestAsked(t *testing.T) {
	p := full()
	p.CleanupScript = &cove.SetupScript{Name: "cleanup", Text: "true"}
	whole := profile.Apply(p, cove.JobRequest{})
	left := profile.Asked(p, whole, "debian:12")
	if names := profile.Overrides(left); names != nil || left.Include != nil || left.MCP != nil || left.CleanupScript != nil || len(left.Env) != 0 {
		t.Errorf("of the profile alone: %q, %+v", names, left)
	}
	stricter := whole
	stricter.Permissions = "deny"
	if names := profile.Overrides(profile.Asked(p, stricter, "")); names != nil {
		t.Errorf("with stricter permissions: %q", names)
	}
	plain := cove.Profile{Name: "plain", Revision: 1}
	preset := profile.Apply(plain, cove.JobRequest{})
	preset.Config = &sprites.Config{Image: "debian:12"}
	if names := profile.Overrides(profile.Asked(plain, preset, "debian:12")); names != nil {
		t.Errorf("of the server's own image and rules: %q", names)
	}
	later := p
	later.Revision, later.Include, later.Env, later.NetworkPolicy = 4, []string{"/opt/other"}, map[string]string{"A": "profile"}, &sprites.NetworkPolicy{Rules: []sprites.NetworkRule{{Include: "none"}}}
	left = profile.Asked(later, whole, "")
	if names := profile.Overrides(left); len(names) != 1 || names[0] != "network_policy" || len(left.Include) != 1 || len(left.Env) != 1 || left.Env[0] != "B=profile" {
		t.Errorf("of a later revision: %q, %+v", names, left)
	}
	whole.Agent = "shell"
	if left := profile.Asked(p, whole, ""); left.Agent != "shell" {
		t.Errorf("another agent: %+v", left)
	}
}

// TestExceeds: each limit that a profile has is the most that a job may ask for, and none is more.
func TestExceeds(t *testing.T) {
	p := cove.Profile{ProfileSettings: cove.ProfileSettings{
		TimeoutSec: 600, Guards: cove.Guards{IdleSec: 60, Turns: 7, DiskBytes: 5 << 30, CostUSD: 1.5},
		Agent: "acp", Permissions: "ask", StepLimits: map[cove.StepKey]int64{cove.StepClone: 9},
		Config: &sprites.Config{RAMMB: 1024, CPUs: 2, StorageGB: 3},
	}}
	for flag, change := range map[string]func(*cove.JobRequest){
		"":                      func(*cove.JobRequest) {},
		"--timeout 600s":        func(r *cove.JobRequest) { r.TimeoutSec = 601 },
		"--max-idle 60s":        func(r *cove.JobRequest) { r.Guards.IdleSec = 61 },
		"--max-turns 7":         func(r *cove.JobRequest) { r.Guards.Turns = 8 },
		"--max-disk 5368709120": func(r *cove.JobRequest) { r.Guards.DiskBytes = 5<<30 + 1 },
		"--max-cost 1.5":        func(r *cove.JobRequest) { r.Guards.CostUSD = 1.6 },
		"--memory 1024M":        func(r *cove.JobRequest) { r.Config = &sprites.Config{RAMMB: 1025} },
		"--cpus 2":              func(r *cove.JobRequest) { r.Config = &sprites.Config{CPUs: 3} },
		"--step-limit clone=9s": func(r *cove.JobRequest) { r.StepLimits = map[cove.StepKey]int64{cove.StepClone: 10} },
		"--permissions ask":     func(r *cove.JobRequest) { r.Permissions = "allow" },
		"--disk 3072M":          func(r *cove.JobRequest) { r.Config = &sprites.Config{StorageMB: 3073} },
	} {
		var req cove.JobRequest
		change(&req)
		got := profile.Exceeds(p, profile.Apply(p, req))
		if got == nil && flag != "" || got != nil && got.Flag != flag {
			t.Errorf("%s: got %+v", flag, got)
		}
	}
	low := profile.Apply(p, cove.JobRequest{JobSettings: cove.JobSettings{TimeoutSec: 5, Guards: cove.Guards{Turns: 1}}, Config: &sprites.Config{RAMMB: 512}})
	if got := profile.Exceeds(p, low); got != nil {
		t.Errorf("less: got %+v", got)
	}
	low.Guards.Turns = 0 // a job of an older revision has no limit
	if got := profile.Exceeds(p, low); got == nil || got.Asked != "" {
		t.Errorf("none: got %+v", got)
	}
}

// TestAskedURL: the profile's repository, and publishing to it as the profile says, do not
// count as asked for. Another repository, or publishing that the profile does not have, does.
func TestAskedURL(t *testing.T) {
	p := cove.Profile{Name: "plain", Revision: 1, ProfileSettings: cove.ProfileSettings{Agent: "shell", URL: "https://example.org/a", Publish: cove.PublishBranch}}
	whole := profile.Apply(p, cove.JobRequest{})
	if got := profile.Asked(p, whole, ""); got.URL != "" || got.Publish != "" {
		t.Errorf("got %q, %q", got.URL, got.Publish)
	}
	less := p
	less.Publish = ""
	if got := profile.Asked(less, whole, ""); got.Publish == "" {
		t.Error("a profile that publishes no more gives it still")
	}
	less.URL = "https://example.org/b"
	if got := profile.Asked(less, whole, ""); got.URL == "" {
		t.Error("a profile gives the repository of an older revision")
	}
}
