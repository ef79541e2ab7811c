package server

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"sync"

	"github.com/cove-dev/cove/internal/lib/duplex"
	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/server/sprite"
	"github.com/cove-dev/cove/sprites"
)

// shape is what a guest's good answer is to the client, whatever the guest calls
// it.
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

// guestPath finds the guest's escaped path for a request, below /v1/.
type guestPath func(*http.Request) (string, error)

func fixed(path string) guestPath {
	return func(*http.Request) (string, error) { return path, nil }
}

var sessionID = regexp.MustCompile(`^[0-9A-Za-z][0-9A-Za-z_-]{0,63}$`)

func (s *Server) guestSession(r *http.Request) (string, error) {
	id := r.PathValue("id")
	if !sessionID.MatchString(id) {
		return "", fail.New("session_not_found", "there is no such session", "see what there is with: cove session list")
	}
	return "exec/" + url.PathEscape(id), nil
}

func (s *Server) guestKill(r *http.Request) (string, error) {
	path, err := s.guestSession(r)
	return path + "/kill", err
}

var serviceName = regexp.MustCompile(`^[0-9A-Za-z][0-9A-Za-z._-]{0,62}$`)

// guestService is the path of the service that a request names, and what is asked
// of it.
func guestService(rest string) guestPath {
	return func(r *http.Request) (string, error) {
		name := r.PathValue("service")
		if !serviceName.MatchString(name) {
			return "", fail.New("service_not_found", "there is no such service", "see what there is with: cove service list")
		}
		return "services/" + url.PathEscape(name) + rest, nil
	}
}

// forward hands a request on to the sprite's guest, at a fixed path.
func (s *Server) forward(path string, sh shape) handlerFunc { return s.forwardTo(fixed(path), sh) }

// forwardTo hands a request on to the sprite's guest, and the answer back. Of the
// guest's headers only the length gets through.
func (s *Server) forwardTo(path guestPath, sh shape) handlerFunc {
	return func(w http.ResponseWriter, r *http.Request) error {
		to, err := path(r)
		if err != nil {
			return err
		}
		lease, err := s.Host.Use(r.Context(), r.PathValue("name"), purpose(to))
		if err != nil {
			return err
		}
		defer lease.Release()
		duplex.Serve(w, r, func(w http.ResponseWriter, r *http.Request) { err = s.toGuest(w, r, lease, to, sh) })
		return err
	}
}

// toGuest hands a request on to the guest of a sprite in use, at an escaped path.
func (s *Server) toGuest(w http.ResponseWriter, r *http.Request, lease *sprite.Lease, path string, sh shape) error {
	req, err := http.NewRequestWithContext(r.Context(), r.Method, guestURL(path, r.URL.RawQuery), r.Body)
	if err != nil {
		return err
	}
	req.ContentLength = r.ContentLength
	if r.ContentLength == 0 {
		req.Body = http.NoBody
	}
	for _, key := range []string{"Content-Type", "Accept"} {
		if v := r.Header.Get(key); v != "" {
			req.Header.Set(key, v)
		}
	}
	resp, err := s.guests.get(lease.Sandbox()).send(req)
	if err != nil {
		return endedOr(lease, err)
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode < 200 || resp.StatusCode > 299 {
		return guestFailure(resp, sh.files)
	}
	passBody(w, resp, sh)
	return nil
}

// purpose is why a request keeps its sprite awake.
func purpose(path string) string {
	word, _, _ := strings.Cut(path, "/")
	return word
}

// passBody answers with a guest's good answer. One that is cut is cut for the
// client too: it must not look whole.
func passBody(w http.ResponseWriter, resp *http.Response, sh shape) {
	h := w.Header()
	if resp.StatusCode == http.StatusNoContent {
		w.WriteHeader(http.StatusNoContent)
		return
	}
	h.Set("Content-Type", sh.contentType)
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
	400: true, 403: true, 404: true, 405: true, 409: true, 410: true, 413: true, 416: true,
	422: true, 426: true, 429: true, 500: true, 501: true, 503: true, 507: true,
}

// guestCodes are the codes of errors that a guest gives. By others, such as "disk_full"
// or "forbidden", programs and people know what this server has to say.
var guestCodes = map[string]bool{
	"http_port_taken": true, "internal_error": true, "invalid_request": true, "limit": true, "method_not_allowed": true,
	"not_available": true, "not_connected": true, "not_found": true, "nothing_listens": true, "nothing_to_end": true,
	"service_needed": true, "service_not_found": true, "service_not_listening": true, "service_not_running": true,
	"session_ended": true, "session_not_found": true, "stopping": true, "task_exists": true, "task_not_found": true,
	"too_large": true, "too_many_clients": true, "too_many_connections": true, "too_many_services": true,
	"too_many_sessions": true, "too_many_tasks": true, "too_many_watches": true, "upgrade_required": true,
}

var (
	fileCode  = regexp.MustCompile(`^E[A-Z0-9]{2,14}$`)
	plainCode = regexp.MustCompile(`^[a-z][a-z0-9_]{1,63}$`)
)

// guestFailure reads a guest's error answer, as far as it is one, and closes it. A hint
// says what a person types next: an honest guest gives none, and another's is dropped.
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
	if files && fileCode.MatchString(body.Code) {
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
		// Of a file a guest may say so. Otherwise it would be this server's word on a token, or on its disk.
		return fail.New("bad_guest", "the sandbox answers with status "+strconv.Itoa(resp.StatusCode), "")
	}
	if body.Message == "" && !plainCode.MatchString(body.Error) {
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

// getExec is the list of sessions, or with an upgrade a new one. A sprite that is
// not awake has no sessions, and is not woken to say so.
func (s *Server) getExec(w http.ResponseWriter, r *http.Request) error {
	if isUpgrade(r) {
		if !principalOf(r).may(exec) {
			return lacksVerb(exec)
		}
		return s.relayTo("exec", fixed("exec"))(w, r)
	}
	if !principalOf(r).may(read) {
		return lacksVerb(read)
	}
	sandbox, err := s.Host.Live(r.Context(), r.PathValue("name"))
	if err != nil {
		return err
	}
	if sandbox == nil {
		writeJSON(w, http.StatusOK, sprites.SessionList{Sessions: []sprites.Session{}})
		return nil
	}
	r.URL.RawQuery = "" // a list takes none, an id would make it something else
	return s.forward("exec", document)(w, r)
}

// headExec is asked by clients for the version in the headers.
func (s *Server) headExec(w http.ResponseWriter, r *http.Request) error {
	if _, err := s.Host.Get(r.Context(), r.PathValue("name")); err != nil {
		return err
	}
	w.WriteHeader(http.StatusOK)
	return nil
}
