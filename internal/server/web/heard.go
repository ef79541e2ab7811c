package web

import (
	"errors"
	"io"
	"net/http"
	"sync"

	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/sprites"
)

// Bounds on what pages keep of the answers of sandboxes. Root in a sandbox can answer anything.
const (
	maxHeard     = 4 << 20   // bytes of one answer
	maxHeardLine = 256 << 10 // bytes of one line of an answer that is a stream
)

// A document of a sandbox counts with about what it takes in memory until it is shown. That is
// its bytes, as they are read and as its texts, and its values, which begin with a brace, or
// are divided by commas.
const (
	byteWeight  = 3
	braceWeight = 640
	commaWeight = 32

	allWeigh    = 128 << 20 // documents of all requests
	othersWeigh = 64 << 20  // those of all but the server's owner
	tokenWeighs = 32 << 20  // those of one token
)

// Why an answer of a sandbox is not read.
var (
	errLong = errors.New("the answer is longer than a page reads")
	errBusy = errors.New("other pages take all the room")
)

// budget counts what the documents of sandboxes weigh. The zero value counts nothing yet.
type budget struct {
	mu     sync.Mutex
	all    int64
	others int64
	by     map[string]int64 // by token
}

// take counts n more for a session, or is errBusy.
func (b *budget) take(s Session, n int64) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.all+n > allWeigh || !s.Owner && (b.others+n > othersWeigh || b.by[s.Token]+n > tokenWeighs) {
		return errBusy
	}
	b.count(s, n)
	return nil
}

// give returns bytes that a session has taken.
func (b *budget) give(s Session, n int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.count(s, -n)
}

// count is called with mu held.
func (b *budget) count(s Session, n int64) {
	b.all += n
	if s.Owner {
		return
	}
	if b.by == nil {
		b.by = map[string]int64{}
	}
	b.others += n
	if b.by[s.Token] += n; b.by[s.Token] == 0 {
		delete(b.by, s.Token)
	}
}

// inside is a handle on the sprite for calls that the sandbox itself answers, with a document.
// If an answer is too long, or has too many values, the error is errLong; if there is no room
// for it, errBusy. The answers count until the request is over.
func (v *spriteView) inside() *sprites.Sprite { return through(v, &hearing{v: v.view}).Sprite(v.name) }

// insideLines is inside for calls whose answers are streams of lines. Each line is bounded, and none is counted.
func (v *spriteView) insideLines() *sprites.Sprite {
	return through(v, &hearing{v: v.view, lines: true}).Sprite(v.name)
}

// through is the client of the API, with another transport.
func through(v *spriteView, h *hearing) *sprites.Client {
	h.next = v.site.API.Transport
	if h.next == nil {
		h.next = http.DefaultTransport
	}
	client := *v.site.API
	client.Transport = h
	c := *v.api.Client
	c.HTTPClient = &client
	return &c
}

// hearing is a transport that bounds what sandboxes answer.
type hearing struct {
	next  http.RoundTripper
	v     *view
	lines bool
}

func (h *hearing) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := h.next.RoundTrip(r)
	if err == nil && resp.StatusCode/100 == 2 {
		resp.Body = &heardBody{ReadCloser: resp.Body, of: h}
	}
	return resp, err
}

// heardBody is an answer of a sandbox.
type heardBody struct {
	io.ReadCloser
	of     *hearing
	n      int   // bytes that were read; of lines, since the last one ended
	weighs int64 // of a document
}

func (b *heardBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	most, weight := maxHeard, int64(0)
	if b.of.lines {
		most = maxHeardLine
	}
	for _, c := range p[:n] {
		switch b.n++; {
		case b.of.lines && c == '\n':
			b.n = 0
		case b.n > most:
			return 0, errLong
		}
		switch c {
		case '{':
			weight += braceWeight
		case ',':
			weight += commaWeight
		}
		weight += byteWeight
	}
	if b.of.lines {
		return n, err
	}
	if b.weighs += weight; b.weighs > tokenWeighs { // of itself: there is never room for it
		return 0, errLong
	}
	if full := hold(b.of.v, weight); full != nil {
		return 0, full
	}
	return n, err
}

// hold counts what the request keeps in memory, until it is over.
func hold(v *view, weight int64) error {
	if err := v.site.heard.take(v.session, weight); err != nil {
		return err
	}
	v.held += weight
	return nil
}

// giveBack gives back what the request holds.
func giveBack(v *view) { v.site.heard.give(v.session, v.held) }

// unheard turns errLong and errBusy into errors that say what to type in place of the page.
// Other errors stay as they are.
func unheard(err error, what, command string) error {
	switch {
	case errors.Is(err, errLong):
		return fail.New("too_large", "the sprite reports more about "+what+" than a page reads (at most "+formatBytes(maxHeard)+")", command)
	case errors.Is(err, errBusy):
		return fail.New("limit", "other pages of sprites take all the room; "+what+" can't be shown now", "try again when others are loaded, or type: "+command)
	}
	return err
}
