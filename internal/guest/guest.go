// Package guest is the program that runs inside a sandbox. It starts and ends commands, reads
// and writes files, and connects to ports. It serves the per-sprite part of the Sprites
// protocol at in-sprite paths (/v1/exec, /v1/fs/…, /v1/ports/watch). Init makes it the first
// process of a sandbox; Server alone runs anywhere, which is how it is tested.
//
// A caller that has proved at the Door that it holds the token may do anything inside the
// sandbox. So the package protects nothing from a caller but the guest's own memory and life.
// Every document is bounded, every stream has backpressure, and sessions are counted.
package guest

import (
	"cmp"
	"log/slog"
	"maps"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cove-dev/cove/internal/guest/files"
	"github.com/cove-dev/cove/internal/guest/ports"
	"github.com/cove-dev/cove/internal/guest/services"
	"github.com/cove-dev/cove/internal/guest/users"
	"github.com/cove-dev/cove/internal/guest/wire"
	"github.com/cove-dev/cove/internal/lib/boot"
	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/sprites"
)

// Limits of what the guest holds for callers.
const (
	maxSessions    = 512  // running commands
	maxClients     = 64   // of one session
	maxConnections = 4096 // open connections to ports and sockets

)

// Server serves a guest's API. Set the fields before the first call of Handler;
// the zero value of each is a default. Token, Incarnation and Env are what it begins
// with: see PUT /v1/identity. Close it when done.
type Server struct {
	Token       string            // the key of every connection's handshake; empty refuses all of them
	Incarnation int64             // told by GET /v1/health
	Env         map[string]string // for every command, over the base environment
	Logger      *slog.Logger      // nil: discard
	User        string            // whose commands and files, unless a call says otherwise; "": boot.User
	Workdir     string            // where commands start and relative paths lie; "": boot.Home
	Defaults    *boot.Defaults    // in place of boot.User and boot.Home; nil: those
	Scrollback  int               // bytes of output kept for those who attach; 0: 256 KiB
	MaxSessions int               // 0: 512
	Keepalive   time.Duration     // silence before a keepalive message; 0: 20 s

	// Dir is where definitions and logs of services are kept; empty: there are no
	// services.
	Dir string

	// CgroupRoot is a folder of a cgroup v2 mount. Server makes a group named cove there, with
	// one group per session. If it is empty, or can't be used, Server finds the processes of a
	// session by walking /proc. That misses a process that has left both the process tree and
	// the kernel session.
	CgroupRoot string
	// PidsMax bounds the processes of all sessions together, if the cgroup can;
	// 0: boot.PidsMax.
	PidsMax int
	// ReapOrphans says that this process is the parent of orphans: PID 1, or a
	// subreaper. Nothing else in the process may then wait for a child.
	ReapOrphans bool

	identity    atomic.Pointer[identity]
	setup       sync.Once
	mux         *http.ServeMux
	sessions    *sessions
	services    *services.Set
	files       *files.Server
	tasks       tasks
	generation  generation
	connections connections

	stopOnce sync.Once
	stopped  chan struct{} // closed when everything has been ended
}

// Health answers GET /v1/health.
type Health struct {
	Status      string `json:"status"` // "ok", or "stopping"
	Version     string `json:"version"`
	Incarnation int64  `json:"incarnation"`
	Sessions    int    `json:"sessions"`
}

// Handler returns the API. It asks nobody for a token, so it must be served on a Door.
func (s *Server) Handler() http.Handler {
	s.init()
	return http.HandlerFunc(s.serve)
}

// routes is the whole surface.
func (s *Server) routes() {
	all := wire.Routes{
		"GET /v1/health": s.getHealth,
		"POST /v1/stop":  s.postStop,

		"GET /v1/connect":     s.connections.get,         // upgrade
		"GET /v1/ports/watch": s.sessions.ports.GetWatch, // upgrade

		"GET /v1/activity":        s.getActivity,
		"GET /v1/owner":           ports.GetOwner,
		"POST /v1/http":           s.services.PostHTTP,
		"POST /v1/policy/network": shown{s.Dir}.postPolicy,
		"PUT /v1/git/config":      shown{s.Dir}.putGitConfig,
		"PUT /v1/identity":        s.putIdentity,

		"/": s.unknown,
	}
	maps.Copy(all, s.sessions.routes())
	maps.Copy(all, s.files.Routes())
	maps.Copy(all, s.services.Routes(false))
	maps.Copy(all, s.tasks.routes())
	for pattern, h := range all {
		s.mux.Handle(pattern, h)
	}
}

func (s *Server) init() {
	s.setup.Do(func() {
		if s.Logger == nil {
			s.Logger = slog.New(slog.DiscardHandler)
		}
		db := &users.Database{}
		own := boot.Defaults{Account: boot.Account{Name: boot.User}, Workdir: boot.Home}
		if s.Defaults != nil {
			own = *s.Defaults
			db.Own = &own.Account
		}
		s.User, s.Workdir = cmp.Or(s.User, own.Account.Name), cmp.Or(s.Workdir, own.Workdir)
		if s.Scrollback == 0 {
			s.Scrollback = 256 << 10
		}
		if s.MaxSessions == 0 {
			s.MaxSessions = maxSessions
		}
		if s.Keepalive == 0 {
			s.Keepalive = 20 * time.Second
		}
		if s.PidsMax == 0 {
			s.PidsMax = boot.PidsMax
		}
		s.stopped = make(chan struct{})
		s.sessions = s.newSessions(db)
		s.sessions.commands.given = own.Env
		s.services = services.New(s.Dir, own.HTTPPort, s.Logger, s.sessions.serviceProgram)
		s.files = files.New(db, s.User, s.Workdir)
		s.generation.closing = make(chan struct{})
		s.connections.closing = make(chan struct{})
		s.mux = http.NewServeMux()
		s.routes()
	})
}

func (s *Server) newSessions(db *users.Database) *sessions {
	all := &sessions{
		logger:     s.Logger,
		scrollback: s.Scrollback,
		silence:    s.Keepalive,
		commands:   commands{users: db, user: s.User, workdir: s.Workdir, dir: s.Dir, env: func() map[string]string { return s.who().env }},
		runner:     runner{reaper: newReaper(s.ReapOrphans)},
		table:      table{max: s.MaxSessions, running: map[string]*session{}, leftover: map[string]*session{}},
		closing:    make(chan struct{}),
	}
	all.ports = ports.New(all.byProcess, s.Keepalive)
	if err := all.runner.cgroups.open(s.CgroupRoot, s.PidsMax); err != nil {
		s.Logger.Warn("no cgroups: processes are followed through /proc", "err", err)
	}
	return all
}

func (s *Server) serve(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Sprite-Version", sprites.Version)
	s.mux.ServeHTTP(w, r)
}

// unknown tells a wrong method from a wrong path.
func (s *Server) unknown(_ http.ResponseWriter, r *http.Request) error {
	for _, method := range []string{http.MethodGet, http.MethodPost, http.MethodPut, http.MethodDelete} {
		other := &http.Request{Method: method, URL: r.URL, Host: r.Host}
		if _, pattern := s.mux.Handler(other); pattern != "/" && pattern != "" {
			return fail.New("method_not_allowed", r.URL.Path+" does not take "+r.Method+".", "")
		}
	}
	return fail.New("not_found", "There is nothing at "+r.URL.Path+".", "")
}

func (s *Server) getHealth(w http.ResponseWriter, _ *http.Request) error {
	n, _ := s.sessions.table.activity()
	status := "ok"
	if s.sessions.table.stopping.Load() {
		status = "stopping"
	}
	return wire.Respond(w, Health{Status: status, Version: sprites.Version, Incarnation: s.who().incarnation, Sessions: n})
}

// postStop answers once nothing runs any more.
func (s *Server) postStop(w http.ResponseWriter, r *http.Request) error {
	grace, err := wire.Duration(r.URL.Query(), "grace", 5*time.Second)
	if err != nil {
		return err
	}
	s.Stop(grace)
	return wire.Respond(w, Health{Status: "stopped", Version: sprites.Version, Incarnation: s.who().incarnation})
}

// StartServices starts the services that nobody has stopped. Call it once.
func (s *Server) StartServices() {
	s.init()
	s.services.Boot()
}

// Stop ends every process of every service and session: TERM, then, after grace,
// by force. No command starts afterwards. It returns when all have ended.
func (s *Server) Stop(grace time.Duration) {
	s.init()
	s.stopOnce.Do(func() {
		defer close(s.stopped)
		all := s.sessions.table.stop()
		var wg sync.WaitGroup
		wg.Go(func() { s.services.Stop(grace) })
		wg.Go(func() { s.sessions.end(all, grace) })
		wg.Wait()
	})
	<-s.stopped
}

// Stopped is closed when Stop is done.
func (s *Server) Stopped() <-chan struct{} {
	s.init()
	return s.stopped
}

// Close ends every command and connection, and waits for all goroutines. The server must no
// longer take calls.
func (s *Server) Close() error {
	s.Stop(0)
	s.services.Close()
	s.connections.close()
	s.generation.close()
	s.files.Close()
	return s.sessions.close()
}
