package archive

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cove-dev/cove/internal/shim/layers"
)

// nest makes folders inside each other. Each has one file before the next folder and one after
// it. nest returns all names in the order of a walk.
func nest(t testing.TB, top string, deep int) []string {
	t.Helper()
	root, err := os.OpenRoot(top)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = root.Close() }()
	var before, after []string
	at := ""
	for range deep {
		for _, name := range []string{"a", "z"} {
			if err := root.WriteFile(name, nil, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		before, after = append(before, path.Join(at, "a")), append(after, path.Join(at, "z"))
		if err := root.Mkdir("m", 0o755); err != nil {
			t.Fatal(err)
		}
		at = path.Join(at, "m")
		before = append(before, at+"/")
		below, err := root.OpenRoot("m")
		if err != nil {
			t.Fatal(err)
		}
		if err := root.Close(); err != nil {
			t.Fatal(err)
		}
		root = below
	}
	slices.Reverse(after)
	return append(before, after...)
}

// namesOf are the names of a tar's members.
func namesOf(t testing.TB, text []byte) (all []string) {
	t.Helper()
	for in := tar.NewReader(bytes.NewReader(text)); ; {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, h.Name)
	}
}

// TestWriteLayerDeep: files are written that are in more nested folders than can stay open,
// whether the base has the folders or not.
func TestWriteLayerDeep(t *testing.T) {
	const deep = 200
	base, upper := t.TempDir(), t.TempDir()
	want := nest(t, upper, deep)
	write := func() string {
		v, err := layers.OpenView([]string{base}, []string{upper}, false)
		if err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		if err := errors.Join(WriteLayer(t.Context(), &out, v, func(string) bool { return false }), v.Close()); err != nil {
			t.Fatal(err)
		}
		return strings.Join(namesOf(t, out.Bytes()), "\n")
	}
	if got := write(); got != strings.Join(want, "\n") {
		t.Errorf("over nothing: got\n%s", got)
	}
	nest(t, base, deep)
	if err := os.Chmod(filepath.Join(base, strings.Repeat("m/", deep)), 0o700); err != nil {
		t.Fatal(err)
	}
	if got := write(); got != strings.Join(want, "\n") {
		t.Errorf("over the same: got\n%s", got)
	}
}

// BenchmarkWriteLayerDeep writes nested folders. A folder takes the same time however deep it
// is, except for its name.
func BenchmarkWriteLayerDeep(b *testing.B) {
	for _, deep := range []int{250, 500, 1000, 2000} {
		b.Run(fmt.Sprint(deep), func(b *testing.B) {
			base, upper := b.TempDir(), b.TempDir()
			var begin, end unix.Rusage
			nest(b, base, deep)
			nest(b, upper, deep)
			if err := unix.Getrusage(unix.RUSAGE_SELF, &begin); err != nil {
				b.Fatal(err)
			}
			for b.Loop() {
				v, err := layers.OpenView([]string{base}, []string{upper}, false)
				if err != nil {
					b.Fatal(err)
				}
				if err := errors.Join(WriteLayer(b.Context(), io.Discard, v, func(string) bool { return false }), v.Close()); err != nil {
					b.Fatal(err)
				}
			}
			if err := unix.Getrusage(unix.RUSAGE_SELF, &end); err != nil {
				b.Fatal(err)
			}
			used := end.Utime.Nano() + end.Stime.Nano() - begin.Utime.Nano() - begin.Stime.Nano()
			b.ReportMetric(float64(used)/float64(b.N)/float64(deep), "cpu-ns/folder")
		})
	}
}
