package trials

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/cove-dev/cove/internal/test/e2e"
	"github.com/cove-dev/cove/internal/test/need"
)

// TestSoakFullDisk fills the disk under a program that writes, and kills processes. A
// killed server starts again on the full disk. When there is room again, each line that
// was written and synced is there, and the sprite goes on.
func TestSoakFullDisk(t *testing.T) {
	if !e2e.Soak() { // a minute of make test's fifteen; TestSoakSQLite is there
		return
	}
	h := e2e.NewSmallHost(t, "256m") // a sprite held for the reserve goes on at 77 MB
	h.Serve(nil, "--idle", "0")
	tr := newTrial(h, "full", 16)
	next := 0
	for round := range rounds(2) {
		w := tr.work(lines, strconv.Itoa(next))
		e2e.Await(t, "some lines", func() bool { return w.hasEnded() || len(w.Lines()) > 5 })
		e2e.FillUp(h)
		n := len(w.Lines())
		e2e.Await(t, "the end of the room", func() bool { // it may be paused first, for the reserve of the disk
			return w.hasEnded() || len(w.Lines()) > n+200 || tr.rng.IntN(300) == 0
		})
		victims := trialVictims[tr.rng.IntN(len(trialVictims))]
		tr.kill(victims)
		e2e.MakeRoom(h)
		tr.afterwards(w, -1, &next, fmt.Sprintf("round %d, a kill of %s", round, victims))
	}
	t.Logf("%d lines in the last file", next)
}

// lines writes numbered lines to the disk and reports each, up to 20 MB. The limit leaves
// room for the test's later steps, because the program works on while a server is away.
const lines = `
import signal
n = int(sys.argv[1])
most = n + 20000
fd = os.open('lines', os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o644)
while True:
    if n == most: signal.pause()
    line = b'%d %s\n' % (n, b'x' * 1000)
    at = os.fstat(fd).st_size
    try:
        if os.write(fd, line) < len(line): raise OSError('a part')
        os.fsync(fd)
    except OSError as e:
        print(n, e, file=sys.stderr, flush=True)
        os.ftruncate(fd, at)
        continue
    done(n); n += 1
`

// afterwards checks the lines that the program lines has left. None of its first told lines
// may be missing (-1: none that it reported). next is set to the number to go on with. A
// long file is removed.
func (tr *trial) afterwards(w *worker, told int, next *int, what string) {
	tr.T.Helper()
	e2e.Await(tr.T, "the sprite after "+what, func() bool {
		_, code := tr.Try("", "cove", "exec", "-s", tr.sprite, "true")
		return code == 0
	})
	tr.stop(w)
	out := tr.inside(`
whole = open('lines', 'rb').read()
kept = whole[:whole.rfind(b'\n') + 1]
os.truncate('lines', len(kept))
numbers = [int(l.split()[0]) for l in kept.splitlines()]
print(len(numbers) if numbers == list(range(len(numbers))) and all(len(l.split()[1]) == 1000 for l in kept.splitlines()) else numbers)
`)
	kept, err := strconv.Atoi(strings.TrimSpace(out))
	if told < 0 {
		told = len(w.Lines())
	}
	if err != nil || kept < *next+told {
		tr.T.Fatalf("%s: %d lines were acknowledged, and there are %s; the program said:\n%.2000s", what, *next+told, out, w.said.String())
	}
	if *next = kept; kept > 40000 {
		tr.inside("os.unlink('lines')")
		*next = 0
	}
}

// TestSoakFaultyDisk has the disk fail and become read-only, as ext4 does after an error,
// under a program that writes. Once the disk is mended and mounted again, each line that was
// synced is there.
func TestSoakFaultyDisk(t *testing.T) {
	if !e2e.Soak() { // a minute of make test's fifteen; TestSoakSQLite is there
		return
	}
	need.Root(t)
	h := e2e.NewHost(t)
	d := newFaultyDisk(t, h)
	h.Serve(nil, "--idle", "0", "--disk-reserve", "0")
	tr := newTrial(h, "faulty", 17)
	next := 0
	for round := range rounds(1) {
		w := tr.work(lines, strconv.Itoa(next))
		until := 1 + tr.rng.IntN(20)
		e2e.Await(t, "some lines", func() bool { return w.hasEnded() || len(w.Lines()) >= until })
		if tr.rng.IntN(3) == 0 {
			tr.Run("", "cove", "checkpoint", "create", "-s", tr.sprite)
		}
		told := len(w.Lines()) // lines reported while the disk fails do not count
		e2e.FailDisk(t, h.Data)
		if out, code := tr.Try("", "cove", "checkpoint", "create", "-s", tr.sprite); code == 0 {
			t.Errorf("a checkpoint on a disk that has failed: %s", out)
		}
		server := h.PID()
		for _, victim := range []string{"server", "shim", "sandbox"} {
			for _, pid := range (e2e.FaultCase{Victim: victim}).Victims(h, server) {
				_ = e2e.Signal(pid, syscall.SIGKILL) // it may have ended
			}
		}
		e2e.Await(t, "the server's end", func() bool { return syscall.Kill(server, 0) != nil })
		d.mend(t)
		h.Run("", "cove", "server", "start")
		tr.afterwards(w, told, &next, fmt.Sprintf("round %d", round))
	}
	t.Logf("%d lines in the last file", next)
}

// faultyDisk is an ext4 of a test's own, on which the data folder lies.
type faultyDisk struct{ image, at string }

func newFaultyDisk(t *testing.T, h *e2e.Host) *faultyDisk {
	t.Helper()
	e2e.Ext4Disk(t, h.Data, "512m")
	d := &faultyDisk{image: h.Data + ".image", at: h.Data}
	t.Cleanup(func() { // before the disk's
		if err := e2e.EndServer(h.Bin, h.Data, h.Home); err != nil {
			t.Errorf("end the server: %v", err)
		}
	})
	return d
}

func (d *faultyDisk) unmount(t *testing.T) {
	t.Helper()
	e2e.Await(t, "the disk's end", func() bool { return syscall.Unmount(d.at, 0) == nil })
	e2e.Await(t, "the end of all that had it mounted", func() bool {
		devices, err := exec.Command("losetup", "-j", d.image).Output()
		return err == nil && len(devices) == 0
	})
}

// mend checks the disk, and mounts it again.
func (d *faultyDisk) mend(t *testing.T) {
	t.Helper()
	d.unmount(t)
	out, err := exec.Command(need.Program(t, "e2fsck", "e2fsprogs"), "-fy", d.image).CombinedOutput()
	if exit, ok := err.(*exec.ExitError); err != nil && (!ok || exit.ExitCode() > 1) { // 1: it has mended something
		t.Fatalf("e2fsck: %v: %s", err, out)
	}
	if out, err := exec.Command("mount", "-o", "loop,errors=remount-ro", d.image, d.at).CombinedOutput(); err != nil {
		t.Fatalf("mount: %v: %s", err, out)
	}
	if _, err := os.Stat(filepath.Join(d.at, "cove.db")); err != nil {
		t.Fatal(err)
	}
}
