// Package server is the HTTP API of a cove server. It authenticates a request, wakes the
// sprite that the request is for, and forwards to the guest inside. A guest is hostile: its
// answers are bounded, and none of its headers, HTML or redirects reach the client.
//
// Server listens and ends. Its api (api.go) decides who answers a request. The table of routes
// (routes.go) names a group for each route: a type such as tokenRoutes, in the file of its
// name. The groups share these: hostnames, access and rights, labelRights, refusals, quotas,
// and the guestPool.
package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/lib/datafolder"
	"github.com/cove-dev/cove/internal/lib/private"
	"github.com/cove-dev/cove/internal/server/image"
	"github.com/cove-dev/cove/internal/server/sprite"
	"github.com/cove-dev/cove/internal/server/store"
	"github.com/cove-dev/cove/internal/server/webhook"
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
// An error that is a *fail.Error, a *sprites.Error, or one of the store says what to answer.
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
	Publish(ctx context.Context, id string) (cove.Job, error)
	Diff(ctx context.Context, id, part, by string) (diff cove.JobDiff, done func(), err error)
	DestroyEnvironment(ctx context.Context, id string, force bool) (cove.Environment, error)
	Orphans(ctx context.Context) (orphans []cove.Orphan, unheard map[string]error, err error)
	DestroyOrphan(ctx context.Context, o cove.Orphan) error
}

// Server serves the API. Set the exported fields before Serve, which may be
// called once.
type Server struct {
	Dir     string       // the data folder, which the caller has locked (see Lock)
	Store   *store.Store // required
	Host    *sprite.Host // required, started
	Jobs    Jobs         // nil: jobs are not available
	Images  *image.Store // nil: sprites start from this machine's own programs alone
	Logger  *slog.Logger // nil: discard
	Version string       // of cove, as /v1/version tells
	Flags   []string     // its flags, which server.json tells a person who restarts it

	// Names are host names and addresses that clients may call the server by, besides loopback
	// and the address that it listens on. Requests for another Host are refused: a web page
	// could have made them.
	Names []string
	// DefaultImage is the image of new sprites that name none; "": this machine's tools.
	DefaultImage string
	// Domain is where sprites' URLs are, http://NAME.Domain with the server's port; "": localhost. As a URL, such as
	// https://sprites.example.org, it says where a proxy takes the requests: then they are https://NAME.sprites.example.org.
	Domain string

	// MaxStreams bounds how many WebSockets and watches of the list of sprites are open at
	// once; 0 means 1000. Of calls of all kinds there may be three times as many. Each caller
	// but the owner may have a quarter of either.
	MaxStreams int

	// Heartbeat is how often a watch of the list of sprites hears something; 0 means 20 s. A
	// watch that does not read for as long is dropped. Sockets (GET /v1/ws) are pinged as
	// often, and dropped after twice that time; 0 means 15 s.
	Heartbeat time.Duration

	// MCPIdle is how long an MCP session lasts without a call; 0 means half an hour.
	MCPIdle time.Duration

	once    sync.Once
	memory  *memoryListener
	secret  string          // of the in-memory client
	ctx     context.Context // ends when Close begins
	cancel  context.CancelFunc
	serving sync.Mutex                // held while Serve runs
	hosts   atomic.Pointer[hostnames] // nil: it does not listen yet
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
	secret, err := ownerToken(filepath.Join(s.Dir, datafolder.TokenFile))
	if err != nil {
		return errors.Join(err, ln.Close())
	}
	folder, err := private.FolderID(s.Dir)
	if err != nil {
		return errors.Join(err, ln.Close())
	}
	hosts := newHostnames(s.Names, s.Domain, ln.Addr(), secret, folder)
	if err := hosts.check(); err != nil {
		return errors.Join(err, ln.Close())
	}
	if err := s.Store.WebSessions.Settle(context.WithoutCancel(ctx), folder); err != nil {
		return errors.Join(err, ln.Close())
	}
	info, err := publish(sprites.ServerInfo{Version: s.Version, Data: s.Dir, PID: os.Getpid(), DefaultImage: s.DefaultImage}, ln.Addr(), s.Flags)
	if err != nil {
		return errors.Join(err, ln.Close())
	}
	defer func() {
		if err := withdraw(s.Dir); err != nil {
			s.Logger.Warn("removing server.json", "err", err)
		}
	}()
	s.hosts.Store(hosts)
	sender := &webhook.Sender{Store: s.Store.Webhooks, Secret: s.Store.Secrets.Value, Logger: s.Logger}
	sender.Start(s.ctx)
	defer func() { _ = sender.Close() }() // which never fails
	api := s.newAPI(hosts, info, secret, sender)

	heads := &heads{max: maxHeads}
	web := &http.Server{
		Handler:           api.handler(),
		ReadHeaderTimeout: headerTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeader,
		ErrorLog:          slog.NewLogLogger(s.Logger.Handler(), slog.LevelDebug),
		BaseContext:       func(net.Listener) context.Context { return s.ctx },
		ConnState:         heads.state,
	}
	failed := make(chan error, 2)
	var accepting sync.WaitGroup
	for _, l := range []net.Listener{headListener{ln, heads}, s.memory} {
		accepting.Go(func() {
			if err := web.Serve(l); !errors.Is(err, http.ErrServerClosed) {
				failed <- err
			}
		})
	}
	select {
	case <-s.ctx.Done():
	case err = <-failed:
		err = fmt.Errorf("serve: %w", err)
	}
	s.shutdown(web, api)
	accepting.Wait()
	return err
}

// shutdown ends all requests, WebSockets too, and waits for them.
func (s *Server) shutdown(web *http.Server, api *api) {
	s.cancel()
	ctx, cancel := context.WithTimeout(context.Background(), shutdownTimeout)
	defer cancel()
	api.end()
	if err := web.Shutdown(ctx); err != nil {
		s.Logger.Warn("some requests did not end in time", "err", err)
		_ = web.Close()
	}
	api.close()
}

// SpriteURL is where a sprite's HTTP service is reached, or "" before the server
// listens.
func (s *Server) SpriteURL(name string) string {
	hosts := s.hosts.Load()
	if hosts == nil {
		return ""
	}
	return hosts.spriteURL(name)
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
