package guest_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cove-dev/cove/internal/guest"
)

// connect asks for a connection, and returns the answer and the stream after it.
func (m *machine) connect(query string) (int, *bufio.Reader, *net.TCPConn) {
	m.t.Helper()
	conn := m.dial()
	m.write(conn, "GET /v1/connect?"+query+" HTTP/1.1\r\nHost: guest\r\nConnection: Upgrade\r\nUpgrade: stream\r\n\r\n")
	r := bufio.NewReader(conn)
	resp, err := http.ReadResponse(r, nil)
	m.must(err)
	return resp.StatusCode, r, conn
}

func TestConnect(t *testing.T) {
	var left io.Reader
	var target net.Conn
	t.Cleanup(func() { // after the server's end
		if left == nil || target == nil {
			return
		}
		_, _ = io.Copy(io.Discard, left)
		_, _ = io.Copy(io.Discard, target)
		_ = target.Close()
	})
	m := start(t, &guest.Server{})
	m.call("GET", "/v1/connect?port=80", "", http.StatusUpgradeRequired)
	var code int
	for _, query := range []string{"", "port=0", "port=x", "port=65536", "host=localhost"} {
		code, _, _ = m.connect(query)
		same(t, query, code, http.StatusBadRequest)
	}
	path := filepath.Join(t.TempDir(), "s")
	for _, query := range []string{"unix=" + path, "unix=%00", "unix=" + strings.Repeat("x", 200), "port=1&host=127.0.0.1"} {
		code, _, _ := m.connect(query)
		same(t, query, code, http.StatusServiceUnavailable)
	}
	for _, at := range []string{"tcp 127.0.0.1:0", "tcp [::1]:0", "unix " + path} {
		network, addr, _ := strings.Cut(at, " ")
		ln, err := net.Listen(network, addr)
		m.must(err)
		served := make(chan error, 1)
		go func() { // whoever connects gets back what it has sent, once that has ended
			conn, err := ln.Accept()
			if err == nil {
				defer func() { _ = conn.Close() }()
				all, _ := io.ReadAll(conn)
				_, err = conn.Write(all)
			}
			served <- err
		}()
		query := "unix=" + path
		if tcp, ok := ln.Addr().(*net.TCPAddr); ok {
			query = fmt.Sprint("host=localhost&port=", tcp.Port)
		}
		code, r, conn := m.connect(query)
		same(t, at, code, http.StatusSwitchingProtocols)
		data := noise(1 << 20)
		m.write(conn, data)
		m.must(conn.CloseWrite())
		got, err := io.ReadAll(r)
		m.must(err, <-served, ln.Close())
		same(t, at, string(got), data)
	}
	// Open connections end with the server.
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	m.must(err)
	defer func() { _ = ln.Close() }()
	code, left, _ = m.connect(fmt.Sprint("port=", ln.Addr().(*net.TCPAddr).Port))
	same(t, "connected", code, http.StatusSwitchingProtocols)
	target, err = ln.Accept()
	m.must(err)
}
