package image

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"runtime"
	"slices"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/klauspost/compress/gzip"

	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/lib/fault"
)

// Draft is an image that is to be made: another one's layers, with one more over them.
type Draft struct {
	Parent  string                     // digest of an image here; empty: from scratch
	Layer   func(w io.Writer) error    // writes the uncompressed tar of one layer; nil: none
	Edit    func(*v1.ConfigFile) error // changes the parent's configuration; nil: nothing
	History string                     // what made it, as docker history shows it
	Names   []string                   // none for a step of a build
	Created time.Time                  // zero: now

	// Held is called with the release of a hold on the image (see Store.Hold), before anybody can
	// remove it. After an error the hold may be of no image. nil: it is not held.
	Held func(release func())
}

// Compose makes an image, and returns it when it can be used. Equal drafts with the same time
// make the same image. A tar without members becomes no layer. The parent stays, whatever is
// removed meanwhile. Changes of Edit to the layers and the history do not count. After an
// error, nothing of the new image stays.
func (s *Store) Compose(ctx context.Context, d Draft) (_ Image, err error) {
	t := taken{what: "that is being made", meter: &meter{}, later: true, held: d.Held}
	for _, text := range d.Names {
		ref, err := newName(text)
		if err != nil {
			return Image{}, err
		}
		t.names = append(t.names, ref)
	}
	if len(t.names) > 0 {
		t.what = familiar(t.names[0].Name())
	}
	defer s.Hold(d.Parent)()
	m, c, err := parentOf(ctx, s, d.Parent)
	if err != nil {
		return Image{}, err
	}
	created := v1.Time{Time: d.Created.UTC()}
	if d.Created.IsZero() {
		created = v1.Time{Time: time.Now().UTC()}
	}
	if c, err = edited(c, d.Edit, created); err != nil {
		return Image{}, err
	}
	var pinned pins
	defer func() {
		s.unpin(pinned)
		if err != nil { // leave nothing of it
			if _, err := s.sweep(context.WithoutCancel(ctx), pinned.has); err != nil {
				s.o.Logger.Warn("the files of an incomplete image are left behind", "image", t.what, "err", err)
			}
		}
	}()
	h := v1.History{Created: created, CreatedBy: d.History, EmptyLayer: true}
	if d.Layer != nil {
		l, diff, err := writeLayer(ctx, s, d.Layer, &pinned)
		if err != nil {
			return Image{}, err
		}
		if l.Size > 0 {
			h.EmptyLayer = false
			m.Layers, c.RootFS.DiffIDs = append(m.Layers, l), append(c.RootFS.DiffIDs, diff)
		}
	}
	c.History = append(c.History, h)
	fault.Reach(fault.ImageComposed)
	raw, err := json.Marshal(c)
	if err != nil {
		return Image{}, err
	}
	config := newDocument(raw)
	m.Config = v1.Descriptor{MediaType: types.OCIConfigJSON, Size: int64(len(raw)), Digest: config.digest}
	s.pin(&pinned, blobFolder, config.digest.Hex)
	if err := keepDocument(s, config); err != nil {
		return Image{}, fmt.Errorf("keep the configuration of an image: %w", err)
	}
	if raw, err = json.Marshal(m); err != nil {
		return Image{}, err
	}
	return s.take(ctx, newDocument(raw), noSource{}, t)
}

// noSource is where the blobs of an image come from if all of them are here.
type noSource struct{}

func (noSource) blob(_ context.Context, d v1.Descriptor) error {
	return bad("its blob %s is gone", d.Digest)
}

// newName reads a name that an image is to get.
func newName(text string) (name.Reference, error) {
	ref, err := parse(text)
	if err != nil {
		return nil, err
	}
	if _, ok := pinnedTo(ref); ok {
		return nil, fail.Newf("bad_reference", "a name is like tools:2, or registry.example/group/image:tag", "%q has a digest: an image gets a name with a tag", text)
	}
	return ref, nil
}

// parentOf returns the manifest and the configuration of an image here, as those of an image
// over it begin. That of no digest has no layers.
func parentOf(ctx context.Context, s *Store, digest string) (*v1.Manifest, *v1.ConfigFile, error) {
	m := &v1.Manifest{SchemaVersion: 2, MediaType: types.OCIManifestSchema1, Layers: []v1.Descriptor{}}
	if digest == "" {
		return m, &v1.ConfigFile{OS: thisOS, Architecture: runtime.GOARCH}, nil
	}
	c, err := s.ConfigFile(ctx, digest)
	if err != nil {
		return nil, nil, err
	}
	image, err := s.Get(ctx, digest)
	if err != nil {
		return nil, nil, err
	}
	if len(image.Layers) != len(c.RootFS.DiffIDs) {
		return nil, nil, bad("its configuration has another number of layers (%d) than its manifest (%d)", len(c.RootFS.DiffIDs), len(image.Layers))
	}
	for _, l := range image.Layers {
		h, err := v1.NewHash(l.Digest)
		if err != nil {
			return nil, nil, err
		}
		kind, err := layerKind(s.blobPath(h))
		if err != nil {
			return nil, nil, lost(image, err)
		}
		m.Layers = append(m.Layers, v1.Descriptor{MediaType: kind, Size: l.Bytes, Digest: h})
	}
	return m, c, nil
}

// layerKind is the kind of a layer, as its first bytes tell: a manifest may say another one.
func layerKind(blob string) (types.MediaType, error) {
	f, err := os.Open(blob)
	if err != nil {
		return "", err
	}
	defer f.Close()
	head := make([]byte, 4)
	n, err := io.ReadFull(f, head)
	if err != nil && err != io.EOF && err != io.ErrUnexpectedEOF {
		return "", err
	}
	switch head = head[:n]; {
	case bytes.HasPrefix(head, []byte{0x1f, 0x8b}):
		return types.OCILayer, nil
	case isZstd(head):
		return types.OCILayerZStd, nil
	}
	return types.OCIUncompressedLayer, nil
}

// lost says that a file of an image can't be read.
func lost(i Image, err error) error {
	hint := "see: cove image list"
	if len(i.Names) > 0 {
		hint = "cove image pull " + i.Names[0]
	}
	return fail.Newf("image_bad", hint, "image %s has lost a file: %v", i.Digest, err)
}

// ConfigFile returns the configuration of an image, by its digest or as Get finds it. The
// caller may change it.
func (s *Store) ConfigFile(ctx context.Context, nameOrDigest string) (*v1.ConfigFile, error) {
	row, _, err := s.find(ctx, nameOrDigest)
	if err != nil {
		return nil, err
	}
	var d doc
	if err := json.Unmarshal(row.Doc, &d); err != nil {
		return nil, fmt.Errorf("image %s: %w", row.Digest, err)
	}
	raw, err := os.ReadFile(s.path(blobFolder, hexOf(d.ID)))
	if err != nil {
		image, _ := ofRow(row) // its document was read just now
		return nil, lost(image, err)
	}
	c, err := v1.ParseConfigFile(bytes.NewReader(raw))
	if err != nil {
		return nil, bad("its configuration can't be read: %v", err)
	}
	return c, nil
}

// edited is a parent's configuration as edit changes it. Its history has an entry for each layer.
func edited(c *v1.ConfigFile, edit func(*v1.ConfigFile) error, created v1.Time) (*v1.ConfigFile, error) {
	diffs, history := slices.Clone(c.RootFS.DiffIDs), slices.Clone(c.History)
	of := 0
	for _, h := range history {
		if !h.EmptyLayer {
			of++
		}
	}
	for ; of < len(diffs); of++ { // tools assign entries to layers by their number
		history = slices.Insert(history, 0, v1.History{Created: c.Created})
	}
	if edit != nil {
		if err := edit(c); err != nil {
			return nil, err
		}
	}
	if c.OS == "" {
		c.OS = thisOS
	}
	if c.Architecture == "" {
		c.Architecture = runtime.GOARCH
	}
	if diffs == nil {
		diffs = []v1.Hash{}
	}
	c.Created, c.History, c.RootFS = created, history, v1.RootFS{Type: "layers", DiffIDs: diffs}
	return c, nil
}

// layerLevel is the level of compression of layers: higher ones take twice as long for 3 %.
const layerLevel = 3

// writeLayer compresses what write writes, and gives it its name among the blobs. A tar without
// members has no blob, and size 0. The blob is pinned.
func writeLayer(ctx context.Context, s *Store, write func(io.Writer) error, pinned *pins) (d v1.Descriptor, diff v1.Hash, err error) {
	f, err := os.CreateTemp(s.path(stagingFolder), "composed-")
	if err != nil {
		return d, diff, onDisk(err)
	}
	defer func() {
		if rm := os.Remove(f.Name()); !errors.Is(rm, os.ErrNotExist) { // it has its name by then
			err = errors.Join(err, rm)
		}
		err = errors.Join(err, f.Close())
	}()
	blob := sha256.New()
	out := bufio.NewWriterSize(claiming{s, io.MultiWriter(f, blob)}, copyBlock)
	z, err := gzip.NewWriterLevel(out, layerLevel)
	if err != nil {
		return d, diff, err
	}
	in := &composing{ctx: ctx, w: z, sum: sha256.New(), left: maxBytes}
	err = write(in)
	if in.err != nil {
		err = in.err
	}
	if err == nil {
		err = errors.Join(z.Close(), out.Flush())
	}
	if err != nil || !in.members {
		return d, diff, onDisk(err)
	}
	diff = v1.Hash{Algorithm: "sha256", Hex: hex.EncodeToString(in.sum.Sum(nil))}
	d = v1.Descriptor{MediaType: types.OCILayer, Digest: v1.Hash{Algorithm: "sha256", Hex: hex.EncodeToString(blob.Sum(nil))}}
	st, err := f.Stat()
	if err != nil {
		return d, diff, err
	}
	d.Size = st.Size()
	s.pin(pinned, blobFolder, d.Digest.Hex)
	return d, diff, s.keep(f, d.Digest)
}

// composing is a layer's tar that is being written. Its first error stays.
type composing struct {
	ctx     context.Context
	w       io.Writer
	sum     hash.Hash
	left    int64
	members bool // it has more than an end
	err     error
}

func (c *composing) Write(b []byte) (n int, err error) {
	if c.err == nil && c.ctx.Err() != nil {
		c.err = context.Cause(c.ctx)
	}
	if c.left -= int64(len(b)); c.err == nil && c.left < 0 {
		c.err = bad("its new layer has more than %d bytes", int64(maxBytes))
	}
	if c.err != nil {
		return 0, c.err
	}
	c.members = c.members || len(bytes.Trim(b, "\x00")) > 0
	c.sum.Write(b)
	n, c.err = c.w.Write(b)
	return n, c.err
}

// Tag gives an image that is here one more name, which becomes its own if another image has it.
func (s *Store) Tag(ctx context.Context, nameOrDigest, as string) (Image, error) {
	ref, err := newName(as)
	if err != nil {
		return Image{}, err
	}
	row, _, err := s.find(ctx, nameOrDigest)
	if err != nil {
		return Image{}, err
	}
	defer s.Hold(row.Digest)()
	if row, err = s.o.Store.Get(ctx, row.Digest); err != nil { // it was not held before
		return Image{}, missing(err, nameOrDigest)
	}
	row.Names = []string{ref.Name()}
	if err := s.o.Store.Put(ctx, row); err != nil {
		return Image{}, onDisk(err)
	}
	return s.Get(ctx, row.Digest)
}
