package job

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/server"
	"github.com/cove-dev/cove/internal/server/agents"
	"github.com/cove-dev/cove/internal/server/store"
	"github.com/cove-dev/cove/internal/test/covetest"
	"github.com/cove-dev/cove/sprites"
)

// newManager starts a server that has jobs. Its sandboxes have no supervisor. Tests that need
// one are in internal/e2e/jobs, with real sandboxes.
func newManager(t *testing.T) (*Manager, *cove.Client) {
	t.Helper()
	var m *Manager
	s := covetest.Start(t, covetest.Options{Jobs: func(st *store.Store, client *cove.Client) (server.Jobs, func() error, error) {
		m = &Manager{Store: st, Client: client}
		return m, m.Close, m.Resume(t.Context())
	}})
	return m, s.Client()
}

func request() cove.JobRequest {
	return cove.JobRequest{
		Plan:        "```sh\ntrue\n```\n",
		Author:      cove.Person{Name: "Ada", Email: "ada@example.org"},
		JobSettings: cove.JobSettings{Agent: "shell"},
		JobSource:   cove.JobSource{PlanName: "plan.md", Repository: "repo", Branch: "main", Base: strings.Repeat("a", 40)},
	}
}

func code(err error) string {
	if e, ok := errors.AsType[*fail.Error](err); ok {
		return e.Code
	}
	if e, ok := errors.AsType[*sprites.Error](err); ok { // it was asked by a client
		return e.Code
	}
	return fmt.Sprint(err)
}

// TestNoJobInInstall: while a sprite installs an agent, a job acts in it only by an
// administrator's right. Everything that the job leaves there would be in the sprites of all.
func TestNoJobInInstall(t *testing.T) {
	_, client := newManager(t)
	rules := &sprites.NetworkPolicy{Rules: []sprites.NetworkRule{{Include: "agent"}}}
	for name, owner := range map[string]string{"install-0a0b0c0d": store.InstallOwner + "k", "install-mine": ""} {
		if _, err := client.Create(t.Context(), sprites.CreateRequest{Name: name, Owner: owner, NetworkPolicy: rules}); err != nil {
			t.Fatal(err)
		}
	}
	tok, err := client.CreateToken(t.Context(), cove.TokenRequest{Name: "t", Scope: cove.TokenScope{All: true}, Verbs: []string{"read", "write", "exec"}})
	if err != nil {
		t.Fatal(err)
	}
	by := &cove.Client{Client: &sprites.Client{URL: client.URL, Token: tok.Secret, HTTPClient: client.HTTPClient}}
	req := request()
	req.NetworkPolicy = &sprites.NetworkPolicy{Rules: []sprites.NetworkRule{{Include: "none"}}}
	for name, want := range map[string]string{"install-0a0b0c0d": "forbidden", "install-mine": "<nil>"} {
		req.Sprite = name
		_, err := by.CreateJob(t.Context(), req)
		if code(err) != want {
			t.Errorf("a job in %s: %v", name, err)
		}
		got, err := client.Sprite(name).NetworkPolicy(t.Context())
		if changed := len(got.Rules) != 1 || got.Rules[0].Include != "agent"; err != nil || changed != (want == "<nil>") {
			t.Errorf("the rules of %s are now %+v, %v", name, got, err)
		}
	}
}

func TestCreateRefuses(t *testing.T) {
	_, client := newManager(t)
	for name, test := range map[string]struct {
		change func(*cove.JobRequest)
		want   string
	}{
		"no agent":          {func(r *cove.JobRequest) { r.Agent = "nobody" }, "no_agent"},
		"nothing to run":    {func(r *cove.JobRequest) { r.Plan = "text" }, "bad_plan"},
		"a huge plan":       {func(r *cove.JobRequest) { r.Plan += strings.Repeat("x", maxPlan) }, "bad_plan"},
		"an option":         {func(r *cove.JobRequest) { r.Branch = "--upload-pack=x" }, "bad_request"},
		"a path":            {func(r *cove.JobRequest) { r.Branch = "a/../b" }, "bad_request"},
		"no commit":         {func(r *cove.JobRequest) { r.Base = "main" }, "bad_request"},
		"an author's trick": {func(r *cove.JobRequest) { r.Author.Name = "a> <b" }, "bad_request"},
		"a control byte":    {func(r *cove.JobRequest) { r.PlanName = "a\x1bb" }, "bad_request"},
		"settings elsewhere": {func(r *cove.JobRequest) {
			r.Settings = []cove.SettingsFile{{Path: ".claude/../../x", Text: "x"}}
		}, "bad_request"},
		"settings of a shell": {func(r *cove.JobRequest) {
			r.Settings = []cove.SettingsFile{{Path: ".bashrc", Text: "x"}}
		}, "bad_request"},
		"a skill of no text": {func(r *cove.JobRequest) { r.Skill = &cove.Skill{Name: "x", Text: "a\x00"} }, "bad_skill"},
		"a definition with a mistake": {func(r *cove.JobRequest) {
			r.Agent, r.Definition = "x", &cove.AgentDefinition{File: "x.toml", Text: "name = 'x'\nargw = 1\n"}
		}, "bad_agent"},
		"another's definition": {func(r *cove.JobRequest) {
			r.Definition = &cove.AgentDefinition{File: "x.toml", Text: "name = 'x'\nargv = ['x', '{prompt_file}']\nverify = ['x']\n"}
		}, "no_agent"},
		"negative time":     {func(r *cove.JobRequest) { r.TimeoutSec = -1 }, "bad_request"},
		"negative guard":    {func(r *cove.JobRequest) { r.Guards.Turns = -1 }, "bad_request"},
		"a long silence":    {func(r *cove.JobRequest) { r.Guards.IdleSec = 1 << 60 }, "bad_request"},
		"unseen turns":      {func(r *cove.JobRequest) { r.Guards.Turns, r.Interactive = 3, true }, "bad_request"},
		"no input":          {func(r *cove.JobRequest) { r.Converse = true }, "no_input"},
		"two inputs":        {func(r *cove.JobRequest) { r.Agent, r.Converse, r.Interactive = "claude", true, true }, "bad_request"},
		"no variable":       {func(r *cove.JobRequest) { r.Env = []string{"=x"} }, "bad_request"},
		"unknown sprite":    {func(r *cove.JobRequest) { r.Sprite = "nobody" }, "not_found"},
		"limits of another": {func(r *cove.JobRequest) { r.Sprite, r.Include = "x", []string{"/opt"} }, "bad_request"},
		"removal of one":    {func(r *cove.JobRequest) { r.Sprite, r.Remove = "x", true }, "bad_request"},
	} {
		req := request()
		test.change(&req)
		job, err := client.CreateJob(t.Context(), req)
		if code(err) != test.want {
			t.Errorf("%s: got %+v, %v, want %s", name, job, err, test.want)
		}
		if name == "a huge plan" && !strings.Contains(err.Error(), "(1 MiB)") {
			t.Errorf("%s: %v does not say the most", name, err)
		}
	}
	jobs, err := client.Jobs(t.Context())
	list, listErr := client.List(t.Context(), sprites.ListOptions{})
	if err != nil || listErr != nil || len(jobs) > 0 || len(list.Sprites) > 0 {
		t.Errorf("left: %v, %v, %v, %v", jobs, err, list, listErr)
	}
}

// TestCreateWithoutKey: an agent without a key for its model is refused before anything is
// made for it. The hint says what to type.
func TestCreateWithoutKey(t *testing.T) {
	m, client := newManager(t)
	ctx := t.Context()
	try := func(name string, change func(*cove.JobRequest), want string) {
		t.Helper()
		req := request()
		change(&req)
		_, err := m.Preview(ctx, req)
		hint := ""
		if e, ok := errors.AsType[*fail.Error](err); ok {
			hint = e.Code + ": " + e.Hint
		} else if err != nil {
			hint = err.Error()
		}
		if hint != want {
			t.Errorf("%s: got %q, want %q", name, hint, want)
		}
	}
	agent := func(name string) func(*cove.JobRequest) { return func(r *cove.JobRequest) { r.Agent = name } }
	for name, secret := range map[string]string{"claude": "anthropic", "codex": "openai", "gemini": "gemini", "opencode": "anthropic", "pi": "anthropic", "cove": "anthropic"} {
		try(name, agent(name), "no_key: cove secret set "+secret)
	}
	try("a key of its own", func(r *cove.JobRequest) { r.Agent, r.Env = "claude", []string{"ANTHROPIC_AUTH_TOKEN=x"} }, "")
	try("a folder of its own", func(r *cove.JobRequest) { r.Agent, r.Include = "claude", []string{"/opt"} }, "")
	try("no model", agent("shell"), "")
	corp := cove.AgentDefinition{File: "x.toml", Text: "name = 'x'\nargv = ['x', '{prompt_file}']\nverify = ['x']\nconnectors = ['corp']\nkeys = ['CORP_KEY']\n"}
	defined := func(r *cove.JobRequest) { r.Agent, r.Definition = "x", &corp }
	try("a connector that nobody knows", defined, "no_key: cove connector put corp --upstream URL")

	put := func(c cove.Connector) {
		t.Helper()
		if _, err := client.PutConnector(ctx, c); err != nil {
			t.Fatal(err)
		}
	}
	put(cove.Connector{Name: "corp", Upstream: "https://models.example.com"})
	try("a connector that adds nothing", defined, "")
	put(cove.Connector{Name: "anthropic", Secret: "work"})
	try("a connector without its secret", agent("claude"), "no_key: cove secret set work")
	try("the same of the own agent", agent("cove"), "no_key: cove secret set work")
	if err := client.SetSecret(ctx, "work", "a-key-that-is-long-enough"); err != nil {
		t.Fatal(err)
	}
	try("with its secret", agent("claude"), "")
	try("with its secret, the own agent", agent("cove"), "")
}

// TestLogins: the agents of two providers may ask by a subscription. The agent codex may use a
// login that the server has, or one in the sprite; claude only one in the sprite. Each refusal
// says what to type.
func TestLogins(t *testing.T) {
	m, client := newManager(t)
	ctx := t.Context()
	try := func(name, agent, login string, env []string, want string) {
		t.Helper()
		req := request()
		req.Agent, req.Login, req.Env = agent, login, env
		p, err := m.Preview(ctx, req)
		got := fmt.Sprint(p.Connectors)
		if e, ok := errors.AsType[*fail.Error](err); ok {
			got = e.Code + ": " + e.Hint
		} else if err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("%s: got %q, want %q", name, got, want)
		}
	}
	const outside = "[{chatgpt https://chatgpt.com/backend-api/codex true}]"
	try("no login", "codex", cove.LoginOutside, nil, "no_login: cove secret set chatgpt --from-login")
	set := func(at time.Time) {
		t.Helper()
		if err := cove.SetLogin(ctx, client, "chatgpt", canary, cove.SecretLogin{Client: "codex", Account: "the-account", ExpiresAt: &at}); err != nil {
			t.Fatal(err)
		}
	}
	set(time.Now().Add(24 * time.Hour))
	try("the login that there is", "codex", "", nil, outside)
	try("the login that is asked for", "codex", cove.LoginOutside, nil, outside)
	try("a key in its place", "codex", cove.LoginKey, nil, "no_key: cove secret set openai")
	try("a login of its own", "codex", cove.LoginInside, nil, "[]")
	try("a token of its own", "codex", "", []string{"CODEX_ACCESS_TOKEN=x"}, "[]")
	try("the token inside", "codex", "", []string{"X={secret:chatgpt}"}, "is_login: leave out the variable: the connector adds the token")
	set(time.Now().Add(-time.Second))
	hint := "login_expired: use codex once where you have logged in, which renews its login, and then: cove secret set chatgpt --from-login; or use a key: --login key"
	try("an old token", "codex", "", nil, hint)
	try("an old token that is asked for", "codex", cove.LoginOutside, nil, hint)

	try("claude's token", "claude", "", []string{"CLAUDE_CODE_OAUTH_TOKEN=x"}, "[]")
	try("claude's login", "claude", cove.LoginInside, nil, "[]")
	try("claude's login outside", "claude", cove.LoginOutside, nil, "no_login: get a token (claude setup-token), store it: cove secret set claude-token, and give it to the agent: "+
		"cove push --agent claude --env CLAUDE_CODE_OAUTH_TOKEN={secret:claude-token} plan.md")
	try("another agent's token", "cove", "", []string{"CLAUDE_CODE_OAUTH_TOKEN=x"}, "no_key: cove secret set anthropic")
	for _, agent := range []string{"cove", "opencode", "pi", "gemini", "shell"} {
		for _, login := range []string{cove.LoginOutside, cove.LoginInside} {
			try(agent+" "+login, agent, login, nil, "no_login: leave out --login, or use --agent claude or codex")
		}
	}
	try("no such login", "codex", "x", nil, "bad_request: write --login key, outside or inside")
}

// TestMCPInside: an MCP server inside is a command with variables. No answer has their values.
// Secrets in them need an administrator, as in a job's own variables.
func TestMCPInside(t *testing.T) {
	_, client := newManager(t)
	ctx := t.Context()
	for _, name := range []string{"anthropic", "ci"} {
		if err := client.SetSecret(ctx, name, canary); err != nil {
			t.Fatal(err)
		}
	}
	ask := func(agent string, servers ...cove.MCPServer) cove.JobRequest {
		req := request()
		req.Agent, req.MCP = agent, servers
		return req
	}
	good := cove.MCPServer{Name: "files", Command: []string{"serve-files", "."}, Env: []string{"PLAIN=" + canary, "TOKEN={secret:ci}"}}
	with := func(change func(*cove.MCPServer)) cove.MCPServer {
		s := good
		change(&s)
		return s
	}
	for name, test := range map[string]struct {
		req  cove.JobRequest
		want string
	}{
		"an agent without":   {ask("pi", good), "bad_request"},
		"no name":            {ask("claude", with(func(s *cove.MCPServer) { s.Name = "" })), "bad_request"},
		"a name of a path":   {ask("claude", with(func(s *cove.MCPServer) { s.Name = "../x" })), "bad_request"},
		"twice":              {ask("claude", good, good), "bad_request"},
		"no command":         {ask("claude", with(func(s *cove.MCPServer) { s.Command = nil })), "bad_request"},
		"a NUL":              {ask("claude", with(func(s *cove.MCPServer) { s.Command = []string{"a\x00"} })), "bad_request"},
		"two kinds":          {ask("cove", with(func(s *cove.MCPServer) { s.Connector = "ci" })), "bad_request"},
		"tools":              {ask("cove", with(func(s *cove.MCPServer) { s.Tools = []string{"*"} })), "bad_request"},
		"a name for no sh":   {ask("claude", with(func(s *cove.MCPServer) { s.Env = []string{"A;id=" + canary} })), "bad_request"},
		"a missing secret":   {ask("claude", with(func(s *cove.MCPServer) { s.Env = []string{"A={secret:nobody}"} })), "no_secret"},
		"a variable of none": {ask("claude", with(func(s *cove.MCPServer) { s.Env = []string{canary} })), "bad_request"},
	} {
		_, err := client.CreateJob(ctx, test.req)
		if code(err) != test.want || strings.Contains(err.Error(), canary) {
			t.Errorf("%s: got %v, want %s", name, err, test.want)
		}
	}
	tok, err := client.CreateToken(ctx, cove.TokenRequest{Name: "t", Scope: cove.TokenScope{All: true}, Verbs: []string{"read", "write", "exec"}})
	if err != nil {
		t.Fatal(err)
	}
	by := &cove.Client{Client: &sprites.Client{URL: client.URL, Token: tok.Secret, HTTPClient: client.HTTPClient}}
	if _, err := by.PreviewJob(ctx, ask("claude", good)); code(err) != "forbidden" {
		t.Errorf("a secret for a token without admin: got %v", err)
	}
	if _, err := by.PreviewJob(ctx, ask("claude", with(func(s *cove.MCPServer) { s.Env = nil }))); err != nil {
		t.Errorf("a server of a token without admin: got %v", err)
	}
	job, err := client.CreateJob(ctx, ask("claude", good))
	if err != nil || fmt.Sprint(job.MCP) != "[{ [] files [serve-files .] [PLAIN TOKEN]}]" || fmt.Sprint(job.Secrets) != "[ci]" {
		t.Fatalf("got %+v, %v, %v", job.MCP, job.Secrets, err)
	}
	text, err := json.Marshal(job)
	if err != nil || strings.Contains(string(text), canary) {
		t.Errorf("the job has a value: %s, %v", text, err)
	}
}

// A job's policy is its sprite's from the beginning. A sprite that was there before
// keeps its own, unless the job brings one.
func TestNetworkPolicy(t *testing.T) {
	_, client := newManager(t)
	policyOf := func(sprite string) string {
		t.Helper()
		p, err := client.Sprite(sprite).NetworkPolicy(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Sprint(p.Rules)
	}
	create := func(sprite string, rules ...sprites.NetworkRule) (cove.Job, error) {
		req := request()
		req.Sprite = sprite
		if len(rules) > 0 {
			req.NetworkPolicy = &sprites.NetworkPolicy{Rules: rules}
		}
		return client.CreateJob(t.Context(), req)
	}
	agent := sprites.NetworkRule{Include: "agent"}
	job, err := create("", agent)
	if err != nil || job.NetworkPolicy == nil || policyOf(job.Sprite) != fmt.Sprint(job.NetworkPolicy.Rules) || job.NetworkPolicy.Rules[0].Include != "agent" {
		t.Errorf("a new sprite: %+v, %v", job, err)
	}
	if _, err := client.Create(t.Context(), sprites.CreateRequest{Name: "paint", NetworkPolicy: &sprites.NetworkPolicy{Rules: []sprites.NetworkRule{{Include: "none"}}}}); err != nil {
		t.Fatal(err)
	}
	own := policyOf("paint")
	if job, err := create("paint"); err != nil || job.NetworkPolicy != nil || policyOf("paint") != own {
		t.Errorf("a sprite with a policy: %+v, %v, %s", job, err, policyOf("paint"))
	}
	for _, sprite := range []string{"", "paint"} {
		if job, err := create(sprite, sprites.NetworkRule{Include: "nosuch"}); code(err) != "bad_request" || policyOf("paint") != own {
			t.Errorf("a malformed one: %+v, %v", job, err)
		}
	}
	if _, err := create("paint", agent); err != nil || policyOf("paint") == own {
		t.Errorf("a policy for an old sprite: %s, %v", policyOf("paint"), err)
	}
	if jobs, err := client.Jobs(t.Context()); err != nil || len(jobs) != 3 {
		t.Errorf("left: %v, %v", jobs, err)
	}
}

func TestBranchName(t *testing.T) {
	for name, want := range map[string]bool{
		"main": true, "feature/x": true, "v1.0": true, "ä": true, "a-b_c": true,
		"": false, "-x": false, "@": false, "HEAD": false, "a..b": false, "a/": false, "/a": false, "a//b": false, ".a": false, "a/.b": false,
		"a.lock": false, "a.": false, "a b": false, "a\nb": false, "a~1": false, "a^": false, "a:b": false, "a?": false, "a*": false, "a[": false,
		`a\b`: false, "a@{1}": false, strings.Repeat("x", 300): false,
	} {
		if got := branchName(name); got != want {
			t.Errorf("%q: got %v", name, got)
		}
	}
}

func TestWorkdir(t *testing.T) {
	for repository, want := range map[string]string{
		"repo": "repo", "my repo": "my-repo", "../../etc": "etc", "..": "repository", "": "repository", "a/b\nc": "a-b-c", "-rf": "rf",
	} {
		if got := workdir("a3f7b2", repository); got != "/home/sprite/work/a3f7b2/"+want {
			t.Errorf("%q: got %s", repository, got)
		}
	}
}

// A job whose repository never comes ends, with its sprite.
func TestQueued(t *testing.T) {
	m, client := newManager(t)
	ctx := t.Context()
	create := func() cove.Job {
		t.Helper()
		job, err := client.CreateJob(ctx, request())
		if err != nil {
			t.Fatal(err)
		}
		if job.State != cove.JobQueued || job.Sprite != "job-"+job.ID || !strings.HasPrefix(job.Upload, "/home/sprite/.cove/jobs/"+job.ID) {
			t.Fatalf("got %+v", job)
		}
		return job
	}
	gone := func(job cove.Job) {
		t.Helper()
		if _, err := client.Get(ctx, job.Sprite); !errors.Is(err, sprites.ErrNotFound) {
			t.Errorf("its sprite: %v", err)
		}
	}
	late := create()
	if err := m.janitor.expire(ctx, late.CreatedAt.Add(m.Lease-time.Second)); err != nil {
		t.Fatal(err)
	}
	if job, err := client.Job(ctx, late.ID); err != nil || job.State != cove.JobQueued {
		t.Fatalf("expired early: %+v, %v", job, err)
	}
	// Its time begins when it is ready: its agent may have been installed before.
	ready := late.CreatedAt.Add(10 * time.Minute)
	if err := m.Store.Jobs.Update(ctx, late.ID, func(j *cove.Job) error { j.ReadyAt = &ready; return nil }); err != nil {
		t.Fatal(err)
	}
	if err := m.janitor.expire(ctx, late.CreatedAt.Add(m.Lease+time.Second)); err != nil {
		t.Fatal(err)
	}
	if job, err := client.Job(ctx, late.ID); err != nil || job.State != cove.JobQueued {
		t.Fatalf("expired early: %+v, %v", job, err)
	}
	if err := m.janitor.expire(ctx, ready.Add(m.Lease+time.Second)); err != nil {
		t.Fatal(err)
	}
	if job, err := client.Job(ctx, late.ID); err != nil || job.State != cove.JobCancelled || job.Outcome.Kind != agents.Cancelled {
		t.Errorf("not expired: %+v, %v", job, err)
	}
	gone(late)
	if _, err := client.StartJob(ctx, late.ID, cove.JobStart{BundleSHA256: strings.Repeat("0", 64), BundleSize: 1}); code(err) != "job_ended" {
		t.Errorf("start of one that has ended: %v", err)
	}

	stopped := create()
	for range 2 {
		if job, err := client.StopJob(ctx, stopped.ID); err != nil || job.State != cove.JobCancelled {
			t.Errorf("stop: %+v, %v", job, err)
		}
	}
	gone(stopped)
	if err := client.DeleteJob(ctx, stopped.ID, false); err != nil {
		t.Error(err)
	}

	deleted := create()
	if err := client.DeleteJob(ctx, deleted.ID, false); code(err) != "job_running" {
		t.Errorf("delete of one at work: %v", err)
	}
	if _, err := client.MarkPulled(ctx, deleted.ID, ""); code(err) != "job_running" {
		t.Errorf("pulled while at work: %v", err)
	}
	if _, err := client.StartJob(ctx, deleted.ID, cove.JobStart{BundleSHA256: "x", BundleSize: 1}); code(err) != "bad_request" {
		t.Errorf("start without a digest: %v", err)
	}
	if err := client.DeleteJob(ctx, deleted.ID, true); err != nil {
		t.Error(err)
	}
	gone(deleted)
}

// TestHostileLog: an agent can change anything in its sprite. Only a log as a supervisor
// writes it gets into the store.
func TestHostileLog(t *testing.T) {
	m, client := newManager(t)
	job, err := client.CreateJob(t.Context(), request())
	if err != nil {
		t.Fatal(err)
	}
	f := follower{all: m.followers, id: job.ID}
	ok := `{"seq":1,"type":"output","stream":"stdout","text":"x","outcome":{"kind":"success"}}` + "\n"
	for name, log := range map[string]string{
		"no JSON":        "hello\n",
		"a gap":          `{"seq":3,"type":"output"}` + "\n",
		"again":          `{"seq":1,"type":"output"}` + "\n",
		"another type":   `{"seq":2,"type":"shutdown"}` + "\n",
		"an empty end":   `{"seq":2,"type":"end"}` + "\n",
		"a line for all": `{"seq":2,"type":"output","text":"` + strings.Repeat("x", maxEvent) + `"}` + "\n",
	} {
		if err := f.store(t.Context(), strings.NewReader(ok+log), 0); !errors.Is(err, errBadLog) {
			t.Errorf("%s: got %v", name, err)
		}
	}
	// A line that is cut off comes again.
	if err := f.store(t.Context(), strings.NewReader(ok+`{"seq":2,"ty`), 0); err != nil {
		t.Errorf("a cut line: %v", err)
	}
	events, err := m.Store.Jobs.Events(context.Background(), job.ID, 1, 100)
	if err != nil || len(events) != 1 || events[0].Outcome != nil {
		t.Errorf("stored: %+v, %v", events, err)
	}
	if after, err := client.Job(t.Context(), job.ID); err != nil || after.State.Terminal() {
		t.Errorf("the job: %+v, %v", after, err)
	}
	// A supervisor can't name something that would be used as a path, a ref or an option.
	end := `{"seq":2,"type":"end","result":{"phase":"done","exit_code":0,"head":"--upload-pack=x","commits":-5,
		"leftover":"HEAD","bundle":{"path":"/etc/shadow","size":5,"sha256":"zz"}}}`
	if err := f.store(t.Context(), strings.NewReader(strings.ReplaceAll(end, "\n", " ")+"\n"), 1); err != nil && !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
	after, err := client.Job(t.Context(), job.ID)
	if err != nil || after.State != cove.JobFailed || after.Head+after.Leftover+after.Bundle.Path != "" || after.Commits != 0 || after.Outcome.Kind != agents.NoResult {
		t.Errorf("the job: %+v, %v", after, err)
	}
}

// TestGetWhile: a reader waits while a job is in some state. It is answered when the job is in
// another one, and when its installation has got further.
func TestGetWhile(t *testing.T) {
	m, client := newManager(t)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	job, err := client.CreateJob(ctx, request())
	if err != nil {
		t.Fatal(err)
	}
	get := func() (got cove.Job, err error) {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, client.URL+"/v1/jobs/"+job.ID+"?wait=60s&while=installing", nil)
		if err != nil {
			return got, err
		}
		req.Header.Set("Authorization", "Bearer "+client.Token)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return got, err
		}
		defer func() { _ = resp.Body.Close() }()
		return got, json.NewDecoder(resp.Body).Decode(&got)
	}
	if got, err := get(); err != nil || got.State != cove.JobQueued {
		t.Errorf("in another state: %+v, %v", got, err)
	}
	answered := make(chan error, 1)
	set := func(said string) {
		err := m.Store.Jobs.Update(ctx, job.ID, func(j *cove.Job) error {
			j.State, j.Installing = cove.JobInstalling, &cove.InstallProgress{Agent: "x", Said: said}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	}
	set("0")
	go func() {
		got, err := get()
		if err == nil && (got.Installing == nil || got.Installing.Said == "0") {
			err = fmt.Errorf("got %+v", got.Installing)
		}
		answered <- err
	}()
	for i := 1; ; i++ { // its first look may come late
		select {
		case err := <-answered:
			if err != nil {
				t.Errorf("further: %v", err)
			}
			return
		case <-time.After(100 * time.Millisecond):
			set(fmt.Sprint(i))
		}
	}
}

// TestSaidLine: the lines of an installation are a sandbox's text. A job's row has a short
// line of them, without anything that a terminal would obey.
func TestSaidLine(t *testing.T) {
	for said, want := range map[string]string{
		"": "", "one\ntwo\n\n": "two", "10%\r20%\r": "20%", "a\tb": "a b", "\x1b[31mred\x1b[0m\x07": "[31mred[0m",
		"bad \xff byte": "bad ? byte", "right\u202eleft": "rightleft", strings.Repeat("ä", 500): strings.Repeat("ä", maxSaidLine),
		strings.Repeat("x", 3*maxInstallSaid) + "\nend": "end",
	} {
		var out tail
		if _, err := out.Write([]byte(said)); err != nil || out.line() != want {
			t.Errorf("%.40q: got %q, %v, want %q", said, out.line(), err, want)
		}
	}
}

// TestPushCut: a job does not stay queued if its push ended with the server that it came to. A
// job that somebody still works on does.
func TestPushCut(t *testing.T) {
	b := newBench(t)
	b.serve(0, 0)
	ctx := t.Context()
	create := func() cove.Job {
		t.Helper()
		job, err := b.server.Client().CreateJob(ctx, request())
		if err != nil {
			t.Fatal(err)
		}
		return job
	}
	cut, going, retried := create(), create(), create()
	if err := b.manager.Store.Jobs.Update(ctx, retried.ID, func(j *cove.Job) error { j.RetryOf = cut.ID; return nil }); err != nil {
		t.Fatal(err)
	}
	b.server.Stop()
	b.serve(0, 0)
	c := b.server.Client()
	if job := b.await(retried.ID); job.State != cove.JobFailed || job.Failure == nil || job.Failure.Hint != "cove job retry "+cut.ID {
		t.Errorf("one that the server was to begin: %s, %+v", job.State, job.Failure)
	}
	r, w := io.Pipe()
	uploaded := make(chan error, 1)
	go func() { uploaded <- c.Sprite(going.Sprite).WriteFile(ctx, going.Upload, r, sprites.WriteOptions{}) }()
	if _, err := w.Write([]byte("x")); err != nil { // the call is under way
		t.Fatal(err)
	}
	for used := false; !used; {
		info, err := c.Get(ctx, going.Sprite)
		if err != nil {
			t.Fatal(err)
		}
		used = len(info.Cove.AwakeBy) > 0
	}
	fresh := create()
	states := func(after time.Duration, want ...cove.JobState) {
		t.Helper()
		if err := b.manager.janitor.expire(ctx, b.manager.janitor.since.Add(after)); err != nil {
			t.Fatal(err)
		}
		for i, job := range []cove.Job{cut, going, fresh} {
			if got, err := c.Job(ctx, job.ID); err != nil || got.State != want[i] {
				t.Errorf("after %v, job %d is %s, %v, want %s", after, i, got.State, err, want[i])
			}
		}
	}
	states(pushPatience-time.Second, cove.JobQueued, cove.JobQueued, cove.JobQueued)
	states(pushPatience, cove.JobFailed, cove.JobQueued, cove.JobQueued)
	if err := errors.Join(w.Close(), <-uploaded); err != nil {
		t.Error(err)
	}
	job, err := c.Job(ctx, cut.ID)
	if err != nil || !strings.Contains(job.Error, "the server ended while its repository was on its way") || job.Failure.Hint != "push again" {
		t.Errorf("got %q, %+v, %v", job.Error, job.Failure, err)
	}
	if _, err := c.Get(ctx, cut.Sprite); !errors.Is(err, sprites.ErrNotFound) {
		t.Errorf("its sprite: %v", err)
	}
}

// TestTurnGivenBack: if a job's push ended before the job's turn came, the job does not keep
// the others waiting.
func TestTurnGivenBack(t *testing.T) {
	b := newBench(t)
	b.serve(0, 0)
	ctx := t.Context()
	if _, err := b.manager.Store.Profiles.Put(ctx, "one", 0, cove.ProfileSettings{MaxJobs: 1}); err != nil {
		t.Fatal(err)
	}
	c := b.server.Client()
	create := func() cove.Job {
		t.Helper()
		req := request()
		req.Profile, req.Early = "one", true
		job, err := c.CreateJob(ctx, req)
		if err != nil {
			t.Fatal(err)
		}
		return job
	}
	is := func(id string, state cove.JobState, place int) cove.Job {
		t.Helper()
		changed, cancel := b.manager.Store.Jobs.Watch(id)
		defer cancel()
		for {
			job, err := c.Job(ctx, id)
			if err != nil {
				t.Fatal(err)
			}
			if job.State == state && job.Place == place {
				return job
			}
			select {
			case <-changed:
			case <-time.After(10 * time.Minute):
				t.Fatalf("job %s is %s, place %d, want %s, %d", id, job.State, job.Place, state, place)
			}
		}
	}
	gone := create()
	is(gone.ID, cove.JobQueued, 0)
	next := create()
	is(next.ID, cove.JobInstalling, 1)
	ready := *is(gone.ID, cove.JobQueued, 0).ReadyAt
	if err := b.manager.janitor.expire(ctx, ready.Add(pushPatience-time.Second)); err != nil {
		t.Fatal(err)
	}
	is(gone.ID, cove.JobQueued, 0)
	if err := b.manager.janitor.expire(ctx, ready.Add(pushPatience)); err != nil {
		t.Fatal(err)
	}
	if job := is(gone.ID, cove.JobFailed, 0); !strings.Contains(job.Error, "nobody sent its repository") {
		t.Errorf("got %q", job.Error)
	}
	is(next.ID, cove.JobQueued, 0)
}

// TestRemoveUncollected: a job is not forgotten with the only copy of its work.
func TestRemoveUncollected(t *testing.T) {
	m, client := newManager(t)
	ctx := t.Context()
	end := func() cove.Job {
		t.Helper()
		job, err := client.CreateJob(ctx, request())
		if err == nil {
			_, err = m.finisher.finish(ctx, job.ID, cove.JobFailed, cove.Outcome{Kind: agents.CollectFailed}, func(j *cove.Job) { j.Uncollected = "it is broken" })
		}
		if err != nil {
			t.Fatal(err)
		}
		return job
	}
	job, gone := end(), end()
	err := client.DeleteJob(ctx, job.ID, false)
	e, _ := errors.AsType[*sprites.Error](err)
	if e == nil || e.Code != "uncollected_work" || !strings.Contains(e.Message, "it is broken") ||
		!strings.HasPrefix(e.Hint, fmt.Sprintf("copy it out: cove sync pull -s %s %s ./job-%s; ", job.Sprite, job.Workdir, job.ID)) {
		t.Errorf("got %+v", err)
	}
	if _, err := client.Get(ctx, job.Sprite); err != nil {
		t.Errorf("its sprite: %v", err)
	}
	if err := client.DeleteJob(ctx, job.ID, true); err != nil {
		t.Error(err)
	}
	if err := client.Delete(ctx, gone.Sprite, sprites.DeleteOptions{Force: true}); err != nil {
		t.Fatal(err)
	}
	if err := client.DeleteJob(ctx, gone.ID, false); err != nil {
		t.Errorf("with its sprite gone: %v", err)
	}
}

// TestPulledNothing: a job that left nothing lets go of its sprite when it is pulled, but does
// not count as pulled. If it failed, it still needs somebody.
func TestPulledNothing(t *testing.T) {
	m, client := newManager(t)
	ctx := t.Context()
	for _, size := range []int64{0, 5} {
		req := request()
		req.Remove = true
		job, err := client.CreateJob(ctx, req)
		if err == nil {
			_, err = m.finisher.finish(ctx, job.ID, cove.JobFailed, cove.Outcome{Kind: agents.AgentFailed}, func(j *cove.Job) { j.Bundle.Size = size })
		}
		if err == nil {
			job, err = client.MarkPulled(ctx, job.ID, job.Base)
		}
		if err != nil {
			t.Fatal(err)
		}
		if _, err := client.Get(ctx, job.Sprite); !errors.Is(err, sprites.ErrNotFound) {
			t.Errorf("with %d bytes, its sprite: %v", size, err)
		}
		if pulled := job.PulledAt != nil; pulled != (size > 0) || pulled == (job.Group() == cove.JobsNeeds) {
			t.Errorf("with %d bytes, it is pulled at %v, and in %s", size, job.PulledAt, job.Group())
		}
	}
}
