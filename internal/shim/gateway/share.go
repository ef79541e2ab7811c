package gateway

import (
	"runtime/debug"
	"sync"
	"time"
)

// The buffers of connections are the host's memory, whether the sandbox opens a
// connection or a stranger does, by the sprite's URL. So connections share a
// bounded memory. Each gets a part of the memory that is left, so that a few are
// fast and thousands are possible.
const (
	sharedMemory = 64 << 20  // of the buffers of all; beyond it each has the least
	mostWindow   = 2 << 20   // of one buffer
	leastWindow  = 128 << 10 // of one buffer: two segments of the link; with less than one, senders wait for their timers
	windowPart   = 32        // one buffer is a 32nd of the memory that is left
	largeWindow  = 256 << 10 // a connection with such a window copies in large pieces
)

// share is the memory of the connections of one direction.
type share struct {
	max int // connections

	mu   sync.Mutex
	open int
	used int
	idle *time.Timer // gives freed memory back to the system; nil: there is none
}

// take returns how large each of the two buffers of a new connection may be. It
// returns false if there are max connections already.
func (s *share) take() (window int, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open >= s.max {
		return 0, false
	}
	window = min(max((sharedMemory-s.used)/windowPart, leastWindow), mostWindow)
	s.open++
	s.used += 2 * window
	return window, true
}

// giveBackAfter is how long after a crowd has gone its memory is given back.
const (
	giveBackAfter = 5 * time.Second
	crowd         = 16
)

// give is called at the connection's end.
func (s *share) give(window int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open--
	s.used -= 2 * window
	if s.open < crowd && s.idle == nil {
		return
	}
	if s.idle == nil {
		s.idle = time.AfterFunc(giveBackAfter, debug.FreeOSMemory)
	}
	s.idle.Reset(giveBackAfter)
}
