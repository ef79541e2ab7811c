package guest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/cove-dev/cove/internal/guest/wire"
	"github.com/cove-dev/cove/internal/lib/boot"
	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/sprites"
)

// localRoutes are the calls that programs in the sprite may make at the socket, without a
// token. Programs inside could do all of it by other means, too.
func (s *Server) localRoutes() http.Handler {
	mux := http.NewServeMux()
	for pattern, h := range s.services.Routes(true) {
		mux.Handle(pattern, h)
	}
	for pattern, h := range s.tasks.routes() {
		mux.Handle(pattern, h)
	}
	for _, elsewhere := range []string{"/v1/checkpoint", "/v1/checkpoints", "/v1/checkpoints/", "/v1/policy/", "/v1/git/"} {
		mux.Handle(elsewhere, wire.Handler(func(http.ResponseWriter, *http.Request) error {
			return fail.New("not_available", "This is not available from inside the sprite.", "")
		}))
	}
	mux.Handle("GET /v1/info", wire.Handler(s.getInfo))
	mux.Handle("GET /v1/generation", wire.Handler(s.generation.getCurrent))
	mux.Handle("GET /v1/memory/kills", wire.Handler(s.sessions.memory.get))
	mux.Handle("/", wire.Handler(func(_ http.ResponseWriter, r *http.Request) error {
		return fail.New("not_found", "There is nothing at "+r.URL.Path+".", "")
	}))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Sprite-Version", sprites.Version)
		mux.ServeHTTP(w, r)
	})
}

// localInfo answers GET /v1/info.
type localInfo struct {
	Name        string `json:"name"`
	Version     string `json:"version"`
	Incarnation int64  `json:"incarnation"`
	URL         string `json:"sprite_url,omitempty"`
}

func (s *Server) getInfo(w http.ResponseWriter, _ *http.Request) error {
	name, err := os.Hostname()
	if err != nil {
		return err
	}
	return wire.Respond(w, localInfo{Name: name, Version: sprites.Version, Incarnation: s.who().incarnation, URL: s.who().env["SPRITE_URL"]})
}

// ServeLocal serves the socket api.sock in Dir to programs in the sprite, until
// ctx ends. An old file of that name is removed.
func (s *Server) ServeLocal(ctx context.Context) error {
	s.init()
	if err := os.MkdirAll(s.Dir, 0o755); err != nil {
		return err
	}
	name := filepath.Join(s.Dir, boot.Socket)
	if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	ln, err := (&net.ListenConfig{}).Listen(ctx, "unix", name)
	if err != nil {
		return err
	}
	// Services run as the sprite's user. Another user, with fewer rights, must not run
	// programs through them. Root may use the socket anyway.
	owner, _ := s.sessions.commands.users.Lookup(s.User)
	if err := errors.Join(os.Chown(name, int(owner.UID), -1), os.Chmod(name, 0o600)); err != nil {
		return errors.Join(err, ln.Close())
	}
	web := &http.Server{
		Handler:           s.localRoutes(),
		ReadHeaderTimeout: time.Minute,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    64 << 10,
		ErrorLog:          log.New(io.Discard, "", 0),
	}
	end := context.AfterFunc(ctx, func() { _ = web.Close() })
	defer end()
	if err := web.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve %s: %w", name, err)
	}
	return nil
}
