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

	"github.com/cove-dev/cove/internal/layers"
	"github.com/cove-dev/cove/internal/shim"
)

// A sprite that sleeps may have its memory in a folder, which is used once: it is
// renamed before, because afterwards the disk goes on without it.

func (r *Runtime) imageDir(id string) string { return filepath.Join(r.Dir, "images", id) }

// Warm reports whether a sprite's memory is kept.
func (r *Runtime) Warm(id string) bool { return exists(filepath.Join(r.imageDir(id), shim.ImageFile)) }

// DropMemory removes a sprite's memory, if it is kept: its next start is a boot.
func (r *Runtime) DropMemory(_ context.Context, id string) error {
	if _, err := r.takeImage(id); err != nil {
		return err
	}
	return layers.Remove(r.imageDir(id) + ".used")
}

// takeImage makes a sprite's image one that is not found again, and returns its
// folder; empty, if there is none.
func (r *Runtime) takeImage(id string) (string, error) {
	used := r.imageDir(id) + ".used"
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

// Hibernate saves the sandbox's memory, and ends it.
func (s *sandbox) Hibernate(ctx context.Context) error {
	if err := s.client.Hibernate(ctx, s.runtime.imageDir(s.id)); err != nil {
		select {
		case <-s.done:
			return nil
		default:
			return err
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
