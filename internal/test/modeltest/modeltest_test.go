package modeltest

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

func ask(t *testing.T, url, key, body string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url+"/v1/messages?beta=true", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("X-Api-Key", key)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(data)
}

func TestScript(t *testing.T) {
	a := &Anthropic{Key: "k", Turns: []Turn{{Text: "hello", Calls: []Call{{"Bash", map[string]any{"command": "ls"}}}}, {Text: "bye"}}}
	srv := httptest.NewServer(a)
	defer srv.Close()

	if code, _ := ask(t, srv.URL, "wrong", `{}`); code != http.StatusUnauthorized {
		t.Errorf("a wrong key: got %d, want 401", code)
	}
	_, body := ask(t, srv.URL, "k", `{"stream":true,"tools":[{"name":"Bash"}],"messages":[{"role":"user","content":"do it"}]}`)
	var events []string
	for sc := bufio.NewScanner(strings.NewReader(body)); sc.Scan(); {
		if name, ok := strings.CutPrefix(sc.Text(), "event: "); ok {
			events = append(events, name)
		}
	}
	want := "message_start content_block_start content_block_delta content_block_stop content_block_start content_block_delta content_block_stop message_delta message_stop"
	if got := strings.Join(events, " "); got != want {
		t.Errorf("events: got %q, want %q", got, want)
	}
	for _, part := range []string{`"text":"hello"`, `"partial_json":"{\"command\":\"ls\"}"`, `"stop_reason":"tool_use"`} {
		if !strings.Contains(body, part) {
			t.Errorf("the first turn lacks %s: %s", part, body)
		}
	}
	_, body = ask(t, srv.URL, "k", `{"tools":[{"name":"Bash"}],"messages":[{"role":"user","content":"do it"},{"role":"assistant","content":[]},{"role":"user","content":"result"}]}`)
	if !strings.Contains(body, `"bye"`) || !strings.Contains(body, `"end_turn"`) {
		t.Errorf("the second turn: got %s", body)
	}
	if got := a.Requests(); len(got) != 3 || got[2].Last != `"result"` || got[2].Tools[0] != "Bash" {
		t.Errorf("Requests: got %+v", got)
	}
}

// post asks a server, and returns its answer with its status in front.
func post(t *testing.T, url, header, key, body string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set(header, key)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	text := fmt.Sprintf("%d %s %s", resp.StatusCode, resp.Header.Get("Retry-After"), data)
	if err != nil {
		text += " CUT"
	}
	return text
}

func want(t *testing.T, what, got string, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if !strings.Contains(got, part) {
			t.Errorf("%s lacks %s: %s", what, part, got)
		}
	}
}

var script2 = []Turn{{Text: "hello", Calls: []Call{{"Bash", map[string]any{"command": "ls"}}, {"Read", map[string]any{}}}}, {Text: "bye"}, {Text: "half", Cut: true}}

func TestOpenAI(t *testing.T) {
	o := &OpenAI{Key: "k", Turns: script2, Fails: []Failure{{Status: 429, RetryAfter: "7"}, {Status: 200, Kind: "overloaded"}}}
	srv := httptest.NewServer(o)
	defer srv.Close()
	responses := func(body string) string { return post(t, srv.URL+"/v1/responses", "Authorization", "Bearer k", body) }
	chat := func(body string) string {
		return post(t, srv.URL+"/v1/chat/completions", "Authorization", "Bearer k", body)
	}
	const tools = `"tools":[{"type":"function","name":"Bash"},{"type":"custom","name":"Read"}]`

	want(t, "the first failure", responses(`{"input":"x"}`), "429 7", "rate_limit_exceeded")
	want(t, "the second failure", responses(`{"input":"x"}`), "200", "event: response.failed", "overloaded")
	want(t, "a wrong key", post(t, srv.URL+"/v1/responses", "Authorization", "Bearer no", `{}`), "401", "invalid_api_key")
	want(t, "the first turn", responses(`{"stream":true,"input":[{"role":"user","content":"do it"}],`+tools+`}`),
		"event: response.output_item.done", `"arguments":"{\"command\":\"ls\"}"`, `"custom_tool_call"`, "event: response.completed", `"input_tokens":100`)
	const history = `[{"role":"user","content":"x"},{"type":"function_call","call_id":"call_000000"},{"type":"function_call_output","output":"a"},{"type":"function_call","call_id":"call_000001"},{"type":"function_call_output","output":"b"}`
	want(t, "the second turn", responses(`{"input":`+history+`],`+tools+`}`), `"bye"`, `"completed"`)
	want(t, "the third turn", responses(`{"stream":true,"input":`+history+`,{"role":"assistant","content":"bye"},{"role":"user","content":"go on"}],`+tools+`}`), "half", "CUT")
	if all := o.Requests(); all[4].Last != `"b"` || all[3].Tools[1] != "Read" {
		t.Errorf("Requests: got %+v", all)
	}
	want(t, "a chat", chat(`{"stream":true,"stream_options":{"include_usage":true},"messages":[{"role":"user","content":"do it"}],"tools":[{"type":"function","function":{"name":"Bash"}}]}`),
		`"finish_reason":"tool_calls"`, `"prompt_tokens":100`, "[DONE]", `"arguments":"{\"command\":\"ls\"}"`)
	want(t, "a chat without tools", chat(`{"messages":[{"role":"user","content":"a title?"}]}`), `"content":"ok"`, `"finish_reason":"stop"`)
}

func TestGemini(t *testing.T) {
	g := &Gemini{Key: "k", Turns: script2, Fails: []Failure{{Status: 503}, {Status: 200}}, Aside: "{}"}
	srv := httptest.NewServer(g)
	defer srv.Close()
	call := func(method, body string) string {
		return post(t, srv.URL+"/v1beta/models/m:"+method, "X-Goog-Api-Key", "k", body)
	}
	const tools = `"tools":[{"functionDeclarations":[{"name":"Bash"},{"name":"Read"}]}]`
	const stream = "streamGenerateContent?alt=sse"

	want(t, "the first failure", call(stream, `{}`), "503", "UNAVAILABLE")
	want(t, "the second failure", call(stream, `{}`), "200", `data: {"error"`)
	want(t, "a wrong key", post(t, srv.URL+"/v1beta/models/m:generateContent", "X-Goog-Api-Key", "no", `{}`), "401")
	want(t, "the first turn", call(stream, `{"contents":[{"role":"user","parts":[{"text":"do it"}]}],`+tools+`}`), `"args":{"command":"ls"}`, "thoughtSignature", `"finishReason":"STOP"`)
	const history = `{"contents":[{"role":"user","parts":[]},{"role":"model","parts":[]},{"role":"user","parts":[{"functionResponse":{}}]}`
	want(t, "the second turn", call("generateContent", history+`],`+tools+`}`), `"bye"`, `"promptTokenCount":100`)
	want(t, "the third turn", call(stream, history+`,{"role":"model","parts":[]},{"role":"user","parts":[]}],`+tools+`}`), "half", "CUT")
	want(t, "a request without tools", call("generateContent", `{"contents":[]}`), `"text":"{}"`)
	if all := g.Requests(); all[4].Last != `[{"functionResponse":{}}]` || all[4].Model != "m" || len(all[3].Tools) != 2 {
		t.Errorf("Requests: got %+v", all)
	}
}

// TestHang: a failure of the zero value ends when the client has disconnected.
func TestHang(t *testing.T) {
	srv := httptest.NewServer(&Anthropic{Fails: []Failure{{}}})
	defer srv.Close() // waits for requests being answered
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, srv.URL+"/v1/messages", strings.NewReader("{}"))
	if err != nil {
		t.Fatal(err)
	}
	if resp, err := http.DefaultClient.Do(req); err == nil {
		resp.Body.Close()
		t.Errorf("got an answer: %s", resp.Status)
	}
}

// TestOpenAINamespace: tools may be in the input, and in namespaces.
func TestOpenAINamespace(t *testing.T) {
	o := &OpenAI{Turns: []Turn{{Calls: []Call{{"exec", map[string]any{"input": "text(1)"}}}}}}
	srv := httptest.NewServer(o)
	defer srv.Close()
	got := post(t, srv.URL+"/v1/responses", "Authorization", "Bearer k",
		`{"input":[{"type":"additional_tools","tools":[{"type":"namespace","name":"functions","tools":[{"type":"custom","name":"exec"}]}]},{"role":"user","content":"do it"}]}`)
	want(t, "the call", got, `"type":"custom_tool_call"`, `"namespace":"functions"`, `"input":"text(1)"`)
	if asked := o.Requests(); len(asked) != 1 || len(asked[0].Tools) != 1 || asked[0].Tools[0] != "exec" || asked[0].Last != `"do it"` {
		t.Errorf("Requests: got %+v", asked)
	}
}
