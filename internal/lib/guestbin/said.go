package guestbin

import (
	"strings"
	"sync"
)

// maxSaid is how much of what a guest says is kept.
const maxSaid = 4 << 10

// Said keeps the beginning of the guest's standard error, as a program in a sprite: the reason
// why it gave up. Its zero value is empty. Goroutines may share it.
type Said struct {
	mu  sync.Mutex
	buf []byte
}

// Write takes all of p, and keeps a few kilobytes of all that came.
func (s *Said) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.buf = append(s.buf, p[:min(len(p), maxSaid-len(s.buf))]...)
	return len(p), nil
}

// String is what was said, fit for a message: valid UTF-8, without the program's name.
func (s *Said) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.TrimPrefix(strings.TrimSpace(strings.ToValidUTF8(string(s.buf), "\uFFFD")), name+": ")
}
