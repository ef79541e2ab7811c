package server

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"strconv"
	"time"

	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/server/sprite"
	"github.com/cove-dev/cove/internal/server/store"
	"github.com/cove-dev/cove/sprites"
)

// fileError is a failed file call, as the guest tells it.
type fileError struct {
	status int
	body   sprites.FileError
}

func (e *fileError) Error() string { return e.body.Message }

// refusals is the one place where errors become answers: the status, what the
// client sees, and what is logged.
type refusals struct {
	log    *slog.Logger
	ending context.Context // ends when the server begins to end
}

// answer answers a client of the API with an error.
func (re refusals) answer(w http.ResponseWriter, r *http.Request, err error) {
	status, body := re.describe(err)
	level := re.log.Debug
	if faulty(status, body) && r.Context().Err() == nil {
		level = re.log.Error
	}
	level("request refused", "method", r.Method, "path", r.URL.Path, "status", status, "err", err)
	answerEarly(re.ending, w, r, func() { respond(w, status, body) })
}

// faulty reports whether an answer tells of something that went wrong here. A function that
// this server does not have, or a sprite held for its disk, is a refusal.
func faulty(status int, body any) bool {
	e, _ := body.(sprites.ErrorBody)
	return status >= http.StatusInternalServerError && status != http.StatusNotImplemented && e.Code != sprite.CodeDiskLimit && e.Code != sprite.CodeDiskFull
}

// respond answers with an error's body.
func respond(w http.ResponseWriter, status int, body any) {
	if e, ok := body.(sprites.ErrorBody); ok {
		body = withRetry(w.Header(), status, e)
	}
	if status == http.StatusUnauthorized {
		w.Header().Set("WWW-Authenticate", `Bearer realm="cove"`)
		w.Header().Set("Connection", "close") // a caller without a token can't hold a connection
	}
	writeJSON(w, status, body)
}

// defaultRetry is when to come back if no better time is known.
const defaultRetry = 5 * time.Second

// withRetry sets the headers that tell when to come back, which an answer 429 has
// in any case, and says the same in the body.
func withRetry(h http.Header, status int, body sprites.ErrorBody) sprites.ErrorBody {
	if status == http.StatusTooManyRequests {
		body.RetryAfterSeconds = cmp.Or(body.RetryAfterSeconds, int(defaultRetry.Seconds()))
		reset := time.Now().Add(time.Duration(body.RetryAfterSeconds) * time.Second)
		h.Set("X-RateLimit-Limit", strconv.Itoa(body.Limit))
		h.Set("X-RateLimit-Remaining", strconv.Itoa(max(body.Limit-body.CurrentCount, 0)))
		h.Set("X-RateLimit-Reset", strconv.FormatInt(reset.Unix(), 10))
	}
	if body.RetryAfterSeconds > 0 {
		h.Set("Retry-After", strconv.Itoa(body.RetryAfterSeconds))
	}
	return body
}

// describe maps an error to a status and a body.
func (re refusals) describe(err error) (int, any) {
	if e, ok := errors.AsType[*fileError](err); ok {
		return e.status, e.body
	}
	if e, ok := errors.AsType[*fail.Error](err); ok {
		return e.Status(), bodyOf(e)
	}
	if e, ok := errors.AsType[*sprites.Error](err); ok && e.StatusCode >= 400 && e.StatusCode < 600 {
		return e.StatusCode, withCode(e.ErrorBody, e.StatusCode)
	}
	if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return http.StatusRequestEntityTooLarge, sprites.ErrorBody{Code: "too_large", Message: "the request is too large"}
	}
	status, code := http.StatusInternalServerError, "internal"
	switch {
	case errors.Is(err, store.ErrNotFound):
		status, code = http.StatusNotFound, "not_found"
	case errors.Is(err, store.ErrExists):
		status, code = http.StatusConflict, "exists"
	case re.ending.Err() != nil:
		status, code = http.StatusServiceUnavailable, "unavailable"
	case errors.Is(err, context.DeadlineExceeded):
		status, code = http.StatusGatewayTimeout, "timeout"
	default:
		if disk := sprite.DiskError(err); disk != nil { // the log has where
			return disk.Status(), bodyOf(disk)
		}
	}
	return status, sprites.ErrorBody{Code: code, Message: err.Error()}
}

// bodyOf is an error's body in an answer.
func bodyOf(e *fail.Error) sprites.ErrorBody {
	return sprites.ErrorBody{
		Code: e.Code, Message: e.Error(), Hint: e.Hint,
		Limit: e.Limit, CurrentCount: e.Count, RetryAfterSeconds: int(e.RetryAfter.Seconds()),
	}
}

// withCode gives a body a code and a message, which every error has.
func withCode(body sprites.ErrorBody, status int) sprites.ErrorBody {
	if body.Code == "" {
		body.Code = map[int]string{
			http.StatusBadRequest:         "bad_request",
			http.StatusNotFound:           "not_found",
			http.StatusForbidden:          "forbidden",
			http.StatusConflict:           "conflict",
			http.StatusGone:               "gone",
			http.StatusTooManyRequests:    "limit",
			http.StatusServiceUnavailable: "unavailable",
		}[status]
	}
	if body.Code == "" {
		body.Code = "failed"
	}
	if body.Message == "" {
		body.Message = http.StatusText(status)
	}
	return body
}

// writeJSON answers with v. A client that went away is nobody's error.
func writeJSON(w http.ResponseWriter, status int, v any) {
	b, err := json.Marshal(v)
	if err != nil {
		status, b = http.StatusInternalServerError, []byte(`{"error":"internal","message":"the answer can't be written as JSON"}`)
	}
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Content-Length", strconv.Itoa(len(b)+1))
	w.WriteHeader(status)
	_, _ = w.Write(append(b, '\n'))
}
