package gitwork_test

import (
	"bytes"
	"compress/zlib"
	"crypto/sha1"
	"encoding/binary"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// packEntry is an object in a pack: its kind, the size that it claims, and its compressed
// body. For a delta, the base's name is before the body.
func packEntry(kind byte, size uint64, base, body []byte) []byte {
	head := []byte{kind<<4 | byte(size&15)}
	for size >>= 4; size > 0; size >>= 7 {
		head[len(head)-1] |= 0x80
		head = append(head, byte(size&0x7f))
	}
	return append(append(head, base...), body...)
}

func deflated(data []byte, times int) []byte {
	var b bytes.Buffer
	w, _ := zlib.NewWriterLevel(&b, zlib.BestSpeed)
	for range times {
		_, _ = w.Write(data)
	}
	_ = w.Close()
	return b.Bytes()
}

func packOf(entries ...[]byte) []byte {
	var b bytes.Buffer
	b.WriteString("PACK")
	_ = binary.Write(&b, binary.BigEndian, [2]uint32{2, uint32(len(entries))})
	for _, e := range entries {
		b.Write(e)
	}
	sum := sha1.Sum(b.Bytes())
	return append(b.Bytes(), sum[:]...)
}

// varint is a number in a delta.
func varint(n uint64) (b []byte) {
	for ; n > 0x7f; n >>= 7 {
		b = append(b, byte(n)|0x80)
	}
	return append(b, byte(n))
}

// A pack that would unfold to gigabytes is rejected before it does, whether by compressed
// zeros or by deltas that copy from deltas.
func TestImportRejectsBombs(t *testing.T) {
	home(t, "")
	r := newRepo(t)
	base := r.git("rev-parse", "HEAD")
	const mega = 1 << 20
	zeros := deflated(make([]byte, mega), 200)
	var many, deltas [][]byte
	for range 40 {
		many = append(many, packEntry(3, 200*mega, nil, zeros))
	}
	deltas = append(deltas, packEntry(3, mega, nil, deflated(make([]byte, mega), 1)))
	name := sha1.Sum(append([]byte("blob 1048576\x00"), make([]byte, mega)...))
	copies := append(varint(mega), varint(1000*mega)...)
	for range 16_000 { // each copies 65536 bytes from the beginning
		copies = append(copies, 0x80)
	}
	for range 20 {
		deltas = append(deltas, packEntry(7, uint64(len(copies)), name[:], deflated(copies, 1)))
	}
	for what, pack := range map[string][]byte{
		"zeros":       packOf(many...),
		"one object":  packOf(packEntry(3, 1<<40, nil, zeros)),
		"deltas":      packOf(deltas...),
		"no end":      packOf(append([]byte{0xbf}, bytes.Repeat([]byte{0xff}, 100)...)),
		"many":        append([]byte("PACK\x00\x00\x00\x02\xff\xff\xff\xff"), make([]byte, 100)...),
		"longer":      packOf(packEntry(3, 10, nil, deflated(make([]byte, mega), 50))),
		"shorter":     packOf(packEntry(3, 100, nil, deflated(make([]byte, 10), 1))),
		"unknown":     packOf(packEntry(5, 10, nil, deflated(make([]byte, 10), 1))),
		"never ended": packOf(packEntry(3, 100*mega, nil, zeros[:len(zeros)/3])),
	} {
		t.Run(what, func(t *testing.T) {
			before, began := r.state(), cpu()
			path := filepath.Join(t.TempDir(), "b")
			write(t, path, string(headed("# v2 git bundle\n-"+base+"\n"+otherCommit+" refs/cove/"+job+"/head", pack)))
			reject(t, r.imports(path, expect(t, path, base, otherCommit)), "")
			t.Logf("%d bytes took %v of CPU", len(pack), cpu()-began)
			if after := r.state(); after != before {
				t.Errorf("the repository changed:\n%s\n---\n%s", before, after)
			}
		})
	}
}

const otherCommit = "1234567890123456789012345678901234567890"

// cpu is what this process and its children have used.
func cpu() (used time.Duration) {
	for _, who := range []int{syscall.RUSAGE_SELF, syscall.RUSAGE_CHILDREN} {
		var u syscall.Rusage
		_ = syscall.Getrusage(who, &u)
		used += time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	return used.Round(time.Millisecond)
}
