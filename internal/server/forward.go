package server

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"sync"

	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/sprites"
)

// shape is how the client gets a guest's good answer, whatever the guest says of it.
type shape struct {
	contentType string
	live        bool // each piece goes out as it comes
	files       bool // errors are those of the /fs family
}

// The shapes of answers.
var (
	file     = shape{contentType: "application/octet-stream", files: true}
	fileJSON = shape{contentType: "application/json", files: true}
	document = shape{contentType: "application/json"}
	lines    = shape{contentType: "application/x-ndjson", live: true}
)

// passBody answers with a guest's good answer. If the guest's answer is cut, so is the
// client's: it must not look whole.
func passBody(w http.ResponseWriter, resp *http.Response, sh shape) {
	h := w.Header()
	if resp.StatusCode == http.StatusNoContent {
		w.WriteHeader(http.StatusNoContent)
		return
	}
	h.Set("Content-Type", sh.contentType)
	if tag := resp.Header.Get("ETag"); sh.files && fileTag().MatchString(tag) {
		h.Set("ETag", tag)
	}
	if resp.ContentLength >= 0 {
		h.Set("Content-Length", strconv.FormatInt(resp.ContentLength, 10))
	}
	status := http.StatusOK
	if resp.StatusCode == http.StatusCreated || resp.StatusCode == http.StatusPartialContent {
		status = resp.StatusCode
	}
	w.WriteHeader(status)
	if err := passBytes(w, resp.Body, sh.live); err != nil {
		panic(http.ErrAbortHandler)
	}
}

// copyBuffers are large: a file's speed depends on it.
var copyBuffers = sync.Pool{New: func() any { b := make([]byte, 256<<10); return &b }}

func passBytes(w http.ResponseWriter, r io.Reader, live bool) error {
	buf := copyBuffers.Get().(*[]byte)
	defer copyBuffers.Put(buf)
	rc := http.NewResponseController(w)
	if live {
		if err := rc.Flush(); err != nil {
			return err
		}
	}
	for {
		n, err := r.Read(*buf)
		if n > 0 {
			if _, err := w.Write((*buf)[:n]); err != nil {
				return err
			}
			if live {
				if err := rc.Flush(); err != nil {
					return err
				}
			}
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

const (
	maxGuestError = 64 << 10 // of the body of a guest's error
	maxGuestText  = 1 << 10  // of a text in it
	maxGuestPath  = 4 << 10
	maxGuestLimit = 1 << 20 // of how many there may be of something
)

// guestStatuses are those that a guest may answer with; any other is its failure.
var guestStatuses = map[int]bool{
	400: true, 403: true, 404: true, 405: true, 409: true, 410: true, 412: true, 413: true, 416: true,
	422: true, 426: true, 429: true, 500: true, 501: true, 503: true, 507: true,
}

// guestCodes are the codes of errors that a guest gives. Other codes, such as "disk_full" or
// "forbidden", only this server may give.
var guestCodes = map[string]bool{
	"http_port_taken": true, "internal_error": true, "invalid_request": true, "limit": true, "method_not_allowed": true,
	"not_available": true, "not_connected": true, "not_found": true, "nothing_listens": true, "nothing_to_end": true,
	"service_needed": true, "service_not_found": true, "service_not_listening": true, "service_not_running": true,
	"session_ended": true, "session_not_found": true, "stopping": true, "task_exists": true, "task_not_found": true,
	"too_large": true, "too_many_clients": true, "too_many_connections": true, "too_many_services": true,
	"too_many_sessions": true, "too_many_tasks": true, "too_many_watches": true, "upgrade_required": true,
}

var (
	fileCode  = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^E[A-Z0-9]{2,14}$`) })
	fileTag   = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^"[0-9a-f-]{1,80}"$`) })
	plainCode = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[a-z][a-z0-9_]{1,63}$`) })
)

// guestFailure reads a guest's error answer, as far as it is one, and closes it. It drops
// hints, which say what a person types next: an honest guest gives none.
func guestFailure(resp *http.Response, files bool) error {
	defer func() { _ = resp.Body.Close() }()
	if !guestStatuses[resp.StatusCode] { // the body of a 101 would not even end with the request
		return fail.New("bad_guest", "the sandbox answers with status "+strconv.Itoa(resp.StatusCode), "")
	}
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxGuestError))
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
		text = nil
	}
	var body struct {
		Error   string `json:"error"`
		Code    string `json:"code"`
		Path    string `json:"path"`
		Message string `json:"message"`
		Limit   int    `json:"limit"`
		Count   int    `json:"current_count"`
	}
	if json.Unmarshal(text, &body) != nil {
		body.Message = string(text)
	}
	if files && fileCode().MatchString(body.Code) {
		e := &fileError{resp.StatusCode, sprites.FileError{
			Error:   clean(body.Error, maxGuestText),
			Code:    body.Code,
			Path:    clean(body.Path, maxGuestPath),
			Message: clean(body.Message, maxGuestText+maxGuestPath),
		}}
		if e.body.Error == "" {
			e.body.Error = e.body.Code
		}
		if e.body.Message == "" {
			e.body.Message = e.body.Error
		}
		return e
	}
	if resp.StatusCode == http.StatusForbidden || resp.StatusCode == http.StatusInsufficientStorage {
		// Only about a file a guest may say so. Otherwise it would look like this server's
		// word on a token, or on its disk.
		return fail.New("bad_guest", "the sandbox answers with status "+strconv.Itoa(resp.StatusCode), "")
	}
	if body.Message == "" && !plainCode().MatchString(body.Error) {
		body.Message = body.Error
	}
	e := sprites.ErrorBody{Message: clean(body.Message, maxGuestText)}
	if guestCodes[body.Error] {
		e.Code = body.Error
	}
	if resp.StatusCode == http.StatusTooManyRequests {
		e.Limit = min(max(body.Limit, 0), maxGuestLimit)
		e.CurrentCount = min(max(body.Count, 0), maxGuestLimit)
	}
	return &sprites.Error{StatusCode: resp.StatusCode, ErrorBody: withCode(e, resp.StatusCode)}
}

// clean makes a guest's text fit for an answer: short, valid, and without
// control characters, so that it can't talk to a terminal.
func clean(s string, limit int) string {
	if len(s) > limit {
		s = s[:limit] + "…"
	}
	return strings.TrimSpace(strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\t':
			return ' '
		case r < ' ' || r >= 0x7f && r < 0xa0:
			return -1
		}
		return r
	}, strings.ToValidUTF8(s, "\uFFFD")))
}
