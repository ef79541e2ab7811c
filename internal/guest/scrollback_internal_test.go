package guest

import (
	"bytes"
	"testing"

	"github.com/cove-dev/cove/sprites"
)

// The bytes before the kept frames, and those in the frames, add up to all that was added.
func TestScrollbackBefore(t *testing.T) {
	for _, size := range []int{1, 100, 5000, 20_000} {
		b := scrollback{max: 10_000}
		var total [3]int64
		for i := range 3000 {
			stream := byte(sprites.StreamStdout)
			if i%3 == 0 {
				stream = byte(sprites.StreamStderr)
			}
			b.add(append([]byte{stream}, bytes.Repeat([]byte{'x'}, size)...))
			total[stream] += int64(size)
			frames, before := b.snapshot()
			got := [3]int64{0, before[0], before[1]}
			for _, f := range frames {
				got[f[0]] += int64(len(f) - 1)
			}
			if got != total {
				t.Fatalf("frames of %d bytes: %v are accounted for, want %v", size, got, total)
			}
		}
	}
}
