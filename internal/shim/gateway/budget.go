package gateway

import "sync/atomic"

// maxParsed bounds the bytes that one gateway holds of what a sandbox has sent only in
// part: beginnings of connections, and headers of requests.
const maxParsed = 16 << 20

// budget counts the bytes that wait to be parsed. The zero value is ready to use.
type budget struct{ used, most atomic.Int64 }

// take counts n bytes more. False says that there is no room: nothing was counted.
func (b *budget) take(n int) bool {
	used := b.used.Add(int64(n))
	if used > maxParsed {
		b.used.Add(int64(-n))
		return false
	}
	for most := b.most.Load(); used > most && !b.most.CompareAndSwap(most, used); most = b.most.Load() {
	}
	return true
}

// give gives back n bytes that were taken.
func (b *budget) give(n int) { b.used.Add(int64(-n)) }
