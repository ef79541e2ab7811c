package guest

import (
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"strconv"
	"syscall"
	"time"

	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/sprites"
)

// handler is a call of the API. It returns an error before it has answered, or
// answers and returns nil.
type handler func(w http.ResponseWriter, r *http.Request) error

func handle(h handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := h(w, r); err != nil {
			if r.ContentLength != 0 { // the body may not have been read, and not be sent yet: the answer does not wait for it
				_ = http.NewResponseController(w).EnableFullDuplex() // HTTP/1 has it
				w.Header().Set("Connection", "close")
			}
			respondError(w, err)
		}
	})
}

func badRequest(format string, args ...any) error {
	return fail.Newf("invalid_request", "", format, args...)
}

// fileError is the failure of a call of the /fs family.
type fileError struct {
	path string
	err  error
}

func (e *fileError) Error() string { return e.path + ": " + e.err.Error() }
func (e *fileError) Unwrap() error { return e.err }

// respondError is the one place that maps errors to answers.
func respondError(w http.ResponseWriter, err error) {
	if e, ok := errors.AsType[*fileError](err); ok {
		status, code, text := fileStatus(e.err)
		respondStatus(w, status, sprites.FileError{Error: text, Code: code, Path: e.path, Message: e.path + ": " + text})
		return
	}
	e, ok := errors.AsType[*fail.Error](err)
	if !ok {
		e = fail.New("internal_error", err.Error(), "")
	}
	respondStatus(w, e.Status(), sprites.ErrorBody{Code: e.Code, Message: e.Message})
}

// fileStatus maps a file system's error to the protocol's (section 5.10).
func fileStatus(err error) (status int, code, text string) {
	if e, ok := errors.AsType[*fail.Error](err); ok {
		return e.Status(), e.Code, e.Message
	}
	errno, ok := errors.AsType[syscall.Errno](err)
	if !ok {
		switch {
		case errors.Is(err, fs.ErrNotExist):
			errno = syscall.ENOENT
		case errors.Is(err, fs.ErrExist):
			errno = syscall.EEXIST
		case errors.Is(err, fs.ErrInvalid):
			errno = syscall.EINVAL
		default:
			return http.StatusInternalServerError, "EIO", err.Error()
		}
	}
	known, ok := fileCodes[errno]
	if !ok {
		return http.StatusInternalServerError, "EIO", errno.Error()
	}
	return known.status, known.code, errno.Error()
}

var fileCodes = map[syscall.Errno]struct {
	status int
	code   string
}{
	syscall.ENOENT:       {http.StatusNotFound, "ENOENT"},
	syscall.EACCES:       {http.StatusForbidden, "EACCES"},
	syscall.EPERM:        {http.StatusForbidden, "EPERM"},
	syscall.EROFS:        {http.StatusForbidden, "EACCES"},
	syscall.EEXIST:       {http.StatusConflict, "EEXIST"},
	syscall.ENOTEMPTY:    {http.StatusConflict, "ENOTEMPTY"},
	syscall.ENOTDIR:      {http.StatusBadRequest, "ENOTDIR"},
	syscall.EISDIR:       {http.StatusBadRequest, "EISDIR"},
	syscall.EINVAL:       {http.StatusBadRequest, "EINVAL"},
	syscall.ENAMETOOLONG: {http.StatusBadRequest, "EINVAL"},
	syscall.ELOOP:        {http.StatusBadRequest, "EINVAL"},
	syscall.ENOSPC:       {http.StatusInsufficientStorage, "ENOSPC"},
	syscall.EDQUOT:       {http.StatusInsufficientStorage, "ENOSPC"},
}

func respond(w http.ResponseWriter, v any) error {
	respondStatus(w, http.StatusOK, v)
	return nil
}

func respondStatus(w http.ResponseWriter, status int, v any) {
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

// readJSON decodes a request's body, if it has one.
func readJSON(r *http.Request, v any) error {
	body, err := io.ReadAll(io.LimitReader(r.Body, maxJSON+1))
	if err != nil {
		return badRequest("read the body: %v", err)
	}
	if len(body) > maxJSON {
		return fail.New("too_large", "The body is longer than a mebibyte.", "")
	}
	if len(body) == 0 {
		return nil
	}
	if err := json.Unmarshal(body, v); err != nil {
		return badRequest("read the body as JSON: %v", err)
	}
	return nil
}

// duration reads a Go duration of a query.
func duration(q url.Values, key string, missing time.Duration) (time.Duration, error) {
	text := q.Get(key)
	if text == "" {
		return missing, nil
	}
	d, err := time.ParseDuration(text)
	if err != nil || d < 0 {
		return 0, badRequest("%s must be a duration such as 10s, not %q.", key, text)
	}
	return d, nil
}

// boolean reads true or false of a query.
func boolean(q url.Values, key string, missing bool) (bool, error) {
	switch text := q.Get(key); text {
	case "":
		return missing, nil
	case "true", "1":
		return true, nil
	case "false", "0":
		return false, nil
	default:
		return false, badRequest("%s must be true or false, not %q.", key, text)
	}
}
