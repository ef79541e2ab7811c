package gateway

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cove-dev/cove/internal/shim/connect"
)

func mustURL(t testing.TB, s string) *url.URL {
	t.Helper()
	u, err := url.Parse(s)
	if err != nil {
		t.Fatal(err)
	}
	return u
}

func set(t testing.TB, w *world, all map[string]connect.Upstream) {
	t.Helper()
	if err := w.SetConnectors(all); err != nil {
		t.Fatal(err)
	}
}

// seen is what an upstream was asked.
type seen struct {
	Method, Path, Query, Host string
	Header                    http.Header
	Body                      [32]byte
	Length                    int64
}

func TestConnector(t *testing.T) {
	asked := make(chan seen, 1)
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := sha256.New()
		n, _ := io.Copy(h, r.Body)
		asked <- seen{r.Method, r.URL.EscapedPath(), r.URL.RawQuery, r.Host, r.Header.Clone(), [32]byte(h.Sum(nil)), n}
		switch r.URL.Path {
		case "/base/redirect":
			http.Redirect(w, r, "http://other.example/", http.StatusFound)
		case "/base/teapot":
			w.Header().Set("X-Up", "yes")
			w.WriteHeader(http.StatusTeapot)
		}
		_, _ = io.WriteString(w, "from upstream")
	}))
	defer upstream.Close()
	eachLink(t, func(t *testing.T, link string) {
		w := newWorld(t, link, nil)
		set(t, w, map[string]connect.Upstream{
			"plain": {URL: upstream.URL},
			"api": {
				URL:    upstream.URL + "/base",
				Header: http.Header{"x-api-key": {"real"}, "X-Extra": {"a", "b"}},
			},
			"gone": {URL: "http://127.0.0.1:1"},
		})
		client := w.client()
		defer client.CloseIdleConnections()
		do := func(method, url string, body []byte, header http.Header) (*http.Response, string) {
			t.Helper()
			req, err := http.NewRequest(method, url, bytes.NewReader(body))
			if err != nil {
				t.Fatal(err)
			}
			if header != nil {
				req.Header = header
			}
			resp, err := client.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			b, err := io.ReadAll(resp.Body)
			if err != nil {
				t.Fatal(err)
			}
			return resp, string(b)
		}
		host := mustURL(t, upstream.URL).Host

		// GET; the connector's header instead of the guest's, no other credential.
		resp, body := do("GET", "http://api.connect.internal/v1/a%2Fb?q=1", nil, http.Header{
			"X-Api-Key": {"placeholder"}, "Authorization": {"Bearer placeholder"}, "Cookie": {"a=b"},
			"X-Extra": {"guest"}, "X_Extra": {"guest"}, "X-Guest": {"kept"}, "X-Forwarded-For": {"1.2.3.4"}, "Connection": {"X-Hop"}, "X-Hop": {"gone"},
		})
		if resp.StatusCode != 200 || body != "from upstream" {
			t.Errorf("GET: got %d %q", resp.StatusCode, body)
		}
		s := <-asked
		if s.Method != "GET" || s.Path != "/base/v1/a%2Fb" || s.Query != "q=1" || s.Host != host {
			t.Errorf("GET: upstream saw %s %s ? %s at %s", s.Method, s.Path, s.Query, s.Host)
		}
		for name, want := range map[string]string{
			"X-Api-Key": "[real]", "Authorization": "[]", "Cookie": "[]", "X-Extra": "[a b]", "X_Extra": "[]", "X-Guest": "[kept]",
			"X-Forwarded-For": "[]", "X-Hop": "[]", "User-Agent": "[Go-http-client/1.1]",
		} {
			if got := fmt.Sprint(s.Header.Values(name)); got != want {
				t.Errorf("GET: upstream saw %s: %s, want %s", name, got, want)
			}
		}

		// Without headers of the connector's, the guest's own stay.
		do("GET", "http://PLAIN.connect.internal.:80/", nil, http.Header{"Authorization": {"Bearer own"}})
		if s := <-asked; s.Header.Get("Authorization") != "Bearer own" || s.Path != "/" {
			t.Errorf("plain: upstream saw %+v", s)
		}

		// POST, streamed.
		data := randomBytes(8 << 20)
		do("POST", "http://plain.connect.internal/upload", data, nil)
		if s := <-asked; s.Length != int64(len(data)) || s.Body != sha256.Sum256(data) {
			t.Errorf("POST: upstream got %d bytes that differ", s.Length)
		}

		// Status, headers and redirects are the upstream's, and not followed.
		if resp, _ := do("GET", "http://api.connect.internal/teapot", nil, nil); resp.StatusCode != http.StatusTeapot || resp.Header.Get("X-Up") != "yes" {
			t.Errorf("teapot: got %d", resp.StatusCode)
		}
		<-asked
		if resp, _ := do("GET", "http://api.connect.internal/redirect", nil, nil); resp.StatusCode != http.StatusFound || resp.Header.Get("Location") != "http://other.example/" {
			t.Errorf("redirect: got %d to %s", resp.StatusCode, resp.Header.Get("Location"))
		}
		<-asked

		// An answer says so if a URL leads nowhere.
		for _, test := range []struct {
			url    string
			status int
			hint   string
		}{
			{"http://nosuch.connect.internal/", 404, "on the host: cove connector grant nosuch --sprite SPRITE"},
			{"http://openai.connect.internal/", 404, "cove connector put openai (once), and cove connector grant openai --sprite SPRITE"},
			{"http://" + gwIP + "/", 404, "http://NAME.connect.internal/"},
			{"http://api.connect.internal.evil.example/", 404, "http://NAME.connect.internal/"},
			{"http://a.api.connect.internal/", 404, "cove connector grant a.api"},
			{"http://gone.connect.internal/", 502, "cove connector show gone"},
		} {
			resp, body := do("GET", test.url, nil, nil)
			var e struct {
				Error struct{ Code, Message, Hint string }
			}
			if err := json.Unmarshal([]byte(body), &e); err != nil || resp.StatusCode != test.status || e.Error.Code == "" || !strings.Contains(e.Error.Hint, test.hint) {
				t.Errorf("%s: got %d %s", test.url, resp.StatusCode, body)
			}
			if strings.Contains(body, "127.0.0.1:1") {
				t.Errorf("%s: the answer names the upstream: %s", test.url, body)
			}
		}
		select {
		case s := <-asked:
			t.Errorf("an upstream was asked: %+v", s)
		default:
		}

		// A connector taken away is gone, also for a connection that is kept.
		set(t, w, nil)
		if resp, _ := do("GET", "http://plain.connect.internal/", nil, nil); resp.StatusCode != 404 {
			t.Errorf("after SetConnectors(nil): got %d", resp.StatusCode)
		}
	})
}

// TestConnectorTarget: an upstream is asked for the path that was judged, however the
// request's target is written.
// From the time on at which a login's token expires, nothing is asked with it.
func TestConnectorExpires(t *testing.T) {
	asked := make(chan http.Header, 2)
	upstream := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { asked <- r.Header.Clone() }))
	defer upstream.Close()
	w := newWorld(t, "veth", nil)
	header := http.Header{"Authorization": {"Bearer the-access-token"}, "Chatgpt-Account-Id": {"the-account"}}
	set(t, w, map[string]connect.Upstream{
		"good": {URL: upstream.URL, Header: header, Expires: time.Now().Add(time.Hour), ExpiredHint: "log in"},
		"over": {URL: upstream.URL, Header: header, Expires: time.Now(), ExpiredHint: "log in"},
	})
	client := w.client()
	defer client.CloseIdleConnections()
	for name, want := range map[string]string{"good": "200 ", "over": "403 log in"} {
		req, err := http.NewRequest("POST", "http://"+name+".connect.internal/responses", strings.NewReader("{}"))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer placeholder")
		req.Header.Set("Chatgpt-Account-Id", "another")
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		status, text, _ := strings.Cut(want, " ")
		if err != nil || fmt.Sprint(resp.StatusCode) != status || !strings.Contains(string(body), text) {
			t.Errorf("%s: got %d %s, %v", name, resp.StatusCode, body, err)
		}
	}
	if got := <-asked; len(asked) != 0 || got.Get("Authorization") != "Bearer the-access-token" || !slices.Equal(got["Chatgpt-Account-Id"], []string{"the-account"}) {
		t.Errorf("the upstream got %v, and %d more", got, len(asked))
	}
}

func TestConnectorTarget(t *testing.T) {
	asked := make(chan string, 10)
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { asked <- r.RequestURI }))
	defer upstream.Close()
	w := newWorld(t, "veth", nil)
	set(t, w, map[string]connect.Upstream{"api": {URL: upstream.URL + "/base", DenyPaths: []string{"/user*"}}})
	for target, want := range map[string]string{
		"/x":                               "/base/x",
		"http://api.connect.internal/x":    "/base/x",
		"http://api.connect.internal":      "/base",
		"http://api.connect.internal/user": "",
		"http:" + upstream.URL + "/user":   "",
		"http:/user":                       "",
		"http:user":                        "",
		"api:" + "/user":                   "",
	} {
		c, err := w.dial("tcp", gwIP+":80")
		if err != nil {
			t.Fatal(err)
		}
		_ = c.SetDeadline(time.Now().Add(lastResort))
		if _, err := io.WriteString(c, "GET "+target+" HTTP/1.1\r\nHost: api.connect.internal\r\nConnection: close\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		resp, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		select {
		case got = <-asked:
		default:
		}
		if got != want || (resp.StatusCode == http.StatusOK) != (want != "") {
			t.Errorf("%s: got %d, and the upstream was asked for %q, want %q", target, resp.StatusCode, got, want)
		}
		_ = c.Close()
	}
}

// Each event of a stream arrives before the next one is sent, and a guest that
// goes away ends the upstream's request.
func TestConnectorStream(t *testing.T) {
	next, ended := make(chan struct{}), make(chan struct{})
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer close(ended)
		w.Header().Set("Content-Type", "text/event-stream")
		for i := 0; ; i++ {
			_, _ = fmt.Fprintf(w, "data: %d\n\n", i)
			w.(http.Flusher).Flush()
			select {
			case <-next:
			case <-r.Context().Done():
				return
			}
		}
	}))
	defer upstream.Close()
	w := newWorld(t, "veth", nil)
	set(t, w, map[string]connect.Upstream{"sse": {URL: upstream.URL}})
	client := w.client()
	defer client.CloseIdleConnections()
	resp, err := client.Get("http://sse.connect.internal/")
	if err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(resp.Body)
	for i := range 5 {
		if i > 0 {
			next <- struct{}{}
		}
		if !lines.Scan() || lines.Text() != fmt.Sprintf("data: %d", i) {
			t.Fatalf("event %d: got %q, %v", i, lines.Text(), lines.Err())
		}
		lines.Scan() // the empty line
	}
	_ = resp.Body.Close()
	<-ended
}

// A connection that changes protocol is passed through both ways.
func TestConnectorUpgrade(t *testing.T) {
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, rw, err := w.(http.Hijacker).Hijack()
		if err != nil {
			return
		}
		defer c.Close()
		_, _ = io.WriteString(rw, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
		_ = rw.Flush()
		_, _ = io.Copy(c, rw)
	}))
	defer upstream.Close()
	w := newWorld(t, "veth", nil)
	set(t, w, map[string]connect.Upstream{"ws": {URL: upstream.URL}})
	c, err := w.dial("tcp", gwIP+":80")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := io.WriteString(c, "GET / HTTP/1.1\r\nHost: ws.connect.internal\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	r := bufio.NewReader(c)
	resp, err := http.ReadResponse(r, nil)
	if err != nil || resp.StatusCode != http.StatusSwitchingProtocols {
		t.Fatalf("got %v, %v", resp, err)
	}
	for range 3 {
		if _, err := io.WriteString(c, "ping\n"); err != nil {
			t.Fatal(err)
		}
		if got, err := r.ReadString('\n'); err != nil || got != "ping\n" {
			t.Fatalf("got %q, %v", got, err)
		}
	}
}

// An https upstream whose certificate nobody vouches for is not used.
func TestConnectorVerifies(t *testing.T) {
	upstream := httptest.NewTLSServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		t.Error("the request, with its secret, reached an unverified upstream")
	}))
	defer upstream.Close()
	w := newWorld(t, "veth", nil)
	set(t, w, map[string]connect.Upstream{"tls": {URL: upstream.URL, Header: http.Header{"X-Api-Key": {"real"}}}})
	client := w.client()
	defer client.CloseIdleConnections()
	resp, err := client.Get("http://tls.connect.internal/")
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusBadGateway {
		t.Errorf("got %d, want 502", resp.StatusCode)
	}
}
