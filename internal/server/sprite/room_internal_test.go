package sprite

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cove-dev/cove/internal/test/need"
)

// accountDisk is a disk of 256 MiB that writes so many bytes at once.
type accountDisk struct {
	t   *testing.T
	dir string
	f   *os.File
	n   int64
}

func newAccountDisk(t *testing.T) *accountDisk {
	t.Helper()
	need.Root(t)
	d := &accountDisk{t: t, dir: t.TempDir()}
	if err := unix.Mount("none", d.dir, "tmpfs", 0, "size=256m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(d.f.Close(), unix.Unmount(d.dir, 0)); err != nil {
			t.Error(err)
		}
	})
	var err error
	if d.f, err = os.Create(filepath.Join(d.dir, "file")); err != nil {
		t.Fatal(err)
	}
	return d
}

func (d *accountDisk) write(n int64) {
	d.t.Helper()
	if err := unix.Fallocate(int(d.f.Fd()), 0, d.n, n); err != nil {
		d.t.Fatal(err)
	}
	d.n += n
}

func (d *accountDisk) left() int64 {
	d.t.Helper()
	var st unix.Statfs_t
	if err := unix.Statfs(d.dir, &st); err != nil {
		d.t.Fatal(err)
	}
	return int64(st.Bavail) * st.Bsize
}

func TestDiskRoom(t *testing.T) {
	const reserve, piece = 32 << 20, 1 << 20
	never := context.CancelCauseFunc(func(error) { t.Error("it was ended") })
	for _, test := range []struct {
		name  string
		by    []string // of the claims, each of which takes in turn until it may not
		write bool     // what is taken is written
		most  int64    // of all together
	}{
		{"the owner has what the reserve leaves", []string{""}, true, 224 << 20},
		{"what is claimed counts before it is written", []string{""}, false, 224 << 20},
		{"nothing is claimed twice", []string{"", "", ""}, true, 224 << 20},
		{"a token has a quarter of what twice the reserve leaves", []string{"a"}, true, 48 << 20},
		{"it is a quarter in all", []string{"a", "a"}, true, 48 << 20},
		{"each has its own", []string{"a", "b"}, true, 96 << 20},
		{"twice the reserve is left by all others", []string{"a", "b", "c", "d", "e", "f"}, true, 192 << 20},
	} {
		t.Run(test.name, func(t *testing.T) {
			d, room := newAccountDisk(t), &diskRoom{}
			var claims []*claim
			for _, by := range test.by {
				c, err := room.open(d.dir, by, reserve, never)
				if err != nil {
					t.Fatal(err)
				}
				claims = append(claims, c)
			}
			var sum int64
			for full := 0; full < len(claims); {
				full = 0
				for _, c := range claims {
					switch err := c.take(piece); {
					case errors.Is(err, ErrNoRoom):
						full++
					case err != nil:
						t.Fatal(err)
					default:
						if sum += piece; test.write {
							d.write(piece)
						}
					}
				}
			}
			if sum > test.most || sum < test.most-int64(len(claims))*claimStep {
				t.Errorf("got %d MiB, want %d", sum>>20, test.most>>20)
			}
			if left := d.left(); left < reserve {
				t.Errorf("%d MiB are left", left>>20)
			}
			for _, c := range claims {
				c.close()
			}
			if len(room.claims) > 0 {
				t.Errorf("%d claims are left", len(room.claims))
			}
		})
	}
}

// Room is made by the operation that has taken the most of it, once.
func TestEndLargest(t *testing.T) {
	d, room := newAccountDisk(t), &diskRoom{}
	if room.endLargest() {
		t.Error("of none one was ended")
	}
	ends := map[string]error{}
	var claims []*claim
	for name, n := range map[string]int64{"none": 0, "small": 4096, "large": 1 << 20} {
		c, err := room.open(d.dir, "", 0, func(err error) { ends[name] = err })
		if err != nil {
			t.Fatal(err)
		}
		claims = append(claims, c)
		if n > 0 {
			if err := c.take(n); err != nil {
				t.Fatal(err)
			}
		}
	}
	for range 3 {
		if !room.endLargest() {
			t.Error("none was ended")
		}
	}
	if len(ends) != 1 || !errors.Is(ends["large"], ErrNoRoom) {
		t.Errorf("ended: %v", ends)
	}
	for _, c := range claims {
		if c.ended {
			if err := c.take(1); !errors.Is(err, ErrNoRoom) {
				t.Errorf("one that was ended takes: %v", err)
			}
			c.close()
		}
	}
	if !room.endLargest() || len(ends) != 2 || ends["small"] == nil {
		t.Errorf("then ended: %v", ends)
	}
}

// TestRoomOfImages: an image gets no room that an import has claimed, and none of the reserve.
func TestRoomOfImages(t *testing.T) {
	const reserve = 32 << 20
	d := newAccountDisk(t)
	var room diskRoom
	if err := room.has(d.dir, reserve, d.left()-reserve); err != nil {
		t.Errorf("all but the reserve: %v", err)
	}
	if err := room.has(d.dir, reserve, d.left()-reserve+1); !errors.Is(err, ErrNoRoom) {
		t.Errorf("a byte of the reserve: %v", err)
	}
	_, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	c, err := room.open(d.dir, "", reserve, cancel)
	if err == nil {
		err = c.take(1)
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := room.has(d.dir, reserve, d.left()-reserve-claimStep/2); !errors.Is(err, ErrNoRoom) {
		t.Errorf("what an import has claimed: %v", err)
	}
	c.close()
	if err := room.has(d.dir, reserve, d.left()-reserve); err != nil {
		t.Errorf("after the import: %v", err)
	}
}
