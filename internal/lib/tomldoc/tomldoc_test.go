package tomldoc

import (
	"reflect"
	"strings"
	"testing"
)

type document struct {
	Name  string         `json:"name"`
	Count int64          `json:"count,omitempty"`
	Price float64        `json:"price,omitempty"`
	Parts []part         `json:"parts,omitempty"`
	Env   map[string]int `json:"env,omitempty"`
}

type part struct {
	Domain string `json:"domain"`
}

// TestRoundTrip: a value is read as it was written.
func TestRoundTrip(t *testing.T) {
	want := document{Name: "a \"b\"\nc", Count: 1 << 53, Price: 0.25, Parts: []part{{"x"}, {"y"}}, Env: map[string]int{"A": 1}}
	text, err := Text(want)
	if err != nil {
		t.Fatal(err)
	}
	var got document
	if err := Parse([]byte(text), &got); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v, of\n%s", got, err, text)
	}
}

// TestParseRefuses: an error names the line, or the field.
func TestParseRefuses(t *testing.T) {
	for text, want := range map[string]string{
		"":                       "empty",
		"name = 'x'\ncount = ":   "line 2",
		"name = 'x'\nnaem = 'y'": `unknown field "naem"; did you mean name?`,
		"count = 'many'":         "count",
		"par = 1":                `unknown field "par"; did you mean parts?`,
		"zzz = 1":                `unknown field "zzz"`,
		"[[parts]]\ndomian = 1":  `unknown field "parts.domian"; did you mean parts.domain?`,
	} {
		var d document
		if err := Parse([]byte(text), &d); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %s", text, err, want)
		}
	}
}
