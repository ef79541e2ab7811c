package gvisor

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cove-dev/cove/internal/server/sprite"
	"github.com/cove-dev/cove/internal/shim"
	"github.com/cove-dev/cove/internal/shim/layers"
)

// A sprite that sleeps may have its memory in a folder, which is used once: it is
// renamed before, because afterwards the disk goes on without it.

const (
	usedSuffix = ".used" // of an image that a sandbox has gone on from, or is about to
	newSuffix  = ".new"  // of one that is not whole yet
)

func (r *Runtime) imageDir(id string) string { return filepath.Join(r.Dir, "images", id) }

// Warm reports whether a sprite's memory is kept.
func (r *Runtime) Warm(id string) bool { return exists(filepath.Join(r.imageDir(id), shim.ImageFile)) }

// Outdated reports whether a sprite's memory is kept that was made by other builds of
// runsc and the guest, or on another processor, than would go on from it.
func (r *Runtime) Outdated(id string) bool {
	image, err := shim.ReadImage(r.imageDir(id))
	if err != nil {
		return false
	}
	r.init()
	prep, err := r.prepare()
	return err == nil && image.Build != prep.build
}

// DropMemory removes a sprite's memory, if it is kept: its next start is a boot.
func (r *Runtime) DropMemory(_ context.Context, id string) error {
	if _, err := r.takeImage(id); err != nil {
		return err
	}
	return layers.Remove(r.imageDir(id) + usedSuffix)
}

// takeImage makes a sprite's image one that is not found again, and returns its
// folder; empty, if there is none.
func (r *Runtime) takeImage(id string) (string, error) {
	used := r.imageDir(id) + usedSuffix
	if !r.Warm(id) {
		// One that is not whole is none.
		return "", errors.Join(layers.Remove(used), layers.Remove(r.imageDir(id)))
	}
	if err := layers.Remove(used); err != nil {
		return "", err
	}
	if err := os.Rename(r.imageDir(id), used); err != nil {
		return "", fmt.Errorf("take the memory's image: %w", err)
	}
	return used, nil
}

// memoryDir is the folder of a memory that is kept.
func (r *Runtime) memoryDir(memory string) (string, error) {
	if _, err := hex.DecodeString(memory); err != nil || len(memory) != 16 {
		return "", fmt.Errorf("bad name of a memory %q", memory)
	}
	return filepath.Join(r.Dir, "memories", memory), nil
}

// KeepMemory keeps the memory that a sleeping sprite has.
func (r *Runtime) KeepMemory(_ context.Context, id, memory string) (int64, error) {
	dir, err := r.memoryDir(memory)
	if err != nil {
		return 0, err
	}
	size, err := linkImage(dir, r.imageDir(id), "")
	if err != nil {
		return 0, fmt.Errorf("keep the memory of sprite %s: %w", id, err)
	}
	return size, nil
}

// Recall has a sprite's next Boot go on from a memory.
func (r *Runtime) Recall(_ context.Context, id, memory string) error {
	dir, err := r.memoryDir(memory)
	if err != nil {
		return err
	}
	if _, err := linkImage(r.imageDir(id), dir, shim.CopiedFile); err != nil {
		return fmt.Errorf("recall the memory %s: %w", memory, err)
	}
	return nil
}

// ForgetMemory removes a memory.
func (r *Runtime) ForgetMemory(_ context.Context, memory string) error {
	dir, err := r.memoryDir(memory)
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
		return 0, errors.Join(errors.New("it is not whole"), layers.Remove(part))
	}
	if err := layers.Remove(to); err != nil {
		return 0, err
	}
	return size, os.Rename(part, to)
}

// Hibernate saves the sandbox's memory, and ends it.
func (s *sandbox) Hibernate(ctx context.Context) error {
	dir := s.runtime.imageDir(s.id)
	if err := s.told(ctx, shim.IsNoShim, func() error { return s.client.Hibernate(ctx, dir) }); err != nil {
		s.awaitEnd(err)
		select {
		case <-s.done:
			if s.runtime.Warm(s.id) {
				return nil // the answer was lost, and not the memory
			}
			return err
		default:
			if room, is := shim.RoomOf(err); is {
				return &sprite.NoRoomError{Free: room.Free, Needed: room.Needed}
			}
			return deletedOpen(err)
		}
	}
	select {
	case <-s.done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// buildOf says what a memory image depends on.
func buildOf(runsc, guest string) (string, error) {
	f, err := os.Open(runsc)
	if err != nil {
		return "", fmt.Errorf("read runsc: %w", err)
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", fmt.Errorf("read runsc: %w", err)
	}
	return fmt.Sprintf("runsc %s guest %s cpu %s", hex.EncodeToString(h.Sum(nil))[:16], filepath.Base(guest), processor()), nil
}

// processor is a digest of what the machine's processor is and can do.
func processor() string {
	data, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return "unknown"
	}
	var lines []string
	for line := range strings.Lines(string(data)) {
		key, value, _ := strings.Cut(line, ":")
		switch strings.TrimSpace(key) {
		case "vendor_id", "cpu family", "model", "flags", "Features", "CPU implementer", "CPU part":
			lines = append(lines, strings.TrimSpace(value))
		}
	}
	slices.Sort(lines)
	sum := sha256.Sum256([]byte(strings.Join(slices.Compact(lines), "\n")))
	return hex.EncodeToString(sum[:8])
}
