package gvisor

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/cove-dev/cove/internal/lib/atomicfile"
	"github.com/cove-dev/cove/internal/lib/boot"
	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/server/sprite"
	"github.com/cove-dev/cove/internal/shim/base"
)

// images has the images that disks can lie on.
type images struct {
	folder folder
	userNS bool                                                         // see Runtime
	get    func(ctx context.Context, digest string) (base.Image, error) // see Runtime.Images
}

// find returns an image by its digest.
func (s *images) find(ctx context.Context, digest string) (base.Image, error) {
	if s.get == nil {
		return base.Image{}, fmt.Errorf("image %s: %w", digest, sprite.ErrNoImage)
	}
	img, err := s.get(ctx, digest)
	if err == nil && img.Digest != digest {
		err = fmt.Errorf("image %s was found for %s", img.Digest, digest)
	}
	return img, err
}

// gone returns a function that says whether an image is certainly not here any more.
func (s *images) gone(ctx context.Context) func(digest string) bool {
	return func(digest string) bool {
		if s.get == nil {
			return false
		}
		_, err := s.get(ctx, digest)
		e, ok := errors.AsType[*fail.Error](err)
		return ok && e.Code == "image_not_found"
	}
}

// baseRecord notes, in the lowest layer of a disk, which base that lies on.
type baseRecord struct {
	Skeleton    string `json:"skeleton"`        // folder name below DATA/base; of an image, that of its fitting
	Fingerprint string `json:"fingerprint"`     // of the host base; or an image's digest
	Image       string `json:"image,omitempty"` // digest; empty: the host base
}

// base is the name of the base.
func (r baseRecord) base() string { return cmp.Or(r.Image, base.Host) }

const recordFile = "base.json"

// readRecord reads the record in the folder of a layer; os.ErrNotExist: there is none.
func readRecord(dir string) (record baseRecord, err error) {
	file := filepath.Join(dir, recordFile)
	data, err := os.ReadFile(file)
	if err != nil {
		return record, err
	}
	if err := json.Unmarshal(data, &record); err != nil {
		return record, fmt.Errorf("read %s: %w", file, err)
	}
	return record, nil
}

// noteRecord returns the record in the folder of a layer, which is written if there is none.
// Nobody else writes one there meanwhile.
func noteRecord(dir string, record baseRecord) (baseRecord, error) {
	have, err := readRecord(dir)
	if !errors.Is(err, os.ErrNotExist) {
		return have, err
	}
	data, err := json.Marshal(record)
	if err == nil {
		err = os.MkdirAll(dir, 0o700)
	}
	if err == nil {
		err = atomicfile.Write(filepath.Join(dir, recordFile), data, 0o600)
	}
	return record, err
}

// A ground is what a disk lies on.
type ground struct {
	mounts   []groundMount  // the root's first
	defaults *boot.Defaults // of commands; nil: those of the host base
}

// groundMount is what one mount of a disk lies on.
type groundMount struct {
	target string
	lowers []string // the topmost first
	guard  string   // see layers.Overlay.Guard
}

// A disk is a chain of layers over a base. An empty base is whatever the disk's record says; bare
// is as in sprite.Machine, of a new disk.
type disk struct {
	base  string
	bare  bool
	chain []string
}

// ground is what a disk lies on. The disk's record says which base the disk was made over, and
// the disk stays on it. If of names a base, it must be the same. look returns the host base as
// it is now.
func (s *layerStore) ground(ctx context.Context, of disk, look func() (prepared, error)) (ground, error) {
	name, chain := of.base, of.chain
	if len(chain) == 0 {
		return ground{}, errors.New("a disk must have at least one layer")
	}
	record, err := readRecord(s.folder.layer(chain[0]))
	switch {
	case errors.Is(err, os.ErrNotExist):
		record.Image = ""
		if name = cmp.Or(name, base.Host); name != base.Host {
			record.Image = name
		}
	case err != nil:
		return ground{}, err
	case name != "" && name != record.base():
		return ground{}, fmt.Errorf("the disk lies on base %s, and can't be put over %s", record.base(), name)
	}
	if record.Image != "" {
		return s.onImage(ctx, chain[0], record, of.bare)
	}
	return s.onHost(chain[0], look)
}

// onHost is the ground of a disk over the host base. It stays on the skeleton that it was made
// over; the host's programs below it are those of today.
func (s *layerStore) onHost(lowest string, look func() (prepared, error)) (g ground, err error) {
	prep, err := look()
	if err != nil {
		return g, err
	}
	b := prep.base
	record, err := s.note(lowest, baseRecord{Skeleton: filepath.Base(b.Dir), Fingerprint: b.Fingerprint})
	if err != nil {
		return g, err
	}
	if record.Image != "" {
		return g, fmt.Errorf("the disk lies on base %s, and can't be put over %s", record.base(), base.Host)
	}
	skeleton := filepath.Join(s.folder.bases(), record.Skeleton)
	if _, err := os.Stat(skeleton); err != nil {
		return g, fmt.Errorf("the base that this sprite was made over is gone: %w", err)
	}
	g.mounts = []groundMount{{lowers: []string{skeleton}}}
	for _, name := range b.Mounts {
		m := groundMount{target: name, lowers: programs(b, name)}
		if base.Guardable("/" + name) {
			m.guard = s.folder.guard()
		}
		g.mounts = append(g.mounts, m)
	}
	return g, nil
}

// onImage is the ground of a disk over an image. Nothing of the host is in it.
func (s *layerStore) onImage(ctx context.Context, lowest string, record baseRecord, bare bool) (g ground, err error) {
	img, err := s.images.find(ctx, record.Image)
	if err != nil {
		return g, err
	}
	img.Bare = bare
	fitting, err := img.Fit(s.folder.bases(), record.Skeleton, s.userNS)
	if err != nil {
		return g, err
	}
	have, err := s.note(lowest, baseRecord{Skeleton: fitting.Name, Fingerprint: img.Digest, Image: img.Digest})
	if err != nil {
		return g, err
	}
	if have.Image != img.Digest || have.Skeleton != fitting.Name {
		return g, fmt.Errorf("the disk lies on base %s, and can't be put over %s", have.base(), img.Digest)
	}
	g.mounts = []groundMount{{lowers: append([]string{fitting.Dir}, img.Lowers...)}}
	g.defaults = &fitting.Defaults
	return g, nil
}

// programs are the lower folders that show the host's folder of programs, the topmost first.
func programs(b base.Base, name string) []string {
	if mask := b.Mask.For(name); mask != "" {
		return []string{mask, "/" + name}
	}
	return []string{"/" + name}
}

// inherit notes the record of one lowest layer in another that has none. A merge makes the other
// one. The first sandbox over the disk may begin during the merge, and then notes its base where
// the merge has looked already.
func (s *layerStore) inherit(lowest, from string) error {
	record, err := readRecord(s.folder.layer(from))
	if err == nil {
		_, err = s.note(lowest, record)
	}
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}

// note returns the record of the lowest layer of a disk, which is written if there is none.
func (s *layerStore) note(lowest string, record baseRecord) (baseRecord, error) {
	s.noting.Lock() // disks that share it may be made at the same time
	defer s.noting.Unlock()
	return noteRecord(s.folder.layer(lowest), record)
}
