package supervise

import (
	"encoding/json"
	"errors"
	"strings"

	"github.com/cove-dev/cove"
)

// maxDepth bounds how deep a line of JSON is looked into.
const maxDepth = 16

// matches reports whether a rule picks a line. The beginning of the line is enough if it has
// the values that the rule asks for.
func matches(rule cove.LineRule, stream, text string) bool {
	if stream != rule.Stream || !strings.HasPrefix(text, "{") {
		return false
	}
	paths := make([]string, 0, len(rule.Fields))
	for path := range rule.Fields {
		paths = append(paths, path)
	}
	got := fields(text, paths...)
	for path, want := range rule.Fields {
		if got[path] != want {
			return false
		}
	}
	return true
}

// fields returns the strings that stand at dotted paths of a JSON object, as far
// as the text goes.
func fields(text string, paths ...string) map[string]string {
	f := finder{dec: json.NewDecoder(strings.NewReader(text)), want: map[string]bool{}, got: map[string]string{}}
	for _, path := range paths {
		f.want[path] = true
	}
	_ = f.value("", 0) // what was found until then counts
	return f.got
}

type finder struct {
	dec  *json.Decoder
	want map[string]bool
	got  map[string]string
}

var errEnough = errors.New("found all, or too deep")

// value reads the value at a path.
func (f *finder) value(path string, depth int) error {
	if len(f.got) == len(f.want) || depth > maxDepth {
		return errEnough
	}
	token, err := f.dec.Token()
	if err != nil {
		return err
	}
	switch t := token.(type) {
	case string:
		if f.want[path] {
			f.got[path] = t
		}
	case json.Delim:
		for f.dec.More() {
			below := path + "[]" // never asked for
			if t == '{' {
				key, err := f.dec.Token()
				if err != nil {
					return err
				}
				name, _ := key.(string) // in an object it is one
				below = strings.TrimPrefix(path+"."+name, ".")
			}
			if err := f.value(below, depth+1); err != nil {
				return err
			}
		}
		_, err = f.dec.Token() // the closing one
	}
	return err
}
