package guest

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coder/websocket"

	"github.com/cove-dev/cove/internal/guest/ports"
	"github.com/cove-dev/cove/internal/guest/signals"
	"github.com/cove-dev/cove/internal/guest/wire"
	"github.com/cove-dev/cove/sprites"
)

// wsClient is a client on a WebSocket (protocol sections 3.2 to 3.6).
type wsClient struct {
	conn *wire.Conn

	done chan struct{} // closed when the connection has ended
	once sync.Once

	slow      atomic.Bool  // others wait
	sent      atomic.Int64 // when the last message went out, Unix nanoseconds
	following atomic.Bool  // followPorts was called

	// Of a client that can resume its input, else nil.
	at   *int64        // where in the input the next bytes are; serve's
	news chan struct{} // has a value when the command has taken more of it

	mu       sync.Mutex      // held for a message, and for a whole replay
	ended    bool            // the exit has been sent: nothing may follow
	ports    *ports.Follower // nil before the session's ports are of interest
	listened *atomic.Bool    // set when it is told of a port that opens; the session's
}

// patience is how long a client may block when others wait for it.
const patience = 30 * time.Second

// ttyFailed closes a terminal's socket when the command has failed, for clients
// that read success from the code 1000 (section 3.3).
const ttyFailed = websocket.StatusCode(4001)

func (s *sessions) newClient(w http.ResponseWriter, r *http.Request) (*wsClient, error) {
	w.Header().Set("X-Sprite-Capabilities", "signal")
	conn, err := wire.Accept(w, r, chunk+1)
	if err != nil {
		return nil, err
	}
	c := &wsClient{conn: conn, done: make(chan struct{})}
	c.sent.Store(time.Now().UnixNano())
	s.wg.Go(func() { c.heartbeat(s.silence) })
	return c, nil
}

func (c *wsClient) output(frame []byte, tty bool) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.send(frame, tty)
}

// send is output. The caller must hold mu.
func (c *wsClient) send(frame []byte, tty bool) error {
	if tty {
		frame = frame[1:]
	}
	return c.write(websocket.MessageBinary, frame)
}

func (c *wsClient) write(typ websocket.MessageType, p []byte) error {
	if c.slow.Load() {
		_ = c.conn.SetWriteDeadline(time.Now().Add(patience)) // a closed one fails below
	}
	// No context with an end: with one, the library would give up on a client that pauses.
	err := c.conn.Write(context.Background(), typ, p)
	c.sent.Store(time.Now().UnixNano())
	return err
}

func (c *wsClient) text(m sprites.Message) error {
	data, err := json.Marshal(m)
	if err != nil {
		return err
	}
	return c.write(websocket.MessageText, data)
}

// info describes the session, in the first message. A client that attaches also gets how much
// of each stream came before the kept output. A client that can resume its input gets where to
// go on.
func (c *wsClient) info(s *session, owner bool, before []int64) error {
	if c.at != nil {
		*c.at = s.intake.taken.Load()
	}
	return c.text(sprites.Message{
		Taken:     c.at,
		Type:      "session_info",
		SessionID: s.id,
		Command:   s.cmd.String(),
		Created:   s.created.Unix(),
		IsOwner:   owner,
		TTY:       s.cmd.tty,
		Before:    before,
	})
}

// resumable makes the client one that can resume its input.
func (c *wsClient) resumable(s *session) {
	c.at, c.news = new(int64), make(chan struct{}, 1)
	s.set.wg.Go(func() { c.tellTaken(s) })
}

// takenStep is how much input a command takes before its client is told again.
const takenStep = 64 << 10

// tellTaken tells the client how much input the command has taken, until the connection
// ends.
func (c *wsClient) tellTaken(s *session) {
	for {
		select {
		case <-c.news:
		case <-c.done:
			return
		}
		taken := s.intake.taken.Load()
		c.mu.Lock()
		var err error
		if !c.ended {
			err = c.text(sprites.Message{Type: sprites.MessageTaken, Taken: &taken})
		}
		c.mu.Unlock()
		if err != nil {
			c.drop()
			return
		}
	}
}

// took notes that the command has taken input of the client.
func (c *wsClient) took(before int64) {
	if c.at == nil || before/takenStep == *c.at/takenStep {
		return
	}
	select {
	case c.news <- struct{}{}:
	default:
	}
}

func (c *wsClient) exit(e ending, tty bool) {
	c.mu.Lock()
	_ = c.tellPorts() // it has gone: the exit fails, too
	c.ended = true
	messages := 1
	if !tty {
		messages = 2
	}
	c.conn.Hold(messages) // with the close, in one packet
	err := c.text(sprites.Message{Type: "exit", ExitCode: &e.code, Code: &e.code, Reason: e.reason, Left: e.left})
	status := websocket.StatusNormalClosure
	if tty && e.code != 0 {
		status = ttyFailed
	}
	if !tty && err == nil {
		err = c.write(websocket.MessageBinary, []byte{byte(sprites.StreamExit), byte(e.code)})
	}
	c.mu.Unlock()
	if err == nil {
		_ = c.conn.Close(status, "") // it has gone, or does not answer: closed all the same
	}
	c.drop()
}

func (c *wsClient) crowded(yes bool) {
	if c.slow.Swap(yes) == yes {
		return
	}
	var until time.Time
	if yes {
		until = time.Now().Add(patience) // for a write that blocks already
	}
	_ = c.conn.SetWriteDeadline(until)
}

func (c *wsClient) drop() {
	c.once.Do(func() { close(c.done) })
	_ = c.conn.CloseNow()
}

// heartbeat sends pings, and a keepalive message after silence, for clients that do not notice
// pings.
func (c *wsClient) heartbeat(silence time.Duration) {
	every := silence * 3 / 4
	pinged := time.Now()
	timer := time.NewTimer(every)
	defer timer.Stop()
	for {
		select {
		case <-c.done:
			return
		case <-timer.C:
		}
		now := time.Now()
		quiet := now.Sub(time.Unix(0, c.sent.Load()))
		if quiet >= silence && c.mu.TryLock() { // else something is on its way
			var err error
			if !c.ended {
				err = c.text(sprites.Message{Type: "keepalive"})
			}
			c.mu.Unlock()
			if err != nil {
				c.drop()
				return
			}
			quiet = 0
		}
		if now.Sub(pinged) >= every {
			pinged = now
			if c.conn.SendPing() != nil {
				c.drop()
				return
			}
		}
		timer.Reset(max(min(silence-quiet, every-now.Sub(pinged)), silence/20))
	}
}

// serve handles the client's messages until its connection ends. If stdin is set, binary data
// goes to the command's input.
func (c *wsClient) serve(s *session, stdin bool) {
	s.set.expectPorts()
	bufp := chunks.Get().(*[chunk + 1]byte)
	defer chunks.Put(bufp)
	for {
		typ, msg, err := c.conn.Reader(context.Background())
		if err != nil {
			return
		}
		if typ == websocket.MessageText {
			err = s.control(msg)
		} else {
			err = c.feed(s, msg, bufp[:], stdin)
		}
		if err != nil {
			return
		}
	}
}

// detachAtEnd removes the client from the session when its connection has ended. serve finds that
// out only when it reads, and it does not while the command leaves its input alone.
func (c *wsClient) detachAtEnd(s *session) {
	s.set.wg.Go(func() {
		<-c.done
		s.detach(c)
	})
}

// followPorts begins to tell the client which ports the session's processes listen on.
func (c *wsClient) followPorts(s *session) {
	if !c.following.Swap(true) {
		s.set.wg.Go(func() { c.portLoop(s) })
	}
}

// portLoop sends events of the session's ports until the client's connection ends.
func (c *wsClient) portLoop(s *session) {
	f := s.set.ports.Follow(s.id)
	defer f.Leave()
	c.mu.Lock()
	c.ports, c.listened = f, &s.listened
	c.mu.Unlock()
	for {
		select {
		case <-f.Changed():
		case <-c.done:
			return
		}
		c.mu.Lock()
		err := c.tellPorts()
		c.mu.Unlock()
		if err != nil {
			c.drop()
			return
		}
	}
}

// tellPorts sends new events of the session's ports. The caller must hold mu.
func (c *wsClient) tellPorts() error {
	if c.ports == nil || c.ended {
		return nil
	}
	news := c.ports.News()
	if slices.ContainsFunc(news, func(e sprites.PortEvent) bool { return e.Type == sprites.PortOpened }) {
		c.listened.Store(true)
	}
	for _, e := range news {
		if err := c.text(sprites.Message{Type: e.Type, Port: e.Port, Address: e.Address, PID: e.PID}); err != nil {
			return err
		}
	}
	return nil
}

// feed streams a binary message to the command. Input that the command does not take is read
// and discarded. An error is of the connection.
func (c *wsClient) feed(s *session, msg io.Reader, buf []byte, stdin bool) error {
	// A terminal takes input from any client that attaches, whatever its first client said.
	stdin = stdin && (s.cmd.stdin || s.cmd.tty)
	for first := !s.cmd.tty; ; {
		n, err := msg.Read(buf)
		p := buf[:n]
		if n > 0 && first {
			first = false
			stream := sprites.Stream(p[0])
			if stream == sprites.StreamStdinEOF && stdin {
				s.closeInput()
			}
			stdin = stdin && stream == sprites.StreamStdin
			p = p[1:]
		}
		if len(p) > 0 && stdin {
			var before int64
			if c.at != nil {
				before = *c.at
			}
			s.take(p, c.at)
			c.took(before)
		}
		if errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
	}
}

// control handles a text message, and ignores unknown ones.
func (s *session) control(msg io.Reader) error {
	var m sprites.Message
	ok, err := wire.ReadText(msg, &m)
	if err != nil || !ok {
		return err
	}
	switch m.Type {
	case "resize":
		s.resize(m.Cols, m.Rows)
	case "signal":
		if sig, err := signals.Parse(m.Signal); err == nil {
			_ = s.signal(sig) // the command has just ended
		}
	}
	return nil
}
