package mcpserver

import (
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cove-dev/cove/internal/lib/fail"
)

const (
	defaultIdle = 30 * time.Minute
	defaultMost = 64

	sessionHeader = "Mcp-Session-Id"
	postHeader    = "Cove-Post" // names the request that a call came with; the client's own is not heeded
)

// HTTP serves MCP's streamable HTTP transport to many callers. Its fields are set
// before Serve; Close ends all sessions.
type HTTP struct {
	Idle time.Duration // after which a session without calls ends; 0: half an hour
	Most int           // sessions of one caller; one more ends the one unused for longest; 0: 64

	once sync.Once
	sdk  *mcp.StreamableHTTPHandler
	wg   sync.WaitGroup

	mu       sync.Mutex
	closed   bool
	sessions map[string]*httpSession // by id
}

// A Caller is the client that a request comes from.
type Caller struct {
	Name string // a session is its caller's alone

	// Open begins a session. It returns the session's server, and a context that ends when
	// the caller loses the right to it. release is called when the session is over.
	Open func() (server *Server, ctx context.Context, release func(), err error)
}

// httpSession is one client's. It ends when its context does.
type httpSession struct {
	id, caller string
	server     *Server
	sdk        *mcp.Server
	ctx        context.Context
	cancel     context.CancelFunc
	release    func()
	begun      chan struct{} // closed when the request that it began with is over

	// Guarded by HTTP's mu.
	posts map[string]context.Context // those under way
	used  time.Time
	idle  *time.Timer
}

type httpSessionKey struct{}

func (h *HTTP) init() {
	h.once.Do(func() {
		h.sessions = map[string]*httpSession{}
		h.sdk = mcp.NewStreamableHTTPHandler(func(r *http.Request) *mcp.Server {
			return r.Context().Value(httpSessionKey{}).(*httpSession).sdk
		}, &mcp.StreamableHTTPOptions{
			DisableLocalhostProtection: true, // the caller of Serve has looked at the Host
			MaxRequestBodyBytes:        -1,   // and has read the body
		})
	})
}

// Serve answers a GET, POST or DELETE. The caller has bounded the request's body. An error
// is a *fail.Error or one of caller.Open; nothing has been written then.
func (h *HTTP) Serve(w http.ResponseWriter, r *http.Request, caller Caller) error {
	h.init()
	id := r.Header.Get(sessionHeader)
	if id == "" && r.Method != http.MethodPost {
		return fail.New("bad_request", "the request has no header "+sessionHeader, "a session begins with a POST of initialize")
	}
	var s *httpSession
	var err error
	if id == "" {
		if s, err = h.begin(caller); err != nil {
			return err
		}
		defer h.initialized(s)
	} else if s = h.find(id, caller.Name); s == nil {
		return errNoSession
	}
	if r.Method == http.MethodDelete {
		h.drop(s)
		w.WriteHeader(http.StatusNoContent)
		return nil
	}
	ctx, cancel := both(context.WithValue(r.Context(), httpSessionKey{}, s), s.ctx)
	defer cancel()
	r = r.WithContext(ctx)
	if r.Method == http.MethodPost {
		r.Header = r.Header.Clone()
		r.Header.Set(postHeader, h.use(ctx, s))
		defer h.unuse(s, r.Header.Get(postHeader))
	}
	answer := &noting{ResponseWriter: w}
	h.sdk.ServeHTTP(answer, r)
	if !answer.wrote && s.ctx.Err() != nil {
		return errNoSession
	}
	return nil
}

// errNoSession is answered with 404: a client then knows that it must begin another session.
var errNoSession = fail.New("session_not_found", "there is no such MCP session, or it has ended", "begin another session")

// noting notes whether anything was written.
type noting struct {
	http.ResponseWriter
	wrote bool
}

func (n *noting) WriteHeader(status int) {
	n.wrote = true
	n.ResponseWriter.WriteHeader(status)
}

func (n *noting) Write(p []byte) (int, error) {
	n.wrote = true
	return n.ResponseWriter.Write(p)
}

// Unwrap is for http.ResponseController.
func (n *noting) Unwrap() http.ResponseWriter { return n.ResponseWriter }

// begin makes a session, for which the SDK's half is yet to come.
func (h *HTTP) begin(caller Caller) (*httpSession, error) {
	server, ctx, release, err := caller.Open()
	if err != nil {
		return nil, err
	}
	s := &httpSession{
		id: rand.Text(), caller: caller.Name, server: server, release: release,
		begun: make(chan struct{}), posts: map[string]context.Context{}, used: time.Now(),
	}
	s.ctx, s.cancel = context.WithCancel(ctx)
	if s.sdk, err = server.start(s.ctx, func() string { return s.id }, h.postOf(s)); err == nil {
		err = h.add(s)
	}
	if err != nil {
		s.cancel()
		release()
		return nil, err
	}
	return s, nil
}

// add adds a session. If its caller has as many as it may, add ends the one that was unused
// for longest.
func (h *HTTP) add(s *httpSession) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return fail.New("unavailable", "the server is shutting down", "")
	}
	count, most := 0, cmp.Or(h.Most, defaultMost)
	var oldest *httpSession
	for _, other := range h.sessions {
		if other.caller != s.caller {
			continue
		}
		count++
		if len(other.posts) == 0 && (oldest == nil || other.used.Before(oldest.used)) {
			oldest = other
		}
	}
	if count >= most {
		if oldest == nil {
			return fail.New("limit", fmt.Sprintf("%d MCP sessions of this token are in use, and the server allows no more", count), "end some, or try again later")
		}
		h.forget(oldest)
	}
	h.sessions[s.id] = s
	idle := cmp.Or(h.Idle, defaultIdle)
	s.idle = time.AfterFunc(idle, func() { h.expire(s, idle) })
	h.wg.Go(func() { h.attend(s) })
	return nil
}

// attend clears away behind a session.
func (h *HTTP) attend(s *httpSession) {
	<-s.ctx.Done()
	h.drop(s)
	<-s.begun // the SDK has made its session, if it ever will
	for session := range s.sdk.Sessions() {
		_ = session.Close() // its calls have ended with the context
	}
	s.server.end()
	s.idle.Stop()
	s.release()
}

// initialized is called when the request that a session began with is over. One that
// was not initialized by it never will be.
func (h *HTTP) initialized(s *httpSession) {
	close(s.begun)
	for range s.sdk.Sessions() {
		return
	}
	h.drop(s)
}

func (h *HTTP) find(id, caller string) *httpSession {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := h.sessions[id]
	if s == nil || s.caller != caller || s.ctx.Err() != nil {
		return nil
	}
	return s
}

// drop ends a session. It may have ended.
func (h *HTTP) drop(s *httpSession) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.forget(s)
}

// forget is drop with mu held.
func (h *HTTP) forget(s *httpSession) {
	delete(h.sessions, s.id)
	s.cancel()
}

// expire ends a session that has been idle for long enough, or looks again.
func (h *HTTP) expire(s *httpSession, idle time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(s.posts) > 0 {
		return // the last one's end starts the timer
	}
	if left := idle - time.Since(s.used); left > 0 {
		s.idle.Reset(left)
		return
	}
	h.forget(s)
}

// use notes a POST, and gives it a name.
func (h *HTTP) use(ctx context.Context, s *httpSession) string {
	h.mu.Lock()
	defer h.mu.Unlock()
	name := rand.Text()
	s.posts[name] = ctx
	return name
}

func (h *HTTP) unuse(s *httpSession, name string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(s.posts, name)
	s.used = time.Now()
	if len(s.posts) == 0 {
		s.idle.Reset(cmp.Or(h.Idle, defaultIdle))
	}
}

// postOf finds the context of the request that a call came with. If that request has ended,
// the context has ended, too: nobody would read the answer.
func (h *HTTP) postOf(s *httpSession) func(mcp.Request) context.Context {
	over, cancel := context.WithCancel(context.Background())
	cancel()
	return func(req mcp.Request) context.Context {
		h.mu.Lock()
		defer h.mu.Unlock()
		if extra := req.GetExtra(); extra != nil {
			if ctx := s.posts[extra.Header.Get(postHeader)]; ctx != nil {
				return ctx
			}
		}
		return over
	}
}

// Close ends all sessions, and waits for them. Serve refuses from then on.
func (h *HTTP) Close() error {
	h.mu.Lock()
	h.closed = true
	for _, s := range h.sessions {
		h.forget(s)
	}
	h.mu.Unlock()
	h.wg.Wait()
	return nil
}
