package server

import (
	"context"
	"net/http"
	"sync"
	"time"

	"github.com/cove-dev/cove/internal/lib/fail"
)

// errEnded is why a call ends when the right that allowed it ends.
var errEnded = fail.New("unauthorized", "the token or session of this call has ended", "")

// endGrace is how long a call that has to end may take for its last words.
const endGrace = 500 * time.Millisecond

// rights has the running calls, by the name of the principal whose right they rest on, so that
// they end with that right.
type rights struct {
	mu    sync.Mutex
	ended int // how often one has
	calls map[string]map[*context.CancelCauseFunc]bool
}

// end ends the calls of a principal, whose right is gone already.
func (rs *rights) end(name string) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	rs.ended++
	for cancel := range rs.calls[name] {
		(*cancel)(errEnded)
	}
}

// hold returns the principal that find finds, and a context that ends with its right. The
// caller must call release when the call is over.
func (rs *rights) hold(ctx context.Context, find func() (principal, error)) (p principal, held context.Context, release func(), err error) {
	for {
		rs.mu.Lock()
		ended := rs.ended
		rs.mu.Unlock()
		if p, err = find(); err != nil {
			return p, nil, nil, err
		}
		held, cancel := context.WithCancelCause(ctx)
		if !rs.keep(p.name, &cancel, ended) { // find may have found the right that has just ended
			cancel(nil)
			continue
		}
		expire := func() bool { return true }
		if !p.until.IsZero() {
			expire = time.AfterFunc(time.Until(p.until), func() { cancel(errEnded) }).Stop
		}
		return p, held, func() {
			expire()
			rs.drop(p.name, &cancel)
			cancel(nil)
		}, nil
	}
}

// keep adds a call, unless a right has ended since.
func (rs *rights) keep(name string, cancel *context.CancelCauseFunc, since int) bool {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	if rs.ended != since {
		return false
	}
	if rs.calls == nil {
		rs.calls = map[string]map[*context.CancelCauseFunc]bool{}
	}
	if rs.calls[name] == nil {
		rs.calls[name] = map[*context.CancelCauseFunc]bool{}
	}
	rs.calls[name][cancel] = true
	return true
}

func (rs *rights) drop(name string, cancel *context.CancelCauseFunc) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	delete(rs.calls[name], cancel)
	if len(rs.calls[name]) == 0 {
		delete(rs.calls, name)
	}
}

// serve serves a request for the principal that find finds, as long as that has
// the right to it.
func (rs *rights) serve(w http.ResponseWriter, r *http.Request, find func() (principal, error), handle handlerFunc) error {
	p, ctx, release, err := rs.hold(r.Context(), find)
	if err != nil {
		return err
	}
	defer release()
	stop := context.AfterFunc(ctx, func() {
		if context.Cause(ctx) == errEnded { // a client that does not read, or does not write, does not put it off
			rc := http.NewResponseController(w)
			_ = rc.SetReadDeadline(time.Now().Add(endGrace))
			_ = rc.SetWriteDeadline(time.Now().Add(endGrace))
		}
	})
	defer stop()
	err = handle(w, r.WithContext(context.WithValue(ctx, principalKey{}, p)))
	if err != nil && context.Cause(ctx) == errEnded {
		return errEnded
	}
	return err
}
