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

// What the kernel takes as a path, and file systems as a name.
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
// climbs above the root anywhere on its way, or is absolute. A name in the target
// may be a link itself; what it leads to has been judged by its own place, and ".."
// after it by this one: so a target with ".." behind a name is refused.
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

// IsDotFile reports whether a file system would take name for "."+want: by case,
// by characters that HFS+ ignores, by what NTFS drops from the end, or by the
// short name that NTFS gives (short is what that begins with).
func IsDotFile(name, want, short string) bool {
	if len(name) < len(want) {
		return false
	}
	name = strings.Map(func(r rune) rune {
		if ignoredByHFS(r) {
			return -1
		}
		return unicode.ToLower(r)
	}, strings.ToValidUTF8(name, string(utf8.RuneError)))
	name, _, _ = strings.Cut(name, ":") // a stream of NTFS
	name = strings.TrimRight(name, ". ")
	if name == "."+want {
		return true
	}
	digits, ok := strings.CutPrefix(name, short+"~")
	return ok && digits != "" && strings.Trim(digits, "0123456789") == ""
}

// ignoredByHFS are the code points that HFS+ leaves out when it compares names
// (the list of git's own next_hfs_char).
func ignoredByHFS(r rune) bool {
	switch {
	case r >= 0x200c && r <= 0x200f, r >= 0x202a && r <= 0x202e, r >= 0x206a && r <= 0x206f, r == 0xfeff:
		return true
	}
	return false
}
