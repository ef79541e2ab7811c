package layers

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// inMountNamespace runs f with a mount namespace of its own, which ends with it.
func inMountNamespace(t *testing.T, f func()) {
	t.Helper()
	done := make(chan error)
	go func() {
		// The thread is not given back: it ends with this goroutine.
		runtime.LockOSThread()
		if err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS); err != nil {
			done <- err
			return
		}
		if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
			done <- err
			return
		}
		f()
		done <- nil
	}()
	if err := <-done; err != nil {
		if os.Getenv("COVE_REQUIRE_SANDBOX") != "" {
			t.Fatalf("mount namespace: %v", err)
		}
		t.Skipf("this user can't have a mount namespace: %v", err)
	}
}

func write(t *testing.T, name, data string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		t.Error(err)
	}
	if err := os.WriteFile(name, []byte(data), 0o644); err != nil {
		t.Error(err)
	}
}

func read(t *testing.T, name string) string {
	t.Helper()
	data, err := os.ReadFile(name)
	if err != nil {
		t.Error(err)
	}
	return string(data)
}

func TestOverlay(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "with, comma and : colon")
	o := Overlay{Lowers: []string{filepath.Join(dir, "sealed"), filepath.Join(dir, "base")}, Upper: filepath.Join(dir, "upper"), Work: filepath.Join(dir, "work")}
	write(t, filepath.Join(dir, "base", "a"), "base")
	write(t, filepath.Join(dir, "base", "b"), "base")
	write(t, filepath.Join(dir, "base", "folder", "c"), "base")
	write(t, filepath.Join(dir, "sealed", "b"), "sealed")
	root := filepath.Join(dir, "root")
	if err := os.MkdirAll(root, 0o755); err != nil {
		t.Fatal(err)
	}
	inMountNamespace(t, func() {
		if err := o.Create(); err != nil {
			t.Error(err)
			return
		}
		if err := o.Mount(root); err != nil {
			t.Error(err)
			return
		}
		if got := read(t, filepath.Join(root, "a")) + read(t, filepath.Join(root, "b")); got != "basesealed" {
			t.Errorf("read through the overlay: got %q, want %q", got, "basesealed")
		}
		write(t, filepath.Join(root, "a"), "new")
		if err := os.Rename(filepath.Join(root, "folder"), filepath.Join(root, "renamed")); err != nil {
			t.Errorf("rename a folder of a lower layer: %v", err)
		}
		if err := Unmount(root); err != nil {
			t.Error(err)
		}
		if err := Unmount(root); err != nil {
			t.Errorf("unmount again: got %v, want no error", err)
		}
	})
	if got := read(t, filepath.Join(dir, "base", "a")); got != "base" {
		t.Errorf("the lower layer was written: got %q", got)
	}
	if got := read(t, filepath.Join(dir, "upper", "a")); got != "new" {
		t.Errorf("upper: got %q, want %q", got, "new")
	}
	if err := Remove(dir); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("after Remove: got %v, want not exist", err)
	}
}

func TestOverlayRefuses(t *testing.T) {
	for name, o := range map[string]Overlay{
		"no lower":   {Upper: "/u", Work: "/w"},
		"too many":   {Lowers: make([]string, MaxLowers+1), Upper: "/u", Work: "/w"},
		"too long":   {Lowers: []string{"/" + strings.Repeat("x", os.Getpagesize())}, Upper: "/u", Work: "/w"},
		"not a base": {Lowers: []string{filepath.Join(t.TempDir(), "missing")}, Upper: t.TempDir(), Work: t.TempDir()},
	} {
		if err := o.Mount(t.TempDir()); err == nil {
			t.Errorf("%s: Mount succeeded, want an error", name)
		}
	}
}
