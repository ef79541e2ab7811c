package bench

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cove-dev/cove/internal/test/e2e"
	"github.com/cove-dev/cove/sprites"
)

// floorMoves times bare runsc, n times each: it saves a sandbox with one sleep, which goes
// on, and later restores it. Any sprite has more: the guest, a program of several threads
// that speaks to its network.
func floorMoves(b *testing.B, n int) (saves, restores []time.Duration) {
	b.Helper()
	f := startFloor(b)
	bundle := "--bundle=" + filepath.Join(f.dir, "bundle")
	f.run(b, floorCall{N: 1, Argv: []string{"sleep", "100000"}, Args: []string{"run", "--detach", bundle, floorID}})
	for i := range n {
		image := "--image-path=" + filepath.Join(b.TempDir(), fmt.Sprint("image", i))
		f.run(b, floorCall{N: 1, Args: []string{"pause", floorID}})
		saves = append(saves, f.run(b, floorCall{N: 1, Args: []string{"checkpoint", "--leave-running", image, floorID}})...)
		f.run(b, floorCall{N: 1, Args: []string{"delete", "--force", floorID}})
		restores = append(restores, f.run(b, floorCall{N: 1, Args: []string{"restore", "--detach", bundle, image, floorID}})...)
	}
	f.run(b, floorCall{N: 1, Args: []string{"delete", "--force", floorID}})
	return saves, restores
}

// spell formats samples in their order, in milliseconds.
func spell(samples []time.Duration) string {
	var all []string
	for _, d := range samples {
		all = append(all, fmt.Sprint(d.Milliseconds()))
	}
	return strings.Join(all, " ")
}

// checkpointed makes a checkpoint, and returns how long it paused the sprite.
func checkpointed(b *testing.B, s *sprites.Sprite, keep sprites.KeepMemory) (time.Duration, sprites.Checkpoint) {
	b.Helper()
	c, err := s.Checkpoint(b.Context(), sprites.CheckpointRequest{Memory: keep}, nil)
	if err != nil {
		b.Fatal(err)
	}
	return time.Duration(c.Cove.PauseMilliseconds * float64(time.Millisecond)), c
}

// manyFiles writes a gigabyte in 100,000 files that are closed, in a folder of this name.
const manyFiles = `import os, sys
data = os.urandom(10486)
for d in range(100):
    os.makedirs('%s/%d' % (sys.argv[1], d))
    for f in range(1000):
        with open('%s/%d/%d' % (sys.argv[1], d, f), 'wb') as out: out.write(data)
`

// BenchmarkCheckpoint prints how long a checkpoint pauses the sprite. The first case is
// an empty layer. The second is a gigabyte in 100,000 files just written, without and
// with the memory. The third is an empty layer right after that, while the full one is
// still listed and written back. Beside it stands bare runsc's time to save and restore a
// sandbox with only a sleep. It also prints the time from a restore with memory, and from
// a wake, to the end of the first command. Last come the time and disk of ten forks. Each
// round repeats its parts itself: -benchtime 1x.
func BenchmarkCheckpoint(b *testing.B) {
	const times = 7
	saves, restores := floorMoves(b, times)
	data := b.TempDir()
	client, _ := benchServerIn(b, data)
	ctx := b.Context()
	must := func(err error) {
		b.Helper()
		if err != nil {
			b.Fatal(err)
		}
	}
	var empty, dirty, kept, after, backs, wakes []time.Duration
	for b.Loop() {
		info, err := client.Create(ctx, sprites.CreateRequest{Name: "empty"})
		must(err)
		s := client.Sprite(info.Name)
		must(s.CommandContext(ctx, "true").Run())
		for range times {
			pause, _ := checkpointed(b, s, "")
			empty = append(empty, pause)
		}
		_, last := checkpointed(b, s, sprites.KeepAuto)
		for range times {
			began := time.Now()
			_, err := s.RestoreCheckpoint(ctx, last.ID, sprites.RestoreRequest{}, nil)
			must(err)
			must(s.CommandContext(ctx, "true").Run())
			backs = append(backs, time.Since(began))
			_, err = s.Suspend(ctx)
			must(err)
			wakes = append(wakes, timed(b, s.CommandContext(ctx, "true").Run))
		}

		_, err = client.Create(ctx, sprites.CreateRequest{Name: "full"})
		must(err)
		s = client.Sprite("full")
		for round, keep := range []sprites.KeepMemory{"", sprites.KeepAuto, ""} {
			must(s.CommandContext(ctx, "python3", "-c", manyFiles, fmt.Sprint("many", round)).Run())
			pause, _ := checkpointed(b, s, keep)
			if keep == "" {
				dirty = append(dirty, pause)
			} else {
				kept = append(kept, pause)
			}
			pause, _ = checkpointed(b, s, "")
			after = append(after, pause)
		}
		before := diskUse(b, data)
		forks := sprites.ForkRequest{}
		for n := range 10 {
			forks.Names = append(forks.Names, fmt.Sprintf("fork-%d", n))
		}
		forked := timed(b, func() error { _, err := s.Forks(ctx, forks); return err })

		b.ReportMetric(forked.Seconds(), "ten-forks-s")
		b.ReportMetric(100*float64(diskUse(b, data)-before)/float64(before), "ten-forks-disk-%")
		removeAll(b, client)
		b.Logf("milliseconds: save %s; restore %s; pause: empty %s, 1 GB %s, with memory %s, right after %s; restore to exec %s; wake to exec %s",
			spell(saves), spell(restores), spell(empty), spell(dirty), spell(kept), spell(after), spell(backs), spell(wakes))
		save, back := e2e.Median(saves), e2e.Median(restores)
		b.ReportMetric(save, "runsc-save-ms")
		b.ReportMetric(back, "runsc-restore-ms")
		for name, samples := range map[string][]time.Duration{"empty": empty, "1GB": dirty, "1GB-memory": kept, "after-1GB": after} {
			b.ReportMetric(e2e.Median(samples), "pause-"+name+"-ms")
			b.ReportMetric(e2e.Median(samples)/(save+back), "pause-"+name+"/runsc")
			b.ReportMetric(e2e.Median(samples)/e2e.Median(empty), "pause-"+name+"/empty")
		}
		b.ReportMetric(e2e.Median(backs)/back, "restore-exec/runsc")
		b.ReportMetric(e2e.Median(wakes)/back, "wake-exec/runsc")
		b.ReportMetric(0, "ns/op")
	}
}

// diskUse is how much a folder takes on disk, a file of several names once.
func diskUse(b *testing.B, dir string) (bytes int64) {
	b.Helper()
	seen := map[uint64]bool{}
	err := filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
		var st unix.Stat_t
		if err == nil {
			err = unix.Lstat(path, &st)
		}
		if err == nil && !seen[st.Ino] {
			seen[st.Ino] = true
			bytes += st.Blocks * 512
		}
		if errors.Is(err, os.ErrNotExist) {
			return nil
		}
		return err
	})
	if err != nil {
		b.Fatal(err)
	}
	return bytes
}

// holdGiB is a program that has a gibibyte of memory that is not zero, and says so.
const holdGiB = `import os, sys, time
a = bytearray(os.urandom(1 << 20) * 1024)
print('held', flush=True)
time.sleep(100000)
`

// startHolder starts a program and waits until it says that it holds something. It may
// run as long as the sprite: other processes that a command leaves are ended some seconds
// after it.
func startHolder(b *testing.B, s *sprites.Sprite, program string, args ...string) {
	b.Helper()
	held := "nohup python3 -c \"$0\" \"$@\" >held 2>&1 & until grep -q held held; do sleep 0.1; done"
	cmd := s.CommandContext(b.Context(), "sh", append([]string{"-c", held, program}, args...)...)
	cmd.MaxRunAfterDisconnect = new(time.Duration)
	if err := cmd.Run(); err != nil {
		b.Fatal(err)
	}
}

// BenchmarkForkMemory has a program hold a gibibyte in a sprite. It prints the whole time
// of a checkpoint with the memory, and the pause within it. It also prints the time of
// ten forks, beside ten restores of such a sandbox by bare runsc, two at a time. It needs
// some 16 GiB of memory: -benchtime 1x.
func BenchmarkForkMemory(b *testing.B) {
	const forks = 10
	if available := e2e.ProcField(b, "/proc/meminfo", "MemAvailable:"); available < 16<<30 {
		b.Skipf("%d MiB of memory are available, and 16 GiB are needed", available>>20)
	}
	f := startFloor(b)
	bundle := "--bundle=" + filepath.Join(f.dir, "bundle")
	const id = "ffffffffffffff{}" // without cgroups: the bundle has one
	f.run(b, floorCall{N: 1, Argv: []string{"python3", "-c", holdGiB}, Args: []string{"run", "--detach", bundle, floorID}})
	f.run(b, floorCall{N: 1, Args: []string{"exec", floorID, "sh", "-c", "until [ $(awk '/VmRSS/ { print $2 }' /proc/1/status) -gt 1048576 ]; do sleep 0.2; done"}})
	image := "--image-path=" + filepath.Join(b.TempDir(), "image")
	f.run(b, floorCall{N: 1, Args: []string{"pause", floorID}})
	began := time.Now()
	f.run(b, floorCall{N: 1, Args: []string{"checkpoint", "--leave-running", image, floorID}})
	saved := time.Since(began)
	f.run(b, floorCall{N: 1, Args: []string{"delete", "--force", floorID}})
	began = time.Now()
	f.run(b, floorCall{N: forks, Parallel: 2, Args: []string{"--ignore-cgroups", "restore", "--detach", bundle, image, id}})
	bare := time.Since(began)
	f.run(b, floorCall{N: forks, Args: []string{"--ignore-cgroups", "delete", "--force", id}})

	client, _ := benchServer(b)
	for b.Loop() {
		if _, err := client.Create(b.Context(), sprites.CreateRequest{Name: "large"}); err != nil {
			b.Fatal(err)
		}
		s := client.Sprite("large")
		startHolder(b, s, holdGiB)
		var pause time.Duration
		took := timed(b, func() error { pause, _ = checkpointed(b, s, sprites.KeepAlways); return nil })
		var req sprites.ForkRequest
		for n := range forks {
			req.Names = append(req.Names, fmt.Sprintf("fork-%d", n))
		}
		forked := timed(b, func() error { _, err := s.Forks(b.Context(), req); return err })
		for _, name := range append(req.Names, "large") {
			const holds = "cat /proc/[0-9]*/status | awk '/^(Name|VmRSS)/ { printf \"%s \", $2 } /VmRSS/ && $2 > 1000000 { n++ } END { exit !n }'"
			if out, err := client.Sprite(name).CommandContext(b.Context(), "sh", "-c", holds).Output(); err != nil {
				b.Errorf("%s has no gibibyte any more: %v, but %s", name, err, out)
			}
		}
		removeAll(b, client)
		b.ReportMetric(saved.Seconds(), "runsc-checkpoint-1GiB-s")
		b.ReportMetric(pause.Seconds(), "pause-1GiB-s")
		b.ReportMetric(took.Seconds(), "checkpoint-1GiB-s")
		b.ReportMetric(bare.Seconds(), "ten-runsc-restores-s")
		b.ReportMetric(forked.Seconds(), "ten-forks-1GiB-s")
		b.ReportMetric(forked.Seconds()/bare.Seconds(), "ten-forks-1GiB/runsc")
		b.ReportMetric(0, "ns/op")
	}
}

// holdDeleted is a program that has so many deleted files of so many bytes open, and says so.
const holdDeleted = `import os, sys, time
held = []
for n in range(int(sys.argv[1])):
    held.append(open('gone', 'w+b', buffering=0)); held[-1].write(os.urandom(int(sys.argv[2]))); os.unlink('gone')
print('held', flush=True)
time.sleep(100000)
`

// BenchmarkCheckpointDeleted prints how long a checkpoint pauses a sprite whose program
// has deleted files open (none, one of 7 MiB, 400 of 20 KiB, 400 empty ones, and one of
// 64 MiB). Each case has a sprite of its own, and they take turns.
func BenchmarkCheckpointDeleted(b *testing.B) {
	client, _ := benchServer(b)
	kinds := []struct{ name, files, bytes string }{
		{"none", "0", "0"}, {"7MiB", "1", "7340032"}, {"400x20KiB", "400", "20480"}, {"400x0", "400", "0"}, {"64MiB", "1", "67108864"},
	}
	for b.Loop() {
		pauses := map[string][]time.Duration{}
		for n, kind := range kinds {
			name := fmt.Sprint("holds-", n)
			if _, err := client.Create(b.Context(), sprites.CreateRequest{Name: name}); err != nil {
				b.Fatal(err)
			}
			startHolder(b, client.Sprite(name), holdDeleted, kind.files, kind.bytes)
		}
		for range 5 {
			for n, kind := range kinds {
				pause, _ := checkpointed(b, client.Sprite(fmt.Sprint("holds-", n)), "")
				pauses[kind.name] = append(pauses[kind.name], pause)
			}
		}
		removeAll(b, client)
		for _, kind := range kinds {
			b.Logf("%s: %s", kind.name, spell(pauses[kind.name]))
			b.ReportMetric(e2e.Median(pauses[kind.name]), "pause-"+kind.name+"-ms")
			b.ReportMetric(e2e.Median(pauses[kind.name])/e2e.Median(pauses["none"]), "pause-"+kind.name+"/none")
		}
		b.ReportMetric(0, "ns/op")
	}
}
