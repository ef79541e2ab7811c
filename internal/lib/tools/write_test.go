package tools

import (
	"bytes"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cove-dev/cove/internal/lib/fail"
)

// TestWrite: F3, F4: names of every kind, parents, modes, links, if_match.
func TestWrite(t *testing.T) {
	s := serve(t, EditOnly)
	for _, name := range []string{"a b", "it's", `say "x"`, "a\nb", "$(touch evil)", "-rf", "é世界🦊", "*", "`id`", "~"} {
		r := call1[WriteResult](s, "Write", WriteInput{FilePath: name, Content: name})
		if !r.Created || s.get(name) != name {
			t.Errorf("%q: got %+v, %q", name, r, s.get(name))
		}
	}
	if _, err := os.Stat(s.path("evil")); err == nil {
		t.Error("a name was run")
	}
	s.fails(CodeNotFound, "Write", WriteInput{FilePath: "x/y/z", Content: "1"})
	call1[WriteResult](s, "Write", WriteInput{FilePath: "x/y/z", Content: "1", CreateParents: true})
	s.fails(CodeNotDirectory, "Write", WriteInput{FilePath: "x/y/z/w", Content: "1", CreateParents: true})

	s.put("mode", "1", "real/file", "1")
	if err := os.Chmod(s.path("mode"), 0o750); err != nil {
		t.Fatal(err)
	}
	if r := call1[WriteResult](s, "Write", WriteInput{FilePath: "mode", Content: "2"}); r.Created || r.SHA256 != hashBytes([]byte("2")) {
		t.Errorf("got %+v", r)
	}
	if info, err := os.Stat(s.path("mode")); err != nil || info.Mode() != 0o750 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	for link, to := range map[string]string{"link": "real/file", "link2": "link", "new": "real/made"} {
		if err := os.Symlink(to, s.path(link)); err != nil {
			t.Fatal(err)
		}
	}
	call1[WriteResult](s, "Write", WriteInput{FilePath: "link2", Content: "through"})
	call1[WriteResult](s, "Write", WriteInput{FilePath: "new", Content: "made"})
	if to, err := os.Readlink(s.path("link2")); err != nil || to != "link" || s.get("real/file") != "through" || s.get("real/made") != "made" {
		t.Errorf("a link to %q (%v), which has %q", to, err, s.get("real/file"))
	}

	hash := hashBytes([]byte("2"))
	s.fails(CodeStale, "Write", WriteInput{FilePath: "mode", Content: "3", IfMatch: hashBytes([]byte("1"))})
	s.fails(CodeStale, "Write", WriteInput{FilePath: "mode", Content: "3", IfMatch: "absent"})
	s.fails(CodeStale, "Write", WriteInput{FilePath: "gone", Content: "3", IfMatch: hash})
	s.fails(CodeBadInput, "Write", WriteInput{FilePath: "mode", Content: "3", IfMatch: "abc"})
	call1[WriteResult](s, "Write", WriteInput{FilePath: "mode", Content: "3", IfMatch: hash[:16]})
	call1[WriteResult](s, "Write", WriteInput{FilePath: "gone", Content: "3", IfMatch: "absent"})
	s.clean()
}

// TestWriteLarge: 50 MB, which no argument of a program could carry.
func TestWriteLarge(t *testing.T) {
	s := serve(t, EditOnly)
	random := make([]byte, 37<<20)
	_, _ = rand.Read(random)
	content := base64.StdEncoding.EncodeToString(random)
	r := call1[WriteResult](s, "Write", WriteInput{FilePath: "large", Content: content})
	if r.Size != int64(len(content)) || r.SHA256 != hashBytes([]byte(content)) || s.get("large") != content {
		t.Errorf("got %+v for %d bytes", r, len(content))
	}
}

// TestWriteAtomic: a reader sees one whole content or the other.
func TestWriteAtomic(t *testing.T) {
	s := serve(t, EditOnly)
	a, b := strings.Repeat("a", 300_000), strings.Repeat("b", 300_000)
	s.put("f", a)
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-done:
				return
			default:
			}
			data, err := os.ReadFile(s.path("f"))
			if err != nil || len(data) != len(a) || bytes.Count(data, data[:1]) != len(data) {
				t.Errorf("saw %d bytes, %v", len(data), err)
				return
			}
		}
	})
	for i := range 30 {
		call1[WriteResult](s, "Write", WriteInput{FilePath: "f", Content: []string{b, a}[i%2]})
	}
	close(done)
	wg.Wait()
	s.clean()
}

// TestEdit: F5.
func TestEdit(t *testing.T) {
	s := serve(t, EditOnly)
	pad := strings.Repeat("0123456789abcdef\n", 128<<10/17+1)
	for _, test := range []struct {
		name, before string
		in           EditInput
		want         string
	}{
		{"$& and \\1 are literal", "a.b", EditInput{OldString: "a.b", NewString: `$& $1 \1 ${x}`}, `$& $1 \1 ${x}`},
		{"regex characters are literal", "axb a.b [x]*", EditInput{OldString: "[x]*", NewString: "("}, "axb a.b ("},
		{"shell characters", "x", EditInput{OldString: "x", NewString: "'\"`$(id)\\"}, "'\"`$(id)\\"},
		{"CRLF stays", "a\r\nb\r\nc\r\n", EditInput{OldString: "b", NewString: "B"}, "a\r\nB\r\nc\r\n"},
		{"lines of a CRLF file", "a\r\nb\r\nc\r\n", EditInput{OldString: "a\nb", NewString: "x\ny\nz"}, "x\r\ny\r\nz\r\nc\r\n"},
		{"a new line in a CRLF file", "a\r\nb\r\n", EditInput{OldString: "b", NewString: "b\nc"}, "a\r\nb\r\nc\r\n"},
		{"mixed line ends are literal", "a\r\nb\nc\n", EditInput{OldString: "b\nc", NewString: "x\ny"}, "a\r\nx\ny\n"},
		{"CR on purpose", "a\r\nb\r\n", EditInput{OldString: "a\r\nb", NewString: "a\nb"}, "a\nb\r\n"},
		{"other bytes stay", "\xff\xfe\x00caf\xe9 x \x80", EditInput{OldString: " x ", NewString: " y "}, "\xff\xfe\x00caf\xe9 y \x80"},
		{"no newline at the end", "a\nb", EditInput{OldString: "b", NewString: "c"}, "a\nc"},
		{"deletion", "abc", EditInput{OldString: "b"}, "ac"},
		{"all", "x x x", EditInput{OldString: "x", NewString: "xx", ReplaceAll: true}, "xx xx xx"},
		{"all, where they overlap", "aaaa", EditInput{OldString: "aa", NewString: "b", ReplaceAll: true}, "bb"},
		{"128 KiB", pad + "needle" + pad, EditInput{OldString: "needle", NewString: pad}, pad + pad + pad},
		{"128 KiB of old text", pad + "x", EditInput{OldString: pad, NewString: "y"}, "yx"},
		{"several, one on the other", "one two", EditInput{Edits: []Replacement{{"one", "two", false}, {"two two", "three", false}}}, "three"},
		{"multibyte", "🦊🐻", EditInput{OldString: "🐻", NewString: "世界"}, "🦊世界"},
	} {
		t.Run(test.name, func(t *testing.T) {
			s.t = t
			s.put("f", test.before)
			test.in.FilePath, test.in.IfMatch = "f", hashBytes([]byte(test.before))[:16]
			r := call1[EditResult](s, "Edit", test.in)
			if got := s.get("f"); got != test.want || r.SHA256 != hashBytes([]byte(got)) || r.Size != int64(len(got)) {
				t.Errorf("got %.200q, want %.200q; %+v", got, test.want, r)
			}
		})
	}
	s.t = t
	s.clean()
}

// TestEditRefused: an edit that can't be made changes nothing, and the error says what to do.
func TestEditRefused(t *testing.T) {
	s := serve(t, EditOnly)
	const before = "a\nx\nb x\n\nx\n"
	for _, test := range []struct {
		code, says string
		in         EditInput
	}{
		{CodeNotUnique, "3 times, on the lines 2, 3, 5;", EditInput{OldString: "x", NewString: "y"}},
		{CodeNoMatch, "not in it", EditInput{OldString: "X", NewString: "y"}},
		{CodeNoChange, "the same", EditInput{OldString: "a", NewString: "a"}},
		{CodeBadInput, "empty", EditInput{NewString: "a"}},
		{CodeStale, "Read it again", EditInput{OldString: "a", NewString: "c", IfMatch: strings.Repeat("0", 64)}},
		{CodeBadInput, "not both", EditInput{OldString: "a", Edits: []Replacement{{"a", "b", false}}}},
		{CodeNoMatch, "replacement 2 of 2", EditInput{Edits: []Replacement{{"a", "b", false}, {"none", "b", false}}}},
	} {
		s.put("f", before)
		test.in.FilePath = "f"
		if says := s.fails(test.code, "Edit", test.in); !strings.Contains(says, test.says) || s.get("f") != before {
			t.Errorf("%+v: it says %q and has %q", test.in, says, s.get("f"))
		}
	}
	s.put("f", "aaa")
	s.fails(CodeNotUnique, "Edit", EditInput{FilePath: "f", OldString: "aa", NewString: "b"})
	s.put("f", strings.Repeat("a", 100_000))
	s.fails(CodeTooLarge, "Edit", EditInput{FilePath: "f", ReplaceAll: true, OldString: "a", NewString: strings.Repeat("b", maxEdited/100_000+1)})
	s.fails(CodeNotFound, "Edit", EditInput{FilePath: "none", OldString: "a", NewString: "b"})
	s.clean()
}

// TestEditAtOnce: F10: edits of one file that are made at once are made one after
// the other, also by different names of it.
func TestEditAtOnce(t *testing.T) {
	s := serve(t, EditOnly)
	s.put("f", strings.Repeat("x", 50))
	if err := os.Symlink("f", s.path("link")); err != nil {
		t.Fatal(err)
	}
	var calls []<-chan answer
	for i := range 40 {
		name := []string{"f", "link", filepath.Join(s.dir, ".", "f")}[i%3]
		_, c := s.send("Edit", EditInput{FilePath: name, OldString: strings.Repeat("x", 50), NewString: strings.Repeat("x", 50) + "y"})
		calls = append(calls, c)
	}
	for _, c := range calls {
		if a := <-c; a.Error != nil {
			t.Error(a.Error)
		}
	}
	if got, want := s.get("f"), strings.Repeat("x", 50)+strings.Repeat("y", 40); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestEditBySeveral: F10: changes of one file by two sessions at once are made one after the
// other, or refused. No change that succeeded is lost. If two sessions make the same file, one
// of them succeeds.
func TestEditBySeveral(t *testing.T) {
	s := serve(t, EditOnly)
	other := serveIn(t, EditOnly, s.dir)
	s.put("f", "x")
	made := map[*served]int{}
	var wg sync.WaitGroup
	var mu sync.Mutex
	for _, who := range []*served{s, other} {
		wg.Go(func() {
			for i := range 60 {
				_, err := who.try("Edit", EditInput{FilePath: "f", OldString: "x", NewString: "xy"})
				_, once := who.try("Write", WriteInput{FilePath: "new" + strconv.Itoa(i), Content: "z", IfMatch: "absent"})
				mu.Lock()
				if err == nil {
					made[nil]++
				} else if err.Code != CodeChanged || !err.Retryable() {
					t.Errorf("edit: %v", err)
				}
				if once == nil {
					made[who]++
				} else if once.Code != CodeChanged && once.Code != CodeStale {
					t.Errorf("write: %v", once)
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if got := s.get("f"); made[nil] == 0 || got != "x"+strings.Repeat("y", made[nil]) {
		t.Errorf("%d edits succeeded, and %d are there", made[nil], len(got)-1)
	}
	if made[s]+made[other] != 60 {
		t.Errorf("60 files were made %d times", made[s]+made[other])
	}
	s.clean()
}

// FuzzEdit compares with the standard library's Replace, and looks that nothing
// else has changed.
func FuzzEdit(f *testing.F) {
	f.Add("a\r\nb\r\n", "a\nb", "$&", true)
	f.Add("aaa", "aa", "b", false)
	f.Add("\xff\x00", "\x00", "\xfe", false)
	f.Fuzz(func(t *testing.T, content, old, text string, everywhere bool) {
		got, err := replaceAll([]byte(content), []Replacement{{old, text, everywhere}})
		if err != nil {
			if strings.Count(content, old) == 1 && old != text && old != "" && !onlyCRLF([]byte(content)) && !strings.Contains(content[strings.Index(content, old)+1:], old) {
				t.Fatalf("%q in %q: %v", old, content, err)
			}
			return
		}
		if got.crlf {
			old, text = strings.ReplaceAll(old, "\n", "\r\n"), strings.ReplaceAll(text, "\n", "\r\n")
		}
		if want := strings.ReplaceAll(content, old, text); string(got.content) != want || got.count != strings.Count(content, old) {
			t.Fatalf("%q by %q in %q: got %q, want %q", old, text, content, got.content, want)
		}
	})
}

// TestStandingSession: a session that stands still between its look at a file and its rename
// loses nobody's change. Another session waits for it, and notices that the file has changed.
func TestStandingSession(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	write := func(path, text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(path, "before")
	first, err := os.Open(path)
	if err == nil {
		err = unix.Flock(int(first.Fd()), unix.LOCK_EX)
	}
	if err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		f := &lockedFile{path: path, shown: "f"}
		if f.info, err = os.Lstat(path); err != nil {
			t.Fatal(err)
		}
		write(path+".second", "second")
		put := make(chan error, 1)
		go func() { put <- f.put(path + ".second") }()
		<-time.After(20 * time.Second)
		write(path+".first", "the first one's")
		if err := errors.Join(os.Rename(path+".first", path), first.Close()); err != nil {
			t.Fatal(err)
		}
		if e, ok := errors.AsType[*fail.Error](<-put); !ok || e.Code != CodeChanged {
			t.Errorf("got %v, want %s", e, CodeChanged)
		}
	})
	if text, err := os.ReadFile(path); err != nil || string(text) != "the first one's" {
		t.Errorf("the file has %q, %v", text, err)
	}
}
