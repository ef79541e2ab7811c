package sprites

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Errors to be found by errors.Is. The first six are answers of the server, as
// an *Error; so are fs.ErrNotExist, fs.ErrExist and fs.ErrPermission of file
// calls, in an *fs.PathError.
var (
	ErrNotFound     = errors.New("not found")                     // status 404, whatever is missing
	ErrNameTaken    = errors.New("name is taken")                 // create: 409, or 400 and 422 that say so
	ErrUnauthorized = errors.New("not authorized")                // status 401: no token, or a wrong one
	ErrForbidden    = errors.New("not allowed")                   // status 403: the token's scope or verbs
	ErrGone         = errors.New("already ended")                 // status 410: kill of an ended session
	ErrLimited      = errors.New("limit reached")                 // status 429
	ErrNoExit       = errors.New("connection ended without exit") // the command's end is not known
	ErrDetached     = errors.New("detached")                      // Wait after Detach
	ErrRemoved      = errors.New("the sprite was removed")        // while a command ran in it, or was about to
	ErrSandboxEnded = errors.New("the sandbox has ended")         // while it was used; the sprite's next use starts another
	ErrBadName      = errors.New("bad name")                      // empty, "." or ".." cannot stand in a path
)

// Error is the answer of a server that refused or failed. Code is for programs
// and may be empty, Message is for people and never is.
type Error struct {
	StatusCode int
	ErrorBody
}

// Error gives the message, with the hint if there is one.
func (e *Error) Error() string {
	if e.Hint != "" {
		return e.Message + " (" + e.Hint + ")"
	}
	return e.Message
}

// sandboxEnded reports whether a server's text gives ErrSandboxEnded as the reason. After it
// may stand why.
func sandboxEnded(text string) bool { return strings.HasPrefix(text, ErrSandboxEnded.Error()) }

// Is makes the errors of this package and of io/fs findable.
func (e *Error) Is(target error) bool {
	switch target {
	case ErrNotFound:
		return e.StatusCode == http.StatusNotFound
	case ErrNameTaken:
		return e.Code == "name_taken"
	case ErrUnauthorized:
		return e.StatusCode == http.StatusUnauthorized
	case ErrForbidden:
		return e.StatusCode == http.StatusForbidden
	case ErrGone:
		return e.StatusCode == http.StatusGone
	case ErrRemoved:
		return e.Code == "being_deleted"
	case ErrSandboxEnded:
		return sandboxEnded(e.Message)
	case ErrLimited:
		return e.StatusCode == http.StatusTooManyRequests
	case fs.ErrNotExist:
		return e.Code == "ENOENT"
	case fs.ErrExist:
		return e.Code == "EEXIST"
	case fs.ErrPermission:
		return e.Code == "EACCES" || e.Code == "EPERM"
	}
	return false
}

// RetryAfter is how long the server asks to wait; 0 if it does not say.
func (e *Error) RetryAfter() time.Duration {
	return time.Duration(e.RetryAfterSeconds) * time.Second
}

// responseError reads a failed answer, closes it, and returns it as an *Error.
func responseError(resp *http.Response) error {
	body, _ := io.ReadAll(io.LimitReader(resp.Body, maxErrorBody)) // what could be read is better than nothing
	_ = resp.Body.Close()
	return parseError(resp.StatusCode, resp.Header, body)
}

// parseError makes an Error of any of the shapes in section 1.4 of the protocol. These
// are: structured, a list of validation messages, a file error, plain text, nothing.
func parseError(status int, header http.Header, body []byte) *Error {
	e := &Error{StatusCode: status}
	var doc struct {
		ErrorBody
		Error  json.RawMessage `json:"error"`
		Errors []any           `json:"errors"`
		Code   any             `json:"code"`
	}
	if err := json.Unmarshal(body, &doc); err != nil {
		// Not an object, or a field of another type: a field at a time.
		var fields map[string]json.RawMessage
		if json.Unmarshal(body, &fields) == nil {
			doc.Error = fields["error"]
			_ = json.Unmarshal(fields["message"], &doc.Message)
		} else {
			doc.Message = strings.TrimSpace(string(body))
		}
	}
	e.ErrorBody = doc.ErrorBody
	e.fill(doc.Error, doc.Errors)
	if code, ok := doc.Code.(string); ok && code != "" { // a file error: "error" is the text
		if e.Message == "" {
			e.Message = e.Code
		}
		e.Code = code
	}
	if strings.ContainsAny(e.Code, " \t\n") { // {"error":"sprite not found"}
		if e.Message == "" {
			e.Message = e.Code
		}
		e.Code = ""
	}
	if e.RetryAfterSeconds <= 0 {
		e.RetryAfterSeconds = 0
		if n, err := strconv.Atoi(header.Get("Retry-After")); err == nil && n > 0 {
			e.RetryAfterSeconds = n
		}
	}
	e.Message = printable(e.Message)
	if e.Message == "" {
		e.Message = e.Code
	}
	if e.Message == "" {
		e.Message = fmt.Sprintf("API error (status %d)", status)
	}
	return e
}

// fill takes code and message from an "error" that is text or an object, and
// from a list of "errors".
func (e *Error) fill(raw json.RawMessage, list []any) {
	var object errorObject
	if json.Unmarshal(raw, &e.Code) != nil && json.Unmarshal(raw, &object) == nil {
		e.Code = object.Code
		if e.Message == "" {
			e.Message = object.Message
		}
		if e.Hint == "" {
			e.Hint = object.Hint
		}
	}
	var texts []string
	for _, v := range list {
		texts = append(texts, fmt.Sprint(v))
	}
	if e.Message == "" {
		e.Message = strings.Join(texts, "; ")
	}
}

// errorObject is an "error" that is an object, as some servers send it.
type errorObject struct {
	Code    string `json:"code"`
	Message string `json:"message"`
	Hint    string `json:"hint,omitempty"`
}

// printable makes text from a server fit for a terminal: control characters
// but newline and tab are dropped.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r == '\n' || r == '\t' {
			return r
		}
		if r < 0x20 || r >= 0x7f && r < 0xa0 {
			return -1
		}
		return r
	}, strings.ToValidUTF8(s, "\uFFFD"))
}

// ExitError says that a command ran and ended with a code other than 0.
type ExitError struct {
	// Code is the exit code. It is 128 + N for a death by signal N, 127 if the program
	// was not found, and 126 if it is not executable.
	Code int

	// Reason is why, when a cove server knows: "timeout", "oom", "stopped" (all of
	// the sprite was), "restored" (so it was brought back to a checkpoint), "removed"
	// (with the sprite: ErrRemoved), "signal:KILL".
	Reason string

	// Stderr is the end of the error output (32 KiB at most), if Output or
	// Run's caller did not collect it. Only Output sets it.
	Stderr []byte
}

// Error says how the command ended.
func (e *ExitError) Error() string {
	text := "exit status " + strconv.Itoa(e.Code)
	switch {
	case e.Reason != "":
		return text + " (" + printable(e.Reason) + ")"
	case e.Signal() != "":
		return text + " (signal:" + string(e.Signal()) + ")"
	}
	return text
}

// Is makes ErrRemoved findable.
func (e *ExitError) Is(target error) bool { return target == ErrRemoved && e.Reason == "removed" }

// Signal is the signal that ended the command, or empty. If only the code is known, a
// command that itself ends with a code over 128 looks the same.
func (e *ExitError) Signal() Signal {
	if name, ok := strings.CutPrefix(e.Reason, "signal:"); ok {
		return Signal(name).normal()
	}
	return signalByNumber[e.Code-128]
}
