package cli

import (
	"bytes"
	"context"
	"io"
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/term"

	"github.com/cove-dev/cove/sprites"
)

// detachKey is Ctrl+\, which leaves a console.
const detachKey = 0x1c

// terminal is this process's terminal, while a command in a sprite has it.
type terminal struct {
	in    *os.File    // nil: the input is no terminal
	size  *os.File    // a terminal to ask for its size; nil: none
	state *term.State // to restore; nil: the mode was not changed
}

// openTerminal puts the input into raw mode, if it is a terminal. restore must be
// called, and may be more than once.
func openTerminal(inv *invocation) (*terminal, error) {
	t := &terminal{}
	if isTerminal(inv.In) {
		t.in = inv.In.(*os.File)
	}
	for _, stream := range []any{inv.Out, inv.In, inv.Err} {
		if isTerminal(stream) {
			t.size = beneath(stream).(*os.File)
			break
		}
	}
	if t.in == nil {
		return t, nil
	}
	state, err := term.MakeRaw(int(t.in.Fd()))
	if err != nil {
		return nil, err
	}
	t.state = state
	return t, nil
}

func (t *terminal) restore() {
	if t.state != nil {
		_ = term.Restore(int(t.in.Fd()), t.state) // nothing could be done about it
		t.state = nil
	}
}

// geometry is the size to give the command's terminal.
func (t *terminal) geometry() *sprites.Terminal {
	if t.size != nil {
		if cols, rows, err := term.GetSize(int(t.size.Fd())); err == nil && rows > 0 && cols > 0 {
			return &sprites.Terminal{Rows: rows, Cols: cols}
		}
	}
	return &sprites.Terminal{}
}

// follow hands each change of the terminal's size to the command, until ctx ends.
func (t *terminal) follow(ctx context.Context, cmd *sprites.Cmd) {
	if t.size == nil {
		return
	}
	changes := make(chan os.Signal, 1)
	signal.Notify(changes, syscall.SIGWINCH)
	defer signal.Stop(changes)
	last := *t.geometry()
	for {
		select {
		case <-ctx.Done():
			return
		case <-changes:
			now := *t.geometry()
			if now == last || now.Rows == 0 {
				continue
			}
			last = now
			if cmd.Resize(now.Rows, now.Cols) != nil {
				return // the command has ended
			}
		}
	}
}

// keyboard is the input of several connections, which use it one after the other. A read
// that nobody waits for any more takes no input from the next connection.
type keyboard struct{ typed chan []byte }

func newKeyboard(in io.Reader) *keyboard {
	k := &keyboard{typed: make(chan []byte)}
	go func() { // until the input ends, or this process
		defer close(k.typed)
		for {
			p := make([]byte, 4<<10)
			n, err := in.Read(p)
			if n > 0 {
				k.typed <- p[:n]
			}
			if err != nil {
				return
			}
		}
	}()
	return k
}

// until is the input until over is closed.
func (k *keyboard) until(over <-chan struct{}) io.Reader { return &keyReader{keyboard: k, over: over} }

// pausing is the input of one command. While it is paused, others may read the keyboard.
func (k *keyboard) pausing() *pausedKeys {
	paused := make(chan chan struct{}, 1)
	return &pausedKeys{&keyReader{keyboard: k, paused: paused}, paused}
}

// pausedKeys is a keyboard's input that can be paused: then its reads wait.
type pausedKeys struct {
	*keyReader
	pauses chan chan struct{}
}

// pause keeps reads from taking input until goOn is called.
func (p *pausedKeys) pause() (goOn func()) {
	over := make(chan struct{})
	p.pauses <- over // a read takes it before any input that is typed after this
	return func() {
		close(over)
		select {
		case <-p.pauses: // no read has taken it
		default:
		}
	}
}

type keyReader struct {
	*keyboard
	over   <-chan struct{}
	paused <-chan chan struct{} // has a value when a pause begins, which is closed at its end
	left   []byte               // the rest of the typed input
}

func (r *keyReader) Read(p []byte) (int, error) {
	for len(r.left) == 0 {
		select {
		case over := <-r.paused:
			<-over
			continue
		default:
		}
		select {
		case <-r.over:
			return 0, io.EOF
		case over := <-r.paused:
			<-over
		case typed, ok := <-r.typed:
			if !ok {
				return 0, io.EOF
			}
			r.left = typed
		}
	}
	n := copy(p, r.left)
	r.left = r.left[n:]
	return n, nil
}

// detachReader passes input on until the detach key comes. Then it calls detach, which
// must have closed the connection when it returns. After that, reads return io.EOF,
// which the command does not see.
type detachReader struct {
	in     io.Reader
	detach func()
	found  bool
}

func (r *detachReader) Read(p []byte) (int, error) {
	if r.found {
		r.detach()
		return 0, io.EOF
	}
	n, err := r.in.Read(p)
	if i := bytes.IndexByte(p[:n], detachKey); i >= 0 {
		r.found = true
		if i > 0 {
			return i, nil // input before the key is sent first
		}
		r.detach()
		return 0, io.EOF
	}
	return n, err
}
