package cli

import (
	"bytes"
	"cmp"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/lib/printable"
)

// How a step ended.
const (
	stepDone    = "done"
	stepAlready = "already" // there was nothing to do
	stepNone    = "none"    // nothing of the kind is asked for
	stepFailed  = "failed"
)

// stepJSON is one of several steps, for --json.
type stepJSON struct {
	Step   string  `json:"step"`
	Round  int     `json:"round,omitempty"` // if there is more than one
	Result string  `json:"result"`
	Detail string  `json:"detail,omitempty"`
	MS     float64 `json:"ms"`
	Hint   string  `json:"hint,omitempty"` // of one that failed
}

// steps are done one after the other, each timed, and shown as they end.
type steps struct {
	inv   *invocation
	round int // 0: there is only one
	list  []stepJSON
}

// step is what a step does: it returns how it ended, and what there is to tell.
type step func() (result, detail string, err error)

// do does a step. Its error is noted, and returned.
func (s *steps) do(name string, f step) error {
	began := time.Now()
	result, detail, err := f()
	s.add(stepJSON{Step: name, Result: cmp.Or(result, stepDone), Detail: detail, MS: milliseconds(time.Since(began))}, err)
	return err
}

// add notes a step that is over, and shows it.
func (s *steps) add(st stepJSON, err error) {
	if err != nil {
		f := s.inv.classify(err)
		st.Result, st.Detail, st.Hint = stepFailed, f.message, f.hint
	}
	st.Round = s.round
	s.list = append(s.list, st)
	if s.inv.global.json {
		return
	}
	fmt.Fprintf(s.inv.Out, "%-12s %9.1f ms  %-8s %s\n", printable.Line(st.Step), st.MS, st.Result, printable.Line(headline(st.Detail)))
}

// headline is the first line of a text; its other lines are a program's output.
func headline(text string) string { return cove.Outcome{Reason: text}.Headline() }

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// stepsJSON is a document of steps. Error is that of the step that failed.
type stepsJSON struct {
	OK     bool       `json:"ok"`
	Sprite string     `json:"sprite,omitempty"`
	Agent  string     `json:"agent,omitempty"`
	Steps  []stepJSON `json:"steps"`
	Error  *errorJSON `json:"error,omitempty"`
}

// end prints the document with --json. It returns the verb's error: err, or only its exit
// code if the document has err.
func (s *steps) end(doc stepsJSON, err error) error {
	if !s.inv.global.json {
		return err
	}
	doc.OK, doc.Steps = err == nil, s.list
	if doc.Steps == nil {
		doc.Steps = []stepJSON{}
	}
	if err == nil {
		s.inv.printJSON(doc)
		return nil
	}
	f := s.inv.classify(err)
	e := f.document()
	doc.Error = &e
	s.inv.printJSON(doc)
	return reportedError{f.exit}
}

// cleanupLimit bounds the work that is still done after a verb has ended or was interrupted.
const cleanupLimit = 30 * time.Second

// randomName is a name that nothing else has.
func randomName() string {
	b := make([]byte, 4)
	_, _ = rand.Read(b) // never fails
	return hex.EncodeToString(b)
}

// lastText keeps the end of what is written to it.
type lastText struct {
	text []byte
	max  int // bytes; 0: maxLastText
}

const maxLastText = 4 << 10

func (t *lastText) Write(p []byte) (int, error) {
	limit := cmp.Or(t.max, maxLastText)
	t.text = append(t.text, p[max(0, len(p)-limit):]...)
	t.text = t.text[max(0, len(t.text)-limit):]
	return len(p), nil
}

func (t *lastText) String() string { return strings.ToValidUTF8(string(t.text), "") }

// remarks shows lines that come from a sprite among the remarks for people. With --quiet or
// --json, it shows nothing.
func (p *printer) remarks() io.Writer {
	if p.global.quiet || p.global.json {
		return io.Discard
	}
	return &remarkWriter{w: p.Err}
}

// remarkWriter marks each line, so that none can look like cove's.
type remarkWriter struct {
	w    io.Writer
	held []byte // of a line that has not ended
}

const maxHeldRemark = 8 << 10

func (r *remarkWriter) Write(p []byte) (int, error) {
	r.held = append(r.held, p...)
	for {
		i := bytes.IndexByte(r.held, '\n')
		if i < 0 && len(r.held) < maxHeldRemark {
			return len(p), nil
		}
		if i < 0 {
			i = len(r.held) - 1
		}
		fmt.Fprintf(r.w, "| %s\n", printable.Text(strings.TrimRight(string(r.held[:i+1]), "\r\n")))
		r.held = r.held[i+1:]
	}
}
