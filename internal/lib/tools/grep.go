package tools

import (
	"context"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"

	"github.com/bmatcuk/doublestar/v4"
)

const grepDescription = `Search the contents of files by a regular expression (RE2). The answer is sorted by path. What git ignores, .git, links and binary files are left out; ` +
	`include_ignored brings the first back. A match is within one line, unless multiline is set. No match is no error.`

// Grep's modes.
const (
	ModeFiles   = "files_with_matches" // the names of the files
	ModeContent = "content"            // the lines, with their numbers
	ModeCount   = "count"              // how many lines match, for each file
)

const (
	defaultMatches = 250
	maxMatches     = 10_000
	maxGrepped     = 128 << 10 // bytes of lines that are returned
	maxContext     = 100       // lines
	inFlight       = 512       // files that are searched, or wait for one before them
)

// GrepInput is the input of Grep.
type GrepInput struct {
	Pattern         string `json:"pattern" jsonschema:"The regular expression."`
	Path            string `json:"path,omitempty" jsonschema:"The folder or file to search. Default: the working directory."`
	Glob            string `json:"glob,omitempty" jsonschema:"Only files whose name, or path below the folder if it has a slash, matches, such as *.{ts,tsx}."`
	Type            string `json:"type,omitempty" jsonschema:"Only files of this kind: go, py, js, ts, rust, java, c, cpp, md and so on."`
	OutputMode      string `json:"output_mode,omitempty" jsonschema:"content: matching lines; files_with_matches: paths (the default); count: matching lines per file."`
	CaseInsensitive bool   `json:"case_insensitive,omitempty"`
	Literal         bool   `json:"literal,omitempty" jsonschema:"The pattern is plain text, not a regular expression."`
	Multiline       bool   `json:"multiline,omitempty" jsonschema:"A match may span lines, and a dot matches a line end."`
	Before          int    `json:"before,omitempty" jsonschema:"Lines to show before each match."`
	After           int    `json:"after,omitempty" jsonschema:"Lines to show after each match."`
	Context         int    `json:"context,omitempty" jsonschema:"Lines to show before and after each match."`
	Limit           int    `json:"limit,omitempty" jsonschema:"How many matches, or files, to return at most. Default 250."`
	IncludeIgnored  bool   `json:"include_ignored,omitempty" jsonschema:"Also what git ignores."`
}

// GrepResult is the answer of Grep.
type GrepResult struct {
	Mode       string        `json:"mode"`
	Files      []FileMatches `json:"files"`
	Matches    int           `json:"matches"`              // in Files
	More       bool          `json:"more,omitempty"`       // there are others
	Large      []string      `json:"large,omitempty"`      // files too large for multiline, not searched; ten at most
	Unreadable int           `json:"unreadable,omitempty"` // files and folders
}

// FileMatches is one file with matches.
type FileMatches struct {
	Path  string `json:"path"`
	Count int    `json:"count"`           // of matches, or of those that were looked for
	Lines []Line `json:"lines,omitempty"` // of ModeContent
}

// Line is a line of a file.
type Line struct {
	Number int    `json:"number"`
	Text   string `json:"text"`
	Match  bool   `json:"match,omitempty"` // false: context
	Cut    bool   `json:"cut,omitempty"`   // it is longer
}

func (w *workspace) grep(ctx context.Context, in GrepInput, _ func(Progress)) (*GrepResult, error) {
	g, err := w.newGrep(in)
	if err != nil {
		return nil, err
	}
	root := w.dir
	if in.Path != "" {
		if root, err = w.path(in.Path); err != nil {
			return nil, err
		}
	}
	info, err := os.Stat(root)
	if err != nil {
		return nil, coded(w.shown(root), err)
	}
	if !info.IsDir() {
		if err := checkRegular(w.shown(root), info); err != nil {
			return nil, err
		}
		if root, err = filepath.EvalSymlinks(root); err != nil {
			return nil, coded(w.shown(root), err)
		}
		s := g.searcher()
		found, why := s.file(root)
		g.take(hit{path: root, found: found, why: why})
		return g.out, nil
	}
	g.root = root
	if err := g.folder(ctx); err != nil {
		return nil, coded(w.shown(root), err)
	}
	return g.out, nil
}

// A grep is one call of Grep.
type grep struct {
	w      *workspace
	in     GrepInput
	needle *needle
	limit  int
	globs  []string // any of which a file must match; none: all do
	root   string
	out    *GrepResult
	bytes  int
}

func (w *workspace) newGrep(in GrepInput) (*grep, error) {
	g := &grep{w: w, in: in, out: &GrepResult{Mode: in.OutputMode, Files: []FileMatches{}}}
	switch in.OutputMode {
	case "":
		g.out.Mode = ModeFiles
	case ModeFiles, ModeContent, ModeCount:
	default:
		return nil, errorf(CodeBadInput, "output_mode is %s, %s or %s", ModeContent, ModeFiles, ModeCount)
	}
	for _, n := range []int{in.Before, in.After, in.Context} {
		if n < 0 || n > maxContext {
			return nil, errorf(CodeBadInput, "before, after and context are from 0 to %d lines", maxContext)
		}
	}
	var err error
	if g.limit, err = checkLimit(in.Limit, defaultMatches, maxMatches); err != nil {
		return nil, err
	}
	if in.Pattern == "" {
		return nil, errorf(CodeBadPattern, "the pattern is empty")
	}
	if in.Glob != "" && !doublestar.ValidatePattern(in.Glob) {
		return nil, errorf(CodeBadPattern, "the glob %q can't be read", in.Glob)
	}
	if in.Type != "" {
		if g.globs = fileTypes[in.Type]; g.globs == nil {
			return nil, errorf(CodeBadInput, "the type %q is unknown; there are %s", in.Type, strings.Join(slices.Sorted(maps.Keys(fileTypes)), ", "))
		}
	}
	g.needle, err = compile(in.Pattern, in.CaseInsensitive, in.Literal, !in.Multiline)
	return g, err
}

func (g *grep) searcher() *searcher {
	return &searcher{
		needle: g.needle, count: g.out.Mode == ModeCount, first: g.out.Mode == ModeFiles, limit: g.limit + 1,
		before: max(g.in.Before, g.in.Context), after: max(g.in.After, g.in.Context),
	}
}

// wanted reports whether a file must be searched.
func (g *grep) wanted(rel string) bool {
	base := path.Base(rel)
	if g.in.Glob != "" {
		name := base
		if strings.Contains(g.in.Glob, "/") {
			name = rel
		}
		if !doublestar.MatchUnvalidated(strings.TrimPrefix(g.in.Glob, "/"), name) {
			return false
		}
	}
	return len(g.globs) == 0 || slices.ContainsFunc(g.globs, func(glob string) bool { return doublestar.MatchUnvalidated(glob, base) })
}

// hit is the result for one file.
type hit struct {
	number int // of the file in the walk
	path   string
	found  FileMatches
	why    skipped
}

// folder searches the root's files, some at once. It takes their matches in the order of the
// walk, until it has enough.
func (g *grep) folder(ctx context.Context) error {
	ctx, enough := context.WithCancelCause(ctx)
	defer enough(nil)
	var (
		wg     sync.WaitGroup
		places = make(chan struct{}, inFlight)
		files  = make(chan hit, 64)
		hits   = make(chan hit, 64)
		failed error
		walked = &walk{ignored: g.in.IncludeIgnored}
	)
	number := 0
	walked.visit = func(rel string, kind fs.FileMode) error {
		if !kind.IsRegular() || !g.wanted(rel) {
			return nil
		}
		select {
		case places <- struct{}{}:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		select {
		case files <- hit{number: number, path: filepath.Join(g.root, rel)}:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		number++
		return nil
	}
	wg.Go(func() {
		defer close(files)
		failed = walked.run(ctx, g.root)
	})
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			s := g.searcher()
			for h := range files {
				if ctx.Err() == nil {
					h.found, h.why = s.file(h.path)
				}
				hits <- h
			}
		})
	}
	go func() { wg.Wait(); close(hits) }()
	g.collect(hits, places, enough)
	if context.Cause(ctx) == errEnough {
		return nil
	}
	g.out.Unreadable += walked.unreadable
	return failed
}

// collect puts hits in their order.
func (g *grep) collect(hits <-chan hit, places <-chan struct{}, enough context.CancelCauseFunc) {
	waiting := map[int]hit{}
	next, full := 0, false
	for h := range hits {
		waiting[h.number] = h
		for {
			h, ok := waiting[next]
			if !ok {
				break
			}
			delete(waiting, next)
			next++
			<-places
			if full = full || !g.take(h); full {
				enough(errEnough)
			}
		}
	}
}

// take adds the result for a file. It reports whether there is room for more.
func (g *grep) take(h hit) bool {
	name := g.w.shown(h.path)
	switch h.why {
	case skippedUnreadable:
		g.out.Unreadable++
	case skippedLarge:
		if len(g.out.Large) < 10 {
			g.out.Large = append(g.out.Large, name)
		}
	}
	if h.found.Count == 0 {
		return true
	}
	if g.out.Mode != ModeContent {
		if len(g.out.Files) == g.limit {
			g.out.More = true
			return false
		}
		g.out.Files = append(g.out.Files, FileMatches{Path: name, Count: h.found.Count})
		g.out.Matches += h.found.Count
		return true
	}
	f := FileMatches{Path: name}
	for _, line := range h.found.Lines {
		if g.bytes += len(line.Text) + 8; g.bytes > maxGrepped || line.Match && g.out.Matches == g.limit {
			g.out.More = true
			break
		}
		f.Lines = append(f.Lines, line)
		if line.Match {
			f.Count++
			g.out.Matches++
		}
	}
	for len(f.Lines) > 0 && g.out.More && !f.Lines[len(f.Lines)-1].Match {
		f.Lines = f.Lines[:len(f.Lines)-1] // context of a match that has no room
	}
	if len(f.Lines) > 0 {
		g.out.Files = append(g.out.Files, f)
	}
	return !g.out.More
}

func (r *GrepResult) text() string {
	var b strings.Builder
	for i, f := range r.Files {
		switch r.Mode {
		case ModeContent:
			f.write(&b, i > 0)
		case ModeCount:
			fmt.Fprintf(&b, "%s:%d\n", shownName(f.Path), f.Count)
		default:
			b.WriteString(shownName(f.Path) + "\n")
		}
	}
	switch {
	case len(r.Files) == 0 && !r.More:
		b.WriteString("[no match")
	case r.Mode == ModeFiles:
		b.WriteString("[" + counted(len(r.Files), "file", "files"))
	default:
		fmt.Fprintf(&b, "[%s in %s", counted(r.Matches, "match", "matches"), counted(len(r.Files), "file", "files"))
	}
	if r.More {
		b.WriteString(", and more: narrow the search, or raise the limit")
	}
	if len(r.Large) > 0 {
		fmt.Fprintf(&b, "; too large for multiline, not searched: %s", strings.Join(r.Large, ", "))
	}
	b.WriteString(unreadable(r.Unreadable) + "]")
	return b.String()
}

// write writes a file's lines as grep does: path:number:line, path-number-context,
// and -- where lines are left out.
func (f *FileMatches) write(b *strings.Builder, behind bool) {
	last := -1
	gaps := slices.ContainsFunc(f.Lines, func(l Line) bool { return !l.Match })
	for _, l := range f.Lines {
		if gaps && l.Number != last+1 && (behind || last >= 0) {
			b.WriteString("--\n")
		}
		last = l.Number
		mark, more := ":", ""
		if !l.Match {
			mark = "-"
		}
		if l.Cut {
			more = " […]"
		}
		fmt.Fprintf(b, "%s%s%d%s%s%s\n", shownName(f.Path), mark, l.Number, mark, l.Text, more)
	}
}

// counted returns a number with the word one or many.
func counted(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}
