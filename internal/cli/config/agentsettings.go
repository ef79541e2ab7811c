package config

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/server/agents"
)

// Bounds of what goes along.
const (
	maxSettings     = 500       // files
	maxSetting      = 256 << 10 // bytes of one
	maxSettingsSize = 2 << 20   // of all
	maxSettingsDeep = 8
)

// LeftOut is a file of a person's settings that stays here.
type LeftOut struct {
	File string `json:"file"` // below the home
	Why  string `json:"why"`
}

// AgentSettings reads the files of a person's settings for an agent that may go along with
// a job. They are the files that s names. Links, files with the name of one with credentials,
// and files with text that looks like a key are left out. The second result lists the files
// that are left out, and why.
func AgentSettings(home string, s agents.Settings) (files []cove.SettingsFile, left []LeftOut, err error) {
	root, err := os.OpenRoot(filepath.Join(home, s.Folder)) // which may be a link of the person's
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, err
	}
	defer root.Close()
	c := &settingsCollector{root: root, of: s}
	for _, name := range s.Files {
		if dir, ok := strings.CutSuffix(name, "/"); ok {
			err = c.folder(dir, 0)
		} else {
			err = c.file(name)
		}
		if err != nil {
			return nil, nil, fmt.Errorf("your settings in ~/%s: %w", s.Folder, err)
		}
	}
	return c.files, c.left, nil
}

type settingsCollector struct {
	root  *os.Root
	of    agents.Settings
	files []cove.SettingsFile
	left  []LeftOut
	size  int
}

func (c *settingsCollector) leave(name, why string) {
	c.left = append(c.left, LeftOut{path.Join(c.of.Folder, name), why})
}

// folder takes what is in a folder, if there is one.
func (c *settingsCollector) folder(name string, depth int) error {
	info, err := c.root.Lstat(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case !info.IsDir():
		c.leave(name, "it is a link, or not a folder")
		return nil
	case depth == maxSettingsDeep:
		c.leave(name, "it is nested too deep")
		return nil
	}
	f, err := c.root.Open(name)
	if err != nil {
		return err
	}
	entries, err := f.ReadDir(-1)
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	slices.SortFunc(entries, func(a, b fs.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
	for _, e := range entries {
		inside := path.Join(name, e.Name())
		switch why := forbiddenName(e.Name()); {
		case why != "":
			c.leave(inside, why)
		case e.IsDir():
			err = c.folder(inside, depth+1)
		default:
			err = c.file(inside)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// file takes one, if it is there and nothing speaks against it.
func (c *settingsCollector) file(name string) error {
	info, err := c.root.Lstat(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case !info.Mode().IsRegular():
		c.leave(name, "it is a link, or not a file: put a copy there")
		return nil
	case info.Size() > maxSetting:
		c.leave(name, fmt.Sprintf("it is longer than %d KiB", maxSetting>>10))
		return nil
	}
	text, err := c.read(name, info)
	if err != nil {
		return err
	}
	if keys, ok := c.of.Keys[name]; ok {
		if text, err = onlyKeys(text, keys); err != nil {
			c.leave(name, "it is not a JSON object")
			return nil
		}
	}
	if why := forbiddenText(text); why != "" {
		c.leave(name, why)
		return nil
	}
	if c.size += len(text); len(c.files) == maxSettings || c.size > maxSettingsSize {
		return fmt.Errorf("they are more than %d files, or %d MiB", maxSettings, maxSettingsSize>>20)
	}
	c.files = append(c.files, cove.SettingsFile{Path: path.Join(c.of.Folder, name), Text: text, Executable: info.Mode()&0o100 != 0})
	return nil
}

// read reads a file, if it is still the one that was checked (seen).
func (c *settingsCollector) read(name string, seen fs.FileInfo) (string, error) {
	f, err := c.root.Open(name)
	if err != nil {
		return "", err
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !os.SameFile(info, seen) {
		return "", errors.Join(err, fmt.Errorf("%s is being changed", name))
	}
	text, err := io.ReadAll(io.LimitReader(f, maxSetting))
	return string(text), err
}

// onlyKeys is a JSON object without its other keys.
func onlyKeys(text string, keys []string) (string, error) {
	var all map[string]json.RawMessage
	if err := json.Unmarshal([]byte(text), &all); err != nil {
		return "", err
	}
	maps.DeleteFunc(all, func(key string, _ json.RawMessage) bool { return !slices.Contains(keys, key) })
	kept, err := json.MarshalIndent(all, "", "  ")
	return string(kept) + "\n", err
}

// credentialNames are the names of files and folders that hold credentials or conversations.
var credentialNames = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`(?i)credential|secret|passw|token|oauth|keychain|keyring|cookie|netrc|history|(^|[._-])auth([._-]|$)|(^|[._-])env([._-]|$)|^\.(npmrc|pypirc|git|ssh|gnupg|aws|kube|docker|claude\.json)$|^(id_(rsa|dsa|ecdsa|ed25519).*|hosts\.ya?ml|node_modules)$|\.(pem|key|p12|pfx|jks|kdbx|asc|gpg|jsonl|sqlite|db)$`)
})

// forbiddenName says why no file of that name goes along; empty: it may.
func forbiddenName(name string) string {
	if credentialNames().MatchString(name) {
		return "files of this name hold credentials"
	}
	return ""
}

// keyShapes are what keys and tokens look like.
var keyShapes = sync.OnceValue(func() []*regexp.Regexp {
	return []*regexp.Regexp{
		regexp.MustCompile(`\b(sk|pk|rk)[-_][A-Za-z0-9_-]{16,}`),
		regexp.MustCompile(`\b(gh[pousr]_|github_pat_|glpat-|xox[abeoprs]-|npm_|pypi-|hf_|dop_v1_|shpat_|ya29\.|AIza|cove_)[A-Za-z0-9_.-]{16,}`),
		regexp.MustCompile(`\b(AKIA|ASIA)[A-Z0-9]{16}\b`),
		regexp.MustCompile(`-----BEGIN [A-Z ]*PRIVATE KEY`),
		regexp.MustCompile(`\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}`),
		regexp.MustCompile(`(?i)\b(bearer|basic)\s+[A-Za-z0-9+/._~-]{16,}`),
		regexp.MustCompile(`[a-z][a-z0-9+.-]*://[^/\s:@"']+:[^/\s@"']+@`),
		regexp.MustCompile(`(?i)(api[_-]?key|secret|token|passw(or)?d|credential|private[_-]?key|authorization)[A-Za-z0-9_-]*["']?\s*[:=]\s*["']?[^\s"'<>$(){}]{8,}`),
	}
})

// longText matches a text that may be a key without a known shape.
var longText = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`[A-Za-z0-9+/_=-]{32,}`) })

// forbiddenText says what in a text looks like a key; empty: nothing does.
func forbiddenText(text string) string {
	if !utf8.ValidString(text) || strings.ContainsRune(text, 0) {
		return "it is not text, so cove can't search it for keys"
	}
	n := 0
	for line := range strings.Lines(text) {
		n++
		for _, shape := range keyShapes() {
			if shape.MatchString(line) {
				return fmt.Sprintf("something in line %d looks like a key", n)
			}
		}
		if slices.ContainsFunc(longText().FindAllString(line, -1), random) {
			return fmt.Sprintf("something in line %d looks like a key", n)
		}
	}
	return ""
}

// leastBits is the entropy of a letter from which on a text is nobody's words.
const leastBits = 4.2

// random reports whether a text without spaces looks made by chance: it has letters of
// both cases and digits, and few of them twice.
func random(text string) bool {
	counts := map[rune]float64{}
	var lower, upper, digit bool
	for _, r := range text {
		counts[r]++
		lower, upper, digit = lower || r >= 'a' && r <= 'z', upper || r >= 'A' && r <= 'Z', digit || r >= '0' && r <= '9'
	}
	bits := 0.0
	for _, n := range counts {
		p := n / float64(len(text))
		bits -= p * math.Log2(p)
	}
	return lower && upper && digit && bits >= leastBits
}
