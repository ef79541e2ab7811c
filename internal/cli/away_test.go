package cli

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"

	"golang.org/x/sys/unix"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/sprites"
)

// said is what a command has printed so far.
type said struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *said) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *said) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// nobodyAt is an address that stays taken, and at which nobody listens.
func nobodyAt(t *testing.T) string {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	name, err := unix.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("127.0.0.1:%d", name.(*unix.SockaddrInet4).Port)
}

// TestWaitForLostServer: a command that waits says within seconds that the server is gone, and
// with --json and --quiet, too. If it stays away, the exit code is 75, and the hint says how to go on.
func TestWaitForLostServer(t *testing.T) {
	url := "http://" + nobodyAt(t)
	for _, global := range []globals{{}, {json: true}, {quiet: true}} {
		synctest.Test(t, func(t *testing.T) {
			var out said
			inv := newInvocation(Streams{Out: io.Discard, Err: &out})
			*inv.global = global
			newRootCommand(inv)
			c := &cove.Client{Client: &sprites.Client{URL: url, HTTPClient: &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}}}
			f := classify(waitJob(t.Context(), inv, c, "a3f7b2", waitOptions{}))
			if f.exit != exitLost || f.code != "connection_lost" || !strings.Contains(f.hint, "cove job wait a3f7b2") {
				t.Errorf("got exit code %d, %s: %s; hint: %s", f.exit, f.code, f.message, f.hint)
			}
			if got := out.String(); strings.Count(got, "the server does not answer") != 1 {
				t.Errorf("it said %q", got)
			}
		})
	}
}

// TestServerEndsAfterProbe: if a server ends after a command has found it, the error says so
// and what to type. If another server has taken its place, that one is used.
func TestServerEndsAfterProbe(t *testing.T) {
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	lock, err := os.Create(filepath.Join(dir, "lock"))
	if err != nil {
		t.Fatal(err)
	}
	serve := func() (end func()) {
		t.Helper()
		if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
			t.Fatal(err)
		}
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprintf(w, `{"version":"x","pid":%d}`, os.Getpid())
		}))
		if err := os.WriteFile(filepath.Join(dir, "server.json"), fmt.Appendf(nil, `{"url":%q,"pid":%d}`, s.URL, os.Getpid()), 0o600); err != nil {
			t.Fatal(err)
		}
		return func() {
			if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_UN); err != nil {
				t.Fatal(err)
			}
			s.Close()
		}
	}
	inv := newInvocation(Streams{Out: io.Discard, Err: io.Discard})
	newRootCommand(inv)
	inv.global.data = dir
	end := serve()
	c, err := inv.server.ownClient(t.Context(), "secret")
	if err != nil {
		t.Fatal(err)
	}
	end()
	end = serve() // elsewhere
	if info, err := c.Version(t.Context()); err != nil || info.PID != os.Getpid() {
		t.Errorf("with the next server: got %+v, %v", info, err)
	}
	end()
	refused := func(message, hint string) {
		t.Helper()
		_, err := c.Version(t.Context())
		if f := classify(err); f.code != "no_server" || !strings.Contains(f.message, message) || strings.Contains(f.message, "connection refused") || !strings.Contains(f.hint, hint) {
			t.Errorf("got %q, %s; hint: %s", f.message, f.code, f.hint)
		}
	}
	t.Setenv(AutostartVariable, "0")
	refused("no server is running on "+dir, "cove server start")
	t.Setenv(AutostartVariable, "")
	if err := os.Rename(filepath.Join(dir, "server.json"), filepath.Join(dir, "spare")); err != nil {
		t.Fatal(err)
	}
	refused("was stopped meanwhile", "cove server start")
}
