package job

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/cove-dev/cove/internal/server/unidiff"
)

// Bounds on the lines of a review. All files together keep at most unidiff.MaxBytes and
// unidiff.MaxLines.
const (
	maxFileText  = 512 << 10 // bytes of the diff of a file; a longer one is left out as a whole
	maxFileLines = 20_000    // lines of it
	maxReadText  = 32 << 20  // bytes that are read of the diffs of all files
	maxDiffHead  = 20 << 10  // a file's diff must say its name within these bytes
)

// texts asks for the lines of files, and keeps the diff of each that is short enough, as long as there is room for it.
// A diff that is too long takes no room from the others.
func (l *listener) texts(what *told, asked []*namedFile) error {
	var names strings.Builder
	for _, f := range asked {
		names.WriteString(octal(f.path) + "\n")
	}
	go func() { _, _ = io.WriteString(l.in, names.String()+"\n") }() // until the caller closes it
	t := texts{hold: l.hold, long: map[string]bool{}}
	read := 0
	for {
		part, err := l.out.ReadSlice('\n')
		if read += len(part); read > maxReadText {
			t.cut = true
			break
		}
		if full := t.add(part); full != nil {
			return full
		}
		if errors.Is(err, io.EOF) {
			l.ended = true
			break
		}
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			l.ended = true
			return err
		}
	}
	if l.ended {
		t.end()
	} else {
		t.drop()
	}
	what.diff, what.cut, what.long, what.unread = string(t.kept), t.cut, t.long, !l.ended
	return nil
}

// octal is a path as the shell's printf reads it by %b, on one line.
func octal(path string) string {
	var b strings.Builder
	for i := range len(path) {
		c := path[i]
		if c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.IndexByte("/._-", c) >= 0 {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, `\0%03o`, c)
		}
	}
	return b.String()
}

// texts takes in a diff, file by file.
type texts struct {
	hold  *share
	kept  []byte
	lines int             // of kept
	long  map[string]bool // paths of files whose diff is too long
	cut   bool            // a file is left out that is not too long by itself

	file      []byte // the diff of the file that comes
	fileLines int
	dropped   bool // the rest of that file is left out
	inLine    bool // the last part ended within a line
}

var diffHead = []byte("diff --git ")

// add takes in a line, or a part of a long one. It is errNoRoom if the share has no room for it.
func (t *texts) add(part []byte) error {
	if !t.inLine && bytes.HasPrefix(part, diffHead) {
		t.end()
	}
	if len(part) == 0 {
		return nil
	}
	if t.inLine = part[len(part)-1] != '\n'; !t.inLine {
		t.fileLines++
	}
	if t.dropped {
		return nil
	}
	if len(t.file)+len(part) > maxFileText || t.fileLines > maxFileLines {
		t.long[headPath(t.file)] = true
		t.drop()
		t.dropped = true
		return nil
	}
	if err := t.hold.add(diffWeight * int64(len(part))); err != nil {
		return err
	}
	t.file = append(t.file, part...)
	return nil
}

// end ends a file.
func (t *texts) end() {
	if len(t.kept)+len(t.file) > unidiff.MaxBytes || t.lines+t.fileLines > unidiff.MaxLines {
		t.cut = t.cut || !t.dropped
		t.drop()
	} else if !t.dropped {
		t.kept, t.lines = append(t.kept, t.file...), t.lines+t.fileLines
	}
	t.file, t.fileLines, t.dropped = t.file[:0], 0, false
}

// drop forgets the text so far of the present file.
func (t *texts) drop() {
	t.hold.giveBack(diffWeight * int64(len(t.file)))
	t.file = t.file[:0]
}

// headPath is the path in the head of a file's diff; empty: it says none.
func headPath(text []byte) string {
	text = text[:min(len(text), maxDiffHead)]
	if at := bytes.Index(text, []byte("\n@@ ")); at >= 0 {
		text = text[:at+1]
	}
	files, _ := unidiff.Parse(string(text))
	if len(files) == 0 {
		return ""
	}
	return files[0].Path
}
