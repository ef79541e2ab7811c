package server_test

import (
	"context"
	"crypto/sha1"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"io"
	"io/fs"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/test/covetest"
	"github.com/cove-dev/cove/sprites"
)

// Statement 122: a watch says subscribed, and then what happens; a missing path is an error.
// For the server, the verb read is enough. The watch keeps the sprite awake.
func TestWatch(t *testing.T) {
	s := covetest.Start(t, covetest.Options{})
	s.Create("paint")
	tok := token(t, s, cove.TokenScope{Sprite: "paint"}, "read")
	sp, dir := (&cove.Client{Client: &sprites.Client{URL: s.URL, Token: tok.Secret}}).Sprite("paint"), t.TempDir()
	_, err := sp.Watch(t.Context(), sprites.WatchOptions{}, dir, dir+"/none")
	failIf(t, !errors.Is(err, fs.ErrNotExist), "got %v", err)
	w, err := sp.Watch(t.Context(), sprites.WatchOptions{Recursive: true}, dir)
	must(t, err)
	info, err := s.Client().Get(t.Context(), "paint")
	failIf(t, err != nil || len(info.Cove.AwakeBy) == 0, "awake by %v, %v", info.Cove.AwakeBy, err)
	name := dir + "/ä &\x1b"
	must(t, errors.Join(os.Mkdir(name, 0o700), os.Remove(name)))
	for _, want := range []sprites.WatchOp{sprites.WatchCreate, sprites.WatchRemove} {
		e, err := w.Next()
		failIf(t, err != nil || e.Event != want || e.Path != name || !e.IsDir || time.Since(e.Timestamp) > lastResort, "got %+v, %v", e, err)
	}
	must(t, w.Close())
	eventually(t, s, "paint", func(i sprites.Info) bool { return len(i.Cove.AwakeBy) == 0 })
	wantError(t, watchOnce(t.Context(), s.Client().Sprite("nobody")), 404, "not_found")
}

func watchOnce(ctx context.Context, sp *sprites.Sprite) error {
	w, err := sp.Watch(ctx, sprites.WatchOptions{}, "/")
	if err != nil {
		return err
	}
	_, err = w.Next()
	return errors.Join(err, w.Close())
}

// TestWatchUp checks which of a client's messages reach a guest.
func TestWatchUp(t *testing.T) {
	heard := make(chan string, 100)
	s, _ := hostile(t, func(w http.ResponseWriter, r *http.Request) {
		conn, err := websocket.Accept(w, r, nil)
		if err != nil {
			return
		}
		defer func() { _ = conn.CloseNow() }()
		for {
			_, text, err := conn.Read(r.Context())
			if err != nil {
				return
			}
			heard <- string(text)
		}
	})
	conn := dialWatch(t, s)
	const empty = `{"type":"","paths":null,"recursive":false}`
	for said, want := range map[string]string{
		`{"type":"subscribe","paths":["a"],"recursive":true,"workingDir":"/x","evil":1}`: `{"type":"subscribe","paths":["a"],"recursive":true,"workingDir":"/x"}`,
		`{`: empty, `[]`: empty, `{"type":"subscribe","paths":7}`: empty,
	} {
		must(t, errors.Join(conn.Write(t.Context(), websocket.MessageBinary, []byte("dropped")), conn.Write(t.Context(), websocket.MessageText, []byte(said))))
		got := <-heard
		failIf(t, got != want, "of %s the guest hears %s", said, got)
	}
}

func dialWatch(t *testing.T, s *covetest.Server) *websocket.Conn {
	t.Helper()
	conn, _, err := websocket.Dial(t.Context(), s.URL+"/v1/sprites/evil/fs/watch",
		&websocket.DialOptions{HTTPHeader: http.Header{"Authorization": {"Bearer " + s.Token}}})
	must(t, err)
	conn.SetReadLimit(1 << 20)
	t.Cleanup(func() { _ = conn.CloseNow() })
	return conn
}

// message is a WebSocket frame as servers send it.
func message(opcode byte, text string) string {
	if len(text) < 126 {
		return string([]byte{0x80 | opcode, byte(len(text))}) + text
	}
	return string(binary.BigEndian.AppendUint64([]byte{0x80 | opcode, 127}, uint64(len(text)))) + text
}

// TestWatchHostileGuest has a guest say whatever it likes.
func TestWatchHostileGuest(t *testing.T) {
	event := func(path, op, rest string) string {
		return `{"type":"event","path":"` + path + `","event":"` + op + `","timestamp":"2026-02-03T11:11:12+01:00"` + rest + `}`
	}
	said := map[string]string{ // by what comes of it; what begins with a line's end is dropped
		`{"type":"subscribed","paths":["/a"]}`: `{"type":"subscribed","paths":["/a"],"message":"evil","path":"/b","size":1}`,
		`{"type":"event","path":"/a","event":"write","timestamp":"2026-02-03T10:11:12Z","size":0,"isDir":false}`:         event("/a", "write", `,"evil":1,"paths":["x"],"message":"y"`),
		`{"type":"event","path":"/\u001b[2J","event":"create","timestamp":"2026-02-03T10:11:12Z","size":7,"isDir":true}`: event(`/\u001b[2J`, "create", `,"size":7,"isDir":true`),
		`{"type":"error","message":"[2Jno such file","code":"ENOENT"}`:                                                   `{"type":"error","message":"\u001b[2Jno such file","code":"ENOENT","path":"/x"}`,
		`{"type":"error","message":"lost"}`:                                `{"type":"error","message":"lost","code":"<script>"}`,
		`{"type":"error","message":"` + strings.Repeat("x", 5<<10) + `…"}`: `{"type":"error","message":"` + strings.Repeat("x", 20<<10) + `"}`,
		"\n1": `{`, "\n2": `[]`, "\n3": `null`, "\n4": "\xff\xfe", "\n5": `{"type":"session_info"}`, "\n6": `{"type":"event"}`,
		"\n7": event("a", "write", ""), "\n8": event("/a", "explode", ""), "\n9": event("/a", "write", `,"size":-1`), "\n10": event("/a", "write", `,"size":1e99`),
		"\n11": `{"type":"event","path":"/a","event":"write","timestamp":"yesterday"}`, "\n12": event("/"+strings.Repeat("a", 20<<10), "write", ""),
		"\n13": `{"type":"subscribed","paths":[""` + strings.Repeat(`,""`, 2000) + `]}`, "\n14": `{"type":"subscribed","paths":{}}`,
		"\n15": `{"type":"subscribe","paths":["/"]}`, "\n16": `{"type":["event"]}`,
	}
	const subscribed = `{"type":"subscribed","paths":["/a"]}`
	var frames strings.Builder
	frames.WriteString(message(1, subscribed))
	for _, text := range said {
		frames.WriteString(message(1, text) + message(2, "binary"))
	}
	frames.WriteString("\x88\x02\x03\xe8")
	s, sp := hostile(t, func(w http.ResponseWriter, r *http.Request) {
		sum := sha1.Sum([]byte(r.Header.Get("Sec-WebSocket-Key") + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"))
		raw(w, switching+"websocket\r\nSec-WebSocket-Accept: "+base64.StdEncoding.EncodeToString(sum[:])+"\r\n\r\n"+frames.String())
	})
	conn, left := dialWatch(t, s), 1+len(said)-16
	for {
		typ, text, err := conn.Read(t.Context())
		if err != nil {
			failIf(t, websocket.CloseStatus(err) != websocket.StatusNormalClosure || left != 0, "%v, and %d have not come", err, left)
			break
		}
		_, known := said[string(text)]
		failIf(t, !known || typ != websocket.MessageText, "got %v %.200s", typ, text)
		left--
	}
	// cove's own client makes the best of it.
	w, err := sp.Watch(t.Context(), sprites.WatchOptions{}, "/a")
	must(t, err)
	events, complaints := 0, 0
	for {
		_, err := w.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		_, complaint := errors.AsType[*sprites.WatchError](err)
		failIf(t, err != nil && !complaint, "got %v", err)
		if complaint {
			complaints++
		} else {
			events++
		}
	}
	failIf(t, events != 2 || complaints != 3, "got %d events and %d errors", events, complaints)
	must(t, w.Close())
	eventually(t, s, "evil", func(i sprites.Info) bool { return len(i.Cove.AwakeBy) == 0 })
}
