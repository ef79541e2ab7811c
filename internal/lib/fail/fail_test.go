package fail_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/cove-dev/cove/internal/lib/fail"
)

// TestError: the text has no hint, a code alone finds an error, and decides the exit code.
func TestError(t *testing.T) {
	err := fmt.Errorf("push: %w", fail.New("bad_option", "no such choice", "use one of these"))
	if err.Error() != "push: no such choice" {
		t.Errorf("says %q", err)
	}
	for code, want := range map[string]bool{"bad_option": true, "lost": false, "": false} {
		if got := errors.Is(err, &fail.Error{Code: code}); got != want {
			t.Errorf("by the code %q: %v", code, got)
		}
	}
	if errors.Is(err, fail.New("bad_option", "another", "")) {
		t.Error("another one of the same code is the same error")
	}
	for code, want := range map[string]int{"bad_option": 2, "conflict": 3, "risky": 4, "rejected": 5, "no_space": 6, "lost": 75, "anything": 1} {
		if got := fail.New(code, "", "").ExitCode(); got != want {
			t.Errorf("%s: exit code %d, want %d", code, got, want)
		}
	}
}
