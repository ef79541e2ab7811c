package guest

import "github.com/cove-dev/cove/sprites"

// scrollback keeps the end of a command's output, in frames: a stream byte and
// then payload.
type scrollback struct {
	max    int
	size   int
	frames [][]byte
	before [3]int64 // bytes of each stream that came before the frames
}

// Frames are filled up to scrollFrame, and there are never more than scrollMost. So a command
// that alternates between its streams costs no more memory.
const (
	scrollFrame = 8 << 10
	scrollMost  = 2048
)

// add appends a copy of a frame.
func (b *scrollback) add(frame []byte) {
	stream, p := frame[0], frame[1:]
	if cut := len(p) - b.max; cut > 0 {
		b.before[stream] += int64(cut)
		p = p[cut:]
	}
	for len(p) > 0 {
		n := b.extend(stream, p)
		if n == 0 {
			n = min(len(p), scrollFrame-1)
			f := make([]byte, 1, max(1+n, 512))
			f[0] = stream
			b.frames = append(b.frames, append(f, p[:n]...))
			b.size += n
		}
		p = p[n:]
	}
	for len(b.frames) > scrollMost || len(b.frames) > 1 && b.size-len(b.frames[0])+1 >= b.max {
		n := len(b.frames[0]) - 1
		b.size -= n
		b.before[b.frames[0][0]] += int64(n)
		b.frames[0] = nil
		b.frames = b.frames[1:]
	}
}

// extend appends what fits to the last frame, if it is of the same stream. It does not change
// the bytes that a snapshot holds.
func (b *scrollback) extend(stream byte, p []byte) int {
	if len(b.frames) == 0 {
		return 0
	}
	last := &b.frames[len(b.frames)-1]
	if (*last)[0] != stream {
		return 0
	}
	n := min(len(p), scrollFrame-len(*last))
	*last = append(*last, p[:n]...)
	b.size += n
	return n
}

// snapshot returns the frames, which must not be changed, and how much of each
// output stream came before them.
func (b *scrollback) snapshot() (frames [][]byte, before []int64) {
	return append([][]byte(nil), b.frames...), []int64{b.before[sprites.StreamStdout], b.before[sprites.StreamStderr]}
}

// held is how much memory the frames take, in bytes.
func (b *scrollback) held() int {
	n := 0
	for _, frame := range b.frames {
		n += cap(frame)
	}
	return n
}
