package config

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/pelletier/go-toml/v2"
)

// ServeFile is the name of a server's own settings in its data folder.
const ServeFile = "serve.toml"

// Serve are the settings of a server: the values that `cove serve` uses for flags that are
// not given, no matter what starts it. The zero value has none.
type Serve struct {
	File string // it was read from; empty: there is none

	// Flags has the values by the name of the flag; several of one that may be repeated.
	Flags map[string][]string

	// NoAutostart says that somebody else starts the server, such as systemd: the other
	// commands do not.
	NoAutostart bool
}

// autostartKey is the only key that is not a flag of serve.
const autostartKey = "autostart"

// StartFlags are the flags of serve that can't be settings: they are for one start.
var StartFlags = []string{"accept-older-store", "config", "data", "forget-sealed"}

// ReadServe reads the settings of a server. A missing file is an error only if must is set.
// known reports whether a flag exists; nil accepts any. Invalid settings are Problems.
func ReadServe(file string, must bool, known func(flag string) bool) (Serve, error) {
	data, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) && !must {
		return Serve{}, nil
	}
	if err != nil {
		return Serve{}, fmt.Errorf("read the server's settings: %w", err)
	}
	if len(data) > maxFile {
		return Serve{}, fmt.Errorf("read the server's settings: %s is longer than %d bytes", file, maxFile)
	}
	var all map[string]any
	if err := toml.Unmarshal(data, &all); err != nil {
		problem := Problem{File: file, Message: strings.TrimPrefix(err.Error(), "toml: ")}
		if at, ok := errors.AsType[*toml.DecodeError](err); ok {
			problem.Line, _ = at.Position()
		}
		return Serve{}, Problems{problem}
	}
	s := Serve{File: file, Flags: map[string][]string{}}
	var problems Problems
	for key, value := range all {
		wrong := func(format string, args ...any) {
			problems = append(problems, Problem{File: file, Line: lineOf(data, key), Message: fmt.Sprintf(format, args...)})
		}
		if key == autostartKey {
			start, ok := value.(bool)
			if !ok {
				wrong("%s must be true or false", key)
			}
			s.NoAutostart = ok && !start
			continue
		}
		if slices.Contains(StartFlags, key) {
			wrong("%s is a flag for one start, not a setting; leave it out here, and type: cove serve --%s", key, key)
			continue
		}
		if known != nil && !known(key) {
			wrong("there is no setting %q of a server; the settings are the flags of cove serve, without --, and %s", key, autostartKey)
			continue
		}
		list, several := value.([]any)
		if !several {
			list = []any{value}
		}
		for _, one := range list {
			switch one.(type) {
			case string, int64, bool:
				s.Flags[key] = append(s.Flags[key], fmt.Sprint(one))
			default:
				wrong("%s must be a text, a number, true or false, or a list of texts", key)
			}
		}
	}
	if len(problems) > 0 {
		slices.SortFunc(problems, func(a, b Problem) int { return a.Line - b.Line })
		return Serve{}, problems
	}
	return s, nil
}

// lineOf is the line on which a key of the top level stands; 0: not found.
func lineOf(data []byte, key string) int {
	at := regexp.MustCompile(`(?m)^[ \t]*["']?` + regexp.QuoteMeta(key) + `["']?[ \t]*[=.]|^[ \t]*\[+[ \t]*` + regexp.QuoteMeta(key) + `\b`).FindIndex(data)
	if at == nil {
		return 0
	}
	return 1 + strings.Count(string(data[:at[0]]), "\n")
}
