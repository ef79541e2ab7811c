package filesync

import (
	"errors"
	"fmt"
	"io"
	"os"
)

// ends returns the source and the target.
func (s *session) ends() (source, target *peer) {
	if s.Verb == Push {
		return s.local, s.remote
	}
	return s.remote, s.local
}

// transfer carries out the plan. The target gets the plan, then the content, and then the
// order to apply both.
func (s *session) transfer() error {
	_, target := s.ends()
	id := newID()
	have, err := s.sendPlan(target, id)
	if err != nil {
		return err
	}
	got, err := s.sendContent(have)
	if err != nil {
		return err
	}
	if err := target.ask(kindCommit, nil); err != nil {
		return err
	}
	applied, err := s.recvWritten(target)
	if err != nil {
		return err
	}
	if _, err := made(target, id); err != nil {
		return err
	}
	s.report.Backup, s.report.Bytes = id, s.sent.Load()
	go s.hangUp() // which the end of the session waits for
	if err := s.keepResumed(s.resumed); err != nil {
		return err
	}
	return s.saveBase(got, applied, id)
}

// made reads the target's answer about the backup that it has made. The backup must have the
// id that the target was given, because this machine's files have that name, too.
func made(target *peer, id string) (b Backup, err error) {
	if err := target.answered(kindDone, &b); err != nil {
		return b, err
	}
	if b.ID != id {
		return b, failedf(CodeRejected, "", "refused what the sprite sent: it made the backup %.80q, and was told to make %s", b.ID, id)
	}
	return b, nil
}

// spools are the plan's operations: deletions, then additions and changes, then merges.
func (p *planner) spools() []*spool[op] { return []*spool[op]{p.removes, p.puts, p.merges} }

// count is how many operations the plan has.
func (p *planner) count() (n int64) {
	for _, sp := range p.spools() {
		n += sp.count
	}
	return n
}

// readings begin a reading of the plan, for nextOp.
func (p *planner) readings() (all []*reading[op], err error) {
	for _, sp := range p.spools() {
		r, err := sp.read()
		if err != nil {
			return nil, err
		}
		all = append(all, r)
	}
	return all, nil
}

// nextOp returns the next operation of a plan; nil: there is none.
func nextOp(all *[]*reading[op]) (*op, error) {
	for len(*all) > 0 {
		o, ok, err := (*all)[0].next()
		if ok || err != nil {
			return &o, err
		}
		*all = (*all)[1:]
	}
	return nil, nil
}

// eachOp goes through the plan, in the order of spools.
func (p *planner) eachOp(do func(n int64, o *op) error) error {
	n := int64(0)
	for _, sp := range p.spools() {
		r, err := sp.read()
		if err != nil {
			return err
		}
		err = each(r, func(o op) error {
			n++
			return do(n-1, &o)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// sendPlan sends the plan to the target, and returns the content of it that the target has
// already.
func (s *session) sendPlan(target *peer, id string) (*spool[want], error) {
	have, err := newSpool(s.tmp, encodeWant, decodeWant)
	if err != nil {
		return nil, err
	}
	s.later(have.close)
	if err := target.ask(kindPlan, planHead{ID: id, Verb: string(s.Verb)}); err != nil {
		return nil, err
	}
	wait := target.list(s.ctx, func(add func(func(*enc)) error) error {
		return s.plan.eachOp(func(_ int64, o *op) error {
			plain := *o
			plain.from = ""
			return add(func(e *enc) { encodeOp(e, plain) })
		})
	})
	last, most := int64(-1), s.plan.count()
	err = recvList(target, func(d *dec) error {
		n := d.uint()
		w := want{n: int64(n), have: staged{d.int(), d.hash()}}
		if d.err != nil {
			return d.err
		}
		if w.n <= last || w.n >= most {
			return rejectedf("", "it has content of operation %d, after %d of %d", n, last, most)
		}
		last = w.n
		return have.add(w)
	})
	if err != nil {
		return nil, err
	}
	return have, wait()
}

// wants goes through the plan's files whose content is needed.
func (s *session) wants(have *spool[want], do func(w want, o *op) error) error {
	r, err := have.read()
	if err != nil {
		return err
	}
	return s.plan.eachOp(func(n int64, o *op) error {
		if o.kind != opPut || o.entry.Type != File {
			return nil
		}
		w := want{n: n, path: o.from, seen: o.entry.stamp()}
		h, ok, err := r.peek()
		if err != nil {
			return err
		}
		if ok && h.n == n {
			w.have, r.has = h.have, false
		}
		return do(w, o)
	})
}

// sendContent passes the content from the source to the target. On the way it checks that the
// content is what was asked for, and no more.
func (s *session) sendContent(have *spool[want]) (*spool[gotten], error) {
	source, target := s.ends()
	got, err := newSpool(s.tmp, func(e *enc, g gotten) { e.string(g.path); e.bytes(g.hash[:]) },
		func(d *dec) (gotten, error) { return gotten{d.string(), d.hash()}, d.err })
	if err != nil {
		return nil, err
	}
	s.later(got.close)
	texts, err := openTexts(s.dir)
	if err != nil {
		return nil, err
	}
	defer texts.close()
	if err := source.ask(kindFetch, nil); err != nil {
		return nil, err
	}
	wait := source.list(s.ctx, func(add func(func(*enc)) error) error {
		return s.wants(have, func(w want, o *op) error {
			if w.path == fromMerge {
				return nil
			}
			return add(func(e *enc) { encodeWant(e, w) })
		})
	})
	if err := target.ask(kindContent, nil); err != nil {
		return nil, err
	}
	c := &courier{s: s, source: source, target: target, got: got, texts: texts}
	if err := s.wants(have, c.file); err != nil {
		return nil, err
	}
	if err := c.end(); err != nil {
		return nil, err
	}
	if err := wait(); err != nil {
		return nil, err
	}
	if err := target.answered(kindDone, nil); err != nil {
		return nil, err
	}
	return got, texts.save(s.baseName())
}

// A courier passes content on, file by file, in the order of the plan.
type courier struct {
	s              *session
	source, target *peer
	got            *spool[gotten]
	texts          *texts
	pack           *dec // the rest of a frame of small files
	packed         frame
	count          uint64 // files that the source was asked for
	total          uint64 // files that the target gets
}

func (c *courier) add(n int64) {
	sent := c.s.sent.Add(n)
	if c.s.Progress != nil {
		c.s.Progress(sent, c.s.plan.bytes)
	}
}

// file passes one file on.
func (c *courier) file(w want, o *op) error {
	c.total++
	if w.path == fromMerge {
		return c.merged(w, o)
	}
	c.count++
	if c.pack != nil {
		return c.small(w, o)
	}
	f, err := c.source.recv()
	if err != nil {
		return err
	}
	switch f.kind {
	case kindPack:
		c.pack, c.packed = &dec{b: f.data}, f
		return c.small(w, o)
	case kindNone:
		return c.none(w, o, f)
	case kindBegin:
		return c.large(w, o, f)
	}
	return rejectedf(o.entry.Path, "a frame %q where its content belongs", f.kind)
}

// small takes the next file of a pack. The pack is passed on as a whole.
func (c *courier) small(w want, o *op) error {
	n, sum, size := c.pack.uint(), c.pack.hash(), c.pack.uint()
	content := c.pack.bytes(size)
	if c.pack.err != nil || n != uint64(w.n) || int64(len(content)) != w.seen.Size {
		return rejectedf(o.entry.Path, "its content is not what was asked for")
	}
	if err := c.texts.add(sum, content); err != nil {
		return err
	}
	c.add(int64(len(content)))
	if len(c.pack.b) == 0 {
		c.pack = nil
		if err := c.target.send(c.packed); err != nil {
			return err
		}
	}
	return c.note(o.entry.Path, sum)
}

// note notes the hash of a file that came; the target checks the hash. An ignore file must be
// the one that was judged.
func (c *courier) note(name string, sum Hash) error {
	if g := c.s.plan.guard; g != nil {
		if judged, ok := g.judged[name]; ok && judged != sum {
			return failedf(CodeChanged, hintAgain, "%q changed while it was read; nothing was changed here", name)
		}
	}
	return c.got.add(gotten{name, sum})
}

func (c *courier) none(w want, o *op, f frame) error {
	d := &dec{b: f.data}
	n, why := d.uint(), d.string()
	if d.end() != nil || n != uint64(w.n) {
		return rejectedf(o.entry.Path, "its content is not what was asked for")
	}
	if why != skipDenied {
		why = skipChanged
	}
	c.s.report.skipFile(why, o.entry.Path, o.entry.Size)
	return c.target.send(f)
}

// large passes a file on in frames.
func (c *courier) large(w want, o *op, f frame) error {
	d := &dec{b: f.data}
	n, from := d.uint(), d.int()
	if d.end() != nil || n != uint64(w.n) || from != 0 && from != w.have.size || from > w.seen.Size {
		return rejectedf(o.entry.Path, "its content is not what was asked for")
	}
	var text []byte
	whole := from == 0 && w.seen.Size <= maxText
	c.add(from)
	for size := from; ; {
		if err := c.target.send(f); err != nil {
			return err
		}
		var err error
		if f, err = c.source.recv(); err != nil {
			return err
		}
		switch f.kind {
		case kindData:
			if size += int64(len(f.data)); size > w.seen.Size {
				return rejectedf(o.entry.Path, "it is longer than it was said to be")
			}
			if whole {
				text = append(text, f.data...)
			}
			c.add(int64(len(f.data)))
		case kindNone:
			return c.none(w, o, f)
		case kindFile:
			d := &dec{b: f.data}
			sum := d.hash()
			if d.end() != nil || size != w.seen.Size {
				return rejectedf(o.entry.Path, "it is shorter than it was said to be")
			}
			if whole {
				if err := c.texts.add(sum, text); err != nil {
					return err
				}
			} else if w.seen.Size <= maxText && len(c.s.resumed) < maxResumed {
				c.s.resumed = append(c.s.resumed, gotten{o.entry.Path, sum})
			}
			return errors.Join(c.target.send(f), c.note(o.entry.Path, sum))
		default:
			return rejectedf(o.entry.Path, "a frame %q where its content belongs", f.kind)
		}
	}
}

// merged sends a text that was merged here.
func (c *courier) merged(w want, o *op) error {
	m := c.s.plan.merged[o.entry.Path]
	if c.pack != nil {
		return fmt.Errorf("merge %q: it lies in a pack", o.entry.Path)
	}
	f, err := os.Open(m.file)
	if err != nil {
		return err
	}
	defer f.Close()
	var e enc
	e.uint(uint64(w.n))
	e.int(0)
	if err := c.target.send(frame{kindBegin, e.b}); err != nil {
		return err
	}
	sum := newHash()
	for {
		buf := newBuffer()
		n, err := f.Read(buf)
		if n > 0 {
			sum.Write(buf[:n])
			if err := c.target.send(frame{kindData, buf[:n]}); err != nil {
				return err
			}
			continue
		}
		if err != io.EOF {
			return err
		}
		break
	}
	return c.target.send(frame{kindFile, sum.Sum(nil)})
}

// end checks that the source has sent everything, and tells the target so.
func (c *courier) end() error {
	if c.pack != nil {
		return rejectedf("", "it sent files that nobody asked for")
	}
	f, err := c.source.recv()
	if err != nil {
		return err
	}
	d := &dec{b: f.data}
	if n := d.uint(); f.kind != kindLast || d.end() != nil || n != c.count {
		return rejectedf("", "its content ends wrongly")
	}
	var e enc
	e.uint(c.total)
	if err := c.target.send(frame{kindLast, e.b}); err != nil {
		return err
	}
	return c.target.failed(c.target.c.flush())
}

// recvWritten reads the target's stamps of the paths that it wrote. They must be paths of the
// plan, in its order, and no others.
func (s *session) recvWritten(target *peer) (*spool[written], error) {
	applied, err := newSpool(s.tmp, encodeWritten, decodeWritten)
	if err != nil {
		return nil, err
	}
	s.later(applied.close)
	ops, err := s.plan.readings()
	if err != nil {
		return nil, err
	}
	return applied, recvList(target, func(d *dec) error {
		w, err := decodeWritten(d)
		if err != nil {
			return err
		}
		for {
			o, err := nextOp(&ops)
			if err != nil {
				return err
			}
			if o == nil {
				return failedf(CodeRejected, "", "refused what the sprite sent: it says that it wrote %.80q, which nobody asked for", w.path)
			}
			if o.entry.Path == w.path && (o.kind == opPut || o.kind == opChmod) {
				return applied.add(w)
			}
		}
	})
}
