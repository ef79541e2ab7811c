package image

import (
	"archive/tar"
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/sys/unix"

	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/shim/layers"
)

// The bounds of an archive, besides those of the image in it.
const (
	maxMembers     = 4096
	maxArchiveName = 512 // bytes; members of longer names are left out
	maxLinks       = 8   // that lead to each other
)

// Import imports an image from an archive of docker save, podman save or skopeo. The archive
// is one of Docker's, or an OCI layout as a tar; gzip or zstd may compress it. A tar of a root
// file system becomes an image of one layer. The image gets the name, or if that is empty
// those that the archive has. An archive of several images is refused, unless the name is one
// of theirs.
func (s *Store) Import(ctx context.Context, r io.Reader, as string, progress func(Progress)) (one Image, err error) {
	var names []name.Reference
	if as != "" {
		ref, err := newName(as)
		if err != nil {
			return one, err
		}
		names = append(names, ref)
	}
	err = opened(ctx, s, r, progress, func(a *archive, m *meter) (err error) {
		one, err = a.take(ctx, as, names, m)
		return err
	})
	return one, err
}

// ImportAll is a store's Import of all images of an archive, each by a name that it has there. If one of
// them is refused, those before it are here all the same.
func ImportAll(ctx context.Context, s *Store, r io.Reader, progress func(Progress)) (all []Image, err error) {
	err = opened(ctx, s, r, progress, func(a *archive, m *meter) error {
		names := a.names()
		if _, _, err := a.image("", nil); err == nil || len(names) < 2 {
			one, err := a.take(ctx, "", nil, m)
			all = append(all, one)
			return err
		}
		for _, ref := range names {
			one, err := a.take(ctx, familiar(ref.Name()), []name.Reference{ref}, m)
			if err != nil {
				return err
			}
			all = slices.DeleteFunc(all, func(had Image) bool { return had.Digest == one.Digest }) // by another name
			all = append(all, one)
		}
		return nil
	})
	return all, err
}

// opened calls take with an archive that has come, and removes it.
func opened(ctx context.Context, s *Store, r io.Reader, progress func(Progress), take func(*archive, *meter) error) (err error) {
	m := &meter{tell: progress}
	dir, err := os.MkdirTemp(s.path(stagingFolder), "import-")
	if err != nil {
		return onDisk(err)
	}
	defer func() { err = errors.Join(err, layers.Remove(dir)) }()
	a := &archive{s: s, dir: dir, files: map[string]spooled{}, links: map[string]string{}}
	if err := a.spool(ctx, r, m.gauge(Downloading, "", 0)); err != nil {
		return err
	}
	m.phase(Resolving)
	return take(a, m)
}

// take takes one image of an archive.
func (a *archive) take(ctx context.Context, as string, names []name.Reference, m *meter) (Image, error) {
	d, found, err := a.image(as, names)
	if err != nil {
		return Image{}, err
	}
	if len(names) == 0 {
		names = found
	}
	what := "in the archive"
	if len(names) > 0 {
		what = familiar(names[0].Name())
	}
	return a.s.take(ctx, d, a, taken{what: what, names: names, meter: m})
}

// maxNames bounds the names that an archive has for its images.
const maxNames = 1000

// names are the names that an archive has for its images, in their order, maxNames at most.
func (a *archive) names() (all []name.Reference) {
	seen := map[string]bool{}
	add := func(refs ...name.Reference) {
		for _, ref := range refs {
			if !seen[ref.Name()] && len(all) < maxNames {
				seen[ref.Name()] = true
				all = append(all, ref)
			}
		}
	}
	if raw, ok, err := a.document("manifest.json"); ok && err == nil {
		var images []dockerImage
		_ = json.Unmarshal(raw, &images) // image tells what is wrong with it
		for _, image := range images {
			for _, tag := range image.RepoTags {
				if ref, ok := mayName(tag); ok {
					add(ref)
				}
			}
		}
	}
	if raw, ok, err := a.document("index.json"); ok && err == nil {
		if index, err := v1.ParseIndexManifest(bytes.NewReader(raw)); err == nil {
			for _, m := range index.Manifests {
				add(annotated(m)...)
			}
		}
	}
	return all
}

// several refuses to choose one of an archive's images.
func (a *archive) several(n int, as string) error {
	var names []string
	for _, ref := range a.names() {
		if names = append(names, familiar(ref.Name())); len(names) == 20 {
			break
		}
	}
	says, hint := fmt.Sprintf("the archive has %d images", n), "save only one of them"
	if as != "" {
		says += fmt.Sprintf(", and none with the name %.200q", as)
	}
	if len(names) > 0 {
		says, hint = says+": "+strings.Join(names, ", "), "import one of them: cove image import FILE --name "+names[0]+"; or all of them: cove image import FILE"
	}
	return fail.Newf("image_bad", hint, "the image was refused: %s", says)
}

// archive is what an archive has, in a folder of its own.
type archive struct {
	s     *Store
	dir   string
	files map[string]spooled // by clean name
	links map[string]string  // to the clean name that it leads to
}

// spooled is a file of an archive.
type spooled struct {
	path   string
	digest string // hex
	size   int64
	gzip   bool // it is compressed
}

// arriving is an archive or a blob that is being read. Its read errors are not the content's
// fault.
type arriving struct {
	ctx  context.Context
	r    io.Reader
	n    int64
	tell func(int64)
	err  error
}

func (a *arriving) Read(b []byte) (int, error) {
	if a.ctx.Err() != nil {
		a.err = context.Cause(a.ctx)
		return 0, a.err
	}
	n, err := a.r.Read(b)
	a.n += int64(n)
	a.tell(a.n)
	if err != nil && err != io.EOF {
		a.err = err
	}
	return n, err
}

// spool writes what an archive has to files.
func (a *archive) spool(ctx context.Context, r io.Reader, tell func(int64)) error {
	in := &arriving{ctx: ctx, r: r, tell: tell}
	err := a.members(in)
	switch {
	case in.err != nil:
		return in.err
	case err == nil:
		return nil
	}
	err = onDisk(err)
	if _, ok := errors.AsType[*fail.Error](err); ok {
		return err
	}
	if _, ok := errors.AsType[unix.Errno](err); ok {
		return err
	}
	return bad("the archive is damaged: %v", err)
}

func (a *archive) members(in io.Reader) error {
	p, err := plain(in)
	if err != nil {
		return err
	}
	defer p.Close()
	most := bufio.NewReaderSize(&limited{r: p, left: maxBytes}, rootPeek)
	buf := make([]byte, copyBlock)
	if head, _ := most.Peek(rootPeek); isRoot(head) { // an error is the next read's, too
		err := a.root(most, buf)
		if errors.Is(err, errLarge) {
			return bad("the archive has more than %d bytes", int64(maxBytes))
		}
		return err
	}
	t := tar.NewReader(most)
	for n := 0; ; n++ {
		h, err := t.Next()
		if errors.Is(err, errLarge) {
			return bad("the archive has more than %d bytes", int64(maxBytes))
		}
		if err == io.EOF {
			_, err = io.CopyBuffer(io.Discard, struct{ io.Reader }{most}, buf)
			return err
		}
		if err != nil {
			return err
		}
		if n == maxMembers {
			return bad("the archive has more than %d members", maxMembers)
		}
		at, err := cleanName(h.Name)
		if err != nil {
			return err
		}
		if len(at) > maxArchiveName || len(h.Linkname) > maxArchiveName {
			continue
		}
		switch h.Typeflag {
		case tar.TypeReg:
			if h.Size > maxBytes {
				return bad("the archive has more than %d bytes", int64(maxBytes))
			}
			err = a.file(at, t, filepath.Join(a.dir, fmt.Sprint(n)), buf)
		case tar.TypeSymlink:
			a.links[at] = strings.TrimPrefix(path.Join("/", path.Dir(at), h.Linkname), "/")
		case tar.TypeLink:
			a.links[at] = strings.TrimPrefix(path.Join("/", h.Linkname), "/")
		}
		if err != nil {
			return err
		}
	}
}

// file writes a member to a file.
func (a *archive) file(at string, r io.Reader, to string, buf []byte) error {
	f, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	sum, head := sha256.New(), make([]byte, 2)
	had, err := io.ReadFull(r, head)
	if err == nil {
		r = io.MultiReader(bytes.NewReader(head), r)
	} else if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		r = bytes.NewReader(head[:had])
	} else {
		return errors.Join(err, f.Close())
	}
	n, err := io.CopyBuffer(struct{ io.Writer }{claiming{a.s, io.MultiWriter(f, sum)}}, struct{ io.Reader }{r}, buf)
	a.files[at] = spooled{to, hex.EncodeToString(sum.Sum(nil)), n, head[0] == 0x1f && head[1] == 0x8b}
	return errors.Join(err, f.Close())
}

// claiming claims room for what it writes.
type claiming struct {
	s *Store
	w io.Writer
}

func (c claiming) Write(b []byte) (int, error) {
	if err := c.s.Claim(int64(len(b))); err != nil {
		return 0, err
	}
	return c.w.Write(b)
}

// find returns the file of a name, or that which a link leads to.
func (a *archive) find(at string) (spooled, bool) {
	for range maxLinks {
		if f, ok := a.files[at]; ok {
			return f, true
		}
		to, ok := a.links[at]
		if !ok {
			break
		}
		at = to
	}
	return spooled{}, false
}

// document reads a file that is small.
func (a *archive) document(at string) ([]byte, bool, error) {
	f, ok := a.find(at)
	if !ok {
		return nil, false, nil
	}
	if f.size > MaxDocument {
		return nil, true, bad("%s has more than %d bytes", at, MaxDocument)
	}
	raw, err := os.ReadFile(f.path)
	return raw, true, err
}

// blobName is where an OCI layout has a blob.
func blobName(hex string) string { return "blobs/sha256/" + hex }

// blob moves a file to the blobs. Another image of the archive finds it there.
func (a *archive) blob(_ context.Context, d v1.Descriptor) error {
	for _, f := range a.files {
		if f.digest != d.Digest.Hex {
			continue
		}
		if f.size != d.Size {
			return bad("it says that %s has %d bytes, but that blob has %d", d.Digest, d.Size, f.size)
		}
		opened, err := os.Open(f.path)
		if err != nil {
			return err
		}
		return errors.Join(a.s.keep(opened, d.Digest), opened.Close())
	}
	return bad("the archive has no %s, or has it with other content", d.Digest)
}

// image finds the manifest of the image in an archive, and its names.
func (a *archive) image(as string, asked []name.Reference) (document, []name.Reference, error) {
	d, names, ok, err := a.ofLayout(asked)
	docker, dockerNames, isDocker, dockerErr := a.ofDocker(as, asked)
	switch {
	case ok && (err == nil || !isDocker):
		// Docker's archives since version 25 are layouts, too; the names of both are the image's.
		return d, append(names, dockerNames...), err
	case isDocker:
		return docker, dockerNames, dockerErr
	}
	return document{}, nil, bad("the archive is neither one of docker save nor an OCI layout nor a root file system: it has neither manifest.json nor index.json, and does not begin with a folder such as /etc or /usr")
}

// The annotations that name images in an OCI layout.
const (
	nameAnnotation = "io.containerd.image.name"
	refAnnotation  = "org.opencontainers.image.ref.name" // often nothing but a tag
)

// ofLayout finds the image of an OCI layout; false: the archive is not one.
func (a *archive) ofLayout(asked []name.Reference) (d document, names []name.Reference, ok bool, err error) {
	raw, ok, err := a.document("index.json")
	if !ok || err != nil {
		return d, nil, ok, err
	}
	index, err := v1.ParseIndexManifest(bytes.NewReader(raw))
	if err != nil {
		return d, nil, true, bad("index.json can't be read: %v", err)
	}
	named := map[v1.Hash][]name.Reference{}
	var all []v1.Descriptor
	for _, m := range index.Manifests {
		if _, ok := named[m.Digest]; !ok {
			all = append(all, m)
		}
		named[m.Digest] = append(named[m.Digest], annotated(m)...)
		for _, ref := range named[m.Digest] {
			if len(asked) > 0 && ref.Name() == asked[0].Name() {
				d, err := a.resolve(m)
				return d, asked, true, err
			}
		}
	}
	if len(all) == 1 {
		d, err := a.resolve(all[0])
		return d, named[all[0].Digest], true, err
	}
	next, err := choose(newDocument(raw), "in the archive")
	if err != nil || next.Platform == nil {
		as := ""
		if len(asked) > 0 {
			as = familiar(asked[0].Name())
		}
		return d, nil, true, a.several(len(all), as)
	}
	d, err = a.resolve(next)
	return d, named[next.Digest], true, err
}

// annotated are the names that a layout has for an image.
func annotated(m v1.Descriptor) (names []name.Reference) {
	for _, key := range []string{nameAnnotation, refAnnotation} {
		text := m.Annotations[key]
		if !strings.ContainsAny(text, "/:") {
			continue
		}
		if ref, ok := mayName(text); ok {
			return []name.Reference{ref}
		}
	}
	return nil
}

// mayName reads a name that an archive has for an image. Names that say which digest is meant
// are not for an archive to give.
func mayName(text string) (name.Reference, bool) {
	ref, err := parse(text)
	if err != nil {
		return nil, false
	}
	_, pinned := pinnedTo(ref)
	_, digits := digitsOf(strings.TrimSuffix(familiar(ref.Name()), ":"+name.DefaultTag))
	return ref, !pinned && !digits
}

// resolve returns the manifest of this machine that a layout's entry leads to. Its blobs are there.
func (a *archive) resolve(m v1.Descriptor) (document, error) {
	for range maxIndexes + 1 {
		if err := sound(m, MaxDocument); err != nil {
			return document{}, err
		}
		raw, ok, err := a.document(blobName(m.Digest.Hex))
		if err != nil {
			return document{}, err
		}
		d := newDocument(raw)
		if !ok || d.digest != m.Digest {
			return document{}, bad("the archive has no %s, or has it with other content", m.Digest)
		}
		kind, err := d.kind()
		if err != nil {
			return d, err
		}
		if kind.IsImage() {
			return d, a.complete(d)
		}
		if m, err = choose(d, "in the archive"); err != nil {
			return d, err
		}
	}
	return document{}, bad("it has indexes in indexes")
}

// complete checks that all blobs of a manifest are in a layout.
func (a *archive) complete(d document) error {
	m, err := readManifest(d)
	if err != nil {
		return err
	}
	for _, b := range append([]v1.Descriptor{m.Config}, m.Layers...) {
		if f, ok := a.find(blobName(b.Digest.Hex)); !ok || f.digest != b.Digest.Hex {
			return bad("the archive has no %s, or has it with other content", b.Digest)
		}
	}
	return nil
}

// dockerImage is what docker save says of an image.
type dockerImage struct {
	Config   string
	RepoTags []string
	Layers   []string
}

// ofDocker makes a manifest of what docker save says; false: the archive is not one of
// docker save.
func (a *archive) ofDocker(as string, asked []name.Reference) (d document, names []name.Reference, ok bool, err error) {
	raw, ok, err := a.document("manifest.json")
	if !ok || err != nil {
		return d, nil, ok, err
	}
	var all []dockerImage
	if err := json.Unmarshal(raw, &all); err != nil {
		return d, nil, true, bad("manifest.json can't be read: %v", err)
	}
	at := 0
	if len(all) != 1 {
		at = -1
	}
	for i, image := range all {
		for _, tag := range image.RepoTags {
			ref, err := parse(tag)
			if err == nil && len(asked) > 0 && ref.Name() == asked[0].Name() {
				at = i
			}
		}
	}
	if at < 0 {
		return d, nil, true, a.several(len(all), as)
	}
	for _, tag := range all[at].RepoTags {
		if ref, ok := mayName(tag); ok {
			names = append(names, ref)
		}
	}
	if len(all[at].Layers) > MaxLayers {
		return d, nil, true, bad("it has %d layers, at most %d are allowed", len(all[at].Layers), MaxLayers)
	}
	m := v1.Manifest{SchemaVersion: 2, MediaType: types.DockerManifestSchema2, Layers: []v1.Descriptor{}}
	if m.Config, err = a.describe(all[at].Config, types.DockerConfigJSON); err != nil {
		return d, nil, true, err
	}
	for _, l := range all[at].Layers {
		b, err := a.describe(l, types.DockerUncompressedLayer)
		if err != nil {
			return d, nil, true, err
		}
		m.Layers = append(m.Layers, b)
	}
	if raw, err = json.Marshal(m); err != nil {
		return d, nil, true, err
	}
	return newDocument(raw), names, true, nil
}

// describe is what a manifest says of a file.
func (a *archive) describe(at string, kind types.MediaType) (v1.Descriptor, error) {
	clean, err := cleanName(at)
	if err != nil {
		return v1.Descriptor{}, err
	}
	f, ok := a.find(clean)
	if !ok {
		return v1.Descriptor{}, bad("the archive has no %.300q", at)
	}
	if kind == types.DockerUncompressedLayer && f.gzip {
		kind = types.DockerLayer
	}
	return v1.Descriptor{MediaType: kind, Size: f.size, Digest: v1.Hash{Algorithm: "sha256", Hex: f.digest}}, nil
}
