package base

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Files that only some of the host's users may read are masked: those that were there,
// and those that appear or change their mode later.
func TestHider(t *testing.T) {
	root, dir := t.TempDir(), t.TempDir()
	for _, f := range []struct {
		name string
		mode uint32
	}{
		{"usr", 0o755}, {"usr/bin", 0o755}, {"usr/bin/sh", 0o755},
		{"usr/bin/sudo", 0o4755}, {"usr/bin/sudo-of-others", 0o4111}, {"usr/bin/crontab", 0o2755},
		{"usr/bin/launch-helper", 0o4750}, {"usr/bin/unreadable", 0o711},
		{"usr/share", 0o755}, {"usr/share/rules.d", 0o700}, {"usr/share/rules.d/rule", 0o644},
		{"usr/share/names", 0o711}, {"usr/share/listed", 0o754}, {"usr/share/group", 0o2775},
		{"usr/share/group/key", 0o640}, {"usr/share/group/text", 0o664},
		{"usr/local", 0o755}, {"usr/local/etc", 0o751}, {"usr/local/lib", 0o755}, {"usr/local/lib/old", 0o644},
		{"usr/etc", 0o755}, {"usr/etc/old", 0o644},
	} {
		at := filepath.Join(root, f.name)
		if filepath.Ext(f.name) == "" && slices.Contains([]string{"usr", "bin", "share", "local", "etc", "lib", "names", "listed", "group"}, filepath.Base(at)) || filepath.Base(at) == "rules.d" {
			must(t, os.Mkdir(at, 0o700))
		} else {
			must(t, os.WriteFile(at, []byte(f.name), 0o600))
		}
		must(t, unix.Chmod(at, f.mode))
	}
	must(t, errors.Join(os.Symlink("usr/bin", filepath.Join(root, "bin")), os.Symlink("rules.d", filepath.Join(root, "usr/share/link"))))

	h := &Hider{Files: Files{Root: root}, Dir: dir}
	want := []string{"usr/bin/launch-helper", "usr/bin/unreadable", "usr/local/etc", "usr/share/group/key", "usr/share/listed", "usr/share/names", "usr/share/rules.d"}
	m := hides(t, h, want)
	if hidden, err := (&Hider{Files: h.Files}).Hidden(); err != nil || !slices.Equal(hidden, want) {
		t.Errorf("Hidden: %q, %v", hidden, err)
	}
	// A program that all may start and none may read is one that a sandbox starts, too.
	if st, err := os.Stat(filepath.Join(m.For("usr"), "bin/sudo-of-others")); err != nil || st.Mode() != 0o111|os.ModeSetuid || !slices.Equal(m.Copied, []string{"usr/bin/sudo-of-others"}) {
		t.Errorf("a program that nobody may read: %v, %v, of %q", st, err, m.Copied)
	}
	if m.For("usr") == "" || m.For("bin") != "" {
		t.Errorf("masks for usr %q, for bin %q", m.For("usr"), m.For("bin"))
	}
	// A caller that asked before that look began does not wait for another.
	before := h.checked
	if _, err := h.MaskSince(before.Add(-1)); err != nil || !h.checked.Equal(before) {
		t.Errorf("the last look began at %v, want %v (%v)", h.checked, before, err)
	}
	if again := hides(t, h, want); again.Dir != m.Dir || !h.checked.After(before) {
		t.Errorf("another mask %s of the same, want %s", again.Dir, m.Dir)
	}

	// New files and folders, and one that is read no more. A file that only changed its
	// mode is found where settings are, and elsewhere by Renew.
	longAgo(t, h)
	must(t, errors.Join(os.WriteFile(filepath.Join(root, "usr/share/key"), nil, 0o600),
		os.Mkdir(filepath.Join(root, "usr/share/new"), 0o755), os.WriteFile(filepath.Join(root, "usr/share/new/key"), nil, 0o600),
		os.Remove(filepath.Join(root, "usr/bin/unreadable")), os.Chmod(filepath.Join(root, "usr/local"), 0o750),
		os.Chmod(filepath.Join(root, "usr/etc/old"), 0o600)))
	want = []string{"usr/bin/launch-helper", "usr/etc/old", "usr/local", "usr/share/group/key", "usr/share/key", "usr/share/listed", "usr/share/names", "usr/share/new/key", "usr/share/rules.d"}
	later := hides(t, h, want)
	if later.Dir == m.Dir {
		t.Error("the same mask of other files")
	}
	if _, err := os.Lstat(filepath.Join(m.Dir, "usr/bin/unreadable")); err != nil {
		t.Errorf("a mask that may be mounted has changed: %v", err)
	}
	longAgo(t, h)
	must(t, errors.Join(os.Chmod(filepath.Join(root, "usr/local"), 0o755), os.Chmod(filepath.Join(root, "usr/bin/sh"), 0o700)))
	hides(t, h, slices.Replace(slices.Clone(want), 2, 3, "usr/local/etc"))
	must(t, h.Renew())
	hides(t, h, slices.Replace(slices.Clone(want), 1, 3, "usr/bin/sh", "usr/etc/old", "usr/local/etc"))
}

// Each file is looked at, even if a folder has many files, if names are long, or if
// folders are deep. Several goroutines look at the same time.
func TestHiddenAll(t *testing.T) {
	root := t.TempDir()
	var want []string
	for i, dir := range []string{"usr", "usr/" + strings.Repeat("d/", 60) + "d", "usr/many", "usr/z"} {
		must(t, os.MkdirAll(filepath.Join(root, dir), 0o755))
		for n := range []int{3, 3, 2000, 3}[i] {
			name, mode := fmt.Sprintf("%s/%d-%s", dir, n, strings.Repeat("x", n%240)), fs.FileMode(0o644)
			if n%7 == 2 {
				mode = 0o640
				want = append(want, name)
			}
			must(t, errors.Join(os.WriteFile(filepath.Join(root, name), nil, 0o600), os.Chmod(filepath.Join(root, name), mode)))
		}
	}
	for n := range 300 {
		dir := fmt.Sprintf("usr/many/below-%d", n)
		must(t, errors.Join(os.Mkdir(filepath.Join(root, dir), 0o755), os.WriteFile(filepath.Join(root, dir, "key"), nil, 0o600)))
		want = append(want, dir+"/key")
	}
	slices.Sort(want)
	h := &Hider{Files: Files{Root: root}, Dir: t.TempDir()}
	fds := openFiles(t)
	hides(t, h, want)
	longAgo(t, h)
	// If a folder has not changed, folders below it that have are still looked at again.
	must(t, errors.Join(os.WriteFile(filepath.Join(root, "usr/many/below-7/new"), nil, 0o600), os.RemoveAll(filepath.Join(root, "usr/many/below-8"))))
	at, _ := slices.BinarySearch(want, "usr/many/below-8/key")
	want = append(slices.Delete(want, at, at+1), "usr/many/below-7/new")
	slices.Sort(want)
	hides(t, h, want)
	if now := openFiles(t); now != fds {
		t.Errorf("%d files are open, and %d were", now, fds)
	}
}

func openFiles(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	must(t, err)
	return len(entries)
}

// A host with python3 alone has python in its sprites, until it has a python of its own.
func TestPython(t *testing.T) {
	root, dir := t.TempDir(), t.TempDir()
	h := &Hider{Files: Files{Root: root}, Dir: dir}
	must(t, errors.Join(os.MkdirAll(filepath.Join(root, "usr/bin"), 0o755), os.MkdirAll(filepath.Join(root, "usr/local/bin"), 0o755)))
	if m := hides(t, h, nil); m.For("usr") != "" {
		t.Errorf("a mask of a host without python3: %+v", m)
	}
	must(t, os.WriteFile(filepath.Join(root, "usr/bin/python3"), nil, 0o755))
	m := hides(t, h, nil)
	if target, err := os.Readlink(filepath.Join(m.For("usr"), "bin/python")); err != nil || target != "python3" {
		t.Errorf("python: got a link to %q, %v, want python3", target, err)
	}
	if m.For("bin") != "" {
		t.Errorf("a mask for bin: %+v", m)
	}
	must(t, os.Symlink("/nowhere", filepath.Join(root, "usr/local/bin/python")))
	if m := hides(t, h, nil); m.For("usr") != "" {
		t.Errorf("a mask of a host with python: %+v", m)
	}
}

// longAgo makes all that was found so old that folders with the same times count as
// unchanged. It returns once the next change of a file will have another time.
func longAgo(t *testing.T, h *Hider) {
	var first, now unix.Stat_t
	probe := filepath.Join(t.TempDir(), "probe")
	for first.Ctim == now.Ctim {
		must(t, errors.Join(os.WriteFile(probe, nil, 0o600), os.Chmod(probe, 0o600), unix.Stat(probe, &now)))
		if first.Ino == 0 {
			first = now
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, f := range h.folders.all {
		f.read = f.read.Add(time.Hour)
	}
}

// hides checks what a mask is for and of.
func hides(t *testing.T, h *Hider, want []string) Mask {
	t.Helper()
	m, err := h.Mask()
	if err != nil || !slices.Equal(m.Hidden, want) {
		t.Fatalf("hidden: %q, %v\nwant %q", m.Hidden, err, want)
	}
	for _, name := range want {
		var st, host unix.Stat_t
		if err := unix.Lstat(filepath.Join(m.Dir, name), &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFCHR || st.Rdev != 0 {
			t.Errorf("%s is no whiteout: %o, %v", name, st.Mode, err)
		}
		above := filepath.Dir(name)
		err := errors.Join(unix.Lstat(filepath.Join(m.Dir, above), &st), unix.Lstat(h.Files.path(above), &host))
		if err != nil || st.Mode != host.Mode || st.Uid != host.Uid || st.Gid != host.Gid {
			t.Errorf("%s has mode %o of %d:%d, the host's has %o of %d:%d (%v)", above, st.Mode, st.Uid, st.Gid, host.Mode, host.Uid, host.Gid, err)
		}
	}
	return m
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
