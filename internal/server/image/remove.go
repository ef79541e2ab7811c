package image

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/cove-dev/cove/internal/lib/atomicfile"
	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/lib/fault"
	"github.com/cove-dev/cove/internal/server/extract"
	"github.com/cove-dev/cove/internal/server/store"
	"github.com/cove-dev/cove/internal/shim/layers"
)

// Remove removes an image with all its names. If nameOrDigest is one of several names, the
// image only loses that name. usedBy returns the sprites that use an image. If there are
// any, the image stays, and the error names them. It also stays if a sprite begins to use
// it meanwhile.
func (s *Store) Remove(ctx context.Context, nameOrDigest string, usedBy func(digest string) ([]string, error)) error {
	for {
		err := remove(ctx, s, nameOrDigest, usedBy)
		if !errors.Is(err, errNamed) { // else it may lose a name alone
			return err
		}
	}
}

// remove is Remove. If the image gets another name meanwhile, it stays, and the error is errNamed.
func remove(ctx context.Context, s *Store, nameOrDigest string, usedBy func(digest string) ([]string, error)) error {
	row, name, err := s.find(ctx, nameOrDigest)
	if err != nil {
		return err
	}
	if name != "" && len(row.Names) > 1 {
		return missing(s.o.Store.Unname(ctx, name), nameOrDigest)
	}
	users, err := usedBy(row.Digest)
	if err != nil {
		return err
	}
	if len(users) > 0 {
		return fail.Newf("image_in_use", "see those sprites: cove list; once none uses the image: cove image rm "+nameOrDigest, "image %s is in use by %s", nameOrDigest, strings.Join(users, ", "))
	}
	err = removeUnheld(ctx, s, row)
	switch {
	case errors.Is(err, errHeld):
		err = fail.Newf("image_in_use", "try again when that has ended", "image %s is in use by a build, a push or a save under way", nameOrDigest)
	case errors.Is(err, store.ErrInUse):
		err = fail.Newf("image_in_use", "see what uses it: cove image info "+hexOf(row.Digest)[:minPrefix]+"; if nothing does, a sandbox over it is about to end: try again", "image %s is in use", nameOrDigest)
	}
	return missing(err, nameOrDigest)
}

// removeUnheld removes an image, and the files that no other image has. If the image is held,
// the error is errHeld. If a sprite's disk is over it, the error is store.ErrInUse. If it has a
// name that the row does not have, the error is errNamed.
func removeUnheld(ctx context.Context, s *Store, row store.Image) error {
	had, err := pathsOf(row)
	if err != nil {
		return err
	}
	if err := s.forget(ctx, row); err != nil {
		return err
	}
	_, err = s.sweep(ctx, func(path string) bool { return slices.Contains(had, path) })
	return err
}

// errHeld says that an image is held.
var errHeld = errors.New("the image is held")

// errNamed says that an image has got a name since its row was read.
var errNamed = errors.New("the image has another name")

// forget takes an image from the database, unless it is held (errHeld) or has got a name since
// the row was read (errNamed). An image is held while it gets a name.
func (s *Store) forget(ctx context.Context, row store.Image) error {
	s.mu.Lock() // nobody holds it meanwhile
	defer s.mu.Unlock()
	if s.held[row.Digest] > 0 {
		return errHeld
	}
	now, err := s.o.Store.Get(ctx, row.Digest)
	if err != nil {
		return err
	}
	if slices.ContainsFunc(now.Names, func(name string) bool { return !slices.Contains(row.Names, name) }) {
		return errNamed
	}
	if err := s.o.Store.Delete(ctx, row.Digest); err != nil {
		return err
	}
	if err := s.o.Removed(row.Digest); err != nil { // before anybody gets the same image anew
		s.o.Logger.Warn("removing what cove added to an image; the next start tries again", "image", row.Digest, "err", err)
	}
	return nil
}

// Hold keeps an image, by its digest, from Remove and Prune until release is called, which may be
// more than once. The caller looks after Hold whether the image is there. The names of a held
// image may go.
func (s *Store) Hold(digest string) (release func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.held[digest]++
	return sync.OnceFunc(func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.held[digest]--; s.held[digest] == 0 {
			delete(s.held, digest)
		}
	})
}

// Pruned is what Prune removed.
type Pruned struct {
	Images []string // digests
	Bytes  int64    // of blobs, downloads and extracted layers
}

// Prune removes the images that nobody uses. It also removes blobs, layers and downloads
// that belong to no image and to no call under way. The function used says whether an image
// with these names stays. An image also stays if a sprite begins to use it meanwhile, or if it
// gets another name.
func (s *Store) Prune(ctx context.Context, used func(digest string, names []string) bool) (p Pruned, err error) {
	rows, err := s.o.Store.List(ctx)
	if err != nil {
		return p, err
	}
	for _, row := range rows {
		if used(row.Digest, row.Names) {
			continue
		}
		err := s.forget(ctx, row)
		if errors.Is(err, store.ErrNotFound) || errors.Is(err, store.ErrInUse) || errors.Is(err, errHeld) || errors.Is(err, errNamed) {
			continue
		} else if err != nil {
			return p, err
		}
		p.Images = append(p.Images, row.Digest)
	}
	p.Bytes, err = s.sweep(ctx, func(string) bool { return true })
	return p, err
}

// pathsOf are what an image has, below the store's folder.
func pathsOf(row store.Image) (all []string, err error) {
	var d doc
	if err := json.Unmarshal(row.Doc, &d); err != nil {
		return nil, fmt.Errorf("image %s: %w", row.Digest, err)
	}
	for _, digest := range []string{row.Digest, d.ID} {
		all = append(all, filepath.Join(blobFolder, hexOf(digest)))
	}
	for _, l := range d.Layers {
		all = append(all, filepath.Join(blobFolder, hexOf(l.Digest)), filepath.Join(layerFolder, hexOf(l.ChainID)))
	}
	if n := mergedLayers(d.Layers); n > 0 {
		was := len(d.Layers) - MaxLowers + 1 // in earlier versions: their sandboxes may still run
		for _, n := range []int{n, was} {
			all = append(all, filepath.Join(mergedFolder, hexOf(d.Layers[n-1].ChainID)))
		}
	}
	return all, nil
}

// pins are what a call needs, below the store's folder, and sweep leaves.
type pins []string

func (p pins) has(path string) bool { return slices.Contains(p, path) }

// pin says that a call needs something, before it looks whether that is there.
func (s *Store) pin(p *pins, folder, hex string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, path := range []string{filepath.Join(folder, hex), filepath.Join(partialFolder, hex)} {
		*p = append(*p, path)
		s.pinned[path]++
	}
}

func (s *Store) unpin(p pins) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, path := range p {
		if s.pinned[path]--; s.pinned[path] == 0 {
			delete(s.pinned, path)
		}
	}
}

// sweep removes what may go, is of no image, and is not pinned. It says how many bytes that
// was.
func (s *Store) sweep(ctx context.Context, mayGo func(path string) bool) (bytes int64, err error) {
	moved, bytes, err := s.moveAway(ctx, mayGo)
	for _, path := range moved {
		err = errors.Join(err, layers.Remove(path))
	}
	return bytes, err
}

// moveAway moves what sweep removes to the folder that a start empties.
func (s *Store) moveAway(ctx context.Context, mayGo func(path string) bool) (moved []string, bytes int64, err error) {
	s.mu.Lock() // nobody pins meanwhile
	defer s.mu.Unlock()
	rows, err := s.o.Store.List(ctx)
	if err != nil {
		return nil, 0, err
	}
	paths, err := needless(s, rows)
	if err != nil {
		return nil, 0, err
	}
	for _, path := range paths {
		if !mayGo(path) {
			continue
		}
		size := s.sizeOf(path)
		to := s.path(stagingFolder, fmt.Sprintf("removed-%d-%s", s.removed, filepath.Base(path)))
		s.removed++
		if err := os.Rename(s.path(path), to); err != nil {
			return moved, bytes, err
		}
		moved, bytes = append(moved, to), bytes+size
	}
	return moved, bytes, nil
}

// sizeOf is how many bytes of the disk something has for itself.
func (l folders) sizeOf(path string) int64 {
	switch filepath.Dir(path) {
	case layerFolder, mergedFolder:
		var n note
		text, err := os.ReadFile(l.path(path, noteName))
		if err == nil {
			err = json.Unmarshal(text, &n)
		}
		if err != nil {
			return 0
		}
		return n.Bytes
	}
	st, err := os.Lstat(l.path(path))
	if err != nil {
		return 0
	}
	return st.Size()
}

// merge returns one folder that shows the same as these layers; the first one is the image's
// lowest. The first call makes the folder.
func merge(ctx context.Context, s *Store, all []Layer) (tree string, err error) {
	chain := hexOf(all[len(all)-1].ChainID)
	leave, err := s.turns.enter(ctx, "merged "+chain, func(int64) {})
	if err != nil {
		return "", err
	}
	defer leave()
	to := s.path(mergedFolder, chain)
	tree = filepath.Join(to, treeName)
	if _, err := os.Lstat(to); !errors.Is(err, os.ErrNotExist) {
		return tree, err
	}
	dir, err := os.MkdirTemp(s.path(stagingFolder), "merged-")
	if err != nil {
		return "", onDisk(err)
	}
	defer func() {
		if err != nil {
			err = onDisk(errors.Join(err, layers.Remove(dir)))
		}
	}()
	trees := s.trees(all)
	slices.Reverse(trees)
	// Files are copied, because a link would change the layer's file. gVisor takes a file that
	// has just changed for the sprite's own. It copies a file with several names completely
	// before its first write.
	var n note
	err = layers.MergeCopies(filepath.Join(dir, treeName), trees, s.o.UserNS, func(bytes int64) error {
		n.Bytes += bytes
		return cmp.Or(context.Cause(ctx), s.Claim(bytes))
	})
	if err != nil {
		return "", err
	}
	text, err := json.Marshal(n)
	if err == nil {
		err = atomicfile.Write(filepath.Join(dir, noteName), text, 0o600)
	}
	if err == nil {
		err = cleanTree(filepath.Join(dir, treeName), s.o.UserNS)
	}
	if err != nil {
		return "", err
	}
	fault.Reach(fault.ImageMerged)
	if err := os.Rename(dir, to); err != nil {
		return "", err
	}
	return tree, atomicfile.SyncFolder(filepath.Dir(to))
}

// cleanTree removes the marks of an overlay from a folder that is always the lowest one. It
// is on the disk then.
func cleanTree(dir string, user bool) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := clean(int(f.Fd()), extract.OpaqueMark(user), func() error { return nil }); err != nil {
		return err
	}
	return syncAll(f)
}
