package guestbin

import (
	"strings"
	"testing"
)

func TestSaid(t *testing.T) {
	for _, test := range []struct {
		parts []string
		want  string
	}{
		{nil, ""},
		{[]string{"cove-guest: no ", "such folder\n"}, "no such folder"},
		{[]string{"a\xffb\n"}, "a\uFFFDb"},
		{[]string{strings.Repeat("x", maxSaid-1), "yy", "z"}, strings.Repeat("x", maxSaid-1) + "y"},
	} {
		var s Said
		for _, part := range test.parts {
			if n, err := s.Write([]byte(part)); n != len(part) || err != nil {
				t.Errorf("write: %d, %v", n, err)
			}
		}
		if got := s.String(); got != test.want {
			t.Errorf("%.40q: got %.40q, want %.40q", test.parts, got, test.want)
		}
	}
}
