package sprites

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"strings"
	"time"

	"github.com/coder/websocket"
)

// WatchOptions say how to watch. The zero value watches each path alone, and a
// folder with what is directly in it.
type WatchOptions struct {
	Recursive bool // folders with all that is in them, now or later
	AsRoot    bool // not as the sprite's user
}

// WatchError is what a server has to say of a watch: that a path can't be watched
// or that events were lost. Code is for programs and may be empty: a file error's,
// such as "ENOENT", or "events_lost", "limit", or "ended". By errors.Is it is
// fs.ErrNotExist, fs.ErrPermission or ErrLimited.
type WatchError struct {
	Code    string
	Message string
}

// Error gives the message.
func (e *WatchError) Error() string { return e.Message }

// Is makes the errors of this package and of io/fs findable.
func (e *WatchError) Is(target error) bool {
	switch target {
	case ErrLimited:
		return e.Code == "limit"
	case fs.ErrNotExist:
		return e.Code == "ENOENT"
	case fs.ErrPermission:
		return e.Code == "EACCES" || e.Code == "EPERM"
	}
	return false
}

// subscribeLimit bounds the wait for a watch's answer, after the handshake: there may
// be thousands of folders to look into.
const subscribeLimit = 2 * time.Minute

// Watch watches files and folders for changes. When it returns, everything that happens
// from then on will be told. A path need not be a folder, but must exist. If a path
// does not exist or can't be watched, the error is a *WatchError, and nothing is
// watched. A file is followed by its name, also when another takes its place.
//
// The watch, and with it the sprite's being awake, lasts until the context is done
// or Close is called.
func (s *Sprite) Watch(ctx context.Context, opts WatchOptions, paths ...string) (*Watcher, error) {
	w, err := s.watch(ctx, WatchRequest{
		Type: "subscribe", Paths: paths, Recursive: opts.Recursive, WorkingDir: home, AsRoot: opts.AsRoot,
	})
	if err != nil {
		return nil, fmt.Errorf("watch %s in %s: %w", strings.Join(paths, ", "), s.describe(), err)
	}
	return w, nil
}

func (s *Sprite) watch(ctx context.Context, req WatchRequest) (*Watcher, error) {
	sock, err := s.client.dial(ctx, s.path("fs", "watch"), nil)
	if err != nil {
		return nil, err
	}
	w := &Watcher{sock: sock, name: s.describe()}
	w.release = context.AfterFunc(ctx, func() { sock.giveUp(context.Cause(ctx)) })
	late := time.AfterFunc(subscribeLimit, func() { sock.giveUp(errors.New("the server does not answer")) })
	err = sock.tell(req)
	for subscribed := false; err == nil && !subscribed; {
		var m WatchMessage
		m, err = w.message()
		subscribed = m.Type == "subscribed"
	}
	if !late.Stop() && err == nil {
		err = errors.New("the server does not answer")
	}
	if err == nil {
		sock.delivering.Store(true) // until the first call of Next
		return w, nil
	}
	_ = w.Close()
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return nil, err
}

// Watcher is a watch of files in a sprite, made by Sprite.Watch. Close it when
// done.
type Watcher struct {
	sock    *socket
	name    string
	release func() bool // lets go of the context
	end     error       // of Next, for good
}

// Next waits for the next event. It is for one goroutine at a time. A caller that is
// slow loses events in the end, but holds up nobody else.
//
// A *WatchError does not end the watch: Next may be called again. Later events are
// right; with the code "events_lost", some before the error are missing. Any other
// error ends the watch, and Next goes on returning it. It is io.EOF if the server ended
// the watch in good order, or else the context's cause. After Close it is
// net.ErrClosed.
func (w *Watcher) Next() (WatchEvent, error) {
	w.sock.delivering.Store(false)
	defer w.sock.delivering.Store(true) // silence counts only while someone listens
	for w.end == nil {
		m, err := w.message()
		if e, ok := errors.AsType[*WatchError](err); ok {
			return WatchEvent{}, e
		}
		if err != nil {
			w.end = err
			w.sock.close()
			break
		}
		if m.Type == "event" && m.WatchEvent != nil {
			return *m.WatchEvent, nil
		}
	}
	if errors.Is(w.end, io.EOF) {
		return WatchEvent{}, io.EOF
	}
	return WatchEvent{}, fmt.Errorf("watch files in %s: %w", w.name, w.end)
}

// message reads one message. If it is not a WatchMessage, it returns an empty one.
func (w *Watcher) message() (WatchMessage, error) {
	var m WatchMessage
	typ, r, err := w.sock.next()
	if err != nil {
		switch websocket.CloseStatus(err) {
		case websocket.StatusNormalClosure, websocket.StatusGoingAway:
			return m, io.EOF
		}
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return m, err
	}
	if typ != websocket.MessageText {
		_, err := io.Copy(io.Discard, r)
		return m, err
	}
	b, err := readText(r)
	if err != nil {
		return m, err
	}
	if json.Unmarshal(b, &m) != nil {
		return WatchMessage{}, nil
	}
	if m.Type == "error" {
		e := &WatchError{Code: m.Code, Message: printable(m.Message)}
		if e.Message == "" {
			e.Message = "the server can't watch"
		}
		return WatchMessage{}, e
	}
	return m, nil
}

// Close ends the watch. It may be called from any goroutine, also during Next,
// and more than once; it never fails.
func (w *Watcher) Close() error {
	w.release()
	w.sock.giveUp(net.ErrClosed)
	w.sock.close()
	return nil
}
