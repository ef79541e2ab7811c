package base

import (
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Each starting server looks at all of the host's programs once. Each sandbox that starts
// looks at their folders. BenchmarkHiddenFloor is the bare walk of the same tree. To know
// each file's mode, this walk is needed.

func BenchmarkHidden(b *testing.B) {
	measured(b, func() {
		if _, err := new(Hider).Hidden(); err != nil {
			b.Fatal(err)
		}
	})
}

func BenchmarkHiddenAgain(b *testing.B) {
	h := &Hider{Dir: b.TempDir()}
	if _, err := h.Mask(); err != nil {
		b.Fatal(err)
	}
	measured(b, func() {
		if _, err := h.Mask(); err != nil {
			b.Fatal(err)
		}
	})
}

// BenchmarkHiddenRestarted is the first look of a server that starts soon after another.
func BenchmarkHiddenRestarted(b *testing.B) {
	dir := b.TempDir()
	if _, err := (&Hider{Dir: dir}).Mask(); err != nil {
		b.Fatal(err)
	}
	measured(b, func() {
		if _, err := (&Hider{Dir: dir}).Mask(); err != nil {
			b.Fatal(err)
		}
	})
}

func BenchmarkPrepare(b *testing.B) {
	dir := b.TempDir()
	measured(b, func() {
		dir = filepath.Join(dir, "x")
		if _, err := (Files{User: User{Name: "sprite", UID: 1000, GID: 1000, Home: "/home/sprite"}}).Prepare(dir); err != nil {
			b.Fatal(err)
		}
	})
}

func BenchmarkPrepareAgain(b *testing.B) {
	dir := b.TempDir()
	prepare := func() {
		if _, err := (Files{User: User{Name: "sprite", UID: 1000, GID: 1000, Home: "/home/sprite"}}).Prepare(dir); err != nil {
			b.Fatal(err)
		}
	}
	prepare()
	measured(b, prepare)
}

func BenchmarkHiddenFloor(b *testing.B) {
	buf := make([]byte, 64<<10)
	var walk func(fd int) int
	walk = func(fd int) (files int) {
		var below []string
		for {
			n, err := unix.Getdents(fd, buf)
			if err != nil {
				b.Fatal(err)
			}
			if n == 0 {
				break
			}
			var names []string
			_, _, names = unix.ParseDirent(buf[:n], -1, nil)
			for _, name := range names {
				var st unix.Stat_t
				if err := unix.Fstatat(fd, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
					b.Fatal(err)
				}
				files++
				if st.Mode&unix.S_IFMT == unix.S_IFDIR {
					below = append(below, name)
				}
			}
		}
		for _, name := range below {
			fd, err := unix.Openat(fd, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
			if err != nil {
				b.Fatal(err)
			}
			files += walk(fd)
			unix.Close(fd)
		}
		return files
	}
	var files int
	measured(b, func() {
		fd, err := unix.Open("/usr", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			b.Fatal(err)
		}
		files = walk(fd)
		unix.Close(fd)
	})
	b.ReportMetric(float64(files), "files")
}

// measured reports the processor time of f. Other programs of a busy machine do not make
// it longer.
func measured(b *testing.B, f func()) {
	used := func() time.Duration {
		var u syscall.Rusage
		if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
			b.Fatal(err)
		}
		return time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	start := used()
	b.ReportAllocs()
	for b.Loop() {
		f()
	}
	b.ReportMetric(float64(used()-start)/float64(b.N)/1e6, "cpu-ms/op")
}
