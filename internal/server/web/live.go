package web

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/coder/websocket"
	"github.com/coder/websocket/wsjson"

	"github.com/cove-dev/cove"
)

// patience is how long a browser may take nothing of a stream, and how often it hears something.
const patience = 20 * time.Second

// stream tells a page of changes, as server-sent events that static/live.js puts into it. Its
// methods may be called from any goroutine.
type stream struct {
	v *view

	mu sync.Mutex
	w  http.ResponseWriter
	rc *http.ResponseController
}

// change is one change of a page.
type change struct {
	Target string `json:"target"`         // the id of an element
	How    string `json:"how"`            // "replace" it, "inner", "append" to it, "remove" it, "prepend"
	HTML   string `json:"html,omitempty"` // from a template
}

// stream answers with a stream of changes, until tell returns or the page is left. The browser
// comes again by itself. Its Last-Event-ID (v.lastSeen) is the number of the last change that
// it has seen.
func (v *view) stream(tell func(ctx context.Context, s *stream) error) error {
	ctx, cancel := context.WithCancel(v.r.Context())
	defer cancel()
	h := v.w.Header()
	h.Set("Content-Type", "text/event-stream; charset=utf-8")
	h.Set("X-Accel-Buffering", "no")
	v.w.WriteHeader(http.StatusOK)
	s := &stream{v: v, w: v.w, rc: http.NewResponseController(v.w)}
	var beats sync.WaitGroup
	beats.Go(func() {
		defer cancel()
		tick := time.NewTicker(patience / 2)
		defer tick.Stop()
		for {
			if s.write(": here\n\n") != nil {
				return
			}
			select {
			case <-tick.C:
			case <-ctx.Done():
				return
			}
		}
	})
	err := tell(ctx, s)
	cancel()
	beats.Wait()
	if err != nil && v.r.Context().Err() == nil {
		v.site.Logger.Debug("a stream of a page ended", "path", v.r.URL.Path, "err", err)
	}
	return nil // the answer has begun
}

// lastSeen is the number of the last event that the page has, or "".
func (v *view) lastSeen() string {
	if id := v.r.Header.Get("Last-Event-ID"); id != "" {
		return id
	}
	return v.r.URL.Query().Get("from")
}

// inTurn calls do, which renders something, in a turn of the session's. do calls neither the API nor inTurn.
func inTurn(v *view, do func() error) error {
	done, err := v.site.Sessions.Turn(v.r.Context(), v.session)
	if err != nil {
		return err
	}
	defer done()
	return do()
}

// html renders a template in a turn of the session's.
func (s *stream) html(name string, data any) (text string, err error) {
	err = inTurn(s.v, func() (err error) {
		text, err = html(name, data)
		return err
	})
	return text, err
}

func (s *stream) write(text string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.rc.SetWriteDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	if _, err := s.w.Write([]byte(text)); err != nil {
		return err
	}
	return s.rc.Flush()
}

// send tells of changes under a number; empty: it has none.
func (s *stream) send(id string, changes ...change) error {
	b, err := json.Marshal(changes)
	if err != nil {
		return err
	}
	if id != "" {
		id = "id: " + id + "\n"
	}
	return s.write(id + "data: " + string(b) + "\n\n")
}

// replace puts a template in the place of the element of the same id.
func (s *stream) replace(target, name string, data any) error {
	return s.put(target, "replace", name, data)
}

// put renders a template, and sends it.
func (s *stream) put(target, how, name string, data any) error {
	text, err := s.html(name, data)
	if err != nil {
		return err
	}
	return s.send("", change{Target: target, How: how, HTML: text})
}

// watch calls changed for each notification of the server about topics; of one job, if job is
// not empty. The first one is Synced, without a topic: from then on, every change is told. watch
// returns when ctx ends, or the server does.
func (v *view) watch(ctx context.Context, topics []string, job string, changed func(cove.Notification) error) error {
	conn, _, err := websocket.Dial(ctx, "http://localhost/v1/ws", &websocket.DialOptions{
		HTTPClient: v.site.API, HTTPHeader: http.Header{"Authorization": {"Bearer " + v.session.Bearer}},
	})
	if err != nil {
		return err
	}
	defer func() { _ = conn.CloseNow() }()
	conn.SetReadLimit(maxNotification)
	params, err := json.Marshal(cove.Subscription{Topics: topics, Job: job, Now: true})
	if err != nil {
		return err
	}
	if err := wsjson.Write(ctx, conn, cove.SocketRequest{ID: 1, Method: "subscribe", Params: params}); err != nil {
		return err
	}
	for {
		var m cove.SocketMessage
		if err := wsjson.Read(ctx, conn, &m); err != nil {
			return err
		}
		if m.Error != nil {
			return fmt.Errorf("subscribe: %s", m.Error.Message)
		}
		if m.ID != 0 || m.Topic == "" && !m.Synced {
			continue
		}
		if err := changed(m.Notification); err != nil {
			return err
		}
	}
}

const maxNotification = 4 << 20
