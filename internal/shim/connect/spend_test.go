package connect

import (
	"testing"

	"github.com/cove-dev/cove"
)

// The answers that the APIs' documents show, as streams and as whole documents.
var answers = map[string]struct {
	text   string
	model  string
	tokens Tokens
}{
	"anthropic stream": {`event: message_start
data: {"type":"message_start","message":{"model":"claude-opus-4-1","usage":{"input_tokens":25,"cache_creation_input_tokens":100,"cache_read_input_tokens":1000,"output_tokens":1}}}

data: {"type":"content_block_delta","delta":{"type":"text_delta","text":"say \"output_tokens\": 999999, \"model\":\"cheap\""}}

data: {"type":"message_delta","usage":{"output_tokens":15}}
data: {"type":"message_delta","usage":{"output_tokens":150}}
`, "claude-opus-4-1", Tokens{1125, 150}},
	"openai chat":      {`{"id":"x","model":"gpt-5","usage":{"prompt_tokens": 19,"completion_tokens": 10,"total_tokens":29,"prompt_tokens_details":{"cached_tokens":5}}}`, "gpt-5", Tokens{19, 10}},
	"openai responses": {`data: {"type":"response.completed","response":{"model":"gpt-5-codex","usage":{"input_tokens":36,"input_tokens_details":{"cached_tokens":0},"output_tokens":87}}}` + "\n\n", "gpt-5-codex", Tokens{36, 87}},
	"gemini stream": {`data: {"usageMetadata":{"promptTokenCount":11,"candidatesTokenCount":2},"modelVersion":"gemini-3"}
data: {"usageMetadata":{"promptTokenCount":11,"candidatesTokenCount":20,"thoughtsTokenCount":300},"modelVersion":"gemini-3"}
`, "gemini-3", Tokens{11, 320}},
}

func TestTally(t *testing.T) {
	for name, a := range answers {
		for _, piece := range []int{1, 7, 64, 100_000} {
			var tally Tally
			for rest := []byte(a.text); len(rest) > 0; {
				n := min(piece, len(rest))
				_, _ = tally.Write(rest[:n])
				rest = rest[n:]
			}
			if model, got := tally.Total(true, 4000, 4000); model != a.model || got != a.tokens {
				t.Errorf("%s in pieces of %d: got %s %+v", name, piece, model, got)
			}
			if _, got := tally.Total(false, 40_000, 80_000); got.Input < 10_000 || got.Output < 20_000 {
				t.Errorf("%s, cut: got %+v", name, got)
			}
		}
	}
	var silent Tally
	_, _ = silent.Write(make([]byte, 1<<20))
	if _, got := silent.Total(true, 400, 1<<20); got != (Tokens{100, 1 << 18}) {
		t.Errorf("what tells nothing: got %+v", got)
	}
}

func TestCost(t *testing.T) {
	u := Upstream{Prices: []cove.ConnectorPrice{{Model: "claude-opus-*", Input: 5, Output: 25}, {Model: "claude-*", Input: 0.1, Output: 0.4}}}
	for model, want := range map[string]int64{"claude-opus-9": 5_000_000 + 25, "claude-haiku": 100_000 + 1, "": 5_000_000 + 25} {
		if got := u.Cost(model, Tokens{1_000_000, 1}); got != want {
			t.Errorf("%q costs %d, want %d", model, got, want)
		}
	}
}

func FuzzTally(f *testing.F) {
	for _, a := range answers {
		f.Add([]byte(a.text), 3)
	}
	f.Fuzz(func(t *testing.T, data []byte, piece int) {
		var whole, pieces Tally
		_, _ = whole.Write(data)
		for rest, n := data, max(piece%1000, 1); len(rest) > 0; rest = rest[min(n, len(rest)):] {
			_, _ = pieces.Write(rest[:min(n, len(rest))])
		}
		if model, got := whole.Total(true, 0, 0); got.Input < 0 || got.Output < 0 || len(model) > 200 {
			t.Fatalf("got %q %+v", model, got)
		}
		_, _ = pieces.Total(false, int64(len(data)), 0)
	})
}
