package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/test/e2e"
	"github.com/cove-dev/cove/sprites"
)

// The sizes of bodies (in bytes) and of lists. All HTTP clients but http and curl use
// only variantSizes.
var (
	bodySizes    = []int{0, 1 << 10, 64 << 10, 1 << 20, 16 << 20}
	variantSizes = []int{1 << 10, 1 << 20}
	listSizes    = []int{1, 100, 1000}
)

// target is a server of the protocol that a call is made to: cove's, or the floor.
type target struct {
	client *cove.Client
	sprite *sprites.Sprite
	node   *nodeCaller
}

// wireCall is a call of the protocol by one client.
type wireCall struct {
	name   string // call/size/client
	before func(i int) error
	do     func(to *target, i int) error
}

// BenchmarkCalls makes each call of the protocol, by size and by client, beside the same
// call to a bare HTTP server that replays the answer. A pause in a call shows as a
// difference that does not grow with the size. A slowdown of one client shows as a ratio
// unlike the other clients'. BENCHFLAGS='-bench=Calls/write' picks.
func BenchmarkCalls(b *testing.B) {
	ours, floor := callTargets(b)
	set := &callSet{b: b, to: ours}
	set.sprites()
	set.files()
	set.bodies()
	set.execs()
	set.others()
	for _, call := range set.calls {
		b.Run(strings.ReplaceAll(call.name, " ", "-"), func(b *testing.B) {
			times := [2][]time.Duration{}
			made := func(i int, to *target) time.Duration {
				if call.before != nil {
					if err := call.before(i); err != nil {
						b.Fatal(err)
					}
				}
				start := time.Now()
				if err := call.do(to, i); err != nil {
					b.Fatalf("%s: %v", to.client.URL, err)
				}
				took := time.Since(start)
				if to.node.took > 0 {
					took, to.node.took = to.node.took, 0
				}
				return took
			}
			made(0, floor) // now the floor knows the answer
			made(0, ours)
			for i := 1; b.Loop(); i++ {
				times[0] = append(times[0], made(i, ours))
				times[1] = append(times[1], made(i, floor))
			}
			report(b, times[0], times[1])
			b.ReportMetric(float64(slices.Min(times[0]).Microseconds())/1000, "ms/least")
		})
	}
}

// callTargets starts a server with a sprite that is awake, and the floor.
func callTargets(b *testing.B) (ours, floor *target) {
	client, sprite, _ := benchSprite(b)
	web := httptest.NewServer(newReplay(client.URL))
	b.Cleanup(web.Close)
	bare := &cove.Client{Client: &sprites.Client{URL: web.URL, Token: client.Token}}
	ours = &target{client: client, sprite: sprite, node: startNode(b, client)}
	floor = &target{client: bare, sprite: bare.Sprite("paint"), node: startNode(b, bare)}
	return ours, floor
}

// callSet gathers the calls.
type callSet struct {
	b     *testing.B
	to    *target // of the preparations before a call
	calls []wireCall
}

func (s *callSet) add(name string, before func(i int) error, do func(to *target, i int) error) {
	s.calls = append(s.calls, wireCall{name, before, do})
}

// plain adds a call without a body of note, by net/http.
func (s *callSet) plain(name, method, path, body string, before func(i int) error) {
	s.add(name+"/-/http", before, func(to *target, i int) error {
		r := rawCall{method: method, path: withNumber(path, i), body: []byte(withNumber(body, i))}
		if body == "" {
			r.body = nil
		}
		return r.by(s.b.Context(), to, webClients["http"])
	})
}

// withNumber replaces each # in a text by a call's number, in a form (-u7) that the floor
// ignores.
func withNumber(text string, i int) string {
	return strings.ReplaceAll(text, "#", "-u"+strconv.Itoa(i))
}

// js adds a call by the JavaScript SDK.
func (s *callSet) js(name, size string, n int, before func(i int) error) {
	s.add(name+"/"+size+"/js", before, func(to *target, i int) error { return to.node.call(name, n, i) })
}

// golang adds a call by package sprites.
func (s *callSet) golang(name, size string, before func(i int) error, do func(to *target, i int) error) {
	s.add(name+"/"+size+"/go", before, do)
}

// sprites adds the calls on sprites.
func (s *callSet) sprites() {
	ctx := s.b.Context()
	remove := func(prefix string) func(i int) error {
		return func(i int) error {
			err := s.to.client.Delete(ctx, withNumber(prefix+"#", i), sprites.DeleteOptions{})
			if errors.Is(err, sprites.ErrNotFound) {
				return nil
			}
			return err
		}
	}
	create := func(prefix string) func(i int) error {
		return func(i int) error {
			err := remove(prefix)(i)
			if err == nil {
				_, err = s.to.client.Create(ctx, sprites.CreateRequest{Name: withNumber(prefix+"#", i)})
			}
			return err
		}
	}
	s.plain("create", "POST", "/v1/sprites", `{"name":"ha#"}`, remove("ha"))
	s.golang("create", "-", remove("ga"), func(to *target, i int) error {
		_, err := to.client.Create(ctx, sprites.CreateRequest{Name: withNumber("ga#", i)})
		return err
	})
	s.js("create", "-", 0, remove("ja"))
	s.plain("get", "GET", "/v1/sprites/paint", "", nil)
	s.golang("get", "-", nil, func(to *target, _ int) error { _, err := to.client.Get(ctx, "paint"); return err })
	s.js("get", "-", 0, nil)
	s.plain("update", "PUT", "/v1/sprites/paint", `{"labels":["a"]}`, nil)
	s.js("update", "-", 0, nil)
	s.plain("check", "GET", "/v1/sprites/paint/check", "", nil)
	s.plain("delete", "DELETE", "/v1/sprites/hd#", "", create("hd"))
	s.golang("delete", "-", create("gd"), func(to *target, i int) error {
		return to.client.Delete(ctx, withNumber("gd#", i), sprites.DeleteOptions{})
	})
	s.js("delete", "-", 0, create("jd"))
	s.plain("visit", "POST", "/v1/sprites/paint/visit", `{}`, nil)
	s.plain("wake", "POST", "/v1/sprites/paint/wake", "", nil)
	s.plain("version", "GET", "/v1/version", "", nil)
	s.plain("tokens", "GET", "/v1/tokens", "", nil)
	s.plain("secrets", "PUT", "/v1/secrets/one", `{"value":"secret-of-eight"}`, nil)
	s.plain("connectors", "GET", "/v1/connectors", "", nil)
	s.plain("jobs", "GET", "/v1/jobs", "", nil)
	made := 0
	for _, n := range listSizes {
		before := func(int) error {
			for ; made < n; made++ {
				if _, err := s.to.client.Create(ctx, sprites.CreateRequest{Name: "list" + strconv.Itoa(n) + "-" + strconv.Itoa(made)}); err != nil {
					return err
				}
			}
			return nil
		}
		size := strconv.Itoa(n)
		s.golang("list", size, before, func(to *target, _ int) error {
			for _, err := range to.client.All(ctx, "list") {
				if err != nil {
					return err
				}
			}
			return nil
		})
		s.js("list", size, 0, before)
	}
}

// files adds the calls on files that have no body.
func (s *callSet) files() {
	ctx := s.b.Context()
	const fs = "/v1/sprites/paint/fs/"
	sh := func(script string) func(i int) error {
		return func(i int) error { return e2e.RunIn(s.to.client, "paint", "sh", "-c", withNumber(script, i)) }
	}
	s.plain("rename", "POST", fs+"rename", `{"source":"/tmp/from#","dest":"/tmp/to#","workingDir":"/"}`, sh("echo >/tmp/from#"))
	s.plain("chmod", "POST", fs+"chmod", `{"path":"/tmp/mode","mode":"0600","workingDir":"/"}`, sh("echo >/tmp/mode"))
	s.plain("chown", "POST", fs+"chown", `{"path":"/tmp/owned","uid":0,"gid":0,"asRoot":true,"workingDir":"/"}`, sh("test -e /tmp/owned || touch /tmp/owned"))
	s.plain("remove", "DELETE", fs+"delete?path=/tmp/gone#&workingDir=/", "", sh("echo >/tmp/gone#"))
	for _, n := range bodySizes {
		s.plain("copy/"+sizeName(n), "POST", fs+"copy", fmt.Sprintf(`{"source":"/tmp/copy%d","dest":"/tmp/copied","workingDir":"/"}`, n), s.file("copy", n))
	}
	for _, n := range listSizes {
		made := false
		before := func(int) error {
			if made {
				return nil
			}
			made = true
			return e2e.RunIn(s.to.client, "paint", "sh", "-c", fmt.Sprintf("mkdir -p /tmp/dir%d && cd /tmp/dir%d && touch $(seq %d)", n, n, n))
		}
		s.plain("readdir/"+strconv.Itoa(n), "GET", fmt.Sprintf("%slist?path=/tmp/dir%d&workingDir=/", fs, n), "", before)
		s.js("readdir", strconv.Itoa(n), n, before)
	}
	s.golang("watch", "event", nil, func(to *target, _ int) error {
		if to != s.to {
			return nil // a bare server has no files
		}
		w, err := to.sprite.Watch(ctx, sprites.WatchOptions{}, "/tmp")
		if err != nil {
			return err
		}
		defer func() { _ = w.Close() }()
		if err := to.sprite.WriteFile(ctx, "/tmp/watched", strings.NewReader("x"), sprites.WriteOptions{}); err != nil {
			return err
		}
		_, err = w.Next()
		return err
	})
}

// file returns a function that makes a file of a size in the sprite, once.
func (s *callSet) file(name string, n int) func(int) error {
	made := false
	return func(int) error {
		if made {
			return nil
		}
		made = true
		return e2e.RunIn(s.to.client, "paint", "sh", "-c", fmt.Sprintf("head -c %d /dev/zero >/tmp/%s%d", n, name, n))
	}
}

// bodies adds the calls that have a body, by every client.
func (s *callSet) bodies() {
	ctx := s.b.Context()
	data := make([]byte, slices.Max(bodySizes))
	dir := s.b.TempDir()
	for _, n := range bodySizes {
		size := sizeName(n)
		in := filepath.Join(dir, strconv.Itoa(n))
		if err := os.WriteFile(in, data[:n], 0o600); err != nil {
			s.b.Fatal(err)
		}
		const one = "/v1/sprites/paint/"
		made := s.file("read", n)
		raws := []struct {
			name   string
			call   rawCall
			before func(int) error
		}{
			{"read", rawCall{method: "GET", path: fmt.Sprintf("%sfs/read?path=/tmp/read%d&workingDir=/", one, n)}, made},
			{"write", rawCall{method: "PUT", path: one + "fs/write?path=/tmp/write&workingDir=/", body: data[:n], file: in}, nil},
			{"post-out", rawCall{method: "POST", path: fmt.Sprintf("%sexec?cmd=head&cmd=-c&cmd=%d&cmd=/dev/zero", one, n)}, nil},
			{"post-in", rawCall{method: "POST", path: one + "exec?cmd=sh&cmd=-c&cmd=cat+%3E/dev/null&stdin=true", body: data[:n], file: in}, nil},
		}
		for _, raw := range raws {
			for _, via := range slices.Sorted(mapKeys(webClients)) {
				if via != "http" && via != "curl" && !slices.Contains(variantSizes, n) {
					continue
				}
				if raw.call.body == nil && (via == "expect" || via == "chunked" || via == "nagle") {
					continue
				}
				s.add(raw.name+"/"+size+"/"+via, raw.before, func(to *target, _ int) error { return raw.call.by(ctx, to, webClients[via]) })
			}
			if !strings.HasPrefix(raw.name, "post-out") || n <= 64<<10 { // of more, the SDK loses too much
				s.js(raw.name, size, n, raw.before)
			}
		}
		s.golang("read", size, made, func(to *target, _ int) error {
			got, err := to.sprite.ReadFile(ctx, fmt.Sprintf("/tmp/read%d", n))
			if err == nil && len(got) != n {
				err = fmt.Errorf("got %d bytes, want %d", len(got), n)
			}
			return err
		})
		s.golang("write", size, nil, func(to *target, _ int) error {
			return to.sprite.WriteFile(ctx, "/tmp/write", bytes.NewReader(data[:n]), sprites.WriteOptions{})
		})
	}
}

// rawCall is a request that the benchmark builds itself.
type rawCall struct {
	method, path string
	body         []byte
	file         string // has the body, too
}

// webClient makes a rawCall and reads the answer to its end.
type webClient func(ctx context.Context, r rawCall, u *url.URL, token string) error

func (r rawCall) by(ctx context.Context, to *target, f webClient) error {
	u, err := url.Parse(to.client.URL + r.path)
	if err != nil {
		return err
	}
	return f(ctx, r, u, to.client.Token)
}

// webClients are HTTP clients (net/http in several ways, and others) that differ on the
// wire.
var webClients = map[string]webClient{
	"http":    byWeb(&http.Transport{DisableCompression: true}, nil),
	"close":   byWeb(&http.Transport{DisableCompression: true, DisableKeepAlives: true}, nil),
	"gzip":    byWeb(&http.Transport{}, nil),
	"chunked": byWeb(&http.Transport{}, func(r *http.Request) { r.ContentLength = -1 }),
	"expect":  byWeb(&http.Transport{ExpectContinueTimeout: time.Minute}, func(r *http.Request) { r.Header.Set("Expect", "100-continue") }),
	"nagle":   byNagle,
	"curl":    byCurl,
}

func byWeb(transport http.RoundTripper, change func(*http.Request)) webClient {
	return func(ctx context.Context, r rawCall, u *url.URL, token string) error {
		var body io.Reader
		if r.body != nil {
			body = bytes.NewReader(r.body)
		}
		req, err := http.NewRequestWithContext(ctx, r.method, u.String(), body)
		if err != nil {
			return err
		}
		req.Header.Set("Authorization", "Bearer "+token)
		if change != nil {
			change(req)
		}
		resp, err := transport.RoundTrip(req)
		if err != nil {
			return err
		}
		return answered(resp)
	}
}

func answered(resp *http.Response) error {
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode > 299 {
		text, _ := io.ReadAll(resp.Body)
		return fmt.Errorf("got %s: %s", resp.Status, text)
	}
	_, err := io.Copy(io.Discard, resp.Body)
	return err
}

// byNagle sends the header and then the body in small pieces. Its connection keeps small
// pieces back until the previous one is acknowledged (Nagle's algorithm).
func byNagle(ctx context.Context, r rawCall, u *url.URL, token string) error {
	transport := &http.Transport{
		DisableKeepAlives: true,
		WriteBufferSize:   512,
		DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := new(net.Dialer).DialContext(ctx, network, addr)
			if tcp, ok := conn.(*net.TCPConn); ok {
				err = tcp.SetNoDelay(false)
			}
			return conn, err
		},
	}
	return byWeb(transport, func(req *http.Request) {
		if req.Body != nil {
			req.Body = io.NopCloser(struct{ io.Reader }{req.Body}) // no ReadFrom: in pieces
		}
	})(ctx, r, u, token)
}

func byCurl(ctx context.Context, r rawCall, u *url.URL, token string) error {
	args := []string{"-sS", "--fail", "--http1.1", "-o", "/dev/null", "-X", r.method, "-H", "Authorization: Bearer " + token}
	if r.file != "" {
		args = append(args, "--data-binary", "@"+r.file, "-H", "Content-Type: application/octet-stream")
	}
	if out, err := exec.CommandContext(ctx, "curl", append(args, u.String())...).CombinedOutput(); err != nil {
		return fmt.Errorf("curl: %w: %s", err, out)
	}
	return nil
}

func sizeName(n int) string {
	switch {
	case n >= 1<<20:
		return strconv.Itoa(n>>20) + "MiB"
	case n >= 1<<10:
		return strconv.Itoa(n>>10) + "KiB"
	}
	return strconv.Itoa(n) + "B"
}
