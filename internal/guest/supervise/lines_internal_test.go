package supervise

import (
	"strings"
	"testing"

	"github.com/cove-dev/cove"
)

func TestMatches(t *testing.T) {
	rule := cove.LineRule{Stream: "stdout", Fields: map[string]string{"type": "assistant", "message.role": "x"}}
	for text, want := range map[string]bool{
		`{"type":"assistant","message":{"role":"x"}}`:                    true,
		`{"message":{"n":[{"role":"y"}],"role":"x"},"type":"assistant"}`: true,
		`{"type":"assistant","message":{"role":"x","content":"cut`:       true,
		`{"type":"assistant","message":{"role":"y"}}`:                    false,
		`{"type":"assistant","message":[{"role":"x"}]}`:                  false,
		`{"type":"assistant","message.role":"x"}`:                        true, // nobody is fooled by it but the agent's own guard
		`{"type":["assistant"],"message":{"role":"x"}}`:                  false,
		`{"type":"assistant"`:                                            false,
		`assistant`:                                                      false,
		``:                                                               false,
		strings.Repeat(`{"a":`, 100_000) + `1`:                           false,
	} {
		if got := matches(rule, "stdout", text); got != want {
			t.Errorf("%.80s: got %v", text, got)
		}
	}
	if matches(rule, "stderr", `{"type":"assistant","message":{"role":"x"}}`) {
		t.Error("another stream matches")
	}
}
