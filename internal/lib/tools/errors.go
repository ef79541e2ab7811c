package tools

import (
	"context"
	"errors"
	"io/fs"
	"syscall"

	"github.com/cove-dev/cove/internal/lib/fail"
)

// The codes of calls that were not carried out. Nothing was changed then.
const (
	CodeBadInput     = "bad_input"     // not what the tool's schema says
	CodeBadPattern   = "bad_pattern"   // a glob or a regular expression that can't be read
	CodeDenied       = "denied"        // the role does not allow the tool, or the token the sprite
	CodeNotFound     = "not_found"     // no such file or folder, or background command
	CodeIsDirectory  = "is_directory"  // a folder where a file is needed
	CodeNotDirectory = "not_directory" // a file where a folder is needed
	CodeNotRegular   = "not_regular"   // a pipe, socket or device
	CodePermission   = "permission"    // the sprite's user may not do that
	CodeTooLarge     = "too_large"     // over a limit that Message names
	CodeNoSpace      = "no_space"      // the disk is full
	CodeNoMatch      = "no_match"      // Edit: the text is not in the file
	CodeNotUnique    = "not_unique"    // Edit: it is there more than once
	CodeNoChange     = "no_change"     // Edit: the new text is the old one
	CodeStale        = "stale"         // the file is not as if_match says
	CodeChanged      = "changed"       // the file was changed by someone else meanwhile
	CodeBusy         = "busy"          // too many calls at once
	CodeCancelled    = "cancelled"     // by the caller
	CodeFailed       = "failed"        // everything else
	CodeSandboxGone  = "sandbox_gone"  // the sprite was removed, or its sandbox has ended
	CodeUnreachable  = "unreachable"   // the connection was lost
	CodeSessionEnded = "session_ended" // the sprite's half ended, though its sandbox lives
	CodeProtocol     = "protocol"      // the sprite sent what no honest one sends
)

// Told is the text of an error for a model.
func Told(e *fail.Error) string {
	text := "Error (" + e.Code + "): " + e.Message
	if e.Retryable() {
		text += " The call may be tried again."
	}
	return text
}

func errorf(code, format string, args ...any) *fail.Error {
	return fail.Newf(code, "", format, args...)
}

// coded gives an error of the system its code. subject is the path of the error; empty if the
// error has it.
func coded(subject string, err error) *fail.Error {
	if e, ok := errors.AsType[*fail.Error](err); ok {
		return e
	}
	what := subject + ": "
	if subject == "" {
		what = ""
	}
	reason := err
	if e, ok := errors.AsType[syscall.Errno](err); ok && subject != "" {
		reason = e
	}
	switch {
	case errors.Is(err, context.Canceled):
		return errorf(CodeCancelled, "the call was cancelled")
	case errors.Is(err, fs.ErrNotExist):
		return errorf(CodeNotFound, "%sno such file or folder", what)
	case errors.Is(err, syscall.ENOTDIR):
		return errorf(CodeNotDirectory, "%sa part of the path is no folder", what)
	case errors.Is(err, syscall.EISDIR):
		return errorf(CodeIsDirectory, "%sis a folder", what)
	case errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.EROFS):
		return errorf(CodePermission, "%s%v", what, reason)
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return errorf(CodeNoSpace, "%s%v", what, reason)
	case errors.Is(err, syscall.EINVAL), errors.Is(err, syscall.ENAMETOOLONG), errors.Is(err, syscall.ELOOP):
		return errorf(CodeBadInput, "%s%v", what, reason)
	}
	return errorf(CodeFailed, "%s%v", what, reason)
}
