package sprites

import (
	"bytes"
	"math"
	"testing"
)

// TestReplayed: a client writes nothing twice that a replay repeats, and notices what it lacks.
func TestReplayed(t *testing.T) {
	var b bytes.Buffer
	var r replayed
	write := func(text string) {
		for i := range len(text) {
			b.Write(r.fresh([]byte(text[i : i+1])))
		}
	}
	write("abcdef")
	if !r.replay(2) {
		t.Error("nothing is missing, and it says so")
	}
	write("cd") // and cut again
	if !r.replay(0) {
		t.Error("nothing is missing, and it says so")
	}
	write("abcdefgh")
	if !r.replay(8) {
		t.Error("nothing is missing, and it says so")
	}
	write("ij")
	if r.replay(12) {
		t.Error("two bytes are missing")
	}
	b.Write(r.fresh([]byte("mn")))
	if !r.replay(10) {
		t.Error("nothing more is missing")
	}
	b.Write(r.fresh([]byte("klmnop")))
	if !r.replay(math.MinInt64) || r.skip != r.at {
		t.Errorf("from before the beginning, %d of %d bytes are passed over", r.skip, r.at)
	}
	if got, want := b.String(), "abcdefghijmnop"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestKeptInput: a client drops input that the command has taken, and keeps the rest up to a
// limit.
func TestKeptInput(t *testing.T) {
	k := newKeptInput()
	k.numbered = true
	add := func(n int) {
		t.Helper()
		k.next = k.base + int64(len(k.kept)) // all was sent
		if !k.add(make([]byte, n)) {
			t.Fatal("nobody wants it")
		}
	}
	add(100)
	k.next = 60
	taken := int64(40)
	k.took(&taken)
	if k.base != 40 || len(k.kept) != 60 {
		t.Errorf("after 40 of 100 bytes: kept are %d from %d on", len(k.kept), k.base)
	}
	taken = math.MaxInt64 // a sandbox says so
	k.took(&taken)
	taken = math.MinInt64
	k.took(&taken)
	if k.base != 60 || len(k.kept) != 40 {
		t.Errorf("60 were sent; kept are %d from %d on", len(k.kept), k.base)
	}
	add(keptMax - 40)
	add(1000)
	if k.base != 60+1000 || len(k.kept) != keptMax {
		t.Errorf("beyond the limit: kept are %d from %d on", len(k.kept), k.base)
	}
	for _, taken := range []*int64{new(int64(60 + 999)), new(int64), new(int64(math.MinInt64)), nil} {
		if k.resume(taken, nil) == "" {
			t.Errorf("it resumes from %v, which is not kept", taken)
		}
	}
	k.close()
	if k.add([]byte("x")) {
		t.Error("after the end input is wanted")
	}
}
