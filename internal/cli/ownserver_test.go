package cli

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/cove-dev/cove/internal/lib/private"
)

// TestOwnHTTP connects to the process that holds the lock, and says nothing to another one,
// also after the lock was lost.
func TestOwnHTTP(t *testing.T) {
	dir, heard := t.TempDir(), 0
	s := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { heard++ }))
	defer s.Close()
	name := func(pid int, url string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, "server.json"), fmt.Appendf(nil, `{"url":%q,"pid":%d}`, url, pid), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	lock := filepath.Join(dir, "lock")
	f, err := os.Create(lock)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	call := func(want bool) {
		t.Helper()
		before := heard
		r, err := ownHTTP(dir).Get(s.URL)
		if err == nil {
			_ = r.Body.Close()
		}
		if (err == nil) != want || (heard > before) != want || !want && !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("got %v, and it heard %d requests", err, heard-before)
		}
	}
	name(os.Getpid(), s.URL)
	call(false)
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	call(true)
	name(os.Getppid(), s.URL)
	call(false)
	name(-1, s.URL)
	call(false)
	name(os.Getpid(), "http://127.0.0.1:1")
	call(false)
	name(os.Getpid(), s.URL)
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	call(false)
}

// stopsSlowly holds the lock of a data folder, and ends a while after it has let go of it.
const stopsSlowly = `import fcntl, signal, sys, time
f = open(sys.argv[1], "w")
fcntl.flock(f, fcntl.LOCK_EX)
def end(*_):
    f.close()
    time.sleep(1)
    sys.exit(0)
signal.signal(signal.SIGTERM, end)
print("ready", flush=True)
while True:
    time.sleep(60)
`

// TestStopAwaitsProcess stops a server whose process goes on for a while without its lock.
// The command returns when the process has ended, even if nobody has reaped it.
func TestStopAwaitsProcess(t *testing.T) {
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	child := exec.Command("python3", "-c", stopsSlowly, filepath.Join(dir, "lock"))
	out, err := child.StdoutPipe()
	if err == nil {
		err = child.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = child.Process.Kill() // it has ended
		_ = child.Wait()
	}()
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "ready\n" {
		t.Fatalf("got %q, %v", line, err)
	}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, `{"version":"x","pid":%d}`, child.Process.Pid)
	}))
	defer s.Close()
	if err := os.WriteFile(filepath.Join(dir, "server.json"), fmt.Appendf(nil, `{"url":%q,"pid":%d}`, s.URL, child.Process.Pid), 0o600); err != nil {
		t.Fatal(err)
	}
	inv := newInvocation(Streams{Out: io.Discard, Err: io.Discard})
	inv.global.data = dir
	was, err := stopOwn(t.Context(), inv)
	if err != nil || !was || private.StartOf(child.Process.Pid) != "" {
		t.Errorf("got %v, %v, and the process began at %q", was, err, private.StartOf(child.Process.Pid))
	}
}
