package supervise

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
)

// TestTakeLock: a job's lock is taken once those that look at it have let it go, however long they
// stand still. A supervisor that has it is waited for no longer than it may take to end.
func TestTakeLock(t *testing.T) {
	name := filepath.Join(t.TempDir(), "lock")
	open := func(t *testing.T, how int) *os.File {
		t.Helper()
		f, err := os.OpenFile(name, os.O_CREATE|os.O_RDWR, 0o600)
		if err == nil && how != 0 {
			err = unix.Flock(int(f.Fd()), how|unix.LOCK_NB)
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = f.Close() }) // it may be closed already
		return f
	}
	for _, test := range []struct {
		what string
		how  int           // of another's lock
		free time.Duration // when the other lets it go
		want error
		took time.Duration // at most
	}{
		{"free", 0, 0, nil, 0},
		{"looked at", unix.LOCK_SH, 40 * time.Second, nil, 41 * time.Second},
		{"looked at for ever", unix.LOCK_SH, time.Hour, ErrBusy, 61 * time.Second},
		{"of one that ends", unix.LOCK_EX, time.Second / 2, nil, time.Second},
		{"of one at work", unix.LOCK_EX, time.Hour, ErrBusy, 2 * time.Second},
	} {
		synctest.Test(t, func(t *testing.T) {
			other, mine, began := open(t, test.how), open(t, 0), time.Now()
			let := time.AfterFunc(test.free, func() { _ = other.Close() })
			err := takeLock(mine)
			if took := time.Since(began); !errors.Is(err, test.want) || took > test.took {
				t.Errorf("%s: got %v after %v, want %v", test.what, err, took, test.want)
			}
			let.Stop()
			_ = other.Close() // it may be closed already
			if taken, err := flock(open(t, 0), unix.LOCK_EX); taken == (test.want == nil) || err != nil {
				t.Errorf("%s: taken by a third: %v, %v", test.what, taken, err)
			}
		})
	}
}
