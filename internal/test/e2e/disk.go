package e2e

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/cove-dev/cove/internal/test/need"
)

// SmallDisk mounts a disk of that size at a path, until the test ends.
func SmallDisk(t testing.TB, path, size string) {
	t.Helper()
	if err := errors.Join(os.MkdirAll(path, 0o755), syscall.Mount("none", path, "tmpfs", 0, "mode=0700,size="+size)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(path, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
}

// NewRootHost is NewHost for a test that mounts disks.
func NewRootHost(t *testing.T) *Host {
	t.Helper()
	need.Root(t)
	return NewHost(t)
}

// NewSmallHost is NewHost with a data folder on a disk of that size.
func NewSmallHost(t *testing.T, size string) *Host {
	t.Helper()
	return NewHostOn(t, size, SmallDisk)
}

// NewHostOn is NewHost with a data folder on a disk that mount has made at a path.
func NewHostOn(t *testing.T, size string, mount func(t testing.TB, path, size string)) *Host {
	t.Helper()
	h := NewRootHost(t)
	mount(t, h.Data, size)
	t.Cleanup(func() { // before the disk's
		if err := EndServer(h.Bin, h.Data, h.Home); err != nil {
			t.Errorf("end the server: %v", err)
		}
	})
	return h
}

// Ext4Disk mounts an ext4 disk of that size at a path, until the test ends.
func Ext4Disk(t testing.TB, path, size string) {
	t.Helper()
	mkfs := need.Program(t, "mkfs.ext4", "e2fsprogs")
	image := path + ".image"
	for _, args := range [][]string{
		{"fallocate", "-l", size, image},
		{mkfs, "-q", "-m", "0", image},
		{"mkdir", "-p", path},
		{"mount", "-o", "loop,errors=remount-ro", image, path},
	} {
		if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %v: %s", args, err, out)
		}
	}
	t.Cleanup(func() {
		if err := errors.Join(syscall.Unmount(path, syscall.MNT_DETACH), os.Remove(image)); err != nil {
			t.Error(err)
		}
	})
}

// FailDisk triggers an error, as of a faulty disk, in the ext4 mounted at path, which
// becomes read-only.
func FailDisk(t testing.TB, path string) {
	t.Helper()
	device, err := exec.Command("findmnt", "-n", "-o", "SOURCE", path).Output()
	if err == nil {
		err = os.WriteFile(filepath.Join("/sys/fs/ext4", filepath.Base(strings.TrimSpace(string(device))), "trigger_fs_error"), []byte("1"), 0)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// FillUp takes all room of a data folder's disk, to the last block.
func FillUp(h *Host) {
	h.T.Helper()
	f, err := os.OpenFile(filepath.Join(h.Data, "fill"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		h.T.Fatal(err)
	}
	defer f.Close()
	for size := 1 << 20; size > 0; {
		_, err := f.Write(make([]byte, size))
		if err == nil {
			err = f.Sync() // else the written data may find no room later
		}
		switch {
		case errors.Is(err, syscall.ENOSPC):
			size /= 2
		case err != nil:
			h.T.Fatal(err)
		}
	}
}

// MakeRoom undoes FillUp.
func MakeRoom(h *Host) {
	h.T.Helper()
	if err := os.Remove(filepath.Join(h.Data, "fill")); err != nil {
		h.T.Fatal(err)
	}
}
