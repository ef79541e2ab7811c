// Package duplex lets a proxy answer while it still reads the request's body.
//
// Over HTTP/1, a net/http server reads the rest of the body, or closes it, when the
// handler begins its answer. A transport that still copies the body then gets
// http.ErrBodyReadAfterClose and closes its connection, which cuts the answer. That
// happens even after the last byte, because a transport reads once more to see the end.
package duplex

import (
	"errors"
	"io"
	"net/http"
	"sync/atomic"
)

// Serve calls a handler that forwards the request. Reads of the body and writes of the
// answer are then independent.
//
// If an answer begins before the body has ended, the connection is closed after the answer. So
// the rest of the body is never taken for a request. The handler may leave that rest unread.
// Close of the body only ends its reads, and does not wait. Requests without a body, and those
// of HTTP/2, reach the handler as they are.
func Serve(w http.ResponseWriter, r *http.Request, handler http.HandlerFunc) {
	if r.ProtoMajor != 1 || r.Body == nil || r.Body == http.NoBody || http.NewResponseController(w).EnableFullDuplex() != nil {
		handler(w, r) // a writer that is not of net/http's server leaves the body open
		return
	}
	b := &body{ReadCloser: r.Body}
	r = r.WithContext(r.Context()) // the server looks at its own request's body
	r.Body = b
	answer := &writer{ResponseWriter: w, body: b}
	handler(answer, r)
	_ = b.Close()
	answer.begin(http.StatusOK) // an answer without a body begins now, or the caller's
}

// body notes its end.
type body struct {
	io.ReadCloser
	ended, closed atomic.Bool
}

func (b *body) Read(p []byte) (int, error) {
	if b.closed.Load() {
		return 0, http.ErrBodyReadAfterClose
	}
	n, err := b.ReadCloser.Read(p)
	if errors.Is(err, io.EOF) {
		b.ended.Store(true)
	}
	return n, err
}

// Close does not close the server's body, which waits for a Read under way. The server
// does so once the handler has returned, and interrupts that Read.
func (b *body) Close() error {
	b.closed.Store(true)
	return nil
}

// writer closes the connection after an answer that begins before the body's end.
type writer struct {
	http.ResponseWriter
	body  *body
	begun bool // the answer, beyond 1xx
}

func (w *writer) begin(status int) {
	if w.begun || status < http.StatusOK {
		return
	}
	w.begun = true
	if !w.body.ended.Load() {
		w.Header().Set("Connection", "close")
	}
}

func (w *writer) WriteHeader(status int) {
	w.begin(status)
	w.ResponseWriter.WriteHeader(status)
}

func (w *writer) Write(p []byte) (int, error) {
	w.begin(http.StatusOK)
	return w.ResponseWriter.Write(p)
}

// FlushError is http.ResponseController's.
func (w *writer) FlushError() error {
	w.begin(http.StatusOK)
	return http.NewResponseController(w.ResponseWriter).Flush()
}

// Unwrap is http.ResponseController's.
func (w *writer) Unwrap() http.ResponseWriter { return w.ResponseWriter }
