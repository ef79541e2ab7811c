package dockerfile

import (
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/moby/buildkit/frontend/dockerfile/shell"
)

// environment has variables, in the order of their first setting. The zero value has none.
// clone copies it.
type environment struct {
	names  []string
	values map[string]string
}

// Get is shell.EnvGetter's.
func (e *environment) Get(name string) (string, bool) {
	v, ok := e.values[name]
	return v, ok
}

// Keys is shell.EnvGetter's.
func (e *environment) Keys() []string { return e.names }

func (e *environment) set(name, value string) {
	if _, ok := e.values[name]; !ok {
		e.names = append(e.names, name)
	}
	if e.values == nil {
		e.values = map[string]string{}
	}
	e.values[name] = value
}

func (e *environment) clone() environment {
	c := environment{names: slices.Clone(e.names), values: make(map[string]string, len(e.values))}
	for name, value := range e.values {
		c.values[name] = value
	}
	return c
}

// list is the environment as NAME=VALUE.
func (e *environment) list() []string {
	all := make([]string, len(e.names))
	for i, name := range e.names {
		all[i] = name + "=" + e.values[name]
	}
	return all
}

// expand replaces the variables of a word, and takes its quotes away.
func (p *plan) expand(word string, e *environment) (string, error) {
	return p.expandBy(shell.NewLex(p.doc.escape), word, e)
}

// expandText replaces the variables of a here-document. Its quotes stay.
func (p *plan) expandText(text string, e *environment) (string, error) {
	lex := shell.NewLex('\\')
	lex.SkipProcessQuotes = true
	return p.expandBy(lex, text, e)
}

func (p *plan) expandBy(lex *shell.Lex, word string, e *environment) (string, error) {
	if err := bounded(word, e); err != nil {
		return "", err
	}
	out, _, err := lex.ProcessWord(word, e)
	if err != nil {
		return "", err
	}
	return out, p.take(len(out))
}

// take counts bytes that the plan keeps until the build ends.
func (p *plan) take(bytes int) error {
	if p.size += bytes; p.size > maxPlan {
		return fmt.Errorf("the Dockerfile becomes larger than %d bytes with its variables, which each RUN gets", maxPlan)
	}
	return nil
}

// Besides texts, a plan keeps stepCost bytes for each step. It keeps entryCost bytes for each entry
// of a list or a map that a step or a stage has for itself.
const (
	stepCost  = 1 << 10
	entryCost = 64
)

// cost is how many bytes a plan keeps of a step, without its words.
func cost(s Step) int {
	c := s.Config
	n := stepCost + len(s.History) + entryCost*(len(c.Env)+len(c.Labels)+len(c.ExposedPorts)+len(c.Volumes)+len(c.OnBuild))
	if s.Run == nil {
		return n
	}
	for _, all := range [][]string{s.Run.Argv, s.Run.Env, s.Run.Proxy} {
		for _, text := range all {
			n += len(text)
		}
	}
	return n
}

// bounded refuses a word that may become too large. The lexer would make it in memory first.
func bounded(word string, e *environment) error {
	size := int64(len(word))
	most := int64(1) // by how much replacements may multiply it
	for i := range len(word) {
		if word[i] != '$' {
			continue
		}
		rest, braced := strings.CutPrefix(word[i+1:], "{")
		name := variable(rest)
		value := int64(len(e.values[name]))
		size += value
		if braced && strings.HasPrefix(rest[len(name):], "/") { // ${NAME/PATTERN/WORD} may have WORD for each character
			most *= value + 1
		}
		if size*most > maxWord {
			return fmt.Errorf("a word may become larger than %d bytes", maxWord)
		}
	}
	if size > maxWord {
		return fmt.Errorf("a word has more than %d bytes", maxWord)
	}
	return nil
}

// variable is the name of a variable with which a text begins, as BuildKit's lexer reads it.
func variable(text string) string {
	for i, r := range text {
		switch {
		case i == 0 && unicode.IsDigit(r):
			end := strings.IndexFunc(text, func(r rune) bool { return !unicode.IsDigit(r) })
			if end < 0 {
				end = len(text)
			}
			return text[:end]
		case i == 0 && strings.ContainsRune("@*#?-$!0", r):
			return text[:utf8.RuneLen(r)]
		case !unicode.IsLetter(r) && !unicode.IsDigit(r) && r != '_':
			return text[:i]
		}
	}
	return text
}
