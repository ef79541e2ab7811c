package image

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"golang.org/x/sys/unix"
)

// benchLayer is a layer as a system's are: many small files, some large ones, that compress to
// less than half.
func benchLayer(b *testing.B) (gzipped []byte, size int64) {
	b.Helper()
	random := rand.New(rand.NewPCG(1, 2))
	words := make([][]byte, 4096)
	for i := range words {
		words[i] = fmt.Appendf(nil, "%x ", random.Uint32())
	}
	var out bytes.Buffer
	zw, err := gzip.NewWriterLevel(&out, gzip.BestSpeed)
	if err != nil {
		b.Fatal(err)
	}
	tw := tar.NewWriter(zw)
	add := func(h tar.Header, text []byte) {
		if err := tw.WriteHeader(&h); err != nil {
			b.Fatal(err)
		}
		if _, err := tw.Write(text); err != nil {
			b.Fatal(err)
		}
		size += int64(len(text))
	}
	var text []byte
	for dir := range 200 {
		add(tar.Header{Name: fmt.Sprintf("d%d/", dir), Typeflag: tar.TypeDir, Mode: 0o755}, nil)
		for file := range 40 {
			text = text[:0]
			for n := 4<<10 + random.IntN(32<<10); len(text) < n; {
				text = append(text, words[random.IntN(len(words))]...)
			}
			add(tar.Header{Name: fmt.Sprintf("d%d/f%d", dir, file), Typeflag: tar.TypeReg, Mode: 0o644, Size: int64(len(text))}, text)
		}
	}
	if err := tw.Close(); err != nil {
		b.Fatal(err)
	}
	if err := zw.Close(); err != nil {
		b.Fatal(err)
	}
	return out.Bytes(), size
}

// BenchmarkExtract compares the first import of an image of 8,000 files with tar, which
// extracts the same layer on the same file system. Both end when all is on disk.
func BenchmarkExtract(b *testing.B) {
	gzipped, size := benchLayer(b)
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(gzipped)), nil })
	if err != nil {
		b.Fatal(err)
	}
	archive := dockerOf(b, map[string]v1.Image{"bench:1": configured(b, v1.ConfigFile{OS: "linux", Architecture: runtime.GOARCH}, layer)})
	b.Run("cove", func(b *testing.B) {
		b.SetBytes(size)
		for b.Loop() {
			b.StopTimer()
			s := storeIn(b, b.TempDir(), nil)
			b.StartTimer()
			if _, err := s.Import(b.Context(), bytes.NewReader(archive), "", nil); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("tar", func(b *testing.B) {
		b.SetBytes(size)
		for b.Loop() {
			b.StopTimer()
			dir := b.TempDir()
			b.StartTimer()
			cmd := exec.Command("tar", "-xzf", "-", "-C", dir)
			cmd.Stdin = bytes.NewReader(gzipped)
			if out, err := cmd.CombinedOutput(); err != nil {
				b.Fatalf("%v: %s", err, out)
			}
			f, err := os.Open(filepath.Dir(dir))
			if err != nil {
				b.Fatal(err)
			}
			if err := unix.Syncfs(int(f.Fd())); err != nil {
				b.Fatal(err)
			}
			if err := f.Close(); err != nil {
				b.Fatal(err)
			}
		}
	})
}
