package image

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// layoutOf writes an OCI layout as a tar.
func layoutOf(t testing.TB, index v1.ImageIndex, more ...member) []byte {
	t.Helper()
	dir := t.TempDir()
	_, err := layout.Write(dir, index)
	must(t, err)
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	must(t, w.AddFS(os.DirFS(dir)))
	for _, m := range more {
		m.Size = int64(len(m.text))
		must(t, w.WriteHeader(&m.Header))
		_, err := io.WriteString(w, m.text)
		must(t, err)
	}
	must(t, w.Close())
	return b.Bytes()
}

func dockerOf(t testing.TB, images map[string]v1.Image) []byte {
	t.Helper()
	all := map[name.Reference]v1.Image{}
	for tag, image := range images {
		ref, err := name.NewTag(tag)
		must(t, err)
		all[ref] = image
	}
	var b bytes.Buffer
	must(t, tarball.MultiRefWrite(all, &b))
	return b.Bytes()
}

func named(image mutate.Appendable, annotations map[string]string, platform *v1.Platform) mutate.IndexAddendum {
	return mutate.IndexAddendum{Add: image, Descriptor: v1.Descriptor{Annotations: annotations, Platform: platform}}
}

// TestImport: archives of either kind become images, by their own names or another.
func TestImport(t *testing.T) {
	image := configured(t, v1.ConfigFile{OS: "linux", Architecture: runtime.GOARCH, Config: v1.Config{User: "me"}}, layerOf(t, file("a", "1")), layerOf(t, file("b", "2")))
	other := imageOf(t, layerOf(t, file("c", "3")))
	docker := dockerOf(t, map[string]v1.Image{"x:1": image})
	config, err := image.RawConfigFile()
	must(t, err)
	one, two := tarOf(t, file("a", "1")), tarOf(t, file("b", "2"))
	entry, err := json.Marshal([]map[string]any{{"Config": "config.json", "RepoTags": []string{"old:1"}, "Layers": []string{"1/layer.tar", "2/layer.tar"}}})
	must(t, err)
	old := tarOf(t, file("1/VERSION", "1.0"), file("shared.tar", string(one)), symlink("1/layer.tar", "../shared.tar"), file("2/layer.tar", string(two)), file("config.json", string(config)), file("manifest.json", string(entry)))
	// Since version 25, docker save writes a layout with a manifest.json.
	digests := func() (all []string) {
		m, err := image.Manifest()
		must(t, err)
		for _, l := range m.Layers {
			all = append(all, blobName(l.Digest.Hex))
		}
		return append(all, blobName(m.Config.Digest.Hex))
	}()
	entry, err = json.Marshal([]map[string]any{{"Config": digests[2], "RepoTags": []string{"new:1", "new:2"}, "Layers": digests[:2]}})
	must(t, err)
	both := layoutOf(t, mutate.AppendManifests(empty.Index, named(image, map[string]string{nameAnnotation: name.DefaultRegistry + "/library/new:1", refAnnotation: "1"}, nil)), file("manifest.json", string(entry)))
	plainLayout := layoutOf(t, mutate.AppendManifests(empty.Index, named(image, nil, nil)))
	platforms := mutate.AppendManifests(empty.Index, named(other, nil, &v1.Platform{OS: "linux", Architecture: "other"}), named(image, nil, &v1.Platform{OS: "linux", Architecture: runtime.GOARCH}))
	several := layoutOf(t, mutate.AppendManifests(empty.Index, named(other, map[string]string{refAnnotation: "reg.example/o:1"}, nil), named(image, map[string]string{refAnnotation: "reg.example/x:1"}, nil)))
	for what, test := range map[string]struct {
		text  []byte
		as    string
		names []string
		same  bool // the digest must be the original's
	}{
		"docker":                         {docker, "", []string{"x:1"}, false},
		"docker, gzip":                   {gzipped(t, docker), "y", []string{"y:latest"}, false},
		"docker, zstd":                   {zstded(t, docker), "reg.example/y:2", []string{"reg.example/y:2"}, false},
		"docker with links":              {old, "", []string{"old:1"}, false},
		"docker with a layout":           {both, "", []string{"new:1", "new:2"}, true},
		"docker, one of two":             {dockerOf(t, map[string]v1.Image{"x:1": image, "o:1": other}), "x:1", []string{"x:1"}, false},
		"a layout without a name":        {plainLayout, "", nil, true},
		"a layout that gets a name":      {plainLayout, "z", []string{"z:latest"}, true},
		"a layout of platforms":          {layoutOf(t, platforms), "", nil, true},
		"a layout of platforms, by name": {layoutOf(t, mutate.AppendManifests(empty.Index, mutate.IndexAddendum{Add: platforms, Descriptor: v1.Descriptor{Annotations: map[string]string{refAnnotation: "reg.example/p:1"}}})), "", []string{"reg.example/p:1"}, true},
		"a layout, one of two":           {several, "reg.example/x:1", []string{"reg.example/x:1"}, true},
	} {
		s := storeIn(t, t.TempDir(), nil)
		var last Progress
		got, err := s.Import(t.Context(), bytes.NewReader(test.text), test.as, func(p Progress) { last = p })
		if err != nil {
			t.Errorf("%s: %v", what, err)
			continue
		}
		if !slices.Equal(got.Names, test.names) || got.Config.User != "me" || len(got.Layers) != 2 || test.same && got.Digest != digestOf(t, image) || last.Phase != Done {
			t.Errorf("%s: got %+v, the last of which was %+v", what, got, last)
		}
		lowers, err := s.Lowers(t.Context(), got.Digest)
		if err != nil || len(lowers) != 2 || shownIn(t, lowers[0]) != "b=2" || shownIn(t, lowers[1]) != "a=1" {
			t.Errorf("%s: the layers are %v, %v", what, lowers, err)
		}
		for _, h := range []string{got.Digest, got.Layers[0].Digest} {
			if data, err := os.ReadFile(s.path(blobFolder, hexOf(h))); err != nil || newDocument(data).digest.String() != h {
				t.Errorf("%s: the blob %s: %v", what, h, err)
			}
		}
		if left, err := os.ReadDir(s.path(stagingFolder)); err != nil || len(left) > 0 {
			t.Errorf("%s: left %v, %v", what, left, err)
		}
		again, err := s.Import(t.Context(), bytes.NewReader(test.text), test.as, nil)
		if err != nil || again.Digest != got.Digest {
			t.Errorf("%s: again: %+v, %v", what, again, err)
		}
	}
}

// TestImportRoot: the tar of a root file system, compressed or not, becomes an image of one
// layer. The archive of an image is imported as such, even if its layers have the same
// folders.
func TestImportRoot(t *testing.T) {
	root := tarOf(t, folder("./"), symlink("./bin", "usr/bin"), folder("./etc"), file("./etc/name", "1"), file("./manifest.json", "x"), file("./usr/bin/tool", "2"))
	s := storeIn(t, t.TempDir(), nil)
	for what, text := range map[string][]byte{"plain": root, "gzip": gzipped(t, root), "zstd": zstded(t, root)} {
		got, err := s.Import(t.Context(), bytes.NewReader(text), "mine:1", nil)
		must(t, err)
		if !slices.Equal(got.Names, []string{"mine:1"}) || len(got.Layers) != 1 || !slices.Equal(got.Config.Env, []string{rootPath}) || got.Config.Architecture != runtime.GOARCH {
			t.Errorf("%s: got %+v", what, got)
		}
		lowers, err := s.Lowers(t.Context(), got.Digest)
		if err != nil || len(lowers) != 1 {
			t.Fatalf("%s: the layers are %v, %v", what, lowers, err)
		}
		for name, want := range map[string]string{"etc/name": "1", "bin/tool": "2", "manifest.json": "x"} {
			if data, err := os.ReadFile(filepath.Join(lowers[0], name)); err != nil || string(data) != want {
				t.Errorf("%s: %s is %q, %v", what, name, data, err)
			}
		}
	}
	if list, err := s.List(t.Context()); err != nil || len(list) != 1 {
		t.Errorf("three imports of one file system are %+v, %v", list, err)
	}
	if got, err := s.Import(t.Context(), bytes.NewReader(root), "", nil); err != nil || !slices.Equal(got.Names, []string{"mine:1"}) {
		t.Errorf("without a name: %+v, %v", got, err)
	}
	saved := dockerOf(t, map[string]v1.Image{"x:1": imageOf(t, layerOf(t, file("etc/name", "1")))})
	if got, err := s.Import(t.Context(), bytes.NewReader(saved), "", nil); err != nil || !slices.Equal(got.Names, []string{"x:1"}) {
		t.Errorf("an archive of docker save: %+v, %v", got, err)
	}
	for what, test := range map[string]struct {
		text []byte
		says string
	}{
		"cut short":                {root[:len(root)/2], "EOF"},
		"compressed and cut short": {gzipped(t, root)[:100], "EOF"},
		"a file called etc":        {tarOf(t, file("etc", "1")), "neither"},
		"a path that leads out":    {tarOf(t, folder("etc"), file("../x", "1")), ".."},
	} {
		t.Run(what, func(t *testing.T) {
			_, err := s.Import(t.Context(), bytes.NewReader(test.text), "", nil)
			wantCode(t, err, "image_bad", test.says)
			if left, err := os.ReadDir(s.path(stagingFolder)); err != nil || len(left) > 0 {
				t.Errorf("left %v, %v", left, err)
			}
		})
	}
}

// TestImportTakesNoDigest: an archive can't give its image a name that people mean as a
// digest. If an image has such a name all the same, the digest comes first.
func TestImportTakesNoDigest(t *testing.T) {
	s := storeIn(t, t.TempDir(), nil)
	honest, err := s.Import(t.Context(), bytes.NewReader(dockerOf(t, map[string]v1.Image{"x:1": imageOf(t, layerOf(t, file("a", "1")))})), "", nil)
	must(t, err)
	short := hexOf(honest.Digest)[:minPrefix]
	meant := []string{"debian@" + honest.Digest, "sha256:" + short, short, hexOf(honest.Digest), name.DefaultRegistry + "/library/" + short + ":latest", name.DefaultRegistry + "/library/sha256:" + short}
	evil := configured(t, v1.ConfigFile{OS: "linux", Architecture: runtime.GOARCH, Config: v1.Config{User: "evil"}}, layerOf(t, file("a", "2")))
	config, err := evil.RawConfigFile()
	must(t, err)
	entry, err := json.Marshal([]map[string]any{{"Config": "config.json", "RepoTags": append(meant, "y:1"), "Layers": []string{"layer.tar"}}})
	must(t, err)
	docker := tarOf(t, file("layer.tar", string(tarOf(t, file("a", "2")))), file("config.json", string(config)), file("manifest.json", string(entry)))
	archives := [][]byte{docker}
	for _, text := range meant {
		archives = append(archives, layoutOf(t, mutate.AppendManifests(empty.Index, named(evil, map[string]string{refAnnotation: text}, nil))))
	}
	for _, archive := range archives {
		got, err := s.Import(t.Context(), bytes.NewReader(archive), "", nil)
		must(t, err)
		if len(got.Names) > 1 || len(got.Names) == 1 && got.Names[0] != "y:1" {
			t.Errorf("the archive gave its image the names %q", got.Names)
		}
	}
	// An earlier cove let an archive do that.
	row, err := s.o.Store.Named(t.Context(), name.DefaultRegistry+"/library/y:1")
	must(t, err)
	for _, text := range meant {
		if ref, err := parse(text); err == nil {
			row.Names = append(row.Names, ref.Name())
		}
	}
	must(t, s.o.Store.Put(t.Context(), row))
	for _, text := range meant[:4] {
		if got, err := s.Get(t.Context(), text); err != nil || got.Digest != honest.Digest {
			t.Errorf("%s is %+v, %v", text, got, err)
		}
	}
}

// TestImportRefused: an archive that has no image, several, or not all of one, is refused,
// and leaves nothing.
func TestImportRefused(t *testing.T) {
	image, other := imageOf(t, layerOf(t, file("a", "1"))), imageOf(t, layerOf(t, file("c", "3")))
	whole := layoutOf(t, mutate.AppendManifests(empty.Index, named(image, nil, nil)))
	layers, err := image.Layers()
	must(t, err)
	layer := digestOf(t, layers[0])
	without := func(change func(h *tar.Header, text []byte) []byte) []byte {
		var b bytes.Buffer
		r, w := tar.NewReader(bytes.NewReader(whole)), tar.NewWriter(&b)
		for {
			h, err := r.Next()
			if err == io.EOF {
				must(t, w.Close())
				return b.Bytes()
			}
			must(t, err)
			text, err := io.ReadAll(r)
			must(t, err)
			if text = change(h, text); text != nil {
				h.Size = int64(len(text))
				must(t, w.WriteHeader(h))
				_, err = w.Write(text)
				must(t, err)
			}
		}
	}
	s := storeIn(t, t.TempDir(), nil)
	many := make([]member, maxMembers+1)
	for i := range many {
		many[i] = file("same", "")
	}
	for what, test := range map[string]struct {
		text     []byte
		as, code string
		says     string
	}{
		"nothing":               {nil, "", "image_bad", "neither"},
		"no tar":                {bytes.Repeat([]byte("x"), 4096), "", "image_bad", "damaged"},
		"another tar":           {tarOf(t, file("a", "1")), "", "image_bad", "neither"},
		"cut short":             {whole[:len(whole)/2], "", "image_bad", ""},
		"two":                   {dockerOf(t, map[string]v1.Image{"x:1": image, "o:1": other}), "", "image_bad", "2 images: "},
		"two, and none of them": {dockerOf(t, map[string]v1.Image{"x:1": image, "o:1": other}), "y:1", "image_bad", `none with the name "y:1": `},
		"two in a layout":       {layoutOf(t, mutate.AppendManifests(empty.Index, named(image, nil, nil), named(other, nil, nil))), "", "image_bad", "2 images"},
		"a name that is none":   {whole, "?", "bad_reference", ""},
		"a name with a digest":  {whole, "x@sha256:" + strings.Repeat("0", 64), "bad_reference", "digest"},
		"a layer is missing": {without(func(h *tar.Header, text []byte) []byte {
			return pick(strings.HasSuffix(h.Name, hexOf(layer)), nil, text)
		}), "", "image_bad", "has no " + layer},
		"a layer is another": {without(func(h *tar.Header, text []byte) []byte {
			return pick(strings.HasSuffix(h.Name, hexOf(layer)), []byte("x"), text)
		}), "", "image_bad", "has no " + layer},
		"the index is no JSON": {without(func(h *tar.Header, text []byte) []byte { return pick(h.Name == "index.json", []byte("x"), text) }), "", "image_bad", "can't be read"},
		"another platform":     {layoutOf(t, mutate.AppendManifests(empty.Index, named(configured(t, v1.ConfigFile{OS: "linux", Architecture: "other"}), nil, nil))), "", "image_platform", "linux/other"},
		"a file of it all":     {tarOf(t, file("manifest.json", `[{"Config":"../../etc/passwd","Layers":[]}]`)), "", "image_bad", ".."},
		"links in a circle":    {tarOf(t, file("manifest.json", `[{"Config":"a","Layers":[]}]`), symlink("a", "b"), symlink("b", "a")), "", "image_bad", "has no"},
		"a link outwards":      {tarOf(t, file("manifest.json", `[{"Config":"a","Layers":[]}]`), symlink("a", "/etc/passwd")), "", "image_bad", "has no"},
		"many members":         {tarOf(t, many...), "", "image_bad", "members"},
		"a large document":     {tarOf(t, file("index.json", strings.Repeat(" ", MaxDocument+1))), "", "image_bad", "more than"},
	} {
		t.Run(what, func(t *testing.T) {
			_, err := s.Import(t.Context(), bytes.NewReader(test.text), test.as, nil)
			wantCode(t, err, test.code, test.says)
			if left, err := os.ReadDir(s.path(stagingFolder)); err != nil || len(left) > 0 {
				t.Errorf("left %v, %v", left, err)
			}
			if list, err := s.List(t.Context()); err != nil || len(list) > 0 {
				t.Errorf("there is %+v, %v", list, err)
			}
		})
	}
	lost := errors.New("the connection is lost")
	_, err = s.Import(t.Context(), io.MultiReader(bytes.NewReader(whole[:2000]), failing{lost}), "", nil)
	if !errors.Is(err, lost) {
		t.Errorf("got %v, want %v", err, lost)
	}
	if left, err := filepath.Glob(s.path(stagingFolder, "*")); err != nil || len(left) > 0 {
		t.Errorf("left %v, %v", left, err)
	}
}

func pick(yes bool, a, b []byte) []byte {
	if yes {
		return a
	}
	return b
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

// TestImportAll: all images of an archive come by their names, one with two names once. A fault
// of one of them is told.
func TestImportAll(t *testing.T) {
	one, two := imageOf(t, layerOf(t, file("a", "1"))), imageOf(t, layerOf(t, file("c", "3")))
	foreign := configured(t, v1.ConfigFile{OS: "linux", Architecture: "other"}, layerOf(t, file("e", "5")))
	from := storeIn(t, t.TempDir(), nil)
	_, err := from.Import(t.Context(), bytes.NewReader(dockerOf(t, map[string]v1.Image{"x:1": one})), "", nil)
	must(t, err)
	_, err = from.Import(t.Context(), bytes.NewReader(dockerOf(t, map[string]v1.Image{"y:1": two})), "", nil)
	must(t, err)
	_, err = from.Tag(t.Context(), "x:1", "x:2")
	must(t, err)
	var saved bytes.Buffer
	must(t, from.Save(t.Context(), []string{"x:1", "y:1", "x:2"}, &saved))
	for what, test := range map[string]struct {
		text []byte
		want []string
		code string
	}{
		"docker save": {dockerOf(t, map[string]v1.Image{"x:1": one, "y:1": two, "x:2": one}), []string{"x:1", "x:2", "y:1"}, ""},
		"cove save":   {saved.Bytes(), []string{"x:1", "x:2", "y:1"}, ""},
		"one":         {dockerOf(t, map[string]v1.Image{"x:1": one}), []string{"x:1"}, ""},
		"no names":    {layoutOf(t, mutate.AppendManifests(empty.Index, named(one, nil, nil), named(two, nil, nil))), nil, "image_bad"},
		"foreign":     {dockerOf(t, map[string]v1.Image{"y:1": two, "z:1": foreign}), nil, "image_platform"},
		"nothing":     {nil, nil, "image_bad"},
	} {
		s := storeIn(t, t.TempDir(), nil)
		all, err := ImportAll(t.Context(), s, bytes.NewReader(test.text), nil)
		if test.code != "" {
			wantCode(t, err, test.code, "")
			continue
		}
		var names, listed []string
		for _, i := range all {
			names = append(names, i.Names...)
		}
		list, err2 := s.List(t.Context())
		for _, i := range list {
			listed = append(listed, i.Names...)
		}
		slices.Sort(names)
		slices.Sort(listed)
		if err != nil || err2 != nil || !slices.Equal(names, test.want) || !slices.Equal(listed, test.want) || len(list) != len(all) {
			t.Errorf("%s: got %v, has %v, want %v (%v, %v)", what, names, listed, test.want, err, err2)
		}
	}
}
