package files

import (
	"errors"
	"io/fs"
	"net/http"
	"syscall"

	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/sprites"
)

// fileError is the failure of a call of the /fs family.
type fileError struct {
	path string
	err  error
}

func (e *fileError) Error() string { return e.path + ": " + e.err.Error() }
func (e *fileError) Unwrap() error { return e.err }

// Answer is the answer of the /fs family.
func (e *fileError) Answer() (status int, body any) {
	status, code, text := fileStatus(e.err)
	return status, sprites.FileError{Error: text, Code: code, Path: e.path, Message: e.path + ": " + text}
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
	syscall.ESTALE:       {http.StatusPreconditionFailed, "ESTALE"}, // the file is not the one that If-Match names, or If-None-Match wants none
	syscall.EDQUOT:       {http.StatusInsufficientStorage, "ENOSPC"},
}
