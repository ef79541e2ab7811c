package server_test

import (
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/test/covetest"
	"github.com/cove-dev/cove/internal/test/duplextest"
)

// TestBothWays: an answer that begins before the request's body has ended arrives whole,
// from a sprite's URL, through a backend and from a guest.
func TestBothWays(t *testing.T) {
	upstream := &site{Server: httptest.NewServer(http.HandlerFunc(duplextest.Upstream))}
	defer upstream.Close()
	s := covetest.Start(t, covetest.Options{})
	upstream.service(t, s.Create("paint"))
	must(t, s.Server.Client().PutBackend(t.Context(), "far", cove.BackendRequest{URL: upstream.URL}))
	both := func(s *covetest.Server, host, path string) {
		address := strings.TrimPrefix(s.URL, "http://")
		duplextest.BothWays(t, func() (net.Conn, error) { return net.Dial("tcp", address) }, path, "Host: "+host+"\r\nAuthorization: Bearer "+s.Token+"\r\n")
	}
	both(s, "paint.localhost", "/")
	both(s, "127.0.0.1", "/v1/backends/far/v1/sprites")
	evil, _ := hostile(t, duplextest.Upstream)
	both(evil, "127.0.0.1", "/v1/sprites/evil/services/web/start")
}
