// Package dockerignore says which files of a folder a .dockerignore file leaves out of a build's
// context, as BuildKit does.
package dockerignore

import (
	"bytes"
	"fmt"
	"strings"

	"github.com/moby/patternmatcher"
	"github.com/moby/patternmatcher/ignorefile"
)

// MaxSize bounds a .dockerignore file, in bytes.
const MaxSize = 1 << 20

// Patterns are those of a .dockerignore file. The zero value ignores nothing.
type Patterns struct {
	matcher *patternmatcher.PatternMatcher
}

// Parse reads the content of a .dockerignore file.
func Parse(text []byte) (Patterns, error) {
	if len(text) > MaxSize {
		return Patterns{}, fmt.Errorf("it has more than %d bytes", MaxSize)
	}
	lines, err := ignorefile.ReadAll(bytes.NewReader(text))
	if err != nil || len(lines) == 0 {
		return Patterns{}, err
	}
	m, err := patternmatcher.New(lines)
	if err != nil {
		err = located(text, err)
	}
	return Patterns{m}, err
}

// located says which line of a file has the pattern that is wrong.
func located(text []byte, err error) error {
	for n, line := range strings.Split(string(text), "\n") {
		one, readErr := ignorefile.ReadAll(strings.NewReader(line))
		if readErr != nil || len(one) == 0 {
			continue
		}
		if _, bad := patternmatcher.New(one); bad != nil {
			return fmt.Errorf("line %d: %.200q: %w", n+1, one[0], err)
		}
	}
	return err
}

// Parent is the result for a folder, for later questions about paths in it. The zero value is
// that of the topmost folder.
type Parent = patternmatcher.MatchInfo

// Ignores reports whether a relative, slash-separated path is left out. If it is a folder, the
// returned Parent is for the paths in it.
func (p Patterns) Ignores(at string, in Parent) (bool, Parent, error) {
	if p.matcher == nil {
		return false, in, nil
	}
	return p.matcher.MatchesUsingParentResults(at, in)
}

// Exceptions reports whether something in an ignored folder may not be ignored.
func (p Patterns) Exceptions(folder string) bool {
	if p.matcher == nil || !p.matcher.Exclusions() {
		return false
	}
	for _, pattern := range p.matcher.Patterns() {
		if !pattern.Exclusion() {
			continue
		}
		text := strings.TrimPrefix(pattern.String(), "!")
		if strings.HasPrefix(text+"/", folder+"/") || strings.ContainsAny(text, `*?[\`) {
			return true
		}
	}
	return false
}
