package gateway

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/shim/connect"
)

// told are the requests that a gateway has told of.
type told struct {
	mu  sync.Mutex
	all []Request
}

func (l *told) add(r Request) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(l.all, r)
}

// await waits for n requests, and returns the last of them.
func (l *told) await(t *testing.T, n int) Request {
	t.Helper()
	for deadline := time.Now().Add(lastResort); time.Now().Before(deadline); <-time.After(5 * time.Millisecond) {
		l.mu.Lock()
		if len(l.all) >= n {
			defer l.mu.Unlock()
			return l.all[n-1]
		}
		l.mu.Unlock()
	}
	t.Fatalf("no %d requests were told", n)
	return Request{}
}

const secret = "sk-test-0123456789"

func fetch(t *testing.T, client *http.Client, method, url string, body io.Reader) (*http.Response, string) {
	t.Helper()
	req, err := http.NewRequest(method, url, body)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Errorf("%s %s: %v", method, url, err)
	}
	return resp, string(b)
}

// If an upstream repeats the request in its answer, no part of the answer tells the
// secret, however the answer is cut.
func TestConnectorHides(t *testing.T) {
	const pair = "eDpzay10ZXN0LTAxMjM0NTY3ODk="
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-Api-Key") != secret || r.Header.Get("Accept-Encoding") != "identity" {
			t.Errorf("the upstream got %v", r.Header)
		}
		w.Header().Set("Link", "<"+secret+">")
		w.WriteHeader(http.StatusEarlyHints)
		switch r.URL.Path {
		case "/packed":
			w.Header().Set("Content-Encoding", "gzip")
			_, _ = io.WriteString(w, secret)
			return
		case "/whole":
			w.Header().Set("Content-Length", fmt.Sprint(len(secret)))
		}
		w.Header().Set("X-Echo", "it is "+secret+" or "+pair)
		w.Header().Set("Set-Cookie", "session=of-the-secret")
		w.Header().Set("Trailer", "X-After")
		for _, c := range secret {
			_, _ = io.WriteString(w, string(c))
			if r.URL.Path == "/slow" {
				_ = http.NewResponseController(w).Flush()
			}
		}
		if r.URL.Path == "/slow" {
			_, _ = io.WriteString(w, " "+pair+" sk-test-sk-test-0123456789sk-test")
		}
		w.Header().Set("X-After", secret)
	}))
	defer upstream.Close()
	w := newWorld(t, "veth", nil)
	set(t, w, map[string]connect.Upstream{"api": {URL: upstream.URL, Header: http.Header{"x-api-key": {secret}}, Hidden: []string{secret, pair}}})
	client := w.client()
	defer client.CloseIdleConnections()
	stars := strings.Repeat("*", len(secret))
	for path, want := range map[string]string{"/": stars, "/whole": stars, "/slow": stars + " " + strings.Repeat("*", len(pair)) + " sk-test-" + stars + "sk-test"} {
		resp, body := fetch(t, client, "GET", "http://api.connect.internal"+path, nil)
		if body != want || resp.Header.Get("X-Echo") != "it is "+stars+" or "+strings.Repeat("*", len(pair)) || strings.Contains(fmt.Sprint(resp.Header, resp.Trailer), secret) || len(resp.Cookies()) > 0 {
			t.Errorf("%s: got %q, %v, %v", path, body, resp.Header, resp.Trailer)
		}
	}
	if resp, body := fetch(t, client, "GET", "http://api.connect.internal/packed", nil); resp.StatusCode != 502 || strings.Contains(body, secret) {
		t.Errorf("compressed unasked: got %d %q", resp.StatusCode, body)
	}
	// The early hints are not seen by Go's client.
	c, err := w.dial("tcp", gwIP+":80")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_, _ = io.WriteString(c, "GET / HTTP/1.1\r\nHost: api.connect.internal\r\nConnection: close\r\n\r\n")
	raw, err := io.ReadAll(c)
	if err != nil || !strings.HasPrefix(string(raw), "HTTP/1.1 103") || strings.Contains(string(raw), secret) {
		t.Errorf("got %q, %v", raw, err)
	}
}

// The gateway neither asks for a part of an answer nor gives one: it may have a part
// of the secret. The same holds for names of fields, ends of bodies, and the
// messages of a WebSocket.
func TestConnectorPieces(t *testing.T) {
	ranges := []string{"Range", "If-Range", "Request-Range", "X-Ms-Range", "A-Im", "Accept-Charset", "Te", "Sec-Websocket-Extensions"}
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for _, name := range ranges {
			if r.Header[name] != nil {
				t.Errorf("the upstream got %s: %v", name, r.Header[name])
			}
		}
		key := r.Header.Get("X-Api-Key")
		switch r.URL.Path {
		case "/206":
			w.WriteHeader(http.StatusPartialContent)
			_, _ = io.WriteString(w, key[3:9])
		case "/content-range":
			w.Header().Set("Content-Range", "bytes 3-8/20")
			_, _ = io.WriteString(w, key[3:9])
		case "/multipart":
			w.Header().Set("Content-Type", "Multipart/ByteRanges; boundary=x")
			_, _ = io.WriteString(w, key[3:9])
		case "/names":
			w.Header().Set("Trailer", key)
			w.Header().Set("X-"+key+"-Y", "1")
			w.Header()[strings.ToUpper(key)] = []string{"2"}
			w.Header().Set("Location", "/?q=%73"+key[1:])
			w.WriteHeader(http.StatusFound)
			_, _ = io.WriteString(w, "body")
			w.Header().Set(key, "3")
			w.Header().Set(http.TrailerPrefix+"Y-"+key, "4")
		case "/tail":
			_, _ = io.WriteString(w, "it is "+key[:len(key)-1])
		case "/cut":
			w.Header().Set("Content-Length", "1000")
			_, _ = io.WriteString(w, "it is "+key[:len(key)-1])
		default:
			c, _, err := http.NewResponseController(w).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			defer c.Close()
			if r.URL.Path == "/status" {
				_, _ = io.WriteString(c, "HTTP/1.1 200 "+key+"\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
				return
			}
			_, _ = io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: "+r.URL.Query().Get("to")+"\r\nSec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n\x81\x14"+key[:9])
			_, _ = io.WriteString(c, key[9:]+"\x81\x01s")
		}
	}))
	defer upstream.Close()
	w := newWorld(t, "veth", nil)
	set(t, w, map[string]connect.Upstream{"api": {URL: upstream.URL, Header: http.Header{"X-Api-Key": {secret}}, Hidden: []string{secret}}})
	talk := func(path, header string) string {
		c, err := w.dial("tcp", gwIP+":80")
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(lastResort))
		_, _ = io.WriteString(c, "GET "+path+" HTTP/1.1\r\nHost: api.connect.internal\r\n"+header+"\r\n")
		raw, _ := io.ReadAll(c)
		if bytes.Contains(bytes.ToLower(raw), []byte(secret[3:9])) {
			t.Errorf("%s: got %q", path, raw)
		}
		return string(raw)
	}
	asks := "Connection: close\r\n"
	for _, name := range ranges {
		asks += name + ": bytes=3-8\r\n"
	}
	for path, want := range map[string]string{
		"/206": "HTTP/1.1 502", "/content-range": "HTTP/1.1 502", "/multipart": "HTTP/1.1 502",
		"/names": "HTTP/1.1 302", "/tail": "HTTP/1.1 200", "/cut": "HTTP/1.1 200", "/status": "HTTP/1.1 200 OK\r\n",
	} {
		if got := talk(path, asks); !strings.HasPrefix(got, want) {
			t.Errorf("%s: got %q", path, got)
		}
	}
	if got := talk("/h2c?to=h2c", "Connection: Upgrade, HTTP2-Settings, close\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n"); !strings.HasPrefix(got, "HTTP/1.1 502") {
		t.Errorf("h2c: got %q", got)
	}
	if got := talk("/ws?to=websocket", "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Extensions: permessage-deflate\r\n"); !strings.HasSuffix(got, "\x81\x14"+strings.Repeat("*", len(secret))+"\x81\x01s") {
		t.Errorf("a WebSocket: got %q", got)
	}
}

type stepReader struct {
	r io.Reader
	n int
}

func (s *stepReader) Read(p []byte) (int, error) { return s.r.Read(p[:min(len(p), s.n)]) }

// A request that is not allowed does not reach the upstream. One that does is
// reported.
func TestConnectorAccess(t *testing.T) {
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-Http-Method-Override") != "" {
			t.Error("the upstream was asked for another method")
		}
		switch r.URL.Path {
		case "/base/v1/here":
			w.Header().Set("Location", "/base/v1/there?q=1")
		case "/base/v1/full":
			w.Header().Set("Location", "http://"+r.Host+"/base")
		case "/base/v1/up":
			w.Header().Set("Location", "/elsewhere")
		case "/base/v1/away":
			w.Header().Set("Location", "http://other.example/")
		}
		n, _ := io.Copy(io.Discard, r.Body)
		w.WriteHeader(http.StatusFound)
		_, _ = fmt.Fprintf(w, "read %d", n)
	}))
	defer upstream.Close()
	var log told
	w := newWorld(t, "veth", func(g *Gateway) { g.OnRequest, g.Name = log.add, func() string { return "paint" } })
	set(t, w, map[string]connect.Upstream{
		"api":   {URL: upstream.URL + "/base", Methods: []string{"GET", "POST"}, Paths: []string{"/v1/*"}, DenyPaths: []string{"/v1/admin*"}},
		"unset": {Refused: "no secret", Hint: "set it"},
	})
	client := w.client()
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	defer client.CloseIdleConnections()
	n := 0
	for _, test := range []struct {
		method, url string
		status      int
		want        string
	}{
		{"GET", "api.connect.internal/v1/x", 302, ""},
		{"GET", "api.connect.internal/v2", 403, "not allowed"},
		{"PUT", "api.connect.internal/v1/x", 403, "PUT"},
		{"GET", "api.connect.internal/v1//admin", 403, "denied"},
		{"GET", "unset.connect.internal/", 403, "set it"},
		{"GET", "other.connect.internal/", 404, "cove connector grant other --sprite paint"},
	} {
		resp, body := fetch(t, client, test.method, "http://"+test.url+"?token=hidden", nil)
		if resp.StatusCode != test.status || !strings.Contains(body, test.want) {
			t.Errorf("%s %s: got %d %s", test.method, test.url, resp.StatusCode, body)
		}
		n++
		r := log.await(t, n)
		if r.Status != test.status || (r.Refused == "") != (test.status == 302) || r.Method != test.method || strings.Contains(r.Path, "hidden") {
			t.Errorf("%s %s: told %+v", test.method, test.url, r)
		}
	}
	req, err := http.NewRequest("POST", "http://api.connect.internal/v1/here", strings.NewReader("12345"))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("X-HTTP-Method-Override", "DELETE")
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	r := log.await(t, n+1)
	if r.Connector != "api" || r.Path != "/v1/here" || r.Sent != 5 || r.Received != int64(len("read 5")) || r.Time.IsZero() || r.Took <= 0 {
		t.Errorf("told %+v", r)
	}
	for path, want := range map[string]string{
		"here": "http://api.connect.internal/v1/there?q=1", "full": "http://api.connect.internal/", "up": "/elsewhere", "away": "http://other.example/",
	} {
		if resp, _ := fetch(t, client, "GET", "http://api.connect.internal/v1/"+path, nil); resp.Header.Get("Location") != want {
			t.Errorf("%s leads to %s, want %s", path, resp.Header.Get("Location"), want)
		}
	}
	if err := w.SetConnectors(map[string]connect.Upstream{"bad": {URL: "ftp://x"}}); err == nil {
		t.Error("a bad upstream was taken")
	}
	if resp, _ := fetch(t, client, "GET", "http://api.connect.internal/v1/x", nil); resp.StatusCode != 302 {
		t.Errorf("after a bad upstream: got %d", resp.StatusCode)
	}
}

func TestConnectorLimits(t *testing.T) {
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		if r.URL.Path == "/much" {
			_, _ = w.Write(make([]byte, 1<<20))
		}
	}))
	defer upstream.Close()
	var log told
	w := newWorld(t, "veth", func(g *Gateway) { g.OnRequest = log.add })
	all := map[string]connect.Upstream{
		"few":  {URL: upstream.URL, Limits: connect.Limits{Requests: 2}},
		"slow": {URL: upstream.URL, Limits: connect.Limits{RequestsPerMinute: 2}},
		"lean": {URL: upstream.URL, Limits: connect.Limits{BytesPerDay: 1000}},
	}
	set(t, w, all)
	client := w.client()
	defer client.CloseIdleConnections()
	for _, name := range []string{"few", "slow"} {
		for i, want := range []int{200, 200, 429} {
			resp, body := fetch(t, client, "GET", "http://"+name+".connect.internal/", nil)
			if resp.StatusCode != want || (resp.Header.Get("Retry-After") != "") != (want == 429 && name == "slow") {
				t.Errorf("%s %d: got %d %s", name, i, resp.StatusCode, body)
			}
		}
	}
	// A budget that is used up stays so when the definition changes, or is removed
	// and comes back.
	set(t, w, nil)
	few := all["few"]
	few.Methods = []string{"GET"}
	set(t, w, map[string]connect.Upstream{"few": few, "lean": all["lean"]})
	if resp, _ := fetch(t, client, "GET", "http://few.connect.internal/", nil); resp.StatusCode != 429 {
		t.Errorf("put anew: got %d", resp.StatusCode)
	}
	if resp, _ := fetch(t, client, "POST", "http://lean.connect.internal/", strings.NewReader(strings.Repeat("x", 900))); resp.StatusCode != 200 {
		t.Errorf("within its bytes: got %d", resp.StatusCode)
	}
	resp, err := client.Get("http://lean.connect.internal/much")
	if err == nil {
		n, err := io.Copy(io.Discard, resp.Body)
		_ = resp.Body.Close()
		if err == nil || n > 100 {
			t.Errorf("beyond its bytes: got %d, %v", n, err)
		}
	}
	if r := log.await(t, 9); r.Refused == "" {
		t.Errorf("told %+v", r)
	}
	if resp, _ := fetch(t, client, "GET", "http://lean.connect.internal/", nil); resp.StatusCode != 429 {
		t.Errorf("after its bytes: got %d", resp.StatusCode)
	}
	r := log.await(t, 10)
	if r.Usage == nil || r.Usage.Requests != 2 || r.Usage.Bytes != 1000 {
		t.Errorf("told that %+v is used", r.Usage)
	}
	// Another gateway goes on from there.
	w = newWorld(t, "veth", func(g *Gateway) { g.Used = map[string]Usage{"lean": *r.Usage} })
	set(t, w, all)
	other := w.client()
	defer other.CloseIdleConnections()
	if resp, _ := fetch(t, other, "GET", "http://lean.connect.internal/", nil); resp.StatusCode != 429 {
		t.Errorf("in another gateway: got %d", resp.StatusCode)
	}
}

// A connector that is taken away, or becomes another, ends its streams; one that
// stays as it is does not.
func TestConnectorTaken(t *testing.T) {
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Upgrade") != "" {
			c, rw, err := http.NewResponseController(w).Hijack()
			if err != nil {
				return
			}
			defer c.Close()
			_, _ = io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
			_, _ = io.Copy(c, rw)
			return
		}
		_, _ = io.WriteString(w, "begin\n")
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	}))
	defer upstream.Close()
	var log told
	w := newWorld(t, "veth", func(g *Gateway) { g.OnRequest = log.add })
	stay := connect.Upstream{URL: upstream.URL, Header: http.Header{"X-Key": {"a"}}}
	set(t, w, map[string]connect.Upstream{"stay": stay, "go": stay, "turn": stay})
	client := w.client()
	defer client.CloseIdleConnections()
	open := map[string]io.ReadCloser{}
	for _, name := range []string{"stay", "go", "turn"} {
		resp, err := client.Get("http://" + name + ".connect.internal/")
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if line, err := bufio.NewReaderSize(resp.Body, 16).ReadString('\n'); err != nil || line != "begin\n" {
			t.Fatalf("%s: got %q, %v", name, line, err)
		}
		open[name] = resp.Body
	}
	both, err := w.dial("tcp", gwIP+":80")
	if err != nil {
		t.Fatal(err)
	}
	defer both.Close()
	if _, err := io.WriteString(both, "GET / HTTP/1.1\r\nHost: go.connect.internal\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	upgraded := bufio.NewReader(both)
	if resp, err := http.ReadResponse(upgraded, nil); err != nil || resp.StatusCode != http.StatusSwitchingProtocols {
		t.Fatalf("got %v, %v", resp, err)
	}
	if _, err := io.WriteString(both, "12345"); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(upgraded, make([]byte, 5)); err != nil {
		t.Fatal(err)
	}
	turned := stay
	turned.Header = http.Header{"X-Key": {"b"}}
	set(t, w, map[string]connect.Upstream{"stay": {URL: upstream.URL, Header: http.Header{"X-Key": {"a"}}}, "turn": turned})
	for _, name := range []string{"go", "turn"} {
		if _, err := io.ReadAll(open[name]); err == nil {
			t.Errorf("%s ended as if whole", name)
		}
	}
	if n, _ := io.Copy(io.Discard, upgraded); n > 0 {
		t.Errorf("the upgraded connection said %d bytes more", n)
	}
	for n := range 3 {
		r := log.await(t, n+1)
		if r.Refused != errTaken.Error() || r.Connector == "stay" || r.Status == 101 && (r.Sent != 5 || r.Received != 5) {
			t.Errorf("told %+v", r)
		}
	}
	log.mu.Lock()
	defer log.mu.Unlock()
	if len(log.all) != 3 {
		t.Errorf("told %+v", log.all)
	}
}

// The tokens that a model's answers say were used are charged. Once the budget is
// spent, requests are refused. A client that hangs up before the answer says its
// tokens is charged, too.
func TestConnectorSpending(t *testing.T) {
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		switch r.URL.Path {
		case "/answer":
			_, _ = io.WriteString(w, `{"model":"large","usage":{"input_tokens":600,"output_tokens":200}}`)
		case "/refused":
			w.WriteHeader(http.StatusBadRequest)
			_, _ = io.WriteString(w, `{"usage":{"input_tokens":600}}`)
		case "/endless":
			_, _ = io.WriteString(w, `data: {"model":"large","usage":{"input_tokens":9,"output_tokens":1}}`+"\n\n"+strings.Repeat("x", 4000))
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
		}
	}))
	defer upstream.Close()
	var log told
	w := newWorld(t, "veth", func(g *Gateway) { g.OnRequest = log.add })
	prices := []cove.ConnectorPrice{{Model: "large", Input: 1, Output: 10}}
	set(t, w, map[string]connect.Upstream{
		"dollars": {URL: upstream.URL, Prices: prices, Limits: connect.Limits{USDPerDay: 0.003}},
		"tokens":  {URL: upstream.URL, Limits: connect.Limits{TokensPerDay: 1000}},
		"cut":     {URL: upstream.URL, Prices: prices, Limits: connect.Limits{TokensPerDay: 1000}},
	})
	client := w.client()
	defer client.CloseIdleConnections()
	n := 0
	ask := func(method, url string, status int) Request {
		t.Helper()
		if resp, body := fetch(t, client, method, "http://"+url, nil); resp.StatusCode != status {
			t.Errorf("%s %s: got %d %s", method, url, resp.StatusCode, body)
		}
		n++
		return log.await(t, n)
	}
	ask("GET", "dollars.connect.internal/answer", 200)   // a list of models costs nothing
	ask("POST", "dollars.connect.internal/refused", 400) // a refused request costs nothing either
	for range 2 {
		if r := ask("POST", "dollars.connect.internal/answer", 200); r.Model != "large" || r.Tokens != (connect.Tokens{Input: 600, Output: 200}) || r.MicroUSD != 2600 {
			t.Errorf("told %+v", r)
		}
	}
	if r := ask("POST", "dollars.connect.internal/answer", 429); !strings.Contains(r.Refused, "dollars") || r.Usage.MicroUSD != 5200 {
		t.Errorf("told %+v, %+v", r, r.Usage)
	}
	ask("POST", "tokens.connect.internal/answer", 200)
	ask("POST", "tokens.connect.internal/answer", 200)
	if r := ask("POST", "tokens.connect.internal/answer", 429); !strings.Contains(r.Refused, "tokens") {
		t.Errorf("told %+v", r)
	}
	resp, err := client.Post("http://cut.connect.internal/endless", "text/plain", strings.NewReader("x"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(resp.Body, make([]byte, 4000)); err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	n++
	if r := log.await(t, n); r.Tokens.Output < 1000 || r.Tokens.Input != 9 {
		t.Errorf("cut: told %+v", r)
	}
	ask("POST", "cut.connect.internal/answer", 429)
	// How far it can be overrun is bounded: only so many are under way.
	set(t, w, map[string]connect.Upstream{"wide": {URL: upstream.URL, Limits: connect.Limits{TokensPerDay: 1_000_000}}})
	var open []io.Closer
	for i := range maxSpending + 1 {
		resp, err := client.Post("http://wide.connect.internal/endless", "text/plain", nil)
		if err != nil {
			t.Fatal(err)
		}
		open = append(open, resp.Body)
		if want := map[bool]int{true: 200, false: 429}[i < maxSpending]; resp.StatusCode != want {
			t.Errorf("request %d while the others are under way: got %d, want %d", i+1, resp.StatusCode, want)
		}
	}
	for _, c := range open {
		_ = c.Close()
	}
	log.await(t, n+maxSpending+1)
	if resp, _ := fetch(t, client, "POST", "http://wide.connect.internal/answer", nil); resp.StatusCode != 200 {
		t.Errorf("after they have ended: got %d", resp.StatusCode)
	}
	set(t, w, map[string]connect.Upstream{"tokens": {URL: upstream.URL, Limits: connect.Limits{TokensPerDay: 1000}}})
	req, err := http.NewRequest("GET", "http://tokens.connect.internal/socket", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Connection", "Upgrade")
	req.Header.Set("Upgrade", "websocket")
	if resp, err := client.Do(req); err != nil || resp.StatusCode != http.StatusForbidden {
		t.Errorf("a connection that changes its protocol: got %v, %v", resp, err)
	}
}
