// Package server is the HTTP API of a cove server: it authenticates, wakes the
// sprite that a request is for, and forwards to the guest inside. A guest is
// hostile: what it sends is bounded, and none of its headers, HTML or redirects
// reach the client.
package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/server/mcpserver"
	"github.com/cove-dev/cove/internal/server/sprite"
	"github.com/cove-dev/cove/internal/server/store"
	"github.com/cove-dev/cove/sprites"
)

// Bounds on requests.
const (
	maxHeader       = 1 << 20 // a command line travels in the URL
	headerTimeout   = 10 * time.Second
	bodyTimeout     = 30 * time.Second // of a JSON body
	idleTimeout     = 2 * time.Minute
	shutdownTimeout = 10 * time.Second
)

// Jobs is the server's half of jobs. Lists and events are read from the store.
// Its errors say what to answer by being a *fail.Error, a *sprites.Error, or one of the store.
type Jobs interface {
	Create(ctx context.Context, req cove.JobRequest) (cove.Job, error)
	Preview(ctx context.Context, req cove.JobRequest) (cove.JobPreview, error)
	Start(ctx context.Context, id string, req cove.JobStart) (cove.Job, error)
	Stop(ctx context.Context, id string) (cove.Job, error)
	Delete(ctx context.Context, id string, force bool) error
	Send(ctx context.Context, id string, msg cove.JobMessage) (cove.Job, error)
	Answer(ctx context.Context, id string, a cove.JobAnswer) (cove.Job, error)
	Retry(ctx context.Context, id string, how cove.JobRetry) (cove.Job, error)
	Continue(ctx context.Context, id string, how cove.JobResume) (cove.Job, error)
	Collect(ctx context.Context, req cove.JobGC, mine func(backend, sprite string) bool) (cove.JobGCResult, error)
	Pulled(ctx context.Context, id, head string) (cove.Job, error)
}

// Server serves the API. Set the exported fields before Serve, which may be
// called once.
type Server struct {
	Dir     string       // the data folder, which the caller has locked (see Lock)
	Store   *store.Store // required
	Host    *sprite.Host // required, started
	Jobs    Jobs         // nil: jobs are not available
	Logger  *slog.Logger // nil: discard
	Version string       // of cove, as /v1/version tells
	Flags   []string     // what it was started with, as server.json tells who restarts it

	// Names are host names and addresses by which the server may be called,
	// besides loopback and the address that it listens on. Requests for another
	// Host are refused: a web page could have made them.
	Names []string
	// Domain is where sprites' URLs are, NAME.Domain; "": localhost.
	Domain string

	// MaxStreams bounds the WebSockets, and those who watch the list of sprites,
	// at once; 0 means 1000. Of calls of all kinds there may be three times as
	// many. Who is not the owner may have a quarter of either.
	MaxStreams int

	// Heartbeat is how often those who watch the list of sprites hear something,
	// and for how long one may not read before it is dropped; 0 means 20 s.
	Heartbeat time.Duration

	// MCPIdle is how long an MCP session lasts without a call; 0 means half an hour.
	MCPIdle time.Duration

	once   sync.Once
	memory *memoryListener
	secret string // of the in-memory client

	ctx      context.Context // ends when Close begins
	cancel   context.CancelFunc
	http     *http.Server
	boot     principal // of the token file
	inside   principal // of the in-memory client
	calls    relayGroup
	relays   relayGroup
	visitors relayGroup
	imports  relayGroup
	rights   rights
	guests   guestPool
	lastUsed usedTokens
	mcp      mcpserver.HTTP
	messages messageBudget // of MCP clients
	loop     *http.Client  // to this very server
	visits   visits
	port     atomic.Value // string: where the server listens
	serving  sync.Mutex   // held while Serve runs
	url      string
	heads    heads
}

// init makes what Client and Serve share.
func (s *Server) init() {
	s.once.Do(func() {
		if s.Logger == nil {
			s.Logger = slog.New(slog.DiscardHandler)
		}
		s.ctx, s.cancel = context.WithCancel(context.Background())
		s.memory = newMemoryListener()
		s.secret = newSecret()
		s.inside = newPrincipal("inside", s.secret)
		s.loop = s.newLoop()
		s.mcp.Idle = s.MCPIdle
		most := cmp.Or(s.MaxStreams, 1000)
		s.calls.what, s.calls.max = "calls", 3*most
		s.relays.what, s.relays.max = "connections into sprites", most
		s.visitors.what, s.visitors.max = "visits of sprites' URLs", most // of their own: anybody may come to a public URL
		s.imports.what, s.imports.max = "imports", maxImports
		s.guests.log = s.Logger
		s.http = &http.Server{
			Handler:           s.handler(),
			ReadHeaderTimeout: headerTimeout,
			IdleTimeout:       idleTimeout,
			MaxHeaderBytes:    maxHeader,
			ErrorLog:          slog.NewLogLogger(s.Logger.Handler(), slog.LevelDebug),
			BaseContext:       func(net.Listener) context.Context { return s.ctx },
			ConnState:         s.heads.state,
		}
		s.heads.max = maxHeads
	})
}

// Client returns a client of this very server, which does not go over the
// network and may do everything. Its calls wait until Serve runs.
func (s *Server) Client() *cove.Client {
	s.init()
	return &cove.Client{Client: &sprites.Client{URL: "http://localhost", Token: s.secret, HTTPClient: s.newLoop()}}
}

// newLoop makes an HTTP client of this very server.
func (s *Server) newLoop() *http.Client {
	return &http.Client{Transport: &http.Transport{
		DialContext:        func(ctx context.Context, _, _ string) (net.Conn, error) { return s.memory.dial(ctx) },
		DisableCompression: true,
		MaxIdleConns:       8,
		IdleConnTimeout:    idleTimeout / 2,
	}}
}

// Serve serves ln until ctx ends or Close is called; it then returns nil once
// everything has ended. While it runs, the data folder holds the token of its
// owner and server.json, which tells where it listens. Calls of Client fail once
// it has returned.
func (s *Server) Serve(ctx context.Context, ln net.Listener) error {
	s.init()
	s.serving.Lock()
	defer s.serving.Unlock()
	defer func() { _ = s.memory.Close() }()
	stop := context.AfterFunc(ctx, s.cancel)
	defer stop()
	if err := s.checkNames(); err != nil {
		return errors.Join(err, ln.Close())
	}
	if err := s.publish(ln); err != nil {
		return errors.Join(err, ln.Close())
	}
	defer s.withdraw()

	failed := make(chan error, 2)
	var accepting sync.WaitGroup
	for _, l := range []net.Listener{headListener{ln, &s.heads}, s.memory} {
		accepting.Go(func() {
			if err := s.http.Serve(l); !errors.Is(err, http.ErrServerClosed) {
				failed <- err
			}
		})
	}
	var err error
	select {
	case <-s.ctx.Done():
	case err = <-failed:
		err = fmt.Errorf("serve: %w", err)
	}
	s.shutdown()
	accepting.Wait()
	return err
}

// shutdown ends all requests, WebSockets too, and waits for them.
func (s *Server) shutdown() {
	s.cancel()
	ctx, cancel := context.WithTimeout(context.Background(), shutdownTimeout)
	defer cancel()
	_ = s.mcp.Close() // never fails
	s.relays.wait()
	s.visitors.wait()
	if err := s.http.Shutdown(ctx); err != nil {
		s.Logger.Warn("some requests did not end in time", "err", err)
		_ = s.http.Close()
	}
	s.guests.close()
}

// Close makes Serve end and waits for what the server has started. Sandboxes go
// on.
func (s *Server) Close() error {
	s.init()
	s.cancel()
	s.serving.Lock() // once Serve has returned
	defer s.serving.Unlock()
	return s.memory.Close()
}
