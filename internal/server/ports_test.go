package server_test

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/coder/websocket"

	"github.com/cove-dev/cove/internal/test/covetest"
	"github.com/cove-dev/cove/sprites"
)

// port is an event of a port.
func port(kind string, n, pid int) sprites.PortEvent {
	return sprites.PortEvent{Type: "port_" + kind, Port: n, Address: "127.0.0.1", PID: pid}
}

// Statement 84: the list comes first, through the server too.
func TestPortsWatch(t *testing.T) {
	s := covetest.Start(t, covetest.Options{})
	sp := s.Create("paint")
	ask(t, s, "GET /v1/sprites/paint/ports/watch", "").refused(t, 426, "upgrade_required")
	conn := dialSocket(t, s, "paint/ports/watch")
	must(t, conn.Write(t.Context(), websocket.MessageText, []byte(`{"type":"subscribe"}`)))
	_, text, err := conn.Read(t.Context())
	must(t, err)
	var list sprites.PortList
	failIf(t, json.Unmarshal(text, &list) != nil || list.Type != "port_list" || list.Ports == nil, "it begins with %s", text)
	eventually(t, s, "paint", func(i sprites.Info) bool { return slices.Equal(i.Cove.AwakeBy, []string{"ports"}) })
	must(t, conn.Close(websocket.StatusNormalClosure, ""))
	w, err := sp.WatchPorts(t.Context())
	must(t, err)
	s.Stop() // which does not wait for who watches
	for err == nil {
		_, err = w.Next()
	}
	must(t, w.Close())
}

func dialSocket(t *testing.T, s *covetest.Server, path string) *websocket.Conn {
	t.Helper()
	conn, _, err := websocket.Dial(t.Context(), s.URL+"/v1/sprites/"+path, &websocket.DialOptions{HTTPHeader: http.Header{"Authorization": {"Bearer " + s.Token}}})
	must(t, err)
	t.Cleanup(func() { _ = conn.CloseNow() })
	conn.SetReadLimit(-1)
	return conn
}

// TestHostileNews: a guest's messages to watchers cost little, however many they are. A guest
// that says too much is cut off.
func TestHostileNews(t *testing.T) {
	s, _ := hostile(t, func(w http.ResponseWriter, r *http.Request) {
		conn, err := websocket.Accept(w, r, nil)
		if err != nil {
			return
		}
		defer func() { _ = conn.CloseNow() }()
		_ = conn.Write(r.Context(), websocket.MessageText, []byte(`{"type":"`+strings.Repeat("x", 128<<10)+`"}`))
		_, _, _ = conn.Read(r.Context()) // until it is cut off
	})
	for _, call := range []string{"ports", "fs"} {
		_, _, err := dialSocket(t, s, "evil/"+call+"/watch").Read(t.Context())
		failIf(t, websocket.CloseStatus(err) != websocket.StatusInternalError, "%s: got %v", call, err)
	}
}

// TestHostilePorts: of a guest's messages about ports only known ones get through, and only if
// they make sense.
func TestHostilePorts(t *testing.T) {
	long := strings.Repeat(`{"type":"port_opened","port":1,"address":"::1","pid":1,"evil":"x"},`, 1500)
	says := []string{
		`{"type":"port_list","evil":"x","ports":[` + long + `{"type":"port_closed","port":2,"address":"::1"}]}`,
		`{"type":"port_opened","port":3000,"address":"127.0.0.1","pid":431,"evil":"\u001b[2J"}`,
		`{"type":"port_opened","port":3001,"address":"\u001b[2J","pid":-1}`,
		`{"type":"port_opened","port":70000,"address":"127.0.0.1"}`,
		`{"type":"port_opened","port":"3000"}`,
		`{"type":"evil","port":3000}`,
		`{"port":3000}`, `[]`, `null`, `{`, ``,
		`{"type":"keepalive","evil":"x"}`,
		`{"type":"port_list","ports":null}`,
		`{"type":"port_closed","port":3000,"address":"127.0.0.1","pid":431}`,
	}
	s, sp := hostile(t, func(w http.ResponseWriter, r *http.Request) {
		conn, err := websocket.Accept(w, r, nil)
		if err != nil {
			return
		}
		defer func() { _ = conn.CloseNow() }()
		for _, text := range says {
			_ = conn.Write(r.Context(), websocket.MessageText, []byte(text)) // who has gone is no matter
		}
		if strings.HasSuffix(r.URL.Path, "/watch") {
			_ = conn.Write(r.Context(), websocket.MessageBinary, make([]byte, 1<<20))
		} else {
			_ = conn.Write(r.Context(), websocket.MessageBinary, []byte{3, 0})
		}
		_ = conn.Close(websocket.StatusNormalClosure, "")
	})
	want := []string{
		`{"type":"port_opened","port":3000,"address":"127.0.0.1","pid":431}`,
		`{"type":"port_opened","port":3001,"address":"","pid":0}`,
		`{"type":"keepalive"}`,
		`{"type":"port_list","ports":[]}`,
		`{"type":"port_closed","port":3000,"address":"127.0.0.1","pid":431}`,
	}
	conn := dialSocket(t, s, "evil/ports/watch")
	_, text, err := conn.Read(t.Context())
	must(t, err)
	var list sprites.PortList
	err = json.Unmarshal(text, &list)
	failIf(t, err != nil || len(list.Ports) != 1024 || list.Ports[1023].Type != "port_opened" || strings.Contains(string(text), "evil"), "%d ports are passed on, %v", len(list.Ports), err)
	for _, want := range want {
		typ, text, err := conn.Read(t.Context())
		must(t, err)
		failIf(t, typ != websocket.MessageText || string(text) != want, "got %s, want %s", text, want)
	}
	_, _, err = conn.Read(t.Context())
	failIf(t, websocket.CloseStatus(err) != websocket.StatusNormalClosure, "after the last: %v", err)

	var got []sprites.PortEvent
	cmd := sp.Command("evil")
	cmd.OnPort = func(e sprites.PortEvent) { got = append(got, e) }
	cmd.OnMessage = func(m sprites.Message) {
		failIf(t, m.Type == "port_opened" && (m.Port > 65535 || strings.Contains(m.Address, "\x1b")), "a command's client hears %+v", m)
	}
	must(t, cmd.Run())
	wantEvents := []sprites.PortEvent{port("opened", 3000, 431), {Type: "port_opened", Port: 3001}, port("closed", 3000, 431)}
	failIf(t, !slices.Equal(got, wantEvents), "a command's client hears of %v, want %v", got, wantEvents)
}
