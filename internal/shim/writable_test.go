package shim

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/cove-dev/cove/internal/shim/layers"
	"github.com/cove-dev/cove/internal/test/need"
	"github.com/cove-dev/cove/sprites"
)

// TestCopyUp: a file below becomes the overlay's own, by its own name alone; where the
// disk is full meanwhile, that is what the error says.
func TestCopyUp(t *testing.T) {
	need.Root(t)
	disk := t.TempDir()
	if err := unix.Mount("none", disk, "tmpfs", 0, "size=8m"); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = layers.Unmount(disk) }()
	below, root := t.TempDir(), t.TempDir()
	o := layers.Overlay{Lowers: []string{below}, Upper: filepath.Join(disk, "upper"), Work: filepath.Join(disk, "work")}
	write := func(name string, size int) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(below, name), make([]byte, size), 0o400); err != nil {
			t.Fatal(err)
		}
	}
	write("small", 1<<20)
	write("large", 16<<20)
	if err := errors.Join(os.Symlink("small", filepath.Join(below, "link")), o.Create(), o.Mount(root)); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = layers.Unmount(root) }()
	if err := copyUp(root, "link"); !errors.Is(err, unix.ELOOP) {
		t.Errorf("of a link: %v", err)
	}
	if err := copyUp(root, "../../small"); err != nil {
		t.Error(err)
	}
	if st, err := os.Stat(filepath.Join(o.Upper, "small")); err != nil || st.Size() != 1<<20 {
		t.Errorf("got %v, %v", st, err)
	}
	if err := copyUp(root, "large"); !errors.Is(err, unix.ENOSPC) || !noRoom(err) {
		t.Errorf("of one that is too large: %v", err)
	}
	if err := room(disk, 4<<20, 10); err != nil {
		t.Error(err)
	}
	if err := room(disk, 7<<20, 10); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("got %v", err)
	}
	if err := room(disk, 0, 1<<40); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("got %v", err)
	}
}

// gVisor closes files in its own time, also while a checkpoint looks at what is open. A file
// that is closed meanwhile is not found. That holds even if a link has its number by then,
// which can't be opened (gVisor holds links without following them). A file that has another
// descriptor is found.
func TestDiskFilesThatClose(t *testing.T) {
	need.Root(t)
	dir := t.TempDir()
	s := newShim(Config{Dir: dir}, "", slog.New(slog.DiscardHandler))
	st := State{PID: os.Getpid()}
	root := s.folder.rootfs(st)
	o := layers.Overlay{Lowers: []string{t.TempDir()}, Upper: filepath.Join(dir, "upper"), Work: filepath.Join(dir, "work")}
	if err := errors.Join(os.Mkdir(root, 0o700), o.Create(), o.Mount(root), s.containers.saveBundle(st, &specs.Spec{})); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = layers.Unmount(root) }()
	name, link := filepath.Join(root, "journal"), filepath.Join(root, "link")
	if err := os.Symlink("nowhere", link); err != nil {
		t.Fatal(err)
	}
	var lower []*os.File // descriptors that are looked at first: those that close and open have them
	for range 10 {
		f, err := os.Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		lower = append(lower, f)
	}
	kept, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	defer kept.Close()
	for _, f := range lower {
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
	}
	done, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		for {
			select {
			case <-done:
				ended <- nil
				return
			default:
			}
			f, err := os.OpenFile(name, os.O_WRONLY, 0)
			if err == nil {
				err = f.Close()
			}
			link, linkErr := unix.Open(link, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
			if linkErr == nil {
				linkErr = unix.Close(link)
			}
			if err := errors.Join(err, linkErr); err != nil {
				ended <- err
				return
			}
		}
	}()
	for range 2000 {
		files, err := diskFiles(s.folder, st)
		if err != nil || len(files) != 1 {
			t.Errorf("got %v, %v", files, err)
			break
		}
	}
	close(done)
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// TestCopySize: a copy of a sparse file is counted as large as the overlay makes it.
func TestCopySize(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatal("only root can mount a disk")
	}
	disk := t.TempDir()
	if err := unix.Mount("none", disk, "tmpfs", 0, "size=64m"); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = layers.Unmount(disk) }()
	below, root := filepath.Join(disk, "below"), t.TempDir()
	o := layers.Overlay{Lowers: []string{below}, Upper: filepath.Join(disk, "upper"), Work: filepath.Join(disk, "work")}
	if err := errors.Join(os.Mkdir(below, 0o755), o.Create()); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name   string
		size   int64
		at     []int64 // 4 KiB of data each
		pieces int
		want   int64
	}{
		{"empty", 0, nil, 10, 0},
		{"hole", 20 << 20, nil, 10, 0},
		{"each", 21 << 20, []int64{0, 2 << 20, 4 << 20, 6 << 20, 8 << 20}, 10, 5 << 20},
		{"one-chunk", 20 << 20, []int64{8 << 10, 512 << 10, 1 << 20}, 10, 1 << 20},
		{"end", 3<<20 + 4096, []int64{3 << 20}, 10, 4096},
		{"many", 10 << 20, []int64{0, 2 << 20, 4 << 20}, 2, 9 << 20},
	}
	for _, test := range tests {
		f, err := os.Create(filepath.Join(below, test.name))
		if err != nil {
			t.Fatal(err)
		}
		err = f.Truncate(test.size)
		for _, at := range test.at {
			_, werr := f.WriteAt(make([]byte, 4096), at)
			err = errors.Join(err, werr)
		}
		if err := errors.Join(err, f.Close()); err != nil {
			t.Fatal(err)
		}
	}
	if err := o.Mount(root); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = layers.Unmount(root) }()
	for _, test := range tests {
		pieces := test.pieces
		got, err := copySize(filepath.Join(root, test.name), test.size, &pieces)
		if err != nil || got != test.want {
			t.Errorf("%s: got %d, %v, want %d", test.name, got, err, test.want)
		}
		if test.name == "many" {
			continue // counted for more than it takes
		}
		var st unix.Stat_t
		if err := errors.Join(copyUp(root, test.name), unix.Stat(filepath.Join(o.Upper, test.name), &st)); err != nil {
			t.Fatal(err)
		}
		if st.Blocks*512 != got {
			t.Errorf("%s: the overlay wrote %d, counted were %d", test.name, st.Blocks*512, got)
		}
	}
}

// TestTooMuchOpen: a memory is kept up to the bounds; over them it is said why not.
func TestTooMuchOpen(t *testing.T) {
	for _, test := range []struct {
		writable, unlinked int64
		want               []string
	}{
		{sprites.OpenWritable, sprites.OpenUnlinked, nil},
		{sprites.OpenWritable + 1, 0, []string{"256 MiB of files are open for writing"}},
		{0, 69 << 20, []string{"69 MiB of deleted files"}},
		{300 << 20, 69 << 20, []string{"300 MiB of files", "69 MiB of deleted files"}},
	} {
		open := sprites.OpenFiles{WritableBytes: test.writable, UnlinkedBytes: test.unlinked}
		got := tooMuchOpen(open.Excess())
		if (got == "") != (test.want == nil) {
			t.Errorf("%+v: got %q", open, got)
		}
		for _, part := range test.want {
			if !strings.Contains(got, part) {
				t.Errorf("%+v: got %q, want %q in it", open, got, part)
			}
		}
	}
}
