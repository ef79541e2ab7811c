package gateway

import (
	"bufio"
	"errors"
	"io"
	"log"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cove-dev/cove/internal/shim/connect"
)

// lines is a log for several goroutines.
type lines struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// TestLogHides: an upstream breaks HTTP with the secret that it was sent. The secret gets
// into no log, and not into the events of the request or of its answer.
func TestLogHides(t *testing.T) {
	answers := map[string]string{
		"/status": "HTTP/1.1 KEY OK\r\n\r\n", "/protocol": "KEY HTTP\r\n\r\n", "/field": "HTTP/1.1 200 OK\r\nKEY\r\n\r\n", "/length": "HTTP/1.1 200 OK\r\nContent-Length: KEY\r\n\r\n",
		"/encoding": "HTTP/1.1 200 OK\r\nTransfer-Encoding: KEY\r\n\r\n", "/trailer": "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nKEY\r\n\r\n", "/chunk": "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nKEY\r\n\r\n",
		"/switch": "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: KEY\r\n\r\n",
		"/model":  "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n" + `{"type":"message","model":"KEY","usage":{"input_tokens":1,"output_tokens":1}}`,
		"/after":  "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
	}
	seen, ended := make(chan struct{}), make(chan struct{})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	serveTCP(t, l, func(c *net.TCPConn) {
		defer c.Close()
		for r := bufio.NewReader(c); ; {
			req, err := http.ReadRequest(r)
			if err != nil {
				return
			}
			if _, err := io.Copy(io.Discard, req.Body); err != nil { // closed with a part unread, the connection would be reset before the answer is seen
				return
			}
			key := req.Header.Get("X-Api-Key")
			if _, err := io.WriteString(c, strings.ReplaceAll(answers[req.URL.Path], "KEY", key)); err != nil || req.URL.Path != "/after" {
				return
			}
			<-seen
			_, _ = io.WriteString(c, "HTTP/1.1 200 "+key+"\r\n\r\n")
			_, _ = io.Copy(io.Discard, c) // until the gateway, which has said so, closes it
			close(ended)
		}
	})
	var out lines
	var asks told
	w := newWorld(t, "veth", func(g *Gateway) {
		g.Logger = slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug}))
		g.OnRequest = asks.add
	})
	log.SetOutput(Redacted(w.Gateway, &out))
	defer log.SetOutput(os.Stderr)
	u := connect.Upstream{URL: "http://" + l.Addr().String(), Header: http.Header{"X-Api-Key": {secret}}, Secrets: []string{secret}, Hidden: []string{secret}}
	u.Limits.TokensPerDay = 1 << 40
	set(t, w, map[string]connect.Upstream{"api": u})
	client := w.client()
	defer client.CloseIdleConnections()
	n := 0
	paths := slices.DeleteFunc(slices.Collect(maps.Keys(answers)), func(path string) bool { return path == "/after" })
	for _, path := range append(paths, "/after") { // whose connection is kept
		req, err := http.NewRequest(http.MethodPost, "http://api.connect.internal"+path, strings.NewReader("{}"))
		if err != nil {
			t.Fatal(err)
		}
		resp, err := client.Do(req)
		if err == nil {
			text, _ := io.ReadAll(resp.Body)
			_ = resp.Body.Close()
			if strings.Contains(string(text), secret) {
				t.Errorf("%s: answered is %q", path, text)
			}
		}
		n++
		if r := asks.await(t, n); strings.Contains(r.Model+r.Refused+r.Path, secret) || path == "/model" && r.Model == "" {
			t.Errorf("%s: told is %+v", path, r)
		}
	}
	close(seen)
	<-ended
	text := out.String()
	stars := strings.Repeat("*", len(secret))
	for _, want := range []string{"malformed HTTP status code", "Unsolicited response", stars} {
		if !strings.Contains(text, want) {
			t.Errorf("the log has no %q", want)
		}
	}
	if strings.Contains(text, secret) {
		t.Errorf("the log has the secret:\n%s", text)
	}
}

// TestRefusedName: if an address has several names, a refusal is about the name that was
// looked up last, whatever the others' times to live. It proposes that name, and says that
// there are others.
func TestRefusedName(t *testing.T) {
	w := newWorld(t, "veth", func(g *Gateway) { g.Policy = made(t, "allowed.example:80", "*.evil.example:80") })
	addr := netip.MustParseAddr(publicIP)
	for _, name := range []string{"mixed.evil.example", "allowed.example"} {
		ttl := time.Duration(0)
		if name == "mixed.evil.example" {
			ttl = 24 * time.Hour
		}
		w.pins.put(addr, name, ttl)
	}
	if _, err := w.dial("tcp", publicIP+":8080"); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Fatalf("got %v, want connection refused", err)
	}
	const want = "allow it: cove policy allow allowed.example:8080; the address was also looked up as mixed.evil.example"
	if e := w.next(t); e.Name != "allowed.example" || e.Hint != want {
		t.Errorf("got %q: %q, want allowed.example: %q", e.Name, e.Hint, want)
	}
}
