package server

import (
	"context"
	"io"
	"net/http"
	"sync/atomic"
	"time"
)

// restPatience is how long the server goes on reading a request's body after the answer. So a
// client that still sends reads the answer, instead of a connection reset.
const restPatience = 10 * time.Second

// upload is a request's body. It knows whether all of it was read.
type upload struct {
	body          io.ReadCloser
	begun, ended  atomic.Bool
	closed        atomic.Bool
	expectsToSend bool // the client sends only once it is told to
}

// watchBody makes r's body, if it has one, note how far it was read.
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

// Close ends the reading. Unlike net/http's, it does not wait for the rest of the client's
// body: the server does that itself once the request is answered.
func (u *upload) Close() error {
	u.closed.Store(true)
	return nil
}

// answerEarly calls answer, which answers a request whose body the handler may not have read
// to its end. The client may be sending it still, or have paused: net/http would read on
// before it sends the answer, for ever if nothing comes.
func answerEarly(ctx context.Context, w http.ResponseWriter, r *http.Request, answer func()) {
	u := unreadBody(r)
	if u == nil {
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
	u.readRest(ctx, rc)
}

// answerWhileSent lets w answer while the client sends the body of r. The caller must call
// rest after writing the answer, and before the handler returns. Otherwise, if the body was
// not read to its end, a client that still sends would get a connection reset instead of the
// answer.
func answerWhileSent(ctx context.Context, w http.ResponseWriter, r *http.Request) (rest func(), err error) {
	rc := http.NewResponseController(w)
	if err := rc.EnableFullDuplex(); err != nil {
		return nil, err
	}
	if unreadBody(r) != nil {
		w.Header().Set("Connection", "close") // a body that is not read to its end would be taken for the next request
	}
	return func() {
		_ = rc.Flush() // a client that has gone reads no answer
		if u := unreadBody(r); u != nil {
			u.readRest(ctx, rc)
		}
	}, nil
}

// unreadBody is the body of an HTTP/1 request, if it may not have been read to its end; else
// nil.
func unreadBody(r *http.Request) *upload {
	u, ok := r.Body.(*upload)
	if !ok || u.ended.Load() || r.ProtoMajor != 1 {
		return nil
	}
	return u
}

// readRest reads what the client still sends, until it closes the connection, for restPatience at
// most.
func (u *upload) readRest(ctx context.Context, rc *http.ResponseController) {
	if u.expectsToSend && !u.begun.Load() {
		return
	}
	_ = rc.SetReadDeadline(time.Now().Add(restPatience)) // where that can't be set, the client ends it
	defer context.AfterFunc(ctx, func() { _ = rc.SetReadDeadline(time.Unix(1, 0)) })()
	_, _ = io.Copy(io.Discard, u.body) // until the client has the answer, and closes the connection
}
