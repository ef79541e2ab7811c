package job

import (
	"errors"
	"io"
	"sync"
)

// errNoRoom says that other reviews leave no room for this one.
var errNoRoom = errors.New("other reviews take all the room")

// room bounds the bytes that reviews hold of something: all together, and those of one asker.
type room struct {
	all  int64
	each int64 // of an asker with a name; the server's owner has none

	mu   sync.Mutex
	held int64
	by   map[string]int64 // guarded by mu
}

// share is what one review holds of a room. A nil one counts nothing. It is used by one goroutine at a time.
type share struct {
	of    *room
	by    string
	free  int64 // that much more is not counted
	taken int64
}

// add takes n bytes more, or is errNoRoom and takes nothing.
func (s *share) add(n int64) error {
	if s == nil {
		return nil
	}
	free := min(n, s.free)
	s.free -= free
	n -= free
	r := s.of
	r.mu.Lock()
	defer r.mu.Unlock()
	if n > 0 && (r.held+n > r.all || s.by != "" && r.by[s.by]+n > r.each) {
		return errNoRoom
	}
	r.count(s.by, n)
	s.taken += n
	return nil
}

// asker is the token that holds the share; empty: the server's owner.
func (s *share) asker() string {
	if s == nil {
		return ""
	}
	return s.by
}

// shrink gives back all but n bytes.
func (s *share) shrink(n int64) {
	if s == nil {
		return
	}
	s.of.mu.Lock()
	defer s.of.mu.Unlock()
	s.of.count(s.by, min(n, s.taken)-s.taken)
	s.taken = min(n, s.taken)
}

// giveBack gives back n bytes.
func (s *share) giveBack(n int64) {
	if s != nil {
		s.shrink(max(0, s.taken-n))
	}
}

// count is called with mu held.
func (r *room) count(by string, n int64) {
	r.held += n
	if by == "" {
		return
	}
	if r.by == nil {
		r.by = map[string]int64{}
	}
	if r.by[by] += n; r.by[by] == 0 {
		delete(r.by, by)
	}
}

// roomWriter takes the bytes that it writes from a share.
type roomWriter struct {
	w  io.Writer
	of *share
}

func (r roomWriter) Write(p []byte) (int, error) {
	if err := r.of.add(int64(len(p))); err != nil {
		return 0, err
	}
	return r.w.Write(p)
}
