// Package image is the store of images. It pulls OCI images from registries, imports
// archives of them, and extracts their layers. Sprites share the layers as the lower
// folders of their disks.
//
// An image is hostile until it is extracted. Its bytes are compared with their digests
// before they are used. Everything in it is bounded. No name in it leads out of the
// folder that it is extracted to.
//
// The store's folder:
//
//	blobs/sha256/HEX   manifests, configurations and layers, as they were received
//	blobs/partial/HEX  downloads under way; the next one goes on with them
//	layers/CHAIN/tree  an extracted layer, by its chain ID; never written again
//	merged/CHAIN/tree  copies of all layers up to that one, if an image has more than can be mounted
//	staging/           whatever is being made; the next start removes it
package image

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/server/store"
	"github.com/cove-dev/cove/internal/shim/layers"
)

// The bounds of an image.
const (
	MaxLayers   = 127     // that the kernel can bear, and Docker makes
	MaxDocument = 4 << 20 // bytes of a manifest, an index or a configuration
	MaxLowers   = 16      // folders that Lowers returns

	maxBytes = 64 << 30 // extracted, each file counted as fileCost at least
	maxFiles = 4_000_000
	maxSteps = 4_000_000 // besides files, see budget
	fileCost = 4 << 10

	maxDepth = 128  // components of a path in a layer
	maxPath  = 4096 // bytes of one
)

// Options say where a store is, and how it reaches registries.
type Options struct {
	Dir   string        // the store's folder; it is made
	Store *store.Images // required

	// UserNS says that this process is root in a user namespace only. Then the overlay's
	// marks are in user.* attributes, and the namespace must have each owner.
	UserNS bool

	Keychain  authn.Keychain    // nil: the account's own (~/.docker/config.json, credential helpers)
	Transport http.RoundTripper // nil: http.DefaultTransport
	Logger    *slog.Logger      // nil: discard

	// Removed is called after Remove or Prune has removed an image. From then on, nothing of
	// the image may be used. nil: nobody else has anything of it.
	Removed func(digest string) error

	// Claim is called before bytes are written to the disk. Its error ends what is under way.
	// nil: nobody counts.
	Claim func(bytes int64) error
}

// Store is a store of images. One process uses its folder. Its methods may be called
// from any goroutine; their errors are of the package fail. Close ends it.
type Store struct {
	folders
	leftovers
	o     Options
	turns turns

	mu      sync.Mutex
	pinned  map[string]int // blobs and layers that calls under way need, by path below the folder
	held    map[string]int // images that nobody may remove, by digest
	removed int            // how much was ever removed
}

// folders say where a store has which file.
type folders struct{ dir string }

// Image is an image of this machine's platform.
type Image struct {
	Digest    string // of its manifest: sha256:HEX
	Names     []string
	Config    Config
	Layers    []Layer // the lowest first
	Bytes     int64   // of its blobs
	DiskBytes int64   // extracted
	Created   time.Time
	Pulled    time.Time
}

// Config is what an image says of how its programs are run.
type Config struct {
	Env          []string          `json:"env,omitempty"` // NAME=VALUE
	Workdir      string            `json:"workdir,omitempty"`
	User         string            `json:"user,omitempty"` // name or number, or USER:GROUP
	StopSignal   string            `json:"stop_signal,omitempty"`
	Shell        []string          `json:"shell,omitempty"`
	Entrypoint   []string          `json:"entrypoint,omitempty"`
	Cmd          []string          `json:"cmd,omitempty"`
	Ports        []string          `json:"ports,omitempty"` // sorted: 80/tcp
	Labels       map[string]string `json:"labels,omitempty"`
	OS           string            `json:"os,omitempty"`
	Architecture string            `json:"architecture,omitempty"`
	Variant      string            `json:"variant,omitempty"`
}

// Layer is a layer of an image.
type Layer struct {
	Digest    string `json:"digest"`   // of its blob
	DiffID    string `json:"diff_id"`  // of its uncompressed tar
	ChainID   string `json:"chain_id"` // of it and all below
	MediaType string `json:"media_type"`
	Bytes     int64  `json:"bytes"`              // of its blob
	DiskBytes int64  `json:"disk_bytes"`         // extracted
	Files     int64  `json:"files"`              // extracted
	LeftOut   int64  `json:"left_out,omitempty"` // devices, which no sprite may have
	Steps     int64  `json:"steps,omitempty"`    // that its extraction took besides
}

// Progress is how far a pull, an import or a push is.
type Progress struct {
	Phase      string // resolving, downloading, extracting, done; or uploading, composing
	Layer      string // the digest of the blob that is at hand
	Bytes      int64  // of Layer
	Total      int64
	LayersDone int
	Layers     int
}

// The phases of Progress.
const (
	Resolving   = "resolving"
	Downloading = "downloading"
	Extracting  = "extracting"
	Uploading   = "uploading"
	Composing   = "composing"
	Done        = "done"
)

// doc is what the database has of an image.
type doc struct {
	Config Config  `json:"config"`
	Layers []Layer `json:"layers"`
	Bytes  int64   `json:"bytes"`
	ID     string  `json:"id"` // the digest of the configuration
}

// New opens the store in a folder. It removes, in the background, what an earlier
// process has left half made or half removed: a layer of many files takes minutes.
func New(o Options) (*Store, error) {
	if o.Keychain == nil {
		o.Keychain = authn.DefaultKeychain
	}
	if o.Transport == nil {
		o.Transport = http.DefaultTransport
	}
	if o.Removed == nil {
		o.Removed = func(string) error { return nil }
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	s := &Store{folders: folders{o.Dir}, o: o, pinned: map[string]int{}, held: map[string]int{}}
	err := setAside(s.folders)
	for _, dir := range []string{blobFolder, partialFolder, layerFolder, mergedFolder, stagingFolder} {
		if err == nil {
			err = os.MkdirAll(s.path(dir), 0o700)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("open the store of images: %w", err)
	}
	s.leftovers.remove(s.path(leftFolder), o.Logger)
	return s, nil
}

// setAside moves staged files away, to be removed later. If a full disk has no room for the
// folder that they would go to, they are removed at once.
func setAside(in folders) error {
	staged, err := os.ReadDir(in.path(stagingFolder))
	if errors.Is(err, os.ErrNotExist) || err == nil && len(staged) == 0 {
		return nil
	}
	if err == nil {
		err = os.MkdirAll(in.path(leftFolder), 0o700)
	}
	if err == nil {
		err = os.Rename(in.path(stagingFolder), in.path(leftFolder, rand.Text()))
	}
	if errors.Is(err, syscall.ENOSPC) {
		for _, entry := range staged {
			if err := layers.Remove(in.path(stagingFolder, entry.Name())); err != nil {
				return err
			}
		}
		return nil
	}
	return err
}

// leftovers are what earlier processes have left half made, or half removed.
type leftovers struct {
	cancel   context.CancelFunc
	removing sync.WaitGroup
}

// remove removes them in the background.
func (l *leftovers) remove(dir string, logger *slog.Logger) {
	ctx, cancel := context.WithCancel(context.Background())
	l.cancel = cancel
	l.removing.Go(func() {
		if err := layers.RemoveContext(ctx, dir); err != nil && ctx.Err() == nil {
			logger.Warn("removing an earlier server's leftover files of images; the next start tries again", "err", err)
		}
	})
}

// Close ends what New began. The next New goes on with it.
func (l *leftovers) Close() error {
	l.cancel()
	l.removing.Wait()
	return nil
}

// The folders of a store.
const (
	blobFolder    = "blobs/sha256"
	partialFolder = "blobs/partial"
	layerFolder   = "layers"
	mergedFolder  = "merged"
	stagingFolder = "staging"
	leftFolder    = "left" // staging folders of earlier processes

	treeName = "tree" // of the folder in a layer's
	noteName = "layer.json"
)

func (l folders) path(parts ...string) string {
	return filepath.Join(append([]string{l.dir}, parts...)...)
}

// List returns all images, the one that was pulled last first.
func (s *Store) List(ctx context.Context) ([]Image, error) {
	rows, err := s.o.Store.List(ctx)
	if err != nil {
		return nil, err
	}
	all := make([]Image, len(rows))
	for i, row := range rows {
		if all[i], err = ofRow(row); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// Get finds an image by a name as people write it, by its digest, or by the beginning of
// its digest. A beginning has at least 12 digits, and no other image's digest begins with
// it.
func (s *Store) Get(ctx context.Context, nameOrDigest string) (Image, error) {
	row, _, err := s.find(ctx, nameOrDigest)
	if err != nil {
		return Image{}, err
	}
	return ofRow(row)
}

// minPrefix is how many digits of a digest say which one is meant.
const minPrefix = 12

// find is Get. If a name was given that the image has, name is it, as the database has it.
func (s *Store) find(ctx context.Context, nameOrDigest string) (row store.Image, name string, err error) {
	if h, err := v1.NewHash(nameOrDigest); err == nil {
		row, err = s.o.Store.Get(ctx, h.String())
		return row, "", missing(err, nameOrDigest)
	}
	if digits, ok := digitsOf(nameOrDigest); ok { // before a name, which anybody may have given an image
		rows, err := s.o.Store.List(ctx)
		if err != nil {
			return row, "", err
		}
		rows = slices.DeleteFunc(rows, func(r store.Image) bool { return !strings.HasPrefix(hexOf(r.Digest), digits) })
		switch len(rows) {
		case 0:
		case 1:
			return rows[0], "", nil
		default:
			return row, "", fail.Newf("bad_reference", "give more digits", "%d images have a digest that begins with %s", len(rows), digits)
		}
	}
	ref, err := parse(nameOrDigest)
	if err != nil {
		if _, ok := digitsOf(nameOrDigest); ok {
			err = missing(store.ErrNotFound, nameOrDigest)
		}
		return row, "", err
	}
	if digest, ok := pinnedTo(ref); ok {
		if row, err = s.o.Store.Get(ctx, digest); err == nil && slices.Contains(row.Names, ref.Name()) {
			name = ref.Name()
		}
		return row, name, missing(err, nameOrDigest)
	}
	row, err = s.o.Store.Named(ctx, ref.Name())
	return row, ref.Name(), missing(err, nameOrDigest)
}

// digitsOf are the digits of a text that may be the beginning of a digest.
func digitsOf(text string) (digits string, ok bool) {
	digits = hexOf(text)
	return digits, len(digits) >= minPrefix && strings.Trim(digits, "0123456789abcdef") == ""
}

// missing turns the store's error for an image that is not there into one for people.
func missing(err error, name string) error {
	if errors.Is(err, store.ErrNotFound) {
		hint := "see which there are: cove image list; get it from its registry: cove image pull " + name
		if _, err := parse(name); err != nil || strings.HasPrefix(name, "sha256:") {
			hint = "see: cove image list"
		}
		return fail.Newf("image_not_found", hint, "there is no image %q here", name)
	}
	return err
}

// ofRow is an image as the database has it.
func ofRow(row store.Image) (Image, error) {
	var d doc
	if err := json.Unmarshal(row.Doc, &d); err != nil {
		return Image{}, fmt.Errorf("image %s: %w", row.Digest, err)
	}
	image := Image{Digest: row.Digest, Config: d.Config, Layers: d.Layers, Bytes: d.Bytes, Created: row.Created, Pulled: row.Pulled}
	for _, l := range d.Layers {
		image.DiskBytes += l.DiskBytes
	}
	for _, name := range row.Names {
		image.Names = append(image.Names, familiar(name))
	}
	return image, nil
}

// Trees returns the extracted folders of an image's layers, the topmost first. They may be more
// than can be mounted. An image of no layers has none.
func (s *Store) Trees(ctx context.Context, digest string) ([]string, error) {
	_, trees, err := whole(ctx, s, digest)
	return trees, err
}

// whole returns an image with its Trees.
func whole(ctx context.Context, s *Store, digest string) (_ Image, trees []string, err error) {
	row, err := s.o.Store.Get(ctx, digest)
	if err != nil {
		return Image{}, nil, missing(err, digest)
	}
	image, err := ofRow(row)
	if err != nil {
		return Image{}, nil, err
	}
	trees = s.trees(image.Layers)
	for _, dir := range trees {
		if _, err := os.Lstat(dir); err != nil {
			hint := "see: cove image list"
			if len(image.Names) > 0 {
				hint = "cove image pull " + image.Names[0]
			}
			return Image{}, nil, fail.Newf("image_bad", hint, "image %s has lost a layer: %v", digest, err)
		}
	}
	return image, trees, nil
}

// trees are the folders of layers, the topmost first.
func (l folders) trees(all []Layer) (trees []string) {
	for _, one := range slices.Backward(all) {
		trees = append(trees, l.path(layerFolder, hexOf(one.ChainID), treeName))
	}
	return trees
}

// Lowers returns the folders that a disk over an image is mounted on, the topmost first, at most
// MaxLowers. They stay the same while the image is here. If an image has more layers, the lowest
// ones are merged into one folder by the first call (or by the pull). An image of no layers has none.
func (s *Store) Lowers(ctx context.Context, digest string) ([]string, error) {
	defer s.Hold(digest)()
	image, lowers, err := whole(ctx, s, digest)
	if err != nil {
		return nil, err
	}
	n := mergedLayers(image.Layers)
	if n == 0 {
		return lowers, nil
	}
	merged, err := merge(ctx, s, image.Layers[:n])
	if err != nil {
		return nil, err
	}
	return append(lowers[:len(lowers)-n], merged), nil
}

// mergedLayers is how many of the lowest layers are merged. It grows by a whole step, so that
// images over each other share what was merged.
func mergedLayers(all []Layer) int {
	if len(all) <= MaxLowers {
		return 0
	}
	const step = MaxLowers - 1
	return (len(all) - 1) / step * step
}

func hexOf(digest string) string { return strings.TrimPrefix(digest, "sha256:") }
