package server

import (
	"context"
	"errors"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cove-dev/cove/internal/server/sprite"
)

// dying is a sandbox whose guest takes connections from answers on, and that is known to be dead
// from ends on; 0: never.
type dying struct {
	sprite.Sandbox
	began         time.Time
	answers, ends time.Duration
	done          chan struct{}
}

func (d *dying) Done() <-chan struct{} { return d.done }

func (d *dying) Dial(context.Context, int) (net.Conn, error) {
	if d.answers == 0 || time.Since(d.began) < d.answers {
		return nil, errors.New("nobody listens")
	}
	conn, _ := net.Pipe()
	return conn, nil
}

// TestAwaitDeath: a sandbox whose guest takes no connection is dead, if its shim says so late. One
// whose guest takes connections lives.
func TestAwaitDeath(t *testing.T) {
	for _, test := range []struct{ answers, ends, want time.Duration }{
		{0, time.Second / 10, time.Second / 10},
		{0, 20 * time.Second, 20 * time.Second},
		{1, 0, time.Second},
		{10 * time.Second, 0, 10 * time.Second},
		{0, 0, time.Second + deadLimit},
	} {
		synctest.Test(t, func(t *testing.T) {
			d := &dying{began: time.Now(), answers: test.answers, ends: test.ends, done: make(chan struct{})}
			if d.ends > 0 {
				time.AfterFunc(d.ends, func() { close(d.done) })
			}
			awaitDeath(t.Context(), d, time.Second)
			if got := time.Since(d.began).Round(time.Second / 10); got != test.want {
				t.Errorf("%+v: waited %v", test, got)
			}
		})
	}
}
