package sprites

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"

	"github.com/coder/websocket"
)

// maxPortList is how many ports of a server's list are kept.
const maxPortList = 4096

// WatchPorts begins to follow the TCP ports that are listened on in the sprite, by
// whichever process. The end of ctx ends the watch. While it lasts the sprite does
// not go to sleep.
func (s *Sprite) WatchPorts(ctx context.Context) (*PortWatcher, error) {
	w, err := s.watchPorts(ctx)
	if err != nil {
		return nil, fmt.Errorf("watch the ports of %s: %w", s.describe(), err)
	}
	return w, nil
}

func (s *Sprite) watchPorts(ctx context.Context) (*PortWatcher, error) {
	sock, err := s.client.dial(ctx, s.path("ports", "watch"), nil)
	if err != nil {
		return nil, err
	}
	w := &PortWatcher{sprite: s, sock: sock}
	w.stop = context.AfterFunc(ctx, func() { sock.giveUp(context.Cause(ctx)) })
	limited, cancel := context.WithTimeout(ctx, dialLimit)
	defer cancel()
	stop := context.AfterFunc(limited, func() { sock.giveUp(context.Cause(limited)) })
	w.open, err = w.list()
	if !stop() && err == nil {
		err = context.Cause(limited)
	}
	if err != nil {
		_ = w.Close() // nothing that it could say is of use
		return nil, err
	}
	return w, nil
}

// PortWatcher follows a sprite's ports. Close it when done. Next is for one
// goroutine.
type PortWatcher struct {
	sprite *Sprite
	sock   *socket
	open   []PortEvent
	stop   func() bool // lets go of the context
}

// Open is what was listened on when the watch began. Next does not repeat it.
func (w *PortWatcher) Open() []PortEvent { return w.open }

// Next waits for a port that is opened or closed. If the server ends the watch, the
// error is io.EOF. If the connection is cut, or the watch's context ends, it is another
// error. After Close it is net.ErrClosed.
func (w *PortWatcher) Next() (PortEvent, error) {
	for {
		b, err := w.text()
		if err != nil {
			switch websocket.CloseStatus(err) {
			case websocket.StatusNormalClosure, websocket.StatusGoingAway:
				return PortEvent{}, io.EOF
			}
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return PortEvent{}, fmt.Errorf("watch the ports of %s: %w", w.sprite.describe(), err)
		}
		var e PortEvent
		if json.Unmarshal(b, &e) != nil {
			continue
		}
		if e, ok := e.Checked(); ok {
			return e, nil
		}
	}
}

// Close ends the watch, also for a Next that waits.
func (w *PortWatcher) Close() error {
	w.stop()
	w.sock.giveUp(net.ErrClosed)
	w.sock.close()
	return nil
}

// list reads the server's first message.
func (w *PortWatcher) list() ([]PortEvent, error) {
	b, err := w.text()
	if err != nil {
		return nil, err
	}
	var list PortList
	if err := json.Unmarshal(b, &list); err != nil {
		return nil, fmt.Errorf("read the list: %w", err)
	}
	if list.Type != "port_list" {
		return nil, fmt.Errorf("the server began with %q, not with a list", printable(list.Type))
	}
	var open []PortEvent
	for _, e := range list.Ports {
		if e, ok := e.Checked(); ok && len(open) < maxPortList {
			open = append(open, e)
		}
	}
	return open, nil
}

// text returns the next text message.
func (w *PortWatcher) text() ([]byte, error) {
	for {
		typ, msg, err := w.sock.next()
		if err != nil {
			return nil, err
		}
		if typ == websocket.MessageText {
			return readText(msg)
		}
		if _, err := io.Copy(io.Discard, msg); err != nil {
			return nil, err
		}
	}
}
