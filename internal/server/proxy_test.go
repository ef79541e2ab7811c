package server_test

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"sync/atomic"
	"testing"

	"github.com/coder/websocket"

	"github.com/cove-dev/cove/internal/covetest"
	"github.com/cove-dev/cove/sprites"
)

// Statement 123: a server that speaks first is heard. Some clients lose what comes
// in one piece with the answer "connected", so nothing does until they have shown
// that they have taken it.
func TestGreeting(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	t.Cleanup(func() { _ = ln.Close() })
	go func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			go func() {
				_, _ = io.WriteString(conn, "220 hello")
				_, _ = io.Copy(conn, conn)
				_ = conn.Close()
			}()
		}
	}()
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
			init, err := json.Marshal(sprites.ProxyInit{Host: "localhost", Port: ln.Addr().(*net.TCPAddr).Port})
			must(t, err)
			must(t, conn.Write(ctx, websocket.MessageText, init))
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
