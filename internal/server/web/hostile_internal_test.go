package web

import (
	"bytes"
	"fmt"
	"html/template"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/server/agents"
	"github.com/cove-dev/cove/sprites"
)

// hostileTexts are texts as a sprite, an agent or a repository may say them.
var hostileTexts = []string{
	hostile, "", "plain", "two\nlines\tand a tab", "<script>hacked=1</script>", `"><img src=x onerror=hacked=1>`, "<svg/onload=hacked=1>",
	"'-hacked-'", "{{.Secret}} ${hacked} {%x%}", "javascript:hacked=1", "</textarea></title></style><b>", "a{background:url(//evil.example)}",
	"\x1b[2J\x1b]0;title\a\x1b[31mred", "\u202egnp.exe\u202c \u2066x\u2069 \u200b\u200d\ufeff", "a\u2028b\u2029c", "\xff\xfe\x80", "\x00\x7f\u0085\u009b31m",
	"\U000e0041\U000e007f", strings.Repeat("x", 100<<10), strings.Repeat("€", maxText),
}

// FuzzText: no text acts on what stands beside it, however it is cut, and markup stays text.
func FuzzText(f *testing.F) {
	for _, s := range hostileTexts {
		f.Add(s)
	}
	page := template.Must(template.New("").Funcs(funcs).Parse(`<p title="{{line .}}{{wholeLine .}}">{{text .}}{{whole .}}{{wholeRow .}}</p>`))
	f.Fuzz(func(t *testing.T, s string) {
		for of, got := range map[string]string{"plain": plain(s), "text": text(s), "line": line(s), "wholeText": wholeText(s), "wholeRow": wholeRow(s), "wholeLine": wholeLine(s), "screenText": screenText(s)} {
			if !utf8.ValidString(got) {
				t.Errorf("%s(%q) is no UTF-8", of, s)
			}
			for _, r := range got {
				space := of != "line" && of != "wholeLine" && (r == '\n' || r == '\t')
				if unicode.IsControl(r) && !space || unicode.Is(unicode.Cf, r) || unicode.Is(unicode.Bidi_Control, r) || unicode.Is(unicode.Variation_Selector, r) || strings.ContainsRune("\u2028\u2029\u3164\u115f\u1160\uffa0\u2800\u034f\u17b4\u17b5", r) {
					t.Errorf("%s(%q) has %U", of, s, r)
				}
			}
		}
		if n := len(line(s)); n > maxLine+len("…") {
			t.Errorf("a line has %d bytes", n)
		}
		if n := len(wholeLine(s)); n > maxLine+len("…") {
			t.Errorf("a name has %d bytes", n)
		}
		if n := max(len(wholeText(s)), len(wholeRow(s))); n > len(nameBegins+"0000"+nameEnds)*maxText+len("…") {
			t.Errorf("a whole text has %d bytes", n)
		}
		if n := len(text(s)); n > maxText+len("…") {
			t.Errorf("a text has %d bytes", n)
		}
		var out bytes.Buffer
		if err := page.Execute(&out, s); err != nil {
			t.Fatal(err)
		}
		if tags, quotes := strings.Count(out.String(), "<"), strings.Count(out.String(), `"`); tags != 2 || quotes != 2 {
			t.Errorf("%q is markup: %d tags, %d quotes", s, tags, quotes)
		}
	})
}

// TestNamesOfCharacters: a text that is edited has nothing in it that can't be seen, and loses nothing.
func TestNamesOfCharacters(t *testing.T) {
	for _, s := range []string{
		"", "plain\n\ttext ü 漢 🙂\n", "\ufeffbom\n", "zero\u200bwidth\u200d", "turned\u202e\u2066", "lines\r\nof\nboth\r", "\x1b[31mred\x07", "\u2028\u2029\U000e0001", strings.ToValidUTF8(hostile, ""), "U+FEFF⟧", "⟦U", "\ufffd", "\u3164\u2800\ufe0f\U000e0100\u034f\u180e",
	} {
		named, ok := withNames(s)
		if !ok || plain(named) != named {
			t.Errorf("%q is shown as %q, %v", s, named, ok)
		}
		if got := withoutNames(named); got != s {
			t.Errorf("%q came back as %q", s, got)
		}
	}
	if _, ok := withNames("a ⟦U+FEFF⟧ of the file's own"); ok {
		t.Error("a name of the file's own can be edited")
	}
	for typed, want := range map[string]string{"⟦U+41⟧": "⟦U+41⟧", "⟦U+FEFF": "⟦U+FEFF", "⟦U+⟦U+200B⟧": "⟦U+\u200b", "⟦U+FFFFFFFFF⟧": "⟦U+FFFFFFFFF⟧", "⟦U+000A⟧": "⟦U+000A⟧"} {
		if got := withoutNames(typed); got != want {
			t.Errorf("%q is saved as %q, want %q", typed, got, want)
		}
	}
}

// signs are characters that show nothing, or act on others.
func signs() (all []rune) {
	for _, span := range [][2]rune{
		{0, 8}, {'\v', 0x1f}, {0x7f, 0x9f}, {0xad, 0xad}, {0x34f, 0x34f}, {0x61c, 0x61c}, {0x115f, 0x1160}, {0x17b4, 0x17b5}, {0x180b, 0x180f}, {0x200b, 0x200f},
		{0x2028, 0x202e}, {0x2060, 0x206f}, {0x2800, 0x2800}, {0x3164, 0x3164}, {0xfe00, 0xfe0f}, {0xfeff, 0xfeff}, {0xffa0, 0xffa0}, {0xfff9, 0xfffb},
		{0x1d173, 0x1d17a}, {0xe0000, 0xe007f}, {0xe0100, 0xe01ef},
	} {
		for r := span[0]; r <= span[1]; r++ {
			all = append(all, r)
		}
	}
	return all
}

// TestReviewHidesNothing: each character that can't be seen has its name wherever a file, its
// name or a command is reviewed. In other texts that are shown there is no such character.
func TestReviewHidesNothing(t *testing.T) {
	for _, r := range signs() {
		s, mark := "a"+string(r)+"b", fmt.Sprintf("a⟦U+%04X⟧b", r)
		if got := wholeText(s); got != mark {
			t.Errorf("a text with %U is shown as %q", r, got)
		}
		if row, name := wholeRow(s), wholeLine(s); row != mark || name != mark {
			t.Errorf("a line with %U is shown as %q, a name as %q", r, row, name)
		}
		if strings.ContainsRune(text(s), r) || strings.ContainsRune(line(s), r) || strings.ContainsRune(screenText(s), r) {
			t.Errorf("%U is left: %q, %q, %q", r, text(s), line(s), screenText(s))
		}
	}
	for s, want := range map[string]string{
		"both\r\nends\r\n": "both\nends\n", "# see\rimport os": "# see⟦U+000D⟧import os", "x" + strings.Repeat("\u200b", 900) + "y": "x⟦U+200B × 900⟧y", "ü 漢 🙂\t\n": "ü 漢 🙂\t\n", "\xff": "\ufffd",
	} {
		if got := wholeText(s); got != want {
			t.Errorf("%q is shown as %q", s, got)
		}
	}
	if got := wholeLine("a\nb\tc\u00a0d e"); got != "a⟦U+000A⟧b⟦U+0009⟧c⟦U+00A0⟧d e" {
		t.Errorf("a name is shown as %q", got)
	}
	if got := screenText("\u202e⚠\ufe0f \u3164"); got != "⟦U+202E⟧⚠ ⟦U+3164⟧" {
		t.Errorf("a screen has %q", got)
	}

	const path, code = "\u202egnp.sh", "# see\rimport os\u2066\r"
	marks := []string{"⟦U+202E⟧gnp.sh", "# see⟦U+000D⟧import os⟦U+2066⟧"}
	l := cove.JobDiffLine{Kind: "+", New: 1, Text: code}
	file := cove.JobDiffFile{Path: path, OldPath: path, Status: cove.DiffRenamed, Hunks: []cove.JobDiffHunk{{NewStart: 1, Section: path, Lines: []cove.JobDiffLine{l, {Kind: "-", Old: 1, Text: code}, {Kind: " ", Old: 2, New: 2, Text: code}}}}}
	compared, _ := diffOfDiffs([]cove.JobDiffFile{file}, nil)
	entry := sprites.Entry{Name: path, Path: "/" + path, Type: "file"}
	parts := append([]part{{Kind: "diff", Name: path, Lines: marked("+", "add", code)}}, input(agents.Event{Full: `{"path":"\u202egnp.sh","patch":"# see\rimport os\u2066"}`})...)
	question := cove.JobQuestion{Title: code, Path: path, Detail: code}
	var asks jobView
	asks.Question = &question
	for name, data := range map[string]any{
		"diff one": newDiffView(cove.JobDiff{Files: []cove.JobDiffFile{file}}, nil, "one"), "diff side": newDiffView(cove.JobDiff{Files: []cove.JobDiffFile{file}}, nil, "side"),
		"compare": comparePage{Files: compared}, "parts": parts, "file-entries": filesPage{Entries: []sprites.Entry{entry}},
		"file-view": filesPage{Entry: sprites.Entry{Target: path}, View: &fileView{Text: code, Shown: true}},
		"question":  dictOf("Question", question, "Job", jobRow{}), "job-question": asks,
	} {
		got, err := html(strings.Fields(name)[0], data)
		if err != nil {
			t.Fatal(err)
		}
		got = strings.ReplaceAll(got, "&#43;", "+")
		for _, mark := range marks {
			if !strings.Contains(got, mark) && (name != "file-entries" || mark == marks[0]) {
				t.Errorf("%s: no %s in %s", name, mark, got)
			}
		}
	}
}
