package acpserver

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/url"
	"path"
	"path/filepath"
	"strings"
)

// Folders are the project's folder here, and the sprite's folder that corresponds to it.
// Both are absolute and clean.
type Folders struct {
	Here  string
	There string
	Name  string // of the sprite
}

// there maps a path of this machine to the sprite. It reports false, and returns the clean
// path, if the path is not in the project.
func (f Folders) there(name string) (string, bool) {
	name = filepath.Clean(name)
	for _, here := range []string{f.Here, resolved(f.Here)} {
		if rest, ok := below(name, here); ok {
			return path.Join(f.There, rest), true
		}
	}
	return name, false
}

func resolved(name string) string {
	if real, err := filepath.EvalSymlinks(name); err == nil {
		return real
	}
	return name
}

// below returns the part of a clean path that follows folder, and whether name is folder
// or below it.
func below(name, folder string) (string, bool) {
	if name == folder {
		return "", true
	}
	return strings.CutPrefix(name, strings.TrimSuffix(folder, "/")+"/")
}

// toSprite maps a path of the editor's to the sprite. A path outside of the project stays
// as it is: the sprite has another file there, or none.
func (f Folders) toSprite(name string) string {
	there, _ := f.there(name)
	return there
}

// toEditor maps a path of the sprite's to this machine. A path outside of the project is
// put below /sprites/NAME, so that it names no file of this machine.
func (f Folders) toEditor(name string) string {
	name = path.Clean(name)
	if rest, ok := below(name, f.There); ok {
		return filepath.Join(f.Here, rest)
	}
	return path.Join("/sprites", f.Name, name)
}

// opaque are fields that no editor looks for paths in.
var opaque = map[string]bool{"rawInput": true, "rawOutput": true}

// rewrite maps the paths in a decoded message: the values of the fields that have paths.
func (f Folders) rewrite(v any, to func(string) string) {
	switch v := v.(type) {
	case map[string]any:
		for key, value := range v {
			text, isText := value.(string)
			switch {
			case isText && (key == "path" || key == "cwd"):
				v[key] = f.mapPath(text, to)
			case isText && key == "uri":
				v[key] = f.mapURI(text, to)
			case !opaque[key]:
				f.rewrite(value, to)
			}
		}
	case []any:
		for _, each := range v {
			f.rewrite(each, to)
		}
	}
}

// mapPath maps a path. The protocol's paths are absolute. The editor would take a relative
// path as one below some folder of this machine, so it counts as below the project's.
func (f Folders) mapPath(text string, to func(string) string) string {
	switch {
	case text == "":
		return ""
	case !strings.HasPrefix(text, "/"):
		text = path.Join(f.There, text)
	}
	return to(text)
}

// mapURI maps a file's URI, and leaves others as they are. An editor may also take a text for
// a file's that is not a URI, or has its path elsewhere. Such a text becomes the root's URI.
func (f Folders) mapURI(text string, to func(string) string) string {
	u, err := url.Parse(text)
	switch {
	case err != nil:
		u = &url.URL{Path: "/"}
	case u.Scheme != "" && u.Scheme != "file":
		return text
	case u.Path == "" || u.Opaque != "":
		u.Path = "/"
	}
	u.Scheme, u.Opaque, u.Host, u.RawPath = "file", "", "", ""
	u.Path = f.mapPath(u.Path, to)
	return u.String()
}

// dropMeta removes all _meta fields. They are not part of the protocol, and editors may
// take from them what a stranger must not choose, such as commands to run.
func dropMeta(v any) {
	switch v := v.(type) {
	case map[string]any:
		delete(v, "_meta")
		for _, value := range v {
			dropMeta(value)
		}
	case []any:
		for _, each := range v {
			dropMeta(each)
		}
	}
}

var errNotAll = errors.New("there is more than one value")

// decode reads one value, with numbers as they are.
func decode(raw json.RawMessage, v any) error {
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	if err := dec.Decode(v); err != nil {
		return err
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return errNotAll
	}
	return nil
}

// encode writes what was decoded.
func encode(v any) json.RawMessage {
	text, err := json.Marshal(v)
	if err != nil {
		return json.RawMessage("null")
	}
	return text
}
