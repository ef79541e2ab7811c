package push

import (
	"io"
	"time"
)

// Progress is how far a transfer is.
type Progress struct {
	Stage string        // count, compress, bundle, prepare, upload or download
	Done  int64         // bytes; objects in the stages count and compress
	Total int64         // 0: not known
	Rate  float64       // a second, on average
	Left  time.Duration // at that rate; 0: not known
	End   bool          // the last one of this stage
}

// tracker calls the person's function at most ten times a second.
type tracker struct {
	report func(Progress)
	stage  string
	total  int64
	n      int64
	began  time.Time
	last   time.Time
}

func (c *Courier) track(stage string, total int64) *tracker {
	now := time.Now()
	return &tracker{report: c.Progress, stage: stage, total: total, began: now, last: now}
}

// at says that n bytes have passed.
func (t *tracker) at(n int64) {
	t.n = n
	if now := time.Now(); now.Sub(t.last) >= 100*time.Millisecond {
		t.last = now
		t.tell(false)
	}
}

// done says that all have.
func (t *tracker) done() { t.tell(true) }

func (t *tracker) tell(end bool) {
	if t.report == nil {
		return
	}
	p := Progress{Stage: t.stage, Done: t.n, Total: t.total, End: end}
	if d := time.Since(t.began).Seconds(); d > 0 {
		p.Rate = float64(t.n) / d
	}
	if p.Rate > 0 && t.total > t.n {
		p.Left = time.Duration(float64(t.total-t.n) / p.Rate * float64(time.Second))
	}
	t.report(p)
}

// reader counts what is read from r. If r can seek, so can it, and counts from
// there: a client may send a second time.
func (t *tracker) reader(r io.ReadSeeker) io.Reader { return &trackedReader{r, t} }

type trackedReader struct {
	io.ReadSeeker
	t *tracker
}

func (r *trackedReader) Read(p []byte) (int, error) {
	n, err := r.ReadSeeker.Read(p)
	r.t.at(r.t.n + int64(n))
	return n, err
}

func (r *trackedReader) Seek(offset int64, whence int) (int64, error) {
	at, err := r.ReadSeeker.Seek(offset, whence)
	if err == nil && whence == io.SeekStart {
		r.t.n = at
	}
	return at, err
}
