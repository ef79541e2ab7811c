package network

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"

	"github.com/cove-dev/cove/internal/lib/loopback"
	"github.com/cove-dev/cove/internal/test/e2e"
)

// TestBothLoopbacks: NAME.localhost may lead to either loopback address. A server's port
// is its own on both, so that no other user gets its requests.
func TestBothLoopbacks(t *testing.T) {
	probe, err := net.Listen("tcp", "[::1]:0")
	if err != nil { // nobody can listen there
		ln, err := loopback.Listen("127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		_ = ln.Close()
		return
	}
	_, taken, _ := net.SplitHostPort(probe.Addr().String())
	for _, addr := range []string{"127.0.0.1:" + taken, "localhost:" + taken} {
		if ln, err := loopback.Listen(addr); !errors.Is(err, syscall.EADDRINUSE) {
			t.Errorf("%s, with [::1]:%s another's: got %v, %v, want %v", addr, taken, ln, err, syscall.EADDRINUSE)
		}
	}
	if err := probe.Close(); err != nil {
		t.Fatal(err)
	}

	ln, err := loopback.Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, r.Host) })}
	served := make(chan error, 1)
	go func() { served <- srv.Serve(ln) }()
	_, port, _ := net.SplitHostPort(ln.Addr().String())
	for _, host := range []string{"127.0.0.1", "::1"} {
		at := net.JoinHostPort(host, port)
		if l, err := net.Listen("tcp", at); !errors.Is(err, syscall.EADDRINUSE) {
			t.Errorf("another's listener at %s: got %v, %v, want %v", at, l, err, syscall.EADDRINUSE)
		}
		client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, at)
		}}}
		resp, err := client.Get("http://s1.localhost:" + port)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if err != nil || !strings.HasPrefix(string(body), "s1.localhost:") {
			t.Errorf("by %s: got %q, %v", at, body, err)
		}
	}
	if err := srv.Close(); err != nil {
		t.Error(err)
	}
	if err := <-served; !errors.Is(err, http.ErrServerClosed) {
		t.Error(err)
	}
	// Another program of this machine may take the port as soon as it is free.
	for try := 1; ; try++ {
		again, err := loopback.Listen(ln.Addr().String())
		if err == nil {
			if err := again.Close(); err != nil {
				t.Error(err)
			}
			return
		}
		if try == 10 || !errors.Is(err, syscall.EADDRINUSE) {
			t.Fatalf("after its end: %v", err)
		}
		if ln, err = loopback.Listen("127.0.0.1:0"); err == nil {
			err = ln.Close()
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// TestServerBothLoopbacks: a real server answers at ::1 too.
func TestServerBothLoopbacks(t *testing.T) {
	h := e2e.NewHost(t)
	h.Serve(nil)
	probe, err := net.Listen("tcp", "[::1]:0")
	if err != nil {
		return // the machine has no such address, and the server has started
	}
	_ = probe.Close()
	_, port, _ := strings.Cut(strings.TrimPrefix(h.Client().URL, "http://"), ":")
	conn, err := net.Dial("tcp", net.JoinHostPort("::1", port))
	if err != nil {
		t.Fatal(err)
	}
	_ = conn.Close()
}
