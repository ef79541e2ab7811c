package mcpserver

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// lookAgain is how often a session whose input has ended asks whether its answers are
// still read.
const lookAgain = 200 * time.Millisecond

// listening are requests that are answered when the session ends, not before.
const listening = "subscriptions/listen"

// draining is a transport that reports the end of its input only after all requests have
// their answers. At that end, the SDK ends the calls under way.
type draining struct {
	mcp.Transport
	unread func() bool // reports whether nobody reads the answers any more; nil: never
}

// Connect connects the transport below.
func (d *draining) Connect(ctx context.Context) (mcp.Connection, error) {
	c, err := d.Transport.Connect(ctx)
	if err != nil {
		return nil, err
	}
	return &drainingConn{Connection: c, unread: d.unread, open: map[jsonrpc.ID]bool{}, changed: make(chan struct{})}, nil
}

type drainingConn struct {
	mcp.Connection
	unread func() bool

	mu      sync.Mutex
	open    map[jsonrpc.ID]bool // requests without an answer
	over    bool                // no answer can be written any more
	changed chan struct{}       // closed and replaced when the above change
}

// Read is the connection's, but returns io.EOF only when no request waits for its answer.
func (c *drainingConn) Read(ctx context.Context) (jsonrpc.Message, error) {
	m, err := c.Connection.Read(ctx)
	if r, ok := m.(*jsonrpc.Request); ok && err == nil && r.IsCall() && r.Method != listening {
		c.change(func() { c.open[r.ID] = true })
	}
	if errors.Is(err, io.EOF) {
		c.drain(ctx)
	}
	return m, err
}

// Write is the connection's.
func (c *drainingConn) Write(ctx context.Context, m jsonrpc.Message) error {
	err := c.Connection.Write(ctx, m)
	r, ok := m.(*jsonrpc.Response)
	c.change(func() {
		if ok {
			delete(c.open, r.ID)
		}
		c.over = c.over || err != nil && ctx.Err() == nil
	})
	return err
}

// Close is the connection's.
func (c *drainingConn) Close() error {
	c.change(func() { c.over = true })
	return c.Connection.Close()
}

func (c *drainingConn) change(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f()
	close(c.changed)
	c.changed = make(chan struct{})
}

// drain waits until all requests are answered, or can't be.
func (c *drainingConn) drain(ctx context.Context) {
	look := time.NewTicker(lookAgain)
	defer look.Stop()
	for {
		c.mu.Lock()
		done, changed := c.over || len(c.open) == 0, c.changed
		c.mu.Unlock()
		if done || c.unread != nil && c.unread() {
			return
		}
		select {
		case <-changed:
		case <-look.C:
		case <-ctx.Done():
			return
		}
	}
}
