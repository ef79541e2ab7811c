package guest_test

import (
	"bytes"
	"net/http"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/cove-dev/cove/internal/guest"
	"github.com/cove-dev/cove/sprites"
)

// exec opens a connection of the exec API, without a client that looks after it.
func (m *machine) exec(target string) *websocket.Conn {
	m.t.Helper()
	conn, resp, err := websocket.Dial(m.t.Context(), m.url+target, &websocket.DialOptions{HTTPClient: m.http})
	m.must(err)
	if resp.StatusCode != http.StatusSwitchingProtocols {
		m.t.Fatalf("%s: %s", target, resp.Status)
	}
	m.t.Cleanup(func() { _ = conn.CloseNow() })
	_, _, err = conn.Read(m.t.Context()) // session_info: it is attached
	m.must(err)
	return conn
}

// TestGoneWithStuckInput: a client that has gone is noticed even if the command does not read the
// client's input. So the command ends when it may run without a client no longer.
func TestGoneWithStuckInput(t *testing.T) {
	stick := func(m *machine, conn *websocket.Conn) {
		input := append([]byte{byte(sprites.StreamStdin)}, bytes.Repeat([]byte("x"), 32<<10)...)
		for range 8 { // more than a pipe holds
			m.must(conn.Write(t.Context(), websocket.MessageBinary, input))
		}
		m.must(conn.CloseNow())
	}
	const run = "/v1/exec?cmd=sleep&cmd=1000&stdin=true&max_run_after_disconnect=1ms"
	for name, leave := range map[string]func(m *machine, first *websocket.Conn, id string){
		"the first client": func(m *machine, first *websocket.Conn, _ string) { stick(m, first) },
		"one that attached": func(m *machine, first *websocket.Conn, id string) {
			second := m.exec("/v1/exec/" + id)
			m.must(first.CloseNow())
			stick(m, second)
		},
	} {
		t.Run(name, func(t *testing.T) {
			m := start(t, &guest.Server{Keepalive: 100 * time.Millisecond})
			first := m.exec(run)
			list, err := m.Sessions(t.Context())
			m.must(err)
			if len(list) != 1 {
				t.Fatalf("got %+v", list)
			}
			leave(m, first, list[0].ID)
			for deadline := time.Now().Add(lastResort); len(list) > 0; {
				if time.Now().After(deadline) {
					t.Fatalf("%+v goes on", list)
				}
				<-time.After(10 * time.Millisecond)
				list, err = m.Sessions(t.Context())
				m.must(err)
			}
		})
	}
}
