package filesync

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"hash"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"github.com/klauspost/compress/zstd"
)

// maxText is the largest text that is kept for a later merge.
const maxText = 1 << 20

func newHash() hash.Hash { return sha256.New() }

// isText reports whether content may be merged line by line.
func isText(b []byte) bool { return bytes.IndexByte(b, 0) < 0 }

// texts keeps texts as the last syncs left them, so that two versions of one text can be
// merged. It is one file per pair: blocks of texts, each block compressed. A text that is not
// in it does not merge.
type texts struct {
	name  string
	f     *os.File
	w     *bufio.Writer
	zw    *zstd.Encoder
	block []byte
	size  int64
}

const (
	textBlock   = 256 << 10
	textsBefore = 64 << 20 // up to which size old texts may stay
	textsMax    = 1 << 30  // from which on no more are kept
	maxResumed  = 50_000   // texts of one sync that an earlier attempt had begun
)

func openTexts(dir string) (*texts, error) {
	t := &texts{name: filepath.Join(dir, "texts")}
	var err error
	if t.f, err = os.OpenFile(t.name, os.O_CREATE|os.O_RDWR, 0o600); err != nil {
		return nil, err
	}
	if t.size, err = wholeBlocks(t.f); err == nil {
		_, err = t.f.Seek(t.size, io.SeekStart)
	}
	if err != nil {
		return nil, errors.Join(err, t.f.Close())
	}
	t.w = bufio.NewWriterSize(t.f, 64<<10)
	t.zw, err = zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1), zstd.WithLowerEncoderMem(true), zstd.WithWindowSize(textBlock))
	return t, err
}

// wholeBlocks cuts off a block that a dying process wrote by half, and returns the size of the
// rest. Blocks after it could not be read.
func wholeBlocks(f *os.File) (size int64, err error) {
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	var head [binary.MaxVarintLen64]byte
	for size < info.Size() {
		n, err := f.ReadAt(head[:], size)
		if err != nil && err != io.EOF {
			return 0, err
		}
		length, width := binary.Uvarint(head[:n])
		if width <= 0 || length > maxFrame || size+int64(width)+int64(length) > info.Size() {
			return size, f.Truncate(size)
		}
		size += int64(width) + int64(length)
	}
	return size, nil
}

// add keeps a content, if it is a text.
func (t *texts) add(sum Hash, content []byte) error {
	if len(content) == 0 || len(content) > maxText || t.size > textsMax || !isText(content) {
		return nil
	}
	t.block = append(t.block, sum[:]...)
	t.block = binary.AppendUvarint(t.block, uint64(len(content)))
	t.block = append(t.block, content...)
	if len(t.block) < textBlock {
		return nil
	}
	return t.spill()
}

func (t *texts) spill() error {
	if len(t.block) == 0 {
		return nil
	}
	packed := t.zw.EncodeAll(t.block, nil)
	t.block = t.block[:0]
	t.size += int64(len(packed))
	var n [binary.MaxVarintLen64]byte
	_, err := t.w.Write(binary.AppendUvarint(n[:0], uint64(len(packed))))
	if err == nil {
		_, err = t.w.Write(packed)
	}
	return err
}

// save writes the added texts. If the file has grown large, it drops texts that no base needs
// any more.
func (t *texts) save(base string) error {
	if err := errors.Join(t.spill(), t.w.Flush()); err != nil {
		return err
	}
	if t.size < textsBefore {
		return nil
	}
	return t.shrink(base)
}

func (t *texts) close() { _ = t.f.Close() }

// keepResumed keeps the texts that this machine saw on their way only in part, or not at all:
// an earlier attempt had brought the beginning. After the sync the whole texts are here,
// whichever way they went.
func (s *session) keepResumed(resumed []gotten) error {
	if len(resumed) == 0 {
		return nil
	}
	tree, err := openTree(s.localAt.Root)
	if err != nil {
		return err
	}
	defer tree.close()
	t, err := openTexts(s.dir)
	if err != nil {
		return err
	}
	defer t.close()
	for _, g := range resumed {
		f, now, err := tree.open(g.path)
		if err != nil {
			continue // it was changed meanwhile: then it does not merge
		}
		content, err := io.ReadAll(io.LimitReader(f, min(now.Size, maxText)))
		_ = f.Close()
		if err == nil && sha256.Sum256(content) == g.hash {
			err = t.add(g.hash, content)
		}
		if err != nil {
			return err
		}
	}
	return t.save(s.baseName())
}

// shrink keeps the texts of the base, which is the one before this sync, and the newer half of
// the file.
func (t *texts) shrink(base string) error {
	live := map[uint64]bool{}
	r, done, err := openBase(base)
	if err != nil {
		return err
	}
	defer done()
	err = each(r, func(k known) error {
		live[binary.BigEndian.Uint64(k.hash[:])] = true
		return nil
	})
	if err != nil {
		return err
	}
	next := &texts{name: t.name + ".new", zw: t.zw}
	if next.f, err = os.OpenFile(next.name, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600); err != nil {
		return err
	}
	defer next.close()
	next.w = bufio.NewWriterSize(next.f, 64<<10)
	err = eachText(t.name, func(at int64, sum Hash, content []byte) error {
		if at < t.size/2 && !live[binary.BigEndian.Uint64(sum[:])] {
			return nil
		}
		return next.add(sum, content)
	})
	if err = errors.Join(err, next.spill(), next.w.Flush()); err != nil {
		return err
	}
	return os.Rename(next.name, t.name)
}

// eachText goes through the texts that are kept; at is where their block begins. It ends at a
// block that a dying process wrote by half.
func eachText(name string, do func(at int64, sum Hash, content []byte) error) error {
	f, err := os.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	zr, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(maxFrame))
	if err != nil {
		return err
	}
	defer zr.Close()
	r := bufio.NewReaderSize(f, 64<<10)
	var packed, block []byte
	for at := int64(0); ; at += int64(len(packed)) {
		n, err := binary.ReadUvarint(r)
		if err != nil || n > maxFrame {
			return nil
		}
		packed = append(packed[:0], make([]byte, n)...)
		if _, err := io.ReadFull(r, packed); err != nil {
			return nil
		}
		if block, err = zr.DecodeAll(packed, block[:0]); err != nil {
			return nil
		}
		for d := (&dec{b: block}); len(d.b) > 0; {
			sum := d.hash()
			content := d.bytes(d.uint())
			if d.err != nil {
				return nil
			}
			if err := do(at, sum, content); err != nil {
				return err
			}
		}
	}
}

// maxMerges bounds how many texts are merged in one sync.
const maxMerges = 1000

// textMerge is one attempt.
type textMerge struct {
	path         string
	base         Hash
	ours, theirs Entry
}

// mergeTexts merges texts that both ends have changed, with the text before both changes as
// their base.
func (s *session) mergeTexts(paths []string) (map[string]*mergedText, error) {
	wanted := map[string]bool{}
	for _, name := range paths[:min(len(paths), maxMerges)] {
		wanted[name] = true
	}
	var list []textMerge
	need := map[Hash]string{}
	err := s.rows(func(w row) error {
		if wanted[w.path] && w.base != nil && w.local != nil && w.remote != nil {
			list = append(list, textMerge{w.path, w.base.hash, *w.local, *w.remote})
			need[w.base.hash] = ""
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	if err := s.extract(need); err != nil {
		return nil, err
	}
	merged := map[string]*mergedText{}
	for i, m := range list {
		if need[m.base] == "" {
			continue
		}
		one, err := s.mergeText(i, m, need[m.base])
		if err != nil {
			return nil, err
		}
		if one != nil {
			merged[m.path] = one
		}
	}
	return merged, nil
}

// extract writes the texts that are needed to files, whose names it notes.
func (s *session) extract(need map[Hash]string) error {
	return eachText(filepath.Join(s.dir, "texts"), func(_ int64, sum Hash, content []byte) error {
		if name, ok := need[sum]; !ok || name != "" || Hash(sha256.Sum256(content)) != sum {
			return nil
		}
		name := filepath.Join(s.tmp, "base-"+strconv.Itoa(len(need))+"-"+keyOf(string(sum[:])))
		need[sum] = name
		return os.WriteFile(name, content, 0o600)
	})
}

// mergeText merges one text; nil: it does not merge.
func (s *session) mergeText(i int, m textMerge, base string) (*mergedText, error) {
	names := map[*peer]string{}
	for side, p := range map[*peer]Entry{s.local: m.ours, s.remote: m.theirs} {
		content, err := s.fetchText(side, &p)
		if err != nil || content == nil {
			return nil, err
		}
		names[side] = filepath.Join(s.tmp, "side-"+strconv.Itoa(i)+"-"+strconv.Itoa(len(names)))
		if err := os.WriteFile(names[side], content, 0o600); err != nil {
			return nil, err
		}
	}
	content, clean, err := s.Merge(s.ctx, names[s.local], base, names[s.remote])
	if err != nil || !clean {
		return nil, err
	}
	one := &mergedText{file: filepath.Join(s.tmp, "merged-"+strconv.Itoa(i)), size: int64(len(content))}
	return one, errors.Join(os.WriteFile(one.file, content, 0o600), os.Remove(names[s.local]), os.Remove(names[s.remote]))
}

// fetchText reads one small file of an end; nil: it is not a text, or can't be read.
func (s *session) fetchText(p *peer, e *Entry) ([]byte, error) {
	if err := p.ask(kindFetch, nil); err != nil {
		return nil, err
	}
	wait := p.list(context.WithoutCancel(s.ctx), func(add func(func(*enc)) error) error {
		return add(func(r *enc) { encodeWant(r, want{path: e.Path, seen: e.stamp()}) })
	})
	var content []byte
	whole := false
	for {
		f, err := p.recv()
		if err != nil {
			return nil, err
		}
		d := &dec{b: f.data}
		switch f.kind {
		case kindPack:
			_, _, content = d.uint(), d.hash(), bytes.Clone(d.bytes(d.uint()))
			whole = d.end() == nil
		case kindData:
			content = append(content, f.data...)
		case kindFile:
			whole = true
		case kindLast:
			if !whole || int64(len(content)) != e.Size || !isText(content) {
				content = nil
			}
			return content, wait()
		}
		if int64(len(content)) > maxText {
			return nil, rejectedf(e.Path, "it is longer than it was said to be")
		}
	}
}
