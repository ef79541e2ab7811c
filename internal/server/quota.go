package server

import (
	"fmt"
	"sync"

	"github.com/cove-dev/cove/internal/lib/fail"
)

// quota counts what is open, in all and for each holder. Each holder may have a quarter, and
// all together three quarters. The last quarter is kept for the server's owner, who may have
// as much as there is.
type quota struct {
	what string // in an error
	max  int

	mu      sync.Mutex
	n       int
	others  int // of n: not the owner's
	holders map[string]int
	closed  bool
	wg      sync.WaitGroup
}

// add counts one more, until done is called.
func (q *quota) add(p principal) (done func(), err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return nil, fail.New("unavailable", "the server is shutting down", "")
	}
	part := max(q.max/4, 1)
	switch {
	case !p.owner && q.holders[p.name] >= part:
		return nil, q.full(q.holders[p.name], part, " for the same token or sprite")
	case !p.owner && q.others >= q.max-q.max/4:
		return nil, q.full(q.others, q.max-q.max/4, "")
	case q.n >= q.max:
		return nil, q.full(q.n, q.max, "")
	}
	if q.holders == nil {
		q.holders = map[string]int{}
	}
	q.count(p, 1)
	q.wg.Add(1)
	return func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		q.count(p, -1)
		q.wg.Done()
	}, nil
}

// count is called with mu held.
func (q *quota) count(p principal, n int) {
	q.n += n
	if p.owner {
		return
	}
	q.others += n
	if q.holders[p.name] += n; q.holders[p.name] == 0 {
		delete(q.holders, p.name)
	}
}

func (q *quota) full(count, limit int, whose string) error {
	e := fail.New("limit", fmt.Sprintf("%d %s are open%s, and the server allows no more", count, q.what, whose), "close some, or try again later")
	e.Limit, e.Count, e.RetryAfter = limit, count, defaultRetry
	return e
}

// wait lets no more in and waits for those that are.
func (q *quota) wait() {
	q.mu.Lock()
	q.closed = true
	q.mu.Unlock()
	q.wg.Wait()
}
