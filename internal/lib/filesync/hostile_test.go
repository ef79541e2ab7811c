package filesync

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
)

// A liar is a sprite's end that says what it likes.
type liar struct {
	entries []Entry
	list    func(s *stream) error               // instead of the entries
	content func(s *stream, wants []want) error // instead of honest content
	files   map[string]string                   // honest content
	raw     func(w io.Writer) error             // instead of everything after hello
}

func (l *liar) connect(context.Context) (*Remote, error) {
	inR, inW := io.Pipe()
	outR, outW := io.Pipe()
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = l.serve(inR, outW) // the host's side has an error of its own
		_ = inR.Close()
		_ = outW.Close()
	}()
	return &Remote{R: outR, W: inW, Close: func() error { _ = inW.Close(); _ = outR.Close(); <-done; return nil }}, nil
}

func (l *liar) serve(r io.Reader, w io.Writer) error {
	s, err := newStream(r, w)
	if err != nil {
		return err
	}
	for {
		f, err := s.recv()
		if err != nil {
			return err
		}
		switch f.kind {
		case kindHello:
			err = sendJSON(s, kindHello, helloAnswer{Version: version, Root: "/p", Exists: true, Free: 1 << 40})
			if err == nil && l.raw != nil {
				return l.raw(w)
			}
		case kindScan:
			if l.list != nil {
				err = l.list(s)
				break
			}
			lst := &lister{c: s}
			for _, e := range l.entries {
				if err := lst.add(func(r *enc) { r.entry(&e) }); err != nil {
					return err
				}
			}
			err = errors.Join(lst.end(), sendJSON(s, kindDone, []Skipped{}))
		case kindFetch:
			var wants []want
			err = recvList(s, func(d *dec) error {
				v, err := decodeWant(d)
				wants = append(wants, v)
				return err
			})
			if err == nil {
				err = l.send(s, wants)
			}
		default:
			return errors.New("what now?")
		}
		if err != nil {
			return err
		}
	}
}

func (l *liar) send(s *stream, wants []want) error {
	if l.content != nil {
		return errors.Join(l.content(s, wants), s.flush())
	}
	for _, w := range wants {
		if err := s.send(frame{kindPack, packOf(w.n, l.files[w.path], l.files[w.path])}); err != nil {
			return err
		}
	}
	return errors.Join(s.send(frame{kindLast, binary.AppendUvarint(nil, uint64(len(wants)))}), s.flush())
}

func packOf(n int64, content, hashed string) []byte {
	var e enc
	e.uint(uint64(n))
	sum := sha256.Sum256([]byte(hashed))
	e.bytes(sum[:])
	e.string(content)
	return e.b
}

func fileEntry(name string, size int64) Entry {
	return Entry{Path: name, Type: File, Mode: 0o644, Size: size, Mtime: 1, Ctime: 1}
}

func dirEntry(name string) Entry { return Entry{Path: name, Type: Dir, Mode: 0o755} }

func linkEntry(name, target string) Entry { return Entry{Path: name, Type: Link, Target: target} }

// attack pulls from a liar into a folder, and checks that nothing has changed in it or beside
// it.
func attack(t *testing.T, l *liar, code string) {
	t.Helper()
	w := newWorld(t)
	w.write(w.local, "mine", "m", "dir/x", "1", "out", "-> "+filepath.Dir(w.local))
	w.Connect = l.connect
	before, around := dump(t, w.local), dirNames(t, filepath.Dir(w.local))
	w.run(Pull, code)
	w.differ(before, dump(t, w.local))
	after := slices.DeleteFunc(dirNames(t, filepath.Dir(w.local)), func(s string) bool { return s == "near" || s == "far" })
	if around = slices.DeleteFunc(around, func(s string) bool { return s == "near" || s == "far" }); !slices.Equal(around, after) {
		t.Errorf("beside it there is %q, and was %q", after, around)
	}
}

func dirNames(t *testing.T, dir string) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// TestHostileManifests: entries that no honest sprite sends are refused by name, and nothing
// is written (hostile 1, 5, 6; S6, S7).
func TestHostileManifests(t *testing.T) {
	deep := []Entry{}
	for i := range maxDepth + 1 {
		deep = append(deep, dirEntry(strings.TrimSuffix(strings.Repeat("d/", i+1), "/")))
	}
	for name, entries := range map[string][]Entry{
		"upwards":            {fileEntry("../x", 1)},
		"upwards inside":     {dirEntry("a"), fileEntry("a/../../x", 1)},
		"absolute":           {fileEntry("/tmp/x", 1)},
		"empty":              {fileEntry("", 1)},
		"dot":                {fileEntry(".", 1)},
		"not clean":          {dirEntry("a"), fileEntry("a//b", 1)},
		"zero byte":          {fileEntry("a\x00b", 1)},
		"long name":          {fileEntry(strings.Repeat("x", 256), 1)},
		"long path":          {fileEntry(strings.Repeat("x/", 2100)+"y", 1)},
		"twice":              {fileEntry("a", 1), fileEntry("a", 1)},
		"file and folder":    {fileEntry("a", 1), dirEntry("a")},
		"not in order":       {fileEntry("b", 1), fileEntry("a", 1)},
		"below a file":       {fileEntry("a", 1), fileEntry("a/b", 1)},
		"below a link":       {linkEntry("a", "dir"), fileEntry("a/b", 1)},
		"below nothing":      {fileEntry("a/b", 1)},
		"too deep":           deep,
		"git":                {dirEntry(".git"), fileEntry(".git/config", 1)},
		"git in capitals":    {dirEntry(".GIT"), fileEntry(".GIT/config", 1)},
		"git of NTFS":        {dirEntry("git~1")},
		"git of HFS+":        {fileEntry(".g\u200cit", 1)},
		"git's stream":       {fileEntry(".git::$INDEX_ALLOCATION", 1)},
		"git with a dot":     {fileEntry(".git.", 1)},
		"which sprite":       {dirEntry("a"), fileEntry("a/.sprite", 1)},
		"which, by a link":   {linkEntry(".sprite", "a")},
		"git below":          {dirEntry("a"), fileEntry("a/.git", 1)},
		"cove's own":         {dirEntry(workName), fileEntry(workName+"/journal", 1)},
		"theirs":             {fileEntry("a.cove-theirs", 1)},
		"absolute link":      {linkEntry("a", "/etc/passwd")},
		"link up":            {linkEntry("a", "../x")},
		"link up later":      {linkEntry("a", "b/../../x")},
		"link up by a name":  {linkEntry("a", "dir/..")},
		"link to git":        {linkEntry("a", ".git/hooks")},
		"link to nothing":    {linkEntry("a", "")},
		"device":             {{Path: "a", Type: 9}},
		"no type":            {{Path: "a"}},
		"setuid":             {{Path: "a", Type: File, Mode: 0o4755, Size: 1}},
		"for all to write":   {{Path: "a", Type: File, Mode: 0o777, Size: 1}},
		"negative":           {fileEntry("a", -1)},
		"folder with a size": {{Path: "a", Type: Dir, Mode: 0o755, Size: 1}},
	} {
		t.Run(name, func(t *testing.T) { attack(t, &liar{entries: entries}, CodeRejected) })
	}
	t.Run("8 EiB", func(t *testing.T) { attack(t, &liar{entries: []Entry{fileEntry("a", 1<<62)}}, CodeNoSpace) })
}

// TestHostileStreams: streams that are not frames or lists (hostile 3, 4).
func TestHostileStreams(t *testing.T) {
	bomb := func(size int) []byte {
		zw, err := zstd.NewWriter(nil)
		if err != nil {
			t.Fatal(err)
		}
		return zw.EncodeAll(make([]byte, size), nil)
	}
	framed := func(kind, flags byte, length uint32, data []byte) []byte {
		head := []byte{kind, flags, byte(length >> 24), byte(length >> 16), byte(length >> 8), byte(length)}
		return append(binary.BigEndian.AppendUint32(head, checksum(head, data)), data...)
	}
	packed := bomb(1 << 30)
	fits := bomb(maxFrame)
	for name, raw := range map[string][]byte{
		"nothing":       {},
		"noise":         []byte("HTTP/1.1 200 OK\r\n\r\nhello, this is not it"),
		"long":          framed(kindList, 0, maxFrame+1, nil),
		"flags":         framed(kindList, 0x80, 1, []byte{0}),
		"cut":           framed(kindList, 0, 100, []byte("x")),
		"bomb":          framed(kindList, flagZstd, uint32(len(packed)), packed),
		"bomb of zeros": framed(kindList, flagZstd, uint32(len(fits)), fits),
		"no zstd":       framed(kindList, flagZstd, 5, []byte("hello")),
		"no end":        framed(kindList, 0, 2, []byte{1, 0}),
		"wrong end":     framed(kindEnd, 0, 1, []byte{7}),
		"long record":   framed(kindList, 0, 5, []byte{0xff, 0xff, 0xff, 0x7f, 0}),
		"no answer":     framed(kindDone, 0, 2, []byte("{}")),
		"error":         framed(kindError, 0, 4, []byte("oops")),
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.write(w.local, "mine", "m")
			l := &liar{raw: func(out io.Writer) error { _, err := out.Write(raw); return err }}
			w.Connect = l.connect
			before := dump(t, w.local)
			w.Verb = Pull
			if _, err := w.Run(t.Context()); err == nil {
				t.Fatal("it is taken for a manifest")
			}
			w.differ(before, dump(t, w.local))
		})
	}
}

// TestHostileContent: content that is not what the manifest says.
func TestHostileContent(t *testing.T) {
	entries := []Entry{fileEntry("a", 3), fileEntry("b", 100_000), fileEntry("c", 3)}
	begin := func(n, from int64) frame {
		var e enc
		e.uint(uint64(n))
		e.int(from)
		return frame{kindBegin, e.b}
	}
	sum := func(s string) frame { h := sha256.Sum256([]byte(s)); return frame{kindFile, h[:]} }
	data := func(n int) frame { return frame{kindData, make([]byte, n)} }
	last := func(n uint64) frame { return frame{kindLast, binary.AppendUvarint(nil, n)} }
	b, c := strings.Repeat("\x00", 100_000), frame{kindPack, packOf(2, "ccc", "ccc")}
	a := frame{kindPack, packOf(0, "aaa", "aaa")}
	for name, frames := range map[string][]frame{
		"nothing":          {last(0)},
		"nothing, counted": {last(3)},
		"too short":        {a, begin(1, 0), data(99_999), sum(b[:99_999])},
		"too long":         {a, begin(1, 0), data(100_001)},
		"wrong hash":       {a, begin(1, 0), data(100_000), sum("x"), c, last(3)},
		"wrong small hash": {{kindPack, packOf(0, "aaa", "aab")}, begin(1, 0), data(100_000), sum(b), c, last(3)},
		"another file":     {{kindPack, packOf(1, "aaa", "aaa")}},
		"no such file":     {{kindPack, packOf(1<<40, "aaa", "aaa")}},
		"small too long":   {{kindPack, packOf(0, "aaaa", "aaaa")}},
		"from the middle":  {a, begin(1, 50_000), data(50_000), sum(b)},
		"from before":      {a, begin(1, -1), data(1)},
		"twice":            {a, a},
		"one too many":     {a, begin(1, 0), data(100_000), sum(b), c, c, last(4)},
		"not all":          {a, begin(1, 0), data(100_000), sum(b), last(2)},
		"no end":           {a, begin(1, 0), data(100_000), sum(b), c},
		"a list":           {{kindList, []byte{1, 0}}},
		"an empty pack":    {{kindPack, nil}},
		"half a pack":      {{kindPack, packOf(0, "aaa", "aaa")[:20]}},
		"data first":       {data(3)},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.write(w.local, "mine", "m")
			before := dump(t, w.local)
			l := &liar{entries: entries, content: func(s *stream, _ []want) error {
				for _, f := range frames {
					if err := s.send(frame{f.kind, slices.Clone(f.data)}); err != nil {
						return err
					}
				}
				_ = s.flush()
				return io.EOF // and the connection ends
			}}
			w.Connect = l.connect
			w.Verb = Pull
			if _, err := w.Run(t.Context()); err == nil {
				t.Fatal("it is taken for the content")
			}
			w.differ(before, dump(t, w.local))
		})
	}
}

// TestHostileMillion: a manifest of a million entries, and one without an end, cost
// no memory that grows with them (hostile 3, 9; S7).
func TestHostileMillion(t *testing.T) {
	if testing.Short() {
		t.Skip("takes some seconds")
	}
	w := newWorld(t)
	l := &liar{}
	count := 0
	l.list = func(s *stream) error {
		lst := &lister{c: s}
		for ; ; count++ {
			e := fileEntry(numbered(count), 0)
			if err := lst.add(func(r *enc) { r.entry(&e) }); err != nil {
				return err
			}
		}
	}
	w.Connect = l.connect
	peak := watchHeap(t)
	w.Verb = Pull
	_, err := w.Run(t.Context())
	w.wants(err, CodeRejected)
	if count < maxEntries {
		t.Errorf("it ended after %d", count)
	}
	if mb := peak() >> 20; mb > 64 {
		t.Errorf("%d MiB of heap", mb)
	}
}

// numbered is a name whose order is that of its number.
func numbered(n int) string {
	b := []byte("f00000000")
	for i := len(b) - 1; n > 0; i-- {
		b[i] += byte(n % 10)
		n /= 10
	}
	return string(b)
}

// watchHeap returns how much the heap grows at most, until it is asked.
func watchHeap(t *testing.T) func() uint64 {
	t.Helper()
	runtime.GC()
	var first, now runtime.MemStats
	runtime.ReadMemStats(&first)
	done, result := make(chan struct{}), make(chan uint64)
	go func() {
		var peak uint64
		for {
			select {
			case <-done:
				result <- peak
				return
			default:
			}
			runtime.ReadMemStats(&now)
			if now.HeapInuse > first.HeapInuse {
				peak = max(peak, now.HeapInuse-first.HeapInuse)
			}
			settle()
		}
	}()
	return func() uint64 { close(done); return <-result }
}

// TestLinkRace: a folder of the target that becomes a link while it is written to
// is never written through (hostile 2).
func TestLinkRace(t *testing.T) {
	dir := t.TempDir()
	root, outside := filepath.Join(dir, "root"), filepath.Join(dir, "outside")
	for _, d := range []string{root, outside, filepath.Join(root, "real")} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			default:
			}
			_ = os.Rename(filepath.Join(root, "real"), filepath.Join(root, "aside"))
			_ = os.Symlink(outside, filepath.Join(root, "real"))
			_ = os.Remove(filepath.Join(root, "real"))
			_ = os.Rename(filepath.Join(root, "aside"), filepath.Join(root, "real"))
		}
	}()
	wrote := 0
	// More often, if the other goroutine has not put the folder back all the time.
	for n, lastResort := 0, time.Now().Add(10*time.Minute); n < 10_000 || wrote == 0 && time.Now().Before(lastResort); n++ {
		tr, err := openTree(root)
		if err != nil {
			t.Fatal(err)
		}
		if fd, base, err := tr.at("real/x"); err == nil {
			if f, err := createStaged(fd, base, 0o600); err == nil {
				wrote++
				_ = f.Close()
			}
		}
		tr.close()
	}
	close(stop)
	<-stopped
	if names := dirNames(t, outside); len(names) > 0 {
		t.Errorf("%q was written outside", names)
	}
	if wrote == 0 {
		t.Error("nothing was written at all")
	}
}

// FuzzManifest: of any records that a sprite sends, only those with a path below the root that
// is not git's pass the check.
func FuzzManifest(f *testing.F) {
	for _, v := range []Entry{fileEntry("a", 1), dirEntry("a/.."), linkEntry("a", "../b"), fileEntry(".git", 0)} {
		var e enc
		e.entry(&v)
		f.Add(e.b)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		d := &dec{b: data}
		var v Entry
		d.entry(&v)
		if d.end() != nil || (&checker{}).check(&v) != nil {
			return
		}
		if !filepath.IsLocal(v.Path) || filepath.Clean(v.Path) != v.Path || strings.EqualFold(v.Path, ".git") || v.Size < 0 {
			t.Fatalf("%+v passes", v)
		}
		var e enc
		e.entry(&v)
		var back Entry
		if (&dec{b: e.b}).entry(&back); back != v {
			t.Fatalf("%+v comes back as %+v", v, back)
		}
	})
}

// FuzzFrames: no stream makes its reader fail, or need more than its bounds.
func FuzzFrames(f *testing.F) {
	var valid bytes.Buffer
	s, err := newStream(nil, &valid)
	if err != nil {
		f.Fatal(err)
	}
	l := &lister{c: s}
	for range 100 {
		if err := l.add(func(e *enc) { e.string("a record like many others") }); err != nil {
			f.Fatal(err)
		}
	}
	if err := l.end(); err != nil {
		f.Fatal(err)
	}
	f.Add(valid.Bytes())
	f.Add([]byte{kindList, 1, 0, 0, 0, 2, 1, 0, 0, 0, 0, 0})
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := newStream(strings.NewReader(string(data)), io.Discard)
		if err != nil {
			t.Fatal(err)
		}
		records := 0
		err = recvList(s, func(d *dec) error { records++; d.b = nil; return nil })
		if err == nil && records > len(data)*maxFrame {
			t.Fatal("more records than bytes")
		}
	})
}

// FuzzOps: an operation that passes stays below the root.
func FuzzOps(f *testing.F) {
	var e enc
	encodeOp(&e, op{kind: opPut, entry: fileEntry("a/b", 1)})
	f.Add(e.b)
	f.Fuzz(func(t *testing.T, data []byte) {
		d := &dec{b: data}
		o, err := decodeOp(d)
		if err != nil || d.end() != nil || checkOp(&o) != nil {
			return
		}
		if !filepath.IsLocal(o.entry.Path) || o.from != "" {
			t.Fatalf("%+v passes", o)
		}
	})
}

// FuzzContent makes a sprite send any frames as content. If the pull fails, the local tree is
// as it was. If it succeeds, the files have the sizes of the manifest. Nothing is written
// beside the folder.
func FuzzContent(f *testing.F) {
	seed := func(frames ...frame) {
		var b []byte
		for _, v := range frames {
			b = append(binary.BigEndian.AppendUint16(append(b, v.kind), uint16(len(v.data))), v.data...)
		}
		f.Add(b)
	}
	begin := binary.AppendVarint(binary.AppendUvarint(nil, 1), 0)
	sum := sha256.Sum256(make([]byte, 500))
	last := frame{kindLast, binary.AppendUvarint(nil, 2)}
	seed(frame{kindPack, packOf(0, "aaa", "aaa")}, frame{kindBegin, begin}, frame{kindData, make([]byte, 500)}, frame{kindFile, sum[:]}, last)
	seed(frame{kindPack, append(packOf(0, "aaa", "aaa"), packOf(1, strings.Repeat("b", 500), "b")...)}, last)
	seed(frame{kindBegin, begin}, frame{kindData, make([]byte, 600)}, frame{kindError, []byte(`{"code":"x"}`)})
	f.Fuzz(func(t *testing.T, data []byte) {
		w := newWorld(t)
		w.write(w.local, "mine", "m")
		before := dump(t, w.local)
		l := &liar{entries: []Entry{fileEntry("a", 3), fileEntry("b", 500)}, content: func(s *stream, _ []want) error {
			end := io.EOF // of the connection, where no end of the list is sent: else the reader would wait for it
			for rest := data; len(rest) >= 3; {
				if rest[0] == kindLast {
					end = nil
				}
				n := min(int(binary.BigEndian.Uint16(rest[1:])), len(rest)-3)
				if err := s.send(frame{rest[0], slices.Clone(rest[3 : 3+n])}); err != nil {
					return err
				}
				rest = rest[3+n:]
			}
			return errors.Join(s.flush(), end)
		}}
		w.Connect = l.connect
		w.Verb = Pull
		_, err := w.Run(t.Context())
		if err != nil {
			w.differ(before, dump(t, w.local))
			return
		}
		for name, size := range map[string]int64{"a": 3, "b": 500} {
			if info, err := os.Stat(filepath.Join(w.local, name)); err != nil || info.Size() != size {
				t.Fatalf("%s: %v, %v", name, info, err)
			}
		}
		for _, name := range dirNames(t, filepath.Dir(w.local)) {
			if name == "outside" {
				t.Fatal("something was written beside the folder")
			}
		}
	})
}
