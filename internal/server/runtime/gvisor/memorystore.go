package gvisor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/cove-dev/cove/internal/shim"
	"github.com/cove-dev/cove/internal/shim/layers"
)

const (
	usedSuffix = ".used" // of an image that a sandbox has gone on from, or is about to
	newSuffix  = ".new"  // of one that is not whole yet
)

// memoryStore has the memories of sprites that sleep, and those that checkpoints keep.
type memoryStore struct {
	folder folder
	base   *preparer
}

// Warm reports whether a sprite's memory is kept.
func (m *memoryStore) Warm(id string) bool { return m.folder.warm(id) }

// Outdated reports whether a sprite has a memory that the next boot can't use. Such a
// memory was made by other builds of runsc or the guest, or on another processor.
func (m *memoryStore) Outdated(id string) bool {
	image, err := shim.ReadImage(m.folder.image(id))
	if err != nil {
		return false
	}
	now, err := m.base.programs()
	return err == nil && image.Build != now.build
}

// Drop removes a sprite's memory, if it is kept: its next start is a boot.
func (m *memoryStore) Drop(_ context.Context, id string) error {
	if _, err := m.takeImage(id); err != nil {
		return err
	}
	return layers.Remove(m.folder.image(id) + usedSuffix)
}

// takeImage makes a sprite's image one that is not found again, and returns its
// folder; empty, if there is none.
func (m *memoryStore) takeImage(id string) (string, error) {
	used := m.folder.image(id) + usedSuffix
	if !m.folder.warm(id) {
		// One that is not whole is none.
		return "", errors.Join(layers.Remove(used), layers.Remove(m.folder.image(id)))
	}
	if err := layers.Remove(used); err != nil {
		return "", err
	}
	if err := os.Rename(m.folder.image(id), used); err != nil {
		return "", fmt.Errorf("take the memory's image: %w", err)
	}
	return used, nil
}

// Keep keeps the memory that a sleeping sprite has.
func (m *memoryStore) Keep(_ context.Context, id, memory string) (int64, error) {
	dir, err := m.folder.memory(memory)
	if err != nil {
		return 0, err
	}
	size, err := linkImage(dir, m.folder.image(id), "")
	if err != nil {
		return 0, fmt.Errorf("keep the memory of sprite %s: %w", id, err)
	}
	return size, nil
}

// Recall has a sprite's next Boot go on from a memory.
func (m *memoryStore) Recall(_ context.Context, id, memory string) error {
	dir, err := m.folder.memory(memory)
	if err != nil {
		return err
	}
	if _, err := linkImage(m.folder.image(id), dir, shim.CopiedFile); err != nil {
		return fmt.Errorf("recall the memory %s: %w", memory, err)
	}
	return nil
}

// Forget removes a memory.
func (m *memoryStore) Forget(_ context.Context, memory string) error {
	dir, err := m.folder.memory(memory)
	if err != nil {
		return err
	}
	return errors.Join(layers.Remove(dir), layers.Remove(dir+newSuffix))
}

// linkImage makes an image of another one's files, which nobody writes, and returns
// its size in bytes. It is there whole, or not at all.
func linkImage(to, from, mark string) (size int64, err error) {
	entries, err := os.ReadDir(from)
	if err != nil {
		return 0, err
	}
	part := to + newSuffix
	if err := errors.Join(layers.Remove(part), os.MkdirAll(part, 0o700)); err != nil {
		return 0, err
	}
	whole := false
	for _, e := range entries {
		if err := os.Link(filepath.Join(from, e.Name()), filepath.Join(part, e.Name())); err != nil {
			return 0, errors.Join(err, layers.Remove(part))
		}
		if info, err := e.Info(); err == nil {
			size += info.Size()
		}
		whole = whole || e.Name() == shim.ImageFile
	}
	if mark != "" {
		f, err := os.OpenFile(filepath.Join(part, mark), os.O_CREATE|os.O_WRONLY, 0o600)
		if err == nil {
			err = f.Close()
		}
		if err != nil {
			return 0, errors.Join(err, layers.Remove(part))
		}
	}
	if !whole {
		return 0, errors.Join(errors.New("it is incomplete"), layers.Remove(part))
	}
	if err := layers.Remove(to); err != nil {
		return 0, err
	}
	return size, os.Rename(part, to)
}
