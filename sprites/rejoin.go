package sprites

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// ErrInputLost is in Wait's error, beside ErrNoExit, if a command's connection was lost, and
// input that was on its way can't be sent again (see Cmd.Rejoin).
var ErrInputLost = errors.New("some of the command's input was lost with the connection")

// LostOutputError says that a command has ended, and that some of its output is missing. Its
// connection was lost, and what it printed meanwhile was no longer kept (see Cmd.Rejoin). It
// is not an *ExitError, because this command's output can't be relied on.
type LostOutputError struct {
	Code   int    // the command's exit code, which may be 0
	Reason string // as in ExitError
}

// Error says how the command ended.
func (e *LostOutputError) Error() string {
	return "some of the command's output was lost with the connection; it ended with code " + strconv.Itoa(e.Code)
}

// link is one connection to a command. All but its socket is the reader's.
type link struct {
	sprite  *Sprite
	sock    *socket
	signals bool        // the server takes signals on the socket
	told    bool        // session_info has come
	limit   *time.Timer // for that; nil: none
}

func newLink(sprite *Sprite, sock *socket) *link {
	l := &link{sprite: sprite, sock: sock}
	for _, list := range sock.header.Values("X-Sprite-Capabilities") {
		for capability := range strings.SplitSeq(list, ",") {
			l.signals = l.signals || strings.TrimSpace(capability) == "signal"
		}
	}
	return l
}

// expectInfo ends the connection if the server does not describe the session.
func (l *link) expectInfo() {
	l.limit = time.AfterFunc(attachLimit, func() {
		l.sock.giveUp(fmt.Errorf("the server did not describe the session within %v", attachLimit))
	})
}

// stopLimit is for when the session is described, or the connection has ended.
func (l *link) stopLimit() {
	if l.limit != nil {
		l.limit.Stop()
	}
}

// replayed is a stream of output. A replay may repeat a part of it.
type replayed struct {
	at   int64 // bytes of the stream that have come
	skip int64 // bytes to come that have come before
}

// fresh is what of p, which has come, is new.
func (r *replayed) fresh(p []byte) []byte {
	n := min(r.skip, int64(len(p)))
	r.skip -= n
	r.at += int64(len(p)) - n
	return p[n:]
}

// replay says that what comes next begins after so many bytes of the stream. It
// reports whether none is missing.
func (r *replayed) replay(from int64) bool {
	from = max(from, 0) // a sandbox chose it
	whole := from <= r.at
	r.at = max(r.at, from)
	r.skip = r.at - from
	return whole
}

// rejoin finds a command again after its connection was lost, as Cmd.Rejoin says. It reports
// whether there is another connection. The reader calls it.
func (r *running) rejoin(ctx context.Context) bool {
	if r.cmd.Rejoin == nil {
		return false
	}
	r.input.lose()
	if !r.canRejoin() {
		return false
	}
	ctx, leave := context.WithCancel(ctx)
	defer leave()
	r.mu.Lock()
	if r.exit != nil || r.cause != nil {
		r.mu.Unlock()
		return false
	}
	r.away = leave
	r.mu.Unlock()
	r.link.Load().sock.close()
	for lost := r.noExit(); ; {
		sprite, err := r.cmd.Rejoin(ctx, lost)
		if err != nil {
			r.refused = err
			return false
		}
		err = r.attach(ctx, sprite)
		switch e, _ := errors.AsType[*Error](err); {
		case err == nil:
			return true
		case r.ending():
			r.killAfter(sprite)
			return false
		case e != nil && e.StatusCode == http.StatusNotFound && e.Code == "not_found":
			r.readErr = ErrRemoved
			return false
		case e != nil && e.StatusCode == http.StatusNotFound, errors.Is(err, ErrRemoved), errors.Is(err, ErrSandboxEnded):
			r.readErr = err
			return false
		}
		lost = fmt.Errorf("start session %s in %s: %w", r.id, sprite.describe(), err)
	}
}

// canRejoin reports whether there is something to come back to, and nothing was lost that
// can't be had again.
func (r *running) canRejoin() bool {
	select {
	case <-r.known:
	default:
		return false
	}
	if r.id == "" || r.refused != nil || errors.Is(r.readErr, ErrRemoved) || errors.Is(r.readErr, ErrSandboxEnded) {
		return false
	}
	if r.input.unsendable() {
		r.refused = r.inputLost("the server does not say how much of it the command has taken")
		return false
	}
	return true
}

func (r *running) inputLost(why string) error {
	return fmt.Errorf("%s in %s: %w: %w: %s", r.cmd, r.cmd.sprite.describe(), ErrNoExit, ErrInputLost, why)
}

// errAway is why a command is not reached.
var errAway = errors.New("its connection was lost, and there is no other one yet")

// errOver says that a command was left, or its context ended, while its connection was lost.
var errOver = errors.New("nobody waits for the command any more")

// attach connects to the session again.
func (r *running) attach(ctx context.Context, sprite *Sprite) error {
	q := url.Values{"stdin": {strconv.FormatBool(r.input != nil)}}
	if r.input != nil && r.cmd.session == "" {
		q.Set("resume", "true")
	}
	sock, err := sprite.client.dial(ctx, sprite.path("exec", r.id), q)
	if err != nil {
		return err
	}
	l := newLink(sprite, sock)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.cause != nil {
		sock.close()
		return errOver
	}
	l.expectInfo()
	r.link.Store(l)
	r.away = nil
	return nil
}

// ending reports whether this side ends the command, or leaves it.
func (r *running) ending() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.cause != nil
}

// killAfter kills a command whose context has ended while its connection was lost, as soon
// as it can be reached.
func (r *running) killAfter(sprite *Sprite) {
	r.mu.Lock()
	leave := r.cause == ErrDetached || r.cmd.session != ""
	r.mu.Unlock()
	if leave {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), killLimit)
	defer cancel()
	if _, err := sprite.kill(ctx, r.id, SIGKILL, 0); err != nil && !errors.Is(err, ErrGone) {
		r.endErr = err
	}
}

// resumed goes on where the last connection was cut, as the first message of this one says.
func (r *running) resumed(m Message) error {
	if m.Command != r.command && r.input != nil { // a sprite of the same name may have another under the id
		r.refused = r.inputLost("the session belongs to another command now")
		return r.refused
	}
	before := m.Before
	if len(before) != 2 {
		before = []int64{r.out.at, r.err.at} // it does not say what it sends again
		r.outputLost = true
	}
	out, err := r.out.replay(before[0]), r.err.replay(before[1])
	r.outputLost = r.outputLost || !out && r.cmd.Stdout != nil || !err && r.cmd.Stderr != nil
	r.mu.Lock()
	size := r.size
	r.mu.Unlock()
	sock := r.link.Load().sock
	if size != nil {
		_ = sock.tell(*size) // if it fails, so will reading
	}
	if why := r.input.resume(m.Taken, sock); why != "" {
		r.refused = r.inputLost(why)
		return r.refused
	}
	return nil
}
