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
	return &toldFile{File: f, tell: b.of.reading(b.d)}, nil
}

// toldFile tells how much of it was read.
type toldFile struct {
	*os.File
	n    int64
	tell func(n int64)
}

func (f *toldFile) Read(b []byte) (int, error) {
	n, err := f.File.Read(b)
	f.n += int64(n)
	f.tell(f.n)
	return n, err
}

// layoutVersion is what the file oci-layout has.
const layoutVersion = `{"imageLayoutVersion":"1.0.0"}`

// Save writes images as one archive, which is one of docker save and an OCI layout at once. An
// image has the name in it by which it was asked for. Nothing is written if one of them is
// missing. The archive of an error has no end.
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
	index, docker, err := tables(all)
	if err != nil {
		return err
	}
	out := saver{ctx: ctx, tar: tar.NewWriter(w), buf: make([]byte, copyBlock)}
	for _, member := range []struct {
		name string
		text []byte
	}{{"oci-layout", []byte(layoutVersion)}, {"index.json", index}, {"manifest.json", docker}} {
		if err := out.member(member.name, int64(len(member.text)), bytes.NewReader(member.text)); err != nil {
			return err
		}
	}
	seen := map[v1.Hash]bool{}
	for _, i := range all {
		for _, d := range append([]v1.Descriptor{{Digest: i.digest, Size: int64(len(i.raw))}}, i.blobs()...) {
			if seen[d.Digest] {
				continue
			}
			seen[d.Digest] = true
			if err := out.blob(s.blobPath(d.Digest), d); err != nil {
				return err
			}
		}
	}
	return out.tar.Close()
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

// saver writes the members of an archive.
type saver struct {
	ctx context.Context
	tar *tar.Writer
	buf []byte
}

func (w saver) member(at string, size int64, r io.Reader) error {
	h := tar.Header{Typeflag: tar.TypeReg, Name: at, Size: size, Mode: 0o644, ModTime: time.Unix(0, 0)}
	if err := w.tar.WriteHeader(&h); err != nil {
		return err
	}
	_, err := io.CopyBuffer(struct{ io.Writer }{w.tar}, struct{ io.Reader }{cancelledReader{w.ctx, r}}, w.buf)
	return err
}

func (w saver) blob(file string, d v1.Descriptor) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	return w.member(blobName(d.Digest.Hex), d.Size, io.LimitReader(f, d.Size))
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
