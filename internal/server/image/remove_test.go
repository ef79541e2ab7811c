package image

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/test/need"
)

func nobody(string) ([]string, error) { return nil, nil }

// names are those in folders of a store.
func namesIn(t testing.TB, s *Store, folders ...string) (all []string) {
	t.Helper()
	for _, folder := range folders {
		entries, err := os.ReadDir(s.path(folder))
		must(t, err)
		for _, e := range entries {
			all = append(all, filepath.Join(folder, e.Name()))
		}
	}
	return all
}

// TestRemove: an image goes with what no other has, unless a sprite uses it.
func TestRemove(t *testing.T) {
	r := newRegistry(t)
	shared := layerOf(t, file("a", "1"))
	one, two := imageOf(t, shared, layerOf(t, file("b", "2"))), imageOf(t, shared, layerOf(t, file("c", "3")))
	var removed []string
	s := storeIn(t, t.TempDir(), r, func(o *Options) {
		o.Removed = func(digest string) error { removed = append(removed, digest); return nil }
	})
	refOne, refTwo, also := r.push(t, "one:1", one), r.push(t, "two:1", two), r.push(t, "also:1", two)
	for _, ref := range []string{refOne, refTwo, also} {
		_, err := s.Pull(t.Context(), ref, PullOptions{})
		must(t, err)
	}
	err := s.Remove(t.Context(), refOne, func(digest string) ([]string, error) {
		if digest != digestOf(t, one) {
			t.Errorf("asked for %s", digest)
		}
		return []string{"paint", "draw"}, nil
	})
	wantCode(t, err, "image_in_use", "paint, draw")
	if e, _ := errors.AsType[*fail.Error](err); e == nil || !strings.Contains(e.Hint, "cove list") || strings.Contains(e.Hint, "cove rm") {
		t.Errorf("the hint of %v", err)
	}
	asking := errors.New("no answer")
	if err := s.Remove(t.Context(), refOne, func(string) ([]string, error) { return nil, asking }); !errors.Is(err, asking) {
		t.Errorf("got %v, want %v", err, asking)
	}
	must(t, s.Remove(t.Context(), also, func(string) ([]string, error) { return []string{"paint"}, nil })) // a name alone
	if got, err := s.Get(t.Context(), refTwo); err != nil || !slices.Equal(got.Names, []string{refTwo}) {
		t.Errorf("after a name went: %+v, %v", got, err)
	}
	must(t, os.WriteFile(s.path(partialFolder, strings.Repeat("1", 64)), []byte("x"), 0o600))
	must(t, s.Remove(t.Context(), refOne, nobody))
	wantCode(t, s.Remove(t.Context(), refOne, nobody), "image_not_found")
	if got := namesIn(t, s, blobFolder, layerFolder, partialFolder); len(got) != 4+2+1 {
		t.Errorf("of two images one is left, and a download: %q", got)
	}
	if lowers, err := s.Lowers(t.Context(), digestOf(t, two)); err != nil || shownIn(t, lowers[1]) != "a=1" {
		t.Errorf("the other one: %v, %v", lowers, err)
	}
	must(t, s.Remove(t.Context(), digestOf(t, two), nobody))
	if got := namesIn(t, s, blobFolder, layerFolder, stagingFolder); len(got) != 0 {
		t.Errorf("left %q", got)
	}
	if want := []string{digestOf(t, one), digestOf(t, two)}; !slices.Equal(removed, want) {
		t.Errorf("told of %q, want %q", removed, want)
	}
}

// TestPrune: images that nobody uses go, and what no image has; what a pull under way needs
// stays.
func TestPrune(t *testing.T) {
	r := newRegistry(t)
	one, two := imageOf(t, layerOf(t, file("a", "1"))), imageOf(t, layerOf(t, file("b", "2")))
	s := storeIn(t, t.TempDir(), r)
	for _, ref := range []string{r.push(t, "one:1", one), r.push(t, "two:1", two)} {
		_, err := s.Pull(t.Context(), ref, PullOptions{})
		must(t, err)
	}
	lost, needed := strings.Repeat("1", 64), strings.Repeat("2", 64)
	for _, hex := range []string{lost, needed} {
		for _, folder := range []string{partialFolder, blobFolder} {
			must(t, os.WriteFile(s.path(folder, hex), []byte("1234567"), 0o600))
		}
		must(t, os.MkdirAll(s.path(layerFolder, hex, treeName, "x"), 0o755))
	}
	var p pins
	s.pin(&p, blobFolder, needed)
	s.pin(&p, layerFolder, needed)
	got, err := s.Prune(t.Context(), func(digest string, _ []string) bool { return digest == digestOf(t, two) })
	must(t, err)
	if !slices.Equal(got.Images, []string{digestOf(t, one)}) || got.Bytes < 14+fileCost {
		t.Errorf("got %+v", got)
	}
	left := namesIn(t, s, blobFolder, partialFolder, layerFolder, stagingFolder)
	if len(left) != 3+1+1+1+1 || slices.ContainsFunc(left, func(path string) bool { return filepath.Base(path) == lost }) {
		t.Errorf("left %q", left)
	}
	s.unpin(p)
	if got, err = s.Prune(t.Context(), func(string, []string) bool { return true }); err != nil || len(got.Images) != 0 || got.Bytes != 14 {
		t.Errorf("once more: %+v, %v", got, err)
	}
	if len(s.pinned) != 0 {
		t.Errorf("pinned: %v", s.pinned)
	}
}

// TestPruneMeanwhile: whatever files an image that is being made has at a moment, a prune leaves
// them, and does not fail for those that go.
func TestPruneMeanwhile(t *testing.T) {
	s := storeIn(t, t.TempDir(), nil)
	made := make(chan error, 1)
	go func() {
		for i := range 50 {
			_, err := s.Compose(t.Context(), Draft{History: fmt.Sprint(i)})
			if err != nil {
				made <- err
				return
			}
		}
		made <- nil
	}()
	for prunes := 0; ; prunes++ {
		select {
		case err := <-made:
			if err != nil {
				t.Errorf("after %d prunes: %v", prunes, err)
			}
			return
		default:
		}
		if _, err := s.Prune(t.Context(), func(string, []string) bool { return true }); err != nil {
			t.Errorf("prune %d: %v", prunes, err)
		}
	}
}

// TestNamedMeanwhile: an image that gets a name while it is about to be removed stays.
func TestNamedMeanwhile(t *testing.T) {
	s := storeIn(t, t.TempDir(), nil)
	image := compose(t, s, Draft{Layer: writing(t, file("a", "1"))})
	tag := func(name string) {
		t.Helper()
		_, err := s.Tag(t.Context(), image.Digest, name)
		must(t, err)
	}
	want := func(names ...string) {
		t.Helper()
		if got, err := s.Get(t.Context(), image.Digest); err != nil || !slices.Equal(got.Names, names) {
			t.Errorf("got %+v, %v; want the names %q", got, err, names)
		}
		if _, err := s.Lowers(t.Context(), image.Digest); err != nil {
			t.Error(err)
		}
	}
	p, err := s.Prune(t.Context(), func(_ string, names []string) bool {
		defer tag("app:2")
		return len(names) > 0
	})
	if err != nil || len(p.Images) > 0 {
		t.Errorf("pruned %+v, %v", p, err)
	}
	want("app:2")
	must(t, s.Remove(t.Context(), "app:2", func(string) ([]string, error) {
		tag("app:3")
		return nil, nil
	}))
	want("app:3")
}

// TestPulledMeanwhile: nobody removes an image between its pull and the answer of that.
func TestPulledMeanwhile(t *testing.T) {
	r := newRegistry(t)
	s := storeIn(t, t.TempDir(), r)
	ref := r.push(t, "one:1", imageOf(t, layerOf(t, file("a", "1"))))
	_, err := s.Pull(t.Context(), ref, PullOptions{Progress: func(p Progress) {
		if p.Phase == Done {
			wantCode(t, s.Remove(t.Context(), ref, nobody), "image_in_use")
		}
	}})
	must(t, err)
	must(t, s.Remove(t.Context(), ref, nobody))
}

// TestMerged: an image of more layers than are mounted has its lowest ones as one folder, and
// the kernel shows the same.
func TestMerged(t *testing.T) {
	need.Root(t)
	inNamespaces(t, syscall.SysProcAttr{}, func() {
		r := newRegistry(t)
		for _, n := range []int{MaxLowers, MaxLowers + 1, 40} {
			var all []v1.Layer
			var want []string
			for i := range n {
				members := []member{file(fmt.Sprintf("only%02d", i), "x"), file("last", fmt.Sprint(i)), file("same", "s")}
				if i > 0 {
					members = append(members, file(fmt.Sprintf(".wh.gone%d", i-1), ""), file("d/.wh..wh..opq", ""))
				}
				members = append(members, file(fmt.Sprintf("gone%d/x", i), "x"), file(fmt.Sprintf("d/%d", i), "x"))
				all = append(all, layerOf(t, members...))
				want = append(want, fmt.Sprintf("only%02d=x", i))
			}
			want = append(want, "d/", fmt.Sprintf("d/%d=x", n-1), fmt.Sprintf("gone%d/", n-1), fmt.Sprintf("gone%d/x=x", n-1), fmt.Sprintf("last=%d", n-1), "same=s")
			slices.Sort(want)
			image := imageOf(t, all...)
			s := storeIn(t, t.TempDir(), r)
			ref := r.push(t, fmt.Sprintf("x:%d", n), image)
			got, err := s.Pull(t.Context(), ref, PullOptions{})
			must(t, err)
			lowers, err := s.Lowers(t.Context(), got.Digest)
			must(t, err)
			if wanted := map[int]int{MaxLowers: MaxLowers, MaxLowers + 1: 3, 40: 11}[n]; len(lowers) != wanted {
				t.Errorf("%d layers: %d lowers, want %d", n, len(lowers), wanted)
			}
			mounted(t, s, lowers, func(root string) {
				if got := shownIn(t, root); got != strings.Join(want, "  ") {
					t.Errorf("%d layers: got\n%s, want\n%s", n, got, strings.Join(want, "  "))
				}
			})
			if lowest := shownIn(t, lowers[len(lowers)-1]); strings.Contains(lowest, "?") {
				t.Errorf("%d layers: the lowest one has marks: %s", n, lowest)
			}
			if n > MaxLowers {
				var st syscall.Stat_t
				must(t, syscall.Lstat(s.path(layerFolder, hexOf(got.Layers[0].ChainID), treeName, "only00"), &st))
				if st.Nlink != 1 {
					t.Errorf("%d layers: a layer's file was linked %d times", n, st.Nlink)
				}
				lowest := filepath.Dir(lowers[len(lowers)-1])
				if merged, _ := filepath.Rel(s.o.Dir, lowest); s.sizeOf(merged) == 0 {
					t.Errorf("%d layers: the copies of %s take no room", n, merged)
				}
				must(t, os.RemoveAll(lowest))
				if again, err := s.Lowers(t.Context(), got.Digest); err != nil || !slices.Equal(again, lowers) || s.sizeOf(filepath.Join(mergedFolder, filepath.Base(lowest))) == 0 {
					t.Errorf("%d layers: without what was merged: %v, %v", n, again, err) // it is made again
				}
				must(t, os.Rename(s.path(layerFolder, hexOf(got.Layers[0].ChainID)), s.path(stagingFolder, "aside")))
				_, err := s.Lowers(t.Context(), got.Digest)
				wantCode(t, err, "image_bad", "lost a layer")
				if _, err := s.Pull(t.Context(), ref, PullOptions{}); err != nil { // makes it again
					t.Error(err)
				}
				if _, err := s.Lowers(t.Context(), got.Digest); err != nil {
					t.Error(err)
				}
				must(t, os.RemoveAll(s.path(stagingFolder, "aside")))
			}
			must(t, s.Remove(t.Context(), ref, nobody))
			if left := namesIn(t, s, blobFolder, layerFolder, mergedFolder, stagingFolder); len(left) != 0 {
				t.Errorf("left %q", left)
			}
		}
	})
}
