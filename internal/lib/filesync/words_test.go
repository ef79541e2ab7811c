package filesync

import "testing"

func TestPathsHave(t *testing.T) {
	for count, want := range map[int]string{0: "0 paths have", 1: "1 path has", 2: "2 paths have"} {
		if got := pathsHave(count); got != want {
			t.Errorf("%d: %q, not %q", count, got, want)
		}
	}
}
