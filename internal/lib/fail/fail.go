// Package fail is the error that the packages of cove's command line share: a code for
// programs, a message for people, and what to type next.
package fail

// Error is a failure that has a code. Its text is Message: a hint is never part of it. The
// JSON form goes between the two halves of cove.
type Error struct {
	Code    string   `json:"code"`
	Message string   `json:"message"`
	Hint    string   `json:"hint,omitempty"`  // what to type next, one proposal a line; empty: nothing is known
	Paths   []string `json:"paths,omitempty"` // the files that it is about, where a caller needs them
}

// New makes an error. Hint may be empty.
func New(code, message, hint string) *Error {
	return &Error{Code: code, Message: message, Hint: hint}
}

// Error is the message.
func (e *Error) Error() string { return e.Message }

// Is compares codes, so that errors.Is finds an error by one that has nothing but a code.
func (e *Error) Is(target error) bool {
	t, ok := target.(*Error)
	return ok && t.Code == e.Code && t.Message == ""
}

// exits has the codes for which the command line's exit code is not 1.
var exits = map[string]int{
	"bad_option":   2,
	"conflict":     3,  // both ends have changed: nothing was applied
	"risky":        4,  // held, for a person to look at
	"rejected":     5,  // the other end sent what no honest one sends
	"no_space":     6,  // a disk is full, or a limit is reached
	"lost":         75, // the connection ended too early
	"changed":      75, // a tree was changed meanwhile
	"sandbox_gone": 75,
}

// ExitCode is the command line's exit code for this error.
func (e *Error) ExitCode() int {
	if exit, ok := exits[e.Code]; ok {
		return exit
	}
	return 1
}
