package image

import (
	"archive/tar"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/cove-dev/cove/internal/lib/fail"
)

// stored is an image whose files are here, as registries and archives have it.
type stored struct {
	folders
	digest   v1.Hash
	raw      []byte // the manifest
	manifest *v1.Manifest
	name     string                            // by which it was asked for; empty: by its digest
	reading  func(v1.Descriptor) func(n int64) // what is told how much of a blob was read; nil: nothing
}

// openStored finds an image as Get does, and holds it until release is called.
func openStored(ctx context.Context, s *Store, nameOrDigest string) (_ *stored, release func(), err error) {
	row, _, err := s.find(ctx, nameOrDigest)
	if err != nil {
		return nil, nil, err
	}
	release = s.Hold(row.Digest)
	defer func() {
		if err != nil {
			release()
		}
	}()
	row, named, err := s.find(ctx, nameOrDigest) // it was not held before
	if err != nil {
		return nil, nil, err
	}
	i := &stored{folders: s.folders, name: named}
	if i.digest, err = v1.NewHash(row.Digest); err != nil {
		return nil, nil, err
	}
	if i.raw, err = os.ReadFile(s.blobPath(i.digest)); err == nil {
		i.manifest, err = v1.ParseManifest(bytes.NewReader(i.raw))
	}
	if err != nil {
		image, _ := ofRow(row)
		return nil, nil, lost(image, err)
	}
	return i, release, nil
}

// blobs are those of the image, the configuration first.
func (i *stored) blobs() []v1.Descriptor {
	return append([]v1.Descriptor{i.manifest.Config}, i.manifest.Layers...)
}

// whole checks that all blobs are there.
func (i *stored) whole() error {
	for _, d := range i.blobs() {
		st, err := os.Stat(i.blobPath(d.Digest))
		if err == nil && st.Size() != d.Size {
			err = fmt.Errorf("%s has %d bytes, and should have %d", d.Digest, st.Size(), d.Size)
		}
		if err != nil {
			return lost(Image{Digest: i.digest.String()}, err)
		}
	}
	return nil
}

// MediaType, RawManifest, RawConfigFile and LayerByDigest make a partial.CompressedImageCore.
func (i *stored) MediaType() (types.MediaType, error) {
	return cmp.Or(i.manifest.MediaType, types.OCIManifestSchema1), nil
}

func (i *stored) RawManifest() ([]byte, error)   { return i.raw, nil }
func (i *stored) RawConfigFile() ([]byte, error) { return i.document(i.manifest.Config) }

func (i *stored) LayerByDigest(h v1.Hash) (partial.CompressedLayer, error) {
	for _, d := range i.blobs() {
		if d.Digest == h {
			return storedBlob{d, i}, nil
		}
	}
	return nil, fmt.Errorf("image %s has no blob %s", i.digest, h)
}

// storedBlob is a partial.CompressedLayer.
type storedBlob struct {
	d  v1.Descriptor
	of *stored
}

func (b storedBlob) Digest() (v1.Hash, error)            { return b.d.Digest, nil }
func (b storedBlob) Size() (int64, error)                { return b.d.Size, nil }
func (b storedBlob) MediaType() (types.MediaType, error) { return b.d.MediaType, nil }
func (b storedBlob) Compressed() (io.ReadCloser, error) {
	f, err := os.Open(b.of.blobPath(b.d.Digest))
	if err != nil || b.of.reading == nil {
		return f, err
	}
	return &countedFile{File: f, tell: b.of.reading(b.d)}, nil
}

// countedFile tells how much of it was read.
type countedFile struct {
	*os.File
	n    int64
	tell func(n int64)
}

func (f *countedFile) Read(b []byte) (int, error) {
	n, err := f.File.Read(b)
	f.n += int64(n)
	f.tell(f.n)
	return n, err
}

// layoutVersion is what the file oci-layout has.
const layoutVersion = `{"imageLayoutVersion":"1.0.0"}`

// Save writes images as one archive, which is one of docker save and an OCI layout at once. In
// the archive, each image has the name that names asks for it by. Nothing is written if one of
// them is missing. The archive of an error has no end.
func (s *Store) Save(ctx context.Context, names []string, w io.Writer) error {
	if len(names) == 0 {
		return fail.New("bad_reference", "no image was named", "")
	}
	var all []*stored
	for _, name := range names {
		i, release, err := openStored(ctx, s, name)
		if err != nil {
			return err
		}
		defer release()
		if err := i.whole(); err != nil {
			return err
		}
		all = append(all, i)
	}
	members, err := membersOf(all)
	if err != nil {
		return err
	}
	return writeMembers(ctx, members, w)
}

// Packed is an image that can be written as an archive for Bring.
type Packed struct {
	Bytes   int64 // of the archive
	members []archived
	release func()
}

// Pack finds an image, which is held until Close.
func Pack(ctx context.Context, s *Store, digest string) (_ *Packed, err error) {
	i, release, err := openStored(ctx, s, digest)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			release()
		}
	}()
	if err := i.whole(); err != nil {
		return nil, err
	}
	p := &Packed{release: release}
	if p.members, err = membersOf([]*stored{i}); err != nil {
		return nil, err
	}
	p.Bytes, err = tarBytes(p.members)
	return p, err
}

// Write writes the archive.
func (p *Packed) Write(ctx context.Context, w io.Writer) error {
	return writeMembers(ctx, p.members, w)
}

// Close ends the use of the image.
func (p *Packed) Close() { p.release() }

// archived is a file of an archive.
type archived struct {
	name string
	size int64
	text []byte // of a document
	blob string // the path of a blob; empty: it is a document
}

// membersOf are the files of an archive of images, in their order.
func membersOf(all []*stored) ([]archived, error) {
	index, docker, err := tables(all)
	if err != nil {
		return nil, err
	}
	var members []archived
	for _, d := range []archived{{name: "oci-layout", text: []byte(layoutVersion)}, {name: "index.json", text: index}, {name: "manifest.json", text: docker}} {
		d.size = int64(len(d.text))
		members = append(members, d)
	}
	seen := map[v1.Hash]bool{}
	for _, i := range all {
		for _, d := range append([]v1.Descriptor{{Digest: i.digest, Size: int64(len(i.raw))}}, i.blobs()...) {
			if !seen[d.Digest] {
				seen[d.Digest] = true
				members = append(members, archived{name: blobName(d.Digest.Hex), size: d.Size, blob: i.blobPath(d.Digest)})
			}
		}
	}
	return members, nil
}

// header is a member's in a tar.
func (m archived) header() *tar.Header {
	return &tar.Header{Typeflag: tar.TypeReg, Name: m.name, Size: m.size, Mode: 0o644, ModTime: time.Unix(0, 0)}
}

// The units of a tar.
const (
	tarBlock = 512
	tarEnd   = 2 * tarBlock
)

// tarBytes is how many bytes writeMembers writes.
func tarBytes(members []archived) (int64, error) {
	var n counter
	for _, m := range members {
		if err := tar.NewWriter(&n).WriteHeader(m.header()); err != nil {
			return 0, err
		}
		n += counter((m.size + tarBlock - 1) / tarBlock * tarBlock)
	}
	return int64(n) + tarEnd, nil
}

// counter counts what is written to it.
type counter int64

func (c *counter) Write(b []byte) (int, error) {
	*c += counter(len(b))
	return len(b), nil
}

// writeMembers writes a tar.
func writeMembers(ctx context.Context, members []archived, w io.Writer) error {
	out, buf := tar.NewWriter(w), make([]byte, copyBlock)
	for _, m := range members {
		if err := out.WriteHeader(m.header()); err != nil {
			return err
		}
		if err := m.write(ctx, out, buf); err != nil {
			return err
		}
	}
	return out.Close()
}

// write writes what a member has.
func (m archived) write(ctx context.Context, out io.Writer, buf []byte) error {
	if m.blob == "" {
		_, err := out.Write(m.text)
		return err
	}
	f, err := os.Open(m.blob)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = io.CopyBuffer(struct{ io.Writer }{out}, struct{ io.Reader }{cancelledReader{ctx, io.LimitReader(f, m.size)}}, buf)
	return err
}

// tables are index.json and manifest.json of an archive.
func tables(all []*stored) (index, docker []byte, err error) {
	type entry struct {
		Config   string
		RepoTags []string
		Layers   []string
	}
	list := v1.IndexManifest{SchemaVersion: 2, MediaType: types.OCIImageIndex, Manifests: []v1.Descriptor{}}
	var entries []*entry
	of := map[v1.Hash]*entry{}
	for _, i := range all {
		kind, err := i.MediaType()
		if err != nil {
			return nil, nil, err
		}
		d := v1.Descriptor{MediaType: kind, Size: int64(len(i.raw)), Digest: i.digest}
		e := of[i.digest]
		if e == nil {
			e = &entry{Config: blobName(i.manifest.Config.Digest.Hex), RepoTags: []string{}, Layers: []string{}}
			for _, l := range i.manifest.Layers {
				e.Layers = append(e.Layers, blobName(l.Digest.Hex))
			}
			of[i.digest], entries = e, append(entries, e)
		} else if i.name == "" {
			continue
		}
		if tag, ok := tagOf(i.name); ok {
			e.RepoTags = append(e.RepoTags, familiar(tag.Name()))
			d.Annotations = map[string]string{nameAnnotation: canonical(tag), refAnnotation: tag.TagStr()}
		}
		list.Manifests = append(list.Manifests, d)
	}
	if index, err = json.Marshal(list); err == nil {
		docker, err = json.Marshal(entries)
	}
	return index, docker, err
}

// canonical is a name as containerd has it: its default registry has a shorter name than the one
// that is asked.
func canonical(tag name.Tag) string {
	if tag.RegistryStr() == name.DefaultRegistry {
		return strings.TrimPrefix(tag.Name(), "index.")
	}
	return tag.Name()
}

// tagOf is a name that has a tag, and not a digest.
func tagOf(full string) (name.Tag, bool) {
	if full == "" {
		return name.Tag{}, false
	}
	ref, err := parse(full)
	if err != nil {
		return name.Tag{}, false
	}
	tag, ok := ref.(name.Tag)
	return tag, ok
}

// cancelledReader reads until its context ends.
type cancelledReader struct {
	ctx context.Context
	r   io.Reader
}

func (c cancelledReader) Read(b []byte) (int, error) {
	if c.ctx.Err() != nil {
		return 0, context.Cause(c.ctx)
	}
	return c.r.Read(b)
}
