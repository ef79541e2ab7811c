package server_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/cove-dev/cove/internal/test/covetest"
	"github.com/cove-dev/cove/sprites"
)

// through are two names of this machine: the server connects to the first by
// itself, and by the guest to the other.
var through = []string{"localhost", "127.0.0.2"}

// listen serves each connection by f.
func listen(t *testing.T, network, addr string, f func(halfConn)) net.Addr {
	t.Helper()
	ln, err := net.Listen(network, addr)
	must(t, err)
	t.Cleanup(func() { _ = ln.Close() })
	go func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			go func() {
				defer func() { _ = conn.Close() }()
				f(conn.(halfConn))
			}()
		}
	}()
	return ln.Addr()
}

// halfConn is a connection whose directions end separately.
type halfConn interface {
	io.ReadWriteCloser
	CloseWrite() error
}

func echo(c halfConn) { _, _ = io.Copy(c, c) }

// listenPort serves each connection to a port of every address by f.
func listenPort(t *testing.T, f func(halfConn)) int {
	t.Helper()
	return listen(t, "tcp", ":0", f).(*net.TCPAddr).Port
}

// proxy opens a proxied connection as other clients do: with a first message of
// their own.
func proxy(t *testing.T, s *covetest.Server, init string) (*websocket.Conn, sprites.ProxyStatus) {
	t.Helper()
	conn, _, err := websocket.Dial(t.Context(), s.URL+"/v1/sprites/paint/proxy", &websocket.DialOptions{
		HTTPHeader: http.Header{"Authorization": {"Bearer " + s.Token}},
	})
	must(t, err)
	t.Cleanup(func() { _ = conn.CloseNow() })
	conn.SetReadLimit(-1)
	must(t, conn.Write(t.Context(), websocket.MessageText, []byte(init)))
	var status sprites.ProxyStatus
	typ, text, err := conn.Read(t.Context())
	if err == nil {
		failIf(t, typ != websocket.MessageText || json.Unmarshal(text, &status) != nil, "the answer is %q", text)
	} else {
		status.Error = strconv.Itoa(int(websocket.CloseStatus(err)))
	}
	return conn, status
}

func initOf(t *testing.T, host string, port int) string {
	t.Helper()
	text, err := json.Marshal(sprites.ProxyInit{Host: host, Port: port})
	must(t, err)
	return string(text)
}

// Statement 80: after connected, data goes both ways as it is.
func TestProxyEcho(t *testing.T) {
	s := covetest.Start(t, covetest.Options{})
	s.Create("paint")
	port := listenPort(t, echo)
	data := bytes.Repeat([]byte("\x00\xff01234567"), 150_000)
	for _, host := range through {
		conn, status := proxy(t, s, initOf(t, host, port))
		want := sprites.ProxyStatus{Status: "connected", Target: net.JoinHostPort(host, strconv.Itoa(port))}
		failIf(t, status != want, "the answer is %+v, want %+v", status, want)
		sent := make(chan error, 1)
		go func() {
			var err error
			for p := data; len(p) > 0 && err == nil; p = p[min(len(p), 30_000):] {
				err = conn.Write(t.Context(), websocket.MessageBinary, p[:min(len(p), 30_000)])
			}
			sent <- err
		}()
		var got []byte
		for len(got) < len(data) {
			_, p, err := conn.Read(t.Context())
			must(t, err)
			got = append(got, p...)
		}
		failIf(t, !bytes.Equal(got, data), "%d bytes come back otherwise", len(data))
		must(t, errors.Join(<-sent, conn.Close(websocket.StatusNormalClosure, "")))
	}
}

// closedPort returns a port of loopback at which nothing listens. Nobody else can take it until the
// test ends.
func closedPort(t *testing.T) int {
	t.Helper()
	addr, err := netip.ParseAddrPort(covetest.Address(t))
	must(t, err)
	return int(addr.Port())
}

// Statement 81: if nothing listens on a port, the answer says so, and then the connection
// ends. The same holds if no port is named.
func TestProxyRefused(t *testing.T) {
	s := covetest.Start(t, covetest.Options{})
	s.Create("paint")
	port := closedPort(t)
	for _, host := range through {
		conn, status := proxy(t, s, initOf(t, host, port))
		failIf(t, status.Status != "error" || status.Error != "connection refused", "%s: the answer is %+v", host, status)
		_, _, err := conn.Read(t.Context())
		failIf(t, websocket.CloseStatus(err) != websocket.StatusInternalError, "%s: it ends with %v", host, err)
	}
	_, status := proxy(t, s, `{"unix":"/nowhere/at/all"}`)
	failIf(t, status.Status != "error" || status.Error != "no such file or directory", "no socket: the answer is %+v", status)
	for _, init := range []string{`{}`, `{"port":0}`, `{"port":65536}`, `{"unix":"relative"}`, `{"unix":"/a","port":1}`, `x`, `[]`, strings.Repeat(" ", 2<<20)} {
		_, status := proxy(t, s, init)
		failIf(t, status.Error != "1003", "%.20q: the answer is %+v", init, status)
	}
}

// Statement 82: each name of the sprite itself reaches what listens on loopback or
// everywhere.
func TestProxyHosts(t *testing.T) {
	s := covetest.Start(t, covetest.Options{})
	s.Create("paint")
	for _, bound := range []string{"127.0.0.1:0", "0.0.0.0:0", "[::1]:0"} {
		port := listen(t, "tcp", bound, echo).(*net.TCPAddr).Port
		for _, host := range []string{"", "localhost", "127.0.0.1", "::1", "0.0.0.0", "10.0.0.1", "fdf::1"} {
			_, status := proxy(t, s, initOf(t, host, port))
			failIf(t, status.Status != "connected", "%s to %s: %+v", host, bound, status)
		}
	}
}

// Statement 83: the end of the remote's data closes the socket in good order.
func TestProxyRemoteEnd(t *testing.T) {
	s := covetest.Start(t, covetest.Options{})
	s.Create("paint")
	port := listenPort(t, func(c halfConn) { _, _ = io.WriteString(c, "bye") })
	for _, host := range through {
		conn, _ := proxy(t, s, initOf(t, host, port))
		_, p, err := conn.Read(t.Context())
		failIf(t, err != nil || string(p) != "bye", "%s: got %q, %v", host, p, err)
		_, _, err = conn.Read(t.Context())
		failIf(t, websocket.CloseStatus(err) != websocket.StatusNormalClosure, "%s: it ends with %v", host, err)
	}
}

// TestProxyHalfClose: with half-close, data after one side's end still arrives. It comes from
// a port, from a place that only the guest reaches, and from a Unix socket.
func TestProxyHalfClose(t *testing.T) {
	s := covetest.Start(t, covetest.Options{})
	sp := s.Create("paint")
	data := bytes.Repeat([]byte("01234567"), 400_000)
	answer := func(c halfConn) { // when all has come
		got, _ := io.ReadAll(c)
		_, _ = c.Write(got)
	}
	received := make(chan []byte, 1)
	greet := func(c halfConn) { // and then listens
		_, _ = c.Write(data)
		_ = c.CloseWrite()
		got, _ := io.ReadAll(c)
		received <- got
	}
	for _, host := range append(through, "unix") {
		dial := func(f func(halfConn)) *sprites.Conn {
			var conn net.Conn
			var err error
			if host == "unix" {
				path := filepath.Join(t.TempDir(), "s")
				listen(t, "unix", path, f)
				conn, err = sp.DialUnix(t.Context(), path)
				failIf(t, err == nil && conn.RemoteAddr().String() != path, "the other end is %v", conn.RemoteAddr())
			} else {
				conn, err = sp.Dial(t.Context(), host, listenPort(t, f))
			}
			must(t, err)
			return conn.(*sprites.Conn)
		}
		conn := dial(answer)
		_, err := conn.Write(data)
		must(t, errors.Join(err, conn.CloseWrite()))
		got, err := io.ReadAll(conn)
		failIf(t, err != nil || !bytes.Equal(got, data) || conn.Close() != nil, "%s: %d bytes went and %d came back, %v", host, len(data), len(got), err)

		conn = dial(greet)
		got, err = io.ReadAll(conn)
		failIf(t, err != nil || !bytes.Equal(got, data), "%s: %d bytes came, %v", host, len(got), err)
		_, err = conn.Write(data)
		must(t, errors.Join(err, conn.Close()))
		failIf(t, !bytes.Equal(<-received, data), "%s: not all went after the other side's end", host)
	}
}

// A proxied connection ends with the server, through the guest too.
func TestProxyServerEnds(t *testing.T) {
	s := covetest.Start(t, covetest.Options{})
	sp := s.Create("paint")
	ended := make(chan struct{}, len(through))
	port := listenPort(t, func(c halfConn) {
		_, _ = io.Copy(io.Discard, c) // however it ends
		ended <- struct{}{}
	})
	for _, host := range through {
		conn, err := sp.Dial(t.Context(), host, port)
		must(t, err)
		defer func() { _ = conn.Close() }()
	}
	s.Stop()
	for range through {
		select {
		case <-ended:
		case <-time.After(lastResort):
			t.Fatal("a connection into the sprite outlives the server")
		}
	}
}

// Statement 123: a server that speaks first is heard. Some clients lose data that comes in one
// piece with the answer "connected". So no data comes until they have shown that they have
// taken the answer.
func TestGreeting(t *testing.T) {
	port := listenPort(t, func(c halfConn) {
		_, _ = io.WriteString(c, "220 hello")
		echo(c)
	})
	s := covetest.Start(t, covetest.Options{})
	s.Create("paint")
	for _, pongs := range []bool{true, false} {
		for _, speaks := range []bool{true, false} {
			var pinged atomic.Bool
			ctx := t.Context()
			conn, _, err := websocket.Dial(ctx, s.URL+"/v1/sprites/paint/proxy", &websocket.DialOptions{
				HTTPHeader:     http.Header{"Authorization": {"Bearer " + s.Token}},
				OnPingReceived: func(context.Context, []byte) bool { pinged.Store(true); return pongs },
			})
			must(t, err)
			must(t, conn.Write(ctx, websocket.MessageText, []byte(initOf(t, "localhost", port))))
			typ, answer, err := conn.Read(ctx)
			var status sprites.ProxyStatus
			failIf(t, err != nil || typ != websocket.MessageText || json.Unmarshal(answer, &status) != nil || status.Status != "connected", "the answer is %q, %v", answer, err)
			want := "220 hello"
			if speaks {
				must(t, conn.Write(ctx, websocket.MessageBinary, []byte(" back")))
				want += " back"
			}
			got := ""
			for len(got) < len(want) {
				_, p, err := conn.Read(ctx)
				must(t, err)
				got += string(p)
			}
			failIf(t, got != want || !speaks && !pinged.Load(), "heard %q, and a ping before it: %v", got, pinged.Load())
			must(t, conn.Close(websocket.StatusNormalClosure, ""))
		}
	}
}
