package filesync

import (
	"context"
	"errors"
	"os"
	"path/filepath"
)

// look gets both manifests, compares them while the sprite's comes, and asks the questions
// that they leave open.
func (s *session) look() error {
	feed := newFeed(s.ctx)
	var skipR []Skipped
	var ql, qr *spool[question]
	err := both(
		func() (err error) {
			defer close(feed.full)
			take, end := s.foreign(func(e Entry) error { return errors.Join(s.scanR.add(e), feed.add(e)) })
			if skipR, err = scanOf(s.remote, take); err == nil {
				err = end()
			}
			if err == nil {
				err = feed.hand()
			}
			if errors.Is(err, errLeft) {
				return nil // the comparison says why
			}
			return err
		},
		func() (err error) {
			if err = <-s.scanned; err == nil {
				ql, qr, err = s.compare(feed.reading())
			}
			if err != nil {
				close(feed.left)
			}
			return err
		},
	)
	if err != nil {
		return err
	}
	if s.report.Skipped = s.skipL.kinds; s.Verb == Pull {
		s.report.Skipped = skipR
	}
	if s.report.Skipped == nil {
		s.report.Skipped = []Skipped{}
	}
	return both(
		func() (err error) { s.ansL, err = s.ask(s.local, ql); return err },
		func() (err error) { s.ansR, err = s.ask(s.remote, qr); return err },
	)
}

// scanOf reads an end's manifest.
func scanOf(p *peer, add func(Entry) error) (skipped []Skipped, err error) {
	err = recvList(p, within(maxListBytes, func(d *dec) error {
		var e Entry
		d.entry(&e)
		if d.err != nil {
			return d.err
		}
		return add(e)
	}))
	if err != nil {
		return nil, err
	}
	return skipped, p.answered(kindDone, &skipped)
}

// A feed hands the entries of a manifest to their comparison while the manifest
// comes, some at a time.
type feed struct {
	ctx    context.Context
	left   chan struct{} // closed when no more entries are wanted
	full   chan []Entry
	filled []Entry // the next to be handed over
	taken  []Entry // of the last that were
}

const (
	feedBatch = 256 // entries
	feedAhead = 4   // batches
)

func newFeed(ctx context.Context) *feed {
	return &feed{ctx: ctx, left: make(chan struct{}), full: make(chan []Entry, feedAhead)}
}

var errLeft = errors.New("the comparison has ended")

// add waits if the comparison is behind.
func (f *feed) add(e Entry) error {
	if f.filled = append(f.filled, e); len(f.filled) < feedBatch {
		return nil
	}
	return f.hand()
}

// hand hands over the entries so far. Closing full is the manifest's end.
func (f *feed) hand() error {
	select {
	case f.full <- f.filled:
		f.filled = make([]Entry, 0, feedBatch)
		return nil
	case <-f.left:
		return errLeft
	case <-f.ctx.Done():
		return context.Cause(f.ctx)
	}
}

// reading is the other side of add.
func (f *feed) reading() *reading[Entry] {
	return &reading[Entry]{fetch: func() (e Entry, ok bool) {
		for len(f.taken) == 0 {
			if f.taken, ok = <-f.full; !ok {
				return e, false
			}
		}
		e, f.taken = f.taken[0], f.taken[1:]
		return e, true
	}}
}

// foreign passes the sprite's manifest on to add, entry by entry. It checks each entry, and
// leaves out what is ignored here; the rules of this machine's own tree count, too. The caller
// calls end after the last entry.
func (s *session) foreign(add func(Entry) error) (take func(Entry) error, end func() error) {
	check := &checker{}
	read := func(string, string) string { return "" }
	if t, err := openTree(s.localAt.Root); err == nil {
		s.later(t.close)
		read = t.readSmall
	}
	m := newMatcher(s.Rules, read)
	m.enter("")
	skipped := ""
	through := &unheld{add: add, here: func(name string) bool {
		_, err := os.Lstat(filepath.Join(s.localAt.Root, filepath.FromSlash(name)))
		return err == nil
	}}
	return func(e Entry) error {
		if err := check.check(&e); err != nil {
			return err
		}
		if skipped != "" && below(e.Path, skipped) {
			return nil
		}
		if why := m.skip(e.Path, e.Type == Dir); why != "" {
			if e.Type == Dir {
				skipped = e.Path
			}
			return nil
		}
		if e.Type == Dir {
			m.enter(e.Path)
			return through.folder(e)
		}
		if s.Hold != nil && s.Hold(e.Path) {
			return through.hold(e.Path)
		}
		return through.file(e)
	}, through.end
}

// rows goes through everything that is known.
func (s *session) rows(do func(row) error) error {
	remote, err := s.scanR.read()
	if err != nil {
		return err
	}
	return s.rowsWith(remote, do)
}

func (s *session) rowsWith(remote *reading[Entry], do func(row) error) error {
	base, done, err := openBase(s.baseName())
	if err != nil {
		return err
	}
	defer done()
	local, err := s.scanL.read()
	if err != nil {
		return err
	}
	return eachRow(base, local, remote, do)
}

// compare finds the questions that the manifests leave open. If there are none, it also makes
// the plan.
func (s *session) compare(remote *reading[Entry]) (ql, qr *spool[question], err error) {
	newQuestions := func() (*spool[question], error) {
		sp, err := newSpool(s.tmp, encodeQuestion, decodeQuestion)
		s.later(sp.close)
		return sp, err
	}
	if ql, err = newQuestions(); err != nil {
		return nil, nil, err
	}
	if qr, err = newQuestions(); err != nil {
		return nil, nil, err
	}
	if err := s.newPlan(nil); err != nil {
		return nil, nil, err
	}
	resolved := s.Policy != Fail && s.Policy != ""
	open := func() bool { return ql.count+qr.count > 0 }
	err = s.rowsWith(remote, func(w row) error {
		if err := w.questions(resolved, ql.add, qr.add); err != nil || open() {
			return err
		}
		return s.plan.add(w, w.localSide(nil), w.remoteSide(nil))
	})
	if err == nil && !open() {
		s.planned, err = true, s.plan.end()
	}
	return ql, qr, err
}

func (s *session) ask(p *peer, questions *spool[question]) (*spool[answer], error) {
	if questions.count == 0 {
		return nil, nil
	}
	answers, err := newSpool(s.tmp, encodeAnswer, decodeAnswer)
	if err != nil {
		return nil, err
	}
	s.later(answers.close)
	asked, err := questions.read()
	if err != nil {
		return nil, err
	}
	asking, err := questions.read()
	if err != nil {
		return nil, err
	}
	if err := p.ask(kindAsk, nil); err != nil {
		return nil, err
	}
	wait := p.list(s.ctx, func(add func(func(*enc)) error) error {
		return each(asking, func(q question) error { return add(func(e *enc) { encodeQuestion(e, q) }) })
	})
	err = recvList(p, func(d *dec) error {
		a, err := decodeAnswer(d)
		if err != nil {
			return err
		}
		if q, ok, err := asked.next(); err != nil || !ok || q.path != a.path {
			return errors.Join(err, rejectedf(a.path, "nobody asked for it"))
		}
		return answers.add(a)
	})
	if err != nil {
		return nil, err
	}
	if err := wait(); err != nil {
		return nil, err
	}
	if answers.count != questions.count {
		return nil, rejectedf("", "%d answers to %d questions", answers.count, questions.count)
	}
	return answers, nil
}

// decide makes the plan, and makes it again if texts were merged.
func (s *session) decide() error {
	if !s.planned {
		if err := s.makePlan(nil); err != nil {
			return err
		}
	}
	var merged map[string]*mergedText
	if len(s.plan.candidates) > 0 && s.Merge != nil && s.Verb == Pull {
		var err error
		if merged, err = s.mergeTexts(s.plan.candidates); err != nil {
			return err
		}
		if len(merged) > 0 {
			if err := s.makePlan(merged); err != nil {
				return err
			}
		}
	}
	held, err := holdRules(s, merged)
	if err != nil || !held {
		return err
	}
	return s.makePlan(merged)
}

// newPlan begins a plan, and a report of it.
func (s *session) newPlan(merged map[string]*mergedText) error {
	*s.report = Report{Verb: s.Verb, Local: s.localAt.Root, Remote: s.remoteAt.Root, DryRun: s.DryRun, Conflicts: []Conflict{}, Skipped: s.report.Skipped}
	guard, err := guardOf(s)
	if err != nil {
		return err
	}
	s.plan.close()
	s.plan, err = newPlanner(s.tmp, options{s.Verb, s.Policy, s.Reset, s.NoDelete}, s.report)
	if err != nil {
		return err
	}
	s.later(s.plan.close)
	s.plan.merged, s.plan.guard = merged, guard
	if s.Verb == Pull {
		s.plan.risky = s.Risky
		return nil
	}
	s.plan.before, err = openLeft(s)
	return err
}

// makePlan decides on every row.
func (s *session) makePlan(merged map[string]*mergedText) error {
	if err := s.newPlan(merged); err != nil {
		return err
	}
	l, err := s.ansL.read()
	if err != nil {
		return err
	}
	r, err := s.ansR.read()
	if err != nil {
		return err
	}
	err = s.rows(func(w row) error {
		al, err := answerFor(l, w.path)
		if err != nil {
			return err
		}
		ar, err := answerFor(r, w.path)
		if err != nil {
			return err
		}
		return s.plan.add(w, w.localSide(al), w.remoteSide(ar))
	})
	if err != nil {
		return err
	}
	return s.plan.end()
}

// answerFor returns the answer about a path, if one was asked for.
func answerFor(r *reading[answer], name string) (*answer, error) {
	a, ok, err := r.peek()
	if err != nil || !ok || a.path != name {
		return nil, err
	}
	r.has = false
	return a, nil
}
