package gitwork

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// Lock is the right to change a repository: one pull at a time holds it. It ends
// with the process, and with the git processes that were given it.
type Lock struct {
	file *os.File
}

// Lock waits until no other pull works on the repository. It removes what a killed pull
// left in cove's folder, except the journal of a fast-forward: Recover reads that. The
// caller must call Unlock.
func (r *Repo) Lock(ctx context.Context) (*Lock, error) {
	dir, err := r.private()
	if err != nil {
		return nil, err
	}
	file, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock repository: %w", err)
	}
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			break
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR) {
			_ = file.Close()
			return nil, fmt.Errorf("lock repository: %w", err)
		}
		select {
		case <-ctx.Done():
			_ = file.Close()
			return nil, fmt.Errorf("wait for another pull in this repository: %w", context.Cause(ctx))
		case <-tick.C:
		}
	}
	sweep(dir)
	return &Lock{file}, nil
}

// Unlock lets the next one go on.
func (l *Lock) Unlock() { _ = l.file.Close() } // nothing was written

// sweep removes the quarantines and temporary files of processes that are gone.
// The next sweep retries those that can't be removed.
func sweep(dir string) {
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), quarantinePrefix) {
			_ = os.RemoveAll(filepath.Join(dir, e.Name()))
		}
	}
	dir = filepath.Join(dir, "tmp")
	entries, _ = os.ReadDir(dir)
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		if e.IsDir() { // a scratch repository; the marker beside it says whether it is in use
			if !exists(path + inUse) {
				_ = os.RemoveAll(path)
			}
			continue
		}
		if base, ok := strings.CutSuffix(path, ".lock"); ok && exists(base) {
			continue // git's lock of an index in use; git puts no flock on it
		}
		sweepFile(path)
	}
}

// inUse ends the name of the marker of a scratch repository.
const inUse = ".inuse"

// sweepFile removes a temporary file, and the scratch repository that it marks,
// if no process has it open. A very young one may not be locked yet.
func sweepFile(path string) {
	file, err := os.Open(path)
	if err != nil {
		return
	}
	defer func() { _ = file.Close() }()
	info, err := file.Stat()
	if err != nil || time.Since(info.ModTime()) < time.Minute {
		return
	}
	if syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) != nil {
		return
	}
	if dir, ok := strings.CutSuffix(path, inUse); ok {
		_ = os.RemoveAll(dir)
	}
	_ = os.Remove(path)
}

// TempFile is a temporary file of a living process: while it is open, no other
// process takes it for a leftover.
type TempFile struct {
	*os.File
}

// TempFile makes an empty file in cove's folder in the repository. The caller
// ends it by Remove.
func (r *Repo) TempFile(prefix string) (*TempFile, error) {
	dir, err := r.private("tmp")
	if err != nil {
		return nil, err
	}
	return tempFile(dir, prefix)
}

func tempFile(dir, prefix string) (*TempFile, error) {
	file, err := os.CreateTemp(dir, prefix+"*")
	if err != nil {
		return nil, fmt.Errorf("make a temporary file: %w", err)
	}
	if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		_ = file.Close()
		return nil, fmt.Errorf("make a temporary file: %w", err)
	}
	return &TempFile{file}, nil
}

// Remove closes and deletes the file.
func (t *TempFile) Remove() { t.remove() }

func (t *TempFile) remove() {
	_ = os.Remove(t.Name())
	_ = t.Close()
}
