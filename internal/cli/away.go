package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"syscall"

	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/sprites"
)

// serverAway reports whether err says that no server answers, or that the connection to it was
// cut. One that answers with an error is there.
func serverAway(err error) bool {
	if _, answered := errors.AsType[*sprites.Error](err); answered || err == nil ||
		errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return false
	}
	if e, ok := errors.AsType[*fail.Error](err); ok {
		switch e.Code {
		case "no_server", "server_failed", codeSilent:
			return true
		case "connection_lost": // its text already says what to do
			return false
		}
	}
	return errors.Is(err, errNoServer) || errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) ||
		errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || isNetError(err)
}

// lostServer is the error of a wait whose server went away and did not come back, if err says
// that. goOn is what to type once a server runs. Other errors stay what they are.
func lostServer(err error, goOn string) error {
	if !serverAway(err) {
		return err
	}
	hint := "then go on with: " + goOn
	if f := classify(err); f.hint != "" {
		hint = f.hint + "\n" + hint
	}
	return fail.Wrap("connection_lost", fmt.Errorf("the server is gone, and did not come back: %w", err), hint)
}

// absentServer tells the person, once each time, that a server which a command waits for is
// gone, and that it is back. The zero value has seen it.
type absentServer struct {
	missed int // answers in a row
	told   bool
}

// saw notes how a question to the server went.
func (s *absentServer) saw(inv *invocation, err error) {
	if !serverAway(err) {
		if s.told && err == nil {
			inv.warn("cove: the server is back")
		}
		if err == nil {
			*s = absentServer{}
		}
		return
	}
	if s.missed++; s.missed < 2 || s.told { // a server that is restarted cuts one
		return
	}
	s.told = true
	f := classify(err)
	inv.warn("cove: the server does not answer; trying again for some minutes: %s", strings.ReplaceAll(f.message, "\n", "\n    | "))
	for line := range strings.SplitSeq(f.hint, "\n") {
		if line != "" {
			inv.warn("  hint: %s", line)
		}
	}
}
