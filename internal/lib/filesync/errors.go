package filesync

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"syscall"

	"github.com/cove-dev/cove/internal/lib/fail"
)

// The codes of a sync that did not take place. The tree has not been changed then, unless the
// error says otherwise.
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

func rejectedf(name, format string, args ...any) error {
	text := fmt.Sprintf(format, args...)
	if name != "" {
		text = fmt.Sprintf("refused %q: %s", name, text)
	} else {
		text = "refused what the sprite sent: " + text
	}
	return &fail.Error{Code: CodeRejected, Message: text + "; nothing was changed"}
}

func failedf(code, hint, format string, args ...any) error {
	return &fail.Error{Code: code, Message: fmt.Sprintf(format, args...), Hint: hint}
}

// Hints that an end gives. From the sprite's end only these are accepted.
const (
	hintAgain   = "try again"
	hintMove    = "move it away, or leave the path out: --exclude PATTERN"
	hintSpace   = "free some space and try again; the trees are as they were"
	hintResume  = "try again; what had come is kept for the next attempt"
	hintUpdate  = "update the older one of cove's two halves"
	hintSettle  = "sync without --dry-run, which ends it"
	hintBackups = "see: cove sync status"
	hintKept    = "try again; to have back the files from before: cove sync undo --id ID"
	hintLook    = "look at them first; then sync again"
)

var (
	endHints = []string{hintAgain, hintMove, hintSpace, hintResume, hintUpdate, hintSettle, hintBackups, hintKept, hintLook}
	endCodes = []string{CodeConflict, CodeRejected, CodeNoSpace, CodeChanged, CodeDenied, CodeNotFound, CodeLost, CodeFailed, CodeUsage}
)

const maxMessage = 4 << 10 // bytes of an error of the sprite's

// told makes an error of the sprite's end fit to be shown. A hint says what to type next on
// this machine, so the sprite does not choose it.
func told(e fail.Error) *fail.Error {
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
func coded(where string, err error) *fail.Error {
	if e, ok := errors.AsType[*fail.Error](err); ok {
		return e
	}
	e := &fail.Error{Code: CodeFailed, Message: where + ": " + err.Error()}
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
