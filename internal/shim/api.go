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
	"time"

	"golang.org/x/sys/unix"

	"github.com/cove-dev/cove/internal/lib/boot"
	"github.com/cove-dev/cove/internal/lib/fault"
	"github.com/cove-dev/cove/internal/shim/connect"
	"github.com/cove-dev/cove/internal/shim/gateway"
	"github.com/cove-dev/cove/internal/shim/policy"
)

// socketName is the shim's API socket in the sandbox's folder. It is dialled and
// bound through the folder's descriptor, so that the folder's path may be longer
// than a socket's may.
const socketName = "shim.sock"

// routes is the whole API. Who can open the socket may use all of it.
func (s *Shim) routes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/status", s.getStatus)
	mux.HandleFunc("GET /v1/wait", s.getWait)
	mux.HandleFunc("POST /v1/stop", s.postStop)
	mux.HandleFunc("POST /v1/pause", s.postPause)
	mux.HandleFunc("POST /v1/resume", s.postResume)
	mux.HandleFunc("POST /v1/checkpoint", s.postCheckpoint)
	mux.HandleFunc("POST /v1/hibernate", s.postHibernate)
	mux.HandleFunc("POST /v1/assign", s.postAssign)
	mux.HandleFunc("PUT /v1/connectors", s.putConnectors)
	mux.HandleFunc("PUT /v1/network", s.putNetwork)
	mux.HandleFunc("PUT /v1/limits", s.putLimits)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodConnect { // guest:PORT, a raw stream into the sandbox; guest:0, its guest's API
			s.connect(w, r)
			return
		}
		mux.ServeHTTP(w, r)
	})
}

// serveAPI opens the socket and serves it.
func (s *Shim) serveAPI() error {
	dir, err := os.Open(s.cfg.Dir)
	if err != nil {
		return fmt.Errorf("serve the shim's API: %w", err)
	}
	defer dir.Close()
	// The lock is ours, so a socket that is there is a dead shim's.
	if err := os.Remove(filepath.Join(s.cfg.Dir, socketName)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("serve the shim's API: %w", err)
	}
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), socketName), Net: "unix"})
	if err != nil {
		return fmt.Errorf("serve the shim's API: %w", err)
	}
	ln.SetUnlinkOnClose(false) // its path is a descriptor's, closed by then
	if err := os.Chmod(filepath.Join(s.cfg.Dir, socketName), 0o600); err != nil {
		return errors.Join(err, ln.Close())
	}
	s.api = &http.Server{Handler: s.routes(), ReadHeaderTimeout: 10 * time.Second}
	go func() {
		if err := s.api.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
			s.log.Error("serve the shim's API", "err", err)
		}
	}()
	return nil
}

// shutdownAPI lets calls that wait for the end answer, and removes the socket.
func (s *Shim) shutdownAPI() error {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	var err error
	if s.folder.atHome() {
		err = os.Remove(filepath.Join(s.cfg.Dir, socketName))
	}
	if errors.Is(err, os.ErrNotExist) {
		err = nil
	}
	return errors.Join(err, s.api.Shutdown(ctx))
}

func reply(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v) // the caller went away
}

// fail answers with an error, of which Client.call makes again what it was.
func fail(w http.ResponseWriter, err error) {
	code := http.StatusInternalServerError
	switch {
	case errors.Is(err, ErrEnded):
		code = http.StatusGone
	case errors.Is(err, ErrMemoryUsed):
		code = http.StatusUnprocessableEntity
	case errors.Is(err, ErrDeleted):
		code = http.StatusConflict
	case noRoom(err):
		code = http.StatusInsufficientStorage
	}
	http.Error(w, err.Error(), code)
}

// getStatus answers when no checkpoint is under way: so who asks knows what is. With
// ?refuse=LAYER no checkpoint to that layer begins afterwards, and a sandbox that one has
// ended is ErrEnded, even if not all of it is gone yet.
func (s *Shim) getStatus(w http.ResponseWriter, r *http.Request) {
	s.moves.turn.Lock()
	st, failed := s.record.get(), s.moves.fate().failed
	layer := r.FormValue("refuse")
	if layer != "" {
		s.moves.refused = layer
	}
	s.moves.turn.Unlock()
	if layer != "" && failed != nil {
		fail(w, fmt.Errorf("%w, because it could not be restored: %w", ErrEnded, failed))
		return
	}
	reply(w, st.shown())
}

// End is the answer to GET /v1/wait and POST /v1/stop.
type End struct {
	Reason string `json:"reason"`
}

// getWait answers when the sandbox has ended and is cleaned up.
func (s *Shim) getWait(w http.ResponseWriter, r *http.Request) {
	w.WriteHeader(http.StatusOK)
	_ = http.NewResponseController(w).Flush()
	select {
	case <-s.ended:
		reply(w, End{s.reason})
	case <-r.Context().Done():
	}
}

// postStop ends the sandbox: the guest ends its processes with TERM and, after
// ?grace=DURATION, by force; a guest that does not is ended from outside. For what moves
// the sandbox it waits no longer than that either, and then has it give up.
func (s *Shim) postStop(w http.ResponseWriter, r *http.Request) {
	grace, err := time.ParseDuration(r.FormValue("grace"))
	if err != nil || grace < 0 {
		grace = 0
	}
	s.memory.giveUp()
	var st State
	moved := s.moves.within(grace, s.ended, func() {
		st = s.record.get()
		s.moves.stop()
	})
	if !moved {
		if breakOff := s.moves.stop(); breakOff != nil {
			s.log.Warn("give up what moves the sandbox, because it is to end")
			breakOff()
		}
	}
	if grace > 0 && moved { // else nothing of it is to run any more
		if st.Paused {
			if err := s.containers.runsc(s.record.get()).thaw(); err != nil {
				s.log.Error("resume before stop", "err", err)
			}
		}
		// Beyond its grace the guest needs a moment for the rest. One that a fork
		// bomb keeps from it is not waited for.
		ctx, cancel := context.WithTimeout(context.Background(), grace+min(grace, 3*time.Second))
		if err := s.askGuestToStop(ctx, grace); err != nil {
			s.log.Warn("ask the guest to stop", "err", err)
		}
		select {
		case <-s.ended:
		case <-ctx.Done():
		}
		cancel()
	}
	s.killUntilEnded()
	reply(w, End{s.reason})
}

// killUntilEnded ends the sandbox, whichever that is: a move that is being given up may
// still start the next one.
func (s *Shim) killUntilEnded() {
	for {
		st := s.record.get()
		signalProcess(st.PID, st.StartTime, unix.SIGKILL)
		signalProcess(st.OldPID, st.OldStart, unix.SIGKILL)
		select {
		case <-s.ended:
			return
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func (s *Shim) askGuestToStop(ctx context.Context, grace time.Duration) error {
	return newGuestClient(s.network.guest()).call(ctx, http.MethodPost, "/v1/stop?grace="+grace.String(), func(io.Reader) error { return nil })
}

func (s *Shim) postPause(w http.ResponseWriter, r *http.Request)  { s.freeze(w, r, true, s.pause) }
func (s *Shim) postResume(w http.ResponseWriter, r *http.Request) { s.freeze(w, r, false, s.resume) }

func (s *Shim) freeze(w http.ResponseWriter, r *http.Request, paused bool, change func() error) {
	err := s.moves.run(r.Context(), func(context.Context) error {
		if s.record.get().Paused == paused {
			return nil
		}
		return s.unlessEnded(change())
	})
	if err != nil {
		fail(w, err)
		return
	}
	reply(w, s.record.get().shown())
}

// pause freezes the sandbox in memory. The file says so before: whoever takes the
// sandbox up after a death in between does the rest. s.moves.turn is held.
func (s *Shim) pause() error {
	if err := s.record.set(func(st *State) { st.Paused = true }); err != nil {
		return errors.Join(err, s.record.set(func(st *State) { st.Paused = false }))
	}
	fault.Reach(fault.PauseNoted)
	if err := s.containers.runsc(s.record.get()).freeze(); err != nil {
		return errors.Join(err, s.containers.runsc(s.record.get()).thaw(), s.record.set(func(st *State) { st.Paused = false }))
	}
	fault.Reach(fault.PauseFrozen)
	return nil
}

// resume undoes pause; in the file last of all. s.moves.turn is held.
func (s *Shim) resume() error {
	if err := s.containers.runsc(s.record.get()).thaw(); err != nil {
		return err
	}
	fault.Reach(fault.ResumeThawed)
	err := s.record.set(func(st *State) { st.Paused = false })
	fault.Reach(fault.ResumeNoted)
	return err
}

func (s *Shim) putConnectors(w http.ResponseWriter, r *http.Request) {
	var all map[string]connect.Upstream
	if err := json.NewDecoder(io.LimitReader(r.Body, 8<<20)).Decode(&all); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	if err := s.network.gw.SetConnectors(all); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

func (s *Shim) putNetwork(w http.ResponseWriter, r *http.Request) {
	var set policy.Set
	if err := json.NewDecoder(io.LimitReader(r.Body, 8<<20)).Decode(&set); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	s.network.decide(set)
	w.WriteHeader(http.StatusNoContent)
}

// connect joins the caller's connection with one to a port of the sandbox, or with one
// to the guest's API (boot.API) that has passed the handshake.
func (s *Shim) connect(w http.ResponseWriter, r *http.Request) {
	_, p, err := net.SplitHostPort(r.Host)
	port, convErr := strconv.ParseUint(p, 10, 16)
	if err != nil || convErr != nil {
		http.Error(w, "want CONNECT guest:PORT", http.StatusBadRequest)
		return
	}
	dial := func(ctx context.Context) (*gateway.Conn, error) { return s.network.gw.Dial(ctx, int(port)) }
	if port == boot.API {
		dial = s.network.guest().dial
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
