package server

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"
)

// Headers that never end, of anybody, are held to a bound: the longest end, and others
// are served meanwhile.
func TestUnfinishedHeaders(t *testing.T) {
	const limit, conns = 4 << 20, 40
	h := &heads{max: limit}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{
		Handler:           http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "here") }),
		ReadHeaderTimeout: time.Minute, MaxHeaderBytes: maxHeader, ConnState: h.state,
	}
	var wg sync.WaitGroup
	wg.Go(func() { _ = srv.Serve(headListener{l, h}) })
	defer wg.Wait()
	defer srv.Close()
	open := func() net.Conn {
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		_ = c.SetDeadline(time.Now().Add(10 * time.Minute))
		return c
	}
	get := func(c net.Conn, r *bufio.Reader, rest string) {
		t.Helper()
		_, _ = io.WriteString(c, rest)
		resp, err := http.ReadResponse(r, nil)
		if err != nil {
			t.Fatal(err)
		}
		if body, err := io.ReadAll(resp.Body); err != nil || string(body) != "here" {
			t.Errorf("got %q, %v", body, err)
		}
	}
	slow := open() // an honest one, which is slow
	_, _ = io.WriteString(slow, "GET / HTTP/1.1\r\nHost: a\r\nX: ")
	var ended sync.WaitGroup
	for range conns {
		c := open()
		ended.Go(func() {
			_, _ = io.WriteString(c, "GET / HTTP/1.1\r\nHost: a\r\n"+strings.Repeat("a:\n", 100<<10))
		})
	}
	ended.Wait() // each has been taken, or ended
	r := bufio.NewReader(slow)
	get(slow, r, "x\r\n\r\n")
	get(slow, r, "GET /again HTTP/1.1\r\nHost: a\r\n\r\n")
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.most > limit {
		t.Errorf("%d bytes of headers were held, want at most %d", h.most, limit)
	}
	if len(h.conns) >= conns {
		t.Errorf("%d connections have a header, of which none was ended", len(h.conns))
	}
}
