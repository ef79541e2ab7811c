package gateway

import (
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
	"time"

	"github.com/cove-dev/cove/internal/shim/connect"
)

// benchUpstream answers with one byte, or with a stream that has no end; benchKey is
// in neither.
func benchUpstream(b *testing.B) *httptest.Server {
	chunk := make([]byte, 256<<10)
	for i := range chunk {
		chunk[i] = "abcdefghijklmnopqrstuvwxyz-0123456789 s"[i%39]
	}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/one" {
			_, _ = w.Write([]byte("x"))
			return
		}
		for r.Context().Err() == nil {
			if _, err := w.Write(chunk); err != nil {
				return
			}
		}
	}))
	b.Cleanup(s.Close)
	return s
}

const benchKey = "sk-ant-api03-the-key-that-is-redacted-in-all-answers"

// reached has clients that reach an upstream in three ways. One is the host's, which
// is the floor. The others are the sandbox's through a connector, without a secret
// and with one.
func reached(b *testing.B, upstream string) map[string]struct {
	client *http.Client
	url    string
} {
	w := newWorld(b, "tap", nil)
	header := http.Header{"X-Api-Key": {benchKey}}
	set(b, w, map[string]connect.Upstream{"open": {URL: upstream}, "keyed": {URL: upstream, Header: header, Hidden: []string{benchKey}}})
	inside := w.client()
	inside.Timeout = 0
	b.Cleanup(inside.CloseIdleConnections)
	host := &http.Client{Transport: &http.Transport{}}
	b.Cleanup(host.CloseIdleConnections)
	return map[string]struct {
		client *http.Client
		url    string
	}{"floor": {host, upstream}, "open": {inside, "http://open.connect.internal"}, "keyed": {inside, "http://keyed.connect.internal"}}
}

// BenchmarkConnectorFirstByte is the time from a request to its answer's first byte.
func BenchmarkConnectorFirstByte(b *testing.B) {
	ways := reached(b, benchUpstream(b).URL)
	took := map[string][]time.Duration{}
	for b.Loop() {
		for name, way := range ways {
			begin := time.Now()
			resp, err := way.client.Get(way.url + "/one")
			if err != nil {
				b.Fatal(err)
			}
			if _, err := io.ReadFull(resp.Body, make([]byte, 1)); err != nil {
				b.Fatal(err)
			}
			took[name] = append(took[name], time.Since(begin))
			_, _ = io.Copy(io.Discard, resp.Body)
			_ = resp.Body.Close()
		}
	}
	for name, all := range took {
		slices.Sort(all)
		b.ReportMetric(float64(all[len(all)/2].Microseconds()), "p50-µs/"+name)
		b.ReportMetric(float64(all[len(all)*99/100].Microseconds()), "p99-µs/"+name)
	}
	b.ReportMetric(0, "ns/op")
}

// BenchmarkConnectorStream is how fast a stream flows.
func BenchmarkConnectorStream(b *testing.B) {
	const piece = 16 << 20
	ways := reached(b, benchUpstream(b).URL)
	took := map[string]time.Duration{}
	bodies := map[string]io.Reader{}
	for name, way := range ways {
		resp, err := way.client.Get(way.url + "/stream")
		if err != nil {
			b.Fatal(err)
		}
		defer func() { _ = resp.Body.Close() }()
		bodies[name] = resp.Body
	}
	n := 0
	for b.Loop() {
		n++
		for name, body := range bodies {
			begin := time.Now()
			if _, err := io.CopyN(io.Discard, body, piece); err != nil {
				b.Fatal(err)
			}
			took[name] += time.Since(begin)
		}
	}
	for name, d := range took {
		b.ReportMetric(float64(n)*piece/1e6/d.Seconds(), "MB/s/"+name)
	}
	b.ReportMetric(0, "ns/op")
}
