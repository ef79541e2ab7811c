package shim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cove-dev/cove/internal/lib/boot"
	"github.com/cove-dev/cove/internal/shim/connect"
	"github.com/cove-dev/cove/internal/shim/gateway"
	"github.com/cove-dev/cove/internal/shim/policy"
)

// socketName is the shim's API socket in the sandbox's folder. It is dialled and
// bound through the folder's descriptor, so that the folder's path may be longer
// than a socket's may.
const socketName = "shim.sock"

// An api is the shim's HTTP API, on a Unix socket in the sandbox's folder. start opens it, and close
// ends it.
type api struct {
	shim    *Shim
	server  *http.Server
	serving sync.WaitGroup
}

// routes is the whole API. Anybody who can open the socket may use all of it.
func (a *api) routes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/status", a.getStatus)
	mux.HandleFunc("GET /v1/wait", a.getWait)
	mux.HandleFunc("POST /v1/stop", a.postStop)
	mux.HandleFunc("POST /v1/pause", a.postPause)
	mux.HandleFunc("POST /v1/resume", a.postResume)
	mux.HandleFunc("POST /v1/checkpoint", a.postCheckpoint)
	mux.HandleFunc("POST /v1/hibernate", a.postHibernate)
	mux.HandleFunc("POST /v1/assign", a.postAssign)
	mux.HandleFunc("PUT /v1/connectors", a.putConnectors)
	mux.HandleFunc("PUT /v1/network", a.putNetwork)
	mux.HandleFunc("PUT /v1/limits", a.putLimits)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodConnect { // guest:PORT, a raw stream into the sandbox; guest:0, its guest's API
			a.connect(w, r)
			return
		}
		mux.ServeHTTP(w, r)
	})
}

// start opens the socket and serves it.
func (a *api) start() error {
	dir, err := os.Open(a.shim.cfg.Dir)
	if err != nil {
		return fmt.Errorf("serve the shim's API: %w", err)
	}
	defer dir.Close()
	// The lock is ours, so a socket that is there is a dead shim's.
	if err := os.Remove(filepath.Join(a.shim.cfg.Dir, socketName)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("serve the shim's API: %w", err)
	}
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), socketName), Net: "unix"})
	if err != nil {
		return fmt.Errorf("serve the shim's API: %w", err)
	}
	ln.SetUnlinkOnClose(false) // its path is that of a descriptor, which is closed before
	if err := os.Chmod(filepath.Join(a.shim.cfg.Dir, socketName), 0o600); err != nil {
		return errors.Join(err, ln.Close())
	}
	a.server = &http.Server{Handler: a.routes(), ReadHeaderTimeout: time.Minute}
	a.serving.Go(func() {
		if err := a.server.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
			a.shim.log.Error("serve the shim's API", "err", err)
		}
	})
	return nil
}

// answerLimit is for calls to answer at the end. They do so at once, unless this process stands
// still.
const answerLimit = 30 * time.Second

// close lets calls that wait for the end answer, and removes the socket.
func (a *api) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), answerLimit)
	defer cancel()
	var err error
	if a.shim.folder.atHome() {
		err = os.Remove(filepath.Join(a.shim.cfg.Dir, socketName))
	}
	if errors.Is(err, os.ErrNotExist) {
		err = nil
	}
	err = errors.Join(err, a.server.Shutdown(ctx))
	a.serving.Wait()
	return err
}

func reply(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v) // the caller went away
}

// fail answers with a status code and the error's text. Client.call makes the same
// error of them again.
func fail(w http.ResponseWriter, err error) {
	code := http.StatusInternalServerError
	switch {
	case errors.Is(err, ErrEnded):
		code = http.StatusGone
	case errors.Is(err, ErrMemoryUsed):
		code = http.StatusUnprocessableEntity
	case errors.Is(err, ErrDeleted):
		code = http.StatusConflict
	case errors.Is(err, ErrNetworks):
		code = http.StatusFailedDependency
	case noRoom(err):
		code = http.StatusInsufficientStorage
	}
	http.Error(w, err.Error(), code)
}

// getStatus answers with the state: see Shim.status. ?refuse=LAYER is optional.
func (a *api) getStatus(w http.ResponseWriter, r *http.Request) {
	st, err := a.shim.status(r.FormValue("refuse"))
	if err != nil {
		fail(w, err)
		return
	}
	reply(w, st.shown())
}

// End is the answer to GET /v1/wait and POST /v1/stop.
type End struct {
	Reason string `json:"reason"`
}

// getWait answers when the sandbox has ended and is cleaned up.
func (a *api) getWait(w http.ResponseWriter, r *http.Request) {
	w.WriteHeader(http.StatusOK)
	_ = http.NewResponseController(w).Flush()
	select {
	case <-a.shim.ended:
		reply(w, End{a.shim.reason})
	case <-r.Context().Done():
	}
}

// postStop ends the sandbox; its processes have ?grace=DURATION.
func (a *api) postStop(w http.ResponseWriter, r *http.Request) {
	grace, err := time.ParseDuration(r.FormValue("grace"))
	if err != nil || grace < 0 {
		grace = 0
	}
	a.shim.stop(grace)
	reply(w, End{a.shim.reason})
}

func (a *api) postPause(w http.ResponseWriter, r *http.Request)  { a.freeze(w, r, true) }
func (a *api) postResume(w http.ResponseWriter, r *http.Request) { a.freeze(w, r, false) }

func (a *api) freeze(w http.ResponseWriter, r *http.Request, paused bool) {
	if err := a.shim.setPaused(r.Context(), paused); err != nil {
		fail(w, err)
		return
	}
	reply(w, a.shim.record.get().shown())
}

func (a *api) postCheckpoint(w http.ResponseWriter, r *http.Request) {
	var req Checkpoint
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 8<<20)).Decode(&req); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	var done Checkpointed
	err := a.shim.moves.run(r.Context(), func(ctx context.Context) (err error) {
		done, err = a.shim.checkpoint(ctx, req)
		return err
	})
	if err != nil {
		fail(w, err)
		return
	}
	done.State = done.State.shown()
	reply(w, done)
}

func (a *api) postHibernate(w http.ResponseWriter, r *http.Request) {
	var req struct {
		Dir string `json:"dir"`
	}
	err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 1<<20)).Decode(&req)
	if err == nil && !filepath.IsAbs(req.Dir) {
		err = errors.New("want the absolute path of a folder for the image")
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	err = a.shim.moves.run(r.Context(), func(ctx context.Context) error { return a.shim.hibernate(ctx, req.Dir) })
	if err != nil {
		fail(w, err)
		return
	}
	<-a.shim.ended
	reply(w, End{a.shim.reason})
}

func (a *api) postAssign(w http.ResponseWriter, r *http.Request) {
	var as Assignment
	err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 8<<20)).Decode(&as)
	if err == nil && (as.Hostname == "" || as.Token == "") {
		err = errors.New("it needs a host name and a token")
	}
	if err != nil {
		http.Error(w, fmt.Sprintf("invalid assignment: %v", err), http.StatusBadRequest)
		return
	}
	if err := a.shim.moves.run(r.Context(), func(ctx context.Context) error { return a.shim.assign(ctx, as) }); err != nil {
		fail(w, err)
		return
	}
	reply(w, a.shim.record.get().shown())
}

func (a *api) putConnectors(w http.ResponseWriter, r *http.Request) {
	var all map[string]connect.Upstream
	if err := json.NewDecoder(io.LimitReader(r.Body, 8<<20)).Decode(&all); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	if err := a.shim.network.gw.SetConnectors(all); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

func (a *api) putNetwork(w http.ResponseWriter, r *http.Request) {
	var set policy.Set
	if err := json.NewDecoder(io.LimitReader(r.Body, 8<<20)).Decode(&set); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	a.shim.network.decide(set)
	w.WriteHeader(http.StatusNoContent)
}

func (a *api) putLimits(w http.ResponseWriter, r *http.Request) {
	var l Limits
	err := json.NewDecoder(io.LimitReader(r.Body, 4<<10)).Decode(&l)
	if err == nil && (l.MemoryMB < 0 || l.CPUs < 0) {
		err = errors.New("a limit is negative")
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	if err := a.shim.setLimits(l); err != nil {
		fail(w, err)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

// connect joins the caller's connection with one to a port of the sandbox, or with one
// to the guest's API (boot.API) that has passed the handshake.
func (a *api) connect(w http.ResponseWriter, r *http.Request) {
	_, p, err := net.SplitHostPort(r.Host)
	port, convErr := strconv.ParseUint(p, 10, 16)
	if err != nil || convErr != nil {
		http.Error(w, "want CONNECT guest:PORT", http.StatusBadRequest)
		return
	}
	dial := func(ctx context.Context) (*gateway.Conn, error) { return a.shim.network.gw.Dial(ctx, int(port)) }
	if port == boot.API {
		dial = a.shim.network.guest().dial
	}
	guest, err := dial(r.Context())
	if err != nil {
		code := http.StatusBadGateway
		if errors.Is(err, unix.ECONNREFUSED) {
			code = http.StatusServiceUnavailable
		}
		http.Error(w, err.Error(), code)
		return
	}
	caller, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		_ = guest.Close()
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	_, err = io.WriteString(caller, "HTTP/1.1 200 OK\r\n\r\n")
	if n := buffered.Reader.Buffered(); err == nil && n > 0 { // the caller was early
		early, _ := buffered.Reader.Peek(n)
		_, err = guest.Write(early)
	}
	stream, ok := caller.(gateway.Stream)
	if err != nil || !ok {
		_ = caller.Close()
		_ = guest.Close()
		return
	}
	guest.Join(stream)
}
