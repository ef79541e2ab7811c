package gvisor

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/cove-dev/cove/internal/lib/fault"
	"github.com/cove-dev/cove/internal/server/sprite"
	"github.com/cove-dev/cove/internal/shim"
)

// Layers and memories that are moved aside get the same path below DATA/aside/TIME as they had
// below DATA, so that they can be moved back. TIME is when the server first did so.

// asideName is the folder, and asideList the list of what was moved to a folder in it: a
// movedAside a line.
const (
	asideName = "aside"
	asideList = "moved.jsonl"
)

// stock is what there is of layers and memories in the data folder.
type stock struct {
	folder folder

	mu    sync.Mutex
	aside string // where this server moves what is in the way; empty: nothing yet; guarded by mu
}

// movedAside is a line of the list. It is written before the move: a path that is not there
// is of one that was not made.
type movedAside struct {
	Path  string    `json:"path"` // as it was below the data folder
	Why   string    `json:"why"`
	Bytes int64     `json:"bytes"` // on the disk
	Moved time.Time `json:"moved"`
}

// itemName is a name that the server gives to layers, memories and sprites.
var itemName = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[0-9a-f]{16}$`) })

// list lists the layers and the memories that there are.
func (s *stock) list() (all []sprite.Item, err error) {
	seen := map[string]bool{}
	for _, dir := range []struct {
		name string
		kind sprite.ItemKind
	}{
		{"layers", sprite.ItemLayer}, {oldDisks, sprite.ItemLayer}, {"memories", sprite.ItemMemory}, {"images", sprite.ItemImage},
	} {
		entries, err := os.ReadDir(filepath.Join(string(s.folder), dir.name))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, err
		}
		for _, e := range entries {
			name := strings.TrimSuffix(strings.TrimSuffix(e.Name(), usedSuffix), newSuffix)
			key := fmt.Sprint(dir.kind, name)
			if !itemName().MatchString(name) || seen[key] {
				continue
			}
			seen[key] = true
			item := sprite.Item{Kind: dir.kind, Name: name}
			if item.Kind == sprite.ItemImage {
				if image, err := shim.ReadImage(s.folder.image(name)); err == nil {
					item.Layers = image.Layers
				}
			}
			all = append(all, item)
		}
	}
	return all, nil
}

// setAside moves an item aside.
func (s *stock) setAside(item sprite.Item, why string) (to string, err error) {
	if !itemName().MatchString(item.Name) {
		return "", fmt.Errorf("move aside: bad name %q", item.Name)
	}
	var paths []string
	switch item.Kind {
	case sprite.ItemLayer:
		paths = []string{filepath.Join("layers", item.Name), filepath.Join(oldDisks, item.Name)}
	case sprite.ItemMemory, sprite.ItemImage:
		path := filepath.Join(string(item.Kind), item.Name)
		paths = []string{path, path + usedSuffix, path + newSuffix}
	default:
		return "", fmt.Errorf("move aside: unknown kind %q", item.Kind)
	}
	paths = slices.DeleteFunc(paths, func(path string) bool { return !exists(filepath.Join(string(s.folder), path)) })
	if len(paths) == 0 {
		return "", nil
	}
	dir, err := s.asideDir()
	if err != nil {
		return "", err
	}
	for _, path := range paths {
		moved, err := s.moveAside(dir, path, why)
		if err != nil {
			return "", fmt.Errorf("move aside: %w", err)
		}
		if to == "" {
			to = moved
		}
	}
	return to, nil
}

// asideDir is the folder of this server, which is made.
func (s *stock) asideDir() (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.aside != "" {
		return s.aside, nil
	}
	all := filepath.Join(string(s.folder), asideName)
	if err := os.MkdirAll(all, 0o700); err != nil {
		return "", err
	}
	at := time.Now().UTC().Format("20060102T150405Z")
	for n := 1; ; n++ {
		dir := filepath.Join(all, at)
		if n > 1 {
			dir = fmt.Sprintf("%s-%d", dir, n)
		}
		err := os.Mkdir(dir, 0o700)
		if errors.Is(err, os.ErrExist) {
			continue
		}
		if err == nil {
			s.aside = dir
		}
		return s.aside, err
	}
}

// moveAside moves a path below the data folder to the same below dir, and returns its place.
// A folder that is there already stays: of one sprite, two memories can be moved by one server.
func (s *stock) moveAside(dir, path, why string) (to string, err error) {
	from := filepath.Join(string(s.folder), path)
	moved := movedAside{Path: path, Why: why, Bytes: onDisk(from), Moved: time.Now().UTC()}
	to = filepath.Join(dir, path)
	for n := 2; exists(to); n++ {
		moved.Path = fmt.Sprintf("%s-%d", path, n)
		to = filepath.Join(dir, moved.Path)
	}
	line, err := json.Marshal(moved)
	if err != nil {
		return "", err
	}
	list, err := os.OpenFile(filepath.Join(dir, asideList), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return "", err
	}
	_, err = list.Write(append(line, '\n'))
	if err := errors.Join(err, list.Close(), os.MkdirAll(filepath.Dir(to), 0o700)); err != nil {
		return "", err
	}
	if err := os.Rename(from, to); err != nil {
		return "", err
	}
	fault.Reach(fault.AsideMoved)
	return to, nil
}

// onDisk is what a folder takes of the disk, as far as it can be read.
func onDisk(dir string) (bytes int64) {
	_ = filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err != nil {
			return nil // the rest is counted
		}
		if info, err := d.Info(); err == nil {
			if st, ok := info.Sys().(*syscall.Stat_t); ok {
				bytes += st.Blocks * 512
			}
		}
		return nil
	})
	return bytes
}
