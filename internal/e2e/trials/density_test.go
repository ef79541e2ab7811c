package trials

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cove-dev/cove/internal/test/e2e"
	"github.com/cove-dev/cove/sprites"
)

// TestSoakDensity has many sprites on one machine: some run idle, more sleep on disk with
// a process in their memory, and many were never used. All are listed. After a kill of
// the server each goes on with its own memory, and nothing of them is left in the end. In
// make soak there are 100, 1,000 and 1,000 of them. The log tells their memory and disk.
func TestSoakDensity(t *testing.T) {
	d := density{running: 3, asleep: 6, cold: 20, batch: 3, idle: 2 * time.Second}
	if e2e.Soak() {
		d = density{running: 100, asleep: 1000, cold: 1000, batch: 20, idle: time.Minute}
	}
	d.Host, d.T, d.ids = e2e.NewLoneHost(t), t, map[string]bool{}
	d.Serve(nil, "--idle", "0", "--hibernate", "0")
	d.tell("at the start")
	d.sleepers()
	d.tell("with those asleep")
	d.each("cold", d.cold, func(name string) error {
		_, err := d.Client().Create(t.Context(), sprites.CreateRequest{Name: name})
		return err
	})
	d.tell("with the cold")
	d.lists()
	available := e2e.ProcField(t, "/proc/meminfo", "MemAvailable:")
	d.each("running", d.running, func(name string) error {
		_, err := d.Client().Create(t.Context(), sprites.CreateRequest{Name: name})
		return errors.Join(err, e2e.RunIn(d.Client(), name, "true"))
	})
	d.tell("with those that run")
	t.Logf("each that runs takes %.1f MiB", float64(available-e2e.ProcField(t, "/proc/meminfo", "MemAvailable:"))/float64(d.running)/(1<<20))
	d.quiet()
	d.killed()
	d.lists()
	d.wakes()
	for _, kind := range []string{"cold", "running"} {
		d.each(kind, map[string]int{"cold": d.cold, "running": d.running}[kind], d.remove)
	}
	d.nothing()
	d.tell("at the end")
}

// nothing checks that nothing is left of all the sprites: on disk, in cgroups, or as
// processes besides the server's.
func (d density) nothing() {
	d.Helper()
	var left []string
	for deadline := time.Now().Add(e2e.LastResort); ; <-time.After(100 * time.Millisecond) {
		left = nil
		for _, dir := range []string{"run", "layers", "images", "memories"} {
			found, _ := filepath.Glob(filepath.Join(d.Data, dir, "*")) // the pattern is right
			left = append(left, found...)
		}
		cgroups, _ := filepath.Glob("/sys/fs/cgroup/*/cove-*")
		for _, dir := range cgroups {
			id, _, _ := strings.Cut(strings.TrimPrefix(filepath.Base(dir), "cove-"), "-")
			if d.ids[id] {
				left = append(left, dir)
			}
		}
		for kind, w := range d.work() {
			if kind != "serve" {
				left = append(left, fmt.Sprintf("%d of %s", w.n, kind))
			}
		}
		if len(left) == 0 {
			return
		}
		if time.Now().After(deadline) {
			d.Fatalf("left behind: %s", strings.Join(left, "\n"))
		}
	}
}

// density is a server with many sprites.
type density struct {
	*e2e.Host
	*testing.T
	running, asleep, cold int
	batch                 int // forks at once
	idle                  time.Duration
	ids                   map[string]bool // of the sprites
}

// tell logs the server's memory, and the disk that its data takes.
func (d density) tell(when string) {
	d.Helper()
	var images, all int64
	_ = filepath.WalkDir(d.Data, func(path string, e fs.DirEntry, err error) error { // files come and go; this counts those present
		if err != nil || e.IsDir() {
			return nil
		}
		if info, err := e.Info(); err == nil {
			n := info.Sys().(*syscall.Stat_t).Blocks * 512
			all += n
			if strings.HasPrefix(path, filepath.Join(d.Data, "images")) {
				images += n
			}
		}
		return nil
	})
	d.Logf("%s: the server has %d MiB, %d MiB are available; the data takes %d MiB, memories %d of them", when,
		e2e.Resident(d.T, d.PID())>>20, e2e.ProcField(d.T, "/proc/meminfo", "MemAvailable:")>>20, all>>20, images>>20)
}

// each calls f for each sprite of a kind, two at a time.
func (d density) each(kind string, n int, f func(name string) error) {
	d.Helper()
	began := time.Now()
	names := make(chan string)
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			for name := range names {
				if err := f(name); err != nil {
					d.Errorf("%s: %v", name, err)
				}
			}
		})
	}
	for i := 0; i < n && !d.Failed(); i++ {
		names <- fmt.Sprintf("%s-%d", kind, i)
	}
	close(names)
	wg.Wait()
	if d.Failed() {
		d.FailNow()
	}
	d.Logf("%s: %v each", kind, (time.Since(began) / time.Duration(n)).Round(10*time.Microsecond))
}

func (d density) remove(name string) error {
	return d.Client().Delete(d.Context(), name, sprites.DeleteOptions{})
}

// sleepers makes the sprites that sleep. They are forks of a sprite with a running
// process, which goes on in each. Each gets a mark of its own in its memory.
func (d density) sleepers() {
	d.Helper()
	d.Host.Run("", "cove", "create", "seed")
	d.Host.Run("", "cove", "exec", "-s", "seed", "--user", "root", "--detach", "--", "sh", "-c", "echo $$ >/dev/shm/pid; exec sleep 1000000")
	seed := d.Client().Sprite("seed")
	began := time.Now()
	for from := 0; from < d.asleep; from += d.batch {
		var req sprites.ForkRequest
		for i := from; i < min(from+d.batch, d.asleep); i++ {
			req.Names = append(req.Names, fmt.Sprintf("asleep-%d", i))
		}
		if _, err := seed.Forks(d.Context(), req); err != nil {
			d.Fatal(err)
		}
		forks := make(chan string, len(req.Names))
		var wg sync.WaitGroup
		for range 2 {
			wg.Go(func() {
				for name := range forks {
					fork := d.Client().Sprite(name)
					cmd := fork.Command("sh", "-c", "echo "+name+" >/dev/shm/mark")
					cmd.User = "root"
					err := cmd.Run()
					if err == nil {
						_, err = fork.Suspend(d.Context())
					}
					if err != nil {
						d.Errorf("%s: %v", name, err)
					}
				}
			})
		}
		for _, name := range req.Names {
			forks <- name
		}
		close(forks)
		wg.Wait()
		if d.Failed() {
			d.FailNow()
		}
	}
	if err := d.remove("seed"); err != nil {
		d.Fatal(err)
	}
	d.Logf("asleep: %v each", (time.Since(began) / time.Duration(d.asleep)).Round(time.Millisecond))
}

// lists lists all sprites, and checks the state of each.
func (d density) lists() {
	d.Helper()
	var took [2][]time.Duration
	for range 5 {
		for i, args := range [][]string{{"list"}, {"list", "--json"}} {
			began := time.Now()
			d.Host.Run("", "cove", args...)
			took[i] = append(took[i], time.Since(began))
		}
	}
	began := time.Now()
	d.Host.Run("", "cove", "version")
	d.Logf("cove list takes %.0f ms, with --json %.0f; cove version %d", e2e.Median(took[0]), e2e.Median(took[1]), time.Since(began).Milliseconds())
	want := map[string]sprites.Status{"asleep": sprites.StatusWarm, "cold": sprites.StatusCold, "running": sprites.StatusRunning}
	found := map[string]int{}
	for info, err := range d.Client().All(d.Context(), "") {
		if err != nil {
			d.Fatal(err)
		}
		kind, _, _ := strings.Cut(info.Name, "-")
		found[kind]++
		d.ids[info.ID] = true
		if info.Status != want[kind] {
			d.Errorf("%s is %s", info.Name, info.Status)
		}
	}
	if found["asleep"] != d.asleep || found["cold"] != d.cold {
		d.Errorf("the list has %v", found)
	}
	// The shim of a sprite that sleeps ends by itself.
	e2e.Await(d.T, fmt.Sprintf("a shim for each of %d that run", found["running"]), func() bool { return len(d.Shims()) == found["running"] })
}

// quiet logs which processes work while there are no calls.
func (d density) quiet() {
	d.Helper()
	before := d.work()
	<-time.After(d.idle)
	var lines []string
	total := time.Duration(0)
	for kind, now := range d.work() {
		took := now.took - before[kind].took
		lines = append(lines, fmt.Sprintf("%v by %d of %s", took, now.n, kind))
		total += took
	}
	slices.Sort(lines)
	d.Logf("in %v, %d idle sprites took %v of a processor, %.2f %%: %s", d.idle, d.running, total, 100*total.Seconds()/d.idle.Seconds(), strings.Join(lines, ", "))
}

// work is the processor time of processes, and their number.
type work struct {
	n    int
	took time.Duration
}

// work returns the work of the host's processes, by kind.
func (d density) work() map[string]work {
	all := map[string]work{}
	dirs, _ := filepath.Glob("/proc/[0-9]*") // the pattern is right
	for _, dir := range dirs {
		args, err := os.ReadFile(filepath.Join(dir, "cmdline"))
		if err != nil {
			continue // it has ended
		}
		log, _ := os.Readlink(filepath.Join(dir, "fd/2"))
		if !strings.Contains(string(args), d.Data+"/") && !strings.HasPrefix(log, d.Data+"/") {
			continue
		}
		stat, err := os.ReadFile(filepath.Join(dir, "stat"))
		if err != nil {
			continue
		}
		argv := strings.Split(string(args), "\x00")
		kind := filepath.Base(argv[0])
		if kind == "cove" && len(argv) > 1 {
			kind = argv[1]
		}
		_, rest, _ := strings.Cut(string(stat), ") ")
		fields := strings.Fields(rest) // proc_pid_stat(5), from the third on
		w := all[kind]
		w.n++
		for _, ticks := range fields[11:13] {
			n, err := strconv.Atoi(ticks)
			if err != nil {
				d.Fatal(err)
			}
			w.took += time.Duration(n) * 10 * time.Millisecond
		}
		all[kind] = w
	}
	return all
}

// killed kills the server, and starts another.
func (d density) killed() {
	d.Helper()
	old := d.PID()
	e2e.SignalAll(d.T, syscall.SIGKILL, old)
	if err := e2e.AwaitEnd(old); err != nil {
		d.Fatal(err)
	}
	began := time.Now()
	d.Serve(nil, "--idle", "0", "--hibernate", "0")
	answers := time.Since(began)
	first := func(name string) time.Duration {
		began := time.Now()
		if err := e2e.RunIn(d.Client(), name, "true"); err != nil {
			d.Errorf("%s: %v", name, err)
		}
		return time.Since(began)
	}
	running, asleep := first("running-0"), first("asleep-0")
	d.Logf("the next server answers after %v; then a first command takes %v in a running sprite, %v in one asleep", answers, running, asleep)
	if _, err := d.Client().Sprite("asleep-0").Suspend(d.Context()); err != nil {
		d.Error(err)
	}
	d.tell("with the next server")
}

// wakes wakes each sleeping sprite, checks its memory and its process, and removes it.
func (d density) wakes() {
	d.Helper()
	d.each("asleep", d.asleep, func(name string) error {
		cmd := d.Client().Sprite(name).Command("sh", "-c", "cat /dev/shm/mark; kill -0 $(cat /dev/shm/pid) && tr '\\0' ' ' </proc/$(cat /dev/shm/pid)/cmdline")
		cmd.User = "root"
		out, err := cmd.Output()
		if want := name + "\nsleep 1000000 "; string(out) != want {
			err = errors.Join(err, fmt.Errorf("it has %q, want %q", out, want))
		}
		return errors.Join(err, d.remove(name))
	})
}
