// Package jsonbody decodes the JSON that somebody sent, and says what is wrong with it.
package jsonbody

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
)

// Decode decodes a document into v, a pointer to a struct. The document must be one object,
// and each of its fields must be one of v's. An unknown field may be a typing error, and would
// silently change nothing. An error names the field, and repeats no value. v may have been
// changed even if there is an error.
func Decode(data []byte, v any) error {
	dec := json.NewDecoder(bytes.NewReader(data))
	if first := bytes.TrimLeft(data, " \t\r\n"); len(first) == 0 || first[0] != '{' {
		if err := dec.Decode(new(any)); err != nil {
			return describe(err)
		}
		return errors.New("it must be an object: {…}")
	}
	dec.DisallowUnknownFields()
	if err := dec.Decode(v); err != nil {
		return describe(err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return errors.New("something follows the object")
	}
	return nil
}

// describe says what is wrong, in the terms of JSON.
func describe(err error) error {
	if e, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		got, _, _ := strings.Cut(e.Value, " ") // after a space it may repeat the value
		if e.Field == "" {
			return fmt.Errorf("it can't be %s", withArticle(got))
		}
		return fmt.Errorf("the field %.200q can't be %s: it is %s", e.Field, withArticle(got), kind(e.Type.Kind().String()))
	}
	if e, ok := errors.AsType[*json.SyntaxError](err); ok {
		return fmt.Errorf("at byte %d: %w", e.Offset, err)
	}
	switch {
	case errors.Is(err, io.EOF):
		return errors.New("it is empty")
	case errors.Is(err, io.ErrUnexpectedEOF):
		return errors.New("it ends too soon")
	}
	// encoding/json has no type for this error.
	if field, ok := strings.CutPrefix(err.Error(), "json: unknown field "); ok {
		return fmt.Errorf("there is no field %.200s", field)
	}
	return err
}

// kind is a kind of Go's in the terms of JSON.
func kind(of string) string {
	switch strings.TrimRight(of, "0123456789") {
	case "int", "uint":
		return "a whole number in its range"
	case "float":
		return "a number"
	case "bool":
		return "true or false"
	case "slice", "array":
		return "an array"
	case "struct", "map":
		return "an object"
	}
	return "a string"
}

func withArticle(word string) string {
	switch word {
	case "array", "object":
		return "an " + word
	case "bool":
		return "true or false"
	}
	return "a " + word
}
