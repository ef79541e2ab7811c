package server_test

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/sprites"
)

// endlessTools is a guest whose tools answer every call with so many bytes.
func endlessTools(size int) http.HandlerFunc {
	answer := func(conn *websocket.Conn, r *http.Request, text string) error {
		frame := binary.BigEndian.AppendUint32([]byte{byte(sprites.StreamStdout)}, uint32(len(text)))
		return conn.Write(r.Context(), websocket.MessageBinary, append(frame, text...))
	}
	return func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasSuffix(r.URL.Path, "/exec") {
			_, _ = io.WriteString(w, `{"entries":[{"name":"cove-guest","path":"/.sprite/bin/cove-guest","type":"file","mode":"0755"}]}`)
			return
		}
		conn, err := websocket.Accept(w, r, nil)
		if err != nil {
			return
		}
		defer func() { _ = conn.CloseNow() }()
		conn.SetReadLimit(-1)
		if conn.Write(r.Context(), websocket.MessageText, []byte(`{"type":"session_info","session_id":"a"}`)) != nil ||
			answer(conn, r, `{"hello":{"version":1,"dir":"/","role":"full","tools":["Bash"]}}`) != nil {
			return
		}
		var input []byte
		for {
			_, p, err := conn.Read(r.Context())
			if err != nil || len(p) == 0 {
				return
			}
			input = append(input, p[1:]...)
			for len(input) >= 4 && len(input) >= 4+int(binary.BigEndian.Uint32(input)) {
				n := 4 + int(binary.BigEndian.Uint32(input))
				var q struct{ ID uint64 }
				if json.Unmarshal(input[4:n], &q) != nil {
					return
				}
				input = input[n:]
				if answer(conn, r, fmt.Sprintf(`{"id":%d,"result":{"stdout":{"text":"%s"}}}`, q.ID, strings.Repeat("y", size))) != nil {
					return
				}
			}
		}
	}
}

// TestMCPAnswers: the server bounds how much it holds of answers that a client does not read,
// for each token by itself. It holds nothing when the client has gone.
func TestMCPAnswers(t *testing.T) {
	s, _ := hostile(t, endlessTools(12<<20))
	one := cove.TokenScope{Sprite: "evil"}
	evil, good := token(t, s, one, "read", "write", "exec"), token(t, s, one, "read", "write", "exec")
	call := `{"jsonrpc":"2.0","id":5,"method":"tools/call","params":{"name":"Bash","arguments":{"command":"true"}}}`
	session := begin(t, s, evil)
	unread := open(t, s, "POST /mcp", call, bearer(evil), asMCP(session))
	if n, err := io.ReadFull(unread.Body, make([]byte, 1<<20)); err != nil {
		t.Fatalf("the first answer ends after %d bytes: %v", n, err)
	}
	a := ask(t, s, "POST /mcp", call, bearer(evil), asMCP(session))
	failIf(t, len(a.body) > 1<<20 || !strings.Contains(string(a.body), "no room for more answers"), "beside an answer that nobody reads: %d bytes, %.300s", len(a.body), a.body)
	a = ask(t, s, "POST /mcp", call, bearer(good), asMCP(begin(t, s, good)))
	failIf(t, len(a.body) < 12<<20, "another token: %d bytes, %.300s", len(a.body), a.body)
	_ = unread.Body.Close()
	for deadline := time.Now().Add(lastResort); ; {
		if a = ask(t, s, "POST /mcp", call, bearer(evil), asMCP(session)); len(a.body) > 12<<20 {
			break
		}
		failIf(t, time.Now().After(deadline), "once the client has gone: %d bytes, %.300s", len(a.body), a.body)
	}
}
