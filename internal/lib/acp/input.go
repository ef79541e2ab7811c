package acp

import (
	"bytes"
	"encoding/json"
	"strings"

	"github.com/cove-dev/cove/internal/lib/printable"
)

// maxInput bounds a tool's input in an event: a line of the log holds it, with its marks, in JSON within JSON.
const maxInput = 16 << 10

// diff is a change of a file, as the content of a tool has it.
type diff struct {
	Type    string `json:"type"`
	Path    string `json:"path"`
	OldText string `json:"oldText,omitempty"`
	NewText string `json:"newText"`
}

// diffs are the changes of files in a tool's content.
func diffs(content json.RawMessage) (all []diff) {
	var parts []json.RawMessage
	if json.Unmarshal(content, &parts) != nil {
		return nil
	}
	for _, part := range parts {
		var d diff
		if json.Unmarshal(part, &d) == nil && d.Type == "diff" {
			all = append(all, d)
		}
	}
	return all
}

// input is what a tool is about to do: its input, and the changes of files in its content. A text that is too long
// keeps its beginning and its end, with the number of bytes left out between them; left counts these bytes.
func (t toolCall) input() (text string, left int) {
	text = rawText(t.RawInput)
	isText := len(t.RawInput) > 0 && t.RawInput[0] == '"'
	if changes := diffs(t.Content); len(changes) > 0 {
		all := map[string]any{"content": changes}
		if text != "" {
			all["input"] = t.RawInput
		}
		text, isText = encode(all), false
	}
	left = t.left
	if !isText {
		var value any
		dec := json.NewDecoder(strings.NewReader(text))
		dec.UseNumber()
		if dec.Decode(&value) == nil {
			short, more := abridge(value)
			return short, left + more
		}
	}
	for limit := maxInput; ; limit /= 2 {
		if short, more := printable.Middle(text, limit); len(encode(short)) <= 2*maxInput {
			return short, left + more
		}
	}
}

// abridge writes JSON. If it is too long, long strings lose their middles.
func abridge(value any) (text string, left int) {
	text = encode(value)
	if len(text) <= maxInput {
		return text, 0
	}
	if short := encode(eachString(value, printable.Blanks)); len(short) <= maxInput {
		return short, 0
	}
	for limit := maxInput / 2; limit >= 64; limit /= 2 {
		left = 0
		short := encode(eachString(value, func(s string) string {
			s, n := printable.Middle(printable.Blanks(s), limit)
			left += n
			return s
		}))
		if len(short) <= maxInput {
			return short, left
		}
	}
	return printable.Middle(text, maxInput)
}

// eachString returns the value with change applied to all its strings, but not to the names of fields.
func eachString(value any, change func(string) string) any {
	switch v := value.(type) {
	case string:
		return change(v)
	case []any:
		all := make([]any, len(v))
		for i := range v {
			all[i] = eachString(v[i], change)
		}
		return all
	case map[string]any:
		all := make(map[string]any, len(v))
		for name := range v {
			all[name] = eachString(v[name], change)
		}
		return all
	}
	return value
}

// encode is JSON that people can read: & stays as it is.
func encode(value any) string {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if enc.Encode(value) != nil {
		return "" // what was decoded can be encoded
	}
	return strings.TrimSuffix(b.String(), "\n")
}
