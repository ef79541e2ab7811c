// Package unidiff reads the output of git diff. All of it is hostile: it comes from a sprite
// where an agent worked, and the sprite's git may be any program.
package unidiff

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/cove-dev/cove"
)

// Bounds on what is kept of a diff.
const (
	MaxBytes = 2 << 20
	MaxFiles = 1000
	MaxLine  = 2000 // bytes
	MaxLines = 60_000
	maxPath  = 4096 // bytes
)

// Why a diff is not whole.
const (
	CutBytes = "it is longer than 2 MiB"
	CutFiles = "it has more than 1,000 files"
	CutLines = "it has more than 60,000 lines"
	CutOdd   = "a part of it is not a diff"
)

// Parse reads a diff with the prefixes a/ and b/. The files are in the diff's order. cut says why the
// result is not the whole diff; empty: it is whole. If the last file lacks lines, its LeftOut says so.
func Parse(text string) (files []cove.JobDiffFile, cut string) {
	if len(text) > MaxBytes {
		text, cut = text[:MaxBytes], CutBytes
		text = text[:strings.LastIndexByte(text, '\n')+1]
	}
	p := parser{cut: cut}
	for text != "" {
		var line string
		line, text, _ = strings.Cut(text, "\n")
		if !p.line(line) {
			break
		}
	}
	if p.file != nil && p.cut == CutBytes {
		p.file.LeftOut = p.cut
	}
	p.endFile()
	return p.files, p.cut
}

// RiskyFirst puts the files to look at in front; the others stay in their order.
func RiskyFirst(files []cove.JobDiffFile) {
	slices.SortStableFunc(files, func(a, b cove.JobDiffFile) int { return cmp.Compare(Rank(a), Rank(b)) })
}

// Rank is the place of a file in the order of RiskyFirst: the least comes first.
func Rank(f cove.JobDiffFile) int {
	switch {
	case f.Risk != "":
		return 0
	case f.Listed != "":
		return 1
	}
	return 2
}

// parser is the state between two lines.
type parser struct {
	files []cove.JobDiffFile
	cut   string

	file       *cove.JobDiffFile
	from, to   string // as the header of a file says them, with their prefixes; /dev/null: there is none
	hunk       *cove.JobDiffHunk
	oldLeft    int // lines of the hunk to come
	newLeft    int
	old, new   int // the next numbers
	lines      int
	headerName string // from the line "diff --git", if both sides have the same name
}

func (p *parser) stop(why string) bool {
	p.cut = cmp.Or(p.cut, why)
	if p.file != nil {
		p.file.LeftOut = p.cut
	}
	return false
}

// line parses a line, and reports whether the parser wants more.
func (p *parser) line(line string) bool {
	switch {
	case p.hunk != nil && (p.oldLeft > 0 || p.newLeft > 0):
		return p.content(line)
	case p.hunk != nil && strings.HasPrefix(line, `\ `):
		if n := len(p.hunk.Lines); n > 0 {
			p.hunk.Lines[n-1].NoNL = true
		}
		return true
	case strings.HasPrefix(line, "diff --git "):
		p.endFile()
		if len(p.files) == MaxFiles {
			return p.stop(CutFiles)
		}
		p.file = &cove.JobDiffFile{Status: cove.DiffModified, Hunks: []cove.JobDiffHunk{}}
		p.from, p.to, p.headerName = "", "", sameName(strings.TrimPrefix(line, "diff --git "))
		return true
	case p.file == nil:
		if line != "" {
			p.cut = cmp.Or(p.cut, CutOdd)
		}
		return true
	case strings.HasPrefix(line, "@@ "):
		return p.begin(line)
	}
	p.header(line)
	return true
}

// header parses a line before the first hunk of a file.
func (p *parser) header(line string) {
	for _, h := range []struct {
		prefix string
		take   func(string)
	}{
		{"old mode ", func(s string) { p.file.OldMode = mode(s) }},
		{"new mode ", func(s string) { p.file.NewMode = mode(s) }},
		{"new file mode ", func(s string) { p.file.NewMode, p.file.Status = mode(s), cove.DiffAdded }},
		{"deleted file mode ", func(s string) { p.file.OldMode, p.file.Status = mode(s), cove.DiffDeleted }},
		{"rename from ", func(s string) { p.file.OldPath, p.file.Status = name(s), cove.DiffRenamed }},
		{"rename to ", func(s string) { p.file.Path = name(s) }},
		{"copy from ", func(s string) { p.file.OldPath, p.file.Status = name(s), cove.DiffCopied }},
		{"copy to ", func(s string) { p.file.Path = name(s) }},
		{"--- ", func(s string) { p.from = name(s) }},
		{"+++ ", func(s string) { p.to = name(s) }},
		{"Binary files ", func(string) { p.file.Binary = true }},
		{"GIT binary patch", func(string) { p.file.Binary = true }},
	} {
		if rest, ok := strings.CutPrefix(line, h.prefix); ok {
			h.take(rest)
			return
		}
	}
}

// begin parses the head of a hunk: @@ -1,2 +3,4 @@ section.
func (p *parser) begin(line string) bool {
	p.endHunk()
	ranges, section, ok := strings.Cut(strings.TrimPrefix(line, "@@ "), " @@")
	from, to, two := strings.Cut(ranges, " ")
	oldStart, oldLen, good := span(from, "-")
	newStart, newLen, also := span(to, "+")
	if !ok || !two || !good || !also {
		return p.stop(CutOdd)
	}
	p.old, p.new, p.oldLeft, p.newLeft = oldStart, newStart, oldLen, newLen
	p.hunk = &cove.JobDiffHunk{OldStart: oldStart, NewStart: newStart, Section: clip(strings.TrimSpace(section)), Lines: []cove.JobDiffLine{}}
	return true
}

// maxNumber bounds the number of a line.
const maxNumber = 1 << 30

// span reads -1,2; without a length it is 1.
func span(s, sign string) (start, length int, ok bool) {
	s, ok = strings.CutPrefix(s, sign)
	first, second, both := strings.Cut(s, ",")
	start, err := strconv.Atoi(first)
	length = 1
	if both && err == nil {
		length, err = strconv.Atoi(second)
	}
	return start, length, ok && err == nil && start >= 0 && length >= 0 && start < maxNumber && length < maxNumber
}

// content parses a line of a hunk.
func (p *parser) content(line string) bool {
	if strings.HasPrefix(line, `\ `) {
		if n := len(p.hunk.Lines); n > 0 {
			p.hunk.Lines[n-1].NoNL = true
		}
		return true
	}
	if p.lines++; p.lines > MaxLines {
		return p.stop(CutLines)
	}
	kind, text := " ", line
	if line != "" { // of an empty line of context, some programs leave out the blank
		kind, text = line[:1], line[1:]
	}
	l := cove.JobDiffLine{Kind: kind, Text: text}
	if len(l.Text) > MaxLine {
		l.Text, l.Cut = l.Text[:MaxLine], true
	}
	l.Text = cutRune(strings.ToValidUTF8(l.Text, "\uFFFD"), l.Cut)
	switch {
	case kind == " " && p.oldLeft > 0 && p.newLeft > 0:
		l.Old, l.New = p.old, p.new
		p.old, p.new, p.oldLeft, p.newLeft = p.old+1, p.new+1, p.oldLeft-1, p.newLeft-1
	case kind == "-" && p.oldLeft > 0:
		l.Old = p.old
		p.old, p.oldLeft, p.file.Deleted = p.old+1, p.oldLeft-1, p.file.Deleted+1
	case kind == "+" && p.newLeft > 0:
		l.New = p.new
		p.new, p.newLeft, p.file.Added = p.new+1, p.newLeft-1, p.file.Added+1
	default:
		return p.stop(CutOdd)
	}
	p.hunk.Lines = append(p.hunk.Lines, l)
	return true
}

// cutRune shortens a text that has grown, and removes the rest of a character that was cut.
func cutRune(s string, wasCut bool) string {
	if wasCut {
		s = strings.TrimSuffix(s, "\uFFFD")
	}
	n := min(len(s), MaxLine)
	for n > 0 && n < len(s) && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}

func (p *parser) endHunk() {
	if p.hunk != nil && p.file != nil {
		p.file.Hunks = append(p.file.Hunks, *p.hunk)
		if p.oldLeft > 0 || p.newLeft > 0 {
			p.cut = cmp.Or(p.cut, CutOdd)
			p.file.LeftOut = p.cut
		}
	}
	p.hunk, p.oldLeft, p.newLeft = nil, 0, 0
}

func (p *parser) endFile() {
	p.endHunk()
	f := p.file
	p.file = nil
	if f == nil {
		return
	}
	if f.Path == "" {
		f.Path = cmp.Or(side(p.to, "b/"), side(p.from, "a/"), p.headerName)
	}
	if f.Path == "" {
		p.cut = cmp.Or(p.cut, CutOdd)
		return
	}
	p.files = append(p.files, *f)
}

// side is a path without the prefix of its side; empty: there is none.
func side(s, prefix string) string {
	if s == "/dev/null" {
		return ""
	}
	rest, ok := strings.CutPrefix(s, prefix)
	if !ok {
		return ""
	}
	return rest
}

// sameName is the name in "a/NAME b/NAME", which git writes if the name has not changed.
func sameName(s string) string {
	if strings.HasPrefix(s, `"`) {
		first, rest := quoted(s)
		second, _ := quoted(strings.TrimPrefix(rest, " "))
		if a := side(first, "a/"); a != "" && a == side(second, "b/") {
			return clipPath(a)
		}
		return ""
	}
	if len(s)%2 == 0 {
		return ""
	}
	half := len(s) / 2
	a, b := side(s[:half], "a/"), side(s[half+1:], "b/")
	if s[half] != ' ' || a != b {
		return ""
	}
	return clipPath(a)
}

// name is a path as a header has it: plain up to a tab, or quoted as C does.
func name(s string) string {
	if strings.HasPrefix(s, `"`) {
		s, _ = quoted(s)
	} else {
		s, _, _ = strings.Cut(s, "\t")
	}
	return clipPath(s)
}

// quoted reads a text in quotation marks. rest is the part of s after it.
func quoted(s string) (text, rest string) {
	if !strings.HasPrefix(s, `"`) {
		return "", s
	}
	var b strings.Builder
	for i := 1; i < len(s); i++ {
		switch {
		case s[i] == '"':
			return b.String(), s[i+1:]
		case s[i] != '\\' || i+1 == len(s):
			b.WriteByte(s[i])
		default:
			i++
			if at := strings.IndexByte("abtnvfr", s[i]); at >= 0 {
				b.WriteByte("\a\b\t\n\v\f\r"[at])
				continue
			}
			if i+2 < len(s) {
				if n, err := strconv.ParseUint(s[i:i+3], 8, 8); err == nil {
					b.WriteByte(byte(n))
					i += 2
					continue
				}
			}
			b.WriteByte(s[i])
		}
	}
	return b.String(), ""
}

// Path is a path as a diff's files have it: within bounds, and UTF-8.
func Path(s string) string { return clipPath(s) }

func clipPath(s string) string { return strings.ToValidUTF8(s[:min(len(s), maxPath)], "\uFFFD") }

func clip(s string) string { return strings.ToValidUTF8(s[:min(len(s), 200)], "\uFFFD") }

// Mode is a mode of git's; empty: it is none, or that of no file.
func Mode(s string) string {
	if s == "000000" {
		return ""
	}
	return mode(s)
}

func mode(s string) string {
	if len(s) != 6 || strings.Trim(s, "01234567") != "" {
		return ""
	}
	return s
}
