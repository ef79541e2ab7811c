package cli

import (
	"errors"
	"fmt"
	"io"
	"sync"
	"syscall"

	"github.com/cove-dev/cove/internal/lib/fail"
)

// result is the standard output of one run. It remembers the first error of a Write, so that
// no verb ends as if its result had been seen.
type result struct {
	io.Writer

	mu  sync.Mutex
	err error // guarded by mu
}

func (r *result) Write(p []byte) (int, error) {
	n, err := r.Writer.Write(p)
	if err != nil {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.err == nil {
			r.err = err
		}
	}
	return n, err
}

// beneath is the stream that a result writes to; any other stream is returned as it is.
func beneath(stream any) any {
	if r, ok := stream.(*result); ok {
		return r.Writer
	}
	return stream
}

// lostOutput is the error that lost some output to out; nil if none was lost. A reader that
// has gone away does not count: it wants no more.
func lostOutput(out io.Writer) error {
	r, ok := out.(*result)
	if !ok {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if errors.Is(r.err, syscall.EPIPE) || errors.Is(r.err, io.ErrClosedPipe) {
		return nil
	}
	return r.err
}

// lostResult is the error of a run whose result could not be written. Otherwise it is err,
// which is the error of the verb.
func lostResult(out io.Writer, err error) error {
	lost := lostOutput(out)
	if lost == nil || errors.As(err, new(*fail.Error)) {
		return err
	}
	if err == nil || errors.As(err, new(reportedError)) {
		return outputError("the command was carried out, but its result could not be written", lost, "write it to somewhere else; what the command has done need not be done again")
	}
	if errors.Is(err, lost) {
		return outputError("the result could not be written", lost, "write it to somewhere else")
	}
	return err
}

// outputError is the error for a result that could not be written.
func outputError(what string, lost error, hint string) error {
	return fail.Wrap("result_lost", fmt.Errorf("%s: %w", what, lost), hint)
}
