package tools

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
)

// TestRoles: P1, P2: the sprite's half denies tools that the role does not name. With an
// unknown role it denies everything.
func TestRoles(t *testing.T) {
	inputs := map[string]any{
		"Read": ReadInput{FilePath: "f"}, "Glob": GlobInput{Pattern: "*"}, "Grep": GrepInput{Pattern: "x"},
		"Write": WriteInput{FilePath: "w", Content: "x"}, "Edit": EditInput{FilePath: "f", OldString: "x", NewString: "x y"}, "Bash": BashInput{Command: "true"},
		"bash": BashInput{Command: "true"}, "Task": struct{}{}, "": struct{}{},
	}
	for role, allowed := range map[string][]string{
		ReadOnly: {"Glob", "Grep", "Read"}, EditOnly: {"Edit", "Glob", "Grep", "Read", "Write"}, Full: {"Bash", "Edit", "Glob", "Grep", "Read", "Write"},
		"Read,Bash": {"Bash", "Read"}, "Read": {"Read"}, "admin": nil, "": nil, "Read,Task": nil, "Full": nil, "read-only,Bash": nil,
	} {
		t.Run(role, func(t *testing.T) {
			s := serve(t, role)
			s.put("f", "x")
			for tool, input := range inputs {
				_, err := s.try(tool, input)
				if slices.Contains(allowed, tool) {
					if err != nil {
						t.Errorf("%s: %v", tool, err)
					}
				} else if err == nil || err.Code != CodeDenied || err.Retryable() {
					t.Errorf("%s: got %v, want it denied", tool, err)
				}
			}
			names := []string{}
			parsed, err := ParseRole(role)
			for _, tool := range List(parsed) {
				names = append(names, tool.Name)
			}
			if !slices.Equal(names, append([]string{}, allowed...)) || (err != nil) != (allowed == nil) {
				t.Errorf("it lists %v, error %v", names, err)
			}
		})
	}
}

func TestRolesNarrow(t *testing.T) {
	for _, test := range []struct{ given, want []string }{
		{[]string{Full, ReadOnly}, []string{"Glob", "Grep", "Read"}},
		{[]string{ReadOnly, Full}, []string{"Glob", "Grep", "Read"}},
		{[]string{"Read,Bash", EditOnly}, []string{"Read"}},
		{[]string{"Bash", ReadOnly}, nil},
		{[]string{Full, "nonsense"}, nil},
		{[]string{"nonsense", Full}, nil},
		{nil, nil},
	} {
		role, _ := ParseRole(test.given...)
		if !slices.Equal(role.Tools(), test.want) {
			t.Errorf("%v: got %v, want %v", test.given, role.Tools(), test.want)
		}
	}
}

// TestInput: an input that the schema does not have is refused, and said why.
func TestInput(t *testing.T) {
	s := serve(t, Full)
	s.put("f", "x")
	for input, says := range map[string]string{
		`{"file_path":"f","mode":"r"}`: `no field "mode"`, `{}`: `"file_path" is missing`, `[]`: "no JSON object", `null`: "no JSON object", `"f"`: "no JSON object",
		`{"file_path":1}`: `"file_path" can't be a JSON number`, `{"file_path":"f","limit":"9"}`: `"limit" can't be a JSON string`, `{"FILE_PATH":"f"}`: `no field "FILE_PATH"`,
		`{"file_path":"f","limit":1e99}`: `"limit" can't be`,
	} {
		if got := s.fails(CodeBadInput, "Read", json.RawMessage(input)); !strings.Contains(got, says) {
			t.Errorf("%s: it says %q, want %q in it", input, got, says)
		}
	}
	if got := s.fails(CodeBadInput, "Edit", json.RawMessage(`{"file_path":"f","edits":[{"old_string":"x","new_string":"y","all":true}]}`)); !strings.Contains(got, `"all"`) {
		t.Errorf("it says %q", got)
	}
}

// TestSchemas: each tool's schema is an object that allows nothing else, and says
// of each field what it is.
func TestSchemas(t *testing.T) {
	role, _ := ParseRole(Full)
	for _, tool := range List(role) {
		data, err := json.Marshal(tool.Input)
		if err != nil {
			t.Fatal(err)
		}
		if tool.Input.Type != "object" || !strings.Contains(string(data), `"additionalProperties":false`) || len(tool.Input.Properties) == 0 || tool.Description == "" {
			t.Errorf("%s: %s", tool.Name, data)
		}
		for name, field := range tool.Input.Properties {
			if field.Description == "" && name != "case_insensitive" {
				t.Errorf("%s.%s is not described", tool.Name, name)
			}
		}
		if want := slices.Contains([]string{"Read", "Glob", "Grep"}, tool.Name); tool.ReadOnly != want {
			t.Errorf("%s: read only is %v", tool.Name, tool.ReadOnly)
		}
	}
}

// TestManyCalls: calls beyond the bound are told to try again; the others are
// answered in any order.
func TestManyCalls(t *testing.T) {
	s := serve(t, Full)
	s.put("f", "x")
	_, slow := s.send("Bash", BashInput{Command: "while ! test -e go; do sleep 0.02; done"})
	for range 200 {
		if r := call1[ReadResult](s, "Read", ReadInput{FilePath: "f"}); r.Content != "x" {
			t.Fatalf("got %+v", r)
		}
	}
	s.put("go", "")
	if a := <-slow; a.Error != nil {
		t.Error(a.Error)
	}
}

// TestFrames: data that is not a frame ends the session with an error.
func TestFrames(t *testing.T) {
	huge := binary.BigEndian.AppendUint32(nil, 1<<31)
	for name, data := range map[string][]byte{
		"too long": huge, "nothing": {0, 0, 0, 0}, "cut": {0, 0, 0, 9, '{'}, "cut length": {0, 0}, "no JSON": {0, 0, 0, 2, '{', '{'},
	} {
		var q request
		if err := readFrame(bytes.NewReader(data), maxRequest, &q); !errors.Is(err, errFrame) {
			t.Errorf("%s: %v", name, err)
		}
	}
	var q request
	if err := readFrame(bytes.NewReader(nil), maxRequest, &q); err != io.EOF {
		t.Errorf("nothing at all: %v", err)
	}
	if _, err := frameOf(answer{Result: json.RawMessage(`"` + strings.Repeat("x", maxAnswer) + `"`)}, maxAnswer); err == nil {
		t.Error("a frame of more than the bound is made")
	}
}

// hostileResults are JSON that no tool answers.
var hostileResults = []string{`null`, `{"lines":4611686018427387904,"content":"a"}`, `{"lines":-4611686018427387904,"content":"a"}`, `{"files":[null]}`, `[]`, `7`}

// TestHostileResult: the half outside survives results that no tool answers.
func TestHostileResult(t *testing.T) {
	for _, tool := range all() {
		for _, data := range hostileResults {
			_, err := newResult(tool.Name, json.RawMessage(data))
			if refused := !strings.HasPrefix(data, "{"); refused && err == nil {
				t.Errorf("%s answers %s", tool.Name, data)
			}
		}
	}
}

// FuzzFrame: no bytes make the decoder fail other than by an error, and what it
// takes is what would be sent again.
func FuzzFrame(f *testing.F) {
	for _, result := range hostileResults {
		frame, _ := frameOf(answer{ID: 1, Result: json.RawMessage(result)}, maxAnswer)
		f.Add(frame)
	}
	frame, _ := frameOf(request{ID: 1, Tool: "Read", Input: json.RawMessage(`{"file_path":"f"}`)}, maxRequest)
	f.Add(frame)
	f.Add([]byte{0, 0, 0, 2, '{', '}'})
	f.Add([]byte{255, 255, 255, 255})
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, v := range []any{new(request), new(answer)} {
			if readFrame(bytes.NewReader(data), maxAnswer, v) != nil {
				continue
			}
			again, err := frameOf(v, maxAnswer)
			if err != nil {
				t.Fatalf("%+v can't be sent: %v", v, err)
			}
			if err := readFrame(bytes.NewReader(again), maxAnswer, v); err != nil {
				t.Fatalf("%+v can't be read: %v", v, err)
			}
			if a, ok := v.(*answer); ok && a.Error == nil {
				for _, tool := range all() {
					_, _ = newResult(tool.Name, a.Result) // errors are fine
				}
			}
		}
	})
}
