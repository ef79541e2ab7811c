package filesync

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/cove-dev/cove/internal/lib/fail"
)

// A peer is an end as the host's side sees it. Whoever uses the data that a sprite's end sends
// must check it.
type peer struct {
	name   string
	c      conn
	frames chan frame
	ended  chan struct{} // closed when nothing more comes; err says why
	err    error
	quit   chan struct{} // closed when nobody listens any more
	cut    chan error    // why a list could not be sent whole: the end waits for the rest of it, and answers nothing

	foreign bool // it is the sprite's
}

// newPeer starts to read what an end sends, until the conn ends.
func newPeer(name string, c conn) *peer {
	_, foreign := c.(*stream)
	p := &peer{name: name, c: c, frames: make(chan frame, 4), ended: make(chan struct{}), quit: make(chan struct{}), cut: make(chan error, 1), foreign: foreign}
	go p.read()
	return p
}

func (p *peer) read() {
	defer close(p.ended)
	for {
		f, err := p.c.recv()
		if err == nil && f.kind == kindError {
			var e fail.Error
			if json.Unmarshal(f.data, &e) != nil {
				e = fail.Error{Code: CodeRejected, Message: "it does not follow the protocol"}
			}
			if p.err = &e; p.foreign {
				p.err = told(e)
			}
			return
		}
		if err != nil {
			if e, ok := errors.AsType[*fail.Error](err); ok {
				p.err = e
				return
			}
			p.err = failedf(CodeLost, "try again; nothing was changed, and what had come is kept for the next attempt", "the connection to %s was lost", p.name)
			if err != io.EOF {
				p.err = fmt.Errorf("%w: %w", p.err, err)
			}
			return
		}
		select {
		case p.frames <- f:
		case <-p.quit:
			return
		}
	}
}

// leave ends the reading, once the conn has ended.
func (p *peer) leave() {
	close(p.quit)
	<-p.ended
}

// recv returns the next frame. An end's error is an *fail.Error.
func (p *peer) recv() (frame, error) {
	select {
	case f := <-p.frames:
		return f, nil
	case err := <-p.cut:
		p.cutOff(err) // for whoever asks again
		return frame{}, err
	case <-p.ended:
		select {
		case f := <-p.frames:
			return f, nil
		default:
			return frame{}, p.err
		}
	}
}

// reasonWait is how long to wait for the reason why an end takes nothing more.
const reasonWait = 3 * time.Second

// failed is the error of sending: the end's own, if it gives one.
func (p *peer) failed(err error) error {
	if err == nil {
		return nil
	}
	for timer := time.After(reasonWait); ; {
		select {
		case <-p.frames: // what it said before
		case <-p.ended:
			return p.err
		case <-timer:
			return fmt.Errorf("send to %s: %w", p.name, err)
		}
	}
}

func (p *peer) send(f frame) error { return p.failed(p.c.send(f)) }

// ask sends a request of JSON.
func (p *peer) ask(kind byte, v any) error { return p.failed(sendJSON(p.c, kind, v)) }

// answered reads the end of an answer.
func (p *peer) answered(kind byte, v any) error {
	f, err := p.recv()
	if err != nil {
		return err
	}
	return parseJSON(f, kind, v)
}

// cutOff makes recv return an error, because an end will not get all that it waits for.
func (p *peer) cutOff(err error) {
	select {
	case p.cut <- err:
	default: // an earlier error is there
	}
}

// list sends a list while the caller reads the answer. wait returns its error. If the list
// can't be sent whole, nobody waits for an answer to it.
func (p *peer) list(ctx context.Context, each func(add func(func(*enc)) error) error) (wait func() error) {
	done := make(chan error, 1)
	go func() {
		l, refused := &lister{c: p.c}, false
		err := each(func(encode func(*enc)) error {
			if err := ctx.Err(); err != nil {
				return err
			}
			err := l.add(encode)
			refused = err != nil
			return err
		})
		if err == nil {
			err = l.end()
			refused = err != nil
		}
		if refused && ctx.Err() == nil {
			err = p.failed(err) // the end's own reason, if it gives one
		}
		if err != nil {
			p.cutOff(err)
		}
		done <- err
	}()
	return func() error { return <-done }
}
