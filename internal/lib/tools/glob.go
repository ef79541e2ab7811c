package tools

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/bmatcuk/doublestar/v4"
)

const globDescription = `Find files by a pattern of their paths: * and ? within a name, ** for any number of folders, [a-z], {js,ts}. ` +
	`The answer is sorted by path. What git ignores, and .git, is left out unless include_ignored is set. A pattern that ends in a slash finds folders.`

const (
	defaultFiles = 1000
	maxFiles     = 20_000
)

// GlobInput is the input of Glob.
type GlobInput struct {
	Pattern        string `json:"pattern" jsonschema:"The pattern, such as src/**/*.go."`
	Path           string `json:"path,omitempty" jsonschema:"The folder to look in. Default: the working directory."`
	Limit          int    `json:"limit,omitempty" jsonschema:"How many to return at most. Default 1000."`
	IncludeIgnored bool   `json:"include_ignored,omitempty" jsonschema:"Also what git ignores."`
}

// GlobResult is the answer of Glob.
type GlobResult struct {
	Files      []string `json:"files"` // relative to the working directory, where they are below it; sorted
	More       bool     `json:"more,omitempty"`
	Unreadable int      `json:"unreadable,omitempty"` // folders
}

// errEnough ends a walk that has found enough.
var errEnough = errors.New("enough")

func (w *workspace) glob(ctx context.Context, in GlobInput, _ func(Progress)) (*GlobResult, error) {
	limit, err := checkLimit(in.Limit, defaultFiles, maxFiles)
	if err != nil {
		return nil, err
	}
	pattern, folders := strings.CutSuffix(in.Pattern, "/")
	if pattern == "" || !doublestar.ValidatePattern(pattern) {
		return nil, errorf(CodeBadPattern, "the pattern %q can't be read", in.Pattern)
	}
	root, pattern, err := w.globRoot(in.Path, pattern)
	if err != nil {
		return nil, err
	}
	out := &GlobResult{Files: []string{}}
	walk := &walk{ignored: in.IncludeIgnored, folders: folders}
	walk.visit = func(rel string, kind fs.FileMode) error {
		if folders != kind.IsDir() || !doublestar.MatchUnvalidated(pattern, strings.TrimSuffix(rel, "/")) {
			return nil
		}
		if len(out.Files) == limit {
			out.More = true
			return errEnough
		}
		out.Files = append(out.Files, w.shown(filepath.Join(root, rel)))
		return nil
	}
	if err := walk.run(ctx, root); err != nil && err != errEnough {
		if errors.Is(err, fs.ErrNotExist) && root != w.dir {
			if _, statErr := os.Stat(w.rootOf(in.Path)); statErr == nil {
				return out, nil // the folder is there, what the pattern begins with is not
			}
		}
		return nil, coded(w.shown(root), err)
	}
	out.Unreadable = walk.unreadable
	return out, nil
}

// rootOf returns the folder that an input's path means.
func (w *workspace) rootOf(path string) string {
	if path == "" {
		return w.dir
	}
	if filepath.IsAbs(path) {
		return filepath.Clean(path)
	}
	return filepath.Join(w.dir, path)
}

// globRoot takes from a pattern the folders that it begins with.
func (w *workspace) globRoot(path, pattern string) (root, rest string, err error) {
	if path == "" {
		path = "."
	}
	if root, err = w.path(path); err != nil {
		return "", "", err
	}
	if info, err := os.Stat(root); err != nil {
		return "", "", coded(w.shown(root), err)
	} else if !info.IsDir() {
		return "", "", errorf(CodeNotDirectory, "%s is no folder", w.shown(root))
	}
	base, rest := doublestar.SplitPattern(pattern)
	if filepath.IsAbs(base) {
		return filepath.Clean(base), rest, nil
	}
	return filepath.Join(root, base), rest, nil
}

// checkLimit returns how many results are wanted, or an error.
func checkLimit(limit, usual, most int) (int, error) {
	switch {
	case limit < 0:
		return 0, errorf(CodeBadInput, "limit can't be negative")
	case limit > most:
		return 0, errorf(CodeBadInput, "limit can't be more than %d", most)
	case limit == 0:
		return usual, nil
	}
	return limit, nil
}

func (r *GlobResult) text() string {
	var b strings.Builder
	for _, name := range r.Files {
		b.WriteString(shownName(name) + "\n")
	}
	if len(r.Files) == 0 {
		b.WriteString("[no file matches")
	} else {
		b.WriteString("[" + counted(len(r.Files), "file", "files"))
	}
	if r.More {
		b.WriteString(", and more: narrow the pattern, or raise the limit")
	}
	b.WriteString(unreadable(r.Unreadable) + "]")
	return b.String()
}

func unreadable(n int) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprintf("; %d could not be read", n)
}

// shownName is a path on one line.
func shownName(name string) string {
	if strings.ContainsAny(name, "\n\r\t\"") {
		return strconv.Quote(name)
	}
	return name
}
