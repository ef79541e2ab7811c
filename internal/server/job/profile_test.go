package job

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/server"
	"github.com/cove-dev/cove/internal/server/profile"
	"github.com/cove-dev/cove/internal/server/sprite"
	"github.com/cove-dev/cove/internal/server/store"
	"github.com/cove-dev/cove/internal/test/covetest"
	"github.com/cove-dev/cove/sprites"
)

// by is a client with a token of its own.
func by(t *testing.T, client *cove.Client, scope cove.TokenScope) (*cove.Client, string) {
	t.Helper()
	tok, err := client.CreateToken(t.Context(), cove.TokenRequest{Name: "t", Scope: scope, Verbs: []string{"read", "write", "exec"}})
	if err != nil {
		t.Fatal(err)
	}
	return &cove.Client{Client: &sprites.Client{URL: client.URL, Token: tok.Secret, HTTPClient: client.HTTPClient}}, tok.ID
}

func put(t *testing.T, client *cove.Client, name string, s cove.ProfileSettings) cove.ProfilePut {
	t.Helper()
	p, err := cove.Profiles{Client: client}.Put(t.Context(), name, 0, s)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func hintText(err error) string {
	if e, ok := errors.AsType[*sprites.Error](err); ok {
		return e.Hint
	}
	return ""
}

// profiled is a request by a profile, without an agent of its own.
func profiled(name string) cove.JobRequest {
	req := request()
	req.Agent, req.Profile = "", name
	return req
}

// TestProfileLimits: the limits of a profile are the most that a token without admin gets.
func TestProfileLimits(t *testing.T) {
	_, client := newManager(t)
	ctx := t.Context()
	put(t, client, "few", cove.ProfileSettings{Agent: "shell", TimeoutSec: 600, Guards: cove.Guards{Turns: 3}})
	pusher, id := by(t, client, cove.TokenScope{All: true})
	for name, change := range map[string]func(*cove.JobRequest){
		"--timeout 600s": func(r *cove.JobRequest) { r.TimeoutSec = 601 }, "--max-turns 3": func(r *cove.JobRequest) { r.Guards.Turns = 4 },
	} {
		req := profiled("few")
		change(&req)
		if _, err := pusher.CreateJob(ctx, req); code(err) != "forbidden" || !strings.Contains(hintText(err), name) {
			t.Errorf("%s: got %v, %q", name, err, hintText(err))
		}
		if _, err := client.PreviewJob(ctx, req); err != nil {
			t.Errorf("%s, by an administrator: %v", name, err)
		}
	}
	req := profiled("few")
	req.TimeoutSec = 60
	job, err := pusher.CreateJob(ctx, req)
	if err != nil || job.TimeoutSec != 60 || job.Guards.Turns != 3 || job.By != id {
		t.Errorf("less: got %+v, %v", job, err)
	}
	// A hint about a flag says that the profile may be to blame.
	req = profiled("few")
	req.Converse = true
	if _, err := pusher.CreateJob(ctx, req); !strings.Contains(hintText(err), "cove profile edit few") {
		t.Errorf("got %v, %q", err, hintText(err))
	}
}

// A say is what a token for a profile may say in a field of a request.
type say int

const (
	free    say = iota // anything: the profile says nothing of it, or stands in for what is left out
	atMost             // no more than the profile says
	refused            // nothing: only an administrator may, or the sprite is another's
	theirs             // nothing that counts: the profile goes before
	ours               // nothing that counts: the server fills it in
)

// TestRequestIsBounded: each field of a request by a token for a profile has a decision.
func TestRequestIsBounded(t *testing.T) {
	_, client := newManager(t)
	ctx := t.Context()
	person, script := &cove.Person{Name: "Robot", Email: "robot@example.org"}, &cove.SetupScript{Name: "setup", Text: "true", TimeoutSec: 100}
	closed, open := &sprites.NetworkPolicy{Rules: []sprites.NetworkRule{{Domain: "a.example.org", Action: "allow"}}}, &sprites.NetworkPolicy{Rules: []sprites.NetworkRule{{Domain: "*", Action: "allow"}}}
	most := cove.ProfileSettings{
		Agent: "acp", AgentCommand: "agent --acp", Permissions: "ask", TimeoutSec: 600, Guards: cove.Guards{IdleSec: 60, DiskBytes: 1 << 30},
		StepLimits: map[cove.StepKey]int64{cove.StepClone: 90}, SetupScript: script, NetworkPolicy: closed, Author: person,
		Config: &sprites.Config{RAMMB: 1024, CPUs: 2, StorageGB: 3}, Env: map[string]string{"A": "profile"},
	}
	p := put(t, client, "most", most).Profile
	put(t, client, "cost", cove.ProfileSettings{Agent: "cove", Guards: cove.Guards{Turns: 7, CostUSD: 1.5}})
	if _, err := client.Create(ctx, sprites.CreateRequest{Name: "paint"}); err != nil {
		t.Fatal(err)
	}
	pusher, _ := by(t, client, cove.TokenScope{Profile: "most"})
	spender, _ := by(t, client, cove.TokenScope{Profile: "cost"})
	machine := func(change func(*sprites.Config)) func(*cove.JobRequest) {
		return func(r *cove.JobRequest) { r.Config = &sprites.Config{}; change(r.Config) }
	}
	type R = cove.JobRequest
	decisions := map[string]struct {
		say
		most   string // that the refusal names
		change func(*R)
	}{
		"Backend": {refused, "", func(r *R) { r.Backend = "far" }}, "Sprite": {refused, "", func(r *R) { r.Sprite = "paint" }},
		"Agent":        {atMost, "", func(r *R) { r.Agent = "shell" }}, // one that asks for nothing
		"AgentCommand": {atMost, "", func(r *R) { r.AgentCommand = "other" }}, "Definition": {refused, "", func(r *R) { r.Definition = &cove.AgentDefinition{} }},
		"Permissions": {atMost, "limited to ask", func(r *R) { r.Permissions = "allow" }},
		"Model":       {free, "", func(r *R) { r.Model = "a/b" }}, "Login": {free, "", func(r *R) { r.Login = cove.LoginInside }},
		"Role":           {free, "", func(r *R) { r.Role = "build" }}, // there are fewer tools with one, never more
		"TimeoutSec":     {atMost, "limited to 600 seconds", func(r *R) { r.TimeoutSec = 601 }},
		"Guards.IdleSec": {atMost, "limited to 60 seconds", func(r *R) { r.Guards.IdleSec = 61 }}, "Guards.Turns": {atMost, "limited to 7", func(r *R) { r.Guards.Turns = 8 }},
		"Guards.DiskBytes": {atMost, "limited to 1073741824 bytes", func(r *R) { r.Guards.DiskBytes = 1<<30 + 1 }}, "Guards.CostUSD": {atMost, "limited to 1.5 dollars", func(r *R) { r.Guards.CostUSD = 2 }},
		"StepLimits": {atMost, "limited to 90 seconds", func(r *R) { r.StepLimits = map[cove.StepKey]int64{cove.StepClone: 91} }},
		"Profile":    {refused, "", func(r *R) { r.Profile = "cost" }}, "ProfileRevision": {ours, "", func(r *R) { r.ProfileRevision = 99 }}, "ProfilePolicy": {ours, "", func(r *R) { r.ProfilePolicy = true }},
		"Interactive": {free, "", func(r *R) { r.Interactive = true }}, "Converse": {free, "", func(r *R) { r.Converse = true }}, "Remove": {free, "", func(r *R) { r.Remove = true }},
		"Publish": {refused, "", func(r *R) { r.Publish = cove.PublishBranch }},
		"Skill":   {free, "", func(r *R) { r.Skill = &cove.Skill{Text: "x"} }},
		"MCP":     {refused, "", func(r *R) { r.MCP = []cove.MCPServer{{Connector: "linear", Tools: []string{"*"}}} }}, // one in the sprite is a command there
		// TestConfined has what becomes of the rules of a sprite later.
		"NetworkPolicy": {atMost, "", func(r *R) { r.NetworkPolicy = open }},
		"PlanName":      {free, "", func(r *R) { r.PlanName = "other.md" }}, "Repository": {free, "", func(r *R) { r.Repository = "other" }}, "RepoID": {free, "", func(r *R) { r.RepoID = strings.Repeat("b", 64) }},
		"Branch": {free, "", func(r *R) { r.Branch = "other" }}, "Base": {free, "", func(r *R) { r.Base = strings.Repeat("b", 40) }}, // of a URL, the right is to the repository
		"URL": {refused, "", func(r *R) { r.URL = "https://example.org/a" }}, "Depth": {free, "", func(r *R) { r.Depth = 1 }}, "Issue": {free, "", func(r *R) { r.Issue = 1 }},
		"Early": {free, "", func(r *R) { r.Early = true }}, "Plan": {free, "", func(r *R) { r.Plan = "other" }}, "Settings": {free, "", func(r *R) { r.Settings = []cove.SettingsFile{{Path: ".a/b", Text: "x"}} }},
		"Author":       {theirs, "", func(r *R) { r.Author.Name = "Eve" }},
		"Config.RAMMB": {atMost, "limited to 1024 MiB", machine(func(c *sprites.Config) { c.RAMMB = 1025 })}, "Config.CPUs": {atMost, "limited to 2", machine(func(c *sprites.Config) { c.CPUs = 3 })},
		"Config.StorageGB": {atMost, "limited to 3072 MiB", machine(func(c *sprites.Config) { c.StorageGB = 4 })}, "Config.StorageMB": {atMost, "limited to 3072 MiB", machine(func(c *sprites.Config) { c.StorageMB = 3073 })},
		"Config.Region": {free, "", machine(func(c *sprites.Config) { c.Region = "ams" })}, "Config.Image": {free, "", machine(func(c *sprites.Config) { c.Image = sprites.HostBase })},
		"Include":     {refused, "", func(r *R) { r.Include = []string{"/opt"} }},
		"Env":         {free, "", func(r *R) { r.Env = []string{"A=mine"} }}, // but for references to secrets
		"SetupScript": {theirs, "", func(r *R) { r.SetupScript = &cove.SetupScript{Name: "x", Text: "x", TimeoutSec: 1000} }}, "CleanupScript": {refused, "", func(r *R) { r.CleanupScript = &cove.SetupScript{Name: "x", Text: "x"} }},
		"By": {ours, "", func(r *R) { r.By = "somebody" }}, "Digest": {ours, "", func(r *R) { r.Digest = "other" }},
		"Begin": {free, "", func(r *R) { r.Begin = true }}, // goes with a URL
		"Key":   {free, "", func(r *R) { r.Key = "k" }},    // of the caller's own requests
	}
	for field, name := range fieldsOf(reflect.TypeFor[R](), "") {
		d, ok := decisions[field]
		if !ok {
			t.Errorf("%s: nobody has decided what a token for a profile may say there", field)
			continue
		}
		delete(decisions, field)
		caller, req := pusher, profiled("most")
		if field == "Guards.CostUSD" || field == "Guards.Turns" { // the agent acp tells of neither
			caller, req = spender, profiled("cost")
		}
		d.change(&req)
		_, err := caller.PreviewJob(ctx, req)
		whole := profile.Apply(p, req)
		switch d.say {
		case atMost:
			if code(err) != "forbidden" || !strings.Contains(err.Error(), name) || !strings.Contains(err.Error(), d.most) {
				t.Errorf("%s: got %v, want one that names %s, %s", field, err, name, d.most)
			}
		case refused:
			if code(err) != "forbidden" {
				t.Errorf("%s: got %v", field, err)
			}
		case theirs:
			if err != nil || whole.Author != *person || !reflect.DeepEqual(whole.SetupScript, script) {
				t.Errorf("%s: got %v, %+v", field, err, whole)
			}
		case ours:
			if err != nil || whole.ProfileRevision != p.Revision || name != "-" && !whole.ProfilePolicy {
				t.Errorf("%s: got %v, %+v", field, err, whole.JobSettings)
			}
		case free:
			if e, ok := errors.AsType[*sprites.Error](err); ok && (e.Code == "forbidden" || e.StatusCode >= 500) {
				t.Errorf("%s: got %d, %v", field, e.StatusCode, err)
			}
		}
	}
	for field := range decisions {
		t.Errorf("there is no field %s", field)
	}

	// A token may ask for less. The limit of the setup script is also that of its step.
	for name, change := range map[string]func(*R){
		"permissions": func(r *R) { r.Permissions = "deny" }, "limits": func(r *R) { r.StepLimits = map[cove.StepKey]int64{cove.StepClone: 5, cove.StepSetupScript: 100} },
		"network": func(r *R) { r.NetworkPolicy = &sprites.NetworkPolicy{Rules: []sprites.NetworkRule{{Include: "none"}}} },
	} {
		req := profiled("most")
		change(&req)
		if _, err := pusher.PreviewJob(ctx, req); err != nil {
			t.Errorf("less of the %s: %v", name, err)
		}
	}
	req := profiled("most")
	req.StepLimits = map[cove.StepKey]int64{cove.StepSetupScript: 101}
	if _, err := pusher.PreviewJob(ctx, req); code(err) != "forbidden" || !strings.Contains(hintText(err), "--step-limit setup_script=100s") {
		t.Errorf("more than the script has: got %v, %q", err, hintText(err))
	}
	req.Permissions, req.NetworkPolicy, req.Agent, req.AgentCommand = "", open, "acp", "agent --acp"
	if _, err := client.PreviewJob(ctx, req); err != nil {
		t.Errorf("an administrator: %v", err)
	}
}

// fieldsOf are the fields of a request, each with its name in JSON. The fields of its guards
// and machine are listed one by one.
func fieldsOf(of reflect.Type, prefix string) map[string]string {
	all := map[string]string{}
	for f := range of.Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		inner := f.Type
		if inner.Kind() == reflect.Pointer {
			inner = inner.Elem()
		}
		switch {
		case f.Anonymous:
			maps.Copy(all, fieldsOf(inner, prefix))
		case inner == reflect.TypeFor[cove.Guards](), inner == reflect.TypeFor[sprites.Config]():
			maps.Copy(all, fieldsOf(inner, f.Name+"."))
		case name == "storage_gb":
			all[prefix+f.Name] = "storage_mb" // one limit
		default:
			all[prefix+f.Name] = name
		}
	}
	return all
}

// TestRetryByProfile: whoever may push by a profile may do its jobs again, as long as the profile
// gives what they had.
func TestRetryByProfile(t *testing.T) {
	m, client := newManager(t)
	ctx := t.Context()
	shown := filepath.Clean(t.TempDir())
	settings := cove.ProfileSettings{Agent: "shell", Include: []string{shown}, Env: map[string]string{"KEY": "{secret:ci}"}, CleanupScript: &cove.SetupScript{Name: "cleanup", Text: "true"}}
	if err := client.SetSecret(ctx, "ci", canary); err != nil {
		t.Fatal(err)
	}
	put(t, client, "gives", settings)
	pusher, _ := by(t, client, cove.TokenScope{All: true})
	job, err := pusher.CreateJob(ctx, profiled("gives"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := m.Store.Jobs.Finish(ctx, job.ID, cove.JobFailed, cove.Outcome{}, nil); err != nil {
		t.Fatal(err)
	}
	again := func(want string) {
		t.Helper()
		// The job never had its repository; that is checked once all else is well.
		if _, err := pusher.RetryJob(ctx, job.ID, cove.JobRetry{}); code(err) != want {
			t.Errorf("a retry: got %v, want %s", err, want)
		}
	}
	again("not_kept")
	// Another sprite has rules of its own, so it is refused.
	if _, err := client.Create(ctx, sprites.CreateRequest{Name: "paint"}); err != nil {
		t.Fatal(err)
	}
	if _, err := pusher.ResumeJob(ctx, job.ID, cove.JobResume{Message: "on", Sprite: "paint"}); code(err) != "forbidden" {
		t.Errorf("a resume in another sprite: got %v", err)
	}
	if _, err := pusher.ResumeJob(ctx, job.ID, cove.JobResume{Message: "on"}); code(err) != "no_session" {
		t.Errorf("a resume: got %v", err)
	}
	settings.Description = "another revision, that gives the same"
	put(t, client, "gives", settings)
	again("not_kept")
	settings.Env = nil
	put(t, client, "gives", settings)
	again("forbidden")
	settings.Env, settings.Include = map[string]string{"KEY": "{secret:ci}"}, nil
	put(t, client, "gives", settings)
	again("forbidden")
	if err := (cove.Profiles{Client: client}).Delete(ctx, "gives"); err != nil {
		t.Fatal(err)
	}
	again("no_profile")
}

// TestProfileToken: a token for a profile pushes by it, and reaches only its own jobs and
// their sprites.
func TestProfileToken(t *testing.T) {
	_, client := newManager(t)
	ctx := t.Context()
	put(t, client, "mine", cove.ProfileSettings{Agent: "shell"})
	put(t, client, "other", cove.ProfileSettings{Agent: "shell"})
	if _, err := client.CreateToken(ctx, cove.TokenRequest{Name: "t", Scope: cove.TokenScope{Profile: "none"}, Verbs: []string{"read"}}); code(err) != "no_profile" {
		t.Errorf("for a profile that is not there: got %v", err)
	}
	pusher, id := by(t, client, cove.TokenScope{Profile: "mine"})
	job, err := pusher.CreateJob(ctx, profiled("mine"))
	if err != nil || job.By != id {
		t.Fatalf("got %+v, %v", job, err)
	}
	second, _ := by(t, client, cove.TokenScope{Profile: "mine"})
	others, err := second.CreateJob(ctx, profiled("mine"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.Create(ctx, sprites.CreateRequest{Name: "job-paint"}); err != nil {
		t.Fatal(err)
	}
	for name, req := range map[string]cove.JobRequest{"another profile": profiled("other"), "no profile": request()} {
		if _, err := pusher.CreateJob(ctx, req); code(err) != "forbidden" || !strings.Contains(hintText(err), "cove push --profile mine PLAN") {
			t.Errorf("%s: got %v, %q", name, err, hintText(err))
		}
	}
	if err := pusher.Sprite(job.Sprite).WriteFile(ctx, job.Upload, strings.NewReader("x"), sprites.WriteOptions{}); err != nil {
		t.Errorf("its own sprite: %v", err)
	}
	if got, err := pusher.Job(ctx, job.ID); err != nil || got.ID != job.ID {
		t.Errorf("its own job: %+v, %v", got, err)
	}
	for _, name := range []string{others.Sprite, "job-paint"} {
		if _, err := pusher.Get(ctx, name); code(err) != "forbidden" {
			t.Errorf("the sprite %s: got %v", name, err)
		}
	}
	if _, err := pusher.Job(ctx, others.ID); code(err) != "not_found" {
		t.Errorf("another's job: got %v", err)
	}
	if _, err := pusher.Create(ctx, sprites.CreateRequest{Name: "job-mine"}); code(err) != "forbidden" {
		t.Errorf("a sprite of its own: got %v", err)
	}
	jobs, err := pusher.Jobs(ctx)
	if err != nil || len(jobs) != 1 || jobs[0].ID != job.ID {
		t.Errorf("the jobs: %+v, %v", jobs, err)
	}
	list, err := pusher.List(ctx, sprites.ListOptions{})
	if err != nil || len(list.Sprites) != 1 || list.Sprites[0].Name != job.Sprite {
		t.Errorf("the sprites: %+v, %v", list, err)
	}
}

// TestProfileIsChecked: things that a profile names must exist when it is stored. Things that
// can come later give a warning.
func TestProfileIsChecked(t *testing.T) {
	s := covetest.Start(t, covetest.Options{
		Host: &sprite.Host{Registries: func(context.Context) []string { return []string{"packages.example.org"} }},
		Jobs: func(st *store.Store, client *cove.Client) (server.Jobs, func() error, error) {
			m := &Manager{Store: st, Client: client}
			return m, m.Close, m.Resume(t.Context())
		},
	})
	client, ctx := s.Client(), t.Context()
	script := func(text string, seconds int64) *cove.SetupScript {
		return &cove.SetupScript{Name: "cleanup", Text: text, TimeoutSec: seconds}
	}
	for want, p := range map[string]cove.ProfileSettings{
		"not a folder":      {Include: []string{"/no/such/folder"}},
		"no_backend":        {Agent: "shell", Backend: "nowhere"},
		"no_secret":         {Env: map[string]string{"A": "{secret:nobody}"}},
		"variable A":        {Env: map[string]string{"A": "{secret}"}},
		"no_connector":      {Agent: "cove", Model: "openai/x", MCP: []cove.MCPServer{{Connector: "nobody", Tools: []string{"*"}}}},
		"no_agent":          {Agent: "nobody"},
		"MiB of memory":     {Config: &sprites.Config{RAMMB: 1}},
		"name of an image":  {Config: &sprites.Config{Image: "not a name"}},
		"cleanup script":    {CleanupScript: script("", 0)},
		"limit is 10m0s":    {CleanupScript: script("true", 601)},
		"max_wait_seconds":  {MaxWaitSec: -1},
		"network policy":    {NetworkPolicy: &sprites.NetworkPolicy{Rules: []sprites.NetworkRule{{Domain: "https://a.example/", Action: "allow"}}}},
		"no such preset at": {NetworkPolicy: &sprites.NetworkPolicy{Rules: []sprites.NetworkRule{{Include: "no-such"}}}},
	} {
		_, err := cove.Profiles{Client: client}.Put(ctx, "bad", 0, p)
		if err == nil || code(err) != want && !strings.Contains(err.Error(), want) && want != "no such preset at" {
			t.Errorf("%s: got %v", want, err)
		}
	}
	if list, err := (cove.Profiles{Client: client}).List(ctx); err != nil || len(list) != 0 {
		t.Errorf("left: %+v, %v", list, err)
	}
	nameless := put(t, client, "nameless", cove.ProfileSettings{SetupScript: &cove.SetupScript{Text: "true"}, CleanupScript: &cove.SetupScript{Text: "true"}})
	if nameless.SetupScript.Name != "setup_script" || nameless.CleanupScript.Name != "cleanup_script" {
		t.Errorf("scripts without names: %+v", nameless)
	}
	// An agent that comes with its own sprite's installation needs the package hosts.
	closed := &sprites.NetworkPolicy{Rules: []sprites.NetworkRule{{Include: "none"}}}
	if err := client.SetSecret(ctx, "anthropic", canary); err != nil {
		t.Fatal(err)
	}
	included := cove.ProfileSettings{Agent: "claude", Include: []string{t.TempDir()}, NetworkPolicy: closed}
	warned := func(p cove.ProfilePut) bool {
		return slices.ContainsFunc(p.Warnings, func(w string) bool { return strings.Contains(w, "packages.example.org") })
	}
	if p := put(t, client, "closed", included); !warned(p) {
		t.Errorf("without the package hosts: %q", p.Warnings)
	}
	included.NetworkPolicy = &sprites.NetworkPolicy{Rules: []sprites.NetworkRule{{Include: "agent"}}}
	if p := put(t, client, "open", included); len(p.Warnings) != 0 {
		t.Errorf("with them: %q", p.Warnings)
	}
	// An agent whose login is inside asks its model itself, and renews the login.
	for login, want := range map[string][]string{cove.LoginInside: {"auth.openai.com", "chatgpt.com"}, cove.LoginKey: nil} {
		if err := client.SetSecret(ctx, "openai", canary); err != nil {
			t.Fatal(err)
		}
		p := put(t, client, "login", cove.ProfileSettings{Agent: "codex", Login: login, NetworkPolicy: closed})
		var blocked []string
		for _, host := range []string{"auth.openai.com", "chatgpt.com", "api.openai.com"} {
			if slices.ContainsFunc(p.Warnings, func(w string) bool { return strings.Contains(w, host) }) {
				blocked = append(blocked, host)
			}
		}
		if !slices.Equal(blocked, want) {
			t.Errorf("with the login %s: warned of %q: %q", login, blocked, p.Warnings)
		}
	}
}

// TestDefaultProfile: at most one profile is the default. When it is deleted, none is.
func TestDefaultProfile(t *testing.T) {
	_, client := newManager(t)
	ctx, calls := t.Context(), cove.Profiles{Client: client}
	put(t, client, "a", cove.ProfileSettings{Agent: "shell"})
	put(t, client, "b", cove.ProfileSettings{Agent: "shell"})
	defaults := func() (names []string) {
		t.Helper()
		list, err := calls.List(ctx)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range list {
			if p.Default {
				names = append(names, p.Name)
			}
		}
		return names
	}
	if err := calls.SetDefault(ctx, "none"); code(err) != "no_profile" {
		t.Errorf("one that is not there: got %v", err)
	}
	for _, name := range []string{"a", "b"} {
		if err := calls.SetDefault(ctx, name); err != nil {
			t.Fatal(err)
		}
		if got := defaults(); !slices.Equal(got, []string{name}) {
			t.Errorf("the default is %q, want %s", got, name)
		}
	}
	if err := calls.Delete(ctx, "b"); err != nil {
		t.Fatal(err)
	}
	put(t, client, "b", cove.ProfileSettings{Agent: "shell"})
	if got := defaults(); got != nil {
		t.Errorf("another of its name is the default: %q", got)
	}
	pusher, _ := by(t, client, cove.TokenScope{All: true})
	if err := (cove.Profiles{Client: pusher}).SetDefault(ctx, "a"); code(err) != "forbidden" {
		t.Errorf("by a token without admin: got %v", err)
	}
}

// TestEndWaits: a job that stands still for longer than its profile lets it is stopped if another waits for its turn.
func TestEndWaits(t *testing.T) {
	m, client := newManager(t)
	ctx := t.Context()
	put(t, client, "few", cove.ProfileSettings{Agent: "shell", MaxJobs: 1, MaxWaitSec: 60})
	row := func(id, profile string, state cove.JobState) {
		t.Helper()
		job := cove.Job{ID: id, State: cove.JobQueued, JobSettings: cove.JobSettings{Profile: profile, Sprite: "job-" + id}}
		err := m.Store.Jobs.Create(ctx, job, nil)
		if err == nil {
			err = m.Store.Jobs.Update(ctx, id, func(j *cove.Job) error { j.State = state; return nil })
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	row("aaaaaa", "few", cove.JobWaiting)
	row("bbbbbb", "few", cove.JobRunning)
	row("cccccc", "any", cove.JobWaiting)
	var stopped []string
	j := janitor{jobs: m.janitor.jobs, turns: m.janitor.turns, locks: m.janitor.locks, logger: m.janitor.logger, stop: func(ctx context.Context, id string, note func(*cove.Job) error) (cove.Job, error) {
		stopped = append(stopped, id)
		return cove.Job{}, m.Store.Jobs.Update(ctx, id, note)
	}}
	waits, err := m.Store.Jobs.Get(ctx, "aaaaaa")
	if err != nil || waits.StandsSince == nil {
		t.Fatalf("got %+v, %v", waits, err)
	}
	end := waits.StandsSince.Add(time.Minute)
	check := func(now time.Time, want ...string) {
		t.Helper()
		if err := j.endWaits(ctx, now); err != nil || !slices.Equal(stopped, want) {
			t.Errorf("stopped %q, %v, want %q", stopped, err, want)
		}
	}
	check(end) // nobody waits for its turn
	row("dddddd", "few", cove.JobInstalling)
	if err := m.Store.Jobs.Update(ctx, "dddddd", func(j *cove.Job) error { j.Place = 1; return nil }); err != nil {
		t.Fatal(err)
	}
	check(end.Add(-time.Second))
	check(end, "aaaaaa")
	if job, err := m.Store.Jobs.Get(ctx, "aaaaaa"); err != nil || !strings.Contains(job.StopReason, "1m0s") {
		t.Errorf("why: %q, %v", job.StopReason, err)
	}
	// A job that is stopped, and held, has no turn any more.
	if err := m.Store.Jobs.Update(ctx, "aaaaaa", func(j *cove.Job) error {
		j.State, j.Stopping, j.Held = cove.JobRunning, true, &sprites.Held{Code: "disk_full"}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if _, err := m.Store.Jobs.Finish(ctx, "bbbbbb", cove.JobFailed, cove.Outcome{}, nil); err != nil {
		t.Fatal(err)
	}
	if place, err := m.Store.Jobs.TakeTurn(ctx, "dddddd", "few", 1); err != nil || place != 0 {
		t.Errorf("the next one: place %d, %v", place, err)
	}
}

// TestEndWaitAnswered: a job that has waited too long is not stopped if its answer is just being
// delivered, and it goes on.
func TestEndWaitAnswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := inBubble(t, func(*http.Request) (*http.Response, error) { return nil, errors.New("the sprite does not answer") })
		job, ctx := m.row(t), t.Context()
		become := func(state cove.JobState) {
			t.Helper()
			if err := m.Store.Jobs.Update(ctx, job.ID, func(j *cove.Job) error { j.State = state; return nil }); err != nil {
				t.Fatal(err)
			}
		}
		become(cove.JobWaiting)
		answered, err := m.locks.Lock(ctx, job.ID)
		if err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() { ended <- m.janitor.endWait(ctx, job.ID, time.Minute) }()
		synctest.Wait()
		become(cove.JobRunning)
		answered()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if got, err := m.Store.Jobs.Get(ctx, job.ID); err != nil || got.Stopping || got.StopReason != "" {
			t.Errorf("the job is %+v, %v", got.JobEnding, err)
		}
	})
}

// TestCleanup: a job's cleanup script runs once before its sprite is deleted, with the job's
// variables and in its clone. However the script ends, the sprite is gone.
func TestCleanup(t *testing.T) {
	b := newBench(t)
	b.serve(time.Second, 0)
	client, ctx := b.server.Client(), t.Context()
	if err := client.SetSecret(ctx, "ci", canary); err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		script  cove.SetupScript
		wrong   string
		printed string
	}{
		"well":     {cove.SetupScript{Text: `echo "$QUOTED in $(basename "$PWD")"`}, "", "it's \"so\" in repo"},
		"fails":    {cove.SetupScript{Text: "#!/bin/sh -e\necho \"with $KEY\" >&2\nexit 3"}, "exit code 3", "with ***"},
		"too long": {cove.SetupScript{Text: "echo begun; sleep 1000", TimeoutSec: 1}, "did not end within 1s", ""},
		"gone":     {cove.SetupScript{Text: "#!/no/such/shell\n"}, "exit code", ""},
	} {
		job := b.beginWith(`echo x >"$said"`, func(r *cove.JobRequest) {
			r.Env = append(r.Env, "QUOTED=it's \"so\"", "KEY={secret:ci}")
			test.script.Name = "cleanup"
			r.CleanupScript = &test.script
		})
		if _, err := client.StopJob(ctx, job.ID); err != nil {
			t.Fatal(err)
		}
		job = b.await(job.ID)
		if gone, err := b.manager.jobSprites.remove(ctx, job, cove.DestroyJobGone); !gone || err != nil {
			t.Errorf("%s: the sprite is gone: %v, %v", name, gone, err)
		}
		if _, err := client.Get(ctx, job.Sprite); !errors.Is(err, sprites.ErrNotFound) {
			t.Errorf("%s: the sprite: %v", name, err)
		}
		after, err := b.manager.Store.Jobs.Get(ctx, job.ID)
		if err != nil || after.Cleanup == nil || after.Cleanup.EndedAt == nil {
			t.Errorf("%s: got %+v, %v", name, after.Cleanup, err)
			continue
		}
		said := after.Cleanup.Output.String()
		if wrong := after.Cleanup.Error; (wrong == "") != (test.wrong == "") || !strings.Contains(wrong, test.wrong) || !strings.Contains(said, test.printed) || strings.Contains(said, canary) {
			t.Errorf("%s: %q, and said %q", name, wrong, said)
		}
		env, err := b.manager.jobSprites.environments.Store.Get(ctx, after.Execution)
		if err != nil {
			t.Fatal(err)
		}
		if b.manager.jobSprites.environments.Before(ctx, env) {
			t.Errorf("%s: it ran twice", name)
		}
	}
	if b.manager.jobSprites.environments.Before(ctx, cove.Environment{ID: "abcdef", Job: "abcdef"}) {
		t.Error("one without a job was cleaned up")
	}
}

// TestRemovalGoesOn: a job is noted as being deleted before its cleanup script runs. If the server
// ends in the middle of that script, the next one deletes the job, without running it again.
func TestRemovalGoesOn(t *testing.T) {
	b := newBench(t)
	b.serve(time.Second, 0)
	client, ctx := b.server.Client(), t.Context()
	ended := func(script string) cove.Job {
		t.Helper()
		job := b.beginWith(`echo x >"$said"`, func(r *cove.JobRequest) {
			r.CleanupScript = &cove.SetupScript{Name: "cleanup", Text: script, TimeoutSec: 600}
		})
		if _, err := client.StopJob(ctx, job.ID); err != nil {
			t.Fatal(err)
		}
		return b.await(job.ID)
	}
	gone := func(job cove.Job) {
		t.Helper()
		if _, err := b.manager.Store.Jobs.Get(ctx, job.ID); !errors.Is(err, store.ErrNotFound) {
			t.Errorf("the job: %v", err)
		}
		if _, err := client.Get(ctx, job.Sprite); !errors.Is(err, sprites.ErrNotFound) {
			t.Errorf("the sprite: %v", err)
		}
	}
	fifo := filepath.Join(t.TempDir(), "fifo")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	job := ended("echo begun >" + fifo + "; cat " + fifo)
	result := make(chan error, 1)
	go func() { result <- client.DeleteJob(ctx, job.ID, true) }()
	if _, err := os.ReadFile(fifo); err != nil { // waits for the script
		t.Fatal(err)
	}
	now, err := b.manager.Store.Jobs.Get(ctx, job.ID)
	if err != nil || !now.Removing || now.Cleanup == nil {
		t.Errorf("while the script runs: %+v, %v", now.JobProgress, err)
	}
	if err := b.manager.collector.goOn(ctx); err != nil { // it leaves this one alone
		t.Error(err)
	}
	if err := errors.Join(os.WriteFile(fifo, nil, 0), <-result); err != nil {
		t.Fatal(err)
	}
	gone(job)

	job = ended("exit 1")
	err = b.manager.Store.Jobs.Update(ctx, job.ID, func(j *cove.Job) error { // as a killed server leaves it
		j.Removing, j.Cleanup = true, &cove.JobCleanup{StartedAt: time.Now()}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := b.manager.collector.goOn(ctx); err != nil {
		t.Error(err)
	}
	gone(job)
}

// TestJobsLeaveReserve: what is kept of a job leaves the disk its reserve.
func TestJobsLeaveReserve(t *testing.T) {
	s := covetest.Start(t, covetest.Options{
		Host: &sprite.Host{Data: t.TempDir(), DiskReserve: 1 << 60},
		Jobs: func(st *store.Store, client *cove.Client) (server.Jobs, func() error, error) {
			m := &Manager{Store: st, Client: client}
			return m, m.Close, m.Resume(t.Context())
		},
	})
	_, err := s.Client().CreateJob(t.Context(), request())
	if code(err) != "no_space" || !strings.Contains(hintText(err), "cove job gc") {
		t.Errorf("got %v, %q", err, hintText(err))
	}
	if jobs, err := s.Client().Jobs(t.Context()); err != nil || len(jobs) != 0 {
		t.Errorf("left: %+v, %v", jobs, err)
	}
}
