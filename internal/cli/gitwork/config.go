package gitwork

import (
	"context"
	"os"
	"path/filepath"
	"strings"
)

// allowed are the settings that cove takes from the person's configuration: how files
// are stored, and who the person is. None of these settings names a program.
var allowed = []string{
	"core.autocrlf", "core.eol", "core.safecrlf", "core.ignorecase", "core.precomposeunicode",
	"core.symlinks", "core.filemode", "core.sharedrepository", "core.trustctime", "core.checkstat",
	"user.name", "user.email",
}

// configuration is what a repository's effective configuration says, as plain git
// sees it.
type configuration struct {
	values  map[string]string // the last value of each key; keys as git writes them: section and name in small letters
	filters []string          // names of filter drivers
	merges  []string          // names of merge drivers
}

// readConfig asks plain git for the effective configuration in dir. This runs
// nothing but git itself.
func readConfig(ctx context.Context, g runner) (configuration, error) {
	out, err := g.run(ctx, call{args: []string{"config", "-z", "--list"}, plain: true})
	if err != nil {
		return configuration{}, err
	}
	c := configuration{values: map[string]string{}}
	filters, merges := map[string]bool{}, map[string]bool{}
	for entry := range strings.SplitSeq(string(out), "\x00") {
		if entry == "" {
			continue
		}
		key, value, ok := strings.Cut(entry, "\n")
		if !ok {
			value = "true"
		}
		c.values[key] = value
		if name, ok := driver(key, "filter."); ok && !filters[name] {
			filters[name] = true
			c.filters = append(c.filters, name)
		}
		if name, ok := driver(key, "merge."); ok && !merges[name] {
			merges[name] = true
			c.merges = append(c.merges, name)
		}
	}
	return c, nil
}

// driver is the middle of a key such as filter.NAME.clean.
func driver(key, section string) (string, bool) {
	rest, ok := strings.CutPrefix(key, section)
	dot := strings.LastIndexByte(rest, '.')
	if !ok || dot < 0 {
		return "", false
	}
	return rest[:dot], true
}

// settings are the person's allowed values, and every driver made harmless:
// filters pass content through, merge drivers report a conflict.
func (c configuration) settings() []setting {
	var s []setting
	for _, key := range allowed {
		if v, ok := c.values[key]; ok {
			s = append(s, setting{key, v})
		}
	}
	for key, name := range map[string]string{"core.excludesfile": "ignore", "core.attributesfile": "attributes"} {
		if path := c.file(key, name); path != "" {
			s = append(s, setting{key, path})
		}
	}
	for _, name := range c.filters {
		f := "filter." + name + "."
		s = append(s, setting{f + "clean", ""}, setting{f + "smudge", ""}, setting{f + "process", ""}, setting{f + "required", "false"})
	}
	for _, name := range c.merges {
		s = append(s, setting{"merge." + name + ".driver", "false"})
	}
	return s
}

// file is the path that key names, or git's default for it.
func (c configuration) file(key, name string) string {
	home, _ := os.UserHomeDir()
	if v, ok := c.values[key]; ok {
		if rest, ok := strings.CutPrefix(v, "~/"); ok && home != "" {
			return filepath.Join(home, rest)
		}
		return v
	}
	dir := os.Getenv("XDG_CONFIG_HOME")
	if dir == "" && home != "" {
		dir = filepath.Join(home, ".config")
	}
	if dir == "" {
		return ""
	}
	path := filepath.Join(dir, "git", name)
	if _, err := os.Stat(path); err != nil {
		return ""
	}
	return path
}
