package gateway

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cove-dev/cove/internal/shim/hostnet"
	"github.com/cove-dev/cove/internal/shim/policy"
)

// roundTripper is a function that forwards requests.
type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// TestSetPolicyDuringRequest: a request that the policy before allowed, at the moment that
// another one comes, does not outlive SetPolicy.
func TestSetPolicyDuringRequest(t *testing.T) {
	to := netip.MustParseAddrPort("93.184.216.34:80")
	g := &Gateway{Logger: slog.New(slog.DiscardHandler), host: hostView{list: func() (hostnet.Net, error) { return hostnet.Net{}, nil }}}
	for _, name := range []string{"a.example", "b.example"} {
		g.pins.put(to.Addr(), name, time.Hour)
	}
	both, one := made(t, "a.example", "b.example"), made(t, "a.example")
	sent := 0
	for range 2_000 {
		g.SetPolicy(both)
		var ended, forwarded atomic.Bool
		o := g.opened(source{proto: policy.TCP}, to, func() { ended.Store(true) })
		c := &webConn{opened: o, proxy: &httputil.ReverseProxy{Rewrite: asItCame, Transport: roundTripper(func(*http.Request) (*http.Response, error) {
			forwarded.Store(true)
			return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody}, nil
		})}}
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "http://b.example/", nil)
		r = r.WithContext(context.WithValue(r.Context(), webConnKey{}, c))
		var together sync.WaitGroup
		together.Go(func() { g.SetPolicy(one) })
		(&web{g: g}).ServeHTTP(httptest.NewRecorder(), r)
		together.Wait()
		o.close()
		if forwarded.Load() {
			sent++
		}
		if forwarded.Load() && !ended.Load() {
			t.Fatal("a request was forwarded, and its connection was not ended")
		}
	}
	if sent == 0 {
		t.Error("no request came before its policy")
	}
}
