package gateway

import (
	"net"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/cove-dev/cove/internal/shim/connect"
	"github.com/cove-dev/cove/internal/test/duplextest"
)

// TestBothWays: an answer that begins before the request's body has ended arrives whole,
// through a connector and from a server whose name is allowed.
func TestBothWays(t *testing.T) {
	upstream := httptest.NewServer(http.HandlerFunc(duplextest.Upstream))
	defer upstream.Close()
	w := newWorld(t, "veth", nil)
	set(t, w, map[string]connect.Upstream{
		"open":  {URL: upstream.URL},
		"keyed": {URL: upstream.URL, Header: http.Header{"X-Api-Key": {secret}}, Hidden: []string{secret}},
	})
	for _, name := range []string{"open", "keyed"} {
		dial := func() (net.Conn, error) { return w.dial("tcp", gwIP+":80") }
		duplextest.BothWays(t, dial, "/"+name, "Host: "+name+".connect.internal\r\n")
	}

	l := listenIn(t, internetNS, publicIP+":0")
	server := &http.Server{Handler: http.HandlerFunc(duplextest.Upstream)}
	go func() { _ = server.Serve(l) }()
	defer func() { _ = server.Close() }()
	w = enforced(t, "allowed.example")
	w.lookup(t, "allowed.example")
	duplextest.BothWays(t, func() (net.Conn, error) { return w.dial("tcp", l.Addr().String()) }, "/", "Host: allowed.example\r\n")
}
