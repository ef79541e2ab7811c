package sprites

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coder/websocket"
)

// handshakeLimit bounds a WebSocket handshake. A sleeping sprite may have to start
// meanwhile.
const handshakeLimit = 2 * time.Minute

// socket is a client's WebSocket. One goroutine reads it; any may write.
// Writes never wait while they hold the WebSocket (see outbox), so that pongs and
// signals are not stuck behind data that the other side is not taking.
type socket struct {
	ws     *websocket.Conn
	out    *outbox
	header http.Header // of the handshake's answer

	heard      atomic.Bool // something has come since the watchdog looked
	delivering atomic.Bool // the reader is busy handing on what it read
	sending    sync.Mutex  // held by data writers, while they wait for room

	stop chan struct{} // closed by close
	once sync.Once
	wg   sync.WaitGroup
	cut  atomic.Pointer[error] // why this side gave the connection up
}

// dial opens a WebSocket at path. The context is for the handshake alone. A
// refused handshake is an *Error.
func (c *Client) dial(ctx context.Context, path string, query url.Values) (*socket, error) {
	target, err := c.url(path, query)
	if err != nil {
		return nil, err
	}
	var s *socket
	err = retryUnavailable(ctx, true, func() error {
		s, err = c.handshake(ctx, target)
		return err
	})
	if err != nil {
		return nil, err
	}
	s.wg.Go(s.watch)
	return s, nil
}

func (c *Client) handshake(ctx context.Context, target string) (*socket, error) {
	ctx, cancel := context.WithTimeout(ctx, handshakeLimit)
	defer cancel()

	s := &socket{stop: make(chan struct{})}
	tap := &upgrader{base: c.http().Transport}
	client := *c.http()
	client.Transport = tap
	ws, resp, err := websocket.Dial(ctx, target, &websocket.DialOptions{
		HTTPClient:      &client,
		HTTPHeader:      c.header(nil),
		CompressionMode: websocket.CompressionDisabled,
		OnPingReceived:  func(context.Context, []byte) bool { s.heard.Store(true); return true },
		OnPongReceived:  func(context.Context, []byte) { s.heard.Store(true) },
	})
	if err != nil {
		if tap.out != nil {
			_ = tap.out.Close()
		}
		if tap.refused != nil {
			return nil, tap.refused
		}
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		return nil, withoutURL(err)
	}
	ws.SetReadLimit(-1) // messages are read as streams, text is bounded by readText
	s.ws, s.out, s.header = ws, tap.out, resp.Header
	return s, nil
}

// upgrader is a RoundTripper for one handshake. It puts an outbox over the upgraded
// connection. It keeps a refusal whole: the WebSocket library would keep only a
// kilobyte of it.
type upgrader struct {
	base    http.RoundTripper // nil: http.DefaultTransport
	out     *outbox
	refused error
}

func (u *upgrader) RoundTrip(req *http.Request) (*http.Response, error) {
	base := u.base
	if base == nil {
		base = http.DefaultTransport
	}
	resp, err := base.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusSwitchingProtocols {
		u.refused = responseError(resp)
		resp.Body = http.NoBody
		return resp, nil
	}
	if rwc, ok := resp.Body.(io.ReadWriteCloser); ok {
		u.out = newOutbox(rwc)
		resp.Body = u.out
	}
	return resp, nil
}

// next waits for the next message. The reader must be read to its end before the
// following call.
func (s *socket) next() (websocket.MessageType, io.Reader, error) {
	typ, r, err := s.ws.Reader(context.Background())
	if err != nil {
		if cut := s.cut.Load(); cut != nil {
			err = *cut
		}
		return 0, nil, plainError(err)
	}
	s.heard.Store(true)
	return typ, &heardReader{s, r}, nil
}

// plainError is a WebSocket's error without what the library says around it.
func plainError(err error) error {
	if e, ok := errors.AsType[websocket.CloseError](err); ok && e.Reason != "" {
		return closedError{e}
	}
	if e, ok := errors.AsType[*net.OpError](err); ok {
		return e
	}
	if errors.Is(err, io.EOF) {
		return io.EOF
	}
	return err
}

// closedError is an end for which the other side gave a reason.
type closedError struct{ err websocket.CloseError }

func (e closedError) Error() string { return printable(e.err.Reason) }
func (e closedError) Unwrap() error { return e.err }

// Is makes the reasons findable that a server gives.
func (e closedError) Is(target error) bool {
	return target == ErrRemoved && e.err.Reason == ErrRemoved.Error() || target == ErrSandboxEnded && sandboxEnded(e.err.Reason)
}

// heardReader tells the socket's watchdog of every piece of a long message.
type heardReader struct {
	s *socket
	r io.Reader
}

func (h *heardReader) Read(p []byte) (int, error) {
	n, err := h.r.Read(p)
	h.s.heard.Store(true)
	return n, err
}

// readText reads a text message, of at most maxMessage bytes.
func readText(r io.Reader) ([]byte, error) {
	b, err := io.ReadAll(io.LimitReader(r, maxMessage+1))
	if err != nil {
		return nil, err
	}
	if len(b) > maxMessage {
		return nil, fmt.Errorf("text message longer than %d bytes", maxMessage)
	}
	return b, nil
}

// deliver writes p to w, while which the connection's silence counts for nothing.
func (s *socket) deliver(w io.Writer, p []byte) error {
	s.delivering.Store(true)
	defer s.delivering.Store(false)
	n, err := w.Write(p)
	if err == nil && n < len(p) {
		err = io.ErrShortWrite
	}
	return err
}

// send sends a binary message of data, once there is room for it.
func (s *socket) send(p []byte) error {
	s.sending.Lock()
	defer s.sending.Unlock()
	if err := s.out.waitRoom(); err != nil {
		return err
	}
	return s.ws.Write(context.Background(), websocket.MessageBinary, p)
}

// tell sends v as a JSON text message, without waiting for room. It must be
// small.
func (s *socket) tell(v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return s.ws.Write(context.Background(), websocket.MessageText, b)
}

// linger reads until the other side closes, d at most.
func (s *socket) linger(d time.Duration) {
	t := time.AfterFunc(d, func() { _ = s.ws.CloseNow() })
	defer t.Stop()
	for {
		_, r, err := s.next()
		if err != nil {
			return
		}
		if _, err := io.Copy(io.Discard, r); err != nil {
			return
		}
	}
}

// giveUp ends the connection at once; reading then fails with err.
func (s *socket) giveUp(err error) {
	s.cut.CompareAndSwap(nil, &err)
	_ = s.ws.CloseNow()
}

// close ends the connection, if it has not ended, and waits for the socket's
// goroutines.
func (s *socket) close() {
	s.once.Do(func() { close(s.stop) })
	_ = s.ws.CloseNow()
	_ = s.out.Close()
	s.wg.Wait()
}

func (s *socket) watch() {
	t := time.NewTicker(watchTick)
	defer t.Stop()
	d := watchdog{
		quiet: func() bool {
			return !s.heard.Swap(false) && !s.delivering.Load() && !s.out.full()
		},
		ping: func() {
			ctx, cancel := context.WithTimeout(context.Background(), watchTick)
			defer cancel()
			_ = s.ws.Ping(ctx) // the answer is noticed where it is read
		},
		giveUp: func() {
			s.giveUp(fmt.Errorf("nothing heard from the server for %v", watchTick*watchLimit))
		},
	}
	d.run(t.C, s.stop)
}

// The watchdog's times: a ping after 15 seconds of silence, the end after 45.
const (
	watchTick  = 5 * time.Second
	watchPing  = 3 // ticks
	watchLimit = 9
)

// A watchdog pings a silent connection and then gives it up. It counts its own
// ticks, not the clock: a machine that slept has heard nothing for an hour and
// missed nothing.
type watchdog struct {
	quiet  func() bool // nothing has come since the last call, though it could have
	ping   func()
	giveUp func()
}

func (w watchdog) run(ticks <-chan time.Time, stop <-chan struct{}) {
	for silent := 0; ; {
		select {
		case <-ticks:
		case <-stop:
			return
		}
		if !w.quiet() {
			silent = 0
			continue
		}
		silent++
		if silent >= watchLimit {
			w.giveUp()
			return
		}
		if silent%watchPing == 0 {
			w.ping()
		}
	}
}
