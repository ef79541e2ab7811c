package cli

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"syscall"
	"testing"
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
