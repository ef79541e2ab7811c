package image

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/lib/fault"
	"github.com/cove-dev/cove/internal/server/store"
)

// PullOptions are those of Pull.
type PullOptions struct {
	Progress func(Progress)       // called by one goroutine at a time; it should return soon. nil: nobody wants to know
	Held     func(release func()) // as in Draft
}

// atOnce is how many blobs are downloaded at the same time.
const atOnce = 3

// maxIndexes bounds indexes that are in indexes.
const maxIndexes = 3

// Pull brings the image of a tag or digest from its registry, and returns it when it can
// be used. A tag is looked up each time. Nothing is downloaded that is here already, or that
// another call is downloading. The next call keeps what came before an error.
func (s *Store) Pull(ctx context.Context, ref string, o PullOptions) (Image, error) {
	parsed, err := parse(ref)
	if err != nil {
		return Image{}, err
	}
	m := &meter{tell: o.Progress}
	m.phase(Resolving)
	r, err := s.connect(ctx, parsed)
	if err != nil {
		return Image{}, err
	}
	d, err := r.resolve(ctx)
	if err != nil {
		return Image{}, err
	}
	return s.take(ctx, d, r, taken{what: familiar(parsed.Name()), names: []name.Reference{parsed}, meter: m, held: o.Held})
}

// resolve returns the manifest that a name leads to on this machine.
func (r *registry) resolve(ctx context.Context) (document, error) {
	d, err := r.manifest(ctx, r.ref.Identifier())
	for range maxIndexes {
		if err != nil {
			return d, err
		}
		kind, err := d.kind()
		if err != nil || !kind.IsIndex() {
			return d, err
		}
		next, err := choose(d, familiar(r.ref.Name()))
		if err != nil {
			return d, err
		}
		if d, err = r.manifest(ctx, next.Digest.String()); err != nil {
			return d, err
		}
	}
	return d, bad("it has indexes in indexes")
}

// taken says how an image is taken into the store.
type taken struct {
	what  string // for messages
	names []name.Reference
	meter *meter
	later bool                 // the first Lowers merges its layers
	held  func(release func()) // as in Draft
}

// take makes sure that the image of a manifest is in the store.
func (s *Store) take(ctx context.Context, d document, from source, t taken) (_ Image, err error) {
	m, err := readManifest(d)
	if err != nil {
		return Image{}, err
	}
	var pins pins
	defer func() {
		s.unpin(pins)
		if e, ok := errors.AsType[*fail.Error](err); ok && e.Code == "no_space" { // leave nothing of it
			if _, err := s.sweep(context.WithoutCancel(ctx), pins.has); err != nil {
				s.o.Logger.Warn("the files of an incomplete image are left behind", "image", t.what, "err", err)
			}
		}
	}()
	s.pin(&pins, blobFolder, d.digest.Hex)
	s.pin(&pins, blobFolder, m.Config.Digest.Hex)
	for _, l := range m.Layers {
		s.pin(&pins, blobFolder, l.Digest.Hex)
	}
	t.meter.begin(len(m.Layers))
	if err := s.fetch(ctx, m.Config, from, func(int64) {}); err != nil {
		return Image{}, err
	}
	raw, err := s.document(m.Config)
	if err != nil {
		return Image{}, err
	}
	contents, created, err := readConfig(raw, m, t.what)
	if err != nil {
		return Image{}, err
	}
	contents.Bytes += int64(len(d.raw))
	for _, l := range contents.Layers {
		s.pin(&pins, layerFolder, hexOf(l.ChainID))
	}
	if err := s.layers(ctx, m.Layers, contents.Layers, from, t.meter); err != nil {
		return Image{}, err
	}
	if n := mergedLayers(contents.Layers); n > 0 && !t.later {
		s.pin(&pins, mergedFolder, hexOf(contents.Layers[n-1].ChainID))
		if _, err := merge(ctx, s, contents.Layers[:n]); err != nil {
			return Image{}, err
		}
	}
	if err := keepDocument(s, d); err != nil {
		return Image{}, fmt.Errorf("keep the manifest of %s: %w", t.what, err)
	}
	row := store.Image{Digest: d.digest.String(), Created: created, Pulled: time.Now()}
	for _, ref := range t.names {
		row.Names = append(row.Names, ref.Name())
	}
	if row.Doc, err = json.Marshal(contents); err != nil {
		return Image{}, err
	}
	if t.held != nil { // before anybody can find it
		t.held(s.Hold(row.Digest))
	}
	defer s.Hold(row.Digest)() // see forget
	if err := s.o.Store.Put(ctx, row); err != nil {
		return Image{}, onDisk(err)
	}
	fault.Reach(fault.ImageStored)
	t.meter.phase(Done)
	return s.Get(ctx, row.Digest)
}

// layers downloads layers, several at once, and extracts them meanwhile, one after the other.
// It notes what they are on the disk.
func (s *Store) layers(ctx context.Context, blobs []v1.Descriptor, all []Layer, from source, m *meter) error {
	ctx, cancel := context.WithCancelCause(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel(nil)
	there := make([]chan error, len(blobs))
	for i := range there {
		there[i] = make(chan error, 1)
	}
	next := make(chan int)
	wg.Go(func() {
		defer close(next)
		for i := range blobs {
			select {
			case next <- i:
			case <-ctx.Done():
				return
			}
		}
	})
	for range min(atOnce, len(blobs)) {
		wg.Go(func() {
			for i := range next {
				err := s.fetch(ctx, blobs[i], from, m.gauge(Downloading, blobs[i].Digest.String(), blobs[i].Size))
				if err != nil {
					cancel(err) // that of the others is only that they were cancelled
				}
				there[i] <- err
			}
		})
	}
	for i := range blobs {
		select {
		case err := <-there[i]:
			if err != nil {
				return context.Cause(ctx)
			}
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		if err := s.extract(ctx, all[:i+1], m); err != nil {
			return err
		}
		m.layerDone()
	}
	return nil
}
