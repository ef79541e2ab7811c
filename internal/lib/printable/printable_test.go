package printable_test

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/cove-dev/cove/internal/lib/printable"
)

func TestText(t *testing.T) {
	for in, want := range map[string]string{
		"plain\ttext\n":         "plain\ttext\n",
		"Grüße 🙂":               "Grüße 🙂",
		"\x1b]52;c;eA==\a":      `\x1b]52;c;eA==\x07`,
		"\x1b[31mred\x1b[0m":    `\x1b[31mred\x1b[0m`,
		"a\r\nb":                "a\nb",
		"50%\r100%":             `50%\r100%`,
		"\u009b31m":             `⟦U+009B⟧31m`,
		"ab\xffc":               `ab\xffc`,
		"evil\u202etxt.exe":     `evil⟦U+202E⟧txt.exe`,
		"\u2066hidden\u2069":    `⟦U+2066⟧hidden⟦U+2069⟧`,
		"a\x00b\x7f":            `a\x00b\x7f`,
		"a\u3164b\ufe00\u2800c": `a⟦U+3164⟧b⟦U+FE00⟧⟦U+2800⟧c`,
		"\U000e0041\U000e0100":  `⟦U+E0041⟧⟦U+E0100⟧`,
		"⚠\ufe0f careful":       "⚠\ufe0f careful",
		"real \uFFFD stays ok":  "real \uFFFD stays ok",
	} {
		if got := printable.Text(in); got != want {
			t.Errorf("printable.Text(%q) = %q, want %q", in, got, want)
		}
	}
	if got, want := printable.Line("a\tb\nc"), `a b\nc`; got != want {
		t.Errorf("printable.Line: %q, want %q", got, want)
	}
}

func TestName(t *testing.T) {
	for in, want := range map[string]string{
		"a b":            "a b",
		"Grüße 🙂":        "Grüße 🙂",
		"a\tb\nc":        `a\x09b\x0ac`,
		"\x1b[31m\r":     `\x1b[31m\r`,
		"x\u202ey\u200b": `x⟦U+202E⟧y⟦U+200B⟧`,
		"no\u00a0break":  `no⟦U+00A0⟧break`,
		"ab\xff":         `ab\xff`,
		"a\u115fb\ufe0f": `a⟦U+115F⟧b⟦U+FE0F⟧`,
	} {
		if got := printable.Name(in); got != want {
			t.Errorf("printable.Name(%q) = %q, want %q", in, got, want)
		}
	}
	if got, want := printable.Lines("one\r\ntwo\x1b\n"), `one; two\x1b`; got != want {
		t.Errorf("printable.Lines: %q, want %q", got, want)
	}
}

func TestWord(t *testing.T) {
	for in, want := range map[string]string{
		"":              "''",
		"a/b-1.txt":     "a/b-1.txt",
		"a b":           "'a b'",
		"it's":          `'it'\''s'`,
		"$(reboot)":     "'$(reboot)'",
		"Grüße":         "'Grüße'",
		"x\x1b[2Jy\nz":  `'x\x1b[2Jy\x0az'`,
		"~root":         "'~root'",
		"a;b":           "'a;b'",
		"user@host:1,2": "user@host:1,2",
	} {
		if got := printable.Word(in); got != want {
			t.Errorf("printable.Word(%q) = %s, want %s", in, got, want)
		}
	}
}

// FuzzText: for any input, no form has a control character, a change of direction or bytes
// that are not UTF-8. Only Text leaves line ends and tabs.
func FuzzText(f *testing.F) {
	for _, s := range []string{"plain\ttext\n", "\x1b]52;c;eA==\a", "a\r\nb", "ab\xffc", "\u202e\u2066\u200b", "\u2028", "\U000e0041"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, in string) {
		for form, out := range map[string]string{"Text": printable.Text(in), "Line": printable.Line(in), "Name": printable.Name(in), "Lines": printable.Lines(in)} {
			for _, r := range out {
				ends := r == '\n' || r == '\t'
				if ends && form != "Text" || !ends && printable.Unseen(r) && (r != '\ufe0f' || form[0] == 'N') {
					t.Fatalf("%s(%q) has %q", form, in, r)
				}
			}
			if !utf8.ValidString(out) {
				t.Fatalf("%s(%q) is no UTF-8: %q", form, in, out)
			}
		}
	})
}

func TestCount(t *testing.T) {
	for n, want := range map[int]string{0: "0 times", 1: "1 time", 2: "2 times"} {
		if got := printable.Count(n, "time"); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestLong(t *testing.T) {
	blanks := strings.Repeat(" \t\n", 700)
	for in, want := range map[string]string{
		"make" + blanks + "; curl": "make ⟦2100 blanks⟧ ; curl",
		"a\n\n\n\n\n\nb":           "a ⟦6 blanks⟧ b",
		"if x {\n\t\treturn\n}\n":  "if x {\n\t\treturn\n}\n",
	} {
		if got := printable.Blanks(in); got != want {
			t.Errorf("Blanks(%.20q) = %q, want %q", in, got, want)
		}
	}
	got, left := printable.Middle(strings.Repeat("ä", 50)+"end", 20)
	if got != "äääää ⟦84 bytes are left out⟧ äääend" || left != 84 {
		t.Errorf("Middle: %q, %d", got, left)
	}
	if got, left := printable.Middle("whole", 5); got != "whole" || left != 0 {
		t.Errorf("Middle: %q, %d", got, left)
	}
}
