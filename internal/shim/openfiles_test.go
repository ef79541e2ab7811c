package shim

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/cove-dev/cove/sprites"
)

// TestReadOpenFiles: what a guest says of its open files is bounded, whatever it is.
func TestReadOpenFiles(t *testing.T) {
	var many sprites.OpenFiles
	for range 50 {
		many.Unlinked = append(many.Unlinked, sprites.OpenFile{Path: "/gone", Bytes: -1})
	}
	many.WritableBytes, many.UnlinkedBytes = -5, 1<<62
	said, err := json.Marshal(many)
	if err != nil {
		t.Fatal(err)
	}
	got, err := readOpenFiles(strings.NewReader(string(said)))
	if err != nil || len(got.Unlinked) != maxOpenNamed || got.Unlinked[0].Bytes != 0 || got.WritableBytes != 0 || got.UnlinkedBytes != maxOpenBytes {
		t.Errorf("got %+v, %v", got, err)
	}
	for _, said := range []string{"", "[]", `{"unlinked_bytes":"9"}`, `{"writable":[` + strings.Repeat(`{"path":"/x"},`, maxOpenAnswer)} {
		if got, err := readOpenFiles(strings.NewReader(said)); err == nil || got.Excess() != nil || len(got.Writable) > 0 {
			t.Errorf("%.20q: got %+v, %v", said, got, err)
		}
	}
}

// TestTooMuchOpen: a memory is kept up to the bounds; over them it is said why not.
func TestTooMuchOpen(t *testing.T) {
	for _, test := range []struct {
		writable, unlinked int64
		want               []string
	}{
		{sprites.OpenWritable, sprites.OpenUnlinked, nil},
		{sprites.OpenWritable + 1, 0, []string{"256 MiB of files are open for writing"}},
		{0, 9 << 20, []string{"9 MiB of deleted files"}},
		{300 << 20, 9 << 20, []string{"300 MiB of files", "9 MiB of deleted files"}},
	} {
		open := sprites.OpenFiles{WritableBytes: test.writable, UnlinkedBytes: test.unlinked}
		got := tooMuchOpen(open.Excess())
		if (got == "") != (test.want == nil) {
			t.Errorf("%+v: got %q", open, got)
		}
		for _, part := range test.want {
			if !strings.Contains(got, part) {
				t.Errorf("%+v: got %q, want %q in it", open, got, part)
			}
		}
	}
}
