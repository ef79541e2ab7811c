package shim

import (
	"errors"
	"net"
	"net/http"
	"path/filepath"
	"syscall"
	"testing"
)

// TestDialRefused: a port of the guest where nothing listens is no sign of a shim that died. So
// nobody waits for the next one.
func TestDialRefused(t *testing.T) {
	c := Client{Dir: t.TempDir()}
	l, err := net.Listen("unix", filepath.Join(c.Dir, socketName))
	if err != nil {
		t.Fatal(err)
	}
	served := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) })}
	ended := make(chan error, 1)
	go func() { ended <- served.Serve(l) }()
	if _, err := c.Dial(t.Context(), 9); !errors.Is(err, syscall.ECONNREFUSED) || Died(err) || IsNoShim(err) {
		t.Errorf("refused inside: got %v, died: %v, no shim: %v", err, Died(err), IsNoShim(err))
	}
	if err := errors.Join(served.Close(), <-ended); !errors.Is(err, http.ErrServerClosed) {
		t.Error(err)
	}
	if _, err := c.Dial(t.Context(), 9); !Died(err) || !IsNoShim(err) {
		t.Errorf("without a shim: got %v, died: %v, no shim: %v", err, Died(err), IsNoShim(err))
	}
}
