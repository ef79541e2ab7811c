// Package guest is what runs inside a sandbox: it starts and ends commands,
// reads and writes files, over the per-sprite part of the Sprites protocol at
// in-sprite paths (/v1/exec, /v1/fs/…, /v1/ports/watch), and connects to ports. Init makes it the first process of a sandbox; Server alone runs
// anywhere, which is how it is tested.
//
// Whoever holds the token, and has proved so at the Door, may do anything inside the sandbox, so there is nothing
// here to protect from a caller, except the guest's own memory and life: every
// document is bounded, every stream has backpressure, sessions are counted.
package guest

import (
	"context"
	"log/slog"
	"maps"
	"net/http"
	"os"
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

// Limits of what callers may have the guest hold.
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
	Scrollback  int               // bytes of output kept for those who attach; 0: 256 KiB
	MaxSessions int               // 0: 512
	Keepalive   time.Duration     // silence before a keepalive message; 0: 20 s

	// Dir is where definitions and logs of services are kept; empty: there are no
	// services.
	Dir string

	// CgroupRoot is a folder of a cgroup v2 mount, in which Server makes a
	// group named cove with one group per session. When it is empty, or can't be
	// used, the processes of a session are found by walking /proc, which misses
	// one that has left both the process tree and the kernel session.
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
	users       users.Database
	file        environmentFile
	reaper      *reaper
	cgroups     cgroups
	services    *services.Set
	tasks       tasks
	memory      memoryKills
	generation  generation
	devnull     *os.File
	connections atomic.Int64
	files       *files.Server
	ports       *ports.Watcher
	expecting   struct {
		sync.Mutex
		runs bool // expectSessions does
	}

	stopOnce sync.Once
	stopping atomic.Bool
	stopped  chan struct{} // closed when everything has been ended
	closing  chan struct{} // closed by Close: connections end
	wg       sync.WaitGroup

	mu       sync.Mutex
	sessions map[string]*session // running
	leftover map[string]*session // ended, but with living background processes
	ended    []string            // ids of the last ended sessions, oldest first
	lastEnd  time.Time           // when the last of them did
	kept     []keptSession       // ended, for those who attach later, oldest first
}

// Health answers GET /v1/health.
type Health struct {
	Status      string `json:"status"` // "ok", or "stopping"
	Version     string `json:"version"`
	Incarnation int64  `json:"incarnation"`
	Sessions    int    `json:"sessions"`
}

// Handler returns the API. It asks nobody for a token: it is to be served on a Door.
func (s *Server) Handler() http.Handler {
	s.init()
	return http.HandlerFunc(s.serve)
}

// routes is the whole surface.
func (s *Server) routes() {
	all := wire.Routes{
		"GET /v1/health": s.getHealth,
		"POST /v1/stop":  s.postStop,

		"GET /v1/exec":            s.getExec,    // upgrade: run or attach; else: list
		"GET /v1/exec/{id}":       s.getSession, // upgrade: attach
		"POST /v1/exec/{id}/kill": s.postKill,

		"GET /v1/connect":     s.getConnect,     // upgrade
		"GET /v1/ports/watch": s.ports.GetWatch, // upgrade

		"GET /v1/activity":        s.getActivity,
		"GET /v1/owner":           ports.GetOwner,
		"GET /v1/memory/kills":    s.getMemoryKills,
		"POST /v1/memory/relief":  s.postRelief,
		"POST /v1/http":           s.services.PostHTTP,
		"POST /v1/policy/network": s.postPolicy,
		"PUT /v1/git/config":      s.putGitConfig,
		"PUT /v1/identity":        s.putIdentity,

		"/": s.unknown,
	}
	maps.Copy(all, s.files.Routes())
	maps.Copy(all, s.services.Routes())
	maps.Copy(all, s.taskRoutes())
	for pattern, h := range all {
		s.mux.Handle(pattern, h)
	}
}

func (s *Server) init() {
	s.setup.Do(func() {
		if s.Logger == nil {
			s.Logger = slog.New(slog.DiscardHandler)
		}
		if s.User == "" {
			s.User = boot.User
		}
		if s.Workdir == "" {
			s.Workdir = boot.Home
		}
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
		s.files = files.New(&s.users, s.User, s.Workdir)
		s.ports = ports.New(s.sessionsByProcess, s.Keepalive)
		s.stopped = make(chan struct{})
		s.closing = make(chan struct{})
		s.sessions = map[string]*session{}
		s.leftover = map[string]*session{}
		s.reaper = newReaper(s.ReapOrphans)
		if err := s.cgroups.open(s.CgroupRoot, s.PidsMax); err != nil {
			s.Logger.Warn("no cgroups: processes are followed through /proc", "err", err)
		}
		s.services = services.New(s.Dir, s.Logger, s.serviceProgram)
		s.mux = http.NewServeMux()
		s.routes()
	})
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
	s.mu.Lock()
	n := len(s.sessions)
	s.mu.Unlock()
	status := "ok"
	if s.stopping.Load() {
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

// StartServices starts the services that nobody has stopped. To be called once.
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
		s.mu.Lock()
		s.stopping.Store(true)
		all := make([]*session, 0, len(s.sessions)+len(s.leftover))
		for _, table := range []map[string]*session{s.sessions, s.leftover} {
			for sess := range maps.Values(table) {
				all = append(all, sess)
			}
		}
		s.mu.Unlock()
		var wg sync.WaitGroup
		wg.Go(func() { s.services.Stop(grace) })
		for _, sess := range all {
			wg.Go(func() {
				if err := sess.end(context.Background(), grace); err != nil {
					s.Logger.Error("stop", "session", sess.id, "err", err)
				}
			})
		}
		wg.Wait()
	})
	<-s.stopped
}

// Stopped is closed when Stop is done.
func (s *Server) Stopped() <-chan struct{} {
	s.init()
	return s.stopped
}

// Close ends every command and connection, and waits for all goroutines. The
// server must take no call any more.
func (s *Server) Close() error {
	s.Stop(0)
	close(s.closing)
	s.services.Close()
	s.mu.Lock()
	all := maps.Clone(s.sessions)
	maps.Copy(all, s.leftover)
	s.mu.Unlock()
	for _, sess := range all {
		sess.abandon()
	}
	s.files.Close()
	s.wg.Wait()
	s.ports.Close()
	s.reaper.close()
	if s.devnull != nil {
		_ = s.devnull.Close()
	}
	return s.cgroups.close()
}

// null returns the open /dev/null that commands without input share.
func (s *Server) null() (*os.File, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.devnull == nil {
		f, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
		if err != nil {
			return nil, err
		}
		s.devnull = f
	}
	return s.devnull, nil
}
