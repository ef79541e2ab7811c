package guest

import (
	"maps"
	"slices"
	"time"
)

// portDelay is of a session's life, before its ports are of interest.
const portDelay = 300 * time.Millisecond

// expectPorts says that a session has got a client, which is told of its ports if it
// lives for a while: most commands don't, and cost nothing, not even a timer.
func (s *Server) expectPorts() {
	s.expecting.Lock()
	defer s.expecting.Unlock()
	if !s.expecting.runs {
		s.expecting.runs = true
		s.wg.Go(s.expectSessions)
	}
}

// expectSessions has clients follow their sessions' ports, as long as there are
// sessions that are too young for it.
func (s *Server) expectSessions() {
	for again := true; again; {
		timer := time.NewTimer(portDelay)
		select {
		case <-timer.C:
		case <-s.closing:
			timer.Stop()
			return
		}
		s.expecting.Lock()
		again = s.followSessions()
		s.expecting.runs = again
		s.expecting.Unlock()
	}
}

// followSessions has the clients of all but young sessions follow their ports, and
// reports whether there are young ones.
func (s *Server) followSessions() (young bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, sess := range s.sessions {
		sess.mu.Lock()
		clients := sess.clients // replaced, never changed
		sess.mu.Unlock()
		if time.Since(sess.created) < portDelay {
			young = young || len(clients) > 0
			continue
		}
		for _, c := range clients {
			c.followPorts(sess)
		}
	}
	return young
}

// sessionsByProcess finds the session of each process that has one.
func (s *Server) sessionsByProcess() map[int]string {
	s.mu.Lock()
	all := slices.AppendSeq(slices.Collect(maps.Values(s.sessions)), maps.Values(s.leftover))
	s.mu.Unlock()
	processes := map[int]string{}
	for _, sess := range all {
		sess.mu.Lock()
		g := sess.group
		sess.mu.Unlock()
		if g == nil {
			continue
		}
		pids, _ := g.procs() // one that can't be read has no ports
		for _, pid := range pids {
			processes[pid] = sess.id
		}
	}
	return processes
}
