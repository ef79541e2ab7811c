package gateway

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cove-dev/cove/internal/shim/policy"
)

// parsedNow is what waits to be parsed, and how many headers are on their way.
func (w *world) parsedNow() (bytes int64, heads int) {
	return w.parsed.used.Load(), len(w.http.heads.places)
}

// The gateway holds few bytes of headers, however many connections to its HTTP server
// send them, and however long they are.
func TestHeaders(t *testing.T) {
	const conns = maxHTTPConns + 50
	w := newWorld(t, "veth", nil)
	var refused, answered atomic.Int64
	var wg sync.WaitGroup
	open := make(chan struct{}, conns)
	all := make(chan struct{}) // closed when all have tried
	head := "GET / HTTP/1.1\r\nHost: a.connect.internal\r\nX: " + strings.Repeat("x", 250<<10)
	for range conns {
		wg.Go(func() {
			c, err := w.dial("tcp", gwIP+":80")
			open <- struct{}{}
			<-all
			if err != nil {
				if !errors.Is(err, syscall.ECONNREFUSED) {
					t.Error(err)
				}
				refused.Add(1)
				return
			}
			defer c.Close()
			_ = c.SetDeadline(time.Now().Add(lastResort))
			_, _ = io.WriteString(c, head) // which is cut
			if got, _ := io.ReadAll(c); strings.HasPrefix(string(got), "HTTP/1.1 431") {
				answered.Add(1)
			}
		})
	}
	for range conns {
		<-open
	}
	close(all)
	wg.Wait()
	if most := w.parsed.most.Load(); most > maxHTTPConns*maxHeader {
		t.Errorf("headers of %d bytes were held at once, want at most %d", most, maxHTTPConns*maxHeader)
	}
	if refused.Load() != conns-maxHTTPConns {
		t.Errorf("%d connections were refused, want %d", refused.Load(), conns-maxHTTPConns)
	}
	waitFor(t, "all bytes to be given back", func() bool { n, heads := w.parsedNow(); return n == 0 && heads == 0 })

	// Headers that are never finished wait for each other. Finished ones are served.
	const unfinished, size = maxHeads + 20, 20 << 10
	var held []net.Conn
	for range unfinished {
		c, err := w.dial("tcp", gwIP+":80")
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		held = append(held, c)
		_, _ = io.WriteString(c, head[:size])
	}
	waitFor(t, "as many to be read as may be", func() bool { n, heads := w.parsedNow(); return heads == maxHeads && n == maxHeads*size })
	for _, c := range held {
		_ = c.Close()
	}
	waitFor(t, "these bytes to be given back", func() bool { n, heads := w.parsedNow(); return n == 0 && heads == 0 })
	client := w.client()
	defer client.CloseIdleConnections()
	for range 3 {
		resp, err := client.Get("http://nosuch.connect.internal/")
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode != http.StatusNotFound {
			t.Errorf("got %d", resp.StatusCode)
		}
	}
	req, err := http.NewRequest("GET", "http://nosuch.connect.internal/", nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := range maxFields {
		req.Header.Set(fmt.Sprintf("X-%d", i), "x")
	}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusRequestHeaderFieldsTooLarge {
		t.Errorf("%d fields: got %d", maxFields, resp.StatusCode)
	}
}

// The beginnings of connections to names share a budget, beyond which they end.
func TestBeginningsAreBounded(t *testing.T) {
	public := listenIn(t, internetNS, publicIP+":0")
	serveTCP(t, public, echo)
	w := enforced(t, "allowed.example")
	w.lookup(t, "allowed.example")
	for range 20 {
		c, err := w.dial("tcp", public.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		_, _ = io.WriteString(c, "\x16\x03\x01\x40\x00\x01\x00\x3f\xfc"+strings.Repeat("x", 8000))
	}
	waitFor(t, "what was sent to be held", func() bool { return w.parsed.used.Load() == 20*8009 })
	if !w.parsed.take(maxParsed - 20*8009) {
		t.Fatal("the budget has no room")
	}
	c, err := w.dial("tcp", public.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(lastResort))
	_, _ = io.WriteString(c, "GET / HTTP/1.1\r\n")
	if got, err := io.ReadAll(c); err == nil {
		t.Errorf("without room: got %q", got)
	}
	w.refused(t, "without room", "memory limit", "")
}

// Connections that nobody reads end before they hold more bytes than a sandbox may
// have, those in the kernel included. Other connections go on.
func TestHeldBytes(t *testing.T) {
	const conns, limit = 60, 16 << 20
	public := listenIn(t, internetNS, publicIP+":0")
	serveTCP(t, public, func(c *net.TCPConn) {
		for block := make([]byte, 64<<10); ; {
			if _, err := c.Write(block); err != nil {
				return
			}
		}
	})
	quiet := listenIn(t, internetNS, publicIP+":0")
	serveTCP(t, quiet, echo)
	w := newWorld(t, "veth", func(g *Gateway) { g.holders.max = limit })
	kept, err := w.dial("tcp", quiet.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer kept.Close()
	for range conns {
		c, err := w.dial("tcp", public.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
	}
	w.refused(t, "what nobody reads", "memory limit", "")
	waitFor(t, "the rest to be ended", func() bool { return w.shed() <= limit })
	if err := roundTrip(kept, randomBytes(1<<20)); err != nil {
		t.Errorf("beside them: %v", err)
	}
}

// Questions by TCP are few at once, and short.
func TestDNSConns(t *testing.T) {
	w := newWorld(t, "veth", nil)
	var open []net.Conn
	began := time.Now()
	for { // until one more is refused
		c, err := w.dial("tcp", gwIP+":53")
		if errors.Is(err, syscall.ECONNREFUSED) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		open = append(open, c)
		if took := time.Since(began); len(open) > maxDNSConns && (took < dnsConnIdle || took > lastResort) { // in between, some of them have ended
			t.Fatalf("%d connections were taken in %v", len(open), took)
		}
	}
	if len(open) < maxDNSConns {
		t.Fatalf("only %d connections were taken", len(open))
	}
	last := open[len(open)-1]
	_ = last.SetDeadline(time.Now().Add(lastResort))
	_, _ = last.Write(binary.BigEndian.AppendUint16(nil, maxQuestion+1))
	if _, err := last.Read(make([]byte, 1)); err == nil || errors.Is(err, syscall.ETIMEDOUT) {
		t.Errorf("a long question: got %v", err)
	}
}

// The number of UDP flows is bounded: each flow has its own buffers.
func TestDatagramFlows(t *testing.T) {
	w := newWorld(t, "veth", func(g *Gateway) { g.Policy = made(t, publicIP+"/32:9/udp") })
	for range cap(w.datagrams) {
		w.datagrams <- struct{}{}
	}
	c, err := w.dial("udp", publicIP+":9")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	if e := w.next(t); e.Rule != tooMany.Rule || e.Proto != string(policy.UDP) {
		t.Errorf("got %+v", e)
	}
}
