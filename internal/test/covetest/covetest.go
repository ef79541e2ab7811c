// Package covetest runs a whole server in-process, for tests: a real store, a real HTTP
// server on loopback, and a runtime of the test's choice.
package covetest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/server"
	"github.com/cove-dev/cove/internal/server/sprite"
	"github.com/cove-dev/cove/internal/server/store"
	"github.com/cove-dev/cove/sprites"
)

// Options are a test's choices. The zero value is a server without jobs over an InProcess
// runtime.
type Options struct {
	Dir     string         // data folder; empty: a temporary one
	Runtime sprite.Runtime // nil: an InProcess runtime of the test's own
	Idle    time.Duration  // until an unused sprite sleeps; 0: never
	Host    *sprite.Host   // nil: one of the above; else its Store and Runtime are set
	Log     io.Writer      // nil: the test's own log
	Listen  string         // the address; empty: any port of loopback

	// Jobs makes the server's half of jobs; nil: none. stop is called before the
	// server ends.
	Jobs func(st *store.Store, client *cove.Client) (jobs server.Jobs, stop func() error, err error)

	// Configure, if not nil, is called before the server serves.
	Configure func(*server.Server)
}

// Server is a running server.
type Server struct {
	URL     string
	Token   string // of the owner
	Dir     string
	Store   *store.Store
	Host    *sprite.Host
	Runtime sprite.Runtime
	Server  *server.Server

	t    testing.TB
	stop func() error
}

// Start starts a server, which the test's cleanup stops. Sandboxes of the
// InProcess runtime that Start made end with it.
func Start(t testing.TB, opts Options) *Server {
	t.Helper()
	s, err := start(t, opts)
	if err != nil {
		t.Fatalf("start a server: %v", err)
	}
	return s
}

func start(t testing.TB, opts Options) (*Server, error) {
	if opts.Dir == "" {
		opts.Dir = t.TempDir()
	}
	if opts.Runtime == nil {
		rt := &InProcess{Dir: t.TempDir()}
		opts.Runtime = rt
		t.Cleanup(func() {
			if err := rt.Close(); err != nil {
				t.Errorf("end the sandboxes: %v", err)
			}
		})
	}
	if opts.Log == nil {
		opts.Log = t.Output()
	}
	logger := slog.New(slog.NewTextHandler(opts.Log, &slog.HandlerOptions{Level: slog.LevelDebug}))

	lock, err := server.Lock(t.Context(), opts.Dir, nil)
	if err != nil {
		return nil, err
	}
	undo := []func() error{lock.Close}
	s := &Server{Dir: opts.Dir, Runtime: opts.Runtime, t: t}
	s.stop = func() error {
		var errs error
		for len(undo) > 0 {
			last := len(undo) - 1
			errs = errors.Join(errs, undo[last]())
			undo = undo[:last]
		}
		return errs
	}
	t.Cleanup(s.Stop)
	ctx := context.WithoutCancel(t.Context())

	if s.Store, err = store.Open(ctx, filepath.Join(opts.Dir, "cove.db")); err != nil {
		return nil, err
	}
	undo = append(undo, s.Store.Close)
	if s.Host = opts.Host; s.Host == nil {
		s.Host = &sprite.Host{IdleDefault: opts.Idle}
	}
	s.Server = &server.Server{Dir: opts.Dir, Store: s.Store, Host: s.Host, Logger: logger, Version: "test"}
	s.Host.Store, s.Host.Runtime, s.Host.Logger, s.Host.URL = s.Store, opts.Runtime, logger, s.Server.SpriteURL
	if err := s.Host.Start(ctx); err != nil {
		return nil, err
	}
	undo = append(undo, s.Host.Close)
	if opts.Configure != nil {
		opts.Configure(s.Server)
	}
	var stopJobs func() error
	if opts.Jobs != nil {
		if s.Server.Jobs, stopJobs, err = opts.Jobs(s.Store, s.Server.Client()); err != nil {
			return nil, err
		}
	}
	ln, err := net.Listen("tcp", cmp.Or(opts.Listen, "127.0.0.1:0"))
	if err != nil {
		return nil, err
	}
	served := make(chan error, 1)
	go func() { served <- s.Server.Serve(ctx, ln) }()
	undo = append(undo, func() error { return errors.Join(s.Server.Close(), <-served) })
	if stopJobs != nil {
		undo = append(undo, stopJobs)
	}
	s.URL = "http://" + ln.Addr().String()
	return s, s.readToken()
}

// Address returns an address of loopback for servers that listen there one after the other. Nobody
// else can listen there until the test ends.
func Address(t testing.TB) string {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	// The kernel chooses no port for others that a socket is bound to. With this option a server can
	// listen at the port all the same: this socket does not.
	err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
	if err == nil {
		err = unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}})
	}
	if err != nil {
		t.Fatal(err)
	}
	at, err := unix.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("127.0.0.1:%d", at.(*unix.SockaddrInet4).Port)
}

// readToken waits for the server's first answer, and then for the token's file,
// which is there by then.
func (s *Server) readToken() error {
	if _, err := s.Server.Client().Version(s.t.Context()); err != nil {
		return err
	}
	text, err := os.ReadFile(filepath.Join(s.Dir, "token"))
	s.Token = strings.TrimSpace(string(text))
	return err
}

// Stop stops the server; the sandboxes live on. It may be called more than once.
func (s *Server) Stop() {
	if err := s.stop(); err != nil {
		s.t.Errorf("stop the server: %v", err)
	}
}

// Kill is Stop, as similar to a kill as possible. The store is closed first, so that nothing is
// stored which the server does at its end, or because of it. Errors are ignored. The caller
// cuts the server's connections to others before. Afterwards the data folder is free for
// another server.
func (s *Server) Kill() {
	_ = s.Store.Close()
	_ = s.stop()
}

// Client returns a client with the owner's token.
func (s *Server) Client() *cove.Client {
	return &cove.Client{Client: &sprites.Client{URL: s.URL, Token: s.Token}}
}

// Create makes a sprite, and returns a handle on it.
func (s *Server) Create(name string) *sprites.Sprite {
	s.t.Helper()
	if _, err := s.Client().Create(s.t.Context(), sprites.CreateRequest{Name: name}); err != nil {
		s.t.Fatal(err)
	}
	return s.Client().Sprite(name)
}
