package kernel_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cove-dev/cove/internal/shim/kernel"
)

// TestWhyCrashed reads the reports of kernels that have crashed, and what is none.
func TestWhyCrashed(t *testing.T) {
	const want = "panic: Signal-induced panic (in boot.(*Loader).run.func2, called by sighandling.handleSignals, called by sighandling.StartSignalForwarding.gowrap1)"
	text, err := os.ReadFile(filepath.Join("testdata", "signal.txt"))
	if err != nil {
		t.Fatal(err)
	}
	for _, before := range []string{"", "a line of before\n"} {
		if got := kernel.Crash(before + string(text)); got != want {
			t.Errorf("after %q:\n got %s\nwant %s", before, got, want)
		}
	}
	for _, text := range []string{"", "guest: ready\n", "a panic: in the middle of a line\n", "goroutine 1 [running]:\nmain.main()\n"} {
		if got := kernel.Crash(text); got != "" {
			t.Errorf("%q is no report: %s", text, got)
		}
	}
	if got := kernel.Crash("panic: " + strings.Repeat("é", 3000)); len(got) > 1100 || !strings.HasSuffix(got, "é…") {
		t.Errorf("a long reason has %d bytes: %.20s…", len(got), got)
	}
}

// TestLives: a sandbox lives as long as its log is open for writing, also if a report was moved
// aside. A reader is none.
func TestLives(t *testing.T) {
	dir := t.TempDir()
	lives := func(want bool) {
		t.Helper()
		if got, err := kernel.Lives(dir); got != want || err != nil {
			t.Errorf("it lives: %v, %v; want %v", got, err, want)
		}
	}
	lives(false)
	f, err := os.OpenFile(filepath.Join(dir, kernel.Log), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	lives(true)
	reader, err := os.Open(f.Name())
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	if _, err := f.WriteString("panic: a\n\ngoroutine 1 [running]:\nmain.a(...)\n" + strings.Repeat("x", 1<<20)); err != nil {
		t.Fatal(err)
	}
	if got := kernel.Report(dir, 0); got != "panic: a (in main.a)" {
		t.Errorf("the report: %s", got)
	}
	if err := kernel.Keep(dir); err != nil {
		t.Fatal(err)
	}
	lives(true)
	if n := kernel.Size(dir); n != 0 || kernel.Report(dir, 0) != "" {
		t.Errorf("%d bytes are left", n)
	}
	kept, err := os.Stat(filepath.Join(dir, kernel.Kept))
	if err != nil || kept.Size() != 256<<10 {
		t.Errorf("of the report is kept: %v, %v", kept, err)
	}
	if _, err := f.WriteString("panic: b\n"); err != nil || kernel.Report(dir, 0) != "panic: b" {
		t.Errorf("the next report: %v, %q", err, kernel.Report(dir, 0))
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	lives(false)
}
