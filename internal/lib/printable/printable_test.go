package printable_test

import (
	"testing"

	"github.com/cove-dev/cove/internal/lib/printable"
)

func TestText(t *testing.T) {
	for in, want := range map[string]string{
		"plain\ttext\n":        "plain\ttext\n",
		"Grüße 🙂":              "Grüße 🙂",
		"\x1b]52;c;eA==\a":     `\x1b]52;c;eA==\x07`,
		"\x1b[31mred\x1b[0m":   `\x1b[31mred\x1b[0m`,
		"a\r\nb":               "a\nb",
		"50%\r100%":            `50%\r100%`,
		"\u009b31m":            `\u009b31m`,
		"ab\xffc":              `ab\xffc`,
		"evil\u202etxt.exe":    `evil\u202etxt.exe`,
		"\u2066hidden\u2069":   `\u2066hidden\u2069`,
		"a\x00b\x7f":           `a\x00b\x7f`,
		"real \uFFFD stays ok": "real \uFFFD stays ok",
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
		"x\u202ey\u200b": `x\u202ey\u200b`,
		"no\u00a0break":  `no\u00a0break`,
		"ab\xff":         `ab\xff`,
	} {
		if got := printable.Name(in); got != want {
			t.Errorf("printable.Name(%q) = %q, want %q", in, got, want)
		}
	}
	if got, want := printable.Lines("one\r\ntwo\x1b\n"), `one; two\x1b`; got != want {
		t.Errorf("printable.Lines: %q, want %q", got, want)
	}
}
