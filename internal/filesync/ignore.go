package filesync

import (
	"path"
	"regexp"
	"strings"
	"unicode/utf8"

	"github.com/bmatcuk/doublestar/v4"
)

// Rules say what of a tree does not travel. The zero value is only what never
// does. They are the same at both ends, in the syntax of gitignore: what stands
// further down in this list wins over what stands above, and among the lines of
// one file the last.
type Rules struct {
	Git     []Patterns `json:"git,omitempty"`     // git's own files outside of the tree, the least first
	Read    bool       `json:"read,omitempty"`    // .gitignore files of the tree count
	Tracked []byte     `json:"tracked,omitempty"` // files that travel although git's rules ignore them, each ended by a zero byte
	Cove    bool       `json:"cove,omitempty"`    // .coveignore files of the tree count
	Exclude []string   `json:"exclude,omitempty"` // patterns of the caller
}

// Patterns are the text of a file of gitignore's syntax. Dir is the root's path
// below the folder that they are relative to; empty: the root itself.
type Patterns struct {
	Dir  []byte `json:"dir,omitempty"`
	Text []byte `json:"text"`
}

// maxIgnoreFile bounds one .gitignore.
const maxIgnoreFile = 1 << 20

// Why something does not travel.
const (
	skipIgnored = "ignored"
	skipExclude = "excluded"
	skipGit     = "git's own"
	skipOwn     = "cove's own"
	skipTheirs  = "left from a conflict"
	skipSpecial = "neither file, folder nor link"
	skipLink    = "link out of the folder"
	skipMount   = "on another file system"
	skipDeep    = "too deep"
	skipName    = "its path is too long"
	skipDenied  = "not readable"
	skipChanged = "changed while it was read"
)

// pattern is one line.
type pattern struct {
	glob     string
	literal  bool // glob has no special character
	suffix   bool // glob is what follows a single "*"
	negated  bool
	dirOnly  bool
	anchored bool // matched against the path below base, not the last name alone
}

// parsePatterns reads a file of gitignore's syntax.
func parsePatterns(text string) []pattern {
	var list []pattern
	for line := range strings.Lines(strings.TrimPrefix(text, "\ufeff")) {
		line = strings.TrimSuffix(strings.TrimSuffix(line, "\n"), "\r")
		if p, ok := parsePattern(line); ok {
			list = append(list, p)
		}
	}
	return list
}

func parsePattern(line string) (p pattern, ok bool) {
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
	parts := strings.Split(escapedSlash.ReplaceAllString(line, "$1/"), "/")
	for i, part := range parts {
		if part == "**" {
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
var escapedSlash = regexp.MustCompile(`((?:^|[^\\])(?:\\\\)*)\\/`)

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
func (p *pattern) matches(rel, base string, dir bool) bool {
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

// lastMatch is what the last matching line says: 1 ignored, -1 not ignored, 0 nothing.
func lastMatch(list []pattern, rel, base string, dir bool) int {
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

// A matcher decides on the paths of one walk, in the order of comparePaths.
type matcher struct {
	rules   Rules
	read    func(dir, name string) string // the text of an ignore file; empty: none
	exclude []pattern
	outside [][]pattern     // of rules.Git
	tracked map[string]bool // and the folders above them
	only    string          // an ignored folder in which only what is tracked travels; empty: none
	levels  []level
}

type level struct {
	dir       string // "" is the root
	git, cove []pattern
}

// newMatcher makes a matcher. It enters the root.
func newMatcher(rules Rules, read func(dir, name string) string) *matcher {
	m := &matcher{rules: rules, read: read, exclude: parsePatterns(strings.Join(rules.Exclude, "\n"))}
	for _, p := range rules.Git {
		m.outside = append(m.outside, parsePatterns(string(p.Text)))
	}
	if len(rules.Tracked) > 0 {
		m.tracked = map[string]bool{}
	}
	for name := range strings.SplitSeq(strings.TrimSuffix(string(rules.Tracked), "\x00"), "\x00") {
		for name != "" && name != "." && !m.tracked[name] {
			m.tracked[name] = true
			name = path.Dir(name)
		}
	}
	m.enter("")
	return m
}

// enter goes down into a folder, whose ignore files count from here on.
func (m *matcher) enter(dir string) {
	l := level{dir: dir}
	if m.rules.Read {
		l.git = parsePatterns(m.read(dir, ".gitignore"))
	}
	if m.rules.Cove {
		l.cove = parsePatterns(m.read(dir, ".coveignore"))
	}
	if dir == "" || l.git != nil || l.cove != nil {
		m.levels = append(m.levels, l)
	}
}

// skip says why a path does not travel; empty: it does. Its parents do.
func (m *matcher) skip(name string, dir bool) string {
	base := path.Base(name)
	if why := neverTravels(base); why != "" {
		return why
	}
	for len(m.levels) > 1 && !below(name, m.levels[len(m.levels)-1].dir) {
		m.levels = m.levels[:len(m.levels)-1]
	}
	if v := lastMatch(m.exclude, name, base, dir); v != 0 {
		return verdict(v, skipExclude)
	}
	for i := len(m.levels) - 1; i >= 0; i-- {
		l := &m.levels[i]
		if v := lastMatch(l.cove, relative(name, l.dir), base, dir); v != 0 {
			return verdict(v, skipExclude)
		}
	}
	ignored := m.ignored(name, base, dir)
	if !below(name, m.only) {
		m.only = ""
	}
	if m.tracked[name] {
		if dir && ignored && m.only == "" {
			m.only = name
		}
		return ""
	}
	if ignored || m.only != "" {
		return skipIgnored
	}
	return ""
}

// ignored reports whether git's rules ignore a path.
func (m *matcher) ignored(name, base string, dir bool) bool {
	for i := len(m.levels) - 1; i >= 0; i-- {
		l := &m.levels[i]
		if v := lastMatch(l.git, relative(name, l.dir), base, dir); v != 0 {
			return v > 0
		}
	}
	for i := len(m.outside) - 1; i >= 0; i-- {
		if v := lastMatch(m.outside[i], path.Join(string(m.rules.Git[i].Dir), name), base, dir); v != 0 {
			return v > 0
		}
	}
	return false
}

func verdict(v int, why string) string {
	if v > 0 {
		return why
	}
	return ""
}

func relative(name, dir string) string {
	if dir == "" {
		return name
	}
	return name[len(dir)+1:]
}
