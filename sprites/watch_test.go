package sprites_test

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/cove-dev/cove/sprites"
)

// watchServer serves one watch: it checks the request, and goes on as f says.
func watchServer(t *testing.T, want string, f func(ctx context.Context, ws *websocket.Conn)) *sprites.Sprite {
	return script(t, func(ctx context.Context, ws *websocket.Conn, r *http.Request) {
		if _, b, err := ws.Read(ctx); err != nil || string(b) != want || r.URL.Path != "/v1/sprites/paint/fs/watch" {
			t.Errorf("got %s at %s, %v", b, r.URL, err)
		}
		f(ctx, ws)
	}).Sprite("paint")
}

const (
	watchA     = `{"type":"subscribe","paths":["a"],"recursive":false,"workingDir":"/home/sprite"}`
	subscribed = `{"type":"subscribed","paths":["/home/sprite/a"]}`
)

// Statement 122: subscribed comes first, then the events, and an error between them
// does not end the watch.
func TestWatch(t *testing.T) {
	sprite := watchServer(t, `{"type":"subscribe","paths":["a","/b"],"recursive":true,"workingDir":"/home/sprite","asRoot":true}`, func(_ context.Context, ws *websocket.Conn) {
		frame(t, ws, 'x') // what nobody understands is passed over
		text(t, ws, `{"type":"new"}`)
		text(t, ws, "%s", subscribed)
		text(t, ws, `[]`)
		text(t, ws, `{"type":"event"}`)
		text(t, ws, `{"type":"event","path":"/b/c","event":"write","timestamp":"2026-02-03T10:11:12Z","size":120,"isDir":false}`)
		text(t, ws, `{"type":"error","code":"events_lost","message":"lost\u001b[2J"}`)
		text(t, ws, `{"type":"event","path":"/b","event":"chmod","timestamp":"2026-02-03T10:11:13.5Z","size":4096,"isDir":true}`)
		_ = ws.Close(websocket.StatusNormalClosure, "")
	})
	w, err := sprite.Watch(t.Context(), sprites.WatchOptions{Recursive: true, AsRoot: true}, "a", "/b")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = w.Close() }()
	at := time.Date(2026, 2, 3, 10, 11, 12, 0, time.UTC)
	want := sprites.WatchEvent{Path: "/b/c", Event: sprites.WatchWrite, Timestamp: at, Size: 120}
	if e, err := w.Next(); err != nil || e != want {
		t.Errorf("got %+v, %v", e, err)
	}
	_, err = w.Next()
	if e, ok := errors.AsType[*sprites.WatchError](err); !ok || e.Code != "events_lost" || e.Message != "lost[2J" {
		t.Errorf("got %v", err)
	}
	want = sprites.WatchEvent{Path: "/b", Event: sprites.WatchChmod, Timestamp: at.Add(1500 * time.Millisecond), Size: 4096, IsDir: true}
	if e, err := w.Next(); err != nil || e != want {
		t.Errorf("got %+v, %v", e, err)
	}
	for range 2 {
		if _, err := w.Next(); err != io.EOF {
			t.Errorf("got %v, want io.EOF itself", err)
		}
	}
}

// TestWatchRefused has servers that do not watch.
func TestWatchRefused(t *testing.T) {
	for name, test := range map[string]struct {
		do   func(context.Context, *websocket.Conn)
		want error
	}{
		"missing": {func(_ context.Context, ws *websocket.Conn) {
			text(t, ws, `{"type":"error","message":"a: no","code":"ENOENT"}`)
		}, fs.ErrNotExist},
		"closed": {func(_ context.Context, ws *websocket.Conn) {
			text(t, ws, `{"type":"error","message":"a: no","code":"EACCES"}`)
		}, fs.ErrPermission},
		"too much": {func(_ context.Context, ws *websocket.Conn) {
			text(t, ws, `{"type":"error","message":"no","code":"limit"}`)
		}, sprites.ErrLimited},
		"cut":   {func(context.Context, *websocket.Conn) {}, io.ErrUnexpectedEOF},
		"ended": {func(_ context.Context, ws *websocket.Conn) { _ = ws.Close(websocket.StatusNormalClosure, "") }, io.ErrUnexpectedEOF},
		"failed": {func(_ context.Context, ws *websocket.Conn) { _ = ws.Close(websocket.StatusInternalError, "x") },
			websocket.CloseError{Code: websocket.StatusInternalError, Reason: "x"}},
		"silent": {nil, context.Canceled}, // its caller gives up once the server has read the request
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			do := test.do
			if do == nil {
				do = func(ctx context.Context, ws *websocket.Conn) { cancel(); _, _, _ = ws.Read(ctx) }
			}
			_, err := watchServer(t, watchA, do).Watch(ctx, sprites.WatchOptions{}, "a")
			if !errors.Is(err, test.want) || !strings.HasPrefix(err.Error(), "watch a in paint: ") {
				t.Errorf("got %v, want %v", err, test.want)
			}
		})
	}
	client := serve(t, http.NotFoundHandler())
	if _, err := client.Sprite("paint").Watch(t.Context(), sprites.WatchOptions{}, "a"); !errors.Is(err, sprites.ErrNotFound) {
		t.Errorf("a server without it: got %v", err)
	}
}

// TestWatchEnd has watches end while Next waits. The error stays.
func TestWatchEnd(t *testing.T) {
	why := errors.New("enough")
	for name, test := range map[string]struct {
		end  func(w *sprites.Watcher, cancel context.CancelCauseFunc, cut chan struct{})
		want error
	}{
		"cancelled": {func(_ *sprites.Watcher, cancel context.CancelCauseFunc, _ chan struct{}) { cancel(why) }, why},
		"closed":    {func(w *sprites.Watcher, _ context.CancelCauseFunc, _ chan struct{}) { _ = w.Close() }, net.ErrClosed},
		"cut":       {func(_ *sprites.Watcher, _ context.CancelCauseFunc, cut chan struct{}) { close(cut) }, io.ErrUnexpectedEOF},
	} {
		t.Run(name, func(t *testing.T) {
			cut := make(chan struct{})
			sprite := watchServer(t, watchA, func(ctx context.Context, ws *websocket.Conn) {
				text(t, ws, "%s", subscribed)
				ctx = ws.CloseRead(ctx)
				select {
				case <-cut:
				case <-ctx.Done():
				}
			})
			ctx, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			w, err := sprite.Watch(ctx, sprites.WatchOptions{}, "a")
			if err != nil {
				t.Fatal(err)
			}
			got := make(chan error, 1)
			go func() {
				_, err := w.Next()
				got <- err
			}()
			test.end(w, cancel, cut)
			if err := <-got; !errors.Is(err, test.want) {
				t.Errorf("got %v, want %v", err, test.want)
			}
			if _, err := w.Next(); !errors.Is(err, test.want) {
				t.Errorf("then %v, want %v", err, test.want)
			}
			for range 2 {
				if err := w.Close(); err != nil {
					t.Errorf("close: %v", err)
				}
			}
		})
	}
}
