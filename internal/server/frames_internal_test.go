package server

import (
	"bytes"
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"

	"github.com/coder/websocket"
)

// countedConn counts what is written to it, in pieces.
type countedConn struct {
	net.Conn
	writes *atomic.Int64
}

func (c countedConn) Write(p []byte) (int, error) {
	c.writes.Add(1)
	return c.Conn.Write(p)
}

// countedListener counts what is written to all its connections.
type countedListener struct {
	net.Listener
	writes atomic.Int64
}

func (l *countedListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	return countedConn{conn, &l.writes}, err
}

// TestFrameWrites counts the writes of frames: one for each, to a guest and to a client.
func TestFrameWrites(t *testing.T) {
	frame := bytes.Repeat([]byte("0123456789abcdef"), 2<<10) // as much as a guest reads of a command at once
	sizes := []int{0, 1, 125, 126, 4096, 65535, 65536, 200_000}
	ctx := t.Context()
	var atServer func(*side) error
	done := make(chan error, 1)
	web := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var s side
		if err := acceptSocket(w, r, &s); err != nil {
			done <- err
			return
		}
		s.conn.SetReadLimit(-1)
		done <- atServer(&s)
	}))
	listener := &countedListener{Listener: web.Listener}
	web.Listener = listener
	web.Start()
	defer web.Close()
	var writes atomic.Int64
	transport := &http.Transport{DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, network, addr)
		return countedConn{conn, &writes}, err
	}}
	dial := func() *websocket.Conn {
		conn, _, err := websocket.Dial(ctx, web.URL, &websocket.DialOptions{HTTPClient: &http.Client{Transport: wholeFrames{transport}}})
		if err != nil {
			t.Fatal(err)
		}
		conn.SetReadLimit(-1)
		return conn
	}
	receive := func(conn *websocket.Conn, n int) error {
		for range n {
			_, msg, err := conn.Read(ctx)
			if err != nil {
				return err
			}
			if !bytes.Equal(msg, frame) {
				t.Errorf("a frame of %d bytes came as %d others", len(frame), len(msg))
			}
		}
		return nil
	}
	send := func(conn *websocket.Conn, n int) error {
		for range n {
			if err := conn.Write(ctx, websocket.MessageBinary, frame); err != nil {
				return err
			}
		}
		return nil
	}

	atServer = func(s *side) error { return receive(s.conn, 10) }
	conn := dial()
	before := writes.Load()
	if err := send(conn, 10); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil || writes.Load()-before != 10 {
		t.Errorf("10 frames to a guest were %d writes, %v", writes.Load()-before, err)
	}
	_ = conn.CloseNow()

	answered := make(chan int64, 1)
	atServer = func(s *side) error { answered <- listener.writes.Load(); return send(s.conn, 10) }
	conn = dial()
	before = <-answered
	if err := receive(conn, 10); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil || listener.writes.Load()-before != 10 {
		t.Errorf("10 frames to a client were %d writes, %v", listener.writes.Load()-before, err)
	}
	_ = conn.CloseNow()

	// Frames of all lengths, whole messages and some in pieces, arrive as they are.
	got := make(chan []byte, 1)
	atServer = func(s *side) error {
		for range 2 * len(sizes) {
			_, msg, err := s.conn.Read(ctx)
			if err != nil {
				return err
			}
			got <- msg
		}
		return nil
	}
	conn = dial()
	defer func() { _ = conn.CloseNow() }()
	data := bytes.Repeat(frame, 8)
	for _, n := range sizes {
		if err := conn.Write(ctx, websocket.MessageBinary, data[:n]); err != nil {
			t.Fatal(err)
		}
		if msg := <-got; !bytes.Equal(msg, data[:n]) {
			t.Errorf("a message of %d bytes came as %d", n, len(msg))
		}
		w, err := conn.Writer(ctx, websocket.MessageBinary)
		if err != nil {
			t.Fatal(err)
		}
		for _, part := range [][]byte{data[:n/3], data[n/3 : n]} {
			if _, err := w.Write(part); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		if msg := <-got; !bytes.Equal(msg, data[:n]) {
			t.Errorf("a message of %d bytes in pieces came as %d", n, len(msg))
		}
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}
