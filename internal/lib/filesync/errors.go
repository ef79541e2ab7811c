package filesync

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"syscall"
)

// Error is why a sync did not take place. Nothing of the tree has been changed
// then, unless Message says otherwise.
type Error struct {
	Code    string `json:"code"`
	Message string `json:"message"`
	Hint    string `json:"hint,omitempty"`

	Paths []string `json:"paths,omitempty"` // of risky: folders below the root; "." is the root
}

// The codes of Error.
const (
	CodeConflict = "conflict"   // both sides have changed
	CodeRejected = "rejected"   // the other side sent what no honest one sends
	CodeNoSpace  = "no_space"   // a disk is full, or a limit is reached
	CodeChanged  = "changed"    // a tree was changed meanwhile
	CodeDenied   = "denied"     // a file may not be read or written
	CodeNotFound = "not_found"  // there is no such folder, or backup
	CodeLost     = "lost"       // the connection ended too early
	CodeFailed   = "failed"     // everything else
	CodeUsage    = "bad_option" // a path or a pattern that can't be meant
	CodeRisky    = "risky"      // what would come could make something run on this machine
)

func (e *Error) Error() string { return e.Message }

// ExitCode is the command line's exit code for this error.
func (e *Error) ExitCode() int {
	switch e.Code {
	case CodeUsage:
		return 2
	case CodeConflict:
		return 3
	case CodeRisky:
		return 4
	case CodeRejected:
		return 5
	case CodeNoSpace:
		return 6
	case CodeLost, CodeChanged:
		return 75
	}
	return 1
}

func rejectedf(name, format string, args ...any) error {
	text := fmt.Sprintf(format, args...)
	if name != "" {
		text = fmt.Sprintf("refused %q: %s", name, text)
	} else {
		text = "refused what the sprite sent: " + text
	}
	return &Error{Code: CodeRejected, Message: text + "; nothing was changed"}
}

func failedf(code, hint, format string, args ...any) error {
	return &Error{Code: code, Message: fmt.Sprintf(format, args...), Hint: hint}
}

// Hints that an end gives. Of the sprite's end these count, and no others.
const (
	hintAgain   = "try again"
	hintMove    = "move it away, or leave the path out: --exclude PATTERN"
	hintSpace   = "free some space and try again; the trees are as they were"
	hintResume  = "try again; what had come is kept for the next attempt"
	hintUpdate  = "update the older one of cove's two halves"
	hintSettle  = "sync without --dry-run, which ends it"
	hintBackups = "see: cove sync status"
	hintLook    = "look at them first; then sync again"
)

var (
	endHints = []string{hintAgain, hintMove, hintSpace, hintResume, hintUpdate, hintSettle, hintBackups, hintLook}
	endCodes = []string{CodeConflict, CodeRejected, CodeNoSpace, CodeChanged, CodeDenied, CodeNotFound, CodeLost, CodeFailed, CodeUsage}
)

const maxMessage = 4 << 10 // bytes of an error of the sprite's

// told makes an error of the sprite's end fit to be shown. A hint is what to type
// next on this machine: the sprite does not choose it.
func told(e Error) *Error {
	if !slices.Contains(endCodes, e.Code) {
		e.Code = CodeFailed
	}
	if !slices.Contains(endHints, e.Hint) {
		e.Hint = ""
	}
	if len(e.Message) > maxMessage {
		e.Message = e.Message[:maxMessage] + "…"
	}
	e.Message = "the sprite's half of the sync says: " + e.Message
	return &e
}

// coded gives an error of the system its code. where says at which end.
func coded(where string, err error) *Error {
	if e, ok := errors.AsType[*Error](err); ok {
		return e
	}
	e := &Error{Code: CodeFailed, Message: where + ": " + err.Error()}
	switch {
	case errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT):
		e.Code, e.Hint = CodeNoSpace, hintSpace
	case errors.Is(err, context.Canceled): // it was told to end, as by cove session kill
		e.Code, e.Hint = CodeLost, hintResume
	case errors.Is(err, fs.ErrPermission):
		e.Code = CodeDenied
	case errors.Is(err, fs.ErrNotExist):
		e.Code = CodeNotFound
	}
	return e
}
