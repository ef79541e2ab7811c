package shim

import (
	"bytes"
	"crypto/rand"
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

func TestCopyPart(t *testing.T) {
	for _, size := range []int{0, 1, copyStep - 1, copyStep, copyStep + 1, 2 * copyStep, 5*copyStep + 7} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			from, to := filepath.Join(t.TempDir(), "from"), filepath.Join(t.TempDir(), "to")
			want := make([]byte, size)
			_, _ = rand.Read(want) // it does not fail
			if err := os.WriteFile(from, want, 0o600); err != nil {
				t.Fatal(err)
			}
			n, err := copyPart(t.Context(), to, from)
			if err != nil || n != int64(size) {
				t.Fatalf("got %d, %v", n, err)
			}
			if got, err := os.ReadFile(to); err != nil || !bytes.Equal(got, want) {
				t.Errorf("it differs: %d bytes, %v", len(got), err)
			}
			if _, err := copyPart(t.Context(), to, from); err == nil {
				t.Error("what is there was written over")
			}
		})
	}
}

// TestCopyRangeShort: what is not whole is an error.
func TestCopyRangeShort(t *testing.T) {
	dir := t.TempDir()
	src, err := os.Create(filepath.Join(dir, "from"))
	if err != nil {
		t.Fatal(err)
	}
	defer src.Close()
	dst, err := os.Create(filepath.Join(dir, "to"))
	if err != nil {
		t.Fatal(err)
	}
	defer dst.Close()
	if _, err := src.WriteString("some"); err != nil {
		t.Fatal(err)
	}
	if err := copyRange(t.Context(), dst, src, [2]int64{0, 5}); err == nil {
		t.Error("it was not missed")
	}
}

// TestDescribePart: a part with one bit changed, anywhere, is another.
func TestDescribePart(t *testing.T) {
	file := filepath.Join(t.TempDir(), "part")
	data := make([]byte, 100_000)
	_, _ = rand.Read(data) // it does not fail
	describe := func() ImagePart {
		t.Helper()
		if err := os.WriteFile(file, data, 0o600); err != nil {
			t.Fatal(err)
		}
		part, err := describePart(file, true)
		if err != nil {
			t.Fatal(err)
		}
		return part
	}
	was := describe()
	if was.Name != "part" || was.Size != int64(len(data)) {
		t.Errorf("got %+v", was)
	}
	for _, at := range []int{0, 4095, 50_000, len(data) - 1} {
		data[at] ^= 1
		if now := describe(); now == was {
			t.Errorf("byte %d was not missed", at)
		}
		data[at] ^= 1
	}
	if now := describe(); now != was {
		t.Errorf("got %+v of what was %+v", now, was)
	}
}
