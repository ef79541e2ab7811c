package web

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestMarkdown: of Markdown, headings, bold words and code of a line are shown as such, and nothing is lost
// but their marks.
func TestMarkdown(t *testing.T) {
	for in, want := range map[string][]segment{
		"":                                      nil,
		"plain\n- one\n- two\n":                 {{"", "plain\n- one\n- two\n"}},
		"## Done\nall":                          {{"heading", "Done\n"}, {"", "all"}},
		"#no heading\n####### seven":            {{"", "#no heading\n####### seven"}},
		"run `make test` **now**.":              {{"", "run "}, {"code", "make test"}, {"", " "}, {"strong", "now"}, {"", "."}},
		"`a` `b`":                               {{"code", "a"}, {"", " "}, {"code", "b"}},
		"2 * 3 ** 4, ` and **open":              {{"", "2 * 3 ** 4, ` and **open"}},
		"a ``two`` ***three*** ** x**":          {{"", "a ``two`` ***three*** ** x**"}},
		"`a\nb`":                                {{"", "`a\nb`"}},
		"[text](https://evil.example) <b>x</b>": {{"", "[text](https://evil.example) <b>x</b>"}},
		"**`a`**":                               {{"strong", "`a`"}},
	} {
		if diff := cmp.Diff(want, markdown(in)); diff != "" {
			t.Errorf("%q: %s", in, diff)
		}
	}
}

func FuzzMarkdown(f *testing.F) {
	f.Add("## a\n`b` **c** d*e*f")
	f.Add("***`**`***`\n#\n# \n")
	letters := func(s string) string {
		return strings.Map(func(r rune) rune {
			if strings.ContainsRune("`*# \n", r) {
				return -1
			}
			return r
		}, s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		var all strings.Builder
		for _, g := range markdown(s) {
			all.WriteString(g.Text)
		}
		if got, want := letters(all.String()), letters(text(s)); got != want {
			t.Errorf("%q is shown as %q", want, got)
		}
	})
}
