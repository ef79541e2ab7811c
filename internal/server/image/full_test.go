package image

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
	"syscall"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"golang.org/x/sys/unix"

	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/test/need"
)

// TestFull: a disk that gets full, in a download, an extraction or an import, is said to be
// so, and nothing is left on it.
func TestFull(t *testing.T) {
	need.Root(t)
	inNamespaces(t, syscall.SysProcAttr{}, func() {
		r := newRegistry(t)
		disk := t.TempDir()
		must(t, unix.Mount("none", disk, "tmpfs", 0, "size=8m"))
		defer func() { must(t, unix.Unmount(disk, unix.MNT_DETACH)) }()
		s := storeIn(t, t.TempDir(), r, func(o *Options) { o.Dir = disk })
		small := imageOf(t, layerOf(t, file("a", "1")))
		fits := r.push(t, "small:1", small)
		download := imageOf(t, noise(t, "a", 10<<20))
		extraction := imageOf(t, layerOf(t, file("a", "1")), layerOf(t, file("b", strings.Repeat("compressible ", 1<<20))))
		for what, image := range map[string]v1.Image{"download": download, "extraction": extraction} {
			_, err := s.Pull(t.Context(), r.push(t, what+":1", image), PullOptions{})
			full(t, s, what, err)
		}
		archive := dockerOf(t, map[string]v1.Image{"x:1": download})
		_, err := s.Import(t.Context(), bytes.NewReader(archive), "", nil)
		full(t, s, "import", err)
		archive = dockerOf(t, map[string]v1.Image{"x:1": extraction})
		_, err = s.Import(t.Context(), bytes.NewReader(archive), "", nil)
		full(t, s, "import, extracted", err)
		if _, err := s.Pull(t.Context(), fits, PullOptions{}); err != nil {
			t.Errorf("one that fits: %v", err)
		}
		_, err = s.Pull(t.Context(), r.host+"/extraction:1", PullOptions{})
		wantCode(t, err, "no_space")
		if lowers, err := s.Lowers(t.Context(), digestOf(t, small)); err != nil || shownIn(t, lowers[0]) != "a=1" {
			t.Errorf("one that shares a layer with it: %v, %v", lowers, err)
		}
	})
}

// full checks an error of a disk that is full, and that nothing is left there.
func full(t *testing.T, s *Store, what string, err error) {
	t.Helper()
	wantCode(t, err, "no_space", "disk is full")
	if e, _ := errors.AsType[*fail.Error](err); e != nil && e.ExitCode() != 6 {
		t.Errorf("%s: exit code %d", what, e.ExitCode())
	}
	if left := namesIn(t, s, blobFolder, partialFolder, layerFolder, mergedFolder, stagingFolder); len(left) > 0 {
		t.Errorf("%s: left %q", what, left)
	}
}

// TestMemory: however large an image is, little of it is in memory at a time.
func TestMemory(t *testing.T) {
	const size = 160 << 20
	const most = 64 << 20
	layer := func(w io.Writer) { // a tar of one file, which is large
		tw := tar.NewWriter(w)
		_ = tw.WriteHeader(&tar.Header{Name: "large", Typeflag: tar.TypeReg, Mode: 0o644, Size: size})
		_, _ = io.CopyN(tw, zeroReader{}, size)
		_ = tw.Close()
	}
	sum := sha256.New()
	layer(sum)
	config := fmt.Sprintf(`{"os":"linux","architecture":%q,"rootfs":{"type":"layers","diff_ids":["sha256:%x"]}}`, runtime.GOARCH, sum.Sum(nil))
	in, out := io.Pipe()
	go func() {
		tw := tar.NewWriter(out)
		member := func(name, text string) {
			_ = tw.WriteHeader(&tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o644, Size: int64(len(text))})
			_, _ = io.WriteString(tw, text)
		}
		member("manifest.json", `[{"Config":"config.json","RepoTags":["large:1"],"Layers":["layer.tar"]}]`)
		member("config.json", config)
		_ = tw.WriteHeader(&tar.Header{Name: "layer.tar", Typeflag: tar.TypeReg, Mode: 0o644, Size: size + 1536})
		layer(tw)
		out.CloseWithError(tw.Close())
	}()
	defer in.Close()
	s := storeIn(t, t.TempDir(), nil)
	var before, now runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	var peak uint64
	phases := map[string]bool{}
	got, err := s.Import(t.Context(), in, "", func(p Progress) {
		runtime.ReadMemStats(&now)
		peak = max(peak, now.HeapAlloc)
		phases[p.Phase] = true
	})
	must(t, err)
	if peak > before.HeapAlloc+most || !phases[Downloading] || !phases[Extracting] {
		t.Errorf("%d bytes of memory, %d before; phases %v", peak, before.HeapAlloc, phases)
	}
	lowers, err := s.Lowers(t.Context(), got.Digest)
	must(t, err)
	if st, err := os.Stat(lowers[0] + "/large"); err != nil || st.Size() != size {
		t.Errorf("got %v, %v", st, err)
	}
}

type zeroReader struct{}

func (zeroReader) Read(b []byte) (int, error) { clear(b); return len(b), nil }
