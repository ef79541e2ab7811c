package bench

import (
	"archive/tar"
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"errors"
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

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/test/e2e"
	"github.com/cove-dev/cove/internal/test/need"
	"github.com/cove-dev/cove/sprites"
)

// Most benchmarks print cove's figure beside bare runsc's, over the same kind of disk in
// the same run, and the ratio of the two. Times are medians of all samples, in
// milliseconds.

// benchServer starts a server of its own. It returns a client of the server, and its
// process number.
func benchServer(b *testing.B, args ...string) (*cove.Client, int) {
	b.Helper()
	return benchServerIn(b, b.TempDir(), args...)
}

// benchServerIn is benchServer with the given data folder.
func benchServerIn(b *testing.B, data string, args ...string) (*cove.Client, int) {
	b.Helper()
	e2e.RequireSandbox(b)
	cmd := exec.Command(filepath.Join(e2e.BinDir, "cove"), append([]string{"serve", "--addr", "127.0.0.1:0", "--data", data, "--idle", "0"}, args...)...)
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
	client := &cove.Client{Client: &sprites.Client{URL: url, Token: strings.TrimSpace(string(token))}}
	b.Cleanup(func() {
		removeAll(b, client)
		if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
			b.Error(err)
		}
		_ = cmd.Wait() // ended by a signal
	})
	return client, cmd.Process.Pid
}

// removeAll removes a server's sprites.
func removeAll(b *testing.B, client *cove.Client) {
	b.Helper()
	ctx := context.Background()
	for info, err := range client.All(ctx, "") {
		if err == nil {
			err = client.Delete(ctx, info.Name, sprites.DeleteOptions{Force: true})
		}
		if err != nil {
			b.Error(err)
		}
	}
}

// report prints ours beside the floor.
func report(b *testing.B, ours, floor []time.Duration) {
	b.Helper()
	o, f := e2e.Median(ours), e2e.Median(floor)
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

// smallImage is the name of an image of busybox alone. importSmall brings it to a server.
const smallImage = "small:1"

// importSmall brings a server the small image.
func importSmall(b *testing.B, client *cove.Client) {
	b.Helper()
	program, err := os.ReadFile(need.Program(b, "busybox", "busybox-static"))
	if err != nil {
		b.Fatal(err)
	}
	var file bytes.Buffer
	out := tar.NewWriter(&file)
	for _, h := range []tar.Header{
		{Typeflag: tar.TypeDir, Name: "etc/", Mode: 0o755}, {Typeflag: tar.TypeDir, Name: "bin/", Mode: 0o755},
		{Typeflag: tar.TypeReg, Name: "bin/busybox", Mode: 0o755, Size: int64(len(program))},
		{Typeflag: tar.TypeSymlink, Name: "bin/sh", Linkname: "busybox"}, {Typeflag: tar.TypeSymlink, Name: "bin/true", Linkname: "busybox"},
	} {
		if err = errors.Join(err, out.WriteHeader(&h)); h.Size > 0 && err == nil {
			_, err = out.Write(program)
		}
	}
	if err = errors.Join(err, out.Close()); err == nil {
		_, err = cove.Images{Client: client}.Import(b.Context(), &file, smallImage, nil)
	}
	if err != nil {
		b.Fatal(err)
	}
}

// BenchmarkCreate measures from the create call to the end of the first command, over the
// host base and over an image. It does so too on a server with a pool, which is full each
// time.
func BenchmarkCreate(b *testing.B) {
	client, _ := benchServer(b)
	pooled, _ := benchServer(b, "--pool", "1", "--pool", smallImage+"=1")
	importSmall(b, client)
	importSmall(b, pooled)
	floor := startFloor(b)
	floor.runProgram(b, 2, "true")
	warm := "warm"
	if _, err := client.Create(b.Context(), sprites.CreateRequest{Name: warm}); err != nil {
		b.Fatal(err)
	}
	if err := e2e.RunIn(client, warm, "true"); err != nil { // the base is prepared once
		b.Fatal(err)
	}
	create := func(client *cove.Client, name, image string) time.Duration {
		took := timed(b, func() error {
			if _, err := client.Create(b.Context(), sprites.CreateRequest{Name: name, Config: &sprites.Config{Image: image}}); err != nil {
				return err
			}
			return e2e.RunIn(client, name, "true")
		})
		if err := client.Delete(b.Context(), name, sprites.DeleteOptions{}); err != nil {
			b.Fatal(err)
		}
		return took
	}
	create(client, "first", smallImage) // the image's fitting is made once
	var ours, taken, bare, overImage, takenImage []time.Duration
	for i := 0; b.Loop(); i++ {
		name := "b" + strconv.Itoa(i)
		e2e.Await(b, "the pool", func() bool {
			info, err := pooled.Version(b.Context())
			return err == nil && info.Pool.Ready == 2
		})
		ours = append(ours, create(client, name, ""))
		overImage = append(overImage, create(client, name, smallImage))
		taken = append(taken, create(pooled, name, ""))
		e2e.Await(b, "the pool again", func() bool {
			info, err := pooled.Version(b.Context())
			return err == nil && info.Pool.Ready == 2
		})
		takenImage = append(takenImage, create(pooled, name, smallImage))
		bare = append(bare, floor.runProgram(b, 1, "true")...)
	}
	report(b, ours, bare)
	b.ReportMetric(e2e.Median(taken), "ms/pool")
	b.ReportMetric(e2e.Median(taken)/e2e.Median(ours), "pool/ours")
	b.ReportMetric(e2e.Median(overImage), "ms/image")
	b.ReportMetric(e2e.Median(takenImage), "ms/imagepool")
}

// BenchmarkExec measures one command on a running sprite: alone, 16 at once and 64 at
// once.
func BenchmarkExec(b *testing.B) {
	for _, parallel := range []int{1, 16, 64} {
		b.Run(fmt.Sprint(parallel), func(b *testing.B) {
			client, _ := benchServer(b)
			floor := startFloor(b)
			floor.keepRunning(b)
			if _, err := client.Create(b.Context(), sprites.CreateRequest{Name: "paint"}); err != nil {
				b.Fatal(err)
			}
			if err := e2e.RunIn(client, "paint", "true"); err != nil {
				b.Fatal(err)
			}
			var ours, bare []time.Duration
			for b.Loop() {
				ours = append(ours, atOnce(b, parallel, func() error { return e2e.RunIn(client, "paint", "true") })...)
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

// copySize is the size in bytes of the file that BenchmarkCopy copies.
const copySize = 1 << 30

// BenchmarkCopy copies a file of 1 GiB to a sprite and back, beside tar through the pipe
// of a bare runsc exec. It also reports the growth of the server's memory.
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
	if err := e2e.RunIn(client, "paint", "true"); err != nil {
		b.Fatal(err)
	}
	before, guestBefore := e2e.PeakResident(b, pid), guestPeak(b, client, "paint")
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
	b.Logf("the server's peak memory grew by %d MiB, the guest's by %d MiB", (e2e.PeakResident(b, pid)-before)>>20, (guestPeak(b, client, "paint")-guestBefore)>>20)
}

// guestPeak returns how much memory of a sprite's first process is resident, in bytes.
func guestPeak(b *testing.B, client *cove.Client, sprite string) int64 {
	b.Helper()
	out, err := client.Sprite(sprite).Command("cat", "/proc/1/status").Output()
	if err != nil {
		b.Fatal(err)
	}
	file := filepath.Join(b.TempDir(), "status")
	if err := os.WriteFile(file, out, 0o600); err != nil {
		b.Fatal(err)
	}
	// gVisor does not tell the peak.
	return e2e.ProcField(b, file, "VmRSS:")
}

// BenchmarkPush measures from cove push to the agent's start, with a repository of 10,000
// commits. Its floor is git bundle create on the host, and the same fetch and checkout in
// a bare runsc.
func BenchmarkPush(b *testing.B) {
	h := e2e.NewHost(b)
	h.Serve(nil)
	h.Run("", "cove", "create", "paint")
	h.Run("", "cove", "exec", "-s", "paint", "true")
	dir := filepath.Join(filepath.Dir(h.Home), "repo")
	if err := os.Mkdir(dir, 0o755); err != nil {
		b.Fatal(err)
	}
	h.Run("repo", "git", "init", "-q")
	history := h.Command("repo", "git", "fast-import", "--quiet")
	history.Stdin = strings.NewReader(manyCommits(10_000))
	if out, err := history.CombinedOutput(); err != nil {
		b.Fatalf("git fast-import: %v: %s", err, out)
	}
	h.Run("repo", "git", "reset", "-q", "--hard")
	h.Write("plan.md", "## One\n```sh\ntrue\n```\n")
	floor := startFloor(b)
	floor.keepRunning(b)
	bundle := filepath.Join(filepath.Dir(h.Home), "bundle")
	var ours, bare []time.Duration
	for i := 0; b.Loop(); i++ {
		h.Run("", "cove", "exec", "-s", "paint", "rm", "-rf", ".cove/repositories") // as if it had never seen it
		ours = append(ours, timed(b, func() error {
			job, _ := h.Push("repo", "../plan.md", "--agent", "shell", "-s", "paint")
			awaitRunning(h, job)
			return nil
		}))
		took := timed(b, func() error {
			h.Run("repo", "git", "bundle", "create", "-q", bundle, "HEAD")
			return nil
		})
		floor.run(b, floorCall{N: 1, Stdin: bundle, Args: []string{"exec", floorID, "sh", "-c", "cat >/home/bundle"}})
		clone := fmt.Sprintf("git init -q /home/clone%d && cd /home/clone%d && git fetch -q --no-tags /home/bundle HEAD:refs/heads/x && git reset -q --hard x", i, i)
		took += floor.run(b, floorCall{N: 1, Args: []string{"exec", floorID, "sh", "-c", clone}})[0]
		bare = append(bare, took)
	}
	report(b, ours, bare)
}

// BenchmarkFollow measures from when an agent prints a line to when a follower of its job
// has it. Its floor is the same line read from an exec.
func BenchmarkFollow(b *testing.B) {
	h := e2e.NewHost(b)
	h.Serve(nil)
	h.Repository("repo", map[string]string{"a": "a\n"})
	client := h.Client()
	count := `i=0; while [ $i -lt 200 ]; do date +%s%N; sleep 0.02; i=$((i+1)); done`
	late := func(line string) (time.Duration, bool) {
		at, err := strconv.ParseInt(strings.TrimSpace(line), 10, 64)
		return time.Duration(time.Now().UnixNano() - at), err == nil && at > 1e18
	}
	var ours, floor []time.Duration
	for b.Loop() {
		h.Write("plan.md", "## One\n```sh\n"+count+"\n```\n")
		job, sprite := h.Push("repo", "../plan.md", "--agent", "shell")
		for event, err := range client.JobEvents(b.Context(), job, 1, true) {
			if err != nil {
				b.Fatal(err)
			}
			if took, ok := late(event.Text); ok && event.Type == "output" {
				ours = append(ours, took)
			}
		}
		cmd := client.Sprite(sprite).CommandContext(b.Context(), "sh", "-c", count)
		out, err := cmd.StdoutPipe()
		if err != nil {
			b.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			b.Fatal(err)
		}
		for r := bufio.NewScanner(out); r.Scan(); {
			if took, ok := late(r.Text()); ok {
				floor = append(floor, took)
			}
		}
		if err := cmd.Wait(); err != nil {
			b.Fatal(err)
		}
	}
	if len(ours) == 0 || len(ours) != len(floor) {
		b.Fatalf("%d lines came, and %d from the exec", len(ours), len(floor))
	}
	slices.Sort(ours)
	b.ReportMetric(float64(ours[len(ours)*99/100].Microseconds())/1000, "ms/p99")
	report(b, ours, floor)
}

// BenchmarkIncrement measures cove push and cove pull of five commits, in a repository of
// 10,000 commits that the sprite has seen before. It also reports git's own time to
// bundle five commits, and to fetch such a bundle.
func BenchmarkIncrement(b *testing.B) {
	h := e2e.NewHost(b)
	h.Serve(nil)
	h.Run("", "cove", "create", "paint")
	dir := filepath.Join(filepath.Dir(h.Home), "repo")
	if err := os.Mkdir(dir, 0o755); err != nil {
		b.Fatal(err)
	}
	h.Run("repo", "git", "init", "-q")
	history := h.Command("repo", "git", "fast-import", "--quiet")
	history.Stdin = strings.NewReader(manyCommits(10_000))
	if out, err := history.CombinedOutput(); err != nil {
		b.Fatalf("git fast-import: %v: %s", err, out)
	}
	h.Run("repo", "git", "reset", "-q", "--hard")
	five := "for i in 1 2 3 4 5; do date +%N > f$i; git add .; git commit -q -m $i; done"
	h.Write("plan.md", "## One\n```sh\n"+five+"\n```\n")
	job, _ := h.Push("repo", "../plan.md", "--agent", "shell", "-s", "paint")
	h.Run("repo", "cove", "pull", job, "--wait=10m")
	bundle := filepath.Join(filepath.Dir(h.Home), "bundle")
	git := func(args ...string) func() error {
		return func() error { h.Run("repo", "git", args...); return nil }
	}
	var pushes, pulls, bundles, fetches []time.Duration
	for b.Loop() {
		h.Run("repo", "sh", "-c", five)
		bundles = append(bundles, timed(b, git("bundle", "create", "-q", bundle, "HEAD~5..HEAD")))
		pushes = append(pushes, timed(b, func() error { job, _ = h.Push("repo", "../plan.md", "--agent", "shell", "-s", "paint"); return nil }))
		h.Run("repo", "cove", "job", "wait", job)
		pulls = append(pulls, timed(b, func() error { h.Run("repo", "cove", "pull", job); return nil }))
		fetches = append(fetches, timed(b, git("fetch", "-q", bundle, "HEAD:refs/heads/fetched")))
		h.Run("repo", "git", "branch", "-q", "-D", "fetched")
	}
	for name, times := range map[string][]time.Duration{"push": pushes, "pull": pulls, "git-bundle": bundles, "git-fetch": fetches} {
		b.ReportMetric(e2e.Median(times), name+"-ms")
	}
}

// awaitRunning waits until a job's agent has started.
func awaitRunning(h *e2e.Host, job string) {
	h.T.Helper()
	for ev, err := range h.Client().JobEvents(context.Background(), job, 1, true) {
		if err != nil {
			h.T.Fatal(err)
		}
		if ev.State == cove.JobRunning {
			return
		}
	}
	h.T.Fatalf("job %s did not run", job)
}

// manyCommits returns a history for git fast-import: 400 files that change in n commits.
func manyCommits(n int) string {
	var s strings.Builder
	for i := range n {
		text := strings.Repeat(fmt.Sprintf("line of version %d\n", i), 20)
		fmt.Fprintf(&s, "commit refs/heads/main\ncommitter A <a@example.org> %d +0000\ndata 8\nchange\n\nM 644 inline dir%d/file%d\ndata %d\n%s\n",
			1_700_000_000+i, i%20, i%400, len(text), text)
	}
	return s.String()
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

// BenchmarkIdleMemory is what ten idle sprites cost the host, each.
func BenchmarkIdleMemory(b *testing.B) {
	client, _ := benchServer(b)
	const n = 10
	if _, err := client.Create(b.Context(), sprites.CreateRequest{Name: "first"}); err != nil {
		b.Fatal(err)
	}
	if err := e2e.RunIn(client, "first", "true"); err != nil {
		b.Fatal(err)
	}
	before := e2e.ProcField(b, "/proc/meminfo", "MemAvailable:")
	for i := range n {
		name := "idle" + strconv.Itoa(i)
		if _, err := client.Create(b.Context(), sprites.CreateRequest{Name: name}); err != nil {
			b.Fatal(err)
		}
		if err := e2e.RunIn(client, name, "true"); err != nil {
			b.Fatal(err)
		}
	}
	after := e2e.ProcField(b, "/proc/meminfo", "MemAvailable:")
	b.ReportMetric(float64(before-after)/n/(1<<20), "MiB/sprite")
	b.ReportMetric(0, "ns/op")
}

// BenchmarkList times cove list of a thousand sprites that were never used, with and
// without --json. It also times cove version, which asks the server for its version.
func BenchmarkList(b *testing.B) {
	h := e2e.NewHost(b)
	h.Serve(nil)
	for i := range 1000 {
		if _, err := h.Client().Create(b.Context(), sprites.CreateRequest{Name: "cold-" + strconv.Itoa(i)}); err != nil {
			b.Fatal(err)
		}
	}
	var list, document, version []time.Duration
	cove := func(args ...string) time.Duration {
		return timed(b, func() error { h.Run("", "cove", args...); return nil })
	}
	for b.Loop() {
		list = append(list, cove("list"))
		document = append(document, cove("list", "--json"))
		version = append(version, cove("version"))
	}
	b.ReportMetric(e2e.Median(list), "list-ms")
	b.ReportMetric(e2e.Median(document), "json-ms")
	b.ReportMetric(e2e.Median(version), "version-ms")
	b.ReportMetric(0, "ns/op")
}
