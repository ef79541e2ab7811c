package guest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"

	"github.com/cove-dev/cove/internal/lib/boot"
)

// TestServicesAreThereFirst: whoever asks a guest that has just begun finds all
// services, however many there are.
func TestServicesAreThereFirst(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "services")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	names := []string{"web"}
	for i := range maxServices - 1 {
		names = append(names, "s"+strconv.Itoa(i))
	}
	for _, name := range names {
		if err := os.WriteFile(filepath.Join(dir, name+".json"), []byte(`{"cmd":"true","stopped":true}`), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	ln, err := net.Listen("tcp", "localhost:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &Server{Token: "secret", User: strconv.Itoa(os.Getuid()), Dir: filepath.Dir(dir)}
	ctx, cancel := context.WithCancel(t.Context())
	lived := make(chan error, 1)
	go func() { lived <- s.live(ctx, ln) }()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("http://%s/v1/services/web", ln.Addr()), nil)
	if err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, addr string) (net.Conn, error) {
		conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr)
		if err == nil {
			err = boot.GreetWithin(ctx.Done(), conn, "secret")
		}
		return conn, err
	}}
	resp, err := transport.RoundTrip(req)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Errorf("the first call gave %v, %v", resp, err)
	} else if err := resp.Body.Close(); err != nil {
		t.Error(err)
	}
	cancel()
	if err := <-lived; err != nil {
		t.Error(err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// The guest's own files replace whatever root in the sandbox put in their place: a pipe
// would hold up a wake, and a link would lead elsewhere.
func TestWriteChanged(t *testing.T) {
	dir := t.TempDir()
	name, other := filepath.Join(dir, "machine-id"), filepath.Join(dir, "other")
	for _, plant := range []func(string) error{
		func(at string) error { return syscall.Mkfifo(at, 0o600) },
		func(at string) error { return os.Symlink(other, at) },
		func(at string) error { return os.WriteFile(at, []byte("old"), 0o600) },
	} {
		if err := errors.Join(os.RemoveAll(name), plant(name)); err != nil {
			t.Fatal(err)
		}
		if err := writeChanged(name, "new\n", 0o444); err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(name); err != nil || string(got) != "new\n" {
			t.Errorf("got %q, %v", got, err)
		}
		if _, err := os.Lstat(other); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("a link was followed: %v", err)
		}
	}
}
