package tools

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"unicode/utf8"

	"github.com/cove-dev/cove/internal/test/need"
)

// TestRead: F1, F2: Read reports ranges, size and hash, and says if the file has more lines.
func TestRead(t *testing.T) {
	s := serve(t, ReadOnly)
	s.put("a.txt", "one\ntwo\nthree", "crlf", "a\r\nb\r\n", "mixed", "a\r\nb\n", "empty", "", "latin", "caf\xe9\n", "nul", "a\x00b", "newline", "\n")
	r := call1[ReadResult](s, "Read", ReadInput{FilePath: "a.txt"})
	if r.Content != "one\ntwo\nthree" || r.Lines != 3 || r.Total != 3 || r.First != 1 || r.Size != 13 || r.SHA256 != hashBytes([]byte("one\ntwo\nthree")) || r.Mode != "0644" {
		t.Errorf("got %+v", r)
	}
	r = call1[ReadResult](s, "Read", ReadInput{FilePath: s.path("a.txt"), Offset: 2, Limit: 1})
	if r.Content != "two" || r.First != 2 || !r.More || r.Total != 3 || r.SHA256 == "" {
		t.Errorf("one line: got %+v", r)
	}
	if r = call1[ReadResult](s, "Read", ReadInput{FilePath: "a.txt", Offset: 9}); r.Lines != 0 || r.Total != 3 || r.More {
		t.Errorf("behind the end: got %+v", r)
	}
	for name, want := range map[string]ReadResult{
		"crlf":    {Content: "a\nb", CRLF: true, Lines: 2},
		"mixed":   {Content: "a\nb", Lines: 2},
		"empty":   {},
		"newline": {Lines: 1},
		"latin":   {Content: "caf\uFFFD", Invalid: true, Lines: 1},
		"nul":     {Binary: true},
	} {
		r := call1[ReadResult](s, "Read", ReadInput{FilePath: name})
		if r.Content != want.Content || r.CRLF != want.CRLF || r.Invalid != want.Invalid || r.Binary != want.Binary || r.Lines != want.Lines || r.SHA256 == "" {
			t.Errorf("%s: got %+v, want %+v", name, r, want)
		}
	}
	text, err := s.try("Read", ReadInput{FilePath: "a.txt", Limit: 2})
	if want := "     1\tone\n     2\ttwo\n[a.txt: lines 1 to 2 of 3, 13 bytes, sha256 " + hashBytes([]byte("one\ntwo\nthree"))[:16] + "; go on with offset 3]"; err != nil || text.Text() != want {
		t.Errorf("got %q, want %q", text.Text(), want)
	}
	s.fails(CodeBadInput, "Read", ReadInput{FilePath: "a.txt", Offset: -1})
	s.fails(CodeBadInput, "Read", ReadInput{FilePath: "a\x00"})
}

// TestReadNoFile: each path that is not a file is an error of its own kind, and nothing hangs.
func TestReadNoFile(t *testing.T) {
	s := serve(t, Full)
	s.put("a", "x")
	if err := syscall.Mkfifo(s.path("pipe"), 0o644); err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("unix", s.path("sock"))
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	for name, target := range map[string]string{"loop": "loop", "dangling": "nowhere", "topipe": "pipe"} {
		if err := os.Symlink(target, s.path(name)); err != nil {
			t.Fatal(err)
		}
	}
	for name, code := range map[string]string{
		"missing": CodeNotFound, ".": CodeIsDirectory, "pipe": CodeNotRegular, "topipe": CodeNotRegular, "sock": CodeNotRegular, "/dev/zero": CodeNotRegular,
		"a/b": CodeNotDirectory, "loop": CodeBadInput, "dangling": CodeNotFound, strings.Repeat("n", 300): CodeBadInput,
	} {
		s.fails(code, "Read", ReadInput{FilePath: name})
		if name != "dangling" && name != "missing" {
			s.fails(code, "Write", WriteInput{FilePath: name, Content: "y"})
		}
		s.fails(code, "Edit", EditInput{FilePath: name, OldString: "x", NewString: "y"})
	}
	for _, name := range []string{"pipe", "topipe"} {
		s.fails(CodeNotRegular, "Grep", GrepInput{Pattern: "x", Path: name})
	}
	if r := call1[GrepResult](s, "Grep", GrepInput{Pattern: "x"}); len(r.Files) != 1 {
		t.Errorf("a search among pipes and sockets: got %+v", r)
	}
}

// TestReadLarge: long lines are cut between characters, much content comes in
// parts, and a file over the bound has no hash.
func TestReadLarge(t *testing.T) {
	s := serve(t, EditOnly)
	for pad := range 4 {
		s.put("long", strings.Repeat("x", pad)+strings.Repeat("🦊", 5000)+"\nend\n")
		r := call1[ReadResult](s, "Read", ReadInput{FilePath: "long"})
		first, rest, _ := strings.Cut(r.Content, "\n")
		if len(first) > maxLine || len(first) < maxLine-4 || !utf8.ValidString(first) || r.Invalid || r.Cut != 1 || rest != "end" {
			t.Errorf("pad %d: a line of %d bytes, %+v", pad, len(first), r.Cut)
		}
	}
	s.put("exact", strings.Repeat("x", maxLine)+"\n"+strings.Repeat("y", maxLine)+"\r\n"+strings.Repeat("z", maxLine+1)+"\n")
	if r := call1[ReadResult](s, "Read", ReadInput{FilePath: "exact"}); r.Cut != 1 || r.Lines != 3 || len(r.Content) != 3*maxLine+2 {
		t.Errorf("lines at the bound: %d cut, %d bytes", r.Cut, len(r.Content))
	}
	var b strings.Builder
	for i := range 30_000 {
		fmt.Fprintf(&b, "line %d of a file with more than an answer holds\n", i+1)
	}
	s.put("many", b.String())
	var got strings.Builder
	for offset := 1; ; {
		r := call1[ReadResult](s, "Read", ReadInput{FilePath: "many", Offset: offset, Limit: 1 << 20})
		if r.First != offset || len(r.Content) > maxContent || r.Total != 30_000 {
			t.Fatalf("got lines from %d, %d bytes, of %d", r.First, len(r.Content), r.Total)
		}
		got.WriteString(r.Content + "\n")
		if offset += r.Lines; !r.More {
			break
		}
	}
	if got.String() != b.String() {
		t.Error("the parts are not the whole")
	}
	huge, err := os.Create(filepath.Join(s.dir, "huge"))
	if err == nil {
		_, err = huge.WriteString("first\nsecond\n")
	}
	if err == nil {
		err = huge.Truncate(10 << 30)
	}
	if err != nil {
		need.Missing(t, "no file of 10 GB with a hole can be made: "+err.Error(), "set TMPDIR to a folder on another file system")
	}
	_ = huge.Close()
	if r := call1[ReadResult](s, "Read", ReadInput{FilePath: "huge", Limit: 1}); !r.Binary || r.Size != 10<<30 || r.SHA256 != "" {
		t.Errorf("got %+v", r)
	}
	s.fails(CodeTooLarge, "Edit", EditInput{FilePath: "huge", OldString: "first", NewString: "1st"})
	s.put("log", strings.Repeat("0123456789abcde\n", maxHashed/16+1))
	if r := call1[ReadResult](s, "Read", ReadInput{FilePath: "log", Offset: 1000, Limit: 1}); r.Content != "0123456789abcde" || !r.More || r.SHA256 != "" || r.Total != 0 {
		t.Errorf("got %+v", r)
	}
}
