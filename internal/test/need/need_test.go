package need_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cove-dev/cove/internal/test/need"
)

// TestMissing: a test that lacks something is skipped and noted. It fails if nothing may
// be skipped.
func TestMissing(t *testing.T) {
	notes := filepath.Join(t.TempDir(), "notes")
	t.Setenv(need.Noted, notes)
	t.Setenv("COVE_REQUIRE_SANDBOX", "")
	missing := func(f *fake) { need.Program(f, "no-such-program", "its-package") }
	for range 2 {
		if got := run(missing); got.skipped != "there is no no-such-program: apt-get install its-package" || got.failed != "" {
			t.Errorf("got %+v", got)
		}
	}
	text, err := os.ReadFile(notes)
	if want := strings.Repeat("there is no no-such-program: apt-get install its-package\n", 2); string(text) != want {
		t.Errorf("noted %q, want %q: %v", text, want, err)
	}
	t.Setenv("COVE_REQUIRE_SANDBOX", "1")
	if got := run(missing); got.failed == "" || got.skipped != "" {
		t.Errorf("got %+v", got)
	}
	if path := need.Program(t, "sh", "dash"); !filepath.IsAbs(path) {
		t.Errorf("got %q", path)
	}
}

// fake records the calls that it gets.
type fake struct {
	testing.TB
	skipped, failed string
}

func run(test func(*fake)) *fake {
	f := &fake{}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer func() { _ = recover() }()
		test(f)
	}()
	<-done
	return f
}

func (f *fake) Helper()                   {}
func (f *fake) Error(args ...any)         { f.failed = "error" }
func (f *fake) Skip(args ...any)          { f.skipped = args[0].(string); panic("skipped") }
func (f *fake) Fatalf(s string, _ ...any) { f.failed = s; panic("failed") }
