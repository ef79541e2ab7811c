package filesync

import (
	"path"
	"strings"

	"github.com/cove-dev/cove/internal/lib/gitignore"
)

// Rules say which files of a tree do not travel. The zero value leaves out only files that
// never travel. Both ends have the same rules, in the syntax of gitignore. A later field of
// this list wins over an earlier one, and within a file the last matching line wins.
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

// The reasons why something does not travel.
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

// Ruled reports whether a rule, or cove's own habit, left it out, and not its nature.
func (k Skipped) Ruled() bool {
	switch k.Reason {
	case skipIgnored, skipExclude, skipGit, skipOwn, skipTheirs:
		return true
	}
	return false
}

// A matcher decides on the paths of one walk, in the order of comparePaths.
type matcher struct {
	rules   Rules
	read    func(dir, name string) string // the text of an ignore file; empty: none
	exclude []gitignore.Pattern
	outside [][]gitignore.Pattern // of rules.Git
	tracked map[string]bool       // and the folders above them
	only    string                // an ignored folder in which only what is tracked travels; empty: none
	levels  []level
}

type level struct {
	dir       string // "" is the root
	git, cove []gitignore.Pattern
}

// newMatcher makes a matcher. The caller must enter the root first.
func newMatcher(rules Rules, read func(dir, name string) string) *matcher {
	m := &matcher{rules: rules, read: read, exclude: gitignore.Parse(strings.Join(rules.Exclude, "\n"))}
	for _, p := range rules.Git {
		m.outside = append(m.outside, gitignore.Parse(string(p.Text)))
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
	return m
}

// enter goes down into a folder, whose ignore files count from here on.
func (m *matcher) enter(dir string) {
	l := level{dir: dir}
	if m.rules.Read {
		l.git = gitignore.Parse(m.read(dir, ".gitignore"))
	}
	if m.rules.Cove {
		l.cove = gitignore.Parse(m.read(dir, ".coveignore"))
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
	if base == spriteName && !dir {
		return skipOwn
	}
	for len(m.levels) > 1 && !below(name, m.levels[len(m.levels)-1].dir) {
		m.levels = m.levels[:len(m.levels)-1]
	}
	if v := gitignore.LastMatch(m.exclude, name, base, dir); v != 0 {
		return verdict(v, skipExclude)
	}
	for i := len(m.levels) - 1; i >= 0; i-- {
		l := &m.levels[i]
		if v := gitignore.LastMatch(l.cove, relative(name, l.dir), base, dir); v != 0 {
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
		if v := gitignore.LastMatch(l.git, relative(name, l.dir), base, dir); v != 0 {
			return v > 0
		}
	}
	for i := len(m.outside) - 1; i >= 0; i-- {
		if v := gitignore.LastMatch(m.outside[i], path.Join(string(m.rules.Git[i].Dir), name), base, dir); v != 0 {
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
