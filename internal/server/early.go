package server

import (
	"context"
	"io"
	"net/http"
	"sync/atomic"
	"time"
)

// restPatience is for how long a request's body is read on after the answer, so that a client
// that still sends it reads the answer, and not that the connection was reset.
const restPatience = 10 * time.Second

// upload is a request's body. It knows whether all of it was read.
type upload struct {
	body          io.ReadCloser
	begun, ended  atomic.Bool
	closed        atomic.Bool
	expectsToSend bool // the client sends only once it is told to
}

// watchBody has r's body, if it has one, know how far it was read.
func watchBody(r *http.Request) {
	if r.ContentLength != 0 && r.Body != nil && r.Body != http.NoBody {
		r.Body = &upload{body: r.Body, expectsToSend: r.Header.Get("Expect") != ""}
	}
}

// Read reads on.
func (u *upload) Read(p []byte) (int, error) {
	if u.closed.Load() {
		return 0, http.ErrBodyReadAfterClose
	}
	u.begun.Store(true)
	n, err := u.body.Read(p)
	if err == io.EOF {
		u.ended.Store(true)
	}
	return n, err
}

// Close ends the reading. Unlike net/http's it does not wait for what the client has yet to
// send: the server does that itself once the request is answered.
func (u *upload) Close() error {
	u.closed.Store(true)
	return nil
}

// answerEarly calls answer, which answers a request whose body the handler may not have read
// to its end. The client may be sending it still, or have paused: net/http would read on
// before it sends the answer, for ever if nothing comes.
func answerEarly(ctx context.Context, w http.ResponseWriter, r *http.Request, answer func()) {
	u, ok := r.Body.(*upload)
	if !ok || u.ended.Load() || r.ProtoMajor != 1 {
		answer()
		return
	}
	rc := http.NewResponseController(w)
	if rc.EnableFullDuplex() != nil {
		answer()
		return
	}
	w.Header().Set("Connection", "close")
	answer()
	_ = rc.Flush() // a client that has gone reads no answer
	if u.expectsToSend && !u.begun.Load() {
		return
	}
	_ = rc.SetReadDeadline(time.Now().Add(restPatience)) // where that can't be set, the client ends it
	defer context.AfterFunc(ctx, func() { _ = rc.SetReadDeadline(time.Unix(1, 0)) })()
	_, _ = io.Copy(io.Discard, u.body) // until the client has the answer, and closes the connection
}
