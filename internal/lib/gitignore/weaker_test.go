package gitignore

import "testing"

func TestWeakens(t *testing.T) {
	for _, c := range []struct {
		was, is string
		want    bool
	}{
		{"", "", false},
		{"", "a\nb/\n", false},
		{"a\nb\n", "x\na\r\n\n# remark\nb  \ny", false},
		{"# remark\na\n", "a\n", false},
		{"a\n!b\n", "a\nc\n!b\n", false},
		{"a\nb\n", "a\n", true},
		{"a\nb\n", "b\na\n", true},
		{"a\n", "", true},
		{"", "!a\n", true},
		{"", "\ufeff!a\n", true},
		{"\ufeffa\n", "x\n\ufeffa\n", true},
		{"a\n", "a\n!b\n", true},
		{"a\n", "a/\n", true},
		{"a\n", "/a\n", true},
		{"a\n", "# a\n", true},
	} {
		if got := Weakens(c.was, c.is); got != c.want {
			t.Errorf("from %q to %q: %v", c.was, c.is, got)
		}
	}
}
