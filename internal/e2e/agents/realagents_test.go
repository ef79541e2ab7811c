package agents

import (
	"bytes"
	"cmp"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/server/agents"
	"github.com/cove-dev/cove/internal/test/e2e"
	"github.com/cove-dev/cove/internal/test/modeltest"
)

// model is a scripted model's server.
type model interface {
	http.Handler
	Requests() []modeltest.Request
}

// script is what a model will do.
type script struct {
	turns  []modeltest.Turn
	status int
	fails  []modeltest.Failure
}

// realAgent is one of the real programs, and the model that it speaks to.
type realAgent struct {
	name      string
	packages  []string
	connector string
	model     func(script) model
	shell     func(command string) modeltest.Call
	writes    func(name, content string) modeltest.Call
	aside     int64 // the agent's own requests; it reports their tokens too
	fails     bool  // it says that a command has failed
	turns     bool  // it tells of its turns
	retries   bool  // it tells that its model is asked again
	early     bool  // it tells of its session before its model answers
}

func anthropicModel(s script) model {
	return &modeltest.Anthropic{Turns: s.turns, Status: s.status, Fails: s.fails, Key: modelKey}
}

// called makes a call with the given names of its inputs.
func called(tool string, names ...string) func(values ...string) modeltest.Call {
	return func(values ...string) modeltest.Call {
		input := map[string]any{}
		for i, name := range names {
			input[name] = "look around" // a description
			if i < len(values) {
				input[name] = values[i]
			}
		}
		return modeltest.Call{Tool: tool, Input: input}
	}
}

func shellOf(tool string, names ...string) func(string) modeltest.Call {
	call := called(tool, names...)
	return func(command string) modeltest.Call { return call(command) }
}

func writeOf(tool string, names ...string) func(string, string) modeltest.Call {
	call := called(tool, names...)
	return func(name, content string) modeltest.Call { return call(name, content) }
}

// inCode is a call of Codex's only tool, which runs a text of JavaScript.
func inCode(format string, args ...any) modeltest.Call {
	return modeltest.Call{Tool: "exec", Input: map[string]any{"input": "text(JSON.stringify(await " + fmt.Sprintf(format, args...) + "));"}}
}

// realAgents are the agents that npm has. Their versions are those that cove installs,
// except for Claude Code: its latest needs a newer Node.js than this machine may have.
var realAgents = []realAgent{
	{
		name: "claude", packages: []string{"@anthropic-ai/claude-code@" + claudeVersion}, connector: "anthropic", model: anthropicModel,
		shell: shellOf("Bash", "command", "description"), writes: writeOf("Write", "file_path", "content"), fails: true, turns: true, retries: true, early: true,
	},
	{
		name: "codex", packages: []string{"@openai/codex@0.169.0"}, connector: "openai",
		model: func(s script) model {
			return &modeltest.OpenAI{Turns: s.turns, Status: s.status, Fails: s.fails, Key: modelKey}
		},
		shell: func(command string) modeltest.Call { return inCode("tools.exec_command({cmd: %q})", command) },
		writes: func(name, content string) modeltest.Call {
			return inCode("tools.apply_patch(%q)", "*** Begin Patch\n*** Add File: "+name+"\n+"+strings.TrimSuffix(content, "\n")+"\n*** End Patch\n")
		},
		fails: true, retries: true, early: true,
	},
	{
		name: "gemini", packages: []string{"@google/gemini-cli@0.61.0"}, connector: "gemini",
		model: func(s script) model {
			// It first asks a model of its own to choose the model, and reports the usage
			// of that as well.
			choice := `{"reasoning":"simple","model_choice":"flash","complexity_reasoning":"simple","complexity_score":1}`
			return &modeltest.Gemini{Turns: s.turns, Status: s.status, Fails: s.fails, Key: modelKey, Aside: choice}
		},
		shell: shellOf("run_shell_command", "command", "description"), writes: writeOf("write_file", "file_path", "content"),
		aside: 1, retries: true, early: true,
	},
	{
		name: "opencode", packages: []string{"opencode-ai@1.18.33"}, connector: "anthropic", model: anthropicModel,
		shell: shellOf("bash", "command", "description"), writes: writeOf("write", "filePath", "content"), fails: true, turns: true,
	},
	{
		name: "pi", packages: []string{"@earendil-works/pi-coding-agent@0.87.1", "node@24.21.0"}, connector: "anthropic", model: anthropicModel,
		shell: shellOf("bash", "command"), writes: writeOf("write", "path", "content"), fails: true, turns: true, retries: true, early: true,
	},
}

// agentRun is a server with one sprite. One agent works in it, again and again.
type agentRun struct {
	*e2e.Host
	realAgent
	repo   string
	flags  []string
	asking atomic.Pointer[model]
}

// TestAgents has each real agent do its work in a sandbox, against a scripted model, and
// fail at it in several ways. Outcome, events, usage and session must be right.
func TestAgents(t *testing.T) {
	requireAgents(t)
	for _, agent := range realAgents {
		t.Run(agent.name, func(t *testing.T) {
			tools := npmInstall(t, agent.packages...)
			h := e2e.NewHost(t)
			r := &agentRun{Host: h, realAgent: agent}
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) { (*r.asking.Load()).ServeHTTP(w, req) }))
			t.Cleanup(server.Close)
			r.play(script{})
			h.Serve(nil)
			set := h.Command("", "cove", "secret", "set", agent.connector)
			set.Stdin = strings.NewReader(modelKey)
			if out, err := set.CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			h.Run("", "cove", "connector", "put", agent.connector, "--upstream", server.URL)
			h.Run("", "cove", "create", "paint", "--include", tools, "--network", "none")
			r.repo = h.Repository("repo", map[string]string{"greeting.txt": "hello\n", "plan.md": "# Plan\n\nGreet the world.\n"})
			r.flags = []string{"-s", "paint", "--agent", agent.name, "--env", npmPath(tools), "--dirty", "ignore"}
			for _, mode := range agentModes {
				t.Run(mode.name, func(t *testing.T) {
					here := *h
					here.T = t
					run := &agentRun{Host: &here, realAgent: agent, repo: r.repo, flags: r.flags}
					mode.test(run, func(s script) model { return r.play(s) })
				})
			}
		})
	}
}

// play has the model do what the script says from now on.
func (r *agentRun) play(s script) model {
	m := r.model(s)
	r.asking.Store(&m)
	return m
}

var agentModes = []struct {
	name string
	test func(r *agentRun, play func(script) model)
}{
	{"answer", (*agentRun).answers},
	{"tools", (*agentRun).usesTools},
	{"401", (*agentRun).isRefused},
	{"429", (*agentRun).isPutOff},
	{"hang", (*agentRun).hangs},
	{"stop", (*agentRun).isStopped},
	{"max-turns", (*agentRun).mayTakeOneTurn},
	{"1 MB", (*agentRun).readsMuch},
	{"open stdin", (*agentRun).readsNoMore},
	{"login", (*agentRun).asksByLogin},
	{"mcp", (*agentRun).startsServers},
}

// finish waits for a job's end.
func (r *agentRun) finish(id string, want cove.JobState) cove.Job {
	r.T.Helper()
	r.Try("", "cove", "job", "wait", id)
	job := r.Job(id)
	if job.State != want {
		r.T.Fatalf("it is %s: %+v\n%s", job.State, job.Outcome, r.Run("", "cove", "job", "logs", id))
	}
	return job
}

// begin pushes the plan.
func (r *agentRun) begin(flags ...string) string {
	r.T.Helper()
	job, _ := r.Push(r.repo, slices.Concat([]string{"plan.md"}, r.flags, flags)...)
	return job
}

// kinds returns the kinds of a job's events, what its agent said, and how many tool calls
// failed.
func (r *agentRun) kinds(id string) (kinds []agents.Kind, said []string, failed int) {
	r.T.Helper()
	agent, err := agents.Find(r.name)
	if err != nil {
		r.T.Fatal(err)
	}
	reader := agent.Read()
	for _, ev := range r.Events(id) {
		for _, e := range reader.Event(ev) {
			kinds = append(kinds, e.Kind)
			if e.Kind == agents.KindText || e.Kind == agents.KindResult {
				said = append(said, e.Text)
			}
			if e.Failed {
				failed++
			}
		}
	}
	return kinds, said, failed
}

// used checks the usage of a job of so many turns.
func (r *agentRun) used(job cove.Job, turns int64) {
	r.T.Helper()
	n := turns + r.aside
	if u := job.Usage; u == nil || u.InputTokens != 100*n || u.OutputTokens != 20*n || r.turns && u.Turns != turns {
		r.T.Errorf("usage of %d turns: got %+v", turns, u)
	}
}

// notes is an MCP server that tells of the variable that it was given.
const notes = `import json, os, sys
for line in sys.stdin:
    m = json.loads(line)
    answer = {}
    if m.get("method") == "initialize":
        answer = {"protocolVersion": m["params"]["protocolVersion"], "capabilities": {"tools": {}}, "serverInfo": {"name": "notes", "version": "1"}}
        open(os.path.expanduser("~/notes.log"), "a").write(os.environ["TOKEN"] + "\n")
    elif m.get("method") == "tools/list":
        answer = {"tools": [{"name": "look_at_notes", "description": "Looks.", "inputSchema": {"type": "object", "properties": {}}}]}
    if "id" in m:
        print(json.dumps({"jsonrpc": "2.0", "id": m["id"], "result": answer}), flush=True)
`

// startsServers: an MCP server is started in the sprite with its variables, and the model
// is offered its tools. If the agent can't start one, the push is refused.
func (r *agentRun) startsServers(play func(script) model) {
	turns := []modeltest.Turn{{Text: "There is nothing to do."}}
	if r.name == "codex" { // its model finds such tools only through its own one
		turns = append([]modeltest.Turn{{Calls: []modeltest.Call{{Tool: "exec", Input: map[string]any{"input": "text(JSON.stringify(ALL_TOOLS))"}}}}}, turns...)
	}
	m := play(script{turns: turns})
	if err := r.Client().SetSecret(r.T.Context(), "notes", "the-token-of-notes"); err != nil {
		r.T.Fatal(err)
	}
	r.Write("notes.py", notes)
	r.Run("", "cove", "cp", filepath.Join(filepath.Dir(r.repo), "notes.py"), "paint:notes.py")
	flags := []string{"--mcp", "sprite:notes=exec python3 ~/notes.py", "--mcp-env", "notes:TOKEN={secret:notes}"}
	agent, err := agents.Find(r.name)
	if err != nil {
		r.T.Fatal(err)
	}
	if _, ok := agent.(agents.MCPStarter); !ok {
		if out, code := r.Try(r.repo, "cove", slices.Concat([]string{"push", "plan.md"}, flags, r.flags)...); code == 0 || !strings.Contains(out, "can't be given MCP servers") {
			r.T.Errorf("an MCP server: %d, %s", code, out)
		}
		return
	}
	job := r.finish(r.begin(flags...), cove.JobSucceeded)
	if got := r.Run("", "cove", "exec", "-s", "paint", "cat", "notes.log"); !strings.Contains(got, "the-token-of-notes") {
		r.T.Errorf("the server has %q", got)
	}
	offered := func(req modeltest.Request) bool { return bytes.Contains(req.Body, []byte("look_at_notes")) }
	if !slices.ContainsFunc(m.Requests(), offered) {
		r.T.Errorf("the model was not offered the server's tool; it was offered %q", m.Requests()[0].Tools)
	}
	if len(job.MCP) != 1 || !slices.Equal(job.MCP[0].Env, []string{"TOKEN"}) {
		r.T.Errorf("the job says %+v", job.MCP)
	}
}

// asksByLogin: the agents of a subscription ask with the token of a login, which of codex is
// outside of the sprite. All others are refused it.
func (r *agentRun) asksByLogin(func(script) model) {
	var m model
	var flags []string
	token := "sk-ant-oat-of-a-login"
	turns := []modeltest.Turn{{Text: "There is nothing to do."}}
	switch r.name {
	case "claude":
		m = &modeltest.Anthropic{Turns: turns}
		if err := r.Client().SetSecret(r.T.Context(), "claude-token", token); err != nil {
			r.T.Fatal(err)
		}
		server := httptest.NewServer(http.HandlerFunc(m.ServeHTTP))
		defer server.Close()
		r.Run("", "cove", "connector", "put", "straight", "--upstream", server.URL)
		r.Run("", "cove", "connector", "grant", "straight", "--sprite", "paint")
		flags = []string{"--env", "CLAUDE_CODE_OAUTH_TOKEN={secret:claude-token}", "--env", "ANTHROPIC_BASE_URL=http://straight.connect.internal"}
	case "codex":
		claims := base64.RawURLEncoding.EncodeToString(fmt.Appendf(nil, `{"exp":%d}`, time.Now().Add(24*time.Hour).Unix()))
		token = "e30." + claims + ".x"
		m = &modeltest.OpenAI{Turns: turns, Key: token}
		server := httptest.NewServer(http.HandlerFunc(m.ServeHTTP))
		defer server.Close()
		home := filepath.Join(r.Home, ".codex")
		if err := os.MkdirAll(home, 0o700); err != nil {
			r.T.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(home, "auth.json"), []byte(`{"tokens":{"access_token":"`+token+`","account_id":"ada"}}`), 0o600); err != nil {
			r.T.Fatal(err)
		}
		r.Run("", "cove", "secret", "set", "chatgpt", "--from-login")
		defer r.Run("", "cove", "secret", "rm", "chatgpt", "--force") // codex would ask by it from now on
		r.Run("", "cove", "connector", "put", "chatgpt", "--upstream", server.URL)
	default:
		if out, code := r.Try(r.repo, "cove", slices.Concat([]string{"push", "plan.md", "--login", "inside"}, r.flags)...); code == 0 || !strings.Contains(out, "needs a key for its model") {
			r.T.Errorf("a login: %d, %s", code, out)
		}
		return
	}
	job := r.finish(r.begin(flags...), cove.JobSucceeded)
	asked := m.Requests()
	if len(asked) == 0 || asked[0].Auth != "Bearer "+token || asked[0].Key != "" {
		r.T.Errorf("the model was asked %+v", asked)
	}
	if want := map[string]string{"claude": cove.LoginInside, "codex": cove.LoginOutside}[r.name]; job.Login != want {
		r.T.Errorf("the login is %q, want %q", job.Login, want)
	}
}

// answers: the model only answers. The job is then resumed in the same session, and the
// model is told all that was said.
func (r *agentRun) answers(play func(script) model) {
	play(script{turns: []modeltest.Turn{{Text: "There is nothing to do."}}})
	job := r.finish(r.begin(), cove.JobSucceeded)
	kinds, said, failed := r.kinds(job.ID)
	if want := []agents.Kind{agents.KindStart, agents.KindText, agents.KindResult}; !slices.Equal(kinds, want) || failed > 0 ||
		!slices.Equal(said, []string{"There is nothing to do.", "There is nothing to do."}) {
		r.T.Errorf("events: got %q, %q", kinds, said)
	}
	if job.Commits != 0 || job.AgentSession == "" {
		r.T.Errorf("got %+v", job)
	}
	r.used(job, 1)
	again := play(script{turns: []modeltest.Turn{{}, {Text: "Now there is.", Calls: []modeltest.Call{r.shell("git commit -q --allow-empty -m More")}}, {Text: "All is done."}}})
	id := e2e.JSONField(r.T, r.Run(r.repo, "cove", "job", "resume", "--json", job.ID, "Then do more than that."), "id")
	next := r.finish(id, cove.JobSucceeded)
	if next.AgentSession != job.AgentSession || next.Commits != 1 || next.Workdir != job.Workdir {
		r.T.Errorf("resumed: got %+v", next)
	}
	r.used(next, 2)
	body := string(again.Requests()[len(again.Requests())-1].Body)
	for _, text := range []string{"Greet the world.", "There is nothing to do.", "Then do more than that."} {
		if !strings.Contains(body, text) {
			r.T.Errorf("resumed, its model was not told %q", text)
		}
	}
	if strings.Count(body, "You work alone, in a sandbox") != 1 {
		r.T.Error("the instructions were not given once")
	}
}

// usesTools: the agent looks around, edits and commits, and its work is pulled.
func (r *agentRun) usesTools(play func(script) model) {
	m := play(script{turns: []modeltest.Turn{
		{Text: "I look first.", Calls: []modeltest.Call{r.shell("ls; env; exit 3")}},
		{Text: "A new file.", Calls: []modeltest.Call{r.writes("HELLO.md", "# Hello\n")}},
		{Text: "Commit.", Calls: []modeltest.Call{r.shell("sed -i 's/$/, world/' greeting.txt; git add -A && git commit -q -m 'Greet the world'")}},
		{Text: "Another.", Calls: []modeltest.Call{r.writes("LEFT.md", "left\n")}},
		{Text: "All is done."},
	}})
	job := r.finish(r.begin(), cove.JobSucceeded)
	call := []agents.Kind{agents.KindText, agents.KindToolStart, agents.KindToolEnd}
	want := slices.Concat([]agents.Kind{agents.KindStart}, call, call, call, call, []agents.Kind{agents.KindText, agents.KindResult})
	kinds, _, failed := r.kinds(job.ID)
	if !slices.Equal(kinds, want) || failed > 0 != r.fails {
		r.T.Errorf("events: got %q with %d failed\n%s", kinds, failed, r.Run("", "cove", "job", "logs", job.ID))
	}
	r.used(job, 5)
	if job.Commits != 1 || job.Leftover == "" {
		r.T.Errorf("got %+v", job)
	}
	r.Run(r.repo, "cove", "pull", job.ID)
	if got := r.Run(r.repo, "git", "show", "HEAD:greeting.txt", "HEAD:HELLO.md"); got != "hello, world\n# Hello\n" {
		r.T.Errorf("files: got %q", got)
	}
	if got := r.Run(r.repo, "git", "show", "refs/cove/"+job.ID+"/leftover:LEFT.md"); got != "left\n" {
		r.T.Errorf("left uncommitted: got %q", got)
	}
	for _, asked := range m.Requests() {
		if strings.Contains(string(asked.Body), modelKey) {
			r.T.Error("the key was seen inside")
		}
	}
	if out := r.Run("", "cove", "exec", "-s", "paint", "--", "sh", "-c", "id -un; stat -c %U "+job.Workdir+"/HELLO.md"); out != "sprite\nsprite\n" {
		r.T.Errorf("who did it: %q", out)
	}
}

// isRefused: with a wrong key the job does not succeed, whatever the agent's exit code.
func (r *agentRun) isRefused(play func(script) model) {
	play(script{status: 401})
	job := r.finish(r.begin(), cove.JobFailed)
	if job.Outcome.Kind != agents.AgentFailed && job.Outcome.Kind != agents.NoResult || !strings.Contains(job.Outcome.Reason, "401") && !strings.Contains(job.Outcome.Reason, "uthenticat") {
		r.T.Errorf("got %+v", job.Outcome)
	}
}

// isPutOff: if the model is busy at first, the agent retries.
func (r *agentRun) isPutOff(play func(script) model) {
	busy := modeltest.Failure{Status: 429, RetryAfter: "1"}
	play(script{turns: []modeltest.Turn{{Text: "All is done."}}, fails: []modeltest.Failure{busy, busy}})
	job := r.finish(r.begin(), cove.JobSucceeded)
	kinds, _, _ := r.kinds(job.ID)
	if slices.Contains(kinds, agents.KindRetry) != r.retries {
		r.T.Errorf("events: got %q", kinds)
	}
}

// silence is a model that never answers.
func silence() script { return script{fails: make([]modeltest.Failure, 100)} }

// hangs: the agent does not wait for ever for a model that does not answer.
func (r *agentRun) hangs(play func(script) model) {
	play(silence())
	job := r.finish(r.begin("--max-idle", "15s"), cove.JobTimedOut)
	if job.Outcome.Kind != agents.TimedOut || job.Outcome.ExitCode != 124 || !strings.Contains(job.Outcome.Reason, "idle") {
		r.T.Errorf("got %+v", job.Outcome)
	}
	r.nothingLeft(job.ID)
}

// isStopped: the job is stopped, and only the agent's session is left.
func (r *agentRun) isStopped(play func(script) model) {
	m := play(silence())
	id := r.begin()
	e2e.Await(r.T, "the model is asked", func() bool { return len(m.Requests()) > 0 || r.Job(id).State.Terminal() })
	r.Run("", "cove", "job", "stop", id)
	job := r.finish(id, cove.JobCancelled)
	if job.Outcome.Kind != agents.Cancelled || (job.AgentSession != "") != r.early {
		r.T.Errorf("got %+v, session %q", job.Outcome, job.AgentSession)
	}
	r.nothingLeft(id)
}

// nothingLeft looks for processes of a job.
func (r *agentRun) nothingLeft(id string) {
	r.T.Helper()
	out, _ := r.Try("", "cove", "exec", "-s", "paint", "--user", "root", "--", "sh", "-c",
		"for p in /proc/[0-9]*; do { tr '\\0' '\\n' <$p/environ; } 2>/dev/null | grep -q '^COVE_JOB=.*/"+id+"$' && tr '\\0' ' ' <$p/cmdline; done; true")
	if strings.TrimSpace(out) != "" {
		r.T.Errorf("left of job %s: %s", id, out)
	}
}

// mayTakeOneTurn: if the agent reports its turns, the second turn ends the job. Else push
// refuses --max-turns.
func (r *agentRun) mayTakeOneTurn(play func(script) model) {
	play(script{turns: []modeltest.Turn{{Text: "First.", Calls: []modeltest.Call{r.shell("true")}}, {Text: "Second.", Calls: []modeltest.Call{r.shell("true")}}}})
	if !r.turns {
		out, code := r.Try(r.repo, "cove", slices.Concat([]string{"push", "plan.md", "--max-turns", "1"}, r.flags)...)
		if code != 1 || !strings.Contains(out, "leave out --max-turns") {
			r.T.Errorf("%d, %s", code, out)
		}
		return
	}
	if job := r.finish(r.begin("--max-turns", "1"), cove.JobFailed); job.Outcome.Kind != agents.TurnLimit {
		r.T.Errorf("got %+v", job.Outcome)
	}
}

// readsMuch: a prompt that no argument could hold arrives whole.
func (r *agentRun) readsMuch(play func(script) model) {
	m := play(script{turns: []modeltest.Turn{{Text: "All is done."}}})
	plan := strings.Repeat("All work and no play. ", 1_000_000/22) + "\nThe very end.\n"
	if err := os.WriteFile(filepath.Join(filepath.Dir(r.Home), "long.md"), []byte(plan), 0o600); err != nil {
		r.T.Fatal(err)
	}
	id, _ := r.Push(r.repo, append([]string{"../long.md"}, r.flags...)...)
	r.used(r.finish(id, cove.JobSucceeded), 1)
	if !slices.ContainsFunc(m.Requests(), func(asked modeltest.Request) bool {
		return len(asked.Body) > len(plan) && strings.Contains(string(asked.Body), "The very end.")
	}) {
		r.T.Error("its model was not told all of it")
	}
}

// readsNoMore: the agent reads its prompt and ends, though the process that started it
// keeps its standard input open.
func (r *agentRun) readsNoMore(play func(script) model) {
	keep := r.shell(`ls -t ~/.cove/jobs/*/job.json | head -n 1 | xargs -I@ cp @ ~/spec.json`) // the values go with the job's end
	play(script{turns: []modeltest.Turn{{Calls: []modeltest.Call{keep}}, {Text: "It is kept."}}})
	r.finish(r.begin(), cove.JobSucceeded)
	play(script{turns: []modeltest.Turn{{Text: "All is done."}}})
	var spec cove.JobSpec
	text := r.Run("", "cove", "exec", "-s", "paint", "cat", "spec.json")
	if err := json.Unmarshal([]byte(text), &spec); err != nil {
		r.T.Fatal(err)
	}
	r.Run("", "cove", "connector", "grant", r.connector, "--sprite", "paint")
	defer r.Run("", "cove", "connector", "revoke", r.connector, "--sprite", "paint")
	args := []string{"exec", "-i", "-s", "paint", "--timeout", "10m", "--dir", spec.Workdir}
	for _, kv := range spec.Env {
		args = append(args, "--env", kv)
	}
	cmd := r.Command("", "cove", append(append(args, "--"), spec.Argv...)...)
	input, err := cmd.StdinPipe()
	if err != nil {
		r.T.Fatal(err)
	}
	defer input.Close()
	var out, said strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &said
	if err := cmd.Run(); err != nil || !strings.Contains(out.String(), "All is done.") {
		r.T.Errorf("%v: %s\n%s", err, cmp.Or(out.String(), "(nothing)"), said.String())
	}
}

// TestAgentFromNothing has nothing but a secret set: the agent is installed inside, from
// where this machine's npm has its packages, and does its work.
func TestAgentFromNothing(t *testing.T) {
	requireAgents(t)
	for _, agent := range realAgents {
		t.Run(agent.name, func(t *testing.T) {
			h := e2e.NewHost(t)
			server := httptest.NewServer(agent.model(script{turns: []modeltest.Turn{
				{Text: "A new file.", Calls: []modeltest.Call{agent.writes("HELLO.md", "# Hello\n")}},
				{Text: "Commit.", Calls: []modeltest.Call{agent.shell("git add -A && git commit -q -m 'Say hello'")}},
				{Text: "All is done."},
			}}))
			t.Cleanup(server.Close)
			h.Serve(nil)
			set := h.Command("", "cove", "secret", "set", agent.connector)
			set.Stdin = strings.NewReader(modelKey)
			if out, err := set.CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			// The connector is set only because the model is not the real one.
			h.Run("", "cove", "connector", "put", agent.connector, "--upstream", server.URL)
			repo := h.Repository("repo", map[string]string{"greeting.txt": "hello\n"})
			out, code := h.Try(repo, "cove", append([]string{"run", "-p", "Say hello.", "--agent", agent.name}, allowed(inwardRegistries(t))...)...)
			if code != 0 || h.Run(repo, "git", "log", "-1", "--format=%s") != "Say hello\n" {
				t.Errorf("exit code %d: %s", code, out)
			}
		})
	}
}
