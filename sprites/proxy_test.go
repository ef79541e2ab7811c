package sprites_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/cove-dev/cove/sprites"
)

// listen serves each TCP connection by f, and returns the port.
func listen(t *testing.T, f func(*net.TCPConn)) int {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer func() { _ = conn.Close() }()
				f(conn.(*net.TCPConn))
			}()
		}
	}()
	return l.Addr().(*net.TCPAddr).Port
}

func TestDial(t *testing.T) {
	_, sprite := newMachine(t)
	port := listen(t, func(conn *net.TCPConn) { // answers when all has come
		b, _ := io.ReadAll(conn)
		_, _ = conn.Write(bytes.ToUpper(b))
	})
	conn, err := sprite.Dial(t.Context(), "127.0.0.1", port)
	if err != nil {
		t.Fatal(err)
	}
	data := bytes.Repeat([]byte("abcdefgh"), 300_000)
	if n, err := conn.Write(data); n != len(data) || err != nil {
		t.Fatal(n, err)
	}
	if err := conn.(*sprites.Conn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Write(data); !errors.Is(err, net.ErrClosed) {
		t.Errorf("writing after CloseWrite: %v", err)
	}
	got, err := io.ReadAll(conn)
	if err != nil || !bytes.Equal(got, bytes.ToUpper(data)) {
		t.Errorf("%d bytes went, %d came back, %v", len(data), len(got), err)
	}
	if err := conn.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
	if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, net.ErrClosed) {
		t.Errorf("reading after Close: %v", err)
	}
}

func TestDialDeadlines(t *testing.T) {
	_, sprite := newMachine(t)
	release := make(chan struct{})
	port := listen(t, func(conn *net.TCPConn) { // reads nothing for a while
		<-release
		n, _ := io.Copy(io.Discard, io.LimitReader(conn, 4))
		_, _ = conn.Write(bytes.Repeat([]byte{'!'}, int(n)))
		_, _ = io.Copy(io.Discard, conn)
	})
	conn, err := sprite.Dial(t.Context(), "127.0.0.1", port)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if _, err := conn.Write(make([]byte, 4)); err != nil { // on a slow machine, the deadline may be over before a later one
		t.Fatal(err)
	}
	soon := func() time.Time { return time.Now().Add(20 * time.Millisecond) }
	if err := conn.SetDeadline(soon()); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("read: got %v", err)
	}
	if err := conn.SetWriteDeadline(time.Now().Add(300 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	for err == nil {
		_, err = conn.Write(make([]byte, 1<<20))
	}
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("write: got %v", err)
	}
	close(release)
	if err := conn.SetDeadline(time.Time{}); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 4)
	if _, err := io.ReadFull(conn, buf); err != nil || string(buf) != "!!!!" {
		t.Errorf("after the deadlines: got %q, %v", buf, err)
	}
}

func TestDialRefused(t *testing.T) {
	_, sprite := newMachine(t)
	// A port that nobody else can take meanwhile, and at which nobody listens.
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = syscall.Close(fd) }()
	syscall.CloseOnExec(fd)
	if err := syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	name, err := syscall.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	port := name.(*syscall.SockaddrInet4).Port
	if _, err := sprite.Dial(t.Context(), "127.0.0.1", port); err == nil || !strings.Contains(err.Error(), "connection refused") {
		t.Errorf("got %v", err)
	}
}

// TestProxyServers has servers that behave in other ways.
func TestProxyServers(t *testing.T) {
	connected := `{"status":"connected","target":"localhost:80"}`
	tests := []struct {
		name string
		do   func(ctx context.Context, ws *websocket.Conn)
		want string
		err  error // of reading; nil: its end
	}{
		{"closed in good order", func(ctx context.Context, ws *websocket.Conn) {
			frame(t, ws, 'h', 'i')
			_ = ws.Close(websocket.StatusNormalClosure, "")
		}, "hi", nil},
		{"cut", func(ctx context.Context, ws *websocket.Conn) {
			frame(t, ws, 'h', 'i')
		}, "hi", io.ErrUnexpectedEOF},
		{"failed", func(ctx context.Context, ws *websocket.Conn) {
			frame(t, ws, 'h', 'i')
			_ = ws.Close(websocket.StatusInternalError, "broken")
		}, "hi", websocket.CloseError{Code: websocket.StatusInternalError, Reason: "broken"}},
		{"eof that was not agreed on", func(ctx context.Context, ws *websocket.Conn) {
			text(t, ws, `{"type":"eof"}`)
			frame(t, ws, 'h', 'i')
			_ = ws.Close(websocket.StatusGoingAway, "")
		}, "hi", nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			client := script(t, func(ctx context.Context, ws *websocket.Conn, _ *http.Request) {
				if _, b, err := ws.Read(ctx); err != nil || string(b) != `{"host":"localhost","port":80,"half_close":true}` {
					t.Errorf("got %s, %v", b, err)
				}
				text(t, ws, "%s", connected)
				tt.do(ctx, ws)
			})
			conn, err := client.Sprite("paint").Dial(t.Context(), "", 80)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = conn.Close() }()
			if err := conn.(*sprites.Conn).CloseWrite(); !errors.Is(err, errors.ErrUnsupported) {
				t.Errorf("CloseWrite: got %v", err)
			}
			if conn.RemoteAddr().String() != "localhost:80" {
				t.Errorf("remote address %v", conn.RemoteAddr())
			}
			got, err := io.ReadAll(conn)
			if tt.name == "failed" && (err == nil || err.Error() != "broken") {
				t.Errorf("got %v", err)
			}
			if string(got) != tt.want || !errors.Is(err, tt.err) {
				t.Errorf("got %q, %v, want %q, %v", got, err, tt.want, tt.err)
			}
		})
	}
	client := script(t, func(ctx context.Context, ws *websocket.Conn, _ *http.Request) {
		_, _, _ = ws.Read(context.Background())
		<-ctx.Done()
	})
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := client.Sprite("paint").Dial(ctx, "", 80); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a server that does not answer: got %v", err)
	}
}
