package mask_test

import (
	"strings"
	"testing"

	"github.com/cove-dev/cove/internal/lib/mask"
)

// TestWriter: however the output is cut, no part of a secret comes through, and all else does.
func TestWriter(t *testing.T) {
	m := mask.New([]string{"canary-one", "canary-one-more", "first line\nsecond line", "short", `with "quotes"`})
	const said = "a canary-one-more b canary-one c canary-on d first line\nsecond line short with \"quotes\" with \\\"quotes\\\" canary-o"
	const want = "a *** b *** c canary-on d *** short *** *** canary-o"
	for size := 1; size <= len(said); size++ {
		var b strings.Builder
		w := mask.Writer{W: &b, Mask: m}
		for rest := said; rest != ""; {
			n := min(size, len(rest))
			if _, err := w.Write([]byte(rest[:n])); err != nil {
				t.Fatal(err)
			}
			rest = rest[n:]
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		if got := b.String(); got != want {
			t.Errorf("in parts of %d bytes: got %q, want %q", size, got, want)
		}
	}
	if got := (mask.Mask{}).Hide("as it is"); got != "as it is" {
		t.Errorf("without secrets: %q", got)
	}
}
