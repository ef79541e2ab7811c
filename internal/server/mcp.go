package server

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/server/mcpserver"
	"github.com/cove-dev/cove/internal/server/sprite"
	"github.com/cove-dev/cove/sprites"
)

// mcpRoutes offers the tools of internal/server/mcpserver to clients over HTTP. They act
// through this very API, with the client's own token.
type mcpRoutes struct {
	access *access
	loop   *http.Client    // to this very server
	ending context.Context // ends when the server begins to end

	sessions mcpserver.HTTP
	messages messageBudget
}

// close ends all sessions.
func (g *mcpRoutes) close() { _ = g.sessions.Close() } // which never fails

// Bounds on what MCP clients send, and are answered. A message is held as long as its
// call takes, and the answer until the client has read it.
const (
	maxMCPMessage = 16 << 20
	maxMCPBytes   = 256 << 20 // of all messages at once; of one token's: a quarter
)

// serve answers a client's request, which begins, uses or ends a session.
func (g *mcpRoutes) serve(w http.ResponseWriter, r *http.Request) error {
	p := principalOf(r)
	if r.Method == http.MethodPost {
		size := r.ContentLength
		if size < 0 || size > maxMCPMessage {
			size = maxMCPMessage
		}
		done, err := g.messages.take(p.name, size)
		if err != nil {
			return err
		}
		defer done()
		body, err := readBody(w, r, maxMCPMessage)
		if err != nil {
			return err
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		answers := heldAnswers{budget: &g.messages, name: p.name}
		defer answers.release()
		r = r.WithContext(mcpserver.WithHold(r.Context(), answers.hold))
	}
	return g.sessions.Serve(w, r, mcpserver.Caller{Name: p.name, Open: func() (*mcpserver.Server, context.Context, func(), error) {
		server, err := g.session(r, p)
		if err != nil {
			return nil, nil, nil, err
		}
		_, ctx, release, err := g.access.rights.hold(g.ending, func() (principal, error) { return g.access.authenticate(r) })
		return server, ctx, release, err
	}})
}

// session is the MCP server for a client: the query limits what the token reaches.
func (g *mcpRoutes) session(r *http.Request, p principal) (*mcpserver.Server, error) {
	q := r.URL.Query()
	for key := range q {
		if !slices.Contains([]string{"sprite", "prefix", "role", "dir"}, key) {
			return nil, fail.New(sprite.CodeBadRequest, fmt.Sprintf("the query has %.40q; it can have sprite, prefix, role and dir", key), "")
		}
	}
	if p.scope.Profile != "" {
		return nil, fail.New("forbidden", "the token is for the jobs of the profile "+p.scope.Profile+", and not for these tools", "use one for a sprite or a prefix")
	}
	within := mcpserver.Bound{Sprite: p.scope.Sprite, Prefix: p.scope.Prefix}
	within, ok := within.Narrow(mcpserver.Bound{Sprite: q.Get("sprite"), Prefix: q.Get("prefix")})
	if !ok {
		return nil, fail.New("forbidden", "the token does not reach these sprites", "")
	}
	roles := q["role"]
	if roles == nil {
		roles = []string{mcpserver.Full}
	}
	if _, err := mcpserver.ParseRole(roles...); err != nil {
		return nil, fail.New(sprite.CodeBadRequest, err.Error(), "")
	}
	_, secret, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	client := &cove.Client{Client: &sprites.Client{URL: "http://localhost", Token: strings.TrimSpace(secret), HTTPClient: g.loop}}
	return &mcpserver.Server{Client: client, Within: within, Dir: q.Get("dir"), Roles: roles, Verbs: p.verbs}, nil
}

// heldAnswers counts the bytes of a request's answers while they are in memory.
type heldAnswers struct {
	budget *messageBudget
	name   string

	mu    sync.Mutex
	done  []func()
	ended bool // the request
}

// hold counts more, until release.
func (h *heldAnswers) hold(size int64) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.ended {
		return context.Canceled
	}
	done, err := h.budget.take(h.name, size)
	if err == nil {
		h.done = append(h.done, done)
	}
	return err
}

func (h *heldAnswers) release() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ended = true
	for _, done := range h.done {
		done()
	}
}

// messageBudget counts the bytes of requests and answers in memory, in all and for each token.
type messageBudget struct {
	mu    sync.Mutex
	all   int64
	whose map[string]int64
}

// take counts more, until done is called.
func (h *messageBudget) take(name string, size int64) (done func(), err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.whose[name]+size > maxMCPBytes/4 || h.all+size > maxMCPBytes {
		return nil, fail.New("limit", "the server has no room for more answers", "try again later")
	}
	if h.whose == nil {
		h.whose = map[string]int64{}
	}
	h.all += size
	h.whose[name] += size
	return func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.all -= size
		if h.whose[name] -= size; h.whose[name] == 0 {
			delete(h.whose, name)
		}
	}, nil
}
