// Package safepath judges names that a sandbox chose, before the host makes a file
// of that name. It is pure: it looks at no file system.
package safepath

import (
	"errors"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// The kernel's limit for a path, with its end mark, and file systems' limit for a name, in
// bytes.
const (
	MaxPath = 4096
	MaxName = 255
)

// Check says what is wrong with a slash-separated path below a root: it must be
// in its shortest form and lead downwards. "." is not such a path.
func Check(name string) error {
	switch {
	case name == "":
		return errors.New("it has no name")
	case len(name) >= MaxPath:
		return errors.New("its name is too long")
	case strings.ContainsRune(name, 0):
		return errors.New("its name has a zero byte")
	case name[0] == '/':
		return errors.New("its name is absolute")
	}
	for part := range strings.SplitSeq(name, "/") {
		switch {
		case part == "" || part == ".":
			return errors.New("its name is not in its shortest form")
		case part == "..":
			return errors.New(`its name has ".."`)
		case len(part) > MaxName:
			return fmt.Errorf("a part of its name is longer than %d bytes", MaxName)
		}
	}
	return nil
}

// HasDotGit reports whether some file system takes a part of a path for .git.
func HasDotGit(name string) bool {
	for part := range strings.SplitSeq(name, "/") {
		if IsDotGit(part) {
			return true
		}
	}
	return false
}

// LinkLeaves reports whether a symbolic link in the folder dir ("." is the root)
// climbs above the root anywhere on its way, or is absolute. A name in the target may itself
// be a link, whose target was judged by its own place. A ".." after the name would be judged
// by this place, so a target with ".." after a name counts as leaving.
func LinkLeaves(dir, target string) bool {
	if strings.HasPrefix(target, "/") {
		return true
	}
	depth := 0
	if dir != "." && dir != "" {
		depth = strings.Count(dir, "/") + 1
	}
	named := false
	for part := range strings.SplitSeq(target, "/") {
		switch part {
		case "", ".":
		case "..":
			if depth--; depth < 0 || named {
				return true
			}
		default:
			depth++
			named = true
		}
	}
	return false
}

// IsDotGit reports whether some file system takes a file's name for .git.
func IsDotGit(name string) bool { return IsDotFile(name, "git", "git") }

// IsDotFile reports whether some file system takes name for "."+want, by the rules of Fold or
// as its short name on NTFS (short begins that name).
func IsDotFile(name, want, short string) bool {
	if len(name) < len(want) {
		return false
	}
	name = Fold(name)
	if name == "."+want {
		return true
	}
	digits, ok := strings.CutPrefix(name, short+"~")
	return ok && digits != "" && strings.Trim(digits, "0123456789") == ""
}

// Fold gives one form to all names that some file system takes for the same. They differ in
// case, in characters that HFS+ and ext4 ignore when they compare names, or in an end that
// NTFS drops. Fold may equate more names than any of these file systems does.
func Fold(name string) string {
	if isPlain(name) {
		return name
	}
	name = strings.ToValidUTF8(name, string(utf8.RuneError))
	var b strings.Builder
	for _, r := range name {
		switch {
		case isIgnored(r):
		case ligatures[r] != "":
			b.WriteString(ligatures[r])
		default:
			b.WriteRune(foldRune(r))
		}
	}
	name, _, _ = strings.Cut(b.String(), ":") // a stream of NTFS
	return strings.TrimRight(name, ". ")
}

// FoldPath is Fold of each part of a slash-separated path.
func FoldPath(name string) string {
	if isPlain(name) && !strings.Contains(name, "./") && !strings.Contains(name, " /") {
		return name
	}
	parts := strings.Split(name, "/")
	for i, part := range parts {
		parts[i] = Fold(part)
	}
	return strings.Join(parts, "/")
}

// isPlain reports whether a name is its own form, as nearly all are.
func isPlain(name string) bool {
	for i := range len(name) {
		if c := name[i]; c >= utf8.RuneSelf || 'A' <= c && c <= 'Z' || c == ':' {
			return false
		}
	}
	return !strings.HasSuffix(name, ".") && !strings.HasSuffix(name, " ")
}

// foldRune is the least of the letters that differ only by case; for an ASCII letter, the
// lower-case one.
func foldRune(r rune) rune {
	r = unicode.ToLower(r)
	least := r
	for other := unicode.SimpleFold(r); other != r; other = unicode.SimpleFold(other) {
		if small := unicode.ToLower(other); small < least {
			least = small
		}
	}
	return least
}

// ligatures are the letters that Unicode's full case folding (CaseFolding.txt, status F) turns
// into several ASCII letters.
var ligatures = map[rune]string{
	'ß': "ss", 'ẞ': "ss", '\ufb00': "ff", '\ufb01': "fi", '\ufb02': "fl", '\ufb03': "ffi", '\ufb04': "ffl", '\ufb05': "st", '\ufb06': "st",
}

// isIgnored reports whether some file system ignores a code point when it compares names. HFS+
// ignores those of git's own next_hfs_char; ext4, in a folder without case, ignores those that
// Unicode calls default ignorable.
func isIgnored(r rune) bool {
	return r >= utf8.RuneSelf && unicode.In(r, unicode.Cf, unicode.Other_Default_Ignorable_Code_Point, unicode.Variation_Selector)
}

// GitParts are names in a folder that make git take the folder for a repository, even without
// a .git. Git then runs what the configuration and the hooks in the folder say (git's
// is_git_directory; git-config, safe.bareRepository).
type GitParts uint8

const (
	gitHead GitParts = 1 << iota
	gitObjects
	gitRefs
	gitCommon
)

// GitPart is the part that a file, folder or link of this name would be; 0: none.
func GitPart(name string) GitParts {
	switch Fold(name) {
	case "head":
		return gitHead
	case "objects":
		return gitObjects
	case "refs":
		return gitRefs
	case "commondir":
		return gitCommon
	}
	return 0
}

// Repository reports whether a folder with these parts can be a repository. It does not check
// whether the parts are sound: that can change with the next file that comes.
func (p GitParts) Repository() bool {
	const whole = gitHead | gitObjects | gitRefs
	const linked = gitHead | gitCommon
	return p&whole == whole || p&linked == linked
}
