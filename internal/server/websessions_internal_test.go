package server

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
)

// TestWebBearer: a bearer of a session that comes by the network is nobody's, even if it is right.
func TestWebBearer(t *testing.T) {
	g := &webSessions{key: newWebKey()}
	r := httptest.NewRequest(http.MethodGet, "/v1/sprites", nil)
	r = r.WithContext(context.WithValue(r.Context(), http.LocalAddrContextKey, &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 80}))
	if _, ok, err := g.principal(r, g.bearer("0a1b")); ok || err != nil {
		t.Errorf("got %v, %v", ok, err)
	}
	inside := r.WithContext(context.WithValue(r.Context(), http.LocalAddrContextKey, &net.UnixAddr{}))
	if _, ok, _ := g.principal(inside, "web.0a1b.AAAA"); ok {
		t.Error("a bearer with another's MAC is good")
	}
}
