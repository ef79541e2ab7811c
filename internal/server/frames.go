package server

import (
	"bufio"
	"encoding/binary"
	"io"
	"net"
	"net/http"

	"github.com/coder/websocket"
)

// The WebSocket library writes through a buffer of 4 KiB. A frame of 32 KiB of input
// would be eight writes to the guest, and one of output two to the client.
const (
	maxHeldFrame = 64<<10 + 64 // of a frame to a guest that is held until it is whole
	acceptBuffer = 32<<10 + 64 // of writes to a client: a guest's frame and its header
)

// acceptSocket answers a client's WebSocket handshake.
func acceptSocket(w http.ResponseWriter, r *http.Request, s *side) (err error) {
	s.conn, err = websocket.Accept(largeWrites{w}, r, &websocket.AcceptOptions{OnPingReceived: s.answerPing})
	return err
}

// largeWrites gives an upgraded connection a larger buffer for writes.
type largeWrites struct{ http.ResponseWriter }

func (l largeWrites) Unwrap() http.ResponseWriter { return l.ResponseWriter }

func (l largeWrites) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := http.NewResponseController(l.ResponseWriter).Hijack()
	if err != nil {
		return nil, nil, err
	}
	return conn, bufio.NewReadWriter(rw.Reader, bufio.NewWriterSize(conn, acceptBuffer)), nil
}

// wholeFrames makes a guest's transport write WebSocket frames in one piece.
type wholeFrames struct{ http.RoundTripper }

func (t wholeFrames) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := t.RoundTripper.RoundTrip(r)
	if err == nil && resp.StatusCode == http.StatusSwitchingProtocols {
		if conn, ok := resp.Body.(io.ReadWriteCloser); ok {
			resp.Body = &frameWriter{ReadWriteCloser: conn}
		}
	}
	return resp, err
}

// frameWriter holds what is written until it ends a frame, unless the frame is too long.
type frameWriter struct {
	io.ReadWriteCloser
	held []byte
	head []byte // of the frame that is being written, as far as it has come
	left int64  // of its payload
}

func (f *frameWriter) Write(p []byte) (int, error) {
	f.follow(p)
	if (f.left > 0 || len(f.head) > 0) && len(f.held)+len(p) <= maxHeldFrame {
		f.held = append(f.held, p...)
		return len(p), nil
	}
	if len(f.held) == 0 {
		return f.ReadWriteCloser.Write(p)
	}
	_, err := f.ReadWriteCloser.Write(append(f.held, p...))
	f.held = f.held[:0]
	if err != nil {
		return 0, err
	}
	return len(p), nil
}

// follow notes where in a frame p ends.
func (f *frameWriter) follow(p []byte) {
	for len(p) > 0 {
		if f.left > 0 {
			n := min(f.left, int64(len(p)))
			f.left -= n
			p = p[n:]
			continue
		}
		f.head = append(f.head, p[0])
		p = p[1:]
		if n, ok := payloadLength(f.head); ok {
			f.left, f.head = n, f.head[:0]
		}
	}
}

// payloadLength reads the length from a frame's header (RFC 6455, 5.2), if all of that
// is there.
func payloadLength(head []byte) (n int64, ok bool) {
	if len(head) < 2 {
		return 0, false
	}
	n, size := int64(head[1]&0x7f), 2
	switch n {
	case 126:
		size += 2
	case 127:
		size += 8
	}
	mask := 0
	if head[1]&0x80 != 0 {
		mask = 4
	}
	if len(head) < size+mask {
		return 0, false
	}
	switch n {
	case 126:
		n = int64(binary.BigEndian.Uint16(head[2:]))
	case 127:
		n = int64(binary.BigEndian.Uint64(head[2:]))
	}
	return n, true
}
