package shim

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cove-dev/cove/internal/shim/cgroup"
)

// If a guest has said nothing, the reason does not mention its output.
func TestWhy(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "0123")
	s := newShim(Config{ID: "none", Dir: dir}, "", slog.New(slog.DiscardHandler))
	for text, want := range map[string]string{"": "ended by itself or by the host", "panic": "ended by itself or by the host; its last output: run/0123/guest.log"} {
		if err := errors.Join(os.MkdirAll(dir, 0o700), os.WriteFile(filepath.Join(dir, "guest.log"), []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
		if got := s.why(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

// TestShortage: the reason of an end names the limit that was reached.
func TestShortage(t *testing.T) {
	server := cgroup.Limits{Memory: 512 << 20, Processes: 200}
	for name, tt := range map[string]struct {
		lack shortage
		want string
	}{
		"its memory":                     {shortage{oomKills: 1, limit: 256 << 20}, "more than its 256 MiB"},
		"its memory, by the peak":        {shortage{oomKills: 1, limit: 256 << 20, peak: 256 << 20, server: server}, "more than its 256 MiB"},
		"the server's, less the reserve": {shortage{oomKills: 1, limit: 448 << 20, peak: 448 << 20, server: server}, "it used all 448 MiB that a sprite gets of the server's 512 MiB"},
		"the server's memory":            {shortage{oomKills: 1, limit: 2 << 30, peak: 400 << 20, server: server}, "all 512 MiB of their cgroup or container"},
		"the machine's":                  {shortage{oomKills: 1}, "the host's kernel ended it"},
		"the server's processes":         {shortage{refused: 1, tasks: 154, server: server}, "the server may have 200 (a container: --pids-limit"},
		"its processes":                  {shortage{refused: 1, tasks: 20480}, "it may have 20480,"},
		"the machine's, not known":       {shortage{refused: 1}, "a limit of the machine"},
		"none":                           {shortage{tasks: 20480, limit: 256 << 20, server: server}, ""},
	} {
		got := tt.lack.processes()
		if tt.lack.oomKills > 0 {
			got = tt.lack.memory("paint")
		}
		if !strings.Contains(got, tt.want) || tt.want == "" && got != "" {
			t.Errorf("%s: got %q, want %q", name, got, tt.want)
		}
	}
}

// TestCrash: an error has the cause of a crash of runsc, without the stacks after it. If
// there was no crash, it has the end of runsc's output.
func TestCrash(t *testing.T) {
	stack := "\ngoroutine 1 [running]:\n" + strings.Repeat("gvisor.dev/gvisor/runsc/sandbox.New(0xc000)\n\t/src/sandbox.go:1 +0x2\n", 60)
	for said, want := range map[string]string{
		"runtime: failed to create new OS thread (have 7 already; errno=11)\nruntime: may need to increase max user processes (ulimit -u)\nfatal error: newosproc\n\nruntime stack:\nx\n" + stack: "runtime: failed to create new OS thread (have 7 already; errno=11)\nruntime: may need to increase max user processes (ulimit -u)\nfatal error: newosproc",
		"guest: ready\npanic: no memory\n" + stack + "\npanic: later\n": "panic: no memory",
		"fatal error: stack overflow\n" + stack:                         "fatal error: stack overflow",
		"creating container: cannot mount\n":                            "creating container: cannot mount",
		strings.Repeat("x", 2000) + "end":                               "…" + strings.Repeat("x", 1497) + "end",
		"":                                                              "",
	} {
		if got := lastLines(said); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

// A shim that has cleaned up is about to end, and the next shim waits for that. If there is
// a sandbox, the next shim does not wait.
func TestTakeLock(t *testing.T) { synctest.Test(t, testTakeLock) }

func testTakeLock(t *testing.T) {
	dir := t.TempDir()
	next, adopting := Config{Dir: dir}, Config{Dir: dir, Adopt: true}
	last, err := takeLock(t.Context(), next)
	if err != nil {
		t.Fatal(err)
	}
	if err := (State{PID: 1}).write(dir); err != nil {
		t.Fatal(err)
	}
	started := time.Now()
	if _, err := takeLock(t.Context(), next); !errors.Is(err, ErrLocked) || time.Since(started) > 0 {
		t.Errorf("beside a sandbox: got %v after %v", err, time.Since(started))
	}

	if err := os.Remove(statePath(dir)); err != nil {
		t.Fatal(err)
	}
	if _, err := takeLock(t.Context(), adopting); !errors.Is(err, ErrLocked) {
		t.Errorf("to adopt: got %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := takeLock(ctx, next); !errors.Is(err, ErrLocked) {
		t.Errorf("for a while: got %v", err)
	}
	taken := make(chan error)
	var lock *os.File
	go func() {
		var err error
		lock, err = takeLock(t.Context(), next)
		taken <- err
	}()
	select {
	case err := <-taken:
		t.Errorf("it does not wait: got %v", err)
	case <-time.After(20 * time.Millisecond):
	}
	if err := errors.Join(last.Close(), <-taken); err != nil {
		t.Error(err)
	}
	if err := lock.Close(); err != nil {
		t.Error(err)
	}
}

// The key of a guest that knows the handshake leaves the shim in no answer. A guest that an
// earlier cove started gets its token in each request. The shim's record decides that.
func TestKeyShown(t *testing.T) {
	if got := (State{Token: "key", Handshake: 1}).shown(); got.Token != "" || got.Handshake != 1 {
		t.Errorf("shown is %+v", got)
	}
	for handshake, want := range map[int]string{0: "Bearer key", 1: ""} {
		st := State{Token: "key", Handshake: handshake}
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://guest/", nil)
		if err != nil {
			t.Fatal(err)
		}
		guestDialer{state: func() State { return st }}.authorize(req)
		if got := req.Header.Get("Authorization"); got != want || handshake == 0 && st.shown().Token != "key" {
			t.Errorf("with version %d: %q", handshake, got)
		}
	}
}
