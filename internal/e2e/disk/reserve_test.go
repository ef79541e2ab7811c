package disk

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cove-dev/cove/internal/test/e2e"
	"github.com/cove-dev/cove/sprites"
)

// fillDisk takes size bytes of the disk with a file that belongs to no sprite.
func (l *limited) fillDisk(t *testing.T, size int64) {
	t.Helper()
	f, err := os.Create(filepath.Join(l.Data, "filling"))
	if err == nil {
		err = errors.Join(unix.Fallocate(int(f.Fd()), 0, 0, size), f.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
}

// left returns how many bytes the disk has left.
func (l *limited) left(t *testing.T) int64 {
	t.Helper()
	var st unix.Statfs_t
	if err := unix.Statfs(l.Data, &st); err != nil {
		t.Fatal(err)
	}
	return int64(st.Bavail) * st.Bsize
}

// bySteps writes so many times so many bytes, with a pause after each, and then prints
// the file's size. With a further argument it keeps rewriting a little of another file,
// until the file named by the argument exists.
const bySteps = `
import os, sys, time
f, g = open('big', 'wb', buffering=0), open('more', 'wb', buffering=0)
for _ in range(int(sys.argv[1])): f.write(bytes(int(sys.argv[2]))); time.sleep(float(sys.argv[3]))
while sys.argv[4:] and not os.path.exists(sys.argv[4]): g.write(bytes(4096)); time.sleep(0.02)
print(os.stat('big').st_size)
open('said', 'w').write('%d' % os.stat('big').st_size)
`

// TestDiskReserve has a sprite without a limit fill the disk. It is paused while there is
// room for the others, and for a checkpoint. It goes on when there is more room again.
func TestDiskReserve(t *testing.T) {
	const reserve = 512 << 20
	l := newLimitedOf(t, "2g", "--disk-reserve", "512M")
	l.fillDisk(t, 1100<<20)
	l.Run("", "cove", "create", "wild")
	// Some 50 MB/s: how much it overshoots must not be a matter of this machine's load. It does
	// not end before it is held.
	cmd := l.Client().Sprite("wild").Command("python3", "-c", bySteps, "100", "5242880", "0.1", "enough")
	out := &strings.Builder{}
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	e2e.Await(t, "the sprite is held", func() bool { i := l.Info("wild").Cove; return i.Held != nil && i.Paused })
	left := l.left(t)
	t.Logf("%d MiB left of a reserve of %d", left>>20, reserve>>20)
	if left < reserve/2 || left >= reserve {
		t.Errorf("it is held when %d bytes are left of a reserve of %d", left, reserve)
	}
	if held := l.Info("wild").Cove.Held; held.Code != "disk_full" || held.ReserveBytes != reserve || held.FreeBytes == 0 || held.FreeBytes >= reserve {
		t.Errorf("got %+v", held)
	}
	if out, code := l.Try("", "cove", "exec", "-s", "wild", "true"); code != 6 || !strings.Contains(out, "the server's disk has only") || !strings.Contains(out, "cove rm") {
		t.Errorf("a command in it: %d, %s", code, out)
	}
	err := l.Client().Sprite("wild").Command("true").Run()
	if e, ok := errors.AsType[*sprites.Error](err); !ok || e.Code != "disk_full" || e.StatusCode != 507 {
		t.Errorf("got %v, want a disk_full of 507", err)
	}
	if out, _ := l.Try("", "cove", "doctor"); !strings.Contains(out, "sprites leave 512.0 MiB of its disk") || !strings.Contains(out, "until then, sprites that write are paused") {
		t.Errorf("doctor says\n%s", out)
	}

	// No other sprite is refused: others go on, start, get checkpoints, and are removed.
	l.writes(t)
	l.Run("", "cove", "checkpoint", "create", "-s", "neighbour", "--memory")
	l.Run("", "cove", "checkpoint", "create", "-s", "wild")
	l.writes(t)
	l.Run("", "cove", "create", "another")
	l.Run("", "cove", "exec", "-s", "another", "--", "sh", "-c", "echo small >small && rm small")
	l.Run("", "cove", "rm", "another")
	if i := l.Info("neighbour").Cove; i.Held != nil {
		t.Errorf("the neighbour is held: %+v", i.Held)
	}
	if i := l.Info("wild").Cove; i.Held == nil || !i.Paused {
		t.Errorf("after a checkpoint the sprite is held no more")
	}

	if err := os.Remove(filepath.Join(l.Data, "filling")); err != nil {
		t.Fatal(err)
	}
	e2e.Await(t, "it goes on", func() bool {
		_, code := l.Try("", "cove", "exec", "-s", "wild", "touch", "enough")
		return code == 0
	})
	if err := cmd.Wait(); err != nil || out.String() != fmt.Sprintln(500<<20) {
		t.Errorf("when there is room again it ends with %v, %s", err, out)
	}
	if i := l.Info("wild").Cove; i.Held != nil {
		t.Errorf("it is held: %+v", i.Held)
	}
}

// TestDiskReserveOfDead kills the server beside a held sprite. The next server holds it
// too; one without a reserve does not. A sprite that sleeps may be woken.
func TestDiskReserveOfDead(t *testing.T) {
	l := newLimitedOf(t, "1g", "--disk-reserve", "256M")
	l.fillDisk(t, 600<<20)
	l.Run("", "cove", "create", "wild")
	l.Run("", "cove", "exec", "-s", "wild", "--detach", "--", "python3", "-c", bySteps, "300", "1048576", "0.02", "enough")
	held := func() bool { i := l.Info("wild").Cove; return i.Held != nil && i.Paused }
	e2e.Await(t, "the sprite is held", held)
	e2e.SignalAll(t, 9, l.PID())
	l.Serve(nil, "--idle", "0", "--disk-reserve", "256M")
	if i := l.Info("wild").Cove; i.Held == nil || i.Held.Code != "disk_full" || !i.Paused {
		t.Errorf("of the next server: %+v", i.Held)
	}
	l.Run("", "cove", "suspend", "wild")
	if i := l.Info("wild").Cove; i.Held != nil {
		t.Errorf("asleep it is held: %+v", i.Held)
	}
	waker, wait := l.Background("", "cove", "exec", "-s", "wild", "true")
	e2e.Await(t, "it is held as soon as it has written", held) // maybe before the command that woke it runs
	_ = e2e.Signal(waker, syscall.SIGKILL)                     // or it has ended
	_, _ = wait()
	e2e.SignalAll(t, 9, l.PID())
	l.Serve(nil, "--idle", "0", "--disk-reserve", "0")
	l.Run("", "cove", "exec", "-s", "wild", "touch", "enough")
	e2e.Await(t, "it has finished", func() bool {
		out, _ := l.Try("", "cove", "exec", "-s", "wild", "cat", "said")
		return out == fmt.Sprint(300<<20)
	})
}

// hog takes more memory than the disk has left, and writes until it is stopped. On a disk
// that has become full before that, it tries again.
const hog = `
import os, time
memory = os.urandom(300 << 20)
f = open('big', 'wb', buffering=0)
while True:
    try: f.write(os.urandom(1 << 20))
    except OSError: pass
    time.sleep(0.02)
`

// TestDiskReserveAdvice: the disk has no room for the memory of a sprite that is held because
// of the reserve. The advice that cove gives then makes room, also if somebody has taken the reserve.
func TestDiskReserveAdvice(t *testing.T) {
	for name, all := range map[string]bool{"reserve": false, "nothing": true} {
		t.Run(name, func(t *testing.T) {
			l := newLimitedOf(t, "1g", "--disk-reserve", "128M")
			l.fillDisk(t, 500<<20)
			l.Run("", "cove", "create", "wild")
			l.Run("", "cove", "exec", "-s", "wild", "--detach", "--", "python3", "-c", hog)
			e2e.Await(t, "the sprite is held", func() bool { i := l.Info("wild").Cove; return i.Held != nil && i.Paused })
			if l.full = all; all {
				e2e.FillUp(l.Host)
			}
			for _, args := range [][]string{{"exec", "-s", "wild", "--", "rm", "big"}, {"suspend", "wild"}} {
				out, code := l.Try("", "cove", args...)
				if code != 6 || !strings.Contains(out, "cove restart wild") {
					t.Errorf("%v: exit %d\n%s", args, code, out)
				}
			}
			l.Run("", "cove", "restart", "wild")
			l.Run("", "cove", "exec", "-s", "wild", "--", "rm", "big")
			if i := l.Info("wild").Cove; i.Held != nil {
				t.Errorf("it is held: %+v", i.Held)
			}
			l.writes(t)
		})
	}
}
