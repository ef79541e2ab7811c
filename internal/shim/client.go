package shim

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/cove-dev/cove/internal/lib/boot"
	"github.com/cove-dev/cove/internal/shim/connect"
	"github.com/cove-dev/cove/internal/shim/policy"
)

// Client speaks to the shim of one sandbox. The zero value with Dir is ready to
// use, by several goroutines.
type Client struct {
	Dir string // the sandbox's folder
}

// dial opens a connection to the shim's socket. No shim: an error for which
// IsNoShim is true.
func (c Client) dial(ctx context.Context) (net.Conn, error) {
	dir, err := os.Open(c.Dir)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), socketName))
	if op, ok := errors.AsType[*net.OpError](err); ok { // its path means nothing to others
		return nil, fmt.Errorf("%s: %w", filepath.Join(c.Dir, socketName), op.Err)
	}
	return conn, err
}

// IsNoShim reports whether err says that no shim serves the sandbox's folder.
func IsNoShim(err error) bool {
	if _, inside := errors.AsType[refusedError](err); inside {
		return false // a shim has asked
	}
	return errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED)
}

// refusedError is the ECONNREFUSED of a port of the guest. The shim has answered.
type refusedError struct{}

func (refusedError) Error() string { return syscall.ECONNREFUSED.Error() }

func (refusedError) Is(target error) bool { return target == syscall.ECONNREFUSED }

// Died reports whether err says that the shim is not there, or ended before it
// answered.
func Died(err error) bool {
	return IsNoShim(err) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

// call makes one request of the API and decodes its answer into out, unless nil.
func (c Client) call(ctx context.Context, method, path string, in, out any) error {
	var body io.Reader
	if in != nil {
		data, err := json.Marshal(in)
		if err != nil {
			return err
		}
		body = bytes.NewReader(data)
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://shim"+path, body)
	if err != nil {
		return err
	}
	tr := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return c.dial(ctx) }}
	resp, err := tr.RoundTrip(req)
	if err != nil {
		return fmt.Errorf("shim: %w", err)
	}
	defer resp.Body.Close()
	if resp.StatusCode >= 300 {
		data, _ := io.ReadAll(io.LimitReader(resp.Body, 4096))
		text := strings.TrimSpace(string(data))
		switch resp.StatusCode {
		case http.StatusGone:
			return fmt.Errorf("shim: %w%s", ErrEnded, strings.TrimPrefix(text, ErrEnded.Error()))
		case http.StatusUnprocessableEntity:
			return fmt.Errorf("shim: %w%s", ErrMemoryUsed, strings.TrimPrefix(text, ErrMemoryUsed.Error()))
		case http.StatusConflict:
			return fmt.Errorf("shim: %w%s", ErrDeleted, strings.TrimPrefix(text, ErrDeleted.Error()))
		case http.StatusFailedDependency:
			return fmt.Errorf("shim: %w%s", ErrNetworks, strings.TrimPrefix(text, ErrNetworks.Error()))
		case http.StatusInsufficientStorage:
			return fmt.Errorf("shim: %s: %w", strings.TrimSuffix(text, ": "+syscall.ENOSPC.Error()), syscall.ENOSPC)
		}
		return fmt.Errorf("shim: %s", text)
	}
	if out == nil {
		return nil
	}
	if err := json.NewDecoder(io.LimitReader(resp.Body, 1<<20)).Decode(out); err != nil {
		return fmt.Errorf("shim: %w", err)
	}
	return nil
}

// Status returns the sandbox's state.
func (c Client) Status(ctx context.Context) (State, error) {
	var st State
	return st, c.call(ctx, http.MethodGet, "/v1/status", nil, &st)
}

// Settle is Status for a caller that does not know the result of a Checkpoint. If the
// Checkpoint to this layer has not begun yet, it never will.
func (c Client) Settle(ctx context.Context, layer string) (State, error) {
	var st State
	return st, c.call(ctx, http.MethodGet, "/v1/status?refuse="+url.QueryEscape(layer), nil, &st)
}

// Wait returns when the sandbox has ended and the shim has cleaned up after it,
// with the reason. Any error means that the shim is gone, which says nothing of
// the sandbox.
func (c Client) Wait(ctx context.Context) (End, error) {
	var end End
	return end, c.call(ctx, http.MethodGet, "/v1/wait", nil, &end)
}

// Stop ends the sandbox, its processes first by TERM and after grace by force.
func (c Client) Stop(ctx context.Context, grace time.Duration) (End, error) {
	var end End
	return end, c.call(ctx, http.MethodPost, "/v1/stop?grace="+grace.String(), nil, &end)
}

// Checkpoint seals the layer that is written, and moves the sandbox to another. After an
// error of the shim's the sandbox goes on as it was, except for ErrEnded. ENOSPC says that
// there is no room, and ErrDeleted that deleted files are too large. ErrNetworks says that
// programs have networks of their own. If the answer is lost, Settle tells the result.
func (c Client) Checkpoint(ctx context.Context, req Checkpoint) (Checkpointed, error) {
	var done Checkpointed
	return done, c.call(ctx, http.MethodPost, "/v1/checkpoint", req, &done)
}

// Hibernate saves the sandbox's memory to a folder, and ends it. After an error the
// sandbox goes on, except for ErrEnded. ErrDeleted and ErrNetworks are as for a
// Checkpoint.
func (c Client) Hibernate(ctx context.Context, dir string) error {
	return c.call(ctx, http.MethodPost, "/v1/hibernate", map[string]string{"dir": dir}, nil)
}

// Assign gives a sandbox that was started for no sprite to one. After an error the sandbox
// must be ended.
func (c Client) Assign(ctx context.Context, a Assignment) (State, error) {
	var st State
	return st, c.call(ctx, http.MethodPost, "/v1/assign", a, &st)
}

// Pause freezes the sandbox in memory; pausing a paused one is no error.
func (c Client) Pause(ctx context.Context) error {
	return c.call(ctx, http.MethodPost, "/v1/pause", nil, nil)
}

// Resume undoes Pause.
func (c Client) Resume(ctx context.Context) error {
	return c.call(ctx, http.MethodPost, "/v1/resume", nil, nil)
}

// SetConnectors replaces the connectors of a running sandbox, and ends requests through
// those that are removed.
func (c Client) SetConnectors(ctx context.Context, all map[string]connect.Upstream) error {
	return c.call(ctx, http.MethodPut, "/v1/connectors", all, nil)
}

// SetNetwork replaces the policies of a running sandbox's network. Connections that they
// do not allow have ended when it returns.
func (c Client) SetNetwork(ctx context.Context, set policy.Set) error {
	return c.call(ctx, http.MethodPut, "/v1/network", set, nil)
}

// SetLimits gives a running sandbox other limits. ErrMemoryUsed says that it uses more.
func (c Client) SetLimits(ctx context.Context, l Limits) error {
	return c.call(ctx, http.MethodPut, "/v1/limits", l, nil)
}

// Dial opens a connection to a port of the guest. syscall.ECONNREFUSED says that
// nothing listens there.
func (c Client) Dial(ctx context.Context, port int) (net.Conn, error) {
	conn, err := c.dial(ctx)
	if err != nil {
		return nil, fmt.Errorf("dial %s: %w", portName(port), err)
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	joined, err := connectThrough(conn, port)
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		_ = conn.Close()
		return nil, fmt.Errorf("dial %s: %w", portName(port), err)
	}
	return joined, nil
}

// portName is the name of a port in errors.
func portName(port int) string {
	if port == boot.API {
		return "the guest"
	}
	return fmt.Sprintf("port %d of the sandbox", port)
}

func connectThrough(conn net.Conn, port int) (net.Conn, error) {
	if _, err := fmt.Fprintf(conn, "CONNECT guest:%d HTTP/1.1\r\nHost: guest:%d\r\n\r\n", port, port); err != nil {
		return nil, err
	}
	br := bufio.NewReaderSize(conn, 512)
	resp, err := http.ReadResponse(br, &http.Request{Method: http.MethodConnect})
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		defer resp.Body.Close()
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 4096))
		if resp.StatusCode == http.StatusServiceUnavailable {
			return nil, refusedError{}
		}
		return nil, errors.New(strings.TrimSpace(string(text)))
	}
	if br.Buffered() > 0 { // the guest spoke first
		return &earlyConn{Conn: conn, early: br}, nil
	}
	return conn, nil
}

// earlyConn is a connection that has bytes which were read already.
type earlyConn struct {
	net.Conn
	early *bufio.Reader
}

func (c *earlyConn) Read(p []byte) (int, error) {
	if c.early.Buffered() > 0 {
		return c.early.Read(p)
	}
	return c.Conn.Read(p)
}

// CloseWrite ends the direction to the guest.
func (c *earlyConn) CloseWrite() error {
	if h, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return h.CloseWrite()
	}
	return errors.ErrUnsupported
}
