package server

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

// TestEventTail: the events of several logs come in the order of their times, from the older
// files on. Then come those that are added, also to a file that replaces a full one. One event
// of each log is in memory.
func TestEventTail(t *testing.T) {
	type event struct{ N int }
	at := func(e event) time.Time { return time.UnixMilli(int64(e.N)) }
	dir := t.TempDir()
	file := func(name string) string { return filepath.Join(dir, name) }
	add := func(name, text string) {
		t.Helper()
		f, err := os.OpenFile(file(name), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		if err == nil {
			_, err = f.WriteString(text)
		}
		if err != nil || f.Close() != nil {
			t.Fatal(err)
		}
	}
	var tails []*eventTail[event]
	for _, log := range []string{"a", "b"} {
		l := &eventTail[event]{paths: []string{file(log + ".1"), file(log)}}
		defer l.close()
		tails = append(tails, l)
	}
	told := func(want ...int) {
		t.Helper()
		var got []int
		for first := earliest(tails, at); first != nil; first = earliest(tails, at) {
			got = append(got, first.head.N)
			first.head = nil
		}
		if !slices.Equal(got, want) {
			t.Errorf("told %v, want %v", got, want)
		}
	}
	add("a.1", `{"N":1}`+"\n"+`{"N":4}`+"\n"+`{"N":`)
	add("a", `{"N":6}`+"\n\x00\x00\n"+`{"N":8}`+"\n")
	add("b", `{"N":3}`+"\n"+`{"N":7}`+"\n"+`{"N":9`)
	told(1, 3, 4, 6, 7, 8)
	add("b", "}\n")
	told(9)
	add("a", `{"N":10}`+"\n")
	if err := os.Rename(file("a"), file("a.1")); err != nil {
		t.Fatal(err)
	}
	told(10)
	add("a", `{"N":11}`+"\n")
	told(11)
	told()
}
