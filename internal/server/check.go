package server

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/server/sprite"
)

const checkTimeout = 2 * time.Second

// check asks a sprite's guest for a sign of life, and wakes nobody.
func (g *spriteRoutes) check(w http.ResponseWriter, r *http.Request) error {
	info, err := g.host.Get(r.Context(), r.PathValue("name"))
	if err != nil {
		return err
	}
	sandbox, err := g.host.Live(r.Context(), info.Name)
	if err != nil {
		return err
	}
	started := time.Now()
	c := cove.Check{Name: info.Name, ID: info.ID, Status: "hibernated", CheckedAt: started.UTC()}
	if sandbox != nil {
		c.Status = "healthy"
		var err error
		if c.Cove, err = alive(r, sandbox); err != nil {
			c.Status, c.Reason = "unhealthy", err.Error()
		}
	}
	c.Elapsed = time.Since(started).Milliseconds()
	writeJSON(w, http.StatusOK, c)
	return nil
}

// alive asks the guest something small, over a connection of its own, so that each part of the
// way is used and timed.
func alive(r *http.Request, sandbox sprite.Sandbox) (*cove.CheckTimes, error) {
	ctx, cancel := context.WithTimeout(r.Context(), checkTimeout)
	defer cancel()
	began := time.Now()
	conn, err := sandbox.Dial(ctx, guestPort)
	if err != nil {
		return nil, fmt.Errorf("the guest can't be reached: %w", err)
	}
	defer conn.Close()
	reached := time.Now()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, guestURL("exec", ""), nil)
	if err != nil {
		return nil, err
	}
	authorize(req.Header, sandbox)
	once := &http.Transport{
		DialContext:            func(context.Context, string, string) (net.Conn, error) { return conn, nil },
		DisableKeepAlives:      true,
		MaxResponseHeaderBytes: guestHeader,
	}
	resp, err := once.RoundTrip(req)
	if err != nil {
		if ctx.Err() != nil {
			err = errors.New("the guest does not answer")
		}
		return nil, err
	}
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("the guest answers with status %d", resp.StatusCode)
	}
	ms := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
	return &cove.CheckTimes{Shim: ms(reached.Sub(began)), Guest: ms(time.Since(reached))}, nil
}
