package shim

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// Held reports whether a shim looks after the sandbox of a folder, or is about to
// start it.
func Held(dir string) bool {
	f, err := os.Open(filepath.Join(dir, lockName))
	if err != nil {
		return false
	}
	defer f.Close()
	return errors.Is(unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB), unix.EWOULDBLOCK)
}

// Keeper returns the number and start of the last shim that looked after the sandbox of a
// folder.
func Keeper(dir string) (pid int, start uint64, err error) {
	text, err := os.ReadFile(filepath.Join(dir, lockName))
	if err != nil {
		return 0, 0, err
	}
	_, err = fmt.Sscan(string(text), &pid, &start)
	return pid, start, err
}

const lockName = "shim.lock"

// lockPatience is for a shim that has cleaned up, and is about to end.
const lockPatience = time.Minute

// adoptPatience is for a shim that has died: its connections end before its lock does.
const adoptPatience = 500 * time.Millisecond

// takeLock takes the sandbox's lock, which the kernel gives back when this process ends, or
// when the file is closed.
func takeLock(ctx context.Context, cfg Config) (*os.File, error) {
	if err := os.MkdirAll(cfg.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the sandbox's folder: %w", err)
	}
	f, err := os.OpenFile(filepath.Join(cfg.Dir, lockName), os.O_CREATE|os.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the sandbox's lock: %w", err)
	}
	patience := lockPatience
	if cfg.Adopt {
		patience = adoptPatience
	}
	for deadline := time.Now().Add(patience); ; {
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			if start, err := processStart(os.Getpid()); err == nil {
				_, _ = fmt.Fprintf(f, "%10d %20d\n", os.Getpid(), start) // on a full disk the last one's stay
			}
			return f, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) {
			err = fmt.Errorf("lock the sandbox's folder: %w", err)
			break
		}
		_, none := ReadState(cfg.Dir)
		if !cfg.Adopt && none == nil || ctx.Err() != nil || time.Now().After(deadline) {
			err = ErrLocked
			break
		}
		select { // the last one has died, or its sandbox is gone: it ends too
		case <-time.After(2 * time.Millisecond):
		case <-ctx.Done():
		}
	}
	return nil, errors.Join(err, f.Close())
}
