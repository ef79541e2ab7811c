package web

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/cove-dev/cove"
)

// TestTranscriptBounds: however much an agent says in few events, a page takes a bounded part
// of it at once, and says that there is more. Each update of a page that follows is bounded,
// too.
func TestTranscriptBounds(t *testing.T) {
	text := func(kind string, v any) string {
		b, err := json.Marshal(map[string]any{"type": kind, "message": map[string]any{"content": v}})
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	said := func(s string) any { return []any{map[string]any{"type": "text", "text": s}} }
	call := func(input map[string]any) any {
		return []any{map[string]any{"type": "tool_use", "id": "x", "name": "Edit", "input": input}}
	}
	fields, many := map[string]any{}, []any{}
	for i := range 5000 {
		fields[fmt.Sprint(i)] = "<"
		many = append(many, map[string]any{"type": "text", "text": "<"})
	}
	for name, line := range map[string]string{
		"a diff":       text("assistant", said("@@ -1 +1 @@\n"+strings.Repeat("+\n", 16000))),
		"a named diff": text("assistant", said("```diff\n"+strings.Repeat("+\n", 16000))),
		"an edit":      text("assistant", call(map[string]any{"file_path": "a", "old_string": strings.Repeat("\n", 16000), "new_string": strings.Repeat("\n", 16000)})),
		"a file":       text("assistant", call(map[string]any{"file_path": "a", "content": strings.Repeat("<\n", 8000)})),
		"a patch":      text("assistant", call(map[string]any{"patch": strings.Repeat("-\n", 8000)})),
		"an answer":    text("user", []any{map[string]any{"type": "tool_result", "tool_use_id": "x", "content": "@@ -1 +1 @@\n" + strings.Repeat("+\n", 16000)}}),
		"blocks":       text("assistant", said(strings.Repeat("```a```b", 8000))),
		"fields":       text("assistant", call(fields)),
		"things":       text("assistant", many),
		"colours":      strings.Repeat("\x1b[31m<\x1b[32m>", 8000),
		"a long line":  strings.Repeat("<", 1<<20),
		"lines":        strings.Repeat("\"\n", 1<<19),
	} {
		const events = 100
		read := func(from int64) []*entry {
			tr := newTranscript(working(), true)
			for seq := from; seq <= events; seq++ {
				tr.add(cove.JobEvent{Seq: seq, Type: "output", Stream: "stdout", Text: line})
			}
			return tr.entries
		}
		from, err := fits(read(1))
		if err != nil {
			t.Fatal(err)
		}
		page, err := html("entries", jobPage{jobView: jobView{Job: working()}, Entries: read(max(from, 1)), Before: from})
		if err != nil {
			t.Fatal(err)
		}
		tags := strings.Count(page, "<")
		if len(page) > 3*maxShownBytes/2 || tags > 3*maxShownTags/2 {
			t.Errorf("%s: %d bytes, %d tags", name, len(page), tags)
		}
		if from > 1 && !strings.Contains(page, "Show earlier") {
			t.Errorf("%s: what was before can't be reached", name)
		}
		if !strings.Contains(page, "left out here") && !strings.Contains(page, "which cove job events has") && name != "colours" && name != "blocks" {
			t.Errorf("%s: the page does not say that something is left out", name)
		}

		tr := newTranscript(working(), false)
		for seq := range int64(5) {
			changes, err := changesOf(tr.add(cove.JobEvent{Seq: seq + 1, Type: "output", Stream: "stdout", Text: line}))
			if err != nil {
				t.Fatal(err)
			}
			size, tags := 0, 0
			for _, c := range changes {
				size, tags = size+len(c.HTML), tags+strings.Count(c.HTML, "<")
			}
			if size > 256<<10 || tags > 2000 {
				t.Errorf("%s: an event becomes %d bytes, %d tags", name, size, tags)
			}
		}
	}
}

// TestLargeFile: of a file with very many lines, a part is shown, and how many are not.
func TestLargeFile(t *testing.T) {
	f := cove.JobDiffFile{Path: "a", Hunks: []cove.JobDiffHunk{{Lines: make([]cove.JobDiffLine, 700_000)}}}
	for i := range f.Hunks[0].Lines {
		f.Hunks[0].Lines[i] = cove.JobDiffLine{Kind: "+", New: i + 1}
	}
	part, err := html("diff-lines", changedFile{JobDiffFile: f, Later: true}.whole(nil))
	if err != nil || len(part) > 4<<20 || !strings.Contains(part, "692001 lines more at its end") {
		t.Errorf("%d bytes, %v: %.200s", len(part), err, part)
	}
}
