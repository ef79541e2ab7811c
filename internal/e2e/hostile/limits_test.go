package hostile

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/test/e2e"
	"github.com/cove-dev/cove/sprites"
)

// grower takes so many MiB, and keeps them.
const grower = "import sys, time; x = [bytes([1]) * (1 << 20) for _ in range(int(sys.argv[1]))]; print('grown', flush=True); time.sleep(1000)"

// 12: if a sprite needs more memory than it has, it loses its largest process and nothing
// else. The sprite's info names that process. If that is not enough, the sprite loses its
// sandbox, and no other does.
func (e *hostile) memory(t *testing.T) {
	e2e.NeedsCgroups(t)
	e.Run("", "cove", "checkpoint", "create", "-s", "paint") // into another group
	sprite := e.Client().Sprite("paint")
	// gVisor itself may be refused memory first, and end. Then the test tries again.
	for try := 1; !e.grow(t, sprite); try++ {
		if try == 3 {
			t.Fatal("no process was ended for want of memory, but the sandbox")
		}
	}
	kills := e.Info("paint").Cove.MemoryKills
	if last := len(kills) - 1; last < 0 || kills[last].Name != "python3" || kills[last].ResidentBytes < 100<<20 || kills[last].LimitBytes != 300<<20 {
		t.Errorf("got %+v", kills)
	}
	e.memoryOfService(t)
	if e2e.Soak() {
		e.memoryOfJob(t)
	}

	// Files in memory belong to no process. So the host ends the sandbox, and says why;
	// the next use boots it.
	e.root("paint", "sh", "-c", "mkdir /filled && mount -t tmpfs none /filled && head -c 1G /dev/zero >/filled/big")
	e2e.Await(t, "info says why the sandbox has ended", func() bool {
		return strings.Contains(e.Info("paint").Cove.LastError, "its sandbox ended: out of memory")
	})
}

// grow takes too much memory, once suddenly and once steadily, beside a small process. It
// reports whether only the larger ones were ended.
func (e *hostile) grow(t *testing.T, sprite *sprites.Sprite) bool {
	ctx, cancel := context.WithCancel(t.Context())
	small := sprite.CommandContext(ctx, "python3", "-c", grower, "20")
	if err := small.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		cancel()
		_ = small.Wait() // killed
	}()
	began := e.Info("paint").Cove.Incarnation
	ways := [][]string{{"python3", "-c", grower, "1000"}, {"sh", "-c", "python3 -c 'x = b\"x\" * (1 << 30)'; exit $?"}}
	if !e2e.Soak() {
		ways = ways[:1]
	}
	for _, way := range ways {
		out, code := e.Try("", "cove", append([]string{"exec", "-s", "paint", "--"}, way...)...)
		if code == 75 && strings.Contains(out, "the sandbox has ended: out of memory") {
			t.Log(out)
			return false
		}
		if code != 137 || !strings.Contains(out, "memory was used up") {
			t.Errorf("%q: %d, %s", way, code, out)
		}
	}
	if out, err := sprite.CommandContext(t.Context(), "pgrep", "-fc", "^python3 -c.* 20$").Output(); string(out) != "1\n" {
		t.Errorf("of the small one there are %s, %v", out, err)
	}
	if now := e.Info("paint").Cove.Incarnation; now != began {
		t.Errorf("the sandbox has ended: %d, and then %d", began, now)
	}
	return true
}

// memoryOfService: a service whose program was ended for want of memory says so.
func (e *hostile) memoryOfService(t *testing.T) {
	e.Try("", "cove", "service", "put", "-s", "paint", "hungry", "--", "python3", "-c", grower, "1000") // fails if it sees the end
	e2e.Await(t, "a service says why it failed", func() bool {
		out, _ := e.Try("", "cove", "service", "show", "-s", "paint", "hungry", "--json")
		return strings.Contains(out, "exit 137: out of memory")
	})
	e.Run("", "cove", "service", "rm", "-s", "paint", "hungry")
}

// memoryOfJob: a job whose program was ended for want of memory says so too.
func (e *hostile) memoryOfJob(t *testing.T) {
	repo := e.Repository("repo", map[string]string{"plan.md": "```sh\nexec python3 -c 'x = [bytes([1]) * (1 << 20) for _ in range(1000)]'\n```\n"})
	job, _ := e.Push(repo, "plan.md", "--agent", "shell", "--sprite", "paint")
	e.Try("", "cove", "job", "wait", job)
	var j cove.Job
	if err := json.Unmarshal([]byte(e.Run("", "cove", "job", "show", job, "--json")), &j); err != nil || j.Outcome == nil {
		t.Fatalf("got %+v, %v", j, err)
	}
	if j.Outcome.Kind != "memory_limit" || !strings.Contains(j.Outcome.Reason, "out of memory: python3 (process ") {
		t.Errorf("the job's outcome is %+v", j.Outcome)
	}
}

// 14: a sprite shows the processors and memory that it has.
func (e *hostile) ownPart(t *testing.T) {
	e2e.NeedsCgroups(t)
	out, code := e.root("paint", "sh", "-c", "nproc; grep -c ^processor /proc/cpuinfo; sed -n 's/^MemTotal: *\\([0-9]*\\) kB/\\1/p' /proc/meminfo; free -k | sed -n 's/^Mem: *\\([0-9]*\\) .*/\\1/p'")
	f := strings.Fields(out)
	// gVisor has at least two processors (f[1]). Programs may use the one that the sprite
	// has (f[0]).
	if code != 0 || len(f) != 4 || f[0] != "1" || f[1] != "2" {
		t.Fatalf("processors and memory: %d, %q", code, out)
	}
	for _, kib := range f[2:] {
		if n, err := strconv.Atoi(kib); err != nil || n > 300<<10 || n < 150<<10 {
			t.Errorf("it shows %s KiB of memory, and has 300 MiB", kib)
		}
	}
}

// 13: the kernel throttles sixteen spinners, and the sprite's neighbour works.
func (e *hostile) spinners(t *testing.T) {
	e2e.NeedsCgroups(t)
	before := cgroupNumber(e.Host, "paint", "cpu", "cpu.stat", "nr_throttled")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	spin := e.Client().Sprite("paint").CommandContext(ctx, "sh", "-c", "for i in $(seq 15); do (while :; do :; done) & done; while :; do :; done")
	if err := spin.Start(); err != nil {
		t.Fatal(err)
	}
	e2e.Await(t, "the kernel holds the spinners back", func() bool {
		return cgroupNumber(e.Host, "paint", "cpu", "cpu.stat", "nr_throttled") > before+5
	})
	e.works(t, "other")
	cancel() // kills the spinners
	if err := spin.Wait(); !errors.Is(err, context.Canceled) {
		t.Errorf("the spinners' end: %v", err)
	}
}

// 11: a fork bomb can be signalled, and after its end there is room again. In bomb.txtar
// one is removed with its sprite.
func (e *hostile) forkBomb(t *testing.T) {
	if !e2e.Soak() {
		t.Skip("set COVE_SOAK=1: two thousand processes take a while to start, and to end")
	}
	bomb := func(sprite string) string {
		return strings.TrimSpace(e.Run("", "cove", "exec", "-s", sprite, "--detach", "perl", "-e", "while (1) { fork }"))
	}
	session := bomb("victim")
	e2e.Await(t, "it has as many processes as there may be", func() bool {
		out, code := e.Try("", "cove", "exec", "-s", "victim", "--", "true")
		return code == 126 && strings.Contains(out, "the limit of processes")
	})
	e.works(t, "other")
	e2e.Await(t, "it is signalled, and gone", func() bool {
		// If some of so many have not ended in time, that is an error.
		out, code := e.Try("", "cove", "session", "kill", "-s", "victim", "--signal", "INT", "--grace", "1s", session)
		return code == 0 || strings.Contains(out, "no session "+session)
	})
	e.works(t, "victim")

	// If there is no memory for so many, the bomb ends with its sandbox: no single
	// process is large.
	e2e.NeedsCgroups(t)
	bomb("paint")
	e2e.Await(t, "its sandbox ends, out of memory", func() bool {
		return strings.Contains(e.Info("paint").Cove.LastError, "out of memory")
	})
	e.works(t, "paint")
}

// 9: many files and deeply nested folders stop neither list, checkpoint, checkpoint diff,
// fork nor removal.
func (e *hostile) flood(t *testing.T) {
	files, deep := "1000", "200"
	if e2e.Soak() {
		var descriptors unix.Rlimit // a sandbox has one for each of the folders
		if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &descriptors); err != nil {
			t.Fatal(err)
		}
		files, deep = "1000000", strconv.FormatUint(min(100_000, descriptors.Max/2), 10)
		t.Logf("folders in one another: %s", deep)
	}
	const flood = `
import os, sys
os.mkdir('many')
for i in range(int(sys.argv[1])): os.close(os.open('many/%d' % i, os.O_CREAT | os.O_WRONLY))
for i in range(int(sys.argv[2])): os.mkdir('d'); os.chdir('d')
`
	names := func() (all []string) {
		found, err := os.ReadDir(e.Data + "/layers")
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range found {
			all = append(all, d.Name())
		}
		return all
	}
	before := names()
	e.Run("", "cove", "create", "flooded", "--idle", "0")
	e.Run("", "cove", "exec", "-s", "flooded", "--", "python3", "-c", flood, files, deep)
	e.Run("", "cove", "checkpoint", "create", "-s", "flooded")
	e.Run("", "cove", "checkpoint", "create", "-s", "flooded")
	e.Run("", "cove", "checkpoint", "diff", "v1", "v2", "-s", "flooded")
	e.Run("", "cove", "list")
	e.Run("", "cove", "fork", "flooded", "copy")
	if out := e.Run("", "cove", "exec", "-s", "copy", "--", "sh", "-c", "ls many | wc -l"); strings.TrimSpace(out) != files {
		t.Errorf("a fork has %s files", out)
	}
	e.Run("", "cove", "rm", "flooded", "copy")
	e2e.Await(t, "the layers are removed", func() bool {
		return !slices.ContainsFunc(names(), func(name string) bool { return !slices.Contains(before, name) })
	})
}

// cgroupNumber reads a number of a sprite's cgroup, in v1 or v2. The number is the last
// field of the line that begins with word. If word is empty, the first line that ends in
// a number counts.
func cgroupNumber(h *e2e.Host, sprite, controller, file, word string) int64 {
	h.T.Helper()
	name := "cove-" + h.Info(sprite).ID
	for _, root := range []string{"/sys/fs/cgroup/", "/sys/fs/cgroup/" + controller + "/"} {
		entries, err := os.ReadDir(root)
		if err != nil {
			continue
		}
		for _, e := range entries {
			if !strings.HasPrefix(e.Name(), name) {
				continue
			}
			data, err := os.ReadFile(root + e.Name() + "/" + file)
			if err != nil {
				continue
			}
			for line := range strings.Lines(string(data)) {
				f := strings.Fields(line)
				if len(f) > 0 && (word == "" || f[0] == word) {
					n, err := strconv.ParseInt(f[len(f)-1], 10, 64)
					if err == nil {
						return n
					}
				}
			}
		}
	}
	h.T.Fatalf("%s of %s is nowhere", file, sprite)
	return 0
}
