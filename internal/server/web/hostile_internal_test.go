package web

import (
	"bytes"
	"html/template"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"
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
	page := template.Must(template.New("").Funcs(funcs).Parse(`<p title="{{line .}}">{{text .}}</p>`))
	f.Fuzz(func(t *testing.T, s string) {
		for of, got := range map[string]string{"plain": plain(s), "text": text(s), "line": line(s)} {
			if !utf8.ValidString(got) {
				t.Errorf("%s(%q) is no UTF-8", of, s)
			}
			for _, r := range got {
				space := of != "line" && (r == '\n' || r == '\t')
				if unicode.IsControl(r) && !space || unicode.Is(unicode.Cf, r) || unicode.Is(unicode.Bidi_Control, r) || r == '\u2028' || r == '\u2029' {
					t.Errorf("%s(%q) has %U", of, s, r)
				}
			}
		}
		if n := len(line(s)); n > maxLine+len("…") {
			t.Errorf("a line has %d bytes", n)
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
		"", "plain\n\ttext ü 漢 🙂\n", "\ufeffbom\n", "zero\u200bwidth\u200d", "turned\u202e\u2066", "lines\r\nof\nboth\r", "\x1b[31mred\x07", "\u2028\u2029\U000e0001", strings.ToValidUTF8(hostile, ""), "U+FEFF⟧", "⟦U", "\ufffd",
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
