package tools

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash"
	"io"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

const readDescription = `Read a text file, or a range of its lines. The answer has the lines with their numbers, and the file's size and sha256. ` +
	`Lines longer than 2000 bytes are cut, and at most 2000 lines (or what limit says) or 256 KiB come at once; the answer says so, and where to go on. ` +
	`An image (PNG, JPEG or WebP, by its content) is shown whole, as an image, up to 3.75 MiB and 8000 pixels a side. ` +
	`Other binary files are named as such, without their content.`

const (
	defaultLines = 2000
	maxLine      = 2000      // bytes of one line that are returned
	maxContent   = 256 << 10 // bytes that are returned in all
	maxHashed    = 64 << 20  // bytes of a file that is read to its end for its hash
)

// ReadInput is the input of Read.
type ReadInput struct {
	FilePath string `json:"file_path" jsonschema:"The file. A relative path is below the working directory."`
	Offset   int    `json:"offset,omitempty" jsonschema:"The first line to read, counted from 1."`
	Limit    int    `json:"limit,omitempty" jsonschema:"How many lines to read. Default 2000."`
}

// ReadResult is the answer of Read.
type ReadResult struct {
	Path     string    `json:"path"`
	Size     int64     `json:"size"`
	Modified time.Time `json:"modified"`
	Mode     string    `json:"mode"`
	SHA256   string    `json:"sha256,omitempty"`       // of the whole file; empty: it is larger than 64 MiB
	Binary   bool      `json:"binary,omitempty"`       // there is no content
	Invalid  bool      `json:"invalid_utf8,omitempty"` // bytes of the content that are no UTF-8 were replaced by U+FFFD
	CRLF     bool      `json:"crlf,omitempty"`         // every line ends in CR LF; the content has LF
	First    int       `json:"first,omitempty"`        // the number of the content's first line
	Lines    int       `json:"lines"`                  // how many the content has
	Total    int       `json:"total_lines,omitempty"`  // how many the file has; 0: unknown, or none
	Cut      int       `json:"cut_lines,omitempty"`    // how many lines were too long, and are cut
	More     bool      `json:"more,omitempty"`         // there are lines behind those of the content
	Content  string    `json:"content"`
	Image    *Image    `json:"image,omitempty"` // the file is one; there is no content
}

func (w *workspace) read(ctx context.Context, in ReadInput, _ func(Progress)) (*ReadResult, error) {
	if in.Offset < 0 || in.Limit < 0 {
		return nil, errorf(CodeBadInput, "offset and limit can't be negative")
	}
	path, err := w.path(in.FilePath)
	if err != nil {
		return nil, err
	}
	shown := w.shown(path)
	file, info, err := openRegular(path, shown)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	r := &ReadResult{Path: shown, Size: info.Size(), Modified: info.ModTime().UTC(), Mode: fmt.Sprintf("%04o", info.Mode().Perm())}
	l := &lineReader{result: r, from: max(in.Offset, 1), limit: in.Limit, whole: info.Size() <= maxHashed}
	if l.limit == 0 {
		l.limit = defaultLines
	}
	from, mime, err := l.begin(file)
	switch {
	case err != nil:
	case mime != "":
		if r.Image, err = w.readImage(shown, mime, r.Size, from); err == nil {
			r.SHA256 = hashBytes(r.Image.Data)
		}
	default:
		err = l.read(ctx, from)
	}
	if err != nil {
		return nil, coded(shown, err)
	}
	return r, nil
}

// A lineReader takes a range of lines out of a file.
type lineReader struct {
	result *ReadResult
	from   int
	limit  int
	whole  bool // the file is read to its end

	head    []byte    // the file's first bytes, until more are read
	sum     hash.Hash // of what was read, if whole
	content strings.Builder
	number  int  // of the line that is being read
	unix    bool // a line ended without CR
	dos     bool // one ended with it
	full    bool // no more is taken
}

// begin looks at the first bytes of a file. mime is the image's type, if it is one; in reads all
// of the file.
func (l *lineReader) begin(file io.Reader) (in *bufio.Reader, mime string, err error) {
	in = bufio.NewReaderSize(file, 64<<10)
	if l.whole {
		l.sum = sha256.New()
		in.Reset(io.TeeReader(file, l.sum))
	}
	if l.head, err = in.Peek(sniff); err != nil && err != io.EOF {
		return nil, "", err
	}
	return in, imageType(l.head), nil
}

// read reads the file from begin's reader.
func (l *lineReader) read(ctx context.Context, in *bufio.Reader) error {
	if l.result.Binary = isBinary(l.head); l.result.Binary {
		if l.whole {
			if _, err := io.Copy(io.Discard, in); err != nil {
				return err
			}
			l.result.SHA256 = hex.EncodeToString(l.sum.Sum(nil))
		}
		return nil
	}
	ended, err := l.lines(ctx, in)
	if err != nil {
		return err
	}
	l.result.Content = l.content.String()
	l.result.CRLF = l.dos && !l.unix
	if ended {
		l.result.Total = l.number
		if l.whole {
			l.result.SHA256 = hex.EncodeToString(l.sum.Sum(nil))
		}
	}
	return nil
}

// lines reads the lines, and reports whether it has reached the end of the file.
func (l *lineReader) lines(ctx context.Context, r *bufio.Reader) (ended bool, err error) {
	var line []byte
	for begun := false; ; {
		piece, err := r.ReadSlice('\n')
		if len(piece) > 0 && !begun {
			l.number++
			begun, line = true, line[:0]
			if l.number%4096 == 0 && ctx.Err() != nil {
				return false, ctx.Err()
			}
		}
		if !l.full && l.number >= l.from && len(line) <= maxLine+2 {
			line = append(line, piece[:min(len(piece), maxLine+3-len(line))]...)
		}
		switch err {
		case bufio.ErrBufferFull:
			continue
		case nil:
			l.end(line, len(piece) > 1 && piece[len(piece)-2] == '\r', true)
			begun = false
		case io.EOF:
			if begun {
				l.end(line, false, false)
			}
			return true, nil
		default:
			return false, err
		}
		if l.result.More && !l.whole {
			return false, nil
		}
	}
}

// end takes a line, if it is in the range.
func (l *lineReader) end(line []byte, cr, newline bool) {
	if newline {
		l.dos, l.unix = l.dos || cr, l.unix || !cr
	}
	if l.number < l.from {
		return
	}
	text := line
	if len(line) <= maxLine+2 {
		text = trimEnd(line)
	}
	short := cut(text, maxLine)
	if l.full || l.result.Lines == l.limit || l.content.Len()+len(short) > maxContent {
		l.full, l.result.More = true, true
		return
	}
	if len(short) < len(text) {
		l.result.Cut++
	}
	if l.result.Lines == 0 {
		l.result.First = l.number
	} else {
		l.content.WriteByte('\n')
	}
	l.result.Lines++
	if !utf8.Valid(short) {
		l.result.Invalid = true
	}
	l.content.WriteString(valid(short))
}

// trimEnd takes LF or CR LF off a line.
func trimEnd(line []byte) []byte {
	if n := len(line); n > 0 && line[n-1] == '\n' {
		if line = line[:n-1]; n > 1 && line[n-2] == '\r' {
			line = line[:n-2]
		}
	}
	return line
}

func (r *ReadResult) text() string {
	var b strings.Builder
	if i := r.Image; i != nil {
		fmt.Fprintf(&b, "[%s is an image: %s, %d × %d pixels, %d bytes%s]", r.Path, i.MIME, i.Width, i.Height, len(i.Data), shortHash(r.SHA256))
		return b.String()
	}
	if r.Binary {
		fmt.Fprintf(&b, "[%s is binary: %d bytes%s]", r.Path, r.Size, shortHash(r.SHA256))
		return b.String()
	}
	if r.Lines > 0 {
		b.Grow(len(r.Content) + 8*strings.Count(r.Content, "\n") + 500) // r.Lines is the sprite's word
		number := r.First
		for line := range strings.SplitSeq(r.Content, "\n") {
			text := strconv.Itoa(number)
			b.WriteString("      "[min(len(text), 6):])
			b.WriteString(text + "\t")
			b.WriteString(line + "\n")
			number++
		}
	}
	b.WriteString("[" + r.Path)
	switch last := r.First + r.Lines - 1; {
	case r.Lines == 0 && r.Total == 0:
		b.WriteString(" is empty")
	case r.Lines == 0:
		b.WriteString(": " + counted(r.Total, "line, not", "lines, none of them") + " asked for")
	case r.Total > 0:
		fmt.Fprintf(&b, ": lines %d to %d of %d", r.First, last, r.Total)
	default:
		fmt.Fprintf(&b, ": lines %d to %d", r.First, last)
	}
	b.WriteString(", " + counted(int(r.Size), "byte", "bytes") + shortHash(r.SHA256))
	if r.CRLF {
		b.WriteString(", lines end in CR LF")
	}
	if r.Invalid {
		b.WriteString(", some bytes are not UTF-8 and shown as \uFFFD")
	}
	if r.Cut > 0 {
		fmt.Fprintf(&b, ", cut off after %d bytes: %s", maxLine, counted(r.Cut, "line", "lines"))
	}
	if r.More {
		fmt.Fprintf(&b, "; go on with offset %d", r.First+r.Lines)
	}
	b.WriteString("]")
	return b.String()
}

// picture is the image that a model is shown.
func (r *ReadResult) picture() *Image { return r.Image }

func shortHash(hash string) string {
	if hash == "" {
		return ""
	}
	return ", sha256 " + hash[:min(len(hash), 16)]
}
