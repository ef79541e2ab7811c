package guest

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/cove-dev/cove/internal/guest/signals"
	"github.com/cove-dev/cove/internal/guest/wire"
	"github.com/cove-dev/cove/sprites"
)

// getExec runs a command on a WebSocket, attaches to one if an id is given, or,
// without a WebSocket, lists the running ones.
func (s *sessions) getExec(w http.ResponseWriter, r *http.Request) error {
	if !wire.IsUpgrade(r) {
		return s.list(w)
	}
	q := r.URL.Query()
	if id := cmp.Or(q.Get("id"), q.Get("session_id")); id != "" {
		return s.attach(w, r, id, q)
	}
	cmd, err := s.commands.parse(q)
	if err != nil {
		return err
	}
	resume, err := wire.Boolean(q, "resume", false)
	if err != nil {
		return err
	}
	sess, err := s.newSession(cmd)
	if err != nil {
		return err
	}
	s.wg.Add(1)
	defer s.wg.Done()
	c, err := s.newClient(w, r)
	if err != nil {
		sess.abort()
		return nil // answered
	}
	defer c.drop()
	if resume {
		c.resumable(sess)
	}
	c.mu.Lock()
	err = c.info(sess, true, nil)
	c.mu.Unlock()
	if err != nil {
		sess.abort()
		return nil // gone before it began
	}
	sess.start(c)
	c.detachAtEnd(sess)
	defer sess.detach(c)
	c.serve(sess, cmd.stdin)
	return nil
}

func (s *sessions) list(w http.ResponseWriter) error {
	all := s.table.listed()
	list := sprites.SessionList{Count: len(all), Sessions: make([]sprites.Session, 0, len(all))}
	for _, sess := range all {
		list.Sessions = append(list.Sessions, sess.describe())
	}
	slices.SortFunc(list.Sessions, func(a, b sprites.Session) int { return a.Created.Compare(b.Created) })
	return wire.Respond(w, list)
}

// getSession attaches to a session, or describes it.
func (s *sessions) getSession(w http.ResponseWriter, r *http.Request) error {
	id := r.PathValue("id")
	if wire.IsUpgrade(r) {
		return s.attach(w, r, id, r.URL.Query())
	}
	sess, err := s.table.find(id)
	if err != nil {
		return err
	}
	return wire.Respond(w, sess.describe())
}

// attach joins a session. If the session has ended, but is kept, attach sends its output and
// its exit.
func (s *sessions) attach(w http.ResponseWriter, r *http.Request, id string, q url.Values) error {
	sess, err := s.table.attachable(id)
	if err != nil {
		return err
	}
	stdin, err := wire.Boolean(q, "stdin", true)
	if err != nil {
		return err
	}
	resume, err := wire.Boolean(q, "resume", false)
	if err != nil {
		return err
	}
	s.wg.Add(1)
	defer s.wg.Done()
	c, err := s.newClient(w, r)
	if err != nil {
		return nil // answered
	}
	defer c.drop()
	if resume {
		c.resumable(sess)
	}
	if err := c.join(sess); errors.Is(err, errSessionEnded) {
		c.replay(sess)
		return nil
	} else if err != nil {
		return nil // told on the socket
	}
	c.detachAtEnd(sess)
	defer sess.detach(c)
	c.serve(sess, stdin)
	return nil
}

// join attaches the client: session_info, the output so far, then what comes.
func (c *wsClient) join(s *session) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	frames, before, err := s.attach(c)
	if errors.Is(err, errSessionEnded) {
		return err
	}
	if sent := c.info(s, false, before); sent != nil {
		s.detach(c)
		return sent
	}
	if err != nil {
		_ = c.conn.Close(ttyFailed, err.Error()) // it has gone itself
		return err
	}
	if err := c.sendAll(frames, s.cmd.tty); err != nil {
		s.detach(c)
		return err
	}
	return nil
}

// replay sends the kept output of an ended session, and its exit.
func (c *wsClient) replay(s *session) {
	select {
	case <-s.final:
	case <-s.set.closing:
		return
	}
	s.mu.Lock()
	frames, before := s.scroll.snapshot()
	end := ending{code: s.code, reason: s.reason}
	started := s.proc != nil
	s.mu.Unlock()
	if started {
		end.left = s.left()
	}
	c.mu.Lock()
	err := c.info(s, false, before)
	if err == nil {
		err = c.sendAll(frames, s.cmd.tty)
	}
	c.mu.Unlock()
	if err == nil {
		c.exit(end, s.cmd.tty)
	}
}

// sendAll sends frames. The caller must hold c.mu.
func (c *wsClient) sendAll(frames [][]byte, tty bool) error {
	for _, frame := range frames {
		if err := c.send(frame, tty); err != nil {
			return err
		}
	}
	return nil
}

// postKill sends a signal. Unless timeout is 0, it then ends the session, after timeout by
// force (section 3.10).
func (s *sessions) postKill(w http.ResponseWriter, r *http.Request) error {
	sess, err := s.table.killable(r.PathValue("id"))
	if err != nil {
		return err
	}
	var body struct {
		Signal  string `json:"signal"`
		Timeout string `json:"timeout"`
	}
	if err := wire.ReadJSON(r, &body); err != nil {
		return err
	}
	q := r.URL.Query()
	sig, err := signals.Parse(cmp.Or(q.Get("signal"), body.Signal, "TERM"))
	if err != nil {
		return wire.BadRequest("%v.", err)
	}
	if q.Get("timeout") == "" && body.Timeout != "" {
		q.Set("timeout", body.Timeout)
	}
	timeout, err := wire.Duration(q, "timeout", 10*time.Second)
	if err != nil {
		return err
	}
	s.wg.Add(1)
	defer s.wg.Done()
	w.Header().Set("Content-Type", "application/x-ndjson")
	rc := http.NewResponseController(w)
	var mu sync.Mutex
	write := func(line []byte) {
		mu.Lock()
		defer mu.Unlock()
		_, _ = w.Write(append(line, '\n')) // who asked has gone: it is done all the same
		_ = rc.Flush()
	}
	done, quiet := make(chan struct{}), sync.WaitGroup{}
	quiet.Go(func() {
		silence := time.NewTicker(wire.Silence)
		defer silence.Stop()
		for {
			select {
			case <-silence.C:
				write(nil)
			case <-done:
				return
			}
		}
	})
	sess.kill(sig, timeout, func(e sprites.KillEvent) {
		if data, err := json.Marshal(e); err == nil {
			write(data)
		}
	})
	close(done)
	quiet.Wait()
	return nil
}

// kill sends a signal and reports the events that follow. With a timeout, all processes of the
// session have ended when it returns.
func (s *session) kill(sig syscall.Signal, timeout time.Duration, emit func(sprites.KillEvent)) {
	s.mu.Lock()
	proc := s.proc
	s.mu.Unlock()
	if proc == nil {
		emit(sprites.KillEvent{Type: "error", Message: "the command is about to start"})
		return
	}
	name := "SIG" + signals.Name(sig)
	_, _ = s.group.procs() // without cgroups: look before parents die
	err := s.signal(sig)
	if errors.Is(err, syscall.ESRCH) {
		err = s.signalRest(sig)
	}
	if err != nil {
		emit(sprites.KillEvent{Type: "error", Message: err.Error()})
	} else {
		emit(sprites.KillEvent{Type: "signal", Message: "sent " + name, Signal: name, PID: proc.pid})
	}
	if timeout == 0 {
		emit(sprites.KillEvent{Type: "complete"})
		return
	}
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	deadline := time.Now().Add(timeout)
	late := false
	select {
	case <-proc.exited:
	case <-timer.C:
		late = true
	case <-s.set.closing:
	}
	select {
	case <-proc.exited: // perhaps in the moment when the time was up
		emit(sprites.KillEvent{Type: "exited", Message: "the command has ended"})
	default:
		if late {
			emit(sprites.KillEvent{Type: "timeout", Message: "still alive after " + timeout.String()})
		}
	}
	// The rest of the time is for descendants.
	forced, err := s.finish(time.Until(deadline))
	switch {
	case err != nil:
		emit(sprites.KillEvent{Type: "error", Message: err.Error()})
	case forced:
		emit(sprites.KillEvent{Type: "killed", Message: "sent SIGKILL"})
	}
	complete := sprites.KillEvent{Type: "complete"}
	select {
	case <-s.ended:
		s.mu.Lock()
		code := s.code
		s.mu.Unlock()
		complete.ExitCode = &code
	case <-time.After(confirmLimit): // a process that the kernel won't let go
	}
	emit(complete)
}

// finish ends what is left of the session, with TERM if there is time, and
// reports whether force was needed.
func (s *session) finish(grace time.Duration) (forced bool, err error) {
	if grace > 0 && s.terminate(context.Background(), grace) {
		return false, nil
	}
	if pids, err := s.group.procs(); err != nil || len(pids) == 0 {
		return false, err
	}
	return true, s.end(context.Background(), 0)
}
