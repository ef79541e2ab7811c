package main

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/cove-dev/cove/internal/test/need"
)

// ext4Disk mounts a disk of that size, with a file system of the kernel's most usual kind,
// at a path until the test ends.
func ext4Disk(t testing.TB, path, size string) {
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

// failDisk has the ext4 that is mounted at path find an error, as of the disk: it is
// read-only then.
func failDisk(t testing.TB, path string) {
	t.Helper()
	device, err := exec.Command("findmnt", "-n", "-o", "SOURCE", path).Output()
	if err == nil {
		err = os.WriteFile(filepath.Join("/sys/fs/ext4", filepath.Base(strings.TrimSpace(string(device))), "trigger_fs_error"), []byte("1"), 0)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// fillUp takes all room of a data folder's disk, to the last block.
func (h *host) fillUp() {
	h.t.Helper()
	f, err := os.OpenFile(filepath.Join(h.data, "fill"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		h.t.Fatal(err)
	}
	defer f.Close()
	for size := 1 << 20; size > 0; {
		_, err := f.Write(make([]byte, size))
		if err == nil {
			err = f.Sync() // or what is written may find no room later
		}
		switch {
		case errors.Is(err, syscall.ENOSPC):
			size /= 2
		case err != nil:
			h.t.Fatal(err)
		}
	}
}

// keepFull takes each byte of a data folder's disk as soon as it is free, until the function
// that it returns is called: as a program in a sprite may, which no kill of a server ends.
func (h *host) keepFull() (stop func()) {
	h.t.Helper()
	f, err := os.OpenFile(filepath.Join(h.data, "fill"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		h.t.Fatal(err)
	}
	var ends atomic.Bool
	var taking sync.WaitGroup
	for range 2 { // what one of them waits for, the other does not
		taking.Go(func() {
			for block := make([]byte, 4<<10); !ends.Load(); {
				if _, err := f.Write(block); err != nil && !errors.Is(err, syscall.ENOSPC) {
					h.t.Error(err)
					return
				}
			}
		})
	}
	stop = sync.OnceFunc(func() {
		ends.Store(true)
		taking.Wait()
		if err := f.Close(); err != nil {
			h.t.Error(err)
		}
	})
	h.t.Cleanup(stop)
	return stop
}

// full checks that a command says that the disk is full, and what to do.
func (h *host) full(args ...string) {
	h.t.Helper()
	out, code := h.try("", "cove", args...)
	if code != 6 || !strings.Contains(out, "the disk of the server is full") || !strings.Contains(out, "hint: ") || !strings.Contains(out, "free some space") || strings.Contains(out, h.data) {
		h.t.Errorf("%v on a full disk: exit %d\n%s", args, code, out)
	}
}

// TestFullDiskStart: a server starts on a disk that something keeps full, however the last
// one ended, and there what makes room can be done. Otherwise nobody could make any.
func TestFullDiskStart(t *testing.T) {
	disks := map[string]func(testing.TB, string, string){"ext4": ext4Disk}
	if soak() {
		disks["tmpfs"] = smallDisk // a file there gives its room back as soon as it is emptied
	}
	for name, mount := range disks {
		t.Run(name, func(t *testing.T) {
			h := newHostOn(t, "160m", mount)
			h.serve(nil, "--disk-reserve", "0")
			h.run("", "cove", "create", "paint", "--idle", "0")
			h.run("", "cove", "create", "cold")
			h.run("", "cove", "create", "idle", "--idle", "1s")
			h.run("", "cove", "exec", "-s", "idle", "--", "sh", "-c", "head -c 1M /dev/urandom >big")
			for range 4 {
				h.run("", "cove", "exec", "-s", "paint", "--", "sh", "-c", "head -c 2M /dev/urandom >big")
				h.run("", "cove", "checkpoint", "create", "-s", "paint")
			}
			h.stage("idle", true)
			h.fillUp()
			stop := h.keepFull()
			for _, sig := range []syscall.Signal{syscall.SIGKILL, syscall.SIGTERM, syscall.SIGTERM, syscall.SIGKILL, syscall.SIGKILL} {
				h.endServer(sig)
				h.serve(nil, "--disk-reserve", "0")
				h.run("", "cove", "list")
			}
			h.full("checkpoint", "create", "-s", "paint")
			h.full("fork", "paint", "copy")
			h.full("exec", "-s", "cold", "--", "true")
			h.run("", "cove", "exec", "-s", "idle", "--", "rm", "big") // it goes on for that
			h.run("", "cove", "checkpoint", "rm", "v1", "-s", "paint")
			h.run("", "cove", "checkpoint", "prune", "-s", "paint", "--all", "--keep-last", "1")
			h.run("", "cove", "rm", "--yes", "paint")
			stop()
			h.makeRoom()
			h.run("", "cove", "exec", "-s", "cold", "--", "true")
		})
	}
}

// TestReadOnlyDisk: the file system of the data folder has found an error, and is
// read-only from then on.
func TestReadOnlyDisk(t *testing.T) {
	h := newRootHost(t)
	ext4Disk(t, h.data, "96m")
	h.serve(nil, "--disk-reserve", "0")
	pid := h.pid()
	t.Cleanup(func() { _ = syscall.Kill(pid, syscall.SIGKILL) }) // of a test that failed
	h.run("", "cove", "create", "paint")
	failDisk(t, h.data)
	says := func(want int, args ...string) {
		t.Helper()
		out, code := h.try("", "cove", args...)
		if code != want || !strings.Contains(out, "the disk of the server's data folder is read-only or faulty") || !strings.Contains(out, "hint: on the server's machine, see why (dmesg)") || strings.Contains(out, h.data) {
			t.Errorf("%v: exit %d\n%s", args, code, out)
		}
	}
	says(1, "create", "two")
	says(1, "checkpoint", "create", "-s", "paint")
	says(1, "update", "paint", "--idle", "5m")
	says(1, "rm", "--yes", "paint")
	says(125, "exec", "-s", "paint", "--", "true")
	h.run("", "cove", "list")
	h.endServer(syscall.SIGKILL)
	if out, code := h.try("", "cove", "server", "start"); code != 1 || !strings.Contains(out, "read-only file system") || !strings.Contains(out, "hint: that file system is read-only: see why (dmesg)") {
		t.Errorf("a start: exit %d\n%s", code, out)
	}
}
