package gvisor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/server/runtime/runtimetest"
	"github.com/cove-dev/cove/internal/server/sprite"
	"github.com/cove-dev/cove/internal/shim"
	"github.com/cove-dev/cove/internal/shim/base"
	"github.com/cove-dev/cove/internal/shim/cgroup"
	"github.com/cove-dev/cove/internal/shim/policy"
	"github.com/cove-dev/cove/internal/test/executable"
	"github.com/cove-dev/cove/internal/test/need"
)

// lastResort keeps a broken test from hanging for ever.
const lastResort = 10 * time.Minute

// bin holds the binaries that sandboxes are made with.
var bin string

func TestMain(m *testing.M) { os.Exit(testMain(m)) }

func testMain(m *testing.M) int {
	bin = os.Getenv("COVE_BIN") // made by make build
	if bin == "" {
		dir, err := os.MkdirTemp("", "cove-bin-")
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer os.RemoveAll(dir)
		cmd := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-o", dir, "../../../../cmd/cove", "../../../../cmd/cove-guest", "../../../../cmd/cove-runsc")
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "build the binaries: %v\n%s", err, out)
			return 1
		}
		bin = dir
	}
	return m.Run()
}

func newRuntime(t *testing.T, dir string) *Runtime {
	t.Helper()
	rt := &Runtime{
		Dir: dir, Shim: []string{filepath.Join(bin, "cove"), "shim"}, Runsc: filepath.Join(bin, "cove-runsc"), Guest: filepath.Join(bin, "cove-guest"),
		Logger: slog.New(slog.NewTextHandler(t.Output(), nil)),
	}
	t.Cleanup(func() {
		if err := rt.Close(); err != nil {
			t.Error(err)
		}
	})
	return rt
}

// A sandbox without a shim has no network, and its status says why.
func TestNetworkDown(t *testing.T) {
	rt := newRuntime(t, t.TempDir())
	rt.Shim = []string{"false"}
	rt.init()
	sb := rt.watcher.follow("00112233aabbccdd", shim.State{})
	for deadline := time.Now().Add(lastResort); !strings.Contains(sb.Status().NetworkDown, "no other can be started"); {
		if time.Now().After(deadline) {
			t.Fatalf("got %+v", sb.Status())
		}
		<-time.After(5 * time.Millisecond)
	}
	again := &sandbox{}
	again.setDown("why")
	if again.setState(shim.State{}); again.Status().NetworkDown != "" {
		t.Errorf("with another shim: %+v", again.Status())
	}
}

func TestRuntime(t *testing.T) {
	need.Root(t)
	dir := t.TempDir()
	// The second runtime too lives until the end of the whole test.
	runtimetest.Run(t, newRuntime(t, dir), func(*testing.T) sprite.Runtime { return newRuntime(t, dir) })
}

// A server may be killed while it boots a sandbox. The next one has it all the same.
func TestLiveWhileBooting(t *testing.T) {
	need.Root(t)
	dir := t.TempDir()
	rt := newRuntime(t, dir)
	m := sprite.Machine{ID: "00112233aabbccdd", Hostname: "paint", MachineID: strings.Repeat("0", 32), Incarnation: 1, Layers: []string{"1111222233334444"}}
	booted := make(chan error, 1)
	go func() {
		_, err := rt.Boot(t.Context(), m)
		booted <- err
	}()
	for deadline := time.Now().Add(lastResort); !shim.Held(folder(rt.Dir).run(m.ID)); <-time.After(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("no shim takes the lock")
		}
	}
	live, err := newRuntime(t, dir).Live(t.Context())
	if bootErr := <-booted; err != nil || bootErr != nil || len(live) != 1 || live[0].ID() != m.ID || live[0].Status().Incarnation != 1 {
		t.Errorf("Live: %v, %v; Boot: %v", live, err, bootErr)
	}
	for _, sb := range live {
		if err := sb.Stop(t.Context(), 0); err != nil {
			t.Error(err)
		}
	}
}

// TestLiveOfLogs: a sleeping sprite's folder has only logs, so a starting server starts
// no shim for it. If a shim was killed, the folder has more, and a shim is started.
func TestLiveOfLogs(t *testing.T) {
	rt := newRuntime(t, t.TempDir())
	rt.Shim = []string{"false"}
	dir := folder(rt.Dir).run("00112233aabbccdd")
	for _, err := range []error{
		os.MkdirAll(dir, 0o700),
		os.WriteFile(filepath.Join(dir, "shim.lock"), nil, 0o600),
		os.WriteFile(filepath.Join(dir, "runsc.log"), nil, 0o600),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	if live, err := rt.Live(t.Context()); len(live) > 0 || err != nil {
		t.Errorf("got %v, %v", live, err)
	}
	for _, left := range []string{"sandbox.json", "rootfs.0", "runsc"} {
		path := filepath.Join(dir, left)
		begin := func() error { return os.Mkdir(path, 0o700) }
		if strings.Contains(left, ".json") {
			begin = func() error { return os.WriteFile(path, []byte("{}"), 0o600) }
		}
		if err := begin(); err != nil {
			t.Fatal(err)
		}
		if _, err := rt.Live(t.Context()); !errors.Is(err, errShimDied) {
			t.Errorf("with %s there: got %v", left, err)
		}
		if err := os.RemoveAll(path); err != nil {
			t.Fatal(err)
		}
	}
}

// A server removes the fittings that the one before was making, and those of images that are
// gone.
func TestLiveSweepsFittings(t *testing.T) {
	rt := newRuntime(t, t.TempDir())
	kept, lost, unknown := "sha256:"+strings.Repeat("1", 64), "sha256:"+strings.Repeat("2", 64), "sha256:"+strings.Repeat("3", 64)
	rt.Images = func(_ context.Context, digest string) (base.Image, error) {
		switch digest {
		case kept:
			return base.Image{Digest: kept}, nil
		case lost:
			return base.Image{}, fail.New("image_not_found", "there is no such image here", "")
		}
		return base.Image{}, errors.New("the database does not answer")
	}
	bases := folder(rt.Dir).bases()
	unfinished := filepath.Join(bases, "fit-1", "tree")
	if err := os.MkdirAll(unfinished, 0o700); err != nil {
		t.Fatal(err)
	}
	dirs := map[string]string{}
	for _, digest := range []string{kept, lost, unknown} {
		f, err := base.Image{Digest: digest, Lowers: []string{t.TempDir()}}.Fit(bases, "", false)
		if err != nil {
			t.Fatal(err)
		}
		dirs[digest] = f.Dir
	}
	if live, err := rt.Live(t.Context()); len(live) > 0 || err != nil {
		t.Errorf("got %v, %v", live, err)
	}
	for dir, stays := range map[string]bool{filepath.Dir(unfinished): false, dirs[kept]: true, dirs[lost]: false, dirs[unknown]: true} {
		if _, err := os.Lstat(dir); errors.Is(err, os.ErrNotExist) == stays {
			t.Errorf("%s: %v, want it kept: %v", dir, err, stays)
		}
	}
	if left, err := os.ReadDir(bases); len(left) != 2 || err != nil {
		t.Errorf("left %v, %v", left, err)
	}
}

// If a sandbox's shim has died, the next shim stops the sandbox.
func TestStopWithoutShim(t *testing.T) {
	s := &sandbox{client: shim.Client{Dir: t.TempDir()}, done: make(chan struct{})}
	stopped := make(chan error, 1)
	go func() { stopped <- s.Stop(t.Context(), time.Second) }()
	select {
	case err := <-stopped:
		t.Fatalf("without a shim: %v", err)
	case <-time.After(3 * stopPause):
	}
	ln, err := net.Listen("unix", filepath.Join(s.client.Dir, "shim.sock"))
	if err != nil {
		t.Fatal(err)
	}
	calls := 0
	next := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if calls++; calls == 1 {
			panic(http.ErrAbortHandler) // it dies too
		}
		if r.URL.Path == "/v1/stop" {
			close(s.done)
		}
		_, _ = w.Write([]byte("{}"))
	})}
	go func() { _ = next.Serve(ln) }()
	defer next.Close()
	if err := <-stopped; err != nil || calls != 2 {
		t.Errorf("got %v after %d calls", err, calls)
	}
}

// A call that finds no shim is the next one's.
func TestToldWithoutShim(t *testing.T) {
	for path, call := range map[string]func(context.Context, *sandbox) error{
		"/v1/hibernate":  func(ctx context.Context, s *sandbox) error { return s.Hibernate(ctx) },
		"/v1/limits":     func(ctx context.Context, s *sandbox) error { return s.Limit(ctx, 512, 1) },
		"/v1/network":    func(ctx context.Context, s *sandbox) error { return s.SetNetwork(ctx, policy.Set{}) },
		"/v1/connectors": func(ctx context.Context, s *sandbox) error { return s.SetConnectors(ctx, nil) },
	} {
		s := &sandbox{folder: folder(t.TempDir()), client: shim.Client{Dir: t.TempDir()}, done: make(chan struct{})}
		told := make(chan error, 1)
		go func() { told <- call(t.Context(), s) }()
		select {
		case err := <-told:
			t.Fatalf("%s without a shim: %v", path, err)
		case <-time.After(3 * stopPause):
		}
		ln, err := net.Listen("unix", filepath.Join(s.client.Dir, "shim.sock"))
		if err != nil {
			t.Fatal(err)
		}
		next := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != path {
				t.Errorf("%s, not %s", r.URL.Path, path)
			}
			if path == "/v1/hibernate" {
				close(s.done)
			}
			_, _ = w.Write([]byte("{}"))
		})}
		go func() { _ = next.Serve(ln) }()
		if err := <-told; err != nil {
			t.Errorf("%s: got %v", path, err)
		}
		_ = next.Close()
	}
}

// A shim may be killed while it starts a sandbox. Of that nothing is left, and the
// sprite boots at the next try.
func TestShimDiesWhileBooting(t *testing.T) {
	need.Root(t)
	rt := newRuntime(t, t.TempDir())
	m := sprite.Machine{ID: "00112233aabbccdd", Hostname: "paint", MachineID: strings.Repeat("0", 32), Layers: []string{"1111222233334444"}}
	tries := 20
	for !killedWhileBooting(t, rt, &m) {
		if tries--; tries == 0 {
			t.Fatal("no shim was killed in time")
		}
	}
	if left := started(folder(rt.Dir).run(m.ID), false); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
	m.Incarnation++
	sb, err := rt.Boot(t.Context(), m)
	if err != nil {
		t.Fatal(err)
	}
	if err := sb.Stop(t.Context(), 0); err != nil {
		t.Error(err)
	}
}

// killedWhileBooting boots a machine, and reports whether its shim could be killed
// meanwhile. A sandbox that was there first is ended.
func killedWhileBooting(t *testing.T, rt *Runtime, m *sprite.Machine) bool {
	t.Helper()
	m.Incarnation++
	type result struct {
		sandbox sprite.Sandbox
		err     error
	}
	booted := make(chan result, 1)
	go func() {
		sb, err := rt.Boot(t.Context(), *m)
		booted <- result{sb, err}
	}()
	var r result
	for there := false; !there && r.sandbox == nil; {
		for _, pid := range started(folder(rt.Dir).run(m.ID), true) {
			there = true
			_ = syscall.Kill(pid, syscall.SIGKILL) // it may be another's child by now
		}
		select {
		case r = <-booted:
			if r.err != nil && !there {
				t.Fatal(r.err)
			}
		case <-time.After(time.Millisecond):
		}
	}
	if r == (result{}) {
		r = <-booted
	}
	if r.err != nil {
		return true
	}
	if err := r.sandbox.Stop(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	return false
}

// started are the processes that run a folder's sandbox, or their parents but for
// the first process of all.
func started(dir string, parents bool) []int {
	var pids []int
	names, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil || !strings.Contains(string(text), "--root="+filepath.Join(dir, "runsc")+"\x00") {
			continue
		}
		var pid, parent int
		stat, _ := os.ReadFile(filepath.Dir(name) + "/stat")
		_, rest, _ := strings.Cut(string(stat), ") ")
		var state string
		if _, err := fmt.Sscanf(rest, "%s %d", &state, &parent); err != nil || state == "Z" {
			continue
		}
		if _, err := fmt.Sscanf(name, "/proc/%d/", &pid); err != nil {
			continue
		}
		if !parents {
			pids = append(pids, pid)
		} else if parent > 1 && !strings.Contains(string(text), "boot\x00") {
			pids = append(pids, parent)
		}
	}
	return pids
}

// A server may start a shim for one that died, and die itself. The next server has the
// sandbox whichever of the two shims it gets.
func TestLiveBesideAnotherShim(t *testing.T) {
	dir := t.TempDir()
	m := left(t, dir)

	// Its shim has begun when another takes the sandbox up.
	late := newRuntime(t, dir)
	begun, goOn := filepath.Join(t.TempDir(), "begun"), filepath.Join(t.TempDir(), "go on")
	late.Shim = []string{"sh", "-c", `: >"$1"; while ! [ -e "$2" ]; do sleep 0.01; done; exec "$3" shim`, "sh", begun, goOn, late.Shim[0]}
	type answer struct {
		live []sprite.Sandbox
		err  error
	}
	answers := make(chan answer, 1)
	go func() {
		live, err := late.Live(t.Context())
		answers <- answer{live, err}
	}()
	for deadline := time.Now().Add(lastResort); ; <-time.After(time.Millisecond) {
		if _, err := os.Stat(begun); err == nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("no shim is started")
		}
	}
	live, err := newRuntime(t, dir).Live(t.Context())
	if err != nil || len(live) != 1 {
		t.Errorf("the one that is first: %v, %v", live, err)
	}
	if err := os.WriteFile(goOn, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	got := <-answers
	if got.err != nil || len(got.live) != 1 || got.live[0].ID() != m.ID {
		t.Fatalf("the one that is late: %v, %v", got.live, got.err)
	}
	if err := got.live[0].Stop(t.Context(), 0); err != nil {
		t.Error(err)
	}
}

// A shim that dies while it takes a sandbox up is followed by another.
func TestLiveAfterDeadShim(t *testing.T) {
	dir := t.TempDir()
	left(t, dir)
	rt := newRuntime(t, dir)
	died := filepath.Join(t.TempDir(), "died")
	rt.Shim = []string{"sh", "-c", `if ! [ -e "$1" ]; then : >"$1"; kill -9 $$; fi; exec "$2" shim`, "sh", died, rt.Shim[0]}
	live, err := rt.Live(t.Context())
	if err != nil || len(live) != 1 {
		t.Fatalf("got %v, %v", live, err)
	}
	if _, err := os.Stat(died); err != nil {
		t.Error("no shim died")
	}
	if err := live[0].Stop(t.Context(), 0); err != nil {
		t.Error(err)
	}
}

// A shim that is killed when its sandbox has ended leaves its cgroup, and no other shim comes after it.
func TestDestroyAfterKilledShim(t *testing.T) {
	dir := t.TempDir()
	m := left(t, dir)
	groups := shimGroups(t, m.ID)
	rt := newRuntime(t, dir)
	live, err := rt.Live(t.Context())
	if err != nil || len(live) != 1 {
		t.Fatalf("got %v, %v", live, err)
	}
	if err := live[0].Stop(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	if len(groups) == 0 {
		need.Missing(t, "a shim has no cgroup of its own here", "run make test where cgroups can be written")
	}
	for len(shimGroups(t, m.ID)) > 0 { // the shim ends
		<-time.After(10 * time.Millisecond)
	}
	for _, group := range groups { // as one that was killed would have left it
		if err := os.Mkdir(group, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := rt.Destroy(t.Context(), m.ID); err != nil {
		t.Fatal(err)
	}
	if groups := shimGroups(t, m.ID); len(groups) > 0 {
		t.Errorf("left: %v", groups)
	}
}

// shimGroups are the cgroups of a sprite's shims.
func shimGroups(t *testing.T, id string) (all []string) {
	t.Helper()
	err := filepath.WalkDir(cgroup.Mount, func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) { // others come and go
			return nil
		}
		if err == nil && d.IsDir() && strings.HasPrefix(d.Name(), "cove-"+id) && strings.HasSuffix(d.Name(), cgroup.ShimSuffix) {
			all = append(all, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// A sandbox that does not start is started once more, and nothing is left of the first.
func TestBootOnceMore(t *testing.T) {
	need.Root(t)
	t.Parallel() // it waits
	rt := newRuntime(t, t.TempDir())
	hung := filepath.Join(t.TempDir(), "hung")
	script := filepath.Join(t.TempDir(), "runsc")
	text := fmt.Sprintf(`#!/bin/sh
case " $* " in *" run --detach "*)
	if ! [ -e %[1]s ]; then
		sh -c 'echo $$ >%[1]s; while :; do sleep 1; done' sh "$@" &
		exec sleep 1000
	fi
esac
exec %[2]s "$@"
`, hung, rt.Runsc)
	executable.Write(t, script, text)
	rt.Runsc = script
	m := sprite.Machine{ID: "00112233aabbccee", Hostname: "paint", MachineID: strings.Repeat("0", 32), Incarnation: 1, Layers: []string{"1111222233334444"}}
	sb, err := rt.Boot(t.Context(), m)
	if err != nil {
		t.Fatal(err)
	}
	if why := sb.Status().Unused; why != "" {
		t.Errorf("a memory could not be used: %s", why)
	}
	if err := sb.Stop(t.Context(), 0); err != nil {
		t.Error(err)
	}
	pid, err := os.ReadFile(hung)
	if err != nil {
		t.Fatal("the first one started")
	}
	if argv, err := os.ReadFile("/proc/" + strings.TrimSpace(string(pid)) + "/cmdline"); err == nil && len(argv) > 0 { // else it is a zombie, at most
		t.Errorf("a process of the first one lives: %q", argv)
	}
}

// left makes a sandbox without a shim, as a server and a shim leave it that are killed.
func left(t *testing.T, dir string) sprite.Machine {
	t.Helper()
	need.Root(t)
	rt := &Runtime{Dir: dir, Shim: []string{filepath.Join(bin, "cove"), "shim"}, Runsc: filepath.Join(bin, "cove-runsc"), Guest: filepath.Join(bin, "cove-guest")}
	m := sprite.Machine{ID: "00112233aabbccdd", Hostname: "paint", MachineID: strings.Repeat("0", 32), Incarnation: 1, Layers: []string{"1111222233334444"}}
	_, err := rt.Boot(t.Context(), m)
	if err := errors.Join(err, rt.Close()); err != nil {
		t.Fatal(err)
	}
	killShim(t, folder(rt.Dir).run(m.ID))
	return m
}

// killShim ends the shim that serves a sandbox's folder, and returns when it is gone.
func killShim(t *testing.T, dir string) {
	t.Helper()
	conn, err := net.Dial("unix", filepath.Join(dir, "shim.sock"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	raw, err := conn.(*net.UnixConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var peer *unix.Ucred
	var peerErr error
	if err := errors.Join(raw.Control(func(fd uintptr) {
		peer, peerErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}), peerErr); err != nil {
		t.Fatal(err)
	}
	if err := unix.Kill(int(peer.Pid), unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	dead := func() bool { // another may look after the sandbox by now
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", peer.Pid))
		return err != nil || strings.Contains(string(stat), ") Z ")
	}
	for deadline := time.Now().Add(lastResort); !dead(); <-time.After(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the shim lives")
		}
	}
}
