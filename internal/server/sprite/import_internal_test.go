package sprite

import (
	"errors"
	"strings"
	"testing"

	"github.com/cove-dev/cove/internal/lib/fail"
)

func TestCheckEnvironment(t *testing.T) {
	long := strings.Repeat("N", maxEnvName)
	for _, test := range []struct {
		name, value string
		want        string // empty: it can be
	}{
		{long, "v", ""},
		{"V", strings.Repeat("v", maxEnvText-3), ""},
		{"V", strings.Repeat("v", maxEnvText-2), "too long"},
		{long + "N", "v", "too long"},
		{strings.Repeat("N", 100_000), "v", "too long"},
		{strings.Repeat("=", 100_000), "v", "can't be"},
	} {
		err := checkEnvironment(map[string]string{test.name: test.value})
		e, _ := errors.AsType[*fail.Error](err)
		if (err == nil) != (test.want == "") || e != nil && (e.Code != CodeBadRequest || !strings.Contains(e.Message, test.want) || len(e.Message) > 500) {
			t.Errorf("%.20s of %d and %d bytes: got %.500v, want %q", test.name, len(test.name), len(test.value), err, test.want)
		}
	}
}

// TestListed: a long list of names from an archive is cut to what people can read.
func TestListed(t *testing.T) {
	names := []string{"a", strings.Repeat("b", 100_000), "c"}
	if got, want := listed(names, 2), "a, "+strings.Repeat("b", 255); got != want {
		t.Errorf("got %d bytes, want %d", len(got), len(want))
	}
}
