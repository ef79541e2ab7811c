package config

import (
	"errors"
	"io/fs"
	"path/filepath"
	"strings"
)

// DefaultScript is the setup script of a repository that names no other.
const DefaultScript = Dir + "/setup.sh"

// A Script is what prepares a sprite before an agent works in it.
type Script struct {
	Name string // for people
	Text []byte
}

// Script reads the setup script that v, the value of SetupScript, names. A script that a
// repository names must be in its .cove; a path of the person's is relative to the file
// that names it. Without a value, the script is DefaultScript. Script returns nil if that
// does not exist, or if the value is "none". Errors are Problems.
func (p Places) Script(v Value) (*Script, error) {
	name, data, err := v.Text, []byte(nil), error(nil)
	switch {
	case name == "none":
		return nil, nil
	case name == "" || v.From == FromRepository:
		shown := name
		if name == "" {
			shown = DefaultScript
		}
		if p.Top == "" {
			return nil, nil
		}
		inside, ok := strings.CutPrefix(filepath.ToSlash(filepath.Clean(shown)), Dir+"/")
		if !ok {
			return nil, Problems{{File: v.File, Line: v.Line, Key: string(SetupScript), Message: shown + " is not below " + Dir,
				Hint: "a repository's setup script must be there, such as " + DefaultScript}}
		}
		if data, err = readOwn(p.Top, inside, maxScript); name == "" && errors.Is(err, fs.ErrNotExist) {
			return nil, nil
		}
		name = shown
	default:
		path, expandErr := Expand(name)
		if expandErr != nil {
			return nil, expandErr
		}
		if v.From == FromPersonal && !filepath.IsAbs(path) {
			path = filepath.Join(filepath.Dir(v.File), path)
		}
		data, err = readPersonal(path, maxScript)
	}
	if err == nil && len(strings.TrimSpace(string(data))) == 0 {
		err = errors.New("the script is empty")
	}
	if err != nil && v.File == "" {
		return nil, Problems{{File: name, Message: readError(err), Hint: "to go without a script: --setup none"}}
	}
	if err != nil {
		return nil, Problems{{File: v.File, Line: v.Line, Key: string(SetupScript), Message: name + ": " + readError(err), Hint: "to go without a script: --setup none"}}
	}
	return &Script{Name: name, Text: data}, nil
}
