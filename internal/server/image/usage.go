package image

import (
	"context"
	"os"
	"path/filepath"

	"github.com/cove-dev/cove/internal/server/store"
)

// contentFolders are the folders of a store that have what images are made of.
var contentFolders = []string{blobFolder, partialFolder, layerFolder, mergedFolder}

// DiskBytes is the disk space of all images: blobs, extracted layers (each counted once), and
// incomplete downloads.
func DiskBytes(s *Store) (int64, error) {
	all, err := s.contents()
	var bytes int64
	for _, path := range all {
		bytes += s.sizeOf(path)
	}
	return bytes, err
}

// A Pruning is what Prune would remove.
type Pruning struct {
	Pruned
	Names map[string][]string // that the images have, by their digests
}

// Prunable says what Prune of a store would remove.
func Prunable(ctx context.Context, s *Store, used func(digest string, names []string) bool) (p Pruning, err error) {
	s.mu.Lock() // nobody pins meanwhile
	defer s.mu.Unlock()
	rows, err := s.o.Store.List(ctx)
	if err != nil {
		return p, err
	}
	p.Names = map[string][]string{}
	var kept []store.Image
	for _, row := range rows {
		if used(row.Digest, row.Names) || s.held[row.Digest] > 0 {
			kept = append(kept, row)
			continue
		}
		p.Images = append(p.Images, row.Digest)
		for _, name := range row.Names {
			p.Names[row.Digest] = append(p.Names[row.Digest], familiar(name))
		}
	}
	paths, err := needless(s, kept)
	for _, path := range paths {
		p.Bytes += s.sizeOf(path)
	}
	return p, err
}

// needless are the paths, below the store's folder, that none of these images has and no call needs.
// The caller holds mu.
func needless(s *Store, rows []store.Image) ([]string, error) {
	kept := map[string]bool{}
	for _, row := range rows {
		paths, err := pathsOf(row)
		if err != nil {
			return nil, err
		}
		for _, path := range paths {
			kept[path] = true
		}
	}
	all, err := s.contents()
	var paths []string
	for _, path := range all {
		if !kept[path] && s.pinned[path] == 0 {
			paths = append(paths, path)
		}
	}
	return paths, err
}

// contents are the paths of all that images are made of, below the store's folder.
func (l folders) contents() (all []string, err error) {
	for _, folder := range contentFolders {
		entries, err := os.ReadDir(l.path(folder))
		if err != nil {
			return nil, err
		}
		for _, e := range entries {
			all = append(all, filepath.Join(folder, e.Name()))
		}
	}
	return all, nil
}
