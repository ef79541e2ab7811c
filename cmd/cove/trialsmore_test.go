package main

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// TestSoakClients has ten clients do everything at random, each with a sprite of its own,
// while processes are killed. What a client was told is done is so afterwards; of what
// failed or was cut off, all or nothing; and no error is one of the program.
func TestSoakClients(t *testing.T) {
	h := newHost(t)
	h.serve(nil, "--idle", "0")
	if !soak() { // a part of make test's fifteen minutes; TestSoakSQLite is there
		return
	}
	n, clients := rounds(1), 10
	rng := rand.New(rand.NewPCG(15, 0x7a1a1))
	all := make([]*client, clients)
	for i := range all {
		all[i] = &client{host: h, name: fmt.Sprintf("client-%d", i), rng: rand.New(rand.NewPCG(uint64(i), 15)), points: map[string][]string{}}
		h.run("", "cove", "create", all[i].name, "--idle", "0")
		all[i].states = []string{""}
	}
	for range n {
		var working sync.WaitGroup
		for _, c := range all {
			working.Go(func() {
				for range 3 {
					c.step(t.Context())
				}
			})
		}
		if rng.IntN(2) == 0 {
			await(t, "a moment", time.Minute, func() bool { return rng.IntN(20) == 0 })
			server := h.pid()
			victim := []string{"server", "shim", "sandbox"}[rng.IntN(3)]
			pids := faultCase{victim: victim}.victims(h, server)
			if victim != "server" && len(pids) > 0 {
				pids = pids[rng.IntN(len(pids)):][:1]
			}
			for _, pid := range pids {
				_ = syscall.Kill(pid, syscall.SIGKILL) // it may have ended
			}
			if victim == "server" {
				await(t, "the server's end", time.Minute, func() bool { return syscall.Kill(server, 0) != nil })
			}
		}
		working.Wait()
		h.run("", "cove", "server", "start") // unless one runs
		for _, c := range all {
			c.check(t.Context())
		}
		if t.Failed() {
			t.FailNow()
		}
	}
	for _, c := range all {
		t.Logf("%s: %d done, %v failed", c.name, c.done, c.failed)
	}
}

// client is one of several clients of a server, and what its sprite may hold: one of states.
type client struct {
	*host
	name   string
	rng    *rand.Rand
	states []string
	points map[string][]string // of checkpoints, by id
	next   int
	done   int
	failed map[int]int // by exit code
}

// call runs a command line, and reports whether it was done.
func (c *client) call(ctx context.Context, args ...string) (string, bool) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(c.bin, "cove"), args...)
	cmd.Env = c.environ()
	var out, said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &said
	if err := cmd.Run(); err == nil {
		c.done++
		return out.String(), true
	}
	code := cmd.ProcessState.ExitCode()
	if c.failed == nil {
		c.failed = map[int]int{}
	}
	c.failed[code]++
	if code < 0 || strings.Contains(said.String(), "internal error") || strings.Contains(said.String(), "panic") {
		c.t.Errorf("%s: exit code %d: %s", strings.Join(args, " "), code, said.String())
	}
	return "", false
}

// shell runs a script in the sprite.
func (c *client) shell(ctx context.Context, script string) (string, bool) {
	return c.call(ctx, "exec", "-s", c.name, "--", "sh", "-ec", script)
}

// step does one thing at random.
func (c *client) step(ctx context.Context) {
	switch c.rng.IntN(10) {
	default:
		c.next++
		line := strconv.Itoa(c.next) + "\n"
		_, ok := c.shell(ctx, "echo "+strings.TrimSpace(line)+" >>~/lines")
		after := make([]string, 0, 2*len(c.states))
		for _, s := range c.states {
			if !ok {
				after = append(after, s)
			}
			after = append(after, s+line)
		}
		c.states = after
	case 0:
		if out, ok := c.call(ctx, "checkpoint", "create", "-s", c.name, "--json"); ok {
			c.points[jsonField(c.t, out, "id")] = slices.Clone(c.states)
		}
	case 1:
		ids := slices.Sorted(func(yield func(string) bool) {
			for id := range c.points {
				if !yield(id) {
					return
				}
			}
		})
		if len(ids) == 0 {
			return
		}
		id := ids[c.rng.IntN(len(ids))]
		if _, ok := c.call(ctx, "restore", id, "-s", c.name); ok {
			c.states = slices.Clone(c.points[id])
		} else {
			c.states = append(c.states, c.points[id]...)
		}
	case 2:
		_, _ = c.call(ctx, "suspend", c.name)
	case 3:
		copied := c.name + "-copy"
		if _, ok := c.call(ctx, "fork", c.name, copied); ok {
			if got, ok := c.call(ctx, "exec", "-s", copied, "--", "sh", "-c", "cat ~/lines || true"); ok && !slices.Contains(c.states, got) {
				c.t.Errorf("a fork of %s has %q, and it may have %q", c.name, got, c.states)
			}
		}
		_, _ = c.call(ctx, "rm", "--force", copied) // it may not be there
	case 4:
		_, _ = c.call(ctx, "policy", "allow", fmt.Sprintf("host-%d.example.org", c.rng.IntN(9)), "-s", c.name)
	}
}

// check reads what the sprite holds.
func (c *client) check(ctx context.Context) {
	var got string
	var ok bool
	for range 30 { // a sandbox that was killed is found to be, and boots anew
		if got, ok = c.shell(ctx, "cat ~/lines || true"); ok {
			break
		}
	}
	if !ok {
		c.t.Errorf("%s can't be read", c.name)
		return
	}
	if !slices.Contains(c.states, got) {
		c.t.Errorf("%s has %q, and may have %q", c.name, got, c.states)
	}
	c.states = []string{got}
}

// TestSoakFullDisk fills the disk under a program that writes and a server that is killed:
// the server starts on the full disk, each line of which the write returned is there when
// there is room again, and the sprite goes on.
func TestSoakFullDisk(t *testing.T) {
	if !soak() { // a minute of make test's fifteen; TestSoakSQLite is there
		return
	}
	h := newSmallHost(t, "160m")
	h.serve(nil, "--idle", "0")
	tr := newTrial(h, "full", 16)
	fill := filepath.Join(h.data, "fill")
	next := 0
	for round := range rounds(2) {
		w := tr.work(lines, strconv.Itoa(next))
		await(t, "some lines", time.Minute, func() bool { return w.hasEnded() || len(w.lines()) > 5 })
		fillUp(t, fill)
		n := len(w.lines())
		await(t, "the end of the room", time.Minute, func() bool { // it may be paused first, for the reserve of the disk
			return w.hasEnded() || len(w.lines()) > n+200 || tr.rng.IntN(300) == 0
		})
		victims := trialVictims[tr.rng.IntN(len(trialVictims))]
		tr.kill(victims)
		if err := os.Remove(fill); err != nil {
			t.Fatal(err)
		}
		tr.afterwards(w, -1, &next, fmt.Sprintf("round %d, a kill of %s", round, victims))
	}
	t.Logf("%d lines", next)
}

// lines writes numbered lines to the disk and says so.
const lines = `
n = int(sys.argv[1])
fd = os.open('lines', os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o644)
while True:
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

// fillUp writes a file until its disk is full.
func fillUp(t testing.TB, name string) {
	t.Helper()
	f, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	block := make([]byte, 64<<10)
	for ; len(block) > 0; block = block[:len(block)/2] {
		for err = nil; err == nil; _, err = f.Write(block) {
		}
	}
}

// afterwards looks at what the program lines has left, of which none of its first told lines
// may be missing (-1: none that it printed), and sets next to the number to go on with.
func (tr *trial) afterwards(w *worker, told int, next *int, what string) {
	tr.t.Helper()
	await(tr.t, "the sprite after "+what, time.Minute, func() bool {
		_, code := tr.try("", "cove", "exec", "-s", tr.sprite, "true")
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
		told = len(w.lines())
	}
	if err != nil || kept < *next+told {
		tr.t.Fatalf("%s: %d lines were acknowledged, and there are %s; the program said:\n%.2000s", what, *next+told, out, w.said.String())
	}
	*next = kept
}

// TestSoakFaultyDisk has the disk fail and become read-only, as ext4 does at an error, under
// a program that writes: once it is mended and mounted again, each line of which fsync
// returned is there.
func TestSoakFaultyDisk(t *testing.T) {
	if !soak() { // a minute of make test's fifteen; TestSoakSQLite is there
		return
	}
	if os.Geteuid() != 0 {
		unable(t, "only root can mount a disk")
	}
	h := newHost(t)
	d := newFaultyDisk(t, h)
	h.serve(nil, "--idle", "0", "--disk-reserve", "0")
	tr := newTrial(h, "faulty", 17)
	next := 0
	for round := range rounds(1) {
		w := tr.work(lines, strconv.Itoa(next))
		until := 1 + tr.rng.IntN(20)
		await(t, "some lines", time.Minute, func() bool { return w.hasEnded() || len(w.lines()) >= until })
		if tr.rng.IntN(3) == 0 {
			tr.run("", "cove", "checkpoint", "create", "-s", tr.sprite)
		}
		told := len(w.lines()) // what a disk says while it fails is its own affair
		d.fail(t)
		await(t, "a write that fails", time.Minute, func() bool {
			out, code := tr.try("", "cove", "checkpoint", "create", "-s", tr.sprite)
			if code == 0 {
				t.Errorf("a checkpoint on a disk that has failed: %s", out)
			}
			return true
		})
		server := h.pid()
		for _, victim := range []string{"server", "shim", "sandbox"} {
			for _, pid := range (faultCase{victim: victim}).victims(h, server) {
				_ = syscall.Kill(pid, syscall.SIGKILL) // it may have ended
			}
		}
		await(t, "the server's end", time.Minute, func() bool { return syscall.Kill(server, 0) != nil })
		d.mend(t)
		h.run("", "cove", "server", "start")
		tr.afterwards(w, told, &next, fmt.Sprintf("round %d", round))
	}
	t.Logf("%d lines", next)
}

// faultyDisk is an ext4 of a test's own, on which the data folder lies.
type faultyDisk struct{ image, at string }

func newFaultyDisk(t *testing.T, h *host) *faultyDisk {
	t.Helper()
	d := &faultyDisk{image: filepath.Join(filepath.Dir(h.home), "disk.img"), at: h.data}
	h.write("disk.img", "")
	if err := os.Truncate(d.image, 512<<20); err != nil {
		t.Fatal(err)
	}
	d.do(t, "mkfs.ext4", "-q", "-F", d.image)
	d.mount(t)
	t.Cleanup(func() {
		if err := endServer(h.bin, h.data, h.home); err != nil {
			t.Errorf("end the server: %v", err)
		}
		d.unmount(t)
	})
	return d
}

func (d *faultyDisk) do(t *testing.T, name string, args ...string) {
	t.Helper()
	if out, err := exec.Command(requireProgram(t, name), args...).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v: %s", name, err, out)
	}
}

func (d *faultyDisk) mount(t *testing.T) {
	t.Helper()
	d.do(t, "mount", "-o", "loop,errors=remount-ro", d.image, d.at)
}

func (d *faultyDisk) unmount(t *testing.T) {
	t.Helper()
	await(t, "the disk's end", time.Minute, func() bool { return syscall.Unmount(d.at, 0) == nil })
	await(t, "the end of all that had it mounted", time.Minute, func() bool {
		devices, err := exec.Command("losetup", "-j", d.image).Output()
		return err == nil && len(devices) == 0
	})
}

// fail has ext4 find an error, as of the disk.
func (d *faultyDisk) fail(t *testing.T) {
	t.Helper()
	device, err := exec.Command("findmnt", "-n", "-o", "SOURCE", d.at).Output()
	if err != nil {
		t.Fatal(err)
	}
	trigger := filepath.Join("/sys/fs/ext4", filepath.Base(strings.TrimSpace(string(device))), "trigger_fs_error")
	if err := os.WriteFile(trigger, []byte("a test"), 0); err != nil {
		t.Fatal(err)
	}
}

// mend mounts the disk anew, checked.
func (d *faultyDisk) mend(t *testing.T) {
	t.Helper()
	d.unmount(t)
	out, err := exec.Command(requireProgram(t, "e2fsck"), "-fy", d.image).CombinedOutput()
	if exit, ok := err.(*exec.ExitError); err != nil && (!ok || exit.ExitCode() > 1) { // 1: it has mended something
		t.Fatalf("e2fsck: %v: %s", err, out)
	}
	d.mount(t)
	if _, err := os.Stat(filepath.Join(d.at, "cove.db")); err != nil {
		t.Fatal(err)
	}
}
