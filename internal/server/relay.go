package server

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/coder/websocket"

	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/server/sprite"
	"github.com/cove-dev/cove/sprites"
)

const (
	relayBuffer = 128 << 10
	maxText     = 1 << 20   // of a text message
	maxNews     = 128 << 10 // of a guest's text message to watchers
	closeGrace  = 2 * time.Second
)

// isUpgrade reports whether a request asks for a WebSocket.
func isUpgrade(r *http.Request) bool {
	return hasToken(r.Header.Values("Upgrade"), "websocket") && hasToken(r.Header.Values("Connection"), "upgrade")
}

func hasToken(values []string, token string) bool {
	for _, v := range values {
		for part := range strings.SplitSeq(v, ",") {
			if strings.EqualFold(strings.TrimSpace(part), token) {
				return true
			}
		}
	}
	return false
}

// checkUpgrade refuses a handshake that would fail, before anything is started for it.
func checkUpgrade(r *http.Request) error {
	if !isUpgrade(r) {
		return fail.New("upgrade_required", "this call needs a WebSocket", "")
	}
	if r.Header.Get("Sec-WebSocket-Version") != "13" || r.Header.Get("Sec-WebSocket-Key") == "" || r.ProtoMajor != 1 {
		return fail.New("bad_request", "the WebSocket handshake must be of version 13, over HTTP/1.1", "")
	}
	return nil
}

// relayTo joins a client's WebSocket to one of the guest's. The guest is called first: if it
// refuses, that is the answer to the client's handshake.
func (g *guestRoutes) relayTo(kind string, path guestPath) handlerFunc {
	return func(w http.ResponseWriter, r *http.Request) error {
		to, err := path(r)
		if err != nil {
			return err
		}
		if !isUpgrade(r) && kind == "exec" {
			return g.forward(to, document)(w, r) // the guest knows whether there is such a session
		}
		if err := checkUpgrade(r); err != nil {
			return err
		}
		done, err := g.relays.add(principalOf(r))
		if err != nil {
			return err
		}
		defer done()
		lease, err := g.host.Use(r.Context(), r.PathValue("name"), kind)
		if err != nil {
			return err
		}
		defer lease.Release()
		rl := relay{sandbox: lease.Sandbox(), removed: lease.Removed, held: lease.Held, translateUp: upTexts[kind], translateDown: downTexts[kind]}
		if kind == "exec" {
			rl.restored, rl.translateDown = lease.Restored, rl.execDown
		}
		watches := kind == "ports" || kind == "watch"
		rl.client.textOnly, rl.guest.textOnly = watches, watches
		rl.client.maxText, rl.guest.maxText = maxText, maxText
		if watches {
			rl.guest.maxText = maxNews
		}
		if err := g.guests.get(lease.Sandbox()).dial(r.Context(), to, r.URL.RawQuery, &rl.guest); err != nil {
			return endedOr(lease, err)
		}
		if kind == "exec" {
			w.Header().Set("X-Sprite-Capabilities", "signal")
		}
		if err := acceptSocket(w, r, &rl.client); err != nil { // which has answered
			_ = rl.guest.conn.CloseNow()
			g.log.Debug("accepting a WebSocket", "err", err)
			return nil
		}
		rl.client.conn.SetReadLimit(-1)
		if kind == "exec" {
			tellLost(&rl, lease)
			defer rl.tellHeld()()
		}
		rl.run(r.Context())
		return nil
	}
}

// side is one of the two WebSockets of a relay.
type side struct {
	conn     *websocket.Conn
	textOnly bool        // it gets no binary messages
	maxText  int         // of a text message that it sends
	writing  atomic.Bool // a message is being written
}

// answerPing decides whether a ping is answered. While a message is being written, it is not.
// The pong would wait behind the message, and a slow peer would lose the connection. The
// message is as good a sign of life.
func (s *side) answerPing(context.Context, []byte) bool { return !s.writing.Load() }

// relay moves messages between a client and a guest. It decodes text messages and encodes them
// again, and leaves others as they are. It holds only a buffer each way: a side that does not
// read holds up the other.
type relay struct {
	sandbox                    sprite.Sandbox
	removed                    func() bool // whether the sprite is being deleted
	held                       func() (*sprites.Held, <-chan struct{})
	restored                   func() bool // whether the sandbox ends for a restore; of an exec
	client, guest              side
	translateUp, translateDown func([]byte) []byte
}

// run relays until either side ends, or ctx does, and closes both.
func (rl *relay) run(ctx context.Context) {
	up, down := make(chan error, 1), make(chan error, 1)
	go func() { up <- rl.pumpUp() }()
	go func() { down <- pump(&rl.client, &rl.guest, rl.translateDown) }()
	select {
	case err := <-up:
		up <- err
		rl.clientEnded(err)
	case err := <-down:
		down <- err
		rl.guestEnded(ctx, err)
	case <-ctx.Done():
		if rl.removed() {
			closeWithin(closeGrace, rl.client.conn, websocket.StatusInternalError, removed)
		} else {
			closeFor(ctx, rl.client.conn)
		}
	}
	_ = rl.guest.conn.CloseNow()
	_ = rl.client.conn.CloseNow()
	_, _ = <-up, <-down
}

// tellLost tells the client of a command that the sprite has begun anew.
func tellLost(rl *relay, lease *sprite.Lease) {
	if why := lease.Lost(); why != "" && rl.client.write(websocket.MessageText, encode(sprites.Message{Type: sprites.MessageLost, Lost: why})) == nil {
		lease.Told()
	}
}

// tellHeld tells the client when the sprite is held, and when it goes on, until stop is
// called. Else the client would not know why nothing comes.
func (rl *relay) tellHeld() (stop func()) {
	over, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for told := false; ; {
			held, changed := rl.held()
			if told != (held != nil) {
				told = held != nil
				if rl.client.write(websocket.MessageText, encode(sprites.Message{Type: sprites.MessageHeld, Held: held})) != nil {
					return
				}
			}
			select {
			case <-changed:
			case <-over:
				return
			}
		}
	}()
	return func() { close(over); <-done }
}

// clientEnded tells the guest how the client ended. A client that just vanished
// makes the guest's connection vanish, which says the same.
func (rl *relay) clientEnded(err error) {
	if errors.Is(err, errTextTooLong) {
		closeWithin(closeGrace, rl.client.conn, websocket.StatusMessageTooBig, err.Error())
	}
	if code := websocket.CloseStatus(err); code >= 0 {
		closeWithin(closeGrace, rl.guest.conn, sendable(code), "")
	}
}

// guestEnded tells the client how the guest ended.
func (rl *relay) guestEnded(ctx context.Context, err error) {
	if _, ok := errors.AsType[*writeError](err); ok {
		return // it is the client that has gone
	}
	var code websocket.StatusCode
	var reason string
	if ce, ok := errors.AsType[websocket.CloseError](err); ok {
		code, reason = sendable(ce.Code), clean(ce.Reason, maxReason)
		if reason == removed || strings.HasPrefix(reason, endedReason) {
			reason = "" // that is for the server to say
		}
	} else {
		code, reason = websocket.StatusInternalError, rl.lost(ctx, err)
	}
	closeWithin(2*closeGrace, rl.client.conn, code, reason)
}

// maxReason bounds the reason in a closing frame (the protocol has room for a little more).
const maxReason = 120

// endWait is how long the server waits at least, after a connection broke, to learn that the
// sandbox has ended (see awaitDeath).
const endWait = 500 * time.Millisecond

// removed is the client's message if its sprite is being removed, however the call has ended.
// sprites.ErrRemoved is recognized by it.
const removed = "the sprite was removed"

// endedReason begins the client's message if its sandbox has ended.
var endedReason = sprites.ErrSandboxEnded.Error()

// broughtBack is why a sandbox has ended if its sprite is restored.
const broughtBack = "the sprite was brought back to a checkpoint"

// endedOr is the error of a call that a guest has not answered. It is err, unless the sprite
// is being removed or brought back to a checkpoint: then it says so.
func endedOr(lease *sprite.Lease, err error) error {
	if lease.Removed() {
		return fail.New(sprite.CodeDeleting, removed, "")
	}
	if _, ok := errors.AsType[*fail.Error](err); ok && lease.Restored() {
		return endedError(broughtBack)
	}
	return err
}

// endedError is the answer to a call whose sandbox has ended.
func endedError(why string) error {
	e := fail.New(sprite.CodeUnavailable, endedReason+": "+why, "try again: that starts another sandbox")
	e.RetryAfter = time.Second
	return e
}

// brokenOff reports whether an error is that of a connection whose other end is gone.
func brokenOff(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

// lost says why the connection to the sandbox broke.
func (rl *relay) lost(ctx context.Context, err error) string {
	if rl.removed() {
		return removed
	}
	if !brokenOff(err) {
		return "the connection to the sandbox was lost"
	}
	if rl.restored != nil && rl.restored() {
		return endedReason + ": " + broughtBack
	}
	awaitDeath(ctx, rl.sandbox, endWait)
	select {
	case <-rl.sandbox.Done():
		return clean(endedReason+": "+rl.sandbox.Status().Ended, maxReason)
	default:
		return "the connection to the sandbox was lost"
	}
}

// sendable is the code to pass on for a code that came. Some codes may not be sent: they stand
// for a missing code.
func sendable(code websocket.StatusCode) websocket.StatusCode {
	switch code {
	case websocket.StatusNoStatusRcvd:
		return websocket.StatusNormalClosure
	case websocket.StatusAbnormalClosure, websocket.StatusTLSHandshake:
		return websocket.StatusInternalError
	}
	return code
}

// closeWithin does the closing handshake, for at most d.
func closeWithin(d time.Duration, conn *websocket.Conn, code websocket.StatusCode, reason string) {
	t := time.AfterFunc(d, func() { _ = conn.CloseNow() })
	defer t.Stop()
	_ = conn.Close(code, reason) // if that fails, nobody is there to read it
}

// closeFor closes a connection because its context has ended.
func closeFor(ctx context.Context, conn *websocket.Conn) {
	if context.Cause(ctx) == errEnded {
		closeWithin(closeGrace, conn, websocket.StatusPolicyViolation, errEnded.Message)
		return
	}
	closeWithin(closeGrace, conn, websocket.StatusGoingAway, "the server is shutting down")
}

// writeError is an error of the side that is written to.
type writeError struct{ err error }

func (e *writeError) Error() string { return e.err.Error() }
func (e *writeError) Unwrap() error { return e.err }

var errTextTooLong = errors.New("a text message is too long")

var relayBuffers = sync.Pool{New: func() any { b := make([]byte, relayBuffer); return &b }}

// pump moves messages from one side to the other until the source ends.
func pump(dst, src *side, translate func([]byte) []byte) error {
	for {
		if err := pumpOne(dst, src, translate); err != nil {
			return err
		}
	}
}

// pumpUp is pump for the client's messages. If the guest takes no more, it goes on reading and
// discards: the guest's last messages may still be on their way.
func (rl *relay) pumpUp() error {
	for {
		err := pumpOne(&rl.guest, &rl.client, rl.translateUp)
		if _, ok := errors.AsType[*writeError](err); ok {
			return discard(&rl.client)
		}
		if err != nil {
			return err
		}
	}
}

// pumpOne moves a message.
func pumpOne(dst, src *side, translate func([]byte) []byte) error {
	typ, msg, err := src.conn.Reader(context.Background())
	if err != nil {
		return err
	}
	if typ == websocket.MessageText {
		return dst.passText(msg, src.maxText, translate)
	}
	return dst.passData(msg)
}

// discard reads until the side ends.
func discard(src *side) error {
	for {
		_, msg, err := src.conn.Reader(context.Background())
		if err != nil {
			return err
		}
		if _, err := io.Copy(io.Discard, msg); err != nil {
			return err
		}
	}
}

// passText passes a text message on, if the call has such messages.
func (s *side) passText(msg io.Reader, limit int, translate func([]byte) []byte) error {
	text, err := io.ReadAll(io.LimitReader(msg, int64(limit)+1))
	if err != nil {
		return err
	}
	if len(text) > limit {
		return errTextTooLong
	}
	if text = translate(text); text == nil {
		return nil
	}
	return s.write(websocket.MessageText, text)
}

func (s *side) write(typ websocket.MessageType, p []byte) error {
	s.writing.Store(true)
	defer s.writing.Store(false)
	if err := s.conn.Write(context.Background(), typ, p); err != nil {
		return &writeError{err}
	}
	return nil
}

// passData passes a binary message on. A message that fits the buffer stays one frame; a
// longer one goes through the buffer piece by piece.
func (s *side) passData(msg io.Reader) error {
	if s.textOnly {
		return drained(msg, nil)
	}
	buf := relayBuffers.Get().(*[]byte)
	defer relayBuffers.Put(buf)
	n, err := io.ReadFull(msg, *buf)
	if err == io.EOF || err == io.ErrUnexpectedEOF {
		return s.write(websocket.MessageBinary, (*buf)[:n])
	}
	if err != nil {
		return err
	}
	s.writing.Store(true)
	defer s.writing.Store(false)
	w, err := s.conn.Writer(context.Background(), websocket.MessageBinary)
	if err != nil {
		return drained(msg, &writeError{err})
	}
	for {
		if n > 0 {
			if _, err := w.Write((*buf)[:n]); err != nil {
				return drained(msg, &writeError{err})
			}
		}
		n, err = msg.Read(*buf)
		if err == io.EOF && n == 0 {
			if err := w.Close(); err != nil {
				return &writeError{err}
			}
			return nil
		}
		if err != nil && err != io.EOF {
			return err
		}
	}
}

// drained reads the rest of a message, so that the next can be read. It returns err, or the
// error of reading.
func drained(msg io.Reader, err error) error {
	if _, readErr := io.Copy(io.Discard, msg); readErr != nil {
		return readErr
	}
	return err
}

// The text messages of each kind of WebSocket, from client to guest and back. A function
// decodes a message, and encodes what it has understood; nil drops the message.
var (
	upTexts   = map[string]func([]byte) []byte{"exec": execText, "ports": noText, "watch": watchUp}
	downTexts = map[string]func([]byte) []byte{"exec": execText, "ports": portsText, "watch": watchDown}
)

// noText is for a side that has nothing to say.
func noText([]byte) []byte { return nil }

// execDown is execText for a guest's messages. A guest ends a command as "stopped", and does
// not know why: a client learns the reason only from the server.
func (rl *relay) execDown(text []byte) []byte {
	m, ok := execMessage(text)
	if ok && m.Type == "exit" {
		switch {
		case m.Reason == "removed" || m.Reason == "restored":
			m.Reason = ""
		case m.Reason != "stopped":
		case rl.removed():
			m.Reason = "removed"
		case rl.restored():
			m.Reason = "restored"
		}
	}
	return encodeExec(m, ok)
}

func execText(text []byte) []byte { return encodeExec(execMessage(text)) }

// execMessage decodes a message of an exec; ok is false if the message must not pass.
func execMessage(text []byte) (m sprites.Message, ok bool) {
	if json.Unmarshal(text, &m) != nil || m.Type == "" || m.Type == sprites.MessageHeld || m.Type == sprites.MessageLost {
		return m, false // that is for the server to say
	}
	m.Held, m.Lost = nil, ""
	if !sessionID().MatchString(m.SessionID) { // people type it
		m.SessionID = ""
	}
	return m, true
}

func encodeExec(m sprites.Message, ok bool) []byte {
	if !ok {
		return nil
	}
	if m.Type == sprites.PortOpened || m.Type == sprites.PortClosed {
		return portText(sprites.PortEvent{Type: m.Type, Port: m.Port, Address: m.Address, PID: m.PID})
	}
	return encode(m)
}

// maxPorts is how many ports of a list are passed on.
const maxPorts = 1024

// portsText is for what a watch of ports says.
func portsText(text []byte) []byte {
	var m struct {
		sprites.PortEvent
		Ports json.RawMessage `json:"ports"`
	}
	if json.Unmarshal(text, &m) != nil {
		return nil
	}
	switch m.Type {
	case "keepalive":
		return encode(sprites.Message{Type: m.Type})
	case "port_list":
		list := sprites.PortList{Type: m.Type, Ports: []sprites.PortEvent{}}
		err := elements(m.Ports, func(p sprites.PortEvent) bool {
			if p, ok := p.Checked(); ok && p.Type == sprites.PortOpened {
				list.Ports = append(list.Ports, p)
			}
			return len(list.Ports) < maxPorts
		})
		if err != nil {
			return nil
		}
		return encode(list)
	}
	return portText(m.PortEvent)
}

// elements decodes a list one element at a time, as long as f wants more. In memory the list
// may be many times as large as its text. A list that is null, or has no text, is empty.
func elements[T any](list json.RawMessage, f func(T) bool) error {
	if len(list) == 0 || string(list) == "null" {
		return nil
	}
	dec := json.NewDecoder(bytes.NewReader(list))
	if t, err := dec.Token(); err != nil || t != json.Delim('[') {
		return errors.Join(errors.New("not a list"), err)
	}
	var v, zero T
	for dec.More() {
		v = zero
		if err := dec.Decode(&v); err != nil {
			return err
		}
		if !f(v) {
			break
		}
	}
	return nil
}

func portText(e sprites.PortEvent) []byte {
	e, ok := e.Checked()
	if !ok {
		return nil
	}
	return encode(e)
}

func encode(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		return nil
	}
	return b
}
