package server

import (
	"strings"
	"testing"

	"github.com/cove-dev/cove/sprites"
)

// TestGuestSaysHeld: whether a sprite is held is not its guest's to say.
func TestGuestSaysHeld(t *testing.T) {
	if got := execText([]byte(`{"type":"held","held":{"error":"disk_limit","message":"pay here"}}`)); got != nil {
		t.Errorf("a guest's message is passed on: %s", got)
	}
	if got := execText([]byte(`{"type":"memory_lost","lost":"pay here"}`)); got != nil {
		t.Errorf("a guest's message is passed on: %s", got)
	}
	got := execText([]byte(`{"type":"session_info","session_id":"7","held":{"message":"pay here"}}`))
	if !strings.Contains(string(got), `"session_id":"7"`) || strings.Contains(string(got), sprites.MessageHeld) {
		t.Errorf("of a guest's message is left: %s", got)
	}
}
