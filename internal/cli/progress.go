package cli

import (
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/cove-dev/cove/internal/lib/printable"
)

const (
	progressDelay = time.Second            // on a terminal; shorter work needs none
	progressTick  = 200 * time.Millisecond // between two looks there
	progressFirst = 2 * time.Second        // without one; each later line comes after twice the time
	progressMost  = 5 * time.Minute        // the longest distance between two lines
)

// progress shows how far a transfer is. A progress without w shows nothing. Its methods
// may be called from any goroutine.
type progress struct {
	w        io.Writer
	terminal bool
	what     string

	from func() int64 // where set, how many bytes are done; instead of Add

	stop chan struct{}
	wg   sync.WaitGroup

	drawing sync.Mutex
	shown   bool   // guarded by drawing, as last
	last    string // the last line

	mu      sync.Mutex
	began   time.Time // guarded by mu, as those below
	done    int64
	total   int64  // 0: not known
	objects bool   // are counted, and not bytes
	note    string // instead of numbers; empty: those
}

// newProgress begins to show progress; the caller ends it with Close. A total of
// 0 is not known.
func (p *printer) newProgress(what string, total int64) *progress {
	return p.watchProgress(what, total, nil)
}

// watchProgress is newProgress for work that can be asked how far it is.
func (p *printer) watchProgress(what string, total int64, from func() int64) *progress {
	bar := &progress{what: what, total: total, from: from, stop: make(chan struct{})}
	if p.global.quiet || p.global.json {
		return bar
	}
	bar.w, bar.terminal, bar.began = p.Err, isTerminal(p.Err), time.Now()
	bar.wg.Go(bar.run)
	return bar
}

// Add counts n bytes.
func (p *progress) Add(n int) {
	p.mu.Lock()
	p.done += int64(n)
	p.mu.Unlock()
}

// set says how many bytes are done, and how many there are; or objects.
func (p *progress) set(n, total int64, objects bool) {
	p.mu.Lock()
	p.done, p.total, p.objects = n, total, objects
	p.mu.Unlock()
}

// say puts a text in the place of numbers.
func (p *progress) say(note string) {
	p.mu.Lock()
	p.note = note
	p.mu.Unlock()
}

// begin is say for work that begins now: its time begins at 0.
func (p *progress) begin(note string) {
	p.mu.Lock()
	p.note, p.began = note, time.Now()
	p.mu.Unlock()
}

// above calls print, which writes whole lines to the same output as the progress line. On a terminal,
// it removes the progress line before.
func (p *progress) above(print func()) {
	p.drawing.Lock()
	defer p.drawing.Unlock()
	if p.shown && p.terminal {
		fmt.Fprint(p.w, "\r\x1b[K")
	}
	print()
}

// took is how long the work has taken.
func (p *progress) took() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return time.Since(p.began)
}

// count is how many bytes are done.
func (p *progress) count() int64 {
	if p.from != nil {
		return p.from()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.done
}

// text is the line that is shown.
func (p *progress) text(took time.Duration) string {
	done := p.count()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.note != "" {
		return fmt.Sprintf("%s, %v", p.note, took.Round(time.Second))
	}
	if p.objects {
		return objectsText(p.what, done, p.total)
	}
	return progressText(p.what, done, p.total, took)
}

// Close ends the showing. On a terminal it takes the line away. Elsewhere it adds the
// line of the end, if there were lines before.
func (p *progress) Close() {
	close(p.stop)
	p.wg.Wait()
	switch {
	case p.shown && p.terminal:
		fmt.Fprint(p.w, "\r\x1b[K")
	case p.shown:
		p.show()
	}
}

func (p *progress) run() {
	wait := progressFirst
	if p.terminal {
		wait = progressDelay
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	for {
		select {
		case <-p.stop:
			return
		case <-timer.C:
		}
		p.show()
		if p.terminal {
			timer.Reset(progressTick)
		} else {
			timer.Reset(wait) // the next line comes at twice the time of this one
			wait = min(2*wait, progressMost)
		}
	}
}

// show prints the line. One that says the same as the last line is not printed again.
func (p *progress) show() {
	p.drawing.Lock()
	defer p.drawing.Unlock()
	p.shown = true
	line := printable.Line(p.text(p.took())) // it may name a file of a sandbox
	if p.terminal {
		fmt.Fprintf(p.w, "\r%s\x1b[K", line)
	} else if line != p.last {
		fmt.Fprintln(p.w, line)
	}
	p.last = line
}

// progressText is the line: bytes, rate and, if it can be told, the time left.
func progressText(what string, done, total int64, took time.Duration) string {
	if done == 0 && total == 0 {
		return printable.Line(what) + " …" // nothing is counted
	}
	text := fmt.Sprintf("%s: %s", printable.Line(what), printable.Bytes(done))
	if total > 0 {
		text += fmt.Sprintf(" of %s (%d%%)", printable.Bytes(total), min(100, done*100/total))
	}
	seconds := took.Seconds()
	if seconds <= 0 || done == 0 {
		return text
	}
	rate := float64(done) / seconds
	text += fmt.Sprintf(", %s/s", printable.Bytes(int64(rate)))
	if total > done {
		text += fmt.Sprintf(", %s left", span(time.Duration(float64(total-done)/rate*float64(time.Second))))
	}
	return text
}

// objectsText is the line for what is counted in objects.
func objectsText(what string, done, total int64) string {
	text := fmt.Sprintf("%s: %d", printable.Line(what), done)
	if total > 0 {
		text += fmt.Sprintf(" of %d (%d%%)", total, min(100, done*100/total))
	}
	return text
}

// countingReader counts what is read.
type countingReader struct {
	io.Reader
	progress *progress
}

func (r countingReader) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	r.progress.Add(n)
	return n, err
}

// countingWriter counts what is written.
type countingWriter struct {
	io.Writer
	progress *progress
}

func (w countingWriter) Write(p []byte) (int, error) {
	n, err := w.Writer.Write(p)
	w.progress.Add(n)
	return n, err
}
