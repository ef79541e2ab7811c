package filesync

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"io"
	"io/fs"
	"os"
)

// question asks for the hash of a file that was seen with a stamp, or, with none,
// whether anything is at a path.
type question struct {
	path  string
	stamp stamp
	exist bool
}

func encodeQuestion(e *enc, q question) {
	e.string(q.path)
	e.stamp(q.stamp)
	if q.exist {
		e.byte(1)
	} else {
		e.byte(0)
	}
}

func decodeQuestion(d *dec) (q question, err error) {
	q.path = d.string()
	q.stamp = d.stamp()
	q.exist = d.byte() == 1
	return q, d.err
}

// The kinds of an answer.
const (
	answerNothing byte = iota // there is nothing
	answerHash                // the file's hash
	answerThere               // something is there
	answerChanged             // it is not what it was, or can't be read
)

type answer struct {
	path string
	what byte
	hash Hash
}

func encodeAnswer(e *enc, a answer) {
	e.string(a.path)
	e.byte(a.what)
	e.bytes(a.hash[:])
}

func decodeAnswer(d *dec) (a answer, err error) {
	a.path = d.string()
	a.what = d.byte()
	a.hash = d.hash()
	return a, d.err
}

// answer answers questions, each as it comes.
func (e *end) answer(ctx context.Context) error {
	t, err := openTree(e.root)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err == nil {
		defer t.close()
	}
	l := &lister{c: e.c}
	err = recvList(e.c, func(d *dec) error {
		q, err := decodeQuestion(d)
		if err != nil {
			return err
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		a := answer{path: q.path}
		if t != nil {
			if a, err = t.look(q); err != nil {
				return err
			}
		}
		return l.add(func(e *enc) { encodeAnswer(e, a) })
	})
	return errors.Join(err, l.end())
}

// look answers one question.
func (t *tree) look(q question) (answer, error) {
	a := answer{path: q.path, what: answerChanged}
	if q.exist {
		now, err := t.lstat(q.path)
		if err != nil || now.Type != None {
			a.what = answerThere
		} else {
			a.what = answerNothing
		}
		return a, nil
	}
	f, now, err := t.open(q.path)
	if err != nil {
		return a, nil
	}
	defer f.Close()
	sum := sha256.New()
	if _, err := copyBuffered(sum, f); err != nil {
		return a, err
	}
	if unmoved(f, now, q.stamp) {
		a.what, a.hash = answerHash, Hash(sum.Sum(nil))
	}
	return a, nil
}

// unmoved reports whether a file that has been read had the stamp it was seen
// with, before and after.
func unmoved(f *os.File, before Entry, seen stamp) bool {
	info, err := f.Stat()
	return err == nil && seen.agrees(before.stamp()) && before.stamp() == stamp{info.Size(), info.ModTime().UnixNano(), changeTime(info)}
}

// want asks for a file's content. A beginning that the other side has already need not be
// sent, if it is the same.
type want struct {
	n    int64
	path string
	seen stamp
	have staged
}

func encodeWant(e *enc, w want) {
	e.int(w.n)
	e.string(w.path)
	e.stamp(w.seen)
	e.int(w.have.size)
	e.bytes(w.have.hash[:])
}

func decodeWant(d *dec) (w want, err error) {
	w.n = d.int()
	w.path = d.string()
	w.seen = d.stamp()
	w.have = staged{d.int(), d.hash()}
	return w, d.err
}

// packSize is the greatest size of files that are sent together.
const packSize = 64 << 10

// provide sends the content of the files asked for.
func (e *end) provide(ctx context.Context) error {
	t, err := openTree(e.root)
	if err != nil {
		return err
	}
	defer t.close()
	p := &provider{c: e.c, t: t}
	err = recvList(e.c, func(d *dec) error {
		w, err := decodeWant(d)
		if err != nil {
			return err
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		p.count++
		return p.file(&w)
	})
	if err != nil {
		return err
	}
	return p.end()
}

// provider sends files, small ones together.
type provider struct {
	c     conn
	t     *tree
	pack  []byte
	count uint64
}

func (p *provider) end() error {
	if err := p.flush(); err != nil {
		return err
	}
	return errors.Join(p.c.send(frame{kindLast, binary.AppendUvarint(nil, p.count)}), p.c.flush())
}

func (p *provider) flush() error {
	f := frame{kindPack, p.pack}
	p.pack = nil
	if len(f.data) == 0 { // none, or one whose only file has changed
		f.release()
		return nil
	}
	return p.c.send(f)
}

// none says that a file can't be had.
func (p *provider) none(n int64, why string) error {
	if err := p.flush(); err != nil {
		return err
	}
	var e enc
	e.uint(uint64(n))
	e.string(why)
	return p.c.send(frame{kindNone, e.b})
}

func (p *provider) file(w *want) error {
	f, now, err := p.t.open(w.path)
	if err != nil {
		if errors.Is(err, fs.ErrPermission) {
			return p.none(w.n, skipDenied)
		}
		return p.none(w.n, skipChanged)
	}
	defer f.Close()
	if now.Size != w.seen.Size {
		return p.none(w.n, skipChanged)
	}
	if w.seen.Size <= packSize && w.have.size == 0 {
		return p.small(w, f, now)
	}
	return p.large(w, f, now)
}

// small packs a whole file.
func (p *provider) small(w *want, f *os.File, now Entry) error {
	size := int(w.seen.Size)
	if len(p.pack)+size+64 > dataFrame {
		if err := p.flush(); err != nil {
			return err
		}
	}
	if p.pack == nil {
		p.pack = newBuffer()[:0]
	}
	at := len(p.pack)
	p.pack = binary.AppendUvarint(p.pack, uint64(w.n))
	sumAt := len(p.pack)
	p.pack = append(p.pack, make([]byte, len(Hash{}))...)
	p.pack = binary.AppendUvarint(p.pack, uint64(size))
	content := p.pack[len(p.pack) : len(p.pack)+size]
	if _, err := io.ReadFull(f, content); err != nil || !unmoved(f, now, w.seen) {
		p.pack = p.pack[:at]
		return p.none(w.n, skipChanged)
	}
	p.pack = p.pack[:len(p.pack)+size]
	sum := sha256.Sum256(content)
	copy(p.pack[sumAt:], sum[:])
	return nil
}

// large sends a file in frames, from where the other side's beginning ends.
func (p *provider) large(w *want, f *os.File, now Entry) error {
	if err := p.flush(); err != nil {
		return err
	}
	sum, from := sha256.New(), int64(0)
	if w.have.size > 0 && w.have.size <= w.seen.Size {
		if _, err := copyBuffered(sum, io.LimitReader(f, w.have.size)); err != nil {
			return err
		}
		if from = w.have.size; Hash(sum.Sum(nil)) != w.have.hash {
			sum, from = sha256.New(), 0
			if _, err := f.Seek(0, io.SeekStart); err != nil {
				return err
			}
		}
	}
	var e enc
	e.uint(uint64(w.n))
	e.int(from)
	if err := p.c.send(frame{kindBegin, e.b}); err != nil {
		return err
	}
	for left := w.seen.Size - from; left > 0; {
		buf := newBuffer()
		n, err := io.ReadFull(f, buf[:min(left, dataFrame)])
		if err != nil {
			frame{data: buf}.release()
			return p.none(w.n, skipChanged)
		}
		sum.Write(buf[:n])
		left -= int64(n)
		if err := p.c.send(frame{kindData, buf[:n]}); err != nil {
			return err
		}
	}
	if !unmoved(f, now, w.seen) {
		return p.none(w.n, skipChanged)
	}
	return p.c.send(frame{kindFile, sum.Sum(nil)})
}
