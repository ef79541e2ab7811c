package shim

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// mountDisk makes and mounts the disk of a sandbox that is about to boot.
func mountDisk(cfg Config, rootfs string, log *slog.Logger) error {
	if err := os.MkdirAll(rootfs, 0o755); err != nil {
		return fmt.Errorf("mount the disk: %w", err)
	}
	for _, m := range cfg.Disk {
		if err := m.Overlay.Create(); err != nil {
			return fmt.Errorf("mount the disk: %w", err)
		}
		if err := m.mount(rootfs, log); err != nil {
			return fmt.Errorf("mount the disk: %w", err)
		}
	}
	return openWays(rootfs, cfg.Include)
}

// mountAll mounts a disk that was made already.
func mountAll(disk []Mount, rootfs string, log *slog.Logger) error {
	for _, m := range disk {
		if err := m.mount(rootfs, log); err != nil {
			return fmt.Errorf("mount the disk: %w", err)
		}
	}
	return nil
}

// mount mounts a part of the disk below rootfs. If the kernel can't guard it, it is
// mounted without a guard. Then its mask still hides files that were secret when the
// sandbox started.
func (m Mount) mount(rootfs string, log *slog.Logger) error {
	at := filepath.Join(rootfs, m.Target)
	err := m.Overlay.Mount(at)
	if err != nil && m.Overlay.Guard != "" {
		log.Warn("host files that become secret later are not hidden from this sandbox", "folder", "/"+m.Target, "err", err)
		m.Overlay.Guard = ""
		err = m.Overlay.Mount(at)
	}
	return err
}

// openWays makes the folders above the included ones passable for the sprite's
// user: below /root, for one, they would be seen by root only.
func openWays(rootfs string, include []string) error {
	if len(include) == 0 {
		return nil
	}
	root, err := os.OpenRoot(rootfs) // nothing on the disk leads out of it
	if err != nil {
		return fmt.Errorf("make the paths to included folders accessible: %w", err)
	}
	defer root.Close()
	for _, dir := range include {
		way := ""
		for part := range strings.SplitSeq(strings.TrimPrefix(filepath.Dir(dir), "/"), "/") {
			if way = filepath.Join(way, part); way == "" {
				break // directly below /
			}
			err := root.Mkdir(way, 0o755)
			if err != nil && !errors.Is(err, os.ErrExist) {
				return fmt.Errorf("make the path to %s accessible: %w", dir, err)
			}
			st, err := root.Stat(way)
			if err == nil && st.Mode().Perm()&0o011 != 0o011 {
				err = root.Chmod(way, st.Mode().Perm()|0o011)
			}
			if err != nil {
				return fmt.Errorf("make the path to %s accessible: %w", dir, err)
			}
		}
	}
	return nil
}

// upperSince is the time from which on all changes of the disk are in its topmost layer.
func upperSince(disk []Mount) (since time.Time, err error) {
	for _, m := range disk {
		began, err := m.Overlay.Since()
		if err != nil {
			return since, err
		}
		if began.After(since) {
			since = began
		}
	}
	return since, nil
}
