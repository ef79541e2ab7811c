package gvisor

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// installGuest copies the guest binary, also under its other name sprite-env, into a new folder
// below dir, and returns that folder. The folder's name is the binary's digest. A running
// sandbox, and a memory image, keep the guest that they were made with.
func installGuest(binary, dir string) (string, error) {
	src, err := os.Open(binary)
	if err != nil {
		return "", fmt.Errorf("install the guest: %w", err)
	}
	defer src.Close()
	h := sha256.New()
	if _, err := io.Copy(h, src); err != nil {
		return "", fmt.Errorf("install the guest: %w", err)
	}
	final := filepath.Join(dir, hex.EncodeToString(h.Sum(nil))[:16])
	if _, err := os.Stat(filepath.Join(final, "cove-guest")); err == nil {
		return final, nil
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", fmt.Errorf("install the guest: %w", err)
	}
	tmp, err := os.MkdirTemp(dir, "new-")
	if err != nil {
		return "", fmt.Errorf("install the guest: %w", err)
	}
	defer os.RemoveAll(tmp)
	if err := os.Chmod(tmp, 0o755); err != nil {
		return "", fmt.Errorf("install the guest: %w", err)
	}
	if _, err := src.Seek(0, io.SeekStart); err != nil {
		return "", fmt.Errorf("install the guest: %w", err)
	}
	dst, err := os.OpenFile(filepath.Join(tmp, "cove-guest"), os.O_CREATE|os.O_WRONLY, 0o755)
	if err != nil {
		return "", fmt.Errorf("install the guest: %w", err)
	}
	_, err = io.Copy(dst, src)
	if err := errors.Join(err, dst.Sync(), dst.Chmod(0o755), dst.Close()); err != nil {
		return "", fmt.Errorf("install the guest: %w", err)
	}
	if err := os.Symlink("cove-guest", filepath.Join(tmp, "sprite-env")); err != nil {
		return "", fmt.Errorf("install the guest: %w", err)
	}
	if err := os.Rename(tmp, final); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", fmt.Errorf("install the guest: %w", err)
	}
	return final, nil
}
