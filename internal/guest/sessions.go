package guest

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/cove-dev/cove/internal/guest/ports"
	"github.com/cove-dev/cove/internal/guest/wire"
)

// sessions starts, lists and ends the commands of the sandbox. Close them when done.
type sessions struct {
	logger     *slog.Logger
	scrollback int           // bytes of output kept for those who attach
	silence    time.Duration // before a keepalive message
	commands   commands
	runner     runner
	table      table
	memory     memoryKills
	ports      *ports.Watcher
	closing    chan struct{} // closed by close: connections end
	wg         sync.WaitGroup

	expecting struct {
		sync.Mutex
		runs bool // expectSessions does
	}
}

// routes are the calls of the API.
func (s *sessions) routes() wire.Routes {
	return wire.Routes{
		"GET /v1/exec":            s.getExec,    // upgrade: run or attach; else: list
		"GET /v1/exec/{id}":       s.getSession, // upgrade: attach
		"POST /v1/exec/{id}/kill": s.postKill,

		"GET /v1/memory/kills":   s.memory.get,
		"POST /v1/memory/relief": s.postRelief,
	}
}

// end ends every process of some sessions, and returns when all have ended.
func (s *sessions) end(all []*session, grace time.Duration) {
	var wg sync.WaitGroup
	for _, sess := range all {
		wg.Go(func() {
			if err := sess.end(context.Background(), grace); err != nil {
				s.logger.Error("stop", "session", sess.id, "err", err)
			}
		})
	}
	wg.Wait()
}

// close ends all connections, and waits for all goroutines. The processes must have
// ended.
func (s *sessions) close() error {
	close(s.closing)
	for _, sess := range s.table.all() {
		sess.abandon()
	}
	s.wg.Wait()
	s.ports.Close()
	return s.runner.close()
}

// portDelay is how long a session must live before its ports are reported.
const portDelay = 300 * time.Millisecond

// expectPorts says that a session has got a client. The client is told of the session's ports
// only if the session lives for a while. Most commands don't, and so cost no timer.
func (s *sessions) expectPorts() {
	s.expecting.Lock()
	defer s.expecting.Unlock()
	if !s.expecting.runs {
		s.expecting.runs = true
		s.wg.Go(s.expectSessions)
	}
}

// expectSessions makes clients follow their sessions' ports, as long as there are sessions
// that are too young for it.
func (s *sessions) expectSessions() {
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

// followSessions makes the clients of all but young sessions follow their ports. It reports
// whether there are young ones.
func (s *sessions) followSessions() (young bool) {
	for _, sess := range s.table.listed() {
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

// byProcess finds the session of each process that has one.
func (s *sessions) byProcess() map[int]string {
	processes := map[int]string{}
	for _, sess := range s.table.all() {
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
