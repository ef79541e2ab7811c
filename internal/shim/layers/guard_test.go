package layers

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

// A guarded overlay opens no file of its lowest layer that others may not read. It does not
// matter when the file became so, or which rights the asking process has. A file that was
// written belongs to the layers above, and can be opened.
func TestGuard(t *testing.T) {
	for _, userXattr := range []bool{false, true} {
		testGuard(t, userXattr)
	}
}

func testGuard(t *testing.T, userXattr bool) {
	dir := t.TempDir()
	host, mask, at, guard := filepath.Join(dir, "host"), filepath.Join(dir, "mask"), filepath.Join(dir, "at"), filepath.Join(dir, "guard")
	o := Overlay{Lowers: []string{mask, host}, Upper: filepath.Join(dir, "upper"), Work: filepath.Join(dir, "work"), Guard: guard, UserXattr: userXattr}
	write(t, filepath.Join(host, "open"), "open")
	write(t, filepath.Join(host, "held"), "known to all")
	write(t, filepath.Join(host, "free"), "free")
	secrets := []string{"key", "copied", "linked", "moved", "sub/key"}
	for _, name := range secrets {
		write(t, filepath.Join(host, name), "known to all")
	}
	write(t, filepath.Join(host, "sub/never"), "known to all")
	write(t, filepath.Join(mask, "own"), "own")
	chmod := func(mode os.FileMode, names ...string) {
		t.Helper()
		for _, name := range names {
			if err := os.Chmod(name, mode); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := errors.Join(os.Mkdir(at, 0o700), os.Mkdir(guard, 0o700), o.Create()); err != nil {
		t.Fatal(err)
	}
	chmod(0o755, guard)
	chmod(0o600, filepath.Join(mask, "own"))
	chmod(0o700, dir) // a stranger can't walk there
	inMountNamespace(t, func() {
		if err := o.Mount(at); err != nil {
			t.Error(err)
			return
		}
		defer func() {
			for range 2 { // the guarded layer, and what covers it
				if err := unix.Unmount(at, 0); err != nil {
					t.Error(err)
				}
			}
		}()
		in := func(name string) string { return filepath.Join(at, name) }
		if got := read(t, in("open")); got != "open" {
			t.Errorf("open: got %q", got)
		}
		for _, name := range secrets {
			if got := read(t, in(name)); got != "known to all" { // and the kernel has looked it up
				t.Errorf("%s: got %q while all may read it", name, got)
			}
		}
		for _, name := range secrets {
			write(t, filepath.Join(host, name), "tell-nobody")
		}
		write(t, filepath.Join(host, "late"), "tell-nobody")
		chmod(0o600, filepath.Join(host, "key"), filepath.Join(host, "copied"), filepath.Join(host, "linked"), filepath.Join(host, "moved"), filepath.Join(host, "late"))
		chmod(0o700, filepath.Join(host, "sub"))

		for what, err := range map[string]error{
			"a link to a file":   os.Link(in("linked"), in("link")),
			"a rename of a file": os.Rename(in("moved"), in("renamed")),
			"a chmod of a file":  os.Chmod(in("copied"), 0o644),
		} {
			if err == nil {
				t.Errorf("%s: no error", what)
			}
		}
		for _, name := range slices.Concat(secrets, []string{"late", "link", "renamed"}) {
			if data, err := os.ReadFile(in(name)); !errors.Is(err, fs.ErrPermission) && !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("%s: got %q, %v, want that it may not be read", name, data, err)
			}
		}
		// A folder that root opens again inside is a copy of its own. The host's below it stays closed.
		if err := os.Chmod(in("sub"), 0o755); err != nil {
			t.Error(err)
		}
		if data, err := os.ReadFile(in("sub/never")); err == nil {
			t.Errorf("a file that was never looked up: got %q after its folder was opened inside", data)
		}
		if entries, err := os.ReadDir(in("sub")); err == nil {
			t.Errorf("a closed folder of the host's shows %v inside", entries)
		}
		// A file that a process holds, and has not opened (O_PATH), is opened by its present mode.
		held, err := unix.Open(in("held"), unix.O_PATH|unix.O_CLOEXEC, 0)
		if err != nil {
			t.Error(err)
			return
		}
		defer unix.Close(held)
		chmod(0o600, filepath.Join(host, "held"))
		if data, err := os.ReadFile(fmt.Sprintf("/proc/self/fd/%d", held)); !errors.Is(err, fs.ErrPermission) {
			t.Errorf("a file that is held: got %q, %v", data, err)
		}
		// Another name of the same file is no way around.
		if err := errors.Join(os.Link(filepath.Join(host, "key"), filepath.Join(host, "second")), os.Rename(filepath.Join(host, "late"), filepath.Join(host, "open"))); err != nil {
			t.Error(err)
		}
		for _, name := range []string{"second", "open"} {
			if data, err := os.ReadFile(in(name)); err == nil && string(data) != "open" {
				t.Errorf("%s: got %q", name, data)
			}
		}
		write(t, in("mine"), "mine")
		write(t, in("free"), "free and mine")
		for _, name := range []string{"mine", "free"} {
			if err := errors.Join(os.Chmod(in(name), 0o600), os.Chown(in(name), 1000, 1000)); err != nil {
				t.Error(err)
			}
		}
		if a, b, c := read(t, in("mine")), read(t, in("free")), read(t, in("own")); a != "mine" || b != "free and mine" || c != "own" {
			t.Errorf("got %q, %q and %q of the layers above", a, b, c)
		}
	})
}
