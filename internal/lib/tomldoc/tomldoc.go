// Package tomldoc writes and reads values as TOML, with the names of their JSON. So people can
// keep a document of the API in a file.
package tomldoc

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/pelletier/go-toml/v2"

	"github.com/cove-dev/cove/internal/lib/editdistance"
)

// Parse reads TOML into a value, by the names of its JSON. A name that the value does not have
// is an error, and so is an empty document.
func Parse(text []byte, into any) error {
	var all map[string]any
	if err := toml.Unmarshal(text, &all); err != nil {
		if at, ok := errors.AsType[*toml.DecodeError](err); ok {
			line, _ := at.Position()
			err = fmt.Errorf("line %d: %s", line, strings.TrimPrefix(at.Error(), "toml: "))
		}
		return err
	}
	if len(all) == 0 {
		return errors.New("it is empty")
	}
	if err := known(all, reflect.TypeOf(into), ""); err != nil {
		return err
	}
	doc, err := json.Marshal(all)
	if err != nil {
		return err
	}
	dec := json.NewDecoder(bytes.NewReader(doc))
	dec.DisallowUnknownFields()
	if err := dec.Decode(into); err != nil {
		return errors.New(strings.TrimPrefix(err.Error(), "json: "))
	}
	return nil
}

// known returns an error if a document has a name that its type does not have. The path leads
// to the document, and ends with a dot unless it is empty.
func known(doc any, t reflect.Type, path string) error {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if reflect.PointerTo(t).Implements(reflect.TypeFor[json.Unmarshaler]()) {
		return nil // it reads itself
	}
	switch doc := doc.(type) {
	case []any:
		if t.Kind() != reflect.Slice {
			return nil // which decoding says
		}
		for _, part := range doc {
			if err := known(part, t.Elem(), path); err != nil {
				return err
			}
		}
	case map[string]any:
		if t.Kind() != reflect.Struct {
			return nil
		}
		fields := map[string]reflect.Type{}
		for _, f := range reflect.VisibleFields(t) {
			if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name != "" && name != "-" {
				fields[name] = f.Type
			}
		}
		for _, name := range slices.Sorted(maps.Keys(doc)) {
			field, ok := fields[name]
			if !ok {
				return fmt.Errorf("unknown field %q%s", path+name, meant(name, path, slices.Sorted(maps.Keys(fields))))
			}
			if err := known(doc[name], field, path+name+"."); err != nil {
				return err
			}
		}
	}
	return nil
}

// meant suggests the name that was probably meant.
func meant(given, path string, names []string) string {
	i, _ := editdistance.Nearest(given, names)
	if i < 0 {
		return ""
	}
	return "; did you mean " + path + names[i] + "?"
}

// Text writes a value as Parse reads it. Its JSON must be an object.
func Text(value any) (string, error) {
	doc, err := json.Marshal(value)
	if err != nil {
		return "", err
	}
	var all map[string]any
	dec := json.NewDecoder(bytes.NewReader(doc))
	dec.UseNumber()
	if err := dec.Decode(&all); err != nil {
		return "", err
	}
	text, err := toml.Marshal(numbers(all))
	return string(text), err
}

// numbers turns JSON's numbers, wherever they are in v, into those of TOML.
func numbers(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for key, value := range v {
			v[key] = numbers(value)
		}
	case []any:
		for i, value := range v {
			v[i] = numbers(value)
		}
	case json.Number:
		if n, err := v.Int64(); err == nil {
			return n
		}
		f, _ := v.Float64() // what Go wrote, it reads
		return f
	}
	return v
}
