package gateway

import (
	"errors"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cove-dev/cove/internal/shim/connect"
)

// Why a request through a connector is cut.
var (
	errTaken = errors.New("the connector was revoked or changed")
	errDay   = errors.New("the limit of bytes per day is reached")
)

// Request is what a sandbox did through a connector.
type Request struct {
	Time           time.Time // when it began
	Connector      string
	Method, Path   string // the path without its query
	Status         int
	Sent, Received int64 // bytes of bodies: of the request, of the answer
	Took           time.Duration
	Refused        string // why it did not reach the upstream, or was cut

	Model    string // of a metered connector, as are the next
	Tokens   connect.Tokens
	MicroUSD int64 // the cost of Tokens, in millionths of a dollar

	Usage *Usage // of its connector, as far as that is known then; nil: it has none
}

// Usage is what a sandbox has used of a connector.
type Usage struct {
	Requests int64     `json:"requests"` // ever
	Day      time.Time `json:"day"`      // the day of Bytes
	Bytes    int64     `json:"bytes"`
	Tokens   int64     `json:"tokens,omitempty"`
	MicroUSD int64     `json:"micro_usd,omitempty"`
}

// note is for the first that is known of its end.
func (r *Request) note(status int, refused string) {
	if r.Status == 0 {
		r.Status, r.Refused = status, refused
	}
}

// cut notes that it ended before its time.
func (r *Request) cut(cause error) {
	if errors.Is(cause, errTaken) || errors.Is(cause, errDay) {
		r.Refused = cause.Error()
	}
}

// tell reports a request that is over, and the use of its connector so far. c may be
// nil.
func (g *Gateway) tell(r *Request, c *connector) {
	if g.OnRequest == nil {
		return
	}
	g.telling.Lock()
	defer g.telling.Unlock()
	r.Took = time.Since(r.Time)
	if c != nil {
		c.use.mu.Lock()
		used := c.use.Usage
		c.use.mu.Unlock()
		r.Usage = &used
	}
	g.OnRequest(*r)
}

// usage counts what a sandbox uses of a connector.
type usage struct {
	mu sync.Mutex
	Usage
	minute   time.Time // the minute of inMinute
	inMinute int64
	spending int // requests under way whose cost is not known yet
}

// admit counts a request, or says why there can be no more, and for how long; 0 is
// for ever.
func (u *usage) admit(l connect.Limits, now time.Time) (why string, wait time.Duration) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.turn(now)
	switch {
	case l.Requests > 0 && u.Requests >= l.Requests:
		return "its limit of requests is reached", 0
	case l.BytesPerDay > 0 && u.Bytes >= l.BytesPerDay:
		return errDay.Error(), u.Day.AddDate(0, 0, 1).Sub(now)
	case l.TokensPerDay > 0 && u.Tokens >= l.TokensPerDay:
		return "the limit of tokens per day is reached", u.Day.AddDate(0, 0, 1).Sub(now)
	case l.USDPerDay > 0 && u.MicroUSD >= int64(l.USDPerDay*1e6):
		return "the limit of dollars per day is reached", u.Day.AddDate(0, 0, 1).Sub(now)
	case spends(l) && u.spending >= maxSpending:
		return "too many requests whose cost is not known yet are under way", time.Second
	case l.RequestsPerMinute > 0 && u.inMinute >= l.RequestsPerMinute:
		return "the limit of requests per minute is reached", u.minute.Add(time.Minute).Sub(now)
	}
	u.Requests++
	u.inMinute++
	u.spending++
	return "", 0
}

// maxSpending bounds how far a limit of tokens or dollars can be overrun: requests
// under way are not cut.
const maxSpending = 8

func spends(l connect.Limits) bool { return l.TokensPerDay > 0 || l.USDPerDay > 0 }

// over ends what admit began.
func (u *usage) over() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.spending--
}

// spend counts bytes, and returns how many of them may pass.
func (u *usage) spend(l connect.Limits, n int, now time.Time) int {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.turn(now)
	left := int64(n)
	if l.BytesPerDay > 0 {
		left = min(left, max(l.BytesPerDay-u.Bytes, 0))
	}
	u.Bytes += left
	return int(left)
}

// charge counts what a request's answer has cost.
func (u *usage) charge(r *Request, now time.Time) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.turn(now)
	u.Tokens += r.Tokens.Input + r.Tokens.Output
	u.MicroUSD += r.MicroUSD
}

// turn begins the minute and the day anew, if they are over. u.mu is held.
func (u *usage) turn(now time.Time) {
	if now.Sub(u.minute) >= time.Minute {
		u.minute, u.inMinute = now, 0
	}
	if day := now.UTC().Truncate(24 * time.Hour); day.After(u.Day) {
		u.Day, u.Bytes, u.Tokens, u.MicroUSD = day, 0, 0, 0
	}
}

// meter counts the bytes read of a body, and cuts the request when its bytes are used
// up.
type meter struct {
	io.ReadCloser
	x     *exchange
	count *atomic.Int64
}

func (m *meter) Read(p []byte) (int, error) {
	n, err := m.ReadCloser.Read(p)
	return m.counted(m.count, n, err)
}

func (m *meter) counted(count *atomic.Int64, n int, err error) (int, error) {
	may := m.x.use.spend(m.x.Limits, n, time.Now())
	count.Add(int64(may))
	if may < n {
		m.x.cancel(errDay)
		return may, errDay
	}
	return n, err
}

// taster reads an answer for the tokens that it says.
type taster struct {
	io.ReadCloser
	tally connect.Tally
	whole bool // it has ended, and was not cut
}

func (t *taster) Read(p []byte) (int, error) {
	n, err := t.ReadCloser.Read(p)
	_, _ = t.tally.Write(p[:n])
	t.whole = t.whole || errors.Is(err, io.EOF)
	return n, err
}

// account charges a request that reached a metered upstream, unless that failed or
// refused it. If the sandbox did not wait for the answer, the request is charged,
// too: nobody knows what it cost.
func (x *exchange) account(now time.Time) {
	r := x.request
	free := r.Method == http.MethodGet || r.Method == http.MethodHead || r.Method == http.MethodOptions
	if !x.Metered() || free || x.failed || r.Status >= http.StatusBadRequest && x.answer != nil {
		return
	}
	answer := x.answer
	if answer == nil {
		answer = &taster{}
	}
	r.Model, r.Tokens = answer.tally.Total(answer.whole, x.sent.Load(), x.received.Load())
	r.MicroUSD = x.Cost(r.Model, r.Tokens)
	x.use.charge(r, now)
}

// meterBoth is a meter of a connection that has changed its protocol.
type meterBoth struct {
	meter
	w io.Writer
}

func (m *meterBoth) Write(p []byte) (int, error) {
	may, err := m.counted(&m.x.sent, len(p), nil)
	n, writeErr := m.w.Write(p[:may])
	return n, errors.Join(writeErr, err)
}

// answerWriter notes an answer's status, and redacts the headers of informational
// answers before it.
type answerWriter struct {
	http.ResponseWriter
	x *exchange
}

func (a *answerWriter) WriteHeader(status int) {
	if status < http.StatusOK {
		a.x.hides.header(a.Header())
	} else {
		a.x.request.note(status, "")
	}
	a.ResponseWriter.WriteHeader(status)
}

// Unwrap is http.ResponseController's.
func (a *answerWriter) Unwrap() http.ResponseWriter { return a.ResponseWriter }
