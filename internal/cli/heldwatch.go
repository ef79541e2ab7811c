package cli

import (
	"context"
	"time"

	"github.com/cove-dev/cove/sprites"
)

// quietLog is how long a followed log may be silent until heldWatch asks why.
const quietLog = time.Second

// heldWatch tells the person when the sprite that a log comes from is held, and when it
// resumes. It also tells when the server is gone, and back. It tells each change once.
type heldWatch struct {
	word chan struct{}
	stop func() // ends it, and waits for that
}

// watchHeld begins to watch. ask says why the sprite is held; nil: it is not.
func watchHeld(ctx context.Context, inv *invocation, ask func(context.Context) (*sprites.Held, error)) heldWatch {
	ctx, cancel := context.WithCancel(ctx)
	w := heldWatch{word: make(chan struct{}, 1)}
	done := make(chan struct{})
	go func() {
		defer close(done)
		var server absentServer
		for told := false; ; {
			select {
			case <-ctx.Done():
				return
			case <-w.word:
				if !told {
					continue
				}
			case <-time.After(quietLog):
			}
			held, err := ask(ctx)
			if ctx.Err() != nil {
				return
			}
			server.saw(inv, err)
			if err != nil || told == (held != nil) {
				continue // the code that follows the log says what is wrong
			}
			told = held != nil
			sayHeld(inv, sprites.Message{Type: sprites.MessageHeld, Held: held})
		}
	}()
	w.stop = func() { cancel(); <-done }
	return w
}

// heard notes that the log has said something.
func (w heldWatch) heard() {
	select {
	case w.word <- struct{}{}:
	default:
	}
}
