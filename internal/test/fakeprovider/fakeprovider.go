// Package fakeprovider is a hosted service for tests that speaks the Sprites protocol and is
// not a cove. An in-process cove server does its work; callers see only the public protocol
// of that server. The service counts and keeps all calls, and fails them by rule.
package fakeprovider

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
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/coder/websocket"
)

// maxKept is how much of a call's body is kept.
const maxKept = 1 << 20

// Call is a call as it was received.
type Call struct {
	Method, URI string // the URI has the query
	Header      http.Header
	Body        []byte // at most the first MiB of the bytes read
}

// String is the method and the path, without the query.
func (c Call) String() string {
	path, _, _ := strings.Cut(c.URI, "?")
	return c.Method + " " + path
}

// Fault says how some calls fail. Its fields apply to all calls that match.
type Fault struct {
	Call  string // a regular expression for "METHOD URI"
	After int    // so many calls that match go well first
	Times int    // so many fail then; 0: all of them

	Status int         // is answered, and nothing is done; 0: the call is carried out
	Header http.Header // of that answer
	Body   string      // of that answer

	Lost       bool            // it is carried out, and the connection cut before the answer
	Late       <-chan struct{} // the call is carried out once this is closed, and not answered. If Lost, the caller is cut off at once. nil: carried out at once
	CutRequest int64           // the connection is cut after so many bytes of the body came; 0: never
	CutAnswer  int64           // the connection is cut after so many bytes of the answer; 0: never
	Pace       <-chan struct{} // a chunk of the request's body is read for each value; nil: at once
	Silent     bool            // a WebSocket is accepted, and never says anything
}

// Provider is the service. Its methods may be called from any goroutine.
type Provider struct {
	URL   string
	Token string // callers must send it

	filter http.Handler
	inner  string // the token of the server behind it
	page   int
	ended  chan struct{}
	late   sync.WaitGroup // calls that are carried out when nobody waits any more

	mu     sync.Mutex
	calls  []Call
	faults []*fault
	down   bool
	conns  []net.Conn
}

// listener records the connections, those of WebSockets too.
type listener struct {
	net.Listener
	provider *Provider
}

func (l listener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err == nil {
		l.provider.mu.Lock()
		defer l.provider.mu.Unlock()
		l.provider.conns = append(l.provider.conns, conn)
	}
	return conn, err
}

// Cut cuts all connections, those of WebSockets too.
func (p *Provider) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, conn := range p.conns {
		_ = conn.Close() // it may be closed already
	}
	p.conns = nil
}

type fault struct {
	Fault
	re   *regexp.Regexp
	seen int
}

// Start starts a service before the cove server with the given URL and token. Lists have
// pages of two sprites. The test's cleanup ends it.
func Start(t testing.TB, server, token string) *Provider {
	t.Helper()
	target, err := url.Parse(server)
	if err != nil {
		t.Fatal(err)
	}
	p := &Provider{Token: "the-providers-own-token", filter: ProtocolOnly(t, target), inner: token, page: 2, ended: make(chan struct{})}
	s := httptest.NewUnstartedServer(p)
	s.Listener = listener{s.Listener, p}
	s.Start()
	t.Cleanup(func() {
		close(p.ended)
		p.Cut()
		s.Close()
		p.late.Wait()
	})
	p.URL = s.URL
	return p
}

// Add adds a fault. If several match a call, the first applies.
func (p *Provider) Add(f Fault) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.faults = append(p.faults, &fault{Fault: f, re: regexp.MustCompile(f.Call)})
}

// Clear ends all faults.
func (p *Provider) Clear() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.faults = nil
}

// SetToken changes the token that callers must send, and cuts all connections.
func (p *Provider) SetToken(token string) {
	p.mu.Lock()
	p.Token = token
	p.mu.Unlock()
	p.Cut()
}

// SetDown cuts all connections if it is given true, and then each new one before it is answered.
// SetDown(false) ends that.
func (p *Provider) SetDown(down bool) {
	p.mu.Lock()
	p.down = down
	p.mu.Unlock()
	p.Cut()
}

// DownAfter is SetDown(true) once f has returned. No call begins meanwhile, so calls that a
// caller makes because of f do not get through.
func (p *Provider) DownAfter(f func()) {
	p.mu.Lock()
	f()
	p.down = true
	p.mu.Unlock()
	p.Cut()
}

// Calls returns all calls so far whose "METHOD URI" matches a regular expression, in
// order.
func (p *Provider) Calls(match string) []Call {
	re := regexp.MustCompile(match)
	p.mu.Lock()
	defer p.mu.Unlock()
	var all []Call
	for _, c := range p.calls {
		if re.MatchString(c.Method + " " + c.URI) {
			all = append(all, c)
		}
	}
	return all
}

// begin records a call, and returns the fault that applies to it.
func (p *Provider) begin(r *http.Request) (i int, f Fault) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.calls = append(p.calls, Call{Method: r.Method, URI: r.URL.RequestURI(), Header: r.Header.Clone()})
	i = len(p.calls) - 1
	if p.down {
		panic(http.ErrAbortHandler)
	}
	if r.Header.Get("Authorization") != "Bearer "+p.Token {
		return i, Fault{Status: http.StatusUnauthorized, Body: `{"error":"unauthorized"}`}
	}
	for _, f := range p.faults {
		if !f.re.MatchString(r.Method + " " + r.URL.RequestURI()) {
			continue
		}
		if f.seen++; f.seen > f.After && (f.Times == 0 || f.seen <= f.After+f.Times) {
			return i, f.Fault
		}
	}
	return i, Fault{}
}

// ServeHTTP serves a call.
func (p *Provider) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	i, f := p.begin(r)
	r.Body = &body{ReadCloser: r.Body, provider: p, call: i, fault: f}
	switch {
	case f.Status != 0:
		for name, values := range f.Header {
			w.Header()[name] = values
		}
		if w.Header().Get("Content-Type") == "" {
			w.Header().Set("Content-Type", "application/json")
		}
		w.WriteHeader(f.Status)
		_, _ = io.WriteString(w, f.Body) // the caller may be gone
		return
	case f.Silent:
		silent(w, r)
		return
	}
	r.Header.Set("Authorization", "Bearer "+p.inner)
	if q := r.URL.Query(); r.Method == http.MethodGet && r.URL.Path == "/v1/sprites" {
		q.Set("max_results", fmt.Sprint(p.page))
		r.URL.RawQuery = q.Encode()
	}
	switch {
	case f.Late != nil:
		p.postpone(r, f)
		panic(http.ErrAbortHandler)
	case f.Lost || f.CutAnswer > 0:
		answer := httptest.NewRecorder()
		p.filter.ServeHTTP(answer, r)
		if f.CutAnswer > 0 {
			w.Header().Set("Content-Length", fmt.Sprint(answer.Body.Len()))
			w.WriteHeader(answer.Code)
			_, _ = io.CopyN(w, answer.Body, f.CutAnswer)
			_ = http.NewResponseController(w).Flush()
		}
		panic(http.ErrAbortHandler)
	default:
		p.filter.ServeHTTP(w, r)
	}
}

// postpone has a call carried out late. It returns once the caller is gone, or must be cut off.
func (p *Provider) postpone(r *http.Request, f Fault) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return // of half a call nothing comes
	}
	call := r.Clone(context.WithoutCancel(r.Context()))
	call.Body = io.NopCloser(bytes.NewReader(body))
	p.late.Go(func() {
		defer func() {
			if v := recover(); v != nil && v != http.ErrAbortHandler { //nolint:errorlint // it is the value itself
				panic(v)
			}
		}()
		select {
		case <-f.Late:
			p.filter.ServeHTTP(httptest.NewRecorder(), call)
		case <-p.ended:
		}
	})
	if !f.Lost {
		<-r.Context().Done()
	}
}

// CarryOut waits until the late calls have been carried out.
func (p *Provider) CarryOut() { p.late.Wait() }

// silent accepts a WebSocket, and says nothing until the caller is gone.
func silent(w http.ResponseWriter, r *http.Request) {
	conn, err := websocket.Accept(w, r, &websocket.AcceptOptions{InsecureSkipVerify: true})
	if err != nil {
		return
	}
	defer func() { _ = conn.CloseNow() }()
	<-conn.CloseRead(r.Context()).Done()
}

// errCut is the error of reading a request's body that was cut.
var errCut = errors.New("the connection was cut")

// body is a request's body. It records the bytes read.
type body struct {
	io.ReadCloser
	provider *Provider
	call     int
	fault    Fault
	read     int64
}

func (b *body) Read(p []byte) (int, error) {
	if cut := b.fault.CutRequest; cut > 0 {
		if b.read >= cut {
			return 0, errCut
		}
		p = p[:min(int64(len(p)), cut-b.read)]
	}
	if b.fault.Pace != nil {
		<-b.fault.Pace
	}
	n, err := b.ReadCloser.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		err = errCut // the sender cut it
	}
	b.read += int64(n)
	b.provider.mu.Lock()
	defer b.provider.mu.Unlock()
	if c := &b.provider.calls[b.call]; len(c.Body) < maxKept { // slices that Calls has returned do not change
		c.Body = append(bytes.Clone(c.Body), p[:min(n, maxKept-len(c.Body))]...)
	}
	return n, err
}
