package server

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/cove-dev/cove/internal/test/e2e"
)

// TestImpostor has another program take the address of a server that was killed. It gets
// no request (so neither the owner's token nor a secret), and no command believes its
// answers.
func TestImpostor(t *testing.T) {
	h := e2e.NewHost(t)
	h.Serve(nil)
	h.Run("", "cove", "create", "paint", "--idle", "0")
	at, err := url.Parse(h.Client().URL)
	if err != nil {
		t.Fatal(err)
	}
	server := h.PID()
	if err := e2e.Signal(server, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := e2e.AwaitEnd(server); err != nil {
		t.Fatal(err)
	}
	var ln net.Listener
	e2e.Await(t, "the address", func() bool {
		ln, err = net.Listen("tcp", at.Host)
		return err == nil
	})
	var heard atomic.Int64
	impostor := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		heard.Add(1)
		t.Errorf("it hears %s %s with %q", r.Method, r.URL, r.Header.Get("Authorization"))
		fmt.Fprintf(w, `{"pid":%d,"version":"0","sprites":[]}`, server)
	})}
	served := make(chan error, 1)
	go func() { served <- impostor.Serve(ln) }()
	t.Cleanup(func() {
		_ = impostor.Close()
		if err := <-served; !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	})

	if out, code := h.Try("", "cove", "list"); code != 1 || !strings.Contains(out, "no server is running") {
		t.Errorf("list: %d, %s", code, out)
	}
	if out := h.Run("", "cove", "server", "stop"); !strings.Contains(out, "did not run") {
		t.Errorf("stop: %s", out)
	}
	if out, code := h.Try("", "cove", "list", "--url", at.String()); code == 0 {
		t.Errorf("list --url: %s", out)
	}
	set := h.Command("", "cove", "secret", "set", "key")
	set.Stdin = strings.NewReader("swordfish")
	if out, err := set.CombinedOutput(); err != nil {
		t.Errorf("secret set: %v: %s", err, out)
	}
	if next := h.Client().URL; next == at.String() {
		t.Errorf("the next server is at %s, too", next)
	}
	if got := h.Run("", "cove", "exec", "-s", "paint", "echo", "here"); got != "here\n" {
		t.Errorf("got %q", got)
	}
	if n := heard.Load(); n > 0 {
		t.Errorf("it heard %d requests", n)
	}
}
