package services

import (
	"bytes"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/cove-dev/cove/internal/lib/printable"
	"github.com/cove-dev/cove/sprites"
)

// maxLine bounds a line of a service's output. As JSON it stays below the 64 KiB
// that some clients read at most, whatever is in it.
const maxLine = 8 << 10

// lineDelay is how long output without a line's end waits for one.
const lineDelay = 200 * time.Millisecond

// output splits the output of a service's program into lines.
type output struct {
	service *service
	code    int           // set before ended is closed, as is
	reason  string        // of a death by a signal, or for want of memory
	ended   chan struct{} // closed when all output is out

	mu     sync.Mutex
	begun  bool         // what comes is published
	early  []earlyBytes // what has come before
	exited bool
	parts  [3][]byte    // unfinished lines, by stream
	began  [3]time.Time // when each of them did
	timer  *time.Timer  // nil while nothing waits
	once   sync.Once
}

// earlyBytes came before it was published that the program had started.
type earlyBytes struct {
	stream sprites.Stream
	bytes  []byte
}

// begin publishes output from now on, and what has come already.
func (o *output) begin() {
	o.mu.Lock()
	o.begun = true
	for _, e := range o.early {
		o.write(e.stream, e.bytes)
	}
	o.early = nil
	exited := o.exited
	o.mu.Unlock()
	if exited {
		o.flush(0)
	}
}

// Write takes output of the program.
func (o *output) Write(stream sprites.Stream, p []byte) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.begun {
		o.early = append(o.early, earlyBytes{stream, bytes.Clone(p)})
		return
	}
	o.write(stream, p)
}

// write is Write. The caller must hold mu.
func (o *output) write(stream sprites.Stream, p []byte) {
	now := time.Now()
	if len(o.parts[stream]) == 0 {
		o.began[stream] = now
	}
	part := slices.Concat(o.parts[stream], p)
	for len(part) > 0 {
		n := bytes.IndexByte(part, '\n') + 1
		if n == 0 && len(part) < maxLine {
			break
		}
		if n == 0 || n > maxLine {
			n = maxLine
		}
		o.service.wrote(stream, part[:n])
		part, o.began[stream] = part[n:], now
	}
	o.parts[stream] = bytes.Clone(part)
	if o.timer == nil && len(part) > 0 {
		o.timer = time.AfterFunc(lineDelay, func() { o.flush(lineDelay) })
	}
}

// flush hands out lines that have no end yet, such as prompts, if they have waited
// for so long; the others later.
func (o *output) flush(waited time.Duration) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.timer = nil
	var rest time.Duration
	for stream, part := range o.parts {
		age := time.Since(o.began[stream])
		switch {
		case len(part) == 0:
		case age >= waited:
			o.service.wrote(sprites.Stream(stream), part)
			o.parts[stream] = nil
		default:
			rest = max(rest, waited-age)
		}
	}
	if rest > 0 {
		o.timer = time.AfterFunc(rest, func() { o.flush(waited) })
	}
}

// Exit ends the output.
func (o *output) Exit(code int, reason string) {
	o.mu.Lock()
	o.exited = true
	o.mu.Unlock()
	o.flush(0)
	o.once.Do(func() {
		o.code, o.reason = code, reason
		close(o.ended)
	})
}

// wrote notes a line of output.
func (v *service) wrote(stream sprites.Stream, line []byte) {
	typ := sprites.ServiceEventStdout
	if stream == sprites.StreamStderr {
		typ = sprites.ServiceEventStderr
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.publish(sprites.ServiceEvent{Type: typ, Data: string(line)})
}

// publish writes an event to the log, if it is output or an error, and hands it to the
// subscriptions. v.mu is held.
func (v *service) publish(e sprites.ServiceEvent) {
	now := time.Now()
	e.Timestamp = now.UnixMilli()
	if e.Data != "" {
		if err := v.log.write(now, e.Type, e.Data); err != nil {
			v.set.logger.Warn("log of a service", "service", v.def.Name, "err", err)
		}
	}
	for sub := range v.events {
		sub.add(e)
	}
}

// subscription holds a service's events for one reader. If it is not read, it loses the
// oldest; the service never waits.
type subscription struct {
	wake chan struct{}

	mu     sync.Mutex
	events []sprites.ServiceEvent
	lost   int
}

// keptEvents bounds a subscription.
const keptEvents = 1024

func (s *subscription) add(e sprites.ServiceEvent) {
	s.mu.Lock()
	if len(s.events) == keptEvents {
		s.events = s.events[1:]
		s.lost++
	}
	s.events = append(s.events, e)
	s.mu.Unlock()
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

func (s *subscription) take() []sprites.ServiceEvent {
	s.mu.Lock()
	defer s.mu.Unlock()
	events := s.events
	if s.lost > 0 {
		gap := sprites.ServiceEvent{
			Type: sprites.ServiceEventError, Timestamp: events[0].Timestamp,
			Data: fmt.Sprintf("%s came faster than could be read, and can be found in the log file only", printable.Count(s.lost, "event")),
		}
		events = append([]sprites.ServiceEvent{gap}, events...)
	}
	s.events, s.lost = nil, 0
	return events
}

func (v *service) subscribe() *subscription {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.newSubscription()
}

// subscribeAfter is subscribe with the log as it is when the subscription begins:
// nothing is in both, or in neither.
func (v *service) subscribeAfter() (*subscription, *logSnapshot, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	past, err := v.log.snapshot()
	if err != nil {
		return nil, nil, err
	}
	return v.newSubscription(), past, nil
}

// newSubscription is subscribe. The caller must hold v.mu.
func (v *service) newSubscription() *subscription {
	sub := &subscription{wake: make(chan struct{}, 1)}
	v.events[sub] = true
	return sub
}

func (v *service) unsubscribe(sub *subscription) {
	v.mu.Lock()
	defer v.mu.Unlock()
	delete(v.events, sub)
}
