package loop_test

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/cove-dev/cove/internal/guest/loop"
	"github.com/cove-dev/cove/internal/test/modeltest"
)

// TestA1: a loop is over when the model makes no more calls, or calls finish. It also ends
// after a number of turns, which is a failure.
func TestA1(t *testing.T) {
	each(t, func(t *testing.T, provider string) {
		b := set(t, provider, "full", script{turns: []modeltest.Turn{turn("", bash("echo one >a.txt")), turn("All done.")}})
		if r := b.run(loop.Done); r.Text != "All done." || r.Turns != 2 || b.read("a.txt") != "one\n" {
			t.Errorf("without calls: %+v, %q", r, b.read("a.txt"))
		}

		b = set(t, provider, "full", script{turns: []modeltest.Turn{
			turn("", bash("echo two >a.txt"), call("finish", object{"outcome": "perhaps", "summary": "?"})),
			turn("", bash("echo three >>a.txt"), call("finish", object{"outcome": "incomplete", "summary": "No compiler."})),
			turn("", bash("echo never >a.txt")),
		}})
		if r := b.run(loop.Incomplete); r.Text != "No compiler." || r.Turns != 2 || b.read("a.txt") != "two\nthree\n" {
			t.Errorf("with finish: %+v, %q", r, b.read("a.txt"))
		}

		again := turn("", bash("echo x >>a.txt"))
		b = set(t, provider, "full", script{turns: []modeltest.Turn{again, again, again, again}})
		b.Limits.Turns = 3
		if r := b.run(loop.MaxTurns); r.Turns != 3 || len(b.model.Requests()) != 3 || b.read("a.txt") != "x\nx\nx\n" {
			t.Errorf("with a limit: %+v, %d requests, %q", r, len(b.model.Requests()), b.read("a.txt"))
		}
	})
}

// TestA2: when the time is over, the request or the tool under way ends, with all that the
// tool has started. A person can end them, too. Silence in an answer ends that answer.
func TestA2(t *testing.T) {
	each(t, func(t *testing.T, provider string) {
		t.Parallel()
		b := set(t, provider, "full", script{fails: []modeltest.Failure{{}}})
		b.Limits.Time = 300 * time.Millisecond
		b.run(loop.TimedOut)

		b = set(t, provider, "full", script{turns: []modeltest.Turn{turn("", bash("echo $$ >pid; sleep 600 & sleep 600"))}})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan loop.Result, 1)
		go func() { r, _ := b.Run(ctx, "do it"); ended <- r }()
		for deadline := time.Now().Add(lastResort); !strings.HasSuffix(b.read("pid"), "\n") && time.Now().Before(deadline); {
			time.Sleep(5 * time.Millisecond)
		}
		cancel()
		if r := <-ended; r.Outcome != loop.Cancelled {
			t.Errorf("stopped: %+v", r)
		}
		if _, err := os.Stat("/proc/" + strings.TrimSpace(b.read("pid"))); err == nil {
			t.Error("its command is still there")
		}

		b = set(t, provider, "full", script{fails: []modeltest.Failure{{}}, turns: []modeltest.Turn{turn("Here I am.")}})
		b.Limits.Stall = 2 * time.Second
		b.run(loop.Done)
		if got := b.of("retry"); len(got) == 0 || !strings.Contains(got[0].Text, "nothing was heard") {
			t.Errorf("after silence: %+v", got)
		}
	})
}

// TestA3: temporary errors are retried: too many requests, failures, overload, also in the
// middle of a stream, and a connection that breaks off. Permanent errors are not.
func TestA3(t *testing.T) {
	overloaded := map[string]string{"anthropic": "overloaded_error", "openai": "server_error", "gemini": "UNAVAILABLE"}
	each(t, func(t *testing.T, provider string) {
		cut := turn("half of it, and", bash("echo no >cut"))
		cut.Cut = true
		fails := []modeltest.Failure{{Status: 429, RetryAfter: "0.01"}, {Status: 500}, {Status: 529}, {Status: 200, Kind: overloaded[provider]}}
		b := set(t, provider, "full", script{fails: fails, turns: []modeltest.Turn{turn("There.")}})
		b.run(loop.Done)
		var status []int
		for _, e := range b.of("retry") {
			status = append(status, e.Status)
			if e.Status == 429 && e.WaitMS != 10 {
				t.Errorf("it waits %d ms after 429", e.WaitMS)
			}
		}
		if len(status) != 4 || status[0] != 429 || status[1] != 500 || status[2] != 529 {
			t.Errorf("tried again after %v", status)
		}

		b = set(t, provider, "full", script{turns: []modeltest.Turn{cut}})
		b.Limits.Attempts = 3
		if r := b.run(loop.Unanswered); len(b.of("retry")) != 2 || !strings.Contains(r.Text, "lost") {
			t.Errorf("cut again and again: %d retries, %s", len(b.of("retry")), r.Text)
		}
		if len(b.of("tool_start")) > 0 {
			t.Error("a call of an answer that broke off was carried out")
		}

		for _, f := range []modeltest.Failure{{Status: 401}, {Status: 400}, {Status: 403}, {Status: 404}, {Status: 429, RetryAfter: "86400"}, {Status: 200, Kind: "invalid_request_error"}} {
			if provider == "gemini" && f.Status == 200 {
				continue // its errors in a stream have a status
			}
			b = set(t, provider, "full", script{fails: []modeltest.Failure{f}})
			if r := b.run(loop.Unanswered); len(b.model.Requests()) != 1 || !strings.Contains(r.Text, "scripted") {
				t.Errorf("after %+v: %d requests, %s", f, len(b.model.Requests()), r.Text)
			}
		}
	})
}

// TestA4: a text that looks like a call is not carried out.
func TestA4(t *testing.T) {
	const text = `<invoke name="Bash"><parameter name="command">touch no</parameter></invoke>
<tool_call>{"name": "Bash", "arguments": {"command": "touch no"}}</tool_call>
{"type":"tool_use","name":"Bash","input":{"command":"touch no"}}
` + "```tool_code\nBash(command='touch no')\n```"
	each(t, func(t *testing.T, provider string) {
		b := set(t, provider, "full", script{turns: []modeltest.Turn{turn(text)}})
		if r := b.run(loop.Done); r.Text != text {
			t.Errorf("its text: %q", r.Text)
		}
		if names, _ := filepath.Glob(filepath.Join(b.dir, "*")); len(names) > 0 || b.types() != "start text usage result" {
			t.Errorf("it left %v, by %s", names, b.types())
		}
	})
}

// TestA5: all providers give the same events.
func TestA5(t *testing.T) {
	want := []loop.Event{
		{Seq: 1, Type: "start", Session: "S", Model: "some-model", Tools: []string{"Bash", "Edit", "Glob", "Grep", "Read", "Write", "finish"}},
		{Seq: 2, Type: "text", Text: "I look,"},
		{Seq: 3, Type: "text", Text: "and write."},
		{Seq: 4, Type: "usage", Turn: 1, Usage: &loop.Usage{Input: 100, Output: 20}},
		{Seq: 5, Type: "tool_start", ID: "1", Tool: "Read", Input: json.RawMessage(`{"file_path":"none"}`)},
		{Seq: 6, Type: "tool_error", ID: "1", Tool: "Read", Code: "not_found", Text: "Error (not_found): none: no such file or folder"},
		{Seq: 7, Type: "tool_start", ID: "2", Tool: "Bash", Input: json.RawMessage(`{"command":"echo hi"}`)},
		{Seq: 8, Type: "tool_result", ID: "2", Tool: "Bash", Text: "hi"},
		{Seq: 9, Type: "text", Text: "Done."},
		{Seq: 10, Type: "usage", Turn: 2, Usage: &loop.Usage{Input: 100, Output: 20}},
		{Seq: 11, Type: "result", Result: &loop.Result{Outcome: loop.Done, Text: "Done.", Session: "S", Stop: loop.StopEnd, Turns: 2, Usage: loop.Usage{Input: 200, Output: 40}}},
	}
	each(t, func(t *testing.T, provider string) {
		b := set(t, provider, "full", script{turns: []modeltest.Turn{
			turn("I look,\n\nand write.", call("Read", object{"file_path": "none"}), bash("echo hi")), turn("Done."),
		}})
		b.Session = &loop.Session{ID: "S"}
		b.run(loop.Done)
		got := b.all()
		ids := map[string]string{}
		for i := range got {
			if id := got[i].ID; id != "" {
				if ids[id] == "" {
					ids[id] = string(rune('1' + len(ids)))
				}
				got[i].ID = ids[id]
			}
			if got[i].Tool == "Bash" && strings.Contains(got[i].Text, "hi") {
				got[i].Text = "hi"
			}
			got[i].WaitMS = 0
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("-want +got:\n%s", diff)
		}
	})
}

// TestA6: the result has the usage, its cost, the session and why the model stopped. The limit
// of the cost also ends an answer in the middle.
func TestA6(t *testing.T) {
	each(t, func(t *testing.T, provider string) {
		b := set(t, provider, "full", script{turns: []modeltest.Turn{turn("", bash("true")), turn("Done.")}})
		b.Price = &loop.Price{Input: 1000, Output: 10_000} // 0.1 and 0.2 dollars a turn
		r := b.run(loop.Done)
		want := loop.Result{Outcome: loop.Done, Text: "Done.", Stop: loop.StopEnd, Turns: 2, Usage: loop.Usage{Input: 200, Output: 40}, CostUSD: new(0.6)}
		if diff := cmp.Diff(want, r, cmpopts.IgnoreFields(loop.Result{}, "Session"), cmpopts.EquateApprox(0, 1e-9)); diff != "" || len(r.Session) != 16 {
			t.Errorf("session %q, -want +got:\n%s", r.Session, diff)
		}
		if u := b.of("usage"); len(u) != 2 || u[0].CostUSD == nil || *u[0].CostUSD > 0.31 {
			t.Errorf("usage: %+v", u)
		}

		again := turn("", bash("echo x >>a.txt"))
		b = set(t, provider, "full", script{turns: []modeltest.Turn{again, again, again}})
		b.Price, b.Limits.USD = &loop.Price{Input: 1000, Output: 10_000}, 0.6
		if r := b.run(loop.MaxCost); r.Turns != 2 {
			t.Errorf("with a limit: %+v", r)
		}

		// Anthropic's API gives the size of the request at once. For the others the text is
		// counted.
		s := script{turns: []modeltest.Turn{turn(strings.Repeat("much ", 100_000), bash("touch no"))}}
		if provider == "anthropic" {
			held := make(chan struct{})
			defer close(held)
			s.hold = func(int) { <-held }
		}
		b = set(t, provider, "full", s)
		b.Price, b.Limits.USD = &loop.Price{Input: 1000, Output: 100}, 0.09
		b.run(loop.MaxCost)
		if len(b.of("tool_start")) > 0 {
			t.Errorf("its call was carried out: %s", b.types())
		}
	})
}

// TestA7: a prompt of a megabyte arrives unchanged.
func TestA7(t *testing.T) {
	prompt := strings.Repeat("a line of the prompt, with \"quotes\", 'others' and $& \u00e9\U0001f600\n", 1<<20/64)
	each(t, func(t *testing.T, provider string) {
		b := set(t, provider, "full", script{turns: []modeltest.Turn{turn("Read.")}})
		if r, err := b.Run(t.Context(), prompt); err != nil || r.Outcome != loop.Done {
			t.Fatalf("%+v, %v", r, err)
		}
		var body any
		if err := json.Unmarshal(b.model.Requests()[0].Body, &body); err != nil {
			t.Fatal(err)
		}
		if !has(body, prompt) {
			t.Errorf("the prompt is not in the request, of %d bytes", len(b.model.Requests()[0].Body))
		}
	})
}

// has reports whether a text stands somewhere in a JSON value.
func has(v any, text string) bool {
	switch v := v.(type) {
	case string:
		return v == text
	case []any:
		for _, e := range v {
			if has(e, text) {
				return true
			}
		}
	case map[string]any:
		for _, e := range v {
			if has(e, text) {
				return true
			}
		}
	}
	return false
}

// TestA8: the right provider, address and credential are used. Key and token are never both
// sent, and no other credential is.
func TestA8(t *testing.T) {
	each(t, func(t *testing.T, provider string) {
		model := servers[provider].make(script{turns: []modeltest.Turn{turn("Hello.")}})
		b := set(t, provider, "full", script{})
		url := serve(t, model) + servers[provider].path
		env := map[string]string{
			"ANTHROPIC_BASE_URL": url, "OPENAI_BASE_URL": url, "GOOGLE_GEMINI_BASE_URL": url,
			"ANTHROPIC_API_KEY": key, "ANTHROPIC_AUTH_TOKEN": "the-token", "OPENAI_API_KEY": key, "GEMINI_API_KEY": key, "GOOGLE_API_KEY": "another",
			"ANTHROPIC_PROFILE": "none", "OPENAI_ORG_ID": "org", "GOOGLE_GENAI_USE_VERTEXAI": "true", "GOOGLE_CLOUD_PROJECT": "p",
		}
		for name, value := range env {
			t.Setenv(name, value)
		}
		ask := func(env map[string]string) modeltest.Request {
			t.Helper()
			p, err := loop.Open(provider, loop.Access{}, func(name string) string { return env[name] })
			if err != nil {
				t.Fatal(err)
			}
			b.Loop = &loop.Loop{Provider: p, Model: "m", Tools: b.Tools, Limits: loop.Limits{Attempts: 1}}
			_, _ = b.Run(t.Context(), "x") // a wrong credential is refused
			all := model.Requests()
			if len(all) == 0 {
				t.Fatal("nothing was asked")
			}
			return all[len(all)-1]
		}
		got := ask(env)
		if got.Model != "m" || (got.Key == key) == (got.Auth == "Bearer "+key) || got.Key != "" && got.Auth != "" {
			t.Errorf("key and token are set: %s, key %q, token %q", got.Model, got.Key, got.Auth)
		}
		if provider == "anthropic" {
			delete(env, "ANTHROPIC_API_KEY")
			if got := ask(env); got.Key != "" || got.Auth != "Bearer the-token" {
				t.Errorf("a token is set: key %q, token %q", got.Key, got.Auth)
			}
		}
		if _, err := loop.Open(provider, loop.Access{}, func(string) string { return "" }); err == nil || !strings.Contains(err.Error(), "_API_KEY") {
			t.Errorf("without a key: %v", err)
		}
	})
	for text, want := range map[string]string{"anthropic/claude-x": "anthropic claude-x", "openai/a/b": "openai a/b", "gemini/": "", "claude": "", "other/x": ""} {
		provider, model, err := loop.ParseModel(text)
		if got := strings.TrimSpace(provider + " " + model); got != want || (err == nil) != (want != "") {
			t.Errorf("%s: got %q, %v", text, got, err)
		}
	}
}

// TestP1: tools that a role does not allow are neither offered nor carried out. An unknown
// role allows nothing. The loop goes on.
func TestP1(t *testing.T) {
	each(t, func(t *testing.T, provider string) {
		for role, offered := range map[string]string{"read-only": "Glob Grep Read finish", "unknown": "finish", "edit": "Edit Glob Grep Read Write finish"} {
			b := set(t, provider, role, script{turns: []modeltest.Turn{turn("", bash("touch no"), call("Nothing", object{})), turn("Well.")}})
			b.run(loop.Done)
			if got := strings.Join(b.model.Requests()[0].Tools, " "); got != offered {
				t.Errorf("%s: offered %s, want %s", role, got, offered)
			}
			errs := b.of("tool_error")
			if len(errs) != 2 || errs[0].Code != "denied" || errs[1].Code != "denied" || strings.Contains(b.types(), "tool_result") {
				t.Errorf("%s: %+v", role, errs)
			}
			if _, err := os.Stat(filepath.Join(b.dir, "no")); err == nil {
				t.Errorf("%s: it has run", role)
			}
			if last := b.model.Requests()[1].Last; !strings.Contains(last, "denied") {
				t.Errorf("%s: the model is told %s", role, last)
			}
		}
	})
}

// TestContext: when a conversation gets too long, old results of tools are left out with a
// mark. The prompt and the newest results stay, and the session has everything.
func TestContext(t *testing.T) {
	each(t, func(t *testing.T, provider string) {
		var turns []modeltest.Turn
		for range 12 {
			turns = append(turns, turn("", call("Read", object{"file_path": "big"})))
		}
		b := set(t, provider, "full", script{turns: turns})
		b.write("big", strings.Repeat("a line of a big file\n", 2000))
		b.Limits.Context = 40_000
		dir := t.TempDir()
		var err error
		if b.Session, err = loop.NewSession(dir, provider); err != nil {
			t.Fatal(err)
		}
		defer b.Session.Close()
		b.run(loop.Done)
		if len(b.of("trim")) == 0 {
			t.Fatalf("nothing was left out: %s", b.types())
		}
		for i, r := range b.model.Requests() {
			if len(r.Body) > 8*40_000 {
				t.Errorf("request %d has %d bytes", i, len(r.Body))
			}
		}
		all := b.model.Requests()
		last := string(all[len(all)-1].Body)
		if !strings.Contains(last, "are left out, to keep this conversation short") || !strings.Contains(last, "do it") || !strings.Contains(all[len(all)-1].Last, "a line of a big file") {
			t.Error("the last request lacks the mark, the prompt or the newest result")
		}
		text, err := os.ReadFile(filepath.Join(dir, b.Session.ID+".jsonl"))
		if err != nil || bytes.Contains(text, []byte("are left out")) || bytes.Count(text, []byte("a line of a big file")) < 24_000 {
			t.Errorf("the session: %v, %d bytes", err, len(text))
		}
	})
}

// TestSession: a session resumes where it was, also when the last loop was killed in the
// middle of a call and of a line. It does not resume with another provider.
func TestSession(t *testing.T) {
	each(t, func(t *testing.T, provider string) {
		turns := []modeltest.Turn{turn("One.", bash("echo 1 >>a.txt")), turn("Two."), turn("Three.", bash("echo 3 >>a.txt")), turn("Four.")}
		b := set(t, provider, "full", script{turns: turns})
		dir := filepath.Join(t.TempDir(), "new", "folder")
		var err error
		if b.Session, err = loop.NewSession(dir, provider); err != nil {
			t.Fatal(err)
		}
		defer b.Session.Close()
		first := b.run(loop.Done)
		name := filepath.Join(dir, first.Session+".jsonl")
		open := func() *loop.Session {
			t.Helper()
			s, err := loop.ResumeSession(dir, first.Session, provider)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { s.Close() })
			return s
		}
		again := &loop.Loop{Provider: b.Provider, Model: b.Model, Tools: b.Tools, Session: open()}
		r, err := again.Run(t.Context(), "and then?")
		if err != nil || r.Text != "Four." || r.Session != first.Session || b.read("a.txt") != "1\n3\n" {
			t.Errorf("%+v, %v, %q", r, err, b.read("a.txt"))
		}
		if last := string(b.model.Requests()[2].Body); !strings.Contains(last, "and then?") || !strings.Contains(last, "One.") || !strings.Contains(last, "do it") {
			t.Errorf("the third request: %s", last)
		}

		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		lines := bytes.SplitAfter(text, []byte("\n"))
		// The head, the prompt, the model's first call, and half of what it came to.
		cut := append(bytes.Join(lines[:3], nil), lines[3][:len(lines[3])/2]...)
		if err := os.WriteFile(name, cut, 0o600); err != nil {
			t.Fatal(err)
		}
		again = &loop.Loop{Provider: b.Provider, Model: b.Model, Tools: b.Tools, Session: open()}
		if r, err := again.Run(t.Context(), "go on"); err != nil || r.Outcome != loop.Done || r.Text != "Two." {
			t.Errorf("after a kill: %+v, %v", r, err)
		}
		if last := b.model.Requests()[4].Last + string(b.model.Requests()[4].Body); !strings.Contains(last, "the session was interrupted") {
			t.Errorf("the open call: %s", last)
		}
		other := map[string]string{"anthropic": "openai", "openai": "gemini", "gemini": "anthropic"}
		for id, provider := range map[string]string{first.Session: other[provider], "../" + first.Session: provider, "0123456789abcdef": provider} {
			if s, err := loop.ResumeSession(dir, id, provider); err == nil {
				s.Close()
				t.Errorf("%s goes on with session %s", provider, id)
			}
		}
	})
}
