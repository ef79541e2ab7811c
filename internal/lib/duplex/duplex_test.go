package duplex_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/cove-dev/cove/internal/lib/duplex"
)

// served is a server whose handler's requests go through Serve.
func served(h http.HandlerFunc) *httptest.Server {
	return httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { duplex.Serve(w, r, h) }))
}

// connect connects to a server, and says something first.
func connect(t *testing.T, s *httptest.Server, say string) (net.Conn, *bufio.Reader) {
	t.Helper()
	c, err := net.Dial("tcp", s.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	if _, err := io.WriteString(c, say); err != nil {
		t.Fatal(err)
	}
	return c, bufio.NewReader(c)
}

func answer(t *testing.T, r *bufio.Reader) (*http.Response, string) {
	t.Helper()
	resp, err := http.ReadResponse(r, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatalf("after %q: %v", text, err)
	}
	return resp, string(text)
}

// A transport reads a body once more after its last byte. That must give io.EOF, even if the
// answer has begun in between.
func TestEndAfterAnswer(t *testing.T) {
	s := served(func(w http.ResponseWriter, r *http.Request) {
		text := make([]byte, 4)
		if _, err := io.ReadFull(r.Body, text); err != nil {
			t.Error(err)
		}
		_, _ = w.Write(text)
		_ = http.NewResponseController(w).Flush()
		if _, err := r.Body.Read(text); !errors.Is(err, io.EOF) {
			t.Errorf("a read after the last byte, and after the answer's first: %v", err)
		}
	})
	defer s.Close()
	const request = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nbody"
	c, r := connect(t, s, request)
	for range 3 { // the connection stays
		if resp, text := answer(t, r); resp.Close || text != "body" {
			t.Fatalf("got %q, %v", text, resp.Header)
		}
		if _, err := io.WriteString(c, request); err != nil {
			t.Fatal(err)
		}
	}
}

// The rest of a body that a handler leaves unread is never taken for a request. The connection
// is closed after the answer, however the body is written and the answer begun.
func TestRestIsNoRequest(t *testing.T) {
	smuggled := "GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n"
	for name, begin := range map[string]func(http.ResponseWriter){
		"header": func(w http.ResponseWriter) { w.WriteHeader(http.StatusUnauthorized) },
		"write":  func(w http.ResponseWriter) { _, _ = io.WriteString(w, "no") },
		"flush":  func(w http.ResponseWriter) { _ = http.NewResponseController(w).Flush() },
		"none":   nil,
	} {
		for kind, request := range map[string]string{
			"small":     "Content-Length: " + fmt.Sprint(len(smuggled)) + "\r\n\r\n" + smuggled,
			"large":     "Content-Length: 1000000\r\n\r\n" + strings.Repeat(smuggled, 500),
			"chunked":   "Transfer-Encoding: chunked\r\n\r\n" + fmt.Sprintf("%x\r\n%s\r\n0\r\n\r\n", len(smuggled), smuggled),
			"malformed": "Transfer-Encoding: chunked\r\n\r\nno size\r\n" + smuggled,
		} {
			seen := make(chan string, 10)
			s := served(func(w http.ResponseWriter, r *http.Request) {
				seen <- r.URL.Path
				if begin != nil {
					begin(w)
				}
				if kind == "malformed" {
					_, _ = r.Body.Read(make([]byte, 1))
				}
			})
			c, r := connect(t, s, "POST /meant HTTP/1.1\r\nHost: a\r\n"+request+smuggled)
			resp, _ := answer(t, r)
			if !resp.Close {
				t.Errorf("%s, %s: the connection stays: %v", name, kind, resp.Header)
			}
			if tcp, ok := c.(*net.TCPConn); ok {
				_ = tcp.CloseWrite()
			}
			_, _ = io.Copy(io.Discard, r) // until the server closes it
			s.Close()
			close(seen)
			for path := range seen {
				if path == "/smuggled" {
					t.Errorf("%s, %s: a part of the body was taken for a request", name, kind)
				}
			}
		}
	}
}

// A handler returns, and its answer ends, though a reader waits for more of the body.
func TestReaderWaits(t *testing.T) {
	rest := make(chan chan error, 1)
	s := served(func(w http.ResponseWriter, r *http.Request) {
		first, ended := make(chan struct{}), make(chan error)
		go func() {
			_, err := r.Body.Read(make([]byte, 4))
			close(first)
			for err == nil {
				_, err = r.Body.Read(make([]byte, 4))
			}
			ended <- err
		}()
		<-first
		_, _ = io.WriteString(w, "enough")
		_ = r.Body.Close()
		rest <- ended
	})
	defer s.Close()
	_, r := connect(t, s, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\nbody")
	if _, text := answer(t, r); text != "enough" {
		t.Errorf("got %q", text)
	}
	if err := <-<-rest; err == nil || errors.Is(err, io.EOF) {
		t.Errorf("the reader got %v", err)
	}
}
