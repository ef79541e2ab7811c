package agents

import (
	"cmp"
	"encoding/json"
	"maps"
	"slices"
	"strings"

	"github.com/cove-dev/cove/internal/lib/printable"
)

// PartKind is what a Part of a tool's input is.
type PartKind string

// The kinds of parts.
const (
	PartCommand PartKind = "command" // Text is run
	PartChange  PartKind = "change"  // of the file Name: Before becomes Text
	PartPatch   PartKind = "patch"   // Text is one
	PartField   PartKind = "field"   // Text is the value of Name
	PartText    PartKind = "text"    // an input without a form
)

// A Part is a part of a tool's input, as people read it. Long runs of blanks in it are marks. Its texts are an agent's.
type Part struct {
	Kind               PartKind
	Name, Before, Text string
}

// Parts reads a tool's input: JSON, with the names that agents have for the same, or any text. Page, CLI and transcript
// show an input by it.
func Parts(input string) (out []Part) {
	var fields map[string]json.RawMessage
	if json.Unmarshal([]byte(input), &fields) != nil || len(fields) == 0 {
		out = []Part{{Kind: PartText, Text: input}}
	} else {
		out = partsOf(fields)
	}
	for i := range out {
		p := &out[i]
		p.Name, p.Before, p.Text = printable.Blanks(p.Name), printable.Blanks(p.Before), printable.Blanks(p.Text)
	}
	return out
}

func partsOf(fields map[string]json.RawMessage) (out []Part) {
	value := func(names ...string) string {
		for _, n := range names {
			var s string
			if json.Unmarshal(fields[n], &s) == nil && s != "" {
				delete(fields, n)
				return s
			}
		}
		return ""
	}
	var inner map[string]json.RawMessage
	changes := changesOf(fields["content"])
	if len(changes) > 0 { // ACP's form of a change, beside the input
		delete(fields, "content")
		if json.Unmarshal(fields["input"], &inner) == nil && len(inner) > 0 {
			delete(fields, "input")
			out = partsOf(inner)
		}
	}
	if c := value("command", "cmd"); c != "" {
		out = append(out, Part{Kind: PartCommand, Text: c})
	} else if argv := words(fields["command"]); argv != "" {
		delete(fields, "command")
		out = append(out, Part{Kind: PartCommand, Text: argv})
	}
	path := value("file_path", "filePath", "path")
	before, after := value("old_string", "oldString", "oldText"), value("new_string", "newString", "newText")
	switch content := value("content", "file_text"); {
	case before != "" || after != "":
		out = append(out, Part{PartChange, path, before, after})
		if content != "" {
			out = append(out, Part{Kind: PartField, Name: "content", Text: content})
		}
	case content != "":
		out = append(out, Part{PartChange, path, "", content})
	case path != "":
		out = append(out, Part{Kind: PartField, Name: "path", Text: path})
	}
	if p := value("patch", "diff"); p != "" {
		out = append(out, Part{Kind: PartPatch, Text: p})
	}
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		out = append(out, Part{Kind: PartField, Name: name, Text: cmp.Or(value(name), string(fields[name]))})
	}
	for _, c := range changes {
		if !slices.Contains(out, c) {
			out = append(out, c)
		}
	}
	return out
}

// changesOf are the changes of files in the content of an ACP tool; nil: it has none, or
// something else.
func changesOf(content json.RawMessage) (all []Part) {
	var diffs []struct{ Type, Path, OldText, NewText string }
	if json.Unmarshal(content, &diffs) != nil {
		return nil
	}
	for _, d := range diffs {
		if d.Type != "diff" {
			return nil
		}
		all = append(all, Part{PartChange, d.Path, d.OldText, d.NewText})
	}
	return all
}

// words is a list of words as a command; empty: it is not a list of words.
func words(list json.RawMessage) string {
	var argv []string
	if json.Unmarshal(list, &argv) != nil {
		return ""
	}
	for i := range argv {
		argv[i] = printable.Word(argv[i])
	}
	return strings.Join(argv, " ")
}

// InputText is a tool's input for a terminal. Lines of values are indented, so that none looks
// like a name or a sign.
func InputText(input string) string {
	var b strings.Builder
	line := func(sign, text string) {
		b.WriteString(sign + strings.ReplaceAll(printable.Text(text), "\n", "\n"+strings.Repeat(" ", len(sign))) + "\n")
	}
	each := func(sign, text string) {
		for row := range strings.SplitSeq(strings.TrimSuffix(text, "\n"), "\n") {
			line(sign, row)
		}
	}
	for _, p := range Parts(input) {
		switch p.Kind {
		case PartCommand:
			line("$ ", p.Text)
		case PartChange:
			line("in ", cmp.Or(p.Name, "a file that it does not name"))
			if p.Before != "" {
				each("- ", p.Before)
			}
			if p.Text != "" {
				each("+ ", p.Text)
			}
		case PartField:
			line(printable.Name(p.Name)+": ", p.Text)
		default:
			each("", p.Text)
		}
	}
	return b.String()
}
