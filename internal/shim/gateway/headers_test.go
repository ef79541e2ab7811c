package gateway

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cove-dev/cove/internal/shim/connect"
)

// agreeable is a server that changes to any protocol that it is asked for. Then it
// answers whatever is requested, which nobody but itself sees.
func agreeable(rw http.ResponseWriter, r *http.Request) {
	to := r.Header.Get("Upgrade")
	if to == "" {
		_, _ = fmt.Fprintf(rw, "plain %s", r.URL.Path)
		return
	}
	c, _, err := http.NewResponseController(rw).Hijack()
	if err != nil {
		return
	}
	defer c.Close()
	_, _ = fmt.Fprintf(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: %s\r\n\r\nunseen", to)
}

// A connection through a connector of some paths does not change to a protocol that
// could carry other requests.
func TestConnectorUpgrades(t *testing.T) {
	upstream := httptest.NewServer(http.HandlerFunc(agreeable))
	t.Cleanup(upstream.Close)
	w := newWorld(t, "veth", nil)
	set(t, w, map[string]connect.Upstream{"some": {URL: upstream.URL, Paths: []string{"/some/*"}}})
	for _, upgrade := range []string{
		"Upgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n", "Upgrade: TLS/1.0\r\n", "Upgrade: connect-udp\r\n", "Upgrade: websocket, h2c\r\n",
		"Upgrade: websocket\r\nUpgrade: h2c\r\n", "Upgrade: WebSocket\r\n", // the last has no key, so it is no WebSocket
	} {
		c, err := w.dial("tcp", gwIP+":80")
		if err != nil {
			t.Fatal(err)
		}
		_ = c.SetDeadline(time.Now().Add(lastResort))
		_, err = fmt.Fprintf(c, "GET /some/path HTTP/1.1\r\nHost: some.connect.internal\r\nConnection: Upgrade, HTTP2-Settings, close\r\n%s\r\n", upgrade)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := io.ReadAll(c); err != nil || !strings.HasSuffix(string(got), "plain /some/path") {
			t.Errorf("%q: got %q, %v", upgrade, got, err)
		}
		_ = c.Close()
	}
}

// If a connector decides on requests, headers that make a server take a request for
// another one don't pass, however they are written.
func TestConnectorRedirections(t *testing.T) {
	asked := make(chan http.Header, 1)
	upstream := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { asked <- r.Header.Clone() }))
	t.Cleanup(upstream.Close)
	w := newWorld(t, "veth", nil)
	set(t, w, map[string]connect.Upstream{
		"some": {URL: upstream.URL, Methods: []string{"GET"}, Paths: []string{"/some/*"}, Header: http.Header{"X-Api-Key": {"real"}}},
		"all":  {URL: upstream.URL},
	})
	client := w.client()
	t.Cleanup(client.CloseIdleConnections)
	sent := []string{"X-Original-URL", "X-Rewrite-Url", "X_Original_Url", "X-HTTP_Method-Override", "X_Api_Key", "X-Mine"}
	for name, want := range map[string][]string{"some": {"X-Mine"}, "all": sent} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+name+".connect.internal/some/path", nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, key := range sent {
			req.Header[key] = []string{"/admin"}
		}
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		var got []string
		for key, values := range <-asked {
			if slices.Contains(values, "/admin") {
				got = append(got, key)
			}
		}
		for _, key := range sent {
			passed := slices.ContainsFunc(got, func(g string) bool { return strings.EqualFold(g, key) })
			if passed != slices.Contains(want, key) {
				t.Errorf("%s: %s passed: %v", name, key, passed)
			}
		}
	}
}
