package config

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/cove-dev/cove/internal/shim/connect"
)

// An EnvVar is a variable of a sprite's environment, and where it is from. Its
// value is a secret until the contrary is known: it is not printed.
type EnvVar struct {
	Name  string
	Value string
	From  Source
	File  string
	Line  int // 0: it mirrors another one
}

// JobEnv is the name, in place of a sprite's, for the environment of the sprites
// that jobs have made for them.
const JobEnv = "job"

// PersonalEnv is the person's file for the environment of a sprite.
func (p Places) PersonalEnv(sprite string) string {
	if p.Personal == "" {
		return ""
	}
	return filepath.Join(filepath.Dir(p.Personal), "sandboxes", sprite+".env")
}

// Environment is the variables that the repository's .cove/sandbox.env and the person's
// sandboxes/NAME.env give a sprite, by name. The person's variables replace the
// repository's; an empty value removes a variable. GITHUB_TOKEN is also set as GH_TOKEN,
// unless GH_TOKEN is itself set or removed. Only the person's file may refer to a secret.
// Otherwise, anybody who can write to a repository could get the secrets of all who push it.
// Errors are Problems.
func (p Places) Environment(sprite string) ([]EnvVar, error) {
	merged := map[string]EnvVar{}
	var problems Problems
	take := func(from Source, name string, data []byte, err error) {
		if errors.Is(err, fs.ErrNotExist) {
			return
		}
		if err != nil {
			problems = append(problems, Problem{File: name, Message: readError(err)})
			return
		}
		vars, wrong := ParseEnv(name, data)
		for _, v := range vars {
			if from == FromRepository && connect.Refers(v.Name+"="+v.Value) {
				wrong = append(wrong, Problem{
					File: v.File, Line: v.Line, Key: v.Name,
					Message: "a repository can't refer to a secret, which is yours: put the line into " + p.PersonalEnv(sprite) + ", or use --env",
				})
			}
			v.From = from
			merged[v.Name] = v
		}
		problems = append(problems, wrong...)
	}
	if p.Top != "" {
		data, err := readOwn(p.Top, "sandbox.env", maxFile)
		take(FromRepository, filepath.Join(p.Top, Dir, "sandbox.env"), data, err)
	}
	if name := p.PersonalEnv(sprite); name != "" {
		data, err := readPersonal(name, maxFile)
		take(FromPersonal, name, data, err)
	}
	if len(problems) > 0 {
		return nil, problems
	}
	if token, ok := merged["GITHUB_TOKEN"]; ok {
		if _, own := merged["GH_TOKEN"]; !own {
			merged["GH_TOKEN"] = EnvVar{Name: "GH_TOKEN", Value: token.Value, From: token.From, File: token.File}
		}
	}
	vars := []EnvVar{}
	for _, v := range merged {
		if v.Value != "" {
			vars = append(vars, v)
		}
	}
	slices.SortFunc(vars, func(a, b EnvVar) int { return strings.Compare(a.Name, b.Name) })
	return vars, nil
}

var envName = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`) })

// ParseEnv reads NAME=VALUE lines. A line may begin with export, and is a comment
// if it begins with #. A value without quotes ends at a # after white space, and
// loses the white space around it. Single quotes keep all characters as they are. In
// double quotes, \n, \r, \t, \" and \\ mean what they usually do. A value in quotes may
// have several lines. Nothing is expanded: $ is a $. If a name comes twice, the last
// value counts. No problem's text contains a value.
func ParseEnv(file string, data []byte) ([]EnvVar, Problems) {
	r := envReader{file: file, rest: strings.ReplaceAll(strings.TrimPrefix(string(data), "\ufeff"), "\r\n", "\n"), line: 1}
	var vars []EnvVar
	var problems Problems
	for r.rest != "" {
		v, err := r.next()
		if err != nil {
			problems = append(problems, Problem{File: file, Line: r.began, Key: v.Name, Message: err.Error()})
		} else if v.Name != "" {
			vars = append(slices.DeleteFunc(vars, func(old EnvVar) bool { return old.Name == v.Name }), v)
		}
	}
	return vars, problems
}

// envReader takes a file apart.
type envReader struct {
	file  string
	rest  string
	line  int // of rest
	began int // of what was read last
}

// take cuts n bytes off.
func (r *envReader) take(n int) string {
	text := r.rest[:n]
	r.rest = r.rest[n:]
	r.line += strings.Count(text, "\n")
	return text
}

// takeLine takes and returns the rest of the line.
func (r *envReader) takeLine() string {
	n := strings.IndexByte(r.rest, '\n') + 1
	if n == 0 {
		n = len(r.rest)
	}
	return strings.TrimSuffix(r.take(n), "\n")
}

// next reads an entry; without a name it was a remark, or nothing.
func (r *envReader) next() (EnvVar, error) {
	r.began = r.line
	line, _, _ := strings.Cut(r.rest, "\n")
	trimmed := strings.TrimSpace(line)
	if trimmed == "" || trimmed[0] == '#' {
		r.takeLine()
		return EnvVar{}, nil
	}
	before, _, ok := strings.Cut(line, "=")
	if !ok {
		r.takeLine()
		return EnvVar{}, errors.New("a line must be NAME=VALUE")
	}
	r.take(len(before) + 1)
	name := strings.TrimSpace(before)
	if rest, ok := strings.CutPrefix(name, "export"); ok && rest != strings.TrimLeft(rest, " \t") {
		name = strings.TrimSpace(rest)
	}
	if !envName().MatchString(name) {
		r.takeLine()
		// It may be a part of a value that lacks its quotes, and is not shown.
		return EnvVar{}, errors.New("the text before the = can't be the name of a variable")
	}
	value, err := r.value()
	if err == nil && strings.ContainsRune(value, 0) {
		err = errors.New("a value can't have a NUL in it")
	}
	return EnvVar{Name: name, Value: value, File: r.file, Line: r.began}, err
}

func (r *envReader) value() (string, error) {
	r.take(len(r.rest) - len(strings.TrimLeft(r.rest, " \t")))
	if r.rest == "" || r.rest[0] != '\'' && r.rest[0] != '"' {
		text := r.takeLine()
		for i := range len(text) {
			if text[i] == '#' && (i == 0 || text[i-1] == ' ' || text[i-1] == '\t') {
				text = text[:i]
				break
			}
		}
		return strings.TrimSpace(text), nil
	}
	quote := r.take(1)[0]
	var b strings.Builder
	for i := 0; i < len(r.rest); i++ {
		switch c := r.rest[i]; {
		case c == quote:
			r.take(i + 1)
			if after := strings.TrimSpace(r.takeLine()); after != "" && after[0] != '#' {
				return "", errors.New("something follows the closing quote")
			}
			return b.String(), nil
		case c == '\\' && quote == '"' && i+1 < len(r.rest):
			i++
			meant, ok := escapes[r.rest[i]]
			if !ok {
				err := fmt.Errorf(`\%c has no meaning; write \\ for a backslash`, r.rest[i])
				r.takeLine()
				return "", err
			}
			b.WriteByte(meant)
		default:
			b.WriteByte(c)
		}
	}
	r.take(len(r.rest))
	return "", errors.New("the closing quote is missing")
}

var escapes = map[byte]byte{'n': '\n', 'r': '\r', 't': '\t', '"': '"', '\\': '\\'}

// keyLike says which connector could hold a secret, by its variable's name or by
// how the value begins.
var keyLike = []struct {
	connector string
	names     []string
	prefixes  []string
}{
	{"anthropic", []string{"ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "CLAUDE_CODE_OAUTH_TOKEN"}, []string{"sk-ant-"}},
	{"openai", []string{"OPENAI_API_KEY"}, []string{"sk-proj-", "sk-svcacct-"}},
	{"gemini", []string{"GEMINI_API_KEY", "GOOGLE_API_KEY"}, []string{"AIza"}},
	{"github", []string{"GITHUB_TOKEN", "GH_TOKEN"}, []string{"ghp_", "gho_", "ghu_", "ghs_", "github_pat_"}},
}

// Connector names the connector that could hold this variable's value outside of
// the sprite; empty: none that is known.
func (v EnvVar) Connector() string {
	for _, k := range keyLike {
		if slices.Contains(k.names, v.Name) || slices.ContainsFunc(k.prefixes, func(p string) bool { return strings.HasPrefix(v.Value, p) }) {
			return k.connector
		}
	}
	return ""
}

// CheckEnvFiles reads all of the environment's files and returns what is wrong in
// them.
func (p Places) CheckEnvFiles() Problems {
	names := []string{JobEnv}
	if p.Personal != "" {
		files, _ := filepath.Glob(filepath.Join(filepath.Dir(p.Personal), "sandboxes", "*.env")) // the pattern is right
		for _, f := range files {
			names = append(names, strings.TrimSuffix(filepath.Base(f), ".env"))
		}
	}
	var all Problems
	for _, name := range names {
		_, err := p.Environment(name)
		if wrong, ok := errors.AsType[Problems](err); ok {
			for _, w := range wrong {
				if !slices.Contains(all, w) {
					all = append(all, w)
				}
			}
		}
	}
	return all
}
