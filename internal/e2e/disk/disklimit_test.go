package disk

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/test/e2e"
	"github.com/cove-dev/cove/sprites"
)

// fillers are programs that take more of the disk than 64 MiB, each in its own way, and
// print "filled" at their end.
var fillers = []struct{ name, program string }{
	{"one large file", `
f = open('big', 'wb', buffering=0)
for _ in range(900): f.write(bytes(1 << 20))`},
	{"30,000 small files", `
import os
for i in range(30000):
    if i % 1000 == 0: os.mkdir('d%d' % (i // 1000))
    fd = os.open('d%d/%d' % (i // 1000, i), os.O_CREAT | os.O_WRONLY)
    os.write(fd, b'small'); os.close(fd)`},
	{"fallocate", `
import os
fd = os.open('big', os.O_CREAT | os.O_RDWR)
for i in range(600): os.posix_fallocate(fd, i << 20, 1 << 20)`},
	{"a map of a file", `
import mmap
f = open('big', 'w+b'); f.truncate(600 << 20)
m = mmap.mmap(f.fileno(), 600 << 20)
for i in range(0, 600 << 20, 4096): m[i] = 1`},
	{"a file without a name", `
import os
f = open('big', 'w+b', buffering=0); os.unlink('big')
for _ in range(1500): f.write(bytes(1 << 20))`},
	{"a file that grows where another shrinks", `
f, g = open('big', 'wb', buffering=0), open('/home/sprite/other', 'wb', buffering=0)
for i in range(600):
    g.write(bytes(1 << 20)); f.write(bytes(1 << 20)); g.truncate(0); g.seek(0)`},
}

const limitMB = 64

// limited is a host with a small disk, and a sprite (the neighbour) that keeps writing,
// whatever happens to the others.
type limited struct {
	*e2e.Host
	written  *atomic.Int64 // lines that the neighbour has written
	refusals *atomic.Int64 // lines for which it found no room
	full     bool          // the test leaves it no room
}

func newLimited(t *testing.T) *limited { return newLimitedOf(t, "3g") }

// newLimitedOf is newLimited with a disk of that size, and more flags of the server.
func newLimitedOf(t *testing.T, size string, flags ...string) *limited {
	l := &limited{Host: e2e.NewSmallHost(t, size), written: new(atomic.Int64), refusals: new(atomic.Int64)}
	l.Serve(nil, append([]string{"--idle", "0"}, flags...)...)
	l.Run("", "cove", "create", "neighbour")
	ctx, cancel := context.WithCancel(t.Context())
	cmd := l.Client().Sprite("neighbour").CommandContext(ctx, "python3", "-uc", `
import os, time
f = open('log', 'ab', buffering=0)
while True:
    try: f.write(b'line\n'); os.fsync(f.fileno()); print('w')
    except OSError: print('no room')
    time.sleep(0.1)`)
	cmd.Stdout = tally{l}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cancel()
		_ = cmd.Wait() // killed
		if n := l.refusals.Load(); n > 0 && !l.full {
			t.Errorf("the neighbour found no room for %d lines", n)
		}
	})
	return l
}

// tally counts what the neighbour says.
type tally struct{ *limited }

func (c tally) Write(p []byte) (int, error) {
	c.written.Add(int64(bytes.Count(p, []byte("w"))))
	c.refusals.Add(int64(bytes.Count(p, []byte("no room"))))
	return len(p), nil
}

// writes waits until the neighbour has written more.
func (l *limited) writes(t *testing.T) {
	t.Helper()
	before := l.written.Load()
	e2e.Await(t, "the neighbour writes on", func() bool { return l.written.Load() > before+2 })
}

// fill starts a filler in a new sprite, and waits until the sprite is held.
func (l *limited) fill(t *testing.T, sprite, program string) *sprites.Cmd {
	t.Helper()
	l.Run("", "cove", "create", sprite, "--disk", fmt.Sprint(limitMB, "M"))
	cmd := l.Client().Sprite(sprite).Command("python3", "-c", program+"\nprint('filled')")
	cmd.Stdout, cmd.MaxRunAfterDisconnect = &strings.Builder{}, new(time.Duration(0)) // for ever, for a server that dies
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	e2e.Await(t, "the sprite is held", func() bool {
		held := l.Info(sprite).Cove
		return held.Held != nil && held.Paused
	})
	return cmd
}

// filled returns how much the first filler has written. It does not count layers of those names.
func (l *limited) filled(t *testing.T, but ...string) (size int64) {
	t.Helper()
	for _, layer := range l.layers(t) {
		st, err := os.Stat(filepath.Join(l.Data, "layers", layer, "root/upper/home/sprite/big"))
		if errors.Is(err, os.ErrNotExist) || slices.Contains(but, layer) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		size = max(size, st.Size())
	}
	if size == 0 {
		t.Fatal("nothing is written")
	}
	return size
}

// layers returns the names of all layers.
func (l *limited) layers(t *testing.T) (names []string) {
	t.Helper()
	all, err := os.ReadDir(filepath.Join(l.Data, "layers"))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range all {
		names = append(names, e.Name())
	}
	return names
}

// refused checks that a sprite is held, and that calls say why.
func (l *limited) refused(t *testing.T, sprite string) {
	t.Helper()
	out, code := l.Try("", "cove", "exec", "-s", sprite, "true")
	if code != 6 || !strings.Contains(out, "has reached its disk limit") || !strings.Contains(out, "cove update "+sprite+" --disk ") {
		t.Errorf("a command in %s: %d, %s", sprite, code, out)
	}
	err := l.Client().Sprite(sprite).Command("true").Run()
	if e, ok := errors.AsType[*sprites.Error](err); !ok || e.Code != "disk_limit" || e.StatusCode != 507 {
		t.Errorf("got %v, want a disk_limit of 507", err)
	}
}

// TestDiskLimit has sprites fill what they may take of the disk, in several ways. Each is
// paused at its limit while its neighbour writes on. When the limit is raised, the same
// process finishes. Holes in files do not count.
func TestDiskLimit(t *testing.T) {
	l := newLimited(t)
	ways := fillers
	if !e2e.Soak() {
		ways = ways[:2]
	}
	for i, way := range ways {
		t.Run(way.name, func(t *testing.T) {
			sprite := fmt.Sprint("full-", i)
			cmd := l.fill(t, sprite, way.program)
			before := l.Info(sprite).Cove.Held.UsedBytes
			l.writes(t)
			l.refused(t, sprite)
			held := l.Info(sprite).Cove.Held
			t.Logf("%.1f MiB beyond a limit of %d", float64(held.UsedBytes-limitMB<<20)/(1<<20), limitMB)
			if held.UsedBytes < limitMB<<20 || held.LimitBytes != limitMB<<20 {
				t.Errorf("got %+v", held)
			}
			e2e.Await(t, "it is looked at when it stands still", func() bool { before, held = held.UsedBytes, l.Info(sprite).Cove.Held; return before == held.UsedBytes })
			if out := l.Run("", "cove", "list"); !strings.Contains(out, "paused (held)") {
				t.Errorf("the list says\n%s", out)
			}
			l.Run("", "cove", "update", sprite, "--disk", "2G")
			if err := cmd.Wait(); err != nil || fmt.Sprint(cmd.Stdout) != "filled\n" {
				t.Errorf("it ended with %v, %v", err, cmd.Stdout)
			}
			l.Run("", "cove", "rm", sprite)
		})
	}
	t.Run("holes", func(t *testing.T) {
		l.Run("", "cove", "create", "holes", "--disk", fmt.Sprint(limitMB, "M"))
		l.Run("", "cove", "exec", "-s", "holes", "--", "python3", "-c", "f = open('sparse', 'wb'); f.seek(10 << 30); f.write(b'end')")
		l.writes(t)
		if i := l.Info("holes"); i.Cove.Held != nil || i.Cove.DiskUsed == 0 || i.Cove.DiskUsed > 16<<20 {
			t.Errorf("a file of a hole takes %d bytes, %+v", i.Cove.DiskUsed, i.Cove.Held)
		}
	})
}

// TestDiskLimitMeanwhile: a sprite that has reached its limit can be forked, exported and
// suspended like a sleeping one, but gets no checkpoint. Its limit is changed several
// times, and the sprite goes on.
func TestDiskLimitMeanwhile(t *testing.T) {
	l := newLimited(t)
	// It writes slowly: each of the steps below copies what it has written beyond its limit. It
	// ends when told.
	cmd := l.fill(t, "full", `
import os, time
f = open('big', 'wb', buffering=0)
for _ in range(299): f.write(bytes(1 << 20)); time.sleep(0.01)
while not os.path.exists('last'): time.sleep(0.1)
f.write(bytes(1 << 20))`)
	size := l.filled(t)
	// A checkpoint would keep the copies that are made for it.
	if out, code := l.Try("", "cove", "checkpoint", "create", "-s", "full"); code == 0 || !strings.Contains(out, "has reached its disk limit") {
		t.Errorf("a checkpoint beyond the limit: %d, %s", code, out)
	}
	if out := l.Run("", "cove", "fork", "full", "copy"); !strings.Contains(out, "copy") || l.Info("copy").Status != sprites.StatusWarm {
		t.Errorf("the fork is %s; it says %s", l.Info("copy").Status, out)
	}
	l.refused(t, "copy") // the fork has the same disk
	l.Run("", "sh", "-c", "cove export full >full.tar.zst")
	l.refused(t, "full")
	if now := l.filled(t); !l.Info("full").Cove.Paused || size == 300<<20 || size != now {
		t.Errorf("a fork or an export has it run on: it has written %d bytes, and then %d", size, now)
	}
	if log, err := os.ReadFile(filepath.Join(l.Data, "serve.log")); err != nil || strings.Contains(string(log), "level=ERROR") {
		t.Errorf("a refusal is an error of the server's: %v\n%s", err, log)
	}
	l.Run("", "cove", "rm", "copy")

	// The limit is lowered, removed and set again: each time the server decides anew.
	l.Run("", "cove", "update", "full", "--disk", "32M")
	l.refused(t, "full")
	l.Run("", "cove", "update", "full", "--disk", "0")
	l.Run("", "cove", "exec", "-s", "full", "touch", "last")
	if err := cmd.Wait(); err != nil || fmt.Sprint(cmd.Stdout) != "filled\n" {
		t.Errorf("it ended with %v, %v", err, cmd.Stdout)
	}
	l.Run("", "cove", "update", "full", "--disk", "200M")
	e2e.Await(t, "it is held at a lower limit", func() bool { return l.Info("full").Cove.Held != nil })
	l.Run("", "cove", "suspend", "full")
	l.refused(t, "full")
	if status := l.Info("full").Status; status != sprites.StatusWarm {
		t.Errorf("suspended, it is %s", status)
	}
	l.Run("", "cove", "update", "full", "--disk", "2500M")
	l.Run("", "cove", "checkpoint", "create", "-s", "full")
	l.Run("", "cove", "exec", "-s", "full", "--", "rm", "big")

	// Files that only a checkpoint has count too. Removing the checkpoint gives their
	// room back.
	l.Run("", "cove", "checkpoint", "create", "-s", "full")
	l.Run("", "cove", "update", "full", "--disk", "40M")
	l.refused(t, "full")
	l.Run("", "cove", "checkpoint", "rm", "-s", "full", "v1")
	l.Run("", "cove", "rm", "full")
}

// TestDiskLimitLeft leaves a command of a held sprite with one Ctrl-C, and follows the
// log of its service. Then it restores the sprite to a state below its limit, and to one
// above.
func TestDiskLimitLeft(t *testing.T) {
	l := newLimited(t)
	l.Run("", "cove", "create", "back", "--disk", fmt.Sprint(limitMB, "M"))
	l.Run("", "cove", "service", "put", "-s", "back", "tick", "--", "sh", "-c", "while :; do date; sleep 0.1; done")
	l.Run("", "cove", "checkpoint", "create", "-s", "back")
	logs := l.following(t, "cove", "service", "logs", "-f", "tick", "-s", "back")
	var said e2e.Acks
	cmd := l.Command("", "cove", "exec", "-s", "back", "--", "sh", "-c", "while :; do head -c 1M /dev/zero >>big; sleep 0.01; done")
	cmd.Stderr = &said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	const full, on = "has reached its disk limit", "the sprite goes on"
	e2e.Await(t, "the log that is followed says why it is quiet", func() bool { return strings.Contains(logs(), full) })
	// Before that, Ctrl-C would be for the command, which stands still.
	e2e.Await(t, "the command line says so too", func() bool { return strings.Contains(said.String(), full) })
	began := time.Now()
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if code := e2e.ExitCode(cmd.Wait()); code != 130 || !strings.Contains(said.String(), full) || !strings.Contains(said.String(), "will be killed when it resumes (within 1m10s") {
		t.Errorf("a command that is left ends with %d\n%s", code, said.String())
	}
	t.Logf("left in %v", time.Since(began))
	l.Run("", "cove", "update", "back", "--disk", "1500M")
	e2e.Await(t, "the log goes on", func() bool { return strings.Contains(logs(), on) })
	e2e.Await(t, "the command has ended", func() bool {
		sessions, err := l.Client().Sprite("back").Sessions(t.Context())
		return err == nil && len(sessions) == 0
	})
	if text := logs(); strings.Count(text, full) != 1 || strings.Count(text, on) != 1 {
		t.Errorf("the log said\n%s", text)
	}

	l.Run("", "cove", "checkpoint", "create", "-s", "back")
	l.Run("", "cove", "update", "back", "--disk", "40M")
	l.refused(t, "back")
	out, code := l.Try("", "cove", "restore", "v2", "-s", "back") // v2 is above the limit
	if code == 0 || !strings.Contains(out, "is back at v2, but the sprite does not start") || !strings.Contains(out, "cove checkpoint rm -s back pre-restore-") {
		t.Errorf("restore to v2: %d, %s", code, out)
	}
	if i := l.Info("back"); i.Cove.Held == nil || i.Status != sprites.StatusCold {
		t.Errorf("restored to v2 it is %s, %+v", i.Status, i.Cove.Held)
	}
	l.Run("", "cove", "restore", "v1", "-s", "back")
	l.refused(t, "back")
	// The disk is back at v1. Only the checkpoints are above the limit.
	list, err := l.Client().Sprite("back").Checkpoints(t.Context(), true)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range list {
		if c.ID != "Current" && c.ID != "v1" {
			l.Run("", "cove", "checkpoint", "rm", "-s", "back", c.ID)
		}
	}
	l.Run("", "cove", "exec", "-s", "back", "--", "sh", "-c", "! test -e big")
	if held := l.Info("back").Cove.Held; held != nil {
		t.Errorf("below its limit it is held: %+v", held)
	}
}

// untilGo follows a filler that would else end before it is paused.
const untilGo = `
import os, time
while not os.path.exists(os.path.expanduser('~/go')): time.sleep(0.05)`

// TestDiskLimitWaits has a command wait at its sprite's limit while the server is killed.
// The waiting caller gets the command's end once the sprite goes on. Until then, session
// list says that sessions can't be listed.
func TestDiskLimitWaits(t *testing.T) {
	l := newLimited(t)
	l.Run("", "cove", "create", "slow", "--disk", fmt.Sprint(limitMB, "M"))
	said := l.following(t, "env", "COVE_AUTOSTART=0", "cove", "exec", "-s", "slow", "--", "python3", "-c", fillers[0].program+untilGo+"\nprint('filled')")
	const full = "has reached its disk limit"
	e2e.Await(t, "the sprite is held", func() bool { return strings.Contains(said(), full) })
	if out, _ := l.Try("", "cove", "session", "list", "-s", "slow"); !strings.Contains(out, "sprite slow "+full) || !strings.Contains(out, "can't be listed until it resumes") {
		t.Errorf("cove session list: %s", out)
	}
	e2e.SignalAll(t, syscall.SIGKILL, l.PID())
	l.Serve(nil, "--idle", "0")
	l.refused(t, "slow")
	l.Run("", "cove", "update", "slow", "--disk", "2500M")
	l.Sh("slow", "touch ~/go")
	e2e.Await(t, "the command's end", func() bool { return strings.HasSuffix(said(), "filled\n") })
	if text := said(); strings.Count(text, "filled") != 1 || strings.Count(text, "cove: the sprite goes on") != 1 {
		t.Errorf("it said\n%s", text)
	}
	l.Run("", "cove", "suspend", "slow")
	if out, _ := l.Try("", "cove", "session", "list", "-s", "slow"); !strings.Contains(out, "sprite slow sleeps: ") || !strings.Contains(out, "cove wake slow") {
		t.Errorf("cove session list of one that sleeps: %s", out)
	}
}

// TestDiskLimitOfDead kills the server beside a sprite that has reached its limit, and
// beside one that is about to: the next server decides anew.
func TestDiskLimitOfDead(t *testing.T) {
	l := newLimited(t)
	l.fill(t, "full", fillers[0].program)
	l.Run("", "cove", "create", "soon", "--disk", "64M")
	l.Run("", "cove", "exec", "-s", "soon", "--detach", "--", "sh", "-c", "while ! test -e go; do sleep 0.1; done; dd if=/dev/zero of=big bs=1M count=200 && touch done")
	l.Run("", "cove", "exec", "-s", "soon", "--detach", "touch", "go") // the sprite may be held before the command ends
	e2e.SignalAll(t, syscall.SIGKILL, l.PID())
	l.Serve(nil, "--idle", "0")
	l.refused(t, "full")
	e2e.Await(t, "the other one is held", func() bool { i := l.Info("soon").Cove; return i.Held != nil && i.Paused })
	for _, name := range []string{"full", "soon"} {
		l.Run("", "cove", "update", name, "--disk", "1G")
	}
	e2e.Await(t, "both have finished", func() bool {
		out, _ := l.Try("", "cove", "exec", "-s", "soon", "ls")
		big, _ := l.Try("", "cove", "exec", "-s", "full", "stat", "-c", "%s", "big")
		return strings.Contains(out, "done") && strings.TrimSpace(big) == fmt.Sprint(900<<20)
	})
}

// following starts a command that follows a log. said returns what it has printed so far
// on both streams.
func (l *limited) following(t *testing.T, name string, args ...string) (said func() string) {
	t.Helper()
	out, err := os.Create(filepath.Join(t.TempDir(), "said"))
	if err != nil {
		t.Fatal(err)
	}
	cmd := l.Command("", name, args...)
	cmd.Stdout, cmd.Stderr = out, out
	if err := errors.Join(cmd.Start(), out.Close()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }) // killed, or has ended
	return func() string {
		text, err := os.ReadFile(out.Name())
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
}

// fillingPlan commits a file, writes 5 MiB %d times, and ends when told.
const fillingPlan = "## One\n```sh\ndate +%%s%%N > first.txt && git add . && git commit -qm first\nfor i in $(seq %d); do head -c 5M /dev/zero >>~/big; sleep 0.02; done\nuntil test -e ~/last; do sleep 0.1; done\necho done > one.txt\n```\n"

// job describes a job.
func (l *limited) job(t *testing.T, id string) (j cove.Job) {
	t.Helper()
	if err := json.Unmarshal([]byte(l.Run("", "cove", "job", "show", id, "--json")), &j); err != nil {
		t.Fatal(err)
	}
	return j
}

// TestDiskLimitOfJob holds a job with its sprite. The job says so, also where its log is
// followed. It goes on when the limit is raised, or is stopped, and its work can be
// pulled.
func TestDiskLimitOfJob(t *testing.T) {
	l := newLimited(t)
	repo := l.Repository("repo", map[string]string{"plan.md": fmt.Sprintf(fillingPlan, 60)})
	pushed := func() (job, sprite string) {
		job, sprite = l.Push(repo, "plan.md", "--agent", "shell", "--disk", "100M")
		e2e.Await(t, "the job is held", func() bool {
			j, held := l.job(t, job), l.Info(sprite).Cove
			if j.State.Terminal() {
				t.Fatalf("the job is not held, but %s: %s\n%s", j.State, j.Error, l.Run("", "cove", "job", "logs", job))
			}
			return j.Held != nil && held.Paused
		})
		return job, sprite
	}
	job, sprite := pushed()
	said := l.following(t, "cove", "job", "logs", "-f", job)
	if out := l.Run("", "cove", "job", "list"); !strings.Contains(out, "running (held)") {
		t.Errorf("the list says\n%s", out)
	}
	update := "cove update " + sprite + " --disk "
	if out := l.Run("", "cove", "job", "show", job); !strings.Contains(out, update) {
		t.Errorf("it says\n%s", out)
	}
	e2e.LongEnough(t, 4*time.Second, func(limit time.Duration) bool {
		out, code := l.Try(repo, "cove", "pull", job, "--wait="+limit.String())
		if said := strings.Count(out, "has reached its disk limit"); said < 2 && limit < e2e.LastResort/2 {
			return false // it says so while it waits, and at the end
		} else if code != 124 || said != 2 || strings.Count(out, update) != 2 || strings.Contains(out, "it goes on; wait") {
			t.Errorf("pull --wait: got %d, %s", code, out)
		}
		return true
	})
	if out, code := l.Try(repo, "cove", "pull", job); code != 1 || !strings.Contains(out, "has reached its disk limit") || !strings.Contains(out, update) {
		t.Errorf("pull: %d, %s", code, out)
	}
	e2e.Await(t, "the log that is followed says why it is quiet", func() bool { return strings.Contains(said(), update) })
	l.Run("", "cove", "update", sprite, "--disk", "1G")
	e2e.Await(t, "the log that is followed says that the sprite goes on", func() bool { return strings.Contains(said(), "the sprite goes on") })
	l.Run("", "cove", "exec", "-s", sprite, "touch", "last")
	if out, code := l.Try(repo, "cove", "pull", job, "--wait=10m"); code != 0 {
		t.Errorf("pull: %d, %s", code, out)
	}
	if j := l.job(t, job); j.Held != nil || j.State != cove.JobSucceeded {
		t.Errorf("got %s, %+v", j.State, j.Held)
	}
	if got := l.Run(repo, "git", "show", "HEAD:one.txt"); got != "done\n" {
		t.Errorf("one.txt: got %q", got)
	}
	e2e.Await(t, "the log has its end", func() bool { return strings.Contains(said(), "== success") })
	if text := said(); strings.Count(text, "has reached its disk limit") != 1 || strings.Count(text, "the sprite goes on") != 1 {
		t.Errorf("the log said\n%s", text)
	}

	first := l.layers(t)
	job, sprite = pushed()
	update = "cove update " + sprite + " --disk "
	size := l.filled(t, first...)
	out, code := l.Try("", "cove", "job", "stop", job)
	if code != 0 || !strings.Contains(out, "Nothing of the job runs") || !strings.Contains(out, update) {
		t.Errorf("stop: %d, %s", code, out)
	}
	if j, status := l.job(t, job), l.Info(sprite).Status; !j.Stopping || j.State.Terminal() || status != sprites.StatusCold || size != l.filled(t, first...) {
		t.Errorf("stopped, it is %s, stopping: %v, in a sprite that is %s; it had written %d bytes, and then %d", j.State, j.Stopping, status, size, l.filled(t, first...))
	}
	if out := l.Run("", "cove", "job", "list"); !strings.Contains(out, "stopping (held)") {
		t.Errorf("the list says\n%s", out)
	}
	for _, args := range [][]string{{"pull", job}, {"job", "rm", job}} {
		if out, code := l.Try(repo, "cove", args...); code != 1 || !strings.Contains(out, update) {
			t.Errorf("%v: %d, %s", args, code, out)
		}
	}
	if out, code := l.Try("", "cove", "job", "stop", job); code != 0 || !strings.Contains(out, update) {
		t.Errorf("stop again: %d, %s", code, out)
	}
	l.Run("", "cove", "update", sprite, "--disk", "1G")
	if out, code := l.Try(repo, "cove", "pull", job, "--wait=10m"); code != 4 || !strings.Contains(out, "first.txt") {
		t.Errorf("pull: %d, %s", code, out)
	}
	if j := l.job(t, job); j.Held != nil || j.Stopping || j.State != cove.JobCancelled || j.Commits == 0 {
		t.Errorf("got %s, %d commits, stopping: %v, %+v", j.State, j.Commits, j.Stopping, j.Held)
	}
	if now := l.filled(t, first...); size != now {
		t.Errorf("it has written on: %d bytes, and then %d", size, now)
	}

	if e2e.Soak() {
		job, _ = pushed()
		l.Run("", "cove", "job", "rm", "--force", job)
	}
}
