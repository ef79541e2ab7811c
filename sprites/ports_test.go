package sprites_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/cove-dev/cove/sprites"
)

func opened(port int, address string, pid int) sprites.PortEvent {
	return sprites.PortEvent{Type: "port_opened", Port: port, Address: address, PID: pid}
}

func TestPortEventChecked(t *testing.T) {
	for _, test := range []struct {
		in, want sprites.PortEvent
		ok       bool
	}{
		{opened(3000, "127.0.0.1", 431), opened(3000, "127.0.0.1", 431), true},
		{sprites.PortEvent{Type: "port_closed", Port: 65535, Address: "::", PID: 1}, sprites.PortEvent{Type: "port_closed", Port: 65535, Address: "::", PID: 1}, true},
		{opened(1, "https://paint.example:1", -1), opened(1, "", 0), true},
		{opened(1, "fe80::1%\x1b[2J", 1<<30), opened(1, "fe80::1", 0), true},
		{opened(1, strings.Repeat("1", 1<<20), 0), opened(1, "", 0), true},
		{opened(0, "::1", 1), sprites.PortEvent{}, false},
		{opened(65536, "::1", 1), sprites.PortEvent{}, false},
		{opened(-1, "::1", 1), sprites.PortEvent{}, false},
		{sprites.PortEvent{Type: "port_list", Port: 1}, sprites.PortEvent{}, false},
		{sprites.PortEvent{Port: 1}, sprites.PortEvent{}, false},
	} {
		if got, ok := test.in.Checked(); got != test.want || ok != test.ok {
			t.Errorf("%.100v: got %v, %v, want %v, %v", test.in, got, ok, test.want, test.ok)
		}
	}
}

func TestOnPort(t *testing.T) {
	client := script(t, func(_ context.Context, ws *websocket.Conn, _ *http.Request) {
		text(t, ws, `{"type":"session_info","session_id":"412","port":1}`)
		text(t, ws, `{"type":"port_opened","port":3000,"address":"127.0.0.1","pid":431}`)
		text(t, ws, `{"type":"port_opened","port":0,"address":"127.0.0.1","pid":431}`)
		text(t, ws, `{"type":"port_opened","port":3001,"address":"https://paint.example:3001"}`)
		text(t, ws, `{"type":"port","port":3000}`)
		text(t, ws, `{"type":"port_closed","port":3000,"address":"127.0.0.1","pid":431}`)
		frame(t, ws, 3, 0)
		_ = ws.Close(websocket.StatusNormalClosure, "")
	})
	var got []sprites.PortEvent
	cmd := client.Sprite("paint").Command("serve")
	cmd.OnPort = func(e sprites.PortEvent) { got = append(got, e) }
	if err := cmd.Run(); err != nil {
		t.Fatal(err)
	}
	want := []sprites.PortEvent{opened(3000, "127.0.0.1", 431), opened(3001, "", 0), {Type: "port_closed", Port: 3000, Address: "127.0.0.1", PID: 431}}
	if !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// TestWatchPorts has servers that go on in several ways after the list.
func TestWatchPorts(t *testing.T) {
	for _, test := range []struct {
		name, list string
		open       int
		then       func(ws *websocket.Conn)
		events     int
		err        error
	}{
		{"a clean end", `{"type":"port_list","ports":[{"type":"port_opened","port":80,"address":"::","pid":7},{"type":"port_opened"},{"port":81}]}`, 1, func(ws *websocket.Conn) {
			frame(t, ws, 1, 2)
			text(t, ws, `{"type":"keepalive"}`)
			text(t, ws, `[]`)
			text(t, ws, `{"type":"port_opened","port":8080,"address":"0.0.0.0","pid":8}`)
			text(t, ws, `{"type":"port_list","ports":null}`)
			text(t, ws, `{"type":"port_closed","port":8080,"address":"0.0.0.0","pid":8}`)
			_ = ws.Close(websocket.StatusNormalClosure, "")
		}, 2, io.EOF},
		{"no ports, cut", `{"type":"port_list","ports":null}`, 0, func(*websocket.Conn) {}, 0, io.ErrUnexpectedEOF},
		{"failed", `{"type":"port_list","ports":[]}`, 0, func(ws *websocket.Conn) { _ = ws.Close(websocket.StatusInternalError, "broken") },
			0, websocket.CloseError{Code: websocket.StatusInternalError, Reason: "broken"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			client := script(t, func(_ context.Context, ws *websocket.Conn, r *http.Request) {
				if r.URL.Path != "/v1/sprites/paint/ports/watch" {
					t.Errorf("asked for %s", r.URL)
				}
				text(t, ws, "%s", test.list)
				test.then(ws)
			})
			w, err := client.Sprite("paint").WatchPorts(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if len(w.Open()) != test.open {
				t.Errorf("open are %v", w.Open())
			}
			n := 0
			for ; err == nil; n++ {
				_, err = w.Next()
			}
			if n-1 != test.events || !errors.Is(err, test.err) {
				t.Errorf("%d events and %v, want %d and %v", n-1, err, test.events, test.err)
			}
			if err := w.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestWatchPortsEnds(t *testing.T) {
	client := script(t, func(ctx context.Context, ws *websocket.Conn, r *http.Request) {
		switch {
		case strings.Contains(r.URL.Path, "silent"):
		case strings.Contains(r.URL.Path, "odd"):
			text(t, ws, `{"type":"port_opened","port":1}`)
		default:
			text(t, ws, `{"type":"port_list","ports":[]}`)
		}
		_, _, _ = ws.Read(context.Background())
	})
	// By Close, while Next waits.
	w, err := client.Sprite("paint").WatchPorts(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error)
	go func() {
		_, err := w.Next()
		ended <- err
	}()
	if err := errors.Join(w.Close(), w.Close()); err != nil {
		t.Error(err)
	}
	if err := <-ended; !errors.Is(err, net.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
	// By the context, during the watch and before it.
	ctx, cancel := context.WithCancel(t.Context())
	if w, err = client.Sprite("paint").WatchPorts(ctx); err != nil {
		t.Fatal(err)
	}
	cancel()
	if _, err := w.Next(); !errors.Is(err, context.Canceled) {
		t.Errorf("after the context: %v", err)
	}
	if err := w.Close(); err != nil {
		t.Error(err)
	}
	ctx, cancel = context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := client.Sprite("silent").WatchPorts(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a server that says nothing: %v", err)
	}
	if _, err := client.Sprite("odd").WatchPorts(t.Context()); err == nil || !strings.Contains(err.Error(), "not with a list") {
		t.Errorf("a server without a list: %v", err)
	}
}
