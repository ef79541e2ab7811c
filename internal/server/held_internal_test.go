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

// TestGuestNamesSession: people type a session's id, which its guest has chosen.
func TestGuestNamesSession(t *testing.T) {
	for id, passes := range map[string]bool{"123456789": true, "a-b_c": true, "1;reboot": false, "$(reboot)": false, "-x": false, "a b": false, strings.Repeat("1", 65): false} {
		got := string(execText([]byte(`{"type":"session_info","session_id":"` + id + `","command":"ls"}`)))
		if strings.Contains(got, `"session_id"`) != passes || !strings.Contains(got, `"command":"ls"`) {
			t.Errorf("%s: got %s", id, got)
		}
	}
}
