package modeltest

import (
	"bufio"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
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
