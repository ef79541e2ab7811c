package sprites_test

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/coder/websocket"

	"github.com/cove-dev/cove/sprites"
)

// A server that does not count input: what was on its way can't be sent again, and that is an
// error. A command that got none is rejoined.
func TestRejoinInputLost(t *testing.T) {
	for _, input := range []string{"x", ""} {
		first := true
		client := script(t, func(ctx context.Context, ws *websocket.Conn, _ *http.Request) {
			text(t, ws, `{"type":"session_info","session_id":"7","before":[0,0]}`)
			_, b, err := ws.Read(ctx)
			if want := append([]byte{0}, input...); err != nil || input != "" && !bytes.Equal(b, want) || input == "" && b[0] != 4 {
				t.Errorf("input: got %q, %v", b, err)
			}
			if first {
				first = false
				return
			}
			frame(t, ws, 3, 4)
		})
		cmd := client.Sprite("paint").Command("x")
		cmd.Stdin = strings.NewReader(input)
		cmd.Rejoin = func(context.Context, error) (*sprites.Sprite, error) { return client.Sprite("paint"), nil }
		err := cmd.Run()
		if lost := errors.Is(err, sprites.ErrNoExit) && errors.Is(err, sprites.ErrInputLost); lost != (input != "") {
			t.Errorf("after input %q: got %v", input, err)
		}
		if exit, ok := errors.AsType[*sprites.ExitError](err); input == "" && (!ok || exit.Code != 4) {
			t.Errorf("without input: got %v", err)
		}
	}
}

// TestRejoinAnother: input goes to no other command that has the session's id, in another sprite
// of the name.
func TestRejoinAnother(t *testing.T) {
	first := true
	client := script(t, func(ctx context.Context, ws *websocket.Conn, _ *http.Request) {
		if first {
			first = false
			text(t, ws, `{"type":"session_info","session_id":"7","command":"sudo -S true","before":[0,0],"taken":0}`)
			if _, b, err := ws.Read(ctx); err != nil || string(b) != "\x00password" {
				t.Errorf("input: got %q, %v", b, err)
			}
			return
		}
		text(t, ws, `{"type":"session_info","session_id":"7","command":"cat","before":[0,0],"taken":0}`)
		if _, b, err := ws.Read(ctx); err == nil {
			t.Errorf("another command got %q", b)
		}
	})
	cmd := client.Sprite("paint").Command("sudo", "-S", "true")
	cmd.Stdin = strings.NewReader("password")
	cmd.Rejoin = func(context.Context, error) (*sprites.Sprite, error) { return client.Sprite("paint"), nil }
	if err := cmd.Run(); !errors.Is(err, sprites.ErrNoExit) || !errors.Is(err, sprites.ErrInputLost) {
		t.Errorf("got %v", err)
	}
}
