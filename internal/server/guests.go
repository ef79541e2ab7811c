package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/coder/websocket"

	"github.com/cove-dev/cove/internal/lib/boot"
	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/server/sprite"
)

// guestPort is where every guest's API is dialled.
const guestPort = boot.API

const (
	guestHeader    = 64 << 10 // of a guest's answer
	guestBuffer    = 64 << 10 // of a connection, each way
	guestIdle      = 30 * time.Second
	guestHandshake = time.Minute
)

// guestPool has the connections to the guests, by sandbox. Those of a sandbox
// that has ended are dropped with it.
type guestPool struct {
	mu      sync.Mutex
	closed  bool
	closing chan struct{}
	guests  map[sprite.Sandbox]*guest
	wg      sync.WaitGroup
}

// guest is a client of one sandbox's guest.
type guest struct {
	sandbox   sprite.Sandbox
	transport *http.Transport
	web       *http.Transport // to where the sprite's URL leads

	webMu sync.Mutex
	port  int       // where that is; 0: not known
	asked time.Time // when it was
}

// get returns the client of a sandbox's guest.
func (p *guestPool) get(sb sprite.Sandbox) *guest {
	p.mu.Lock()
	defer p.mu.Unlock()
	if g := p.guests[sb]; g != nil {
		return g
	}
	g := &guest{sandbox: sb, transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			conn, err := sb.Dial(ctx, guestPort)
			if err != nil {
				err = dialError{err}
			}
			return conn, err
		},
		DisableCompression:     true,
		MaxIdleConnsPerHost:    8,
		IdleConnTimeout:        guestIdle,
		MaxResponseHeaderBytes: guestHeader,
		ReadBufferSize:         guestBuffer,
		WriteBufferSize:        guestBuffer,
	}}
	g.web = &http.Transport{
		DialContext:            g.dialWeb,
		DisableCompression:     true,
		MaxIdleConnsPerHost:    8,
		IdleConnTimeout:        5 * time.Second,
		MaxResponseHeaderBytes: 256 << 10,
	}
	if p.closed { // unpooled: the server is about to end
		return g
	}
	if p.guests == nil {
		p.guests = map[sprite.Sandbox]*guest{}
		p.closing = make(chan struct{})
	}
	p.guests[sb] = g
	p.wg.Go(func() {
		select {
		case <-sb.Done():
		case <-p.closing:
		}
		p.mu.Lock()
		delete(p.guests, sb)
		p.mu.Unlock()
		g.transport.CloseIdleConnections()
		g.web.CloseIdleConnections()
	})
	return g
}

func (p *guestPool) close() {
	p.mu.Lock()
	if !p.closed && p.closing != nil {
		close(p.closing)
	}
	p.closed = true
	p.mu.Unlock()
	p.wg.Wait()
}

// guestURL is the address of a guest's call. Path and query are escaped.
func guestURL(path, query string) string {
	url := "http://guest/v1/" + path
	if query != "" {
		url += "?" + query
	}
	return url
}

// send sends a request to the guest. Redirects come back as they are.
func (g *guest) send(req *http.Request) (*http.Response, error) {
	authorize(req.Header, g.sandbox)
	resp, err := g.transport.RoundTrip(req)
	if err != nil {
		return nil, g.unreachable(req.Context(), err)
	}
	return resp, nil
}

// authorize adds the token for a guest that an earlier cove has started. For all other guests,
// the connection itself has proved the caller.
func authorize(h http.Header, sb sprite.Sandbox) {
	if token := sb.Status().Token; token != "" {
		h.Set("Authorization", "Bearer "+token)
	} else {
		h.Del("Authorization")
	}
}

// dialError says that no connection was made, so nothing was asked.
type dialError struct{ error }

func (e dialError) Unwrap() error { return e.error }

// dyingTime is how long the server waits to learn that a sandbox is dead, if it takes no
// connections or breaks one off.
const dyingTime = 2 * time.Second

// deadLimit is how much longer it waits while the sandbox's guest takes no connection: its shim
// notes the death, and may stand still.
const deadLimit = 30 * time.Second

// awaitDeath waits until a sandbox is known to be dead. It gives up once its guest takes a
// connection, but not before the time soon has passed; after deadLimit; and if ctx ends.
func awaitDeath(ctx context.Context, sandbox sprite.Sandbox, soon time.Duration) {
	select {
	case <-sandbox.Done():
		return
	case <-ctx.Done():
		return
	case <-time.After(soon):
	}
	ctx, cancel := context.WithTimeout(ctx, deadLimit)
	alive := make(chan struct{})
	go func() {
		defer close(alive)
		for {
			if conn, err := sandbox.Dial(ctx, guestPort); err == nil {
				_ = conn.Close()
				return
			}
			select {
			case <-ctx.Done():
				return
			case <-time.After(dialPause):
			}
		}
	}()
	select {
	case <-sandbox.Done():
	case <-alive:
	}
	cancel()
	<-alive
}

// dialPause is the pause between two tries of awaitDeath to reach a guest.
const dialPause = 100 * time.Millisecond

// unreachable says what a failed connection to the guest means.
func (g *guest) unreachable(ctx context.Context, err error) error {
	if errors.Is(err, context.Canceled) {
		return err
	}
	if _, ok := errors.AsType[dialError](err); ok || brokenOff(err) {
		awaitDeath(ctx, g.sandbox, dyingTime)
	}
	select {
	case <-g.sandbox.Done():
		return endedError(g.sandbox.Status().Ended)
	default:
		text := fmt.Sprintf("the sandbox can't be reached: %v", err) // the error may quote the guest
		name := cmp.Or(g.sandbox.Status().Hostname, "NAME")
		return fail.New("bad_guest", clean(text, maxGuestText), "try again; if it fails again, diagnose the sprite: cove diagnose "+name)
	}
}

// dial opens a WebSocket to the guest. A handshake that it refuses is its error.
func (g *guest) dial(ctx context.Context, path, query string, side *side) error {
	ctx, cancel := context.WithTimeout(ctx, guestHandshake)
	defer cancel()
	header := http.Header{}
	authorize(header, g.sandbox)
	conn, resp, err := websocket.Dial(ctx, guestURL(path, query), &websocket.DialOptions{
		HTTPClient: &http.Client{
			Transport:     wholeFrames{g.transport},
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
		HTTPHeader:     header,
		OnPingReceived: side.answerPing,
	})
	if err != nil {
		if resp != nil && resp.StatusCode != http.StatusSwitchingProtocols {
			return guestFailure(resp, false)
		}
		return g.unreachable(ctx, err)
	}
	conn.SetReadLimit(-1) // messages pass as streams
	side.conn = conn
	return nil
}
