package web

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"sync"
	"time"

	"github.com/coder/websocket"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/sprites"
)

// A terminal's session is in the sandbox, and outlives the browser, the connection and this
// server. The browser comes back to it by its ID; the sandbox then sends what the terminal has
// shown last.
const (
	maxKeys   = 1 << 20 // of a message of the browser's
	maxShown  = 2 << 20 // of one of the sandbox's
	maxCells  = 1000    // of a terminal's rows and columns
	closeTime = 5 * time.Second

	maxSessions = 200 // that a page is told of
)

// terminalShell is the shell of the sprite's user, as cove console opens it.
const terminalShell = `exec "${SHELL:-/bin/bash}" -l`

var sessionName = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[0-9A-Za-z][0-9A-Za-z_-]{0,63}$`) })

type terminalPage struct {
	Head  spriteHead
	Users []string
}

func spriteTerminal(v *spriteView) error {
	if !v.session.May(cove.VerbExec) {
		h, err := v.head(v.r.Context(), "terminal")
		if err == nil {
			render(v.w, v.r, http.StatusForbidden, v.layout(h.Info.Name+": terminal"), "sprite-no-terminal", h)
		}
		return err
	}
	h, asked, err := v.awake("terminal", "open a terminal in it")
	if err != nil || asked {
		return err
	}
	l := v.layout(h.Info.Name + ": terminal")
	l.Live, l.Terminal = h.live()+"&tab=terminal", true
	render(v.w, v.r, http.StatusOK, l, "sprite-terminal", terminalPage{Head: h})
	return nil
}

// terminalSession describes an open terminal to scripts.
type terminalSession struct {
	ID      string    `json:"id"`
	Command string    `json:"command"`
	Created time.Time `json:"created"`
}

// spriteSessions says which terminals are open. It wakes nothing: a sprite that sleeps has none.
func spriteSessions(v *spriteView) error {
	h, err := v.head(v.r.Context(), "terminal")
	if err != nil {
		return err
	}
	answer := struct {
		Awake    bool              `json:"awake"`
		Sessions []terminalSession `json:"sessions"`
	}{Awake: h.Awake(), Sessions: []terminalSession{}}
	if answer.Awake {
		all, err := v.inside().Sessions(v.r.Context())
		if err != nil {
			return unheard(err, "its terminals", "cove session list -s "+v.name)
		}
		for _, s := range all {
			if len(answer.Sessions) < maxSessions && s.TTY && sessionName().MatchString(s.ID) {
				answer.Sessions = append(answer.Sessions, terminalSession{s.ID, line(s.Command), s.Created})
			}
		}
	}
	v.w.Header().Set("Content-Type", "application/json")
	return json.NewEncoder(v.w).Encode(answer)
}

// spriteSocket joins a terminal in the browser to one in the sprite: a new one, or with
// session=ID an open one. Only a page of this very origin may do so: a browser sends the
// cookie with a WebSocket's request, whatever page asked for it. The connection ends with the
// session of the web page.
func spriteSocket(v *spriteView) error {
	if o, err := url.Parse(v.r.Header.Get("Origin")); err != nil || o.Host == "" || o.Host != v.r.Host {
		return fail.New("forbidden", "only a page of this server may open a terminal", "")
	}
	if v.r.Header.Get("Upgrade") == "" {
		return fail.New("upgrade_required", "this call needs a WebSocket", "")
	}
	if err := v.mustBeAwake(); err != nil {
		return err
	}
	path, query, err := v.terminalOf(v.r.URL.Query())
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(v.r.Context())
	defer cancel()
	inner, resp, err := websocket.Dial(ctx, "http://localhost"+path+"?"+query.Encode(), &websocket.DialOptions{
		HTTPClient: v.site.API, HTTPHeader: http.Header{"Authorization": {"Bearer " + v.session.Bearer}},
	})
	if err != nil {
		return refusal(resp, err)
	}
	defer func() { _ = inner.CloseNow() }()
	inner.SetReadLimit(maxShown)
	outer, err := websocket.Accept(v.w, v.r, nil) // which compares Origin and Host again
	if err != nil {
		return nil //nolint:nilerr // it has answered
	}
	defer func() { _ = outer.CloseNow() }()
	outer.SetReadLimit(maxKeys)

	var wg sync.WaitGroup
	wg.Go(func() {
		defer cancel()
		pass(ctx, outer, inner, func(kind websocket.MessageType, b []byte) bool {
			return kind == websocket.MessageBinary || isResize(b)
		})
	})
	pass(ctx, inner, outer, func(websocket.MessageType, []byte) bool { return true })
	leave, done := context.WithTimeout(context.WithoutCancel(ctx), closeTime)
	defer done()
	stop := context.AfterFunc(leave, func() { _ = outer.CloseNow() })
	defer stop()
	_ = outer.Close(websocket.StatusGoingAway, "") // the browser comes again, if it still has the session
	cancel()
	wg.Wait()
	return nil
}

// terminalOf is the call of the API that a terminal is.
func (v *spriteView) terminalOf(q url.Values) (path string, query url.Values, err error) {
	name := v.name
	if id := q.Get("session"); id != "" {
		if !sessionName().MatchString(id) {
			return "", nil, fail.New("session_not_found", "there is no such terminal", "")
		}
		return sprites.Path("v1", "sprites", name, "exec", id), url.Values{}, nil
	}
	rows, cols := cells(q.Get("rows"), 24), cells(q.Get("cols"), 80)
	return sprites.Path("v1", "sprites", name, "exec"), url.Values{
		"cmd": {"/bin/sh", "-c", terminalShell}, "path": {"/bin/sh"}, "env": {"TERM=xterm-256color"}, "tty": {"true"}, "stdin": {"true"},
		"rows": {rows}, "cols": {cols}, "max_run_after_disconnect": {"0s"},
	}, nil
}

// cells is a number of rows or columns.
func cells(text string, otherwise int) string {
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 || n > maxCells {
		n = otherwise
	}
	return strconv.Itoa(n)
}

// pass hands messages on until one side ends.
func pass(ctx context.Context, from, to *websocket.Conn, may func(websocket.MessageType, []byte) bool) {
	for {
		kind, b, err := from.Read(ctx)
		if err != nil {
			return
		}
		if !may(kind, b) {
			continue
		}
		if err := to.Write(ctx, kind, b); err != nil {
			return
		}
	}
}

// isResize reports whether a message of the browser's changes the size of its terminal. A
// browser may send only that and keys.
func isResize(b []byte) bool {
	var m sprites.Message
	return json.Unmarshal(b, &m) == nil && m.Type == "resize" && m.Rows > 0 && m.Rows <= maxCells && m.Cols > 0 && m.Cols <= maxCells
}

// refusal is why the API did not take a WebSocket.
func refusal(resp *http.Response, err error) error {
	if resp == nil || resp.Body == nil {
		return err
	}
	var body sprites.ErrorBody
	b, readErr := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
	if readErr != nil || json.Unmarshal(b, &body) != nil {
		return errors.Join(err, readErr)
	}
	return &sprites.Error{StatusCode: resp.StatusCode, ErrorBody: body}
}

// spriteEnd ends a terminal's shell, as closing its window would.
func spriteEnd(v *spriteView) error {
	id := v.r.URL.Query().Get("session")
	if !sessionName().MatchString(id) {
		return fail.New("session_not_found", "there is no such terminal", "")
	}
	if err := v.mustBeAwake(); err != nil {
		return err
	}
	if _, err := v.insideLines().Kill(v.r.Context(), id, "HUP", closeTime); err != nil {
		return err
	}
	v.w.WriteHeader(http.StatusNoContent)
	return nil
}
