// Package gitignore has git's patterns of files to ignore: the syntax of .gitignore, matched
// byte by byte as git does. Its users decide which files hold patterns, and which of them
// count more.
package gitignore

import (
	"regexp"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/bmatcuk/doublestar/v4"
)

// A Pattern is one line.
type Pattern struct {
	glob     string
	literal  bool // glob has no special character
	suffix   bool // glob is what follows a single "*"
	negated  bool
	dirOnly  bool
	anchored bool // matched against the path below base, not the last name alone
}

// Parse reads a file of gitignore's syntax. A line that git can't match is left out.
func Parse(text string) []Pattern {
	var list []Pattern
	for line := range strings.Lines(strings.TrimPrefix(text, "\ufeff")) {
		line = strings.TrimSuffix(strings.TrimSuffix(line, "\n"), "\r")
		if p, ok := parsePattern(line); ok {
			list = append(list, p)
		}
	}
	return list
}

func parsePattern(line string) (p Pattern, ok bool) {
	if strings.HasPrefix(line, "#") {
		return p, false
	}
	line = trimSpaces(line)
	if rest, found := strings.CutPrefix(line, "!"); found {
		p.negated, line = true, rest
	}
	if rest, found := strings.CutSuffix(line, "/"); found {
		p.dirOnly, line = true, rest
	}
	p.anchored = strings.Contains(line, "/")
	line = strings.TrimPrefix(line, "/")
	if line == "" {
		return p, false
	}
	if p.glob, ok = globOf(line, p.anchored); !ok {
		return p, false
	}
	switch {
	case !strings.ContainsAny(p.glob, `*?[\`):
		p.literal = true
	case !p.anchored && p.glob[0] == '*' && len(p.glob) > 1 && !strings.ContainsAny(p.glob[1:], `*?[\`):
		p.suffix, p.glob = true, p.glob[1:]
	default:
		p.glob = bytewise(p.glob)
	}
	return p, true
}

// bytewise makes each byte a character: git compares bytes, doublestar characters.
func bytewise(s string) string {
	if strings.IndexFunc(s, func(r rune) bool { return r >= utf8.RuneSelf }) < 0 {
		return s
	}
	r := make([]rune, len(s))
	for i := range len(s) {
		r[i] = rune(s[i])
	}
	return string(r)
}

// trimSpaces removes spaces at the end, unless a backslash keeps one.
func trimSpaces(line string) string {
	end := len(line)
	for end > 0 && line[end-1] == ' ' {
		end--
	}
	slashes := 0
	for slashes < end && line[end-1-slashes] == '\\' {
		slashes++
	}
	if slashes%2 == 1 && end < len(line) {
		end++
	}
	return line[:end]
}

// globOf is doublestar's glob of a gitignore pattern: braces mean nothing in the
// latter, "**" only something as a whole component, and "dir/**" not dir itself.
// A pattern that git can't match is not ok.
func globOf(line string, anchored bool) (glob string, ok bool) {
	if !anchored {
		return plainGlob(line)
	}
	parts := strings.Split(escapedSlash().ReplaceAllString(line, "$1/"), "/")
	for i, part := range parts {
		if len(part) > 1 && strings.Trim(part, "*") == "" { // more of them are the same
			parts[i] = "**"
			continue
		}
		if parts[i], ok = plainGlob(part); !ok {
			return "", false
		}
	}
	if parts[len(parts)-1] == "**" {
		parts = append(parts, "*")
	}
	return strings.Join(parts, "/"), true
}

// escapedSlash is a slash behind a backslash, which means nothing there.
var escapedSlash = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`((?:^|[^\\])(?:\\\\)*)\\/`) })

// plainGlob converts one component.
func plainGlob(part string) (string, bool) {
	var b strings.Builder
	for i := 0; i < len(part); i++ {
		switch c := part[i]; c {
		case '\\':
			if i++; i == len(part) {
				return "", false
			}
			if strings.IndexByte(`*?[]{}\!^-`, part[i]) >= 0 {
				b.WriteByte('\\')
			}
			b.WriteByte(part[i])
		case '{', '}':
			b.WriteString(`\` + string(c))
		case '*':
			if !strings.HasSuffix(b.String(), "*") || strings.HasSuffix(b.String(), `\*`) {
				b.WriteByte('*')
			}
		case '[':
			n, class := classGlob(part[i:])
			if n == 0 {
				return "", false
			}
			b.WriteString(class)
			i += n - 1
		default:
			b.WriteByte(c)
		}
	}
	return b.String(), true
}

// posixClasses are what may stand as [:NAME:] in a class.
var posixClasses = map[string]string{
	"alnum": "0-9A-Za-z", "alpha": "A-Za-z", "blank": " \t", "cntrl": "\x00-\x1f\x7f", "digit": "0-9", "graph": "!-~", "lower": "a-z",
	"print": " -~", "punct": "!-/:-@\\[-`{-~", "space": " \t-\r", "upper": "A-Z", "xdigit": "0-9A-Fa-f",
}

// classGlob converts a class, which s begins with, and says how long it is; 0: it
// does not end.
func classGlob(s string) (n int, glob string) {
	var b strings.Builder
	b.WriteByte('[')
	i := 1
	if i < len(s) && (s[i] == '!' || s[i] == '^') {
		b.WriteString("^/") // which no class matches
		i++
	}
	for first := true; i < len(s); first = false {
		c := s[i]
		switch {
		case c == ']' && !first:
			b.WriteByte(']')
			return i + 1, b.String()
		case c == '[' && strings.HasPrefix(s[i:], "[:"):
			name, _, ok := strings.Cut(s[i+2:], ":]")
			set, known := posixClasses[name]
			if !ok || !known {
				return 0, ""
			}
			b.WriteString(set)
			i += len(name) + 4
			continue
		case c == '\\':
			if i++; i == len(s) {
				return 0, ""
			}
			b.WriteString(`\` + s[i:i+1])
		case c == ']' || c == '[' || c == '^':
			b.WriteString(`\` + s[i:i+1])
		default:
			b.WriteByte(c)
		}
		i++
	}
	return 0, ""
}

// matches reports whether a path below the pattern's folder is meant. base is its
// last name.
func (p *Pattern) matches(rel, base string, dir bool) bool {
	if p.dirOnly && !dir {
		return false
	}
	name := base
	if p.anchored {
		name = rel
	}
	switch {
	case p.literal:
		return p.glob == name
	case p.suffix:
		return strings.HasSuffix(name, p.glob)
	}
	ok, err := doublestar.Match(p.glob, bytewise(name))
	return err == nil && ok
}

// LastMatch is what the last matching line says of a path: 1 ignored, -1 not ignored, 0
// nothing. rel is relative to the folder of the patterns' file, base is its last name. The
// caller must know whether a folder above it is ignored.
func LastMatch(list []Pattern, rel, base string, dir bool) int {
	for i := len(list) - 1; i >= 0; i-- {
		if list[i].matches(rel, base, dir) {
			if list[i].negated {
				return -1
			}
			return 1
		}
	}
	return 0
}

// Weaker is the reason why a person should look at a file that Weakens.
const Weaker = "git, and the next push, may see files that were ignored"

// Weakens reports whether a change of a file of patterns, from was to is, may let files through.
// These are files that it kept out, or that a file of lower precedence keeps out. More patterns
// that ignore files do not.
func Weakens(was, is string) bool {
	old := Parse(was)
	for _, p := range Parse(is) {
		switch {
		case len(old) > 0 && old[0] == p:
			old = old[1:]
		case p.negated:
			return true
		}
	}
	return len(old) > 0
}
