package fail_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/cove-dev/cove/internal/lib/fail"
)

// TestError: the text has no hint, and a code alone finds an error.
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
}

// TestMeanings: a code decides the exit code, the status, and whether to try again.
func TestMeanings(t *testing.T) {
	for code, want := range map[string]struct {
		exit, status int
		retry        bool
	}{
		"anything":      {exit: 1, status: 500},
		"bad_option":    {exit: 2, status: 500},
		"bad_request":   {exit: 1, status: 400},
		"conflict":      {exit: 3, status: 409},
		"risky":         {exit: 4, status: 409},
		"rejected":      {exit: 5, status: 422},
		"no_space":      {exit: 6, status: 507},
		"lost":          {exit: 75, status: 500},
		"changed":       {exit: 75, status: 500, retry: true},
		"session_ended": {exit: 75, status: 410, retry: true},
		"unavailable":   {exit: 75, status: 503},
		"cancelled":     {exit: 130, status: 500, retry: true},
	} {
		e := fail.New(code, "", "")
		if e.ExitCode() != want.exit || e.Status() != want.status || e.Retryable() != want.retry {
			t.Errorf("%s: exit code %d, status %d, retry %v, want %+v", code, e.ExitCode(), e.Status(), e.Retryable(), want)
		}
	}
}

// TestCause: the text has the cause, and errors.Is finds it. A cancelled call is found as
// context.Canceled.
func TestCause(t *testing.T) {
	e := fail.Newf("boot_failed", "see: cove doctor", "sprite %s does not start", "paint")
	e.Err = context.DeadlineExceeded
	if e.Error() != "sprite paint does not start: context deadline exceeded" || !errors.Is(e, context.DeadlineExceeded) {
		t.Errorf("with a cause: %v", e)
	}
	if !errors.Is(fail.New("cancelled", "", ""), context.Canceled) || errors.Is(e, context.Canceled) {
		t.Error("what was cancelled is not context.Canceled, or something else is")
	}
}
