package guest_test

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/cove-dev/cove/internal/guest"
	"github.com/cove-dev/cove/sprites"
)

// proxy opens a proxied connection as other clients do, without half-close.
func (m *machine) proxy(host string, port int) (*websocket.Conn, sprites.ProxyStatus) {
	m.t.Helper()
	conn := m.socket("/v1/proxy")
	m.must(conn.Write(m.t.Context(), websocket.MessageText, fmt.Appendf(nil, `{"host":%q,"port":%d}`, host, port)))
	typ, text, err := conn.Read(m.t.Context())
	m.must(err)
	same(m.t, "type of the answer", typ, websocket.MessageText)
	var status sprites.ProxyStatus
	m.must(json.Unmarshal(text, &status))
	return conn, status
}

// echo serves a connection with what comes on it.
func echo(c *net.TCPConn) error {
	_, err := io.Copy(c, c)
	return err
}

// Statement 80: after connected, data goes both ways as it is.
func TestProxyEcho(t *testing.T) {
	m := start(t, &guest.Server{})
	port := m.listen(echo)
	conn, status := m.proxy("localhost", port)
	same(t, "answer", status, sprites.ProxyStatus{Status: "connected", Target: fmt.Sprint("localhost:", port)})
	data := noise(1<<20 + 7)
	sent := make(chan error, 1)
	go func() {
		for p := data; len(p) > 0; p = p[min(len(p), 30_000):] {
			if err := conn.Write(t.Context(), websocket.MessageBinary, []byte(p[:min(len(p), 30_000)])); err != nil {
				sent <- err
				return
			}
		}
		sent <- nil
	}()
	var got strings.Builder
	for got.Len() < len(data) {
		_, p, err := conn.Read(t.Context())
		m.must(err)
		_, _ = got.Write(p)
	}
	same(t, "echo", got.String(), data)
	m.must(<-sent, conn.Close(websocket.StatusNormalClosure, ""))
}

// Statement 81: a port on which nothing listens is told, and then the connection
// ends.
func TestProxyClosedPort(t *testing.T) {
	m := start(t, &guest.Server{})
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	m.must(err, ln.Close())
	conn, status := m.proxy("localhost", ln.Addr().(*net.TCPAddr).Port)
	same(t, "status", status.Status, "error")
	same(t, "error", status.Error, "connection refused")
	_, _, err = conn.Read(t.Context())
	same(t, "close", websocket.CloseStatus(err), websocket.StatusInternalError)
}

// Statement 82: each name of the sprite itself reaches what listens on loopback or
// everywhere.
func TestProxyHosts(t *testing.T) {
	m := start(t, &guest.Server{})
	for _, bound := range []string{"127.0.0.1:0", "0.0.0.0:0"} {
		ln, err := net.Listen("tcp", bound)
		m.must(err)
		done := make(chan struct{})
		go func() {
			defer close(done)
			for {
				c, err := ln.Accept()
				if err != nil {
					return
				}
				_ = c.Close()
			}
		}()
		for _, host := range []string{"", "localhost", "127.0.0.1", "::1", "0.0.0.0", "10.0.0.1", "fdf::1"} {
			_, status := m.proxy(host, ln.Addr().(*net.TCPAddr).Port)
			same(t, "status of "+host+" to "+bound, status.Status, "connected")
		}
		m.must(ln.Close())
		<-done
	}
}

// Statement 83: the end of the remote's data closes the socket in good order.
func TestProxyRemoteEnd(t *testing.T) {
	m := start(t, &guest.Server{})
	conn, _ := m.proxy("", m.listen(func(c *net.TCPConn) error {
		_, err := io.WriteString(c, "bye")
		return err
	}))
	_, p, err := conn.Read(t.Context())
	m.must(err)
	same(t, "data", string(p), "bye")
	_, _, err = conn.Read(t.Context())
	same(t, "close", websocket.CloseStatus(err), websocket.StatusNormalClosure)
}

// Statement 123: what a server says first does not come together with connected,
// which some clients would lose. The machine may hold up a reader now and then.
func TestProxyServerFirst(t *testing.T) {
	m := start(t, &guest.Server{})
	const hello = "220 hello\r\n"
	apart := 0
	for range 10 {
		port := m.listen(func(c *net.TCPConn) error {
			_, err := io.WriteString(c, hello)
			_, _ = io.Copy(io.Discard, c)
			return err
		})
		conn := m.dial()
		m.write(conn, "GET /v1/proxy HTTP/1.1\r\nHost: guest\r\nAuthorization: Bearer secret\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"+
			"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n")
		r := bufio.NewReader(conn)
		resp, err := http.ReadResponse(r, nil)
		m.must(err)
		same(t, "status", resp.StatusCode, http.StatusSwitchingProtocols)
		init := fmt.Sprintf(`{"host":"localhost","port":%d}`, port)
		m.write(conn, "\x81"+string([]byte{0x80 | byte(len(init))})+"\x00\x00\x00\x00"+init) // masked by zeros
		frame := func(opcode byte) string {
			var head [2]byte
			_, err := io.ReadFull(r, head[:])
			m.must(err)
			same(t, "opcode", head[0], 0x80|opcode)
			payload := make([]byte, head[1])
			if head[1] == 126 {
				var long [2]byte
				_, err = io.ReadFull(r, long[:])
				m.must(err)
				payload = make([]byte, binary.BigEndian.Uint16(long[:]))
			}
			_, err = io.ReadFull(r, payload)
			m.must(err)
			return string(payload)
		}
		same(t, "status", strings.Contains(frame(1), `"connected"`), true)
		together, began := r.Buffered() > 0, time.Now()
		same(t, "greeting", frame(2), hello)
		if !together && time.Since(began) > 10*time.Millisecond {
			apart++
		}
		m.must(conn.Close())
	}
	if apart < 8 {
		t.Errorf("the greeting came by itself in %d of 10 connections", apart)
	}
}
