package jsonbody_test

import (
	"strings"
	"testing"

	"github.com/cove-dev/cove/internal/lib/jsonbody"
)

type document struct {
	Name  string          `json:"name"`
	Size  int8            `json:"size"`
	Cost  float64         `json:"cost"`
	Loud  *bool           `json:"loud"`
	Words []string        `json:"words"`
	Inner struct{ N int } `json:"inner"`
}

// TestDecode: a document is taken whole or refused, and the error names the field.
func TestDecode(t *testing.T) {
	for text, want := range map[string]string{
		`{"name":"a","size":3,"inner":{"N":1}}` + "\n": "",
		`{}`:                    "",
		``:                      "empty",
		` `:                     "empty",
		`null`:                  "must be an object",
		`[{"name":"a"}]`:        "must be an object",
		`"SECRET"`:              "must be an object",
		`nul`:                   "too soon",
		`{"name":"a"`:           "too soon",
		`{"name":'a'}`:          "at byte 9",
		`{"name":"a"}{}`:        "something follows",
		`{"name":"a"} x`:        "something follows",
		`{"other":"SECRET"}`:    `no field "other"`,
		`{"inner":{"M":1}}`:     `no field "M"`,
		`{"name":31337}`:        `"name" can't be a number: it is a string`,
		`{"size":"SECRET"}`:     `"size" can't be a string: it is a whole number`,
		`{"size":31337}`:        `"size" can't be a number: it is a whole number in its range`,
		`{"cost":[]}`:           `"cost" can't be an array: it is a number`,
		`{"loud":{}}`:           `"loud" can't be an object: it is true or false`,
		`{"words":true}`:        `"words" can't be true or false: it is an array`,
		`{"inner":{"N":"a"}}`:   `"inner.N" can't be a string`,
		`{"inner":"SECRET"}`:    `"inner" can't be a string: it is an object`,
		`{"words":["a",31337]}`: `"words`,
	} {
		var d document
		err := jsonbody.Decode([]byte(text), &d)
		switch {
		case want == "" && err != nil:
			t.Errorf("%s: %v", text, err)
		case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("%s: got %v, want %q", text, err, want)
		case err != nil && (strings.Contains(err.Error(), "SECRET") || strings.Contains(err.Error(), "31337")):
			t.Errorf("%s: the error repeats a value: %v", text, err)
		}
	}
}
