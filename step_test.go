package cove_test

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/cove-dev/cove"
)

// TestStepOutput: the beginning and the end of an output are kept, in bounded memory. A
// reader that goes on from a number is told if it missed something.
func TestStepOutput(t *testing.T) {
	var o cove.StepOutput
	var all strings.Builder
	var read strings.Builder
	for i := range 40_000 {
		line := strings.Repeat("ä", i%40) + "\n"
		all.WriteString(line)
		o.Append(line)
		if i%100 == 0 {
			at, text := o.From(int64(read.Len()))
			if at != int64(read.Len()) {
				t.Fatalf("line %d: a reader at %d was given what begins at %d", i, read.Len(), at)
			}
			read.WriteString(text)
		}
	}
	if n := len(o.Head) + len(o.Tail); n > 100<<10 || !utf8.ValidString(o.Head) || !utf8.ValidString(o.Tail) {
		t.Errorf("kept %d bytes, valid UTF-8: %t, %t", n, utf8.ValidString(o.Head), utf8.ValidString(o.Tail))
	}
	if o.Size() != int64(all.Len()) || !strings.HasPrefix(all.String(), o.Head) || !strings.HasSuffix(all.String(), o.Tail) {
		t.Errorf("size %d of %d; the head or the tail is not the output's", o.Size(), all.Len())
	}
	if !strings.HasPrefix(all.String(), read.String()) || read.Len() < all.Len()/2 {
		t.Errorf("a reader that came often has %d bytes of %d, or others", read.Len(), all.Len())
	}
	at, text := o.From(int64(len(o.Head)) + 1)
	if want := o.Size() - int64(len(o.Tail)); at != want || text != o.Tail {
		t.Errorf("a reader that came late: got %d bytes from %d on, want %d from %d", len(text), at, len(o.Tail), want)
	}
	if _, text := o.From(o.Size()); text != "" {
		t.Errorf("from the end on there is %q", text)
	}
	if !strings.Contains(o.String(), "bytes left out") {
		t.Error("what is dropped is not told of")
	}
}

func TestStepOutputSmall(t *testing.T) {
	var o cove.StepOutput
	o.Append("one\n\xff")
	o.Append("two")
	if got := o.String(); got != "one\n\uFFFDtwo" {
		t.Errorf("got %q", got)
	}
	if at, text := o.From(4); at != 4 || text != "\uFFFDtwo" {
		t.Errorf("from 4: got %d, %q", at, text)
	}
}
