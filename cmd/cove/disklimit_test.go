package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cove-dev/cove/sprites"
)

// fillers are programs that take more of the disk than 64 MiB, each in its own way, and
// print "filled" at their end.
var fillers = []struct{ name, program string }{
	{"one large file", `
f = open('big', 'wb', buffering=0)
for _ in range(900): f.write(bytes(1 << 20))`},
	{"fallocate", `
import os
fd = os.open('big', os.O_CREAT | os.O_RDWR)
for i in range(600): os.posix_fallocate(fd, i << 20, 1 << 20)`},
	{"100,000 small files", `
import os
for i in range(100000):
    if i % 1000 == 0: os.mkdir('d%d' % (i // 1000))
    fd = os.open('d%d/%d' % (i // 1000, i), os.O_CREAT | os.O_WRONLY)
    os.write(fd, b'small'); os.close(fd)`},
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

// limited is a host with a small disk, and a sprite that goes on writing whatever
// becomes of the others.
type limited struct {
	*host
	written *atomic.Int64 // lines that the neighbour has said
}

func newLimited(t *testing.T) *limited { return newLimitedOf(t, "3g") }

// newLimitedOf is newLimited with a disk of that size, and more flags of the server.
func newLimitedOf(t *testing.T, size string, flags ...string) *limited {
	l := &limited{host: newSmallHost(t, size), written: new(atomic.Int64)}
	l.serve(nil, append([]string{"--idle", "0"}, flags...)...)
	l.run("", "cove", "create", "neighbour")
	ctx, cancel := context.WithCancel(t.Context())
	cmd := l.client().Sprite("neighbour").CommandContext(ctx, "python3", "-uc", `
import os, time
f = open('log', 'ab', buffering=0)
while True:
    f.write(b'line\n'); os.fsync(f.fileno()); print('x'); time.sleep(0.05)`)
	cmd.Stdout = tally{l.written}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cancel(); _ = cmd.Wait() }) // killed
	return l
}

type tally struct{ n *atomic.Int64 }

func (c tally) Write(p []byte) (int, error) { c.n.Add(int64(len(p))); return len(p), nil }

// writes waits until the neighbour has written more.
func (l *limited) writes(t *testing.T) {
	t.Helper()
	before := l.written.Load()
	await(t, "the neighbour writes on", 20*time.Second, func() bool { return l.written.Load() > before+4 })
}

// fill starts a filler in a new sprite, and waits until that is held.
func (l *limited) fill(t *testing.T, sprite, program string) *sprites.Cmd {
	t.Helper()
	l.run("", "cove", "create", sprite, "--disk", fmt.Sprint(limitMB, "M"))
	cmd := l.client().Sprite(sprite).Command("python3", "-c", program+"\nprint('filled')")
	cmd.Stdout = &strings.Builder{}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	await(t, "the sprite is held", time.Minute, func() bool {
		held := l.info(sprite).Cove
		return held.Held != nil && held.Paused
	})
	return cmd
}

// filled is how much the first filler has written.
func (l *limited) filled(t *testing.T) (size int64) {
	t.Helper()
	all, _ := filepath.Glob(filepath.Join(l.data, "layers/*/root/upper/home/sprite/big")) // the pattern is right
	for _, name := range all {
		st, err := os.Stat(name)
		if err != nil {
			t.Fatal(err)
		}
		size = max(size, st.Size())
	}
	return size
}

// refused looks whether a sprite says why it does nothing.
func (l *limited) refused(t *testing.T, sprite string) {
	t.Helper()
	out, code := l.try("", "cove", "exec", "-s", sprite, "true")
	if code != 125 || !strings.Contains(out, "has reached its disk limit") || !strings.Contains(out, "cove update "+sprite+" --disk ") {
		t.Errorf("a command in %s: %d, %s", sprite, code, out)
	}
	err := l.client().Sprite(sprite).Command("true").Run()
	if e, ok := errors.AsType[*sprites.Error](err); !ok || e.Code != "disk_limit" || e.StatusCode != 507 {
		t.Errorf("got %v, want a disk_limit of 507", err)
	}
}

// TestDiskLimit has sprites fill what they may take of the disk, in every way: each is
// paused at its limit, its neighbour writes on, and when the limit is raised the same
// process finishes. What takes nothing of the disk does not count.
func TestDiskLimit(t *testing.T) {
	l := newLimited(t)
	ways := fillers
	if !soak() {
		ways = ways[:3]
	}
	for i, way := range ways {
		t.Run(way.name, func(t *testing.T) {
			sprite := fmt.Sprint("full-", i)
			cmd := l.fill(t, sprite, way.program)
			before := l.info(sprite).Cove.Held.UsedBytes
			l.writes(t)
			l.refused(t, sprite)
			held := l.info(sprite).Cove.Held
			t.Logf("%.1f MiB beyond a limit of %d", float64(held.UsedBytes-limitMB<<20)/(1<<20), limitMB)
			if held.UsedBytes < limitMB<<20 || held.LimitBytes != limitMB<<20 {
				t.Errorf("got %+v", held)
			}
			await(t, "it is looked at when it stands still", 10*time.Second, func() bool { before, held = held.UsedBytes, l.info(sprite).Cove.Held; return before == held.UsedBytes })
			if out := l.run("", "cove", "list"); !strings.Contains(out, "paused (disk full)") {
				t.Errorf("the list says\n%s", out)
			}
			l.run("", "cove", "update", sprite, "--disk", "2G")
			if err := cmd.Wait(); err != nil || fmt.Sprint(cmd.Stdout) != "filled\n" {
				t.Errorf("it ended with %v, %v", err, cmd.Stdout)
			}
			l.run("", "cove", "rm", sprite)
		})
	}
	t.Run("holes", func(t *testing.T) {
		l.run("", "cove", "create", "holes", "--disk", fmt.Sprint(limitMB, "M"))
		l.run("", "cove", "exec", "-s", "holes", "--", "python3", "-c", "f = open('sparse', 'wb'); f.seek(10 << 30); f.write(b'end')")
		l.writes(t)
		if i := l.info("holes"); i.Cove.Held != nil || i.Cove.DiskUsed == 0 || i.Cove.DiskUsed > 16<<20 {
			t.Errorf("a file of a hole takes %d bytes, %+v", i.Cove.DiskUsed, i.Cove.Held)
		}
	})
}

// TestDiskLimitMeanwhile does with a sprite that has reached its limit what can be done
// with one that is asleep, ends the server, and has it go on.
func TestDiskLimitMeanwhile(t *testing.T) {
	l := newLimited(t)
	cmd := l.fill(t, "full", fillers[0].program)
	size := l.filled(t)
	l.run("", "cove", "checkpoint", "create", "-s", "full")
	if out := l.run("", "cove", "fork", "full", "copy"); !strings.Contains(out, "copy") || l.info("copy").Status != sprites.StatusWarm {
		t.Errorf("the fork is %s; it says %s", l.info("copy").Status, out)
	}
	l.refused(t, "copy") // it has what the other has
	l.run("", "sh", "-c", "cove export full >full.tar.zst")
	l.refused(t, "full")
	if now := l.filled(t); !l.info("full").Cove.Paused || size == 900<<20 || size != now {
		t.Errorf("a checkpoint, a fork or an export has it run on: it has written %d bytes, and then %d", size, now)
	}
	if log, err := os.ReadFile(filepath.Join(l.data, "serve.log")); err != nil || strings.Contains(string(log), "level=ERROR") {
		t.Errorf("a refusal is an error of the server's: %v\n%s", err, log)
	}
	l.run("", "cove", "rm", "copy")

	// Lowered, dropped below what it takes, raised: it is decided anew.
	l.run("", "cove", "update", "full", "--disk", "32M")
	l.refused(t, "full")
	l.run("", "cove", "update", "full", "--disk", "0")
	if err := cmd.Wait(); err != nil || fmt.Sprint(cmd.Stdout) != "filled\n" {
		t.Errorf("it ended with %v, %v", err, cmd.Stdout)
	}
	l.run("", "cove", "update", "full", "--disk", "200M")
	await(t, "it is held at a lower limit", 20*time.Second, func() bool { return l.info("full").Cove.Held != nil })
	l.run("", "cove", "suspend", "full")
	l.refused(t, "full")
	if status := l.info("full").Status; status != sprites.StatusWarm {
		t.Errorf("suspended, it is %s", status)
	}
	l.run("", "cove", "update", "full", "--disk", "2500M")
	l.run("", "cove", "exec", "-s", "full", "--", "rm", "big")

	// What only a checkpoint has is taken, too, and given back with it.
	l.run("", "cove", "checkpoint", "create", "-s", "full")
	l.run("", "cove", "update", "full", "--disk", "40M")
	l.refused(t, "full")
	l.run("", "cove", "checkpoint", "rm", "-s", "full", "v1")
	l.run("", "cove", "rm", "full")
}

// TestDiskLimitOfDead kills the server beside a sprite that has reached its limit, and
// beside one that is about to: the next one decides anew.
func TestDiskLimitOfDead(t *testing.T) {
	l := newLimited(t)
	l.fill(t, "full", fillers[0].program)
	l.run("", "cove", "create", "soon", "--disk", "64M")
	l.run("", "cove", "exec", "-s", "soon", "--detach", "--", "sh", "-c", "while ! test -e go; do sleep 0.1; done; dd if=/dev/zero of=big bs=1M count=200 && touch done")
	l.run("", "cove", "exec", "-s", "soon", "touch", "go")
	signalAll(t, syscall.SIGKILL, l.pid())
	l.serve(nil, "--idle", "0")
	l.refused(t, "full")
	await(t, "the other one is held", 30*time.Second, func() bool { i := l.info("soon").Cove; return i.Held != nil && i.Paused })
	for _, name := range []string{"full", "soon"} {
		l.run("", "cove", "update", name, "--disk", "1G")
	}
	await(t, "both have finished", time.Minute, func() bool {
		out, _ := l.try("", "cove", "exec", "-s", "soon", "ls")
		big, _ := l.try("", "cove", "exec", "-s", "full", "stat", "-c", "%s", "big")
		return strings.Contains(out, "done") && strings.TrimSpace(big) == fmt.Sprint(900<<20)
	})
}

// TestDiskLimitOfJob holds a job with its sprite: that says so, and goes on.
func TestDiskLimitOfJob(t *testing.T) {
	l := newLimited(t)
	repo := l.repository("repo", map[string]string{"plan.md": "## One\n```sh\nfor i in $(seq 60); do head -c 5M /dev/zero >>~/big; sleep 0.02; done\necho done > one.txt\n```\n"})
	job, sprite := l.push(repo, "plan.md", "--agent", "shell", "--disk", "100M")
	show := func() (j sprites.Job) {
		if err := json.Unmarshal([]byte(l.run("", "cove", "job", "show", job, "--json")), &j); err != nil {
			t.Fatal(err)
		}
		return j
	}
	await(t, "the job is held", time.Minute, func() bool { return show().Held != nil })
	if out := l.run("", "cove", "job", "list"); !strings.Contains(out, "running (disk full)") {
		t.Errorf("the list says\n%s", out)
	}
	if out := l.run("", "cove", "job", "show", job); !strings.Contains(out, "cove update "+sprite+" --disk ") {
		t.Errorf("it says\n%s", out)
	}
	if out, code := l.try("", "cove", "job", "stop", job); code == 0 || !strings.Contains(out, "cove update "+sprite+" --disk ") {
		t.Errorf("stop: %d, %s", code, out)
	}
	l.run("", "cove", "update", sprite, "--disk", "1G")
	if out, code := l.try(repo, "cove", "pull", job, "--wait=1m"); code != 0 {
		t.Errorf("pull: %d, %s", code, out)
	}
	if j := show(); j.Held != nil || j.State != sprites.JobSucceeded {
		t.Errorf("got %s, %+v", j.State, j.Held)
	}
	if got := l.run(repo, "git", "show", "HEAD:one.txt"); got != "done\n" {
		t.Errorf("one.txt: got %q", got)
	}
	job, _ = l.push(repo, "plan.md", "--agent", "shell", "--disk", "100M")
	await(t, "the next job is held", time.Minute, func() bool { return show().Held != nil })
	l.run("", "cove", "job", "rm", "--force", job)
}
