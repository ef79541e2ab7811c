package image

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/cove-dev/cove/internal/lib/fault"
)

// writing is a layer of members, as a Draft has it.
func writing(t testing.TB, members ...member) func(io.Writer) error {
	t.Helper()
	text := tarOf(t, members...)
	return func(w io.Writer) error {
		_, err := w.Write(text)
		return err
	}
}

func compose(t testing.TB, s *Store, d Draft) Image {
	t.Helper()
	image, err := s.Compose(t.Context(), d)
	must(t, err)
	return image
}

// TestCompose: a new image has the layers and the configuration of its parent, and the
// additions. It conforms to OCI.
func TestCompose(t *testing.T) {
	r := newRegistry(t)
	s := storeIn(t, t.TempDir(), r)
	base := configured(t, v1.ConfigFile{
		OS: thisOS, Architecture: thisPlatform.Architecture, Variant: "v9",
		Config: v1.Config{Env: []string{"A=1"}, Labels: map[string]string{"kept": "yes"}, Healthcheck: &v1.HealthConfig{Test: []string{"CMD", "true"}}},
	}, layerOf(t, file("a", "1"), file("d/b", "1"), file("d/c", "1")), layerOf(t, file("e", "1")))
	parent, err := s.Pull(t.Context(), r.push(t, "base:1", base), PullOptions{})
	must(t, err)
	at := time.Date(2024, 5, 6, 7, 8, 9, 0, time.UTC)
	d := Draft{
		Parent: parent.Digest, Names: []string{"made:1", "127.0.0.1:5000/team/made:1"}, History: "RUN make", Created: at,
		Layer: writing(t, folder("d"), file("d/.wh.b", ""), file("d/n", "new"), hardlink("d/m", "d/n"), symlink("l", "../..")),
		Edit: func(c *v1.ConfigFile) error {
			c.Config.Env = append(c.Config.Env, "B=2")
			c.Config.User = "1000"
			c.RootFS.DiffIDs, c.History = nil, nil // none of its business
			return nil
		},
	}
	made := compose(t, s, d)
	if !slices.Equal(made.Names, []string{"127.0.0.1:5000/team/made:1", "made:1"}) || !made.Created.Equal(at) || len(made.Layers) != 3 {
		t.Errorf("got %+v", made)
	}
	if !slices.Equal(made.Config.Env, []string{"A=1", "B=2"}) || made.Config.User != "1000" || made.Config.Labels["kept"] != "yes" || made.Config.Variant != "v9" {
		t.Errorf("its configuration: %+v", made.Config)
	}
	lowers, err := s.Lowers(t.Context(), made.Digest)
	must(t, err)
	below, err := s.Lowers(t.Context(), parent.Digest)
	must(t, err)
	if !slices.Equal(lowers[1:], below) || shownIn(t, lowers[0]) != "d/  d/b? 0  d/m=new  d/n=new  l->../.." {
		t.Errorf("its folders: %v over %v, the new one %s", lowers, below, shownIn(t, lowers[0]))
	}
	c, err := s.ConfigFile(t.Context(), "made:1")
	must(t, err)
	if c.Config.Healthcheck == nil || len(c.History) != 3 || c.History[2].CreatedBy != "RUN make" || c.History[2].EmptyLayer || len(c.RootFS.DiffIDs) != 3 {
		t.Errorf("the configuration of the new image: %+v", c)
	}
	raw, err := os.ReadFile(s.path(blobFolder, hexOf(made.Digest)))
	must(t, err)
	m, err := v1.ParseManifest(bytes.NewReader(raw))
	must(t, err)
	if m.MediaType != types.OCIManifestSchema1 || m.Config.MediaType != types.OCIConfigJSON {
		t.Errorf("its manifest: %s", raw)
	}
	for _, l := range m.Layers {
		if l.MediaType != types.OCILayer {
			t.Errorf("a layer of an OCI image is %s", l.MediaType)
		}
	}
	if again := compose(t, s, d); again.Digest != made.Digest {
		t.Errorf("the same draft made %s, then %s", made.Digest, again.Digest)
	}

	// No layer, and a tar of none: the history says so.
	for _, layer := range []func(io.Writer) error{nil, writing(t)} {
		step := compose(t, s, Draft{Parent: made.Digest, Layer: layer, History: "ENV B=3"})
		c, err := s.ConfigFile(t.Context(), step.Digest)
		must(t, err)
		if len(step.Layers) != 3 || len(step.Names) != 0 || len(c.History) != 4 || !c.History[3].EmptyLayer {
			t.Errorf("without a layer: %+v, %+v", step, c.History)
		}
	}

	scratch := compose(t, s, Draft{Names: []string{"s:1"}})
	if lowers, err := s.Lowers(t.Context(), scratch.Digest); err != nil || len(lowers) != 0 || scratch.Config.Architecture != thisPlatform.Architecture {
		t.Errorf("from scratch: %+v, %v, %v", scratch, lowers, err)
	}
	one := compose(t, s, Draft{Parent: scratch.Digest, Layer: writing(t, file("a", "1"))})
	if lowers, err := s.Lowers(t.Context(), one.Digest); err != nil || len(lowers) != 1 || shownIn(t, lowers[0]) != "a=1" {
		t.Errorf("a layer over scratch: %v, %v", lowers, err)
	}
}

// TestComposeMany: images one over the other, of more layers than can be mounted, are made without
// a merge. The first Lowers merges; images of nearly as many layers share what was merged.
func TestComposeMany(t *testing.T) {
	s := storeIn(t, t.TempDir(), nil)
	var all []Image
	parent := ""
	for i := range 3*(MaxLowers-1) + 2 {
		one := compose(t, s, Draft{Parent: parent, Layer: writing(t, file(fmt.Sprint("of", i), "x"), file("last", fmt.Sprint(i)))})
		all, parent = append(all, one), one.Digest
	}
	if trees, err := s.Trees(t.Context(), parent); err != nil || len(trees) != len(all) || shownIn(t, trees[0]) != fmt.Sprintf("last=%d  of%d=x", len(all)-1, len(all)-1) {
		t.Errorf("trees %v, %v", trees, err)
	}
	if made := namesIn(t, s, mergedFolder, stagingFolder); len(made) > 0 {
		t.Errorf("merged by Compose: %q", made)
	}
	for _, one := range slices.Backward(all) {
		lowers, err := s.Lowers(t.Context(), one.Digest)
		must(t, err)
		n := len(one.Layers)
		if most := min(n, MaxLowers); len(lowers) > most || n > MaxLowers && filepath.Dir(filepath.Dir(lowers[len(lowers)-1])) != s.path(mergedFolder) {
			t.Errorf("of %d layers: %v", n, lowers)
		}
		if got := shownIn(t, lowers[0]); n%(MaxLowers-1) != 1 && got != fmt.Sprintf("last=%d  of%d=x", n-1, n-1) {
			t.Errorf("of %d layers: the topmost shows %s", n, got)
		}
	}
	if made := namesIn(t, s, mergedFolder, stagingFolder); len(made) != 3 {
		t.Errorf("%d merges: %q", len(made), made)
	}
	// Of the last image nothing goes with the others.
	lowers, err := s.Lowers(t.Context(), parent)
	must(t, err)
	_, err = s.Prune(t.Context(), func(digest string, _ []string) bool { return digest == parent })
	must(t, err)
	if made := namesIn(t, s, mergedFolder, stagingFolder); len(made) != 1 || s.path(made[0], treeName) != lowers[len(lowers)-1] {
		t.Errorf("after a prune: %q, %q", made, lowers)
	}
	// Two at once that merge the same share one folder.
	must(t, os.RemoveAll(s.path(mergedFolder)))
	must(t, os.Mkdir(s.path(mergedFolder), 0o700))
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			if again, err := s.Lowers(t.Context(), parent); err != nil || !slices.Equal(again, lowers) {
				t.Errorf("two at once: %v, %v, want %v", again, err, lowers)
			}
		})
	}
	wg.Wait()
	if made := namesIn(t, s, mergedFolder, stagingFolder); len(made) != 1 {
		t.Errorf("two at once: %q", made)
	}
	must(t, s.Remove(t.Context(), parent, nobody))
	if left := namesIn(t, s, blobFolder, layerFolder, mergedFolder, stagingFolder); len(left) > 0 {
		t.Errorf("left %q", left)
	}
}

// TestMergeKilled: if a process is killed while it merges layers, nothing of the merge is left.
// The next process merges them.
func TestMergeKilled(t *testing.T) {
	const child = "COVE_TEST_MERGE_CHILD"
	if dir := os.Getenv(child); dir != "" {
		s := storeIn(t, dir, nil)
		_, err := s.Lowers(t.Context(), os.Getenv(child+"_IMAGE")) // it is stopped in here
		t.Fatal("the point was not reached", err)
	}
	dir := t.TempDir()
	digest := func() (digest string) {
		db, s := openIn(t, dir, nil)
		defer db.Close()
		for i := range MaxLowers + 1 {
			digest = compose(t, s, Draft{Parent: digest, Layer: writing(t, file(fmt.Sprintf("of%02d", i), "x"))}).Digest
		}
		return digest
	}()
	c := exec.Command(os.Args[0], "-test.run=^TestMergeKilled$")
	reached := filepath.Join(dir, "reached")
	c.Env = append(os.Environ(), child+"="+dir, child+"_IMAGE="+digest, fault.Variable+"="+string(fault.ImageMerged)+"="+reached)
	killAt(t, c, reached)
	s := storeIn(t, dir, nil)
	if left := namesIn(t, s, mergedFolder, stagingFolder); len(left) > 0 {
		t.Errorf("left %q", left)
	}
	lowers, err := s.Lowers(t.Context(), digest)
	must(t, err)
	var want []string
	for i := range MaxLowers - 1 {
		want = append(want, fmt.Sprintf("of%02d=x", i))
	}
	if got := shownIn(t, lowers[len(lowers)-1]); len(lowers) != 3 || got != strings.Join(want, "  ") {
		t.Errorf("got %q, which shows %s", lowers, got)
	}
}

// TestComposeFails: what fails leaves nothing.
func TestComposeFails(t *testing.T) {
	s := storeIn(t, t.TempDir(), nil)
	parent := compose(t, s, Draft{Layer: writing(t, file("a", "1")), Names: []string{"base:1"}})
	before := namesIn(t, s, blobFolder, partialFolder, layerFolder, mergedFolder, stagingFolder)
	mine := errors.New("mine")
	cancelled, cancel := context.WithCancelCause(t.Context())
	for name, c := range map[string]struct {
		draft Draft
		code  string
		is    error
	}{
		"a layer breaks off":      {Draft{Layer: func(w io.Writer) error { return errors.Join(writing(t, file("b", "1"))(w), mine) }}, "", mine},
		"a configuration":         {Draft{Edit: func(*v1.ConfigFile) error { return mine }}, "", mine},
		"a layer that is no tar":  {Draft{Layer: func(w io.Writer) error { _, err := io.WriteString(w, "no tar"); return err }}, "image_bad", nil},
		"a layer that leads away": {Draft{Layer: writing(t, file("../b", ""))}, "image_bad", nil},
		"a foreign platform":      {Draft{Edit: func(c *v1.ConfigFile) error { c.Architecture = "pdp11"; return nil }, Layer: writing(t, file("b", "1"))}, "image_platform", nil},
		"no such parent":          {Draft{Parent: "sha256:" + strings.Repeat("0", 64)}, "image_not_found", nil},
		"a name with a digest":    {Draft{Names: []string{"x@sha256:" + strings.Repeat("0", 64)}}, "bad_reference", nil},
		"no name":                 {Draft{Names: []string{"A B"}}, "bad_reference", nil},
		"cancelled": {Draft{Layer: func(w io.Writer) error {
			cancel(mine)
			_ = writing(t, file("b", "1"))(w) // it says so: Compose ends all the same
			return nil
		}}, "", mine},
	} {
		t.Run(name, func(t *testing.T) {
			ctx := t.Context()
			if name == "cancelled" {
				ctx = cancelled
			}
			if c.draft.Parent == "" {
				c.draft.Parent = parent.Digest
			}
			c.draft.Names = append(c.draft.Names, "new:1")
			_, err := s.Compose(ctx, c.draft)
			if c.is != nil && !errors.Is(err, c.is) {
				t.Errorf("got %v, want %v", err, c.is)
			} else if c.is == nil {
				wantCode(t, err, c.code)
			}
			if left := namesIn(t, s, blobFolder, partialFolder, layerFolder, mergedFolder, stagingFolder); !slices.Equal(left, before) {
				t.Errorf("left %q", left)
			}
			_, err = s.Get(t.Context(), "new:1")
			wantCode(t, err, "image_not_found")
		})
	}
	t.Run("a full disk", func(t *testing.T) {
		dir := t.TempDir()
		full := errors.New("full")
		room := int64(1 << 20)
		s := storeIn(t, dir, nil, func(o *Options) {
			o.Claim = func(n int64) error {
				if room -= n; room < 0 {
					return full
				}
				return nil
			}
		})
		_, err := s.Compose(t.Context(), Draft{Layer: writing(t, file("b", strings.Repeat("0123456789abcdef", 1<<17)))})
		wantCode(t, err, "no_space")
		if left := namesIn(t, s, blobFolder, partialFolder, layerFolder, mergedFolder, stagingFolder); len(left) > 0 {
			t.Errorf("left %q", left)
		}
	})
}

// TestHold: nobody can remove a held image until all holds are released.
func TestHold(t *testing.T) {
	s := storeIn(t, t.TempDir(), nil)
	image := compose(t, s, Draft{Layer: writing(t, file("a", "1")), Names: []string{"held:1"}})
	first, second := s.Hold(image.Digest), s.Hold(image.Digest)
	first()
	first()
	wantCode(t, s.Remove(t.Context(), "held:1", nobody), "image_in_use")
	if p, err := s.Prune(t.Context(), func(string, []string) bool { return false }); err != nil || len(p.Images) != 0 {
		t.Errorf("pruned %+v, %v", p, err)
	}
	if _, err := s.Lowers(t.Context(), image.Digest); err != nil {
		t.Error(err)
	}
	second()
	must(t, s.Remove(t.Context(), "held:1", nobody))
	if left := namesIn(t, s, blobFolder, layerFolder, stagingFolder); len(left) > 0 {
		t.Errorf("left %q", left)
	}

	// An image can be held from before it can be found.
	var releases []func()
	had, err := s.List(t.Context())
	must(t, err)
	image = compose(t, s, Draft{Layer: writing(t, file("a", "2")), Held: func(release func()) {
		releases = append(releases, release)
		if now, err := s.List(t.Context()); err != nil || len(now) != len(had) {
			t.Errorf("it is here before it is held: %+v, %v", now, err)
		}
	}})
	if p, err := s.Prune(t.Context(), func(string, []string) bool { return false }); err != nil || len(p.Images) != 0 || len(releases) != 1 {
		t.Errorf("pruned %+v, %v, held %d times", p, err, len(releases))
	}
	releases[0]()
	if p, err := s.Prune(t.Context(), func(string, []string) bool { return false }); err != nil || !slices.Equal(p.Images, []string{image.Digest}) {
		t.Errorf("pruned %+v, %v", p, err)
	}

	// The parent of an image that is being made stays, and so do its layers.
	image = compose(t, s, Draft{Layer: writing(t, file("a", "1"))})
	made := compose(t, s, Draft{Parent: image.Digest, Layer: func(w io.Writer) error {
		wantCode(t, s.Remove(t.Context(), image.Digest, nobody), "image_in_use")
		if _, err := s.Prune(t.Context(), func(string, []string) bool { return false }); err != nil {
			t.Error(err)
		}
		return writing(t, file("b", "1"))(w)
	}})
	must(t, s.Remove(t.Context(), image.Digest, nobody))
	if lowers, err := s.Lowers(t.Context(), made.Digest); err != nil || shownIn(t, lowers[1]) != "a=1" {
		t.Errorf("got %v, %v", lowers, err)
	}
}

// TestTag: an image gets a name, and the image that had it loses it.
func TestTag(t *testing.T) {
	s := storeIn(t, t.TempDir(), nil)
	one := compose(t, s, Draft{Layer: writing(t, file("a", "1")), Names: []string{"one:1"}})
	two := compose(t, s, Draft{Layer: writing(t, file("a", "2")), Names: []string{"two:1"}})
	got, err := s.Tag(t.Context(), "one:1", "two:1")
	if err != nil || got.Digest != one.Digest || !slices.Equal(got.Names, []string{"one:1", "two:1"}) || !got.Pulled.Equal(one.Pulled) {
		t.Errorf("got %+v, %v", got, err)
	}
	if got, err := s.Get(t.Context(), two.Digest); err != nil || len(got.Names) != 0 {
		t.Errorf("the image that had the name: %+v, %v", got, err)
	}
	_, err = s.Tag(t.Context(), "three:1", "four:1")
	wantCode(t, err, "image_not_found")
	_, err = s.Tag(t.Context(), "one:1", "x@"+two.Digest)
	wantCode(t, err, "bad_reference")
}

// TestComposeKilled: if a process is killed while it makes an image, the image is there or
// nothing of it is used. The next process makes it.
func TestComposeKilled(t *testing.T) {
	const child = "COVE_TEST_COMPOSE_CHILD"
	draft := func(parent string) Draft {
		return Draft{Parent: parent, Layer: writing(t, file("b", "2")), Names: []string{"made:1"}, Created: time.Unix(1, 0)}
	}
	if dir := os.Getenv(child); dir != "" {
		s := storeIn(t, dir, nil)
		_, err := s.Compose(t.Context(), draft(os.Getenv(child+"_PARENT"))) // it is stopped in here
		t.Fatal("the point was not reached", err)
	}
	for _, point := range fault.ComposePoints {
		t.Run(string(point), func(t *testing.T) {
			dir := t.TempDir()
			parent := func() Image {
				db, s := openIn(t, dir, nil)
				defer db.Close()
				return compose(t, s, Draft{Layer: writing(t, file("a", "1")), Names: []string{"base:1"}})
			}()
			c := exec.Command(os.Args[0], "-test.run=^TestComposeKilled$")
			reached := filepath.Join(dir, "reached")
			c.Env = append(os.Environ(), child+"="+dir, child+"_PARENT="+parent.Digest, fault.Variable+"="+string(point)+"="+reached)
			killAt(t, c, reached)
			s := storeIn(t, dir, nil)
			if left := namesIn(t, s, stagingFolder); len(left) > 0 {
				t.Errorf("staged: %q", left)
			}
			for _, path := range namesIn(t, s, blobFolder) {
				data, err := os.ReadFile(s.path(path))
				if err != nil || newDocument(data).digest.Hex != filepath.Base(path) {
					t.Errorf("%s is not what its name says, %v", path, err)
				}
			}
			list, err := s.List(t.Context())
			if err != nil || (len(list) == 2) != (point == fault.ImageStored) {
				t.Errorf("there is %+v, %v", list, err)
			}
			made := compose(t, s, draft(parent.Digest))
			lowers, err := s.Lowers(t.Context(), made.Digest)
			if err != nil || len(lowers) != 2 || shownIn(t, lowers[0]) != "b=2" || shownIn(t, lowers[1]) != "a=1" {
				t.Errorf("got %v, %v", lowers, err)
			}
			if raw, err := json.Marshal(made.Names); err != nil || string(raw) != `["made:1"]` {
				t.Errorf("its names are %s", raw)
			}
		})
	}
}
