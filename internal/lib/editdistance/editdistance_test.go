package editdistance_test

import (
	"strings"
	"testing"

	"github.com/cove-dev/cove/internal/lib/editdistance"
)

func TestOf(t *testing.T) {
	for _, test := range []struct {
		a, b string
		want int
	}{
		{"", "", 0}, {"main", "main", 0}, {"", "main", 4}, {"main", "mian", 2}, {"release/2", "release/3", 1}, {"kitten", "sitting", 3},
		{strings.Repeat("x", 256), "x", 256},
	} {
		if got, back := editdistance.Of(test.a, test.b), editdistance.Of(test.b, test.a); got != test.want || back != test.want {
			t.Errorf("%.20q and %.20q: got %d and %d, want %d", test.a, test.b, got, back, test.want)
		}
	}
}

// TestNearest: a slip is found, and a beginning; another word is not.
func TestNearest(t *testing.T) {
	names := []string{"agent", "network_policy", "name", "cpus"}
	for given, want := range map[string]int{"agnet": 0, "Agent": 0, "network": 1, "nam": 2, "cpu": 3, "ne": 2, "weather": -1, "": -1} {
		if got, _ := editdistance.Nearest(given, names); got != want {
			t.Errorf("%q: got %d, want %d", given, got, want)
		}
	}
}
