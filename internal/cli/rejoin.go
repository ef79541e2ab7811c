package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/lib/printable"
	"github.com/cove-dev/cove/sprites"
)

// aloneLimit is how long a command goes on whose connection is lost: a little
// longer than it is tried to come back.
const aloneLimit = comeBackLimit + 10*time.Second

// execution is a command that somebody waits for, over as many connections as that
// takes. What it prints is written once, in whole.
type execution struct {
	inv      *invocation
	sprite   string
	session  string    // once it is known
	input    bool      // it reads what can't be had again: one connection is all
	keys     *keyboard // nil: no terminal's
	out, err resumed
	run      func(*sprites.Cmd) error // starts a command, and waits for its end
	lost     bool                     // output that nobody has
	held     *atomic.Bool             // set while the sprite is held
	left     atomic.Int64             // processes of the command that run on after it, for aloneLimit
}

// resumed is a stream of output, of which a replay may repeat some.
type resumed struct {
	w    io.Writer
	at   int64 // bytes of the stream that were written to w
	skip int64 // bytes to come that were

	failed, broken atomic.Bool // w took no more; because its reader has gone away
}

func (r *resumed) Write(p []byte) (int, error) {
	n := int(min(r.skip, int64(len(p))))
	r.skip -= int64(n)
	if n == len(p) {
		return n, nil
	}
	m, err := r.w.Write(p[n:])
	r.at += int64(m)
	if err != nil {
		r.broken.Store(errors.Is(err, syscall.EPIPE))
		r.failed.Store(true)
	}
	return n + m, err
}

// replay says that what comes next begins after so many bytes of the stream. It
// reports whether none is missing.
func (r *resumed) replay(from int64) bool {
	from = max(from, 0) // a sandbox chose it
	whole := from <= r.at
	r.at = max(r.at, from)
	r.skip = r.at - from
	return whole
}

// toEnd runs a command, and joins it again where its connection is lost.
func (x *execution) toEnd(ctx context.Context, cmd *sprites.Cmd) error {
	cmd.Stdout, cmd.Stderr = &x.out, &x.err
	cmd.OnMessage = x.note
	err := x.run(cmd)
	if errors.Is(err, errSilent) {
		return err
	}
	x.session = cmd.SessionID()
	attach := fmt.Sprintf("cove session attach %s -s %s", printable.Line(x.session), x.sprite)
	for (errors.Is(err, sprites.ErrNoExit) || isHeld(err)) && x.session != "" && ctx.Err() == nil && !sandboxGone(err) && !x.out.failed.Load() && !x.err.failed.Load() {
		if x.input {
			return hinted(err, fmt.Sprintf("it is ended in %v unless you take it over: %s", aloneLimit, attach))
		}
		sprite, backErr := comeBack(ctx, x.inv, absence{keys: x.keys, says: "Ctrl-C leaves", find: x.findAgain})
		switch {
		case errors.Is(backErr, sprites.ErrDetached), ctx.Err() != nil:
			x.inv.say("\nIt goes on for %v. Come back with: %s", aloneLimit, attach)
			return interruptedError{}
		case errors.Is(backErr, errSessionGone):
			return err
		case errors.Is(backErr, sprites.ErrRemoved):
			return backErr
		case backErr != nil:
			hint := "it is ended about now; if not: " + attach
			if f := classify(backErr); f.hint != "" && serverAway(backErr) {
				hint = f.hint + "\n" + hint
			}
			return fail.Wrap("connection_lost", errors.Join(err, backErr), hint)
		}
		err = x.join(ctx, sprite)
	}
	if x.out.broken.Load() || x.err.broken.Load() {
		return reportedError{exitBrokenPipe}
	}
	return x.whole(err)
}

// findAgain looks for the command's sprite, awake, with a new client: the server may
// be another.
func (x *execution) findAgain(ctx context.Context) (*sprites.Sprite, error) {
	c, err := x.inv.server.clientAgain(ctx)
	if err != nil {
		return nil, err
	}
	info, err := stillThere(ctx, c, x.sprite)
	if err != nil {
		return nil, err
	}
	paused := info.Cove != nil && info.Cove.Paused // what runs in it is there; a new server does not know at once why
	held := paused && heldBy(info) != nil
	if held && !x.held.Load() {
		x.note(sprites.Message{Type: sprites.MessageHeld, Held: heldBy(info)})
	}
	switch {
	case held:
		return nil, errStillHeld
	case paused:
	case info.Status != "" && info.Status != sprites.StatusRunning:
		return nil, errSessionGone
	}
	return c.Sprite(x.sprite), nil
}

// isHeld reports whether a call was refused because its sprite stands still.
func isHeld(err error) bool {
	e, ok := errors.AsType[*sprites.Error](err)
	return ok && (e.Code == "disk_limit" || e.Code == "disk_full")
}

// heldBy is why a sprite stands still; nil: it does not.
func heldBy(info sprites.Info) *sprites.Held {
	if info.Cove == nil {
		return nil
	}
	return info.Cove.Held
}

// sayHeld tells the person why nothing comes of a command, or that it goes on, and of what
// the sprite has lost.
func sayHeld(inv *invocation, m sprites.Message) {
	switch {
	case m.Type == sprites.MessageLost:
		inv.say("cove: the sprite began anew: %s\ncove: what ran in it is gone; its files are as they were", printable.Line(m.Lost))
	case m.Type != sprites.MessageHeld:
	case m.Held == nil:
		inv.say("cove: the sprite goes on")
	default:
		inv.say("cove: %s\ncove: %s", m.Held.Message, m.Held.Hint)
	}
}

// note is sayHeld, and notes what a message says.
func (x *execution) note(m sprites.Message) {
	switch m.Type {
	case sprites.MessageHeld:
		x.held.Store(m.Held != nil)
	case "exit":
		x.left.Store(int64(m.Left))
	}
	sayHeld(x.inv, m)
}

// join takes up the command where its last connection was cut. The end of ctx kills
// it, as that of its first connection's would have.
func (x *execution) join(ctx context.Context, sprite *sprites.Sprite) error {
	cmd := sprite.Attach(context.WithoutCancel(ctx), x.session)
	cmd.Stdout, cmd.Stderr = &x.out, &x.err
	cmd.OnMessage = func(m sprites.Message) {
		x.note(m)
		if m.Type != "session_info" {
			return
		}
		if x.held.Load() {
			x.note(sprites.Message{Type: sprites.MessageHeld}) // it answers
		}
		if len(m.Before) != 2 {
			m.Before = []int64{x.out.at, x.err.at} // it does not say what it sends again
			x.lost = true
		}
		out, err := x.out.replay(m.Before[0]), x.err.replay(m.Before[1])
		x.lost = x.lost || !out || !err
	}
	killed := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(killed)
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), killWait)
		defer cancel()
		_, _ = sprite.Kill(ctx, x.session, sprites.SIGKILL, killWait) // it may have ended
	})
	err := x.run(cmd)
	if !stop() {
		<-killed
		return ctx.Err()
	}
	if e, ok := errors.AsType[*sprites.Error](err); ok && e.StatusCode == http.StatusNotFound {
		if e.Code == "not_found" {
			return sprites.ErrRemoved
		}
		return fail.New("connection_lost", "the connection was lost, and the command has ended meanwhile: its exit code is not known", "")
	}
	return err
}

// sayLeft says that programs which the command has left running will be ended.
func (x *execution) sayLeft() {
	n := x.left.Load()
	if n <= 0 {
		return
	}
	them := "1 program that it started is still running and will be ended"
	if n > 1 {
		them = fmt.Sprintf("%d programs that it started are still running and will be ended", n)
	}
	x.inv.say("cove: %s in %v. To keep one running: cove exec -s %[3]s --detach CMD; as a service: cove service put -s %[3]s NAME CMD", them, aloneLimit, x.sprite)
}

// killWait bounds a kill whose command nobody waits for any more.
const killWait = 5 * time.Second

// whole is the command's end, or an error where some of its output is missing.
func (x *execution) whole(err error) error {
	code := 0
	if exit, ok := errors.AsType[*sprites.ExitError](err); ok {
		code = exit.Code
	} else if err != nil {
		return err
	}
	if !x.lost {
		return err
	}
	return fail.Newf("output_lost", "", "some of the command's output was lost with the connection; it ended with code %d", code)
}
