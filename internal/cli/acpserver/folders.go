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

// Folders are the project's folder here, and the one in the sprite that stands for it.
// Both are absolute and clean.
type Folders struct {
	Here  string
	There string
	Name  string // of the sprite
}

// there is what a path of this machine is in the sprite, if it is in the project.
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

// below is the rest of a clean path below a folder.
func below(name, folder string) (string, bool) {
	if name == folder {
		return "", true
	}
	return strings.CutPrefix(name, strings.TrimSuffix(folder, "/")+"/")
}

// toSprite maps a path of the editor's. What is outside of the project stays a path,
// behind which the sprite has something else, or nothing.
func (f Folders) toSprite(name string) string {
	there, _ := f.there(name)
	return there
}

// toEditor maps a path of the sprite's. What is outside of the project there is not the
// file of that name here.
func (f Folders) toEditor(name string) string {
	name = path.Clean(name)
	if rest, ok := below(name, f.There); ok {
		return filepath.Join(f.Here, rest)
	}
	return path.Join("/sprites", f.Name, name)
}

// opaque are fields that no editor looks for paths in.
var opaque = map[string]bool{"rawInput": true, "rawOutput": true}

// rewrite maps every path in a decoded message, where it stands in a field that is one.
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

// mapPath maps a path. The protocol's are absolute: what is not would be taken for one
// below some folder of this machine, and is below the project's instead.
func (f Folders) mapPath(text string, to func(string) string) string {
	switch {
	case text == "":
		return ""
	case !strings.HasPrefix(text, "/"):
		text = path.Join(f.There, text)
	}
	return to(text)
}

// mapURI maps a file's URI; any other stays. An editor may read as a file's what is no
// URI, or names its path in another way: that is the root.
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

// dropMeta removes what is no part of the protocol: editors take more from there than
// a stranger should say, commands to run among it.
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
