package layers

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cove-dev/cove/internal/test/need"
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
		need.Missing(t, "this user can't have a mount namespace: "+err.Error(), "sudo make test")
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
		"too many":   {Lowers: make([]string, MaxLowers+MaxBase), Upper: "/u", Work: "/w"},
		"too long":   {Lowers: []string{"/" + strings.Repeat("x", os.Getpagesize())}, Upper: "/u", Work: "/w"},
		"not a base": {Lowers: []string{filepath.Join(t.TempDir(), "missing")}, Upper: t.TempDir(), Work: t.TempDir()},
	} {
		if err := o.Mount(t.TempDir()); err == nil {
			t.Errorf("%s: Mount succeeded, want an error", name)
		}
	}
}

// TestOverlayManyLowers: as many lower folders as there may be are mounted, however long
// their names are together.
func TestOverlayManyLowers(t *testing.T) {
	dir := filepath.Join(t.TempDir(), strings.Repeat("long", 40))
	o := Overlay{Upper: filepath.Join(dir, "upper"), Work: filepath.Join(dir, "work")}
	for i := range MaxLowers - 1 + MaxBase {
		lower := filepath.Join(dir, fmt.Sprint("lower", i))
		o.Lowers = append(o.Lowers, lower)
		write(t, filepath.Join(lower, fmt.Sprint("of", i)), "")
		write(t, filepath.Join(lower, "all"), fmt.Sprint(i))
	}
	root := filepath.Join(dir, "root")
	inMountNamespace(t, func() {
		if err := errors.Join(os.Mkdir(root, 0o755), o.Create(), o.Mount(root)); err != nil {
			t.Error(err)
			return
		}
		for i := range o.Lowers {
			if _, err := os.Stat(filepath.Join(root, fmt.Sprint("of", i))); err != nil {
				t.Error(err)
			}
		}
		if got := read(t, filepath.Join(root, "all")); got != "0" {
			t.Errorf("got what lower %s has, want the topmost", got)
		}
		if err := Unmount(root); err != nil {
			t.Error(err)
		}
	})
}

// TestForget: an overlay over a layer that is still written shows what is there at last.
// That also holds for names that were looked up in it before.
func TestForget(t *testing.T) {
	dir := t.TempDir()
	o := Overlay{Lowers: []string{filepath.Join(dir, "written"), filepath.Join(dir, "base")}, Upper: filepath.Join(dir, "upper"), Work: filepath.Join(dir, "work")}
	inMountNamespace(t, func() {
		write(t, filepath.Join(dir, "base/folder/old"), "old")
		write(t, filepath.Join(dir, "written/other"), "other")
		target := filepath.Join(dir, "target")
		if err := errors.Join(os.Mkdir(target, 0o755), o.Create(), o.Mount(target)); err != nil {
			t.Error(err)
			return
		}
		defer func() {
			if err := Unmount(target); err != nil {
				t.Error(err)
			}
		}()
		seen := func() string {
			text, err := os.ReadFile(filepath.Join(target, "folder/new"))
			if err != nil {
				return "nothing"
			}
			return string(text)
		}
		if got := seen(); got != "nothing" {
			t.Errorf("before it is written there is %q", got)
		}
		write(t, filepath.Join(dir, "written/folder/new"), "new")
		if got := seen(); got != "nothing" {
			t.Logf("this kernel shows %q without being told to forget", got)
		}
		if err := o.Forget(target); err != nil {
			t.Error(err)
		}
		if got := seen(); got != "new" {
			t.Errorf("there is %q, want what was written since", got)
		}
		if got := read(t, filepath.Join(target, "folder/old")); got != "old" {
			t.Errorf("folder/old is %q", got)
		}
		if err := os.Chmod(filepath.Join(dir, "written"), 0o711); err != nil {
			t.Error(err)
		}
		if err := o.CopyTop(); err != nil {
			t.Error(err)
		}
		if info, err := os.Stat(o.Upper); err != nil || info.Mode().Perm() != 0o711 {
			t.Errorf("the topmost folder is %v, %v", info, err)
		}
	})
}
