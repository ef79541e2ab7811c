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

// A peer is an end as the host's side sees it. What a sprite's sends is checked by
// whoever uses it.
type peer struct {
	name   string
	c      conn
	frames chan frame
	ended  chan struct{} // closed when nothing more comes; err says why
	err    error
	quit   chan struct{} // closed when nobody listens any more

	foreign bool // it is the sprite's
}

// newPeer starts to read what an end sends, until the conn ends.
func newPeer(name string, c conn) *peer {
	_, foreign := c.(*stream)
	p := &peer{name: name, c: c, frames: make(chan frame, 4), ended: make(chan struct{}), quit: make(chan struct{}), foreign: foreign}
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
				e = fail.Error{Code: CodeRejected, Message: "it is not of the protocol"}
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
	case <-p.ended:
		select {
		case f := <-p.frames:
			return f, nil
		default:
			return frame{}, p.err
		}
	}
}

// reasonWait is how long the reason is waited for why an end takes nothing more.
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

// list sends a list, beside whoever reads the answer. wait gives its error.
func (p *peer) list(ctx context.Context, each func(add func(func(*enc)) error) error) (wait func() error) {
	done := make(chan error, 1)
	go func() {
		l := &lister{c: p.c}
		err := each(func(encode func(*enc)) error {
			if err := ctx.Err(); err != nil {
				return err
			}
			return l.add(encode)
		})
		if err == nil {
			err = l.end()
		}
		done <- err
	}()
	return func() error { return <-done }
}
