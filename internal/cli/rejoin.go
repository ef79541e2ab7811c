package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/lib/printable"
	"github.com/cove-dev/cove/sprites"
)

// aloneLimit is how long a command goes on after its connection is lost. It is a little
// longer than cove tries to join it again.
const aloneLimit = comeBackLimit + 10*time.Second

// execution is a command that somebody waits for, over as many connections as that
// takes (sprites.Cmd.Rejoin).
type execution struct {
	inv      *invocation
	sprite   string
	input    bool        // it reads an input that can't be repeated: it has only one connection
	keys     *pausedKeys // nil: no terminal's
	out, err brokenWriter
	run      func(*sprites.Cmd) error // starts a command, and waits for its end
	forward  func(*sprites.Cmd)       // sets the connection that signals go by; nil: there is none
	again    bool                     // it has another connection than its first
	pace     pace
	held     *atomic.Bool // set while the sprite is held
	left     atomic.Int64 // processes of the command that run on after it, for aloneLimit
}

// brokenWriter notes if a write fails, and if that is because the reader has gone away.
type brokenWriter struct {
	io.Writer
	failed, broken atomic.Bool // it took no more; because its reader has gone away
}

func (w *brokenWriter) Write(p []byte) (int, error) {
	n, err := w.Writer.Write(p)
	if err != nil {
		w.broken.Store(errors.Is(err, syscall.EPIPE))
		w.failed.Store(true)
	}
	return n, err
}

// toEnd runs a command, and joins it again if its connection is lost.
func (x *execution) toEnd(ctx context.Context, cmd *sprites.Cmd) error {
	cmd.Stdout, cmd.Stderr = &x.out, &x.err
	cmd.OnMessage = func(m sprites.Message) { x.hear(cmd, m) }
	if !x.input {
		cmd.Rejoin = func(ctx context.Context, lost error) (*sprites.Sprite, error) { return x.rejoin(ctx, cmd, lost) }
	}
	err := x.run(cmd)
	lost, outputLost := errors.AsType[*sprites.LostOutputError](err)
	switch {
	case errors.Is(err, errSilent):
		return err
	case x.input && (errors.Is(err, sprites.ErrNoExit) || isHeld(err)) && cmd.SessionID() != "" && ctx.Err() == nil && !sandboxGone(err) && !x.out.failed.Load() && !x.err.failed.Load():
		return hinted(err, fmt.Sprintf("it will be killed in %v unless you take it over: %s", aloneLimit, x.attach(cmd)))
	case x.out.broken.Load() || x.err.broken.Load():
		return reportedError{exitBrokenPipe}
	case outputLost:
		return fail.New("output_lost", lost.Error(), "")
	case errors.Is(err, sprites.ErrNoExit) && errors.Is(err, sprites.ErrNotFound):
		return fail.New("connection_lost", "the connection was lost, and the command has ended meanwhile: its exit code is not known", "")
	}
	return err
}

// attach is what to type to join the command.
func (x *execution) attach(cmd *sprites.Cmd) string {
	input := ""
	if x.input {
		input = " -i"
	}
	return fmt.Sprintf("cove session attach %s -s %s%s", printable.Word(cmd.SessionID()), x.sprite, input)
}

// rejoin waits for the command's sprite after a connection was lost.
func (x *execution) rejoin(ctx context.Context, cmd *sprites.Cmd, lost error) (*sprites.Sprite, error) {
	if !errors.Is(lost, sprites.ErrNoExit) && !isHeld(lost) {
		return nil, spriteError(lost)
	}
	x.again = true
	if x.forward != nil {
		x.forward(nil)
	}
	away := absence{says: "Ctrl-C leaves", pace: &x.pace, find: x.findAgain}
	if x.keys != nil {
		away.keys = x.keys.keyboard
		goOn := x.keys.pause()
		defer goOn()
	}
	sprite, err := comeBack(ctx, x.inv, away)
	attach := x.attach(cmd)
	switch {
	case errors.Is(err, sprites.ErrDetached), ctx.Err() != nil:
		x.inv.say("\nIt goes on for %v. Come back with: %s", aloneLimit, attach)
		return nil, interruptedError{}
	case errors.Is(err, errSessionGone):
		return nil, lost
	case err != nil && !errors.Is(err, sprites.ErrRemoved) && !errors.Is(err, sprites.ErrUnauthorized):
		hint := "it is being killed about now; if not: " + attach
		if f := classify(err); f.hint != "" && serverAway(err) {
			hint = f.hint + "\n" + hint
		}
		return nil, fail.Wrap("connection_lost", errors.Join(lost, err), hint)
	}
	return sprite, err
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
	paused := info.Cove != nil && info.Cove.Paused // its processes exist; a new server does not know at once why it is paused
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

// isHeld reports whether a call was refused because its sprite is held.
func isHeld(err error) bool {
	e, ok := errors.AsType[*sprites.Error](err)
	return ok && (e.Code == "disk_limit" || e.Code == "disk_full")
}

// heldBy is why a sprite is held; nil: it is not.
func heldBy(info sprites.Info) *sprites.Held {
	if info.Cove == nil {
		return nil
	}
	return info.Cove.Held
}

// sayHeld tells the person that a command's sprite is held, and why, that it goes on, or what
// it has lost.
func sayHeld(inv *invocation, m sprites.Message) {
	switch {
	case m.Type == sprites.MessageLost:
		inv.say("cove: the sprite began anew: %s\ncove: its programs are gone; its files are as they were", printable.Line(m.Lost))
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

// hear is note, and sees to what begins and ends with a connection.
func (x *execution) hear(cmd *sprites.Cmd, m sprites.Message) {
	x.note(m)
	if m.Type != "session_info" || !x.again {
		return
	}
	if x.forward != nil {
		x.forward(cmd)
	}
	if x.held.Load() {
		x.note(sprites.Message{Type: sprites.MessageHeld}) // it answers
	}
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

// killWait bounds a wait for a sign of life.
const killWait = 5 * time.Second
