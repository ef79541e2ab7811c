// Package tomldoc writes and reads values as TOML whose names are those of their JSON, so that a
// document of the API can be kept in a file for people.
package tomldoc

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/pelletier/go-toml/v2"
)

// Parse reads TOML into a value, by the names of its JSON. A name that the value has not is an
// error, and so is an empty document.
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
