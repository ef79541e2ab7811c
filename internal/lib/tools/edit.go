package tools

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/cove-dev/cove/internal/lib/fail"
)

const editDescription = `Replace text in a file. old_string is taken literally, every character of it, and must be in the file exactly once, unless replace_all is set; ` +
	`surround it with enough context to make it so. Several replacements in edits are made one after the other, all of them or none. ` +
	`Every other byte of the file stays as it is. Where all lines of a file end in CR LF, a line end in old_string and new_string means that.`

// maxEdited bounds a file that is edited.
const maxEdited = 64 << 20

// Replacement is one of Edit's.
type Replacement struct {
	OldString  string `json:"old_string" jsonschema:"The text to replace, literally."`
	NewString  string `json:"new_string" jsonschema:"The text to put there, literally."`
	ReplaceAll bool   `json:"replace_all,omitempty" jsonschema:"Replace it wherever it is."`
}

// EditInput is the input of Edit: one replacement, or several in Edits.
type EditInput struct {
	FilePath   string        `json:"file_path" jsonschema:"The file. A relative path is below the working directory."`
	OldString  string        `json:"old_string,omitempty" jsonschema:"The text to replace, literally."`
	NewString  string        `json:"new_string,omitempty" jsonschema:"The text to put there, literally."`
	ReplaceAll bool          `json:"replace_all,omitempty" jsonschema:"Replace it wherever it is."`
	Edits      []Replacement `json:"edits,omitempty" jsonschema:"Several replacements, instead of old_string and new_string."`
	IfMatch    string        `json:"if_match,omitempty" jsonschema:"Only if the file's sha256 begins with this (at least 12 digits, as Read says it)."`
}

// EditResult is the answer of Edit.
type EditResult struct {
	Path     string `json:"path"`
	Replaced int    `json:"replaced"`
	Lines    []int  `json:"lines"` // where the new texts begin; twenty at most
	Size     int64  `json:"size"`
	SHA256   string `json:"sha256"`
	CRLF     bool   `json:"crlf,omitempty"` // line ends were taken for CR LF
}

func (w *workspace) edit(_ context.Context, in EditInput, _ func(Progress)) (*EditResult, error) {
	list := in.Edits
	if len(list) == 0 {
		list = []Replacement{{in.OldString, in.NewString, in.ReplaceAll}}
	} else if in.OldString != "" || in.NewString != "" || in.ReplaceAll {
		return nil, errorf(CodeBadInput, "either edits or old_string and new_string, not both")
	}
	path, err := w.path(in.FilePath)
	if err != nil {
		return nil, err
	}
	shown := w.shown(path)
	f, err := w.lockFile(path, shown)
	if err != nil {
		return nil, err
	}
	defer f.release()
	if f.info == nil {
		return nil, errorf(CodeNotFound, "%s: no such file; Write makes one", shown)
	}
	content, err := f.content()
	if err != nil {
		return nil, err
	}
	if in.IfMatch == absent {
		return nil, errorf(CodeBadInput, "if_match of an Edit is a sha256")
	}
	if err := checkMatch(shown, in.IfMatch, hashBytes(content)); err != nil {
		return nil, err
	}
	done, err := replaceAll(content, list)
	if err != nil {
		e := coded("", err)
		e.Message = shown + ": " + e.Message
		return nil, e
	}
	if err := f.replace(done.content); err != nil {
		return nil, coded(shown, err)
	}
	return &EditResult{
		Path: shown, Replaced: done.count, Lines: done.lines, CRLF: done.crlf,
		Size: int64(len(done.content)), SHA256: hashBytes(done.content),
	}, nil
}

func (f *lockedFile) content() ([]byte, error) {
	file, info, err := openRegular(f.path, f.shown)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	f.info = info
	content, err := io.ReadAll(io.LimitReader(file, maxEdited+1))
	if err != nil {
		return nil, coded(f.shown, err)
	}
	if len(content) > maxEdited {
		return nil, errorf(CodeTooLarge, "%s has more than %d MiB, which is too much for Edit", f.shown, maxEdited>>20)
	}
	return content, nil
}

// edited is a content after its replacements.
type edited struct {
	content []byte
	count   int
	lines   []int
	crlf    bool
}

// maxListed is how many lines are named.
const maxListed = 20

// replaceAll makes replacements one after the other. Its errors are *fail.Error, about
// the file.
func replaceAll(content []byte, list []Replacement) (edited, error) {
	e := edited{content: content, crlf: onlyCRLF(content)}
	used := false
	for i, r := range list {
		old, text := r.OldString, r.NewString
		if e.crlf && !strings.Contains(old+text, "\r") && strings.Contains(old+text, "\n") {
			old, text = strings.ReplaceAll(old, "\n", "\r\n"), strings.ReplaceAll(text, "\n", "\r\n")
			used = true
		}
		if err := e.replace([]byte(old), []byte(text), r.ReplaceAll); err != nil {
			if len(list) > 1 {
				err.Message = fmt.Sprintf("replacement %d of %d: %s", i+1, len(list), err.Message)
			}
			return edited{}, err
		}
	}
	e.crlf = used
	slices.Sort(e.lines)
	e.lines = slices.Compact(e.lines)
	e.lines = e.lines[:min(len(e.lines), maxListed)]
	return e, nil
}

// onlyCRLF reports whether there are line ends, and all are CR LF.
func onlyCRLF(content []byte) bool {
	n := bytes.Count(content, []byte("\r\n"))
	return n > 0 && n == bytes.Count(content, []byte("\n"))
}

func (e *edited) replace(old, text []byte, everywhere bool) *fail.Error {
	if len(old) == 0 {
		return errorf(CodeBadInput, "old_string is empty; Write replaces a whole file")
	}
	if bytes.Equal(old, text) {
		return errorf(CodeNoChange, "old_string and new_string are the same")
	}
	count, places := occurrences(e.content, old, !everywhere)
	switch {
	case count == 0:
		return errorf(CodeNoMatch, "old_string is not in it; Read it, and take the text from there, without the line numbers")
	case count > 1 && !everywhere:
		return errorf(CodeNotUnique, "old_string is in it %d times, on the lines %s; add context to it, or set replace_all",
			count, listLines(linesOf(e.content, places), count))
	}
	if len(e.content)+count*(len(text)-len(old)) > maxEdited {
		return errorf(CodeTooLarge, "it would have more than %d MiB", maxEdited>>20)
	}
	e.content = bytes.ReplaceAll(e.content, old, text)
	for i := range places {
		places[i] += i * (len(text) - len(old))
	}
	e.count += count
	e.lines = append(e.lines, linesOf(e.content, places)...)
	return nil
}

// maxCounted bounds the count of places that overlap.
const maxCounted = 10_000

// occurrences counts the places of old in content, and returns the first maxListed. With
// overlapping, for an old that must be unique, it also counts places that overlap, up to
// maxCounted. Without it, for the replacement of all, it skips these.
func occurrences(content, old []byte, overlapping bool) (count int, places []int) {
	step := len(old)
	if overlapping {
		step = 1
	}
	for from := 0; from <= len(content) && (!overlapping || count < maxCounted); count++ {
		i := bytes.Index(content[from:], old)
		if i < 0 {
			break
		}
		if len(places) < maxListed {
			places = append(places, from+i)
		}
		from += i + step
	}
	return count, places
}

// linesOf are the numbers of the lines that places, in order, are on.
func linesOf(content []byte, places []int) []int {
	lines := make([]int, len(places))
	line, from := 1, 0
	for i, at := range places {
		line += bytes.Count(content[from:at], []byte("\n"))
		lines[i], from = line, at
	}
	return lines
}

// listLines names lines, of count places in all.
func listLines(lines []int, count int) string {
	more := ""
	if count > len(lines) {
		more = " …"
	}
	lines = slices.Compact(lines)
	texts := make([]string, len(lines))
	for i, n := range lines {
		texts[i] = strconv.Itoa(n)
	}
	return strings.Join(texts, ", ") + more
}

func (r *EditResult) text() string {
	places := "1 place, line"
	if r.Replaced != 1 {
		places = fmt.Sprintf("%d places, lines", r.Replaced)
	}
	more := ""
	if r.CRLF {
		more = ", lines end in CR LF"
	}
	return fmt.Sprintf("[edited %s in %s %s; %d bytes%s%s]", r.Path, places, listLines(r.Lines, len(r.Lines)), r.Size, shortHash(r.SHA256), more)
}
