package cli

import (
	"fmt"
	"io"
	"sync"
	"time"
)

const (
	progressDelay = time.Second            // shorter work needs none
	progressTick  = 200 * time.Millisecond // on a terminal
	progressLine  = 5 * time.Second        // elsewhere
)

// progress shows how far a transfer is. The zero value of what is left out means
// that nothing is shown. Its methods may be called from any goroutine.
type progress struct {
	w        io.Writer
	terminal bool
	what     string

	from func() int64 // where set, how many bytes are done; instead of Add

	stop chan struct{}
	wg   sync.WaitGroup

	shown bool // of run, and of Close after it

	mu      sync.Mutex
	done    int64 // guarded by mu, as those below
	total   int64 // 0: not known
	objects bool  // are counted, and not bytes
}

// newProgress begins to show progress; the caller ends it with Close. A total of
// 0 is not known.
func (a *app) newProgress(what string, total int64) *progress {
	return a.watchProgress(what, total, nil)
}

// watchProgress is newProgress for work that can be asked how far it is.
func (a *app) watchProgress(what string, total int64, from func() int64) *progress {
	p := &progress{what: what, total: total, from: from, stop: make(chan struct{})}
	if a.global.quiet || a.global.json {
		return p
	}
	p.w, p.terminal = a.Err, isTerminal(a.Err)
	p.wg.Go(p.run)
	return p
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
	if p.objects {
		return objectsText(p.what, done, p.total)
	}
	return progressText(p.what, done, p.total, took)
}

// Close ends the showing, and takes the line away.
func (p *progress) Close() {
	close(p.stop)
	p.wg.Wait()
	if p.shown && p.terminal {
		fmt.Fprint(p.w, "\r\x1b[K")
	}
}

func (p *progress) run() {
	began := time.Now()
	timer := time.NewTimer(progressDelay)
	defer timer.Stop()
	for {
		select {
		case <-p.stop:
			return
		case <-timer.C:
		}
		p.shown = true
		line := sanitizeLine(p.text(time.Since(began))) // it may name a file of a sandbox
		if p.terminal {
			fmt.Fprintf(p.w, "\r%s\x1b[K", line)
			timer.Reset(progressTick)
		} else {
			fmt.Fprintln(p.w, line)
			timer.Reset(progressLine)
		}
	}
}

// progressText is the line: bytes, rate, and the time left where that can be told.
func progressText(what string, done, total int64, took time.Duration) string {
	if done == 0 && total == 0 {
		return sanitizeLine(what) + " …" // nothing is counted
	}
	text := fmt.Sprintf("%s: %s", sanitizeLine(what), byteSize(done))
	if total > 0 {
		text += fmt.Sprintf(" of %s (%d%%)", byteSize(total), min(100, done*100/total))
	}
	seconds := took.Seconds()
	if seconds <= 0 || done == 0 {
		return text
	}
	rate := float64(done) / seconds
	text += fmt.Sprintf(", %s/s", byteSize(int64(rate)))
	if total > done {
		text += fmt.Sprintf(", %s left", span(time.Duration(float64(total-done)/rate*float64(time.Second))))
	}
	return text
}

// objectsText is the line for what is counted in objects.
func objectsText(what string, done, total int64) string {
	text := fmt.Sprintf("%s: %d", sanitizeLine(what), done)
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
