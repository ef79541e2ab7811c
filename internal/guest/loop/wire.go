package loop

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"sync"
	"time"
)

// An exchange is one request to an API and its answer. It keeps what each SDK reports in
// another way.
type exchange struct {
	mu         sync.Mutex
	status     int
	retryAfter time.Duration
	wrong      string // what makes it no answer of a model's API, at whatever time

	stall time.Duration
	timer *time.Timer
}

type exchangeKey struct{}

// errStalled ends an exchange if nothing was heard from the model for too long.
var errStalled = errors.New("nothing was heard from the model for too long")

// begin begins an exchange. It ends with ctx, when end is called, or when nothing was heard
// for the time of stall (0: no limit).
func begin(ctx context.Context, stall time.Duration) (_ context.Context, x *exchange, end func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	x = &exchange{stall: stall}
	if stall > 0 {
		x.timer = time.AfterFunc(stall, func() { cancel(errStalled) })
	}
	return context.WithValue(ctx, exchangeKey{}, x), x, func() {
		if x.timer != nil {
			x.timer.Stop()
		}
		cancel(context.Canceled)
	}
}

func (x *exchange) heard() {
	if x.timer != nil {
		x.timer.Reset(x.stall)
	}
}

// maxAnswer bounds the bytes of an answer, events and all.
const maxAnswer = 32 << 20

// reject notes why a response is not an answer.
func (x *exchange) reject(format string, args ...any) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.wrong = fmt.Sprintf(format, args...)
	return errors.New(x.wrong)
}

// complete fills in what an SDK's error does not say.
func (x *exchange) complete(e *APIError) *APIError {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.wrong != "" {
		return &APIError{Status: x.status, Text: x.wrong} // which does not pass
	}
	if e.Status == 0 && x.status != http.StatusOK {
		e.Status = x.status
	}
	e.RetryAfter = cmp.Or(e.RetryAfter, x.retryAfter)
	e.Text = cmp.Or(e.Text, http.StatusText(e.Status))
	return e
}

// transport watches exchanges.
type transport struct{ base http.RoundTripper }

func (t transport) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := t.base.RoundTrip(r)
	x, ok := r.Context().Value(exchangeKey{}).(*exchange)
	if err != nil || !ok {
		return resp, err
	}
	x.mu.Lock()
	x.status, x.retryAfter = resp.StatusCode, retryAfter(resp.Header.Get("Retry-After"))
	x.mu.Unlock()
	x.heard()
	kind, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	if resp.StatusCode == http.StatusOK && kind == "text/html" {
		_ = resp.Body.Close()
		return nil, x.reject("a web page answers, not a model's API: is the URL right?")
	}
	resp.Body = &body{resp.Body, x, maxAnswer}
	return resp, nil
}

type body struct {
	io.ReadCloser
	x    *exchange
	left int
}

func (b *body) Read(p []byte) (int, error) {
	if b.left <= 0 {
		return 0, b.x.reject("the answer has more than %d bytes", maxAnswer)
	}
	n, err := b.ReadCloser.Read(p[:min(len(p), b.left)])
	b.left -= n
	if n > 0 {
		b.x.heard()
	}
	return n, err
}

// Access is how an API is reached: a key, or else a token, never both.
type Access struct {
	BaseURL string
	Key     string // in the header that the API has for it
	Token   string // Authorization: Bearer; only Anthropic's has both kinds
}

// client is an HTTP client whose exchanges are watched. It follows no redirect: a key
// is for the host that was named.
func client() *http.Client {
	return &http.Client{
		Transport: transport{http.DefaultTransport},
		CheckRedirect: func(r *http.Request, _ []*http.Request) error {
			return fmt.Errorf("a redirect to %s is not followed", r.URL.Host)
		},
	}
}
