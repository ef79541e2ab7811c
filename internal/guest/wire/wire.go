// Package wire is the format of the guest's API: answers and errors as JSON, parameters of a
// query, and WebSockets. Every document that it reads is bounded.
package wire

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/lib/jsonbody"
	"github.com/cove-dev/cove/sprites"
)

// MaxJSON bounds a JSON document, in bytes.
const MaxJSON = 1 << 20

// Silence is how long an answer of lines may be silent. Then an empty line is sent, for
// clients and proxies that give up on silence.
const Silence = 20 * time.Second

// Handler is a call of the API. It returns an error before it has answered, or
// answers and returns nil.
type Handler func(w http.ResponseWriter, r *http.Request) error

// Routes are the calls of an API, by the patterns of http.ServeMux.
type Routes map[string]Handler

// ServeHTTP calls h, and answers its error.
func (h Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if err := h(w, r); err != nil {
		if r.ContentLength != 0 { // the body may not have been read, and not be sent yet: the answer does not wait for it
			_ = http.NewResponseController(w).EnableFullDuplex() // HTTP/1 has it
			w.Header().Set("Connection", "close")
		}
		respondError(w, err)
	}
}

// BadRequest is the error invalid_request.
func BadRequest(format string, args ...any) error {
	return fail.Newf("invalid_request", "", format, args...)
}

// Full is the error if the limit of something is reached.
func Full(code string, limit int, format string, args ...any) error {
	e := fail.Newf(code, "", format, args...)
	e.Limit, e.Count = limit, limit
	return e
}

// An Answerer is an error whose answer has a form of its own.
type Answerer interface {
	error
	// Answer returns the status, and the body that is sent as JSON.
	Answer() (status int, body any)
}

// respondError is the one place that maps errors to answers.
func respondError(w http.ResponseWriter, err error) {
	if e, ok := errors.AsType[Answerer](err); ok {
		status, body := e.Answer()
		RespondStatus(w, status, body)
		return
	}
	e, ok := errors.AsType[*fail.Error](err)
	if !ok {
		e = fail.New("internal_error", err.Error(), "")
	}
	RespondStatus(w, e.Status(), sprites.ErrorBody{Code: e.Code, Message: e.Message, Limit: e.Limit, CurrentCount: e.Count})
}

// Respond answers with a value as JSON. It returns nil.
func Respond(w http.ResponseWriter, v any) error {
	RespondStatus(w, http.StatusOK, v)
	return nil
}

// RespondStatus is Respond with a status.
func RespondStatus(w http.ResponseWriter, status int, v any) {
	body, err := json.Marshal(v)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Content-Length", strconv.Itoa(len(body)+1))
	w.WriteHeader(status)
	_, _ = w.Write(append(body, '\n')) // the caller has gone: nobody to tell
}

// ReadJSON decodes a request's body, if it has one. Unknown fields of the object are an error.
func ReadJSON(r *http.Request, v any) error { return readBody(r, v, jsonbody.Decode) }

// ReadLater is ReadJSON for a server's requests. The server may be of a later version, so
// unknown fields are ignored.
func ReadLater(r *http.Request, v any) error { return readBody(r, v, json.Unmarshal) }

func readBody(r *http.Request, v any, decode func([]byte, any) error) error {
	body, err := io.ReadAll(io.LimitReader(r.Body, MaxJSON+1))
	if err != nil {
		return BadRequest("read the body: %v", err)
	}
	if len(body) > MaxJSON {
		return fail.New("too_large", "The body is longer than a mebibyte.", "")
	}
	if len(body) == 0 {
		return nil
	}
	if err := decode(body, v); err != nil {
		return BadRequest("read the body as JSON: %v", err)
	}
	return nil
}

// Duration reads a Go duration of a query.
func Duration(q url.Values, key string, missing time.Duration) (time.Duration, error) {
	text := q.Get(key)
	if text == "" {
		return missing, nil
	}
	d, err := time.ParseDuration(text)
	if err != nil || d < 0 {
		return 0, BadRequest("%s must be a duration such as 10s, not %q.", key, text)
	}
	return d, nil
}

// Boolean reads true or false of a query.
func Boolean(q url.Values, key string, missing bool) (bool, error) {
	switch text := q.Get(key); text {
	case "":
		return missing, nil
	case "true", "1":
		return true, nil
	case "false", "0":
		return false, nil
	default:
		return false, BadRequest("%s must be true or false, not %q.", key, text)
	}
}
