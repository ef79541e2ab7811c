package guest

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"time"

	"github.com/cove-dev/cove/internal/lib/fail"
)

// keptEnded is how many ended sessions are remembered by their ids.
const keptEnded = 100

// What is kept of sessions that could go on without a client, or ended without one,
// for those who come too late for the end.
const (
	keptSessions = 32
	keptOutput   = 4 << 20 // bytes, of all together
	keptFor      = 10 * time.Minute
)

type keptSession struct {
	*session
	until time.Time
}

// register gives a session its id and puts it into the table.
func (s *Server) register(sess *session) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopping.Load() {
		return fail.New("stopping", "The sprite is stopping.", "")
	}
	if len(s.sessions) >= s.MaxSessions {
		return fail.New("too_many_sessions", fmt.Sprintf("%d commands are running already; end some.", len(s.sessions)), "")
	}
	for {
		// Of fixed length, and decimal, as process numbers are that other
		// servers use.
		sess.id = strconv.Itoa(100_000_000 + rand.IntN(900_000_000))
		if s.sessions[sess.id] == nil && s.leftover[sess.id] == nil && !slices.Contains(s.ended, sess.id) {
			break
		}
	}
	s.sessions[sess.id] = sess
	return nil
}

// unregister takes out a session that nobody has been told of.
func (s *Server) unregister(sess *session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.sessions, sess.id)
}

// finished moves a session whose main process has ended out of the list.
func (s *Server) finished(sess *session) {
	if sess.service {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.sessions, sess.id)
	s.leftover[sess.id] = sess
	s.lastEnd = time.Now()
	s.ended = append(s.ended, sess.id)
	if len(s.ended) > keptEnded {
		s.ended = slices.Clone(s.ended[len(s.ended)-keptEnded:])
	}
	if sess.cmd.maxRun == 0 || sess.unheard {
		s.kept = append(s.kept, keptSession{sess, s.lastEnd.Add(keptFor)})
	}
}

// trimKept forgets the oldest of the kept sessions that are too many, or hold too
// much output.
func (s *Server) trimKept() {
	s.mu.Lock()
	defer s.mu.Unlock()
	held := 0
	for i, sess := range slices.Backward(s.kept) {
		sess.mu.Lock()
		held += sess.scroll.held()
		sess.mu.Unlock()
		if held > keptOutput || len(s.kept)-i > keptSessions || time.Now().After(sess.until) {
			s.kept = slices.Clone(s.kept[i+1:])
			return
		}
	}
}

// attachable finds a session that runs, or is kept.
func (s *Server) attachable(id string) (*session, error) {
	s.trimKept()
	s.mu.Lock()
	defer s.mu.Unlock()
	if sess := s.sessions[id]; sess != nil {
		return sess, nil
	}
	for _, sess := range s.kept {
		if sess.id == id {
			return sess.session, nil
		}
	}
	return nil, notFound(id)
}

// forget drops a session of which no process is left.
func (s *Server) forget(sess *session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.leftover, sess.id)
}

// session finds a running session.
func (s *Server) session(id string) (*session, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if sess := s.sessions[id]; sess != nil {
		return sess, nil
	}
	return nil, notFound(id)
}

// killable finds a session that has a process left.
func (s *Server) killable(id string) (*session, error) {
	s.mu.Lock()
	sess, leftover, ended := s.sessions[id], s.leftover[id], slices.Contains(s.ended, id)
	s.mu.Unlock()
	if sess != nil {
		return sess, nil
	}
	if leftover != nil && leftover.hasProcesses() {
		return leftover, nil
	}
	if ended {
		return nil, fail.New("session_ended", "Session "+id+" has ended.", "")
	}
	return nil, notFound(id)
}

func notFound(id string) error {
	if len(id) > 64 {
		id = id[:64] + "…"
	}
	return fail.New("session_not_found", fmt.Sprintf("session not found: %q", id), "")
}
