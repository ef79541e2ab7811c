package main

import (
	"bufio"
	"context"
	"crypto/rand"
	"fmt"
	"io"
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

	"github.com/cove-dev/cove/sprites"
)

// The benchmarks print, beside each figure of cove's, that of bare runsc over the
// same kind of disk in the same run, and the ratio of the two. Times are medians
// of all samples, in milliseconds.

// benchServer starts a server of its own and returns a client of it, and its
// process number.
func benchServer(b *testing.B, args ...string) (*sprites.Client, int) {
	b.Helper()
	requireSandbox(b)
	data := b.TempDir()
	cmd := exec.Command(filepath.Join(binDir, "cove"), append([]string{"serve", "--addr", "127.0.0.1:0", "--data", data, "--idle", "0"}, args...)...)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		b.Fatal(err)
	}
	_, url, ok := strings.Cut(strings.TrimSpace(line), "listening on ")
	if !ok {
		b.Fatalf("the server said %q", line)
	}
	token, err := os.ReadFile(filepath.Join(data, "token"))
	if err != nil {
		b.Fatal(err)
	}
	client := &sprites.Client{URL: url, Token: strings.TrimSpace(string(token))}
	b.Cleanup(func() {
		ctx := context.Background()
		for info, err := range client.All(ctx, "") {
			if err == nil {
				err = client.Delete(ctx, info.Name, sprites.DeleteOptions{Force: true})
			}
			if err != nil {
				b.Error(err)
			}
		}
		if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
			b.Error(err)
		}
		_ = cmd.Wait() // ended by a signal
	})
	return client, cmd.Process.Pid
}

func median(d []time.Duration) float64 {
	slices.Sort(d)
	return float64(d[len(d)/2].Microseconds()) / 1000
}

// report prints ours beside the floor.
func report(b *testing.B, ours, floor []time.Duration) {
	b.Helper()
	o, f := median(ours), median(floor)
	b.ReportMetric(o, "ms/ours")
	b.ReportMetric(f, "ms/floor")
	b.ReportMetric(o/f, "ratio")
	b.ReportMetric(0, "ns/op") // of a loop that holds both: meaningless
}

// timed returns how long f took.
func timed(b *testing.B, f func() error) time.Duration {
	b.Helper()
	start := time.Now()
	if err := f(); err != nil {
		b.Fatal(err)
	}
	return time.Since(start)
}

func run(c *sprites.Client, sprite, name string, args ...string) error {
	return c.Sprite(sprite).Command(name, args...).Run()
}

// BenchmarkCreate is from the create call to the end of the first command.
func BenchmarkCreate(b *testing.B) {
	client, _ := benchServer(b)
	floor := startFloor(b)
	floor.runProgram(b, 2, "true")
	warm := "warm"
	if _, err := client.Create(b.Context(), sprites.CreateRequest{Name: warm}); err != nil {
		b.Fatal(err)
	}
	if err := run(client, warm, "true"); err != nil { // the base is prepared once
		b.Fatal(err)
	}
	var ours, bare []time.Duration
	for i := 0; b.Loop(); i++ {
		name := "b" + strconv.Itoa(i)
		ours = append(ours, timed(b, func() error {
			if _, err := client.Create(b.Context(), sprites.CreateRequest{Name: name}); err != nil {
				return err
			}
			return run(client, name, "true")
		}))
		if err := client.Delete(b.Context(), name, sprites.DeleteOptions{}); err != nil {
			b.Fatal(err)
		}
		bare = append(bare, floor.runProgram(b, 1, "true")...)
	}
	report(b, ours, bare)
}

// BenchmarkExec is one command on a running sprite, alone and 16 at once.
func BenchmarkExec(b *testing.B) {
	for _, parallel := range []int{1, 16} {
		b.Run(fmt.Sprint(parallel), func(b *testing.B) {
			client, _ := benchServer(b)
			floor := startFloor(b)
			floor.keepRunning(b)
			if _, err := client.Create(b.Context(), sprites.CreateRequest{Name: "paint"}); err != nil {
				b.Fatal(err)
			}
			if err := run(client, "paint", "true"); err != nil {
				b.Fatal(err)
			}
			var ours, bare []time.Duration
			for b.Loop() {
				ours = append(ours, atOnce(b, parallel, func() error { return run(client, "paint", "true") })...)
				bare = append(bare, floor.run(b, floorCall{N: parallel, Parallel: parallel, Args: []string{"exec", floorID, "true"}})...)
			}
			report(b, ours, bare)
		})
	}
}

// atOnce times n calls of f that run at the same time.
func atOnce(b *testing.B, n int, f func() error) []time.Duration {
	b.Helper()
	var (
		wg   sync.WaitGroup
		mu   sync.Mutex
		took []time.Duration // guarded by mu
	)
	for range n {
		wg.Go(func() {
			start := time.Now()
			err := f()
			d := time.Since(start)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				b.Error(err)
			}
			took = append(took, d)
		})
	}
	wg.Wait()
	return took
}

// copySize is that of the file which BenchmarkCopy copies.
const copySize = 1 << 30

// BenchmarkCopy is a file of 1 GiB to a sprite and back, beside tar through the
// pipe of a bare runsc exec; with it the growth of the server's memory.
func BenchmarkCopy(b *testing.B) {
	client, pid := benchServer(b)
	floor := startFloor(b)
	floor.keepRunning(b)
	dir := b.TempDir()
	src := filepath.Join(dir, "src")
	if err := writeRandom(src, copySize); err != nil {
		b.Fatal(err)
	}
	if out, err := exec.Command("tar", "-C", dir, "-cf", src+".tar", "src").CombinedOutput(); err != nil {
		b.Fatalf("tar: %v: %s", err, out)
	}
	if _, err := client.Create(b.Context(), sprites.CreateRequest{Name: "paint"}); err != nil {
		b.Fatal(err)
	}
	if err := run(client, "paint", "true"); err != nil {
		b.Fatal(err)
	}
	before := peakRSS(b, pid)
	b.Run("in", func(b *testing.B) {
		var ours, bare []time.Duration
		for b.Loop() {
			ours = append(ours, timed(b, func() error {
				f, err := os.Open(src)
				if err != nil {
					return err
				}
				defer f.Close()
				return client.Sprite("paint").WriteFile(b.Context(), "/home/sprite/big", f, sprites.WriteOptions{})
			}))
			bare = append(bare, floor.run(b, floorCall{N: 1, Stdin: src + ".tar", Args: []string{"exec", floorID, "tar", "-C", "/home", "-xf", "-"}})...)
		}
		report(b, ours, bare)
	})
	b.Run("out", func(b *testing.B) {
		var ours, bare []time.Duration
		for b.Loop() {
			ours = append(ours, timed(b, func() error {
				f, err := os.Create(filepath.Join(dir, "back"))
				if err != nil {
					return err
				}
				defer f.Close()
				r, err := client.Sprite("paint").Open(b.Context(), "/home/sprite/big")
				if err != nil {
					return err
				}
				defer r.Close()
				n, err := io.Copy(f, r)
				if err == nil && n != copySize {
					err = fmt.Errorf("%d bytes came back", n)
				}
				return err
			}))
			bare = append(bare, floor.run(b, floorCall{N: 1, Stdout: filepath.Join(dir, "back.tar"), Args: []string{"exec", floorID, "tar", "-C", "/home", "-cf", "-", "src"}})...)
		}
		report(b, ours, bare)
	})
	b.Logf("the server's peak memory grew by %d MiB", (peakRSS(b, pid)-before)>>20)
}

func writeRandom(name string, size int64) error {
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	if _, err := io.CopyN(f, rand.Reader, size); err != nil {
		_ = f.Close()
		return err
	}
	return f.Close()
}

// peakRSS is the most memory that a process has had, in bytes.
func peakRSS(b *testing.B, pid int) int64 {
	b.Helper()
	return procField(b, fmt.Sprintf("/proc/%d/status", pid), "VmHWM:")
}

// procField returns a line of a /proc file that is in kB, in bytes.
func procField(b *testing.B, file, key string) int64 {
	b.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		b.Fatal(err)
	}
	for line := range strings.Lines(string(data)) {
		if f := strings.Fields(line); len(f) >= 2 && f[0] == key {
			n, err := strconv.ParseInt(f[1], 10, 64)
			if err != nil {
				b.Fatal(err)
			}
			return n << 10
		}
	}
	b.Fatalf("%s has no %s", file, key)
	return 0
}

// BenchmarkIdleMemory is what ten idle sprites cost the host, each.
func BenchmarkIdleMemory(b *testing.B) {
	client, _ := benchServer(b)
	const n = 10
	if _, err := client.Create(b.Context(), sprites.CreateRequest{Name: "first"}); err != nil {
		b.Fatal(err)
	}
	if err := run(client, "first", "true"); err != nil {
		b.Fatal(err)
	}
	before := procField(b, "/proc/meminfo", "MemAvailable:")
	for i := range n {
		name := "idle" + strconv.Itoa(i)
		if _, err := client.Create(b.Context(), sprites.CreateRequest{Name: name}); err != nil {
			b.Fatal(err)
		}
		if err := run(client, name, "true"); err != nil {
			b.Fatal(err)
		}
	}
	after := procField(b, "/proc/meminfo", "MemAvailable:")
	b.ReportMetric(float64(before-after)/n/(1<<20), "MiB/sprite")
	b.ReportMetric(0, "ns/op")
}
