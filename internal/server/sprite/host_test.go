package sprite_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/server/archive"
	"github.com/cove-dev/cove/internal/server/sprite"
	"github.com/cove-dev/cove/internal/server/store"
	"github.com/cove-dev/cove/internal/shim/connect"
	"github.com/cove-dev/cove/internal/shim/layers"
	"github.com/cove-dev/cove/internal/shim/policy"
	"github.com/cove-dev/cove/sprites"
)

// memory is a Runtime of sandboxes that have a life and nothing in it.
type memory struct {
	mu        sync.Mutex
	boots     int
	hold      chan struct{} // if not nil, Boot waits until it is closed
	err       error         // of Boot
	refuse    error         // of Destroy
	keep      chan struct{} // if not nil, Destroy waits until it is closed
	inside    func() string // what a guest says to any call; nil: nobody listens
	pauses    bool          // its sandboxes are Pausers
	stuck     error         // of Resume
	live      map[string]*fakeSandbox
	destroyed []string
	removed   []string // layers
}

func (r *memory) Boot(ctx context.Context, m sprite.Machine) (sprite.Sandbox, error) {
	r.mu.Lock()
	r.boots++
	hold, err := r.hold, r.err
	r.mu.Unlock()
	if hold != nil {
		select {
		case <-hold:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.live[m.ID] != nil {
		return nil, errors.New("live already")
	}
	sb := &fakeSandbox{runtime: r, machine: m, done: make(chan struct{})}
	if r.live == nil {
		r.live = map[string]*fakeSandbox{}
	}
	r.live[m.ID] = sb
	if r.pauses {
		return &fakePauser{sb}, nil
	}
	return sb, nil
}

func (r *memory) Live(context.Context) ([]sprite.Sandbox, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var live []sprite.Sandbox
	for _, sb := range r.live {
		live = append(live, sb)
	}
	return live, nil
}

func (r *memory) Destroy(_ context.Context, id string) error {
	r.mu.Lock()
	keep := r.keep
	r.mu.Unlock()
	if keep != nil {
		<-keep
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.refuse != nil {
		return r.refuse
	}
	r.destroyed = append(r.destroyed, id)
	return nil
}

func (r *memory) RemoveLayer(_ context.Context, layer string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.removed = append(r.removed, layer)
	return nil
}

// A memory has nothing on a disk, and no logs.

func (r *memory) Prepare() error                                                { return nil }
func (r *memory) Lost(string) string                                            { return "" }
func (r *memory) Occupied(string) error                                         { return nil }
func (r *memory) Unlimited() []string                                           { return nil }
func (r *memory) MemoryMB(limit int) int                                        { return limit }
func (r *memory) Logs(string, sprite.Log) []string                              { return nil }
func (r *memory) Mounted(context.Context) ([]string, error)                     { return nil, nil }
func (r *memory) Stock(context.Context) ([]sprite.Item, error)                  { return nil, nil }
func (r *memory) SetAside(context.Context, sprite.Item, string) (string, error) { return "", nil }
func (r *memory) Layers() sprite.LayerStore                                     { return nil }
func (r *memory) Memories() sprite.MemoryStore                                  { return nil }

func (r *memory) set(f func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f()
}

type fakeSandbox struct {
	runtime *memory
	machine sprite.Machine
	once    sync.Once
	done    chan struct{}
	why     string
	paused  bool
	ending  bool // it was told to end
}

// fakePauser is a fakeSandbox that can be paused.
type fakePauser struct{ *fakeSandbox }

func (s *fakePauser) Pause(context.Context) error {
	s.runtime.set(func() { s.paused = true })
	return nil
}

func (s *fakePauser) Resume(context.Context) (err error) {
	s.runtime.set(func() {
		if err = s.runtime.stuck; err == nil {
			s.paused = false
		}
	})
	return err
}

func (s *fakeSandbox) ID() string { return s.machine.ID }

// It has no network, no limits, and writes nothing.

func (s *fakeSandbox) SetNetwork(context.Context, policy.Set) error                     { return nil }
func (s *fakeSandbox) SetConnectors(context.Context, map[string]connect.Upstream) error { return nil }
func (s *fakeSandbox) Limit(context.Context, int, int) error                            { return nil }
func (s *fakeSandbox) WrittenBytes() (int64, error)                                     { return 0, nil }
func (s *fakeSandbox) UnnamedBytes() (int64, error)                                     { return 0, nil }

func (s *fakeSandbox) Dial(context.Context, int) (net.Conn, error) {
	s.runtime.mu.Lock()
	inside := s.runtime.inside
	s.runtime.mu.Unlock()
	if inside == nil {
		return nil, errors.New("nobody listens")
	}
	client, server := net.Pipe()
	go func() {
		defer server.Close()
		if _, err := http.ReadRequest(bufio.NewReader(server)); err == nil {
			_, _ = io.WriteString(server, "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n"+inside())
		}
	}()
	return client, nil
}

func (s *fakeSandbox) Status() sprite.SandboxStatus {
	s.runtime.mu.Lock()
	defer s.runtime.mu.Unlock()
	return sprite.SandboxStatus{Incarnation: s.machine.Incarnation, Address: "10.0.0.1", Ended: s.why, Paused: s.paused, Stopping: s.ending}
}

func (s *fakeSandbox) Stop(context.Context, time.Duration) error { s.end("stopped"); return nil }

func (s *fakeSandbox) Done() <-chan struct{} { return s.done }

func (s *fakeSandbox) end(why string) {
	s.once.Do(func() {
		s.runtime.set(func() {
			delete(s.runtime.live, s.machine.ID)
			s.why = why
		})
		close(s.done)
	})
}

// start returns a host, to be ended by the cleanup; all of it is in t's bubble.
func start(t *testing.T, h *sprite.Host) *sprite.Host {
	t.Helper()
	st, err := store.Open(t.Context(), filepath.Join(t.TempDir(), "cove.db"))
	if err != nil {
		t.Fatal(err)
	}
	h.Store = st
	if err := h.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(h.Close(), st.Close()); err != nil {
			t.Error(err)
		}
	})
	return h
}

func create(t *testing.T, h *sprite.Host, name string) sprites.Info {
	t.Helper()
	info, err := h.Create(t.Context(), sprites.CreateRequest{Name: name})
	if err != nil {
		t.Fatal(err)
	}
	return info
}

func use(t *testing.T, h *sprite.Host, name string) *sprite.Lease {
	t.Helper()
	l, err := h.Use(t.Context(), name, "test")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func status(t *testing.T, h *sprite.Host, name string) sprites.Info {
	t.Helper()
	info, err := h.Get(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	return info
}

func wantCode(t *testing.T, what string, err error, code string) {
	t.Helper()
	if e, ok := errors.AsType[*fail.Error](err); !ok || e.Code != code {
		t.Errorf("%s: got error %v, want code %s", what, err, code)
	}
}

func TestNames(t *testing.T) {
	for name, ok := range map[string]bool{
		"a": true, "7": true, "paint-2": true, "a--b": true, strings.Repeat("a", 63): true,
		"": false, "-a": false, "a-": false, "A": false, "a_b": false, "a.b": false, "a/b": false, "..": false, "ä": false, "a\n": false,
		strings.Repeat("a", 64): false,
	} {
		if err := sprite.CheckName(name); (err == nil) != ok {
			t.Errorf("CheckName(%q): got %v", name, err)
		}
	}
}

func TestCreate(t *testing.T) {
	rt := &memory{}
	h := start(t, &sprite.Host{Runtime: rt, IdleDefault: time.Minute})
	info := create(t, h, "paint")
	if info.Status != sprites.StatusCold || len(info.ID) != 16 || info.Cove.IdleSeconds != 60 || info.Cove.Base != "host" || rt.boots != 0 {
		t.Errorf("got %+v after %d boots", info, rt.boots)
	}
	_, err := h.Create(t.Context(), sprites.CreateRequest{Name: "paint"})
	wantCode(t, "a taken name", err, sprite.CodeNameTaken)
	for what, req := range map[string]sprites.CreateRequest{
		"base":    {Name: "x", Base: "moon"},
		"include": {Name: "x", Include: []string{"/a/../etc"}},
		"root":    {Name: "x", Include: []string{"/"}},
		"config":  {Name: "x", Config: &sprites.Config{RAMMB: -1}},
		"env":     {Name: "x", Environment: map[string]string{"A=": "b"}},
		"label":   {Name: "x", Labels: []string{"a\x1b[m"}},
		"url":     {Name: "x", URLSettings: &sprites.URLSettings{Auth: "all"}},
		"idle":    {Name: "x", IdleSeconds: new(int64(-1))},
	} {
		_, err := h.Create(t.Context(), req)
		wantCode(t, what, err, sprite.CodeBadRequest)
	}
	for what, config := range map[string]sprites.Config{"CPUs": {CPUs: 100_000}, "memory": {RAMMB: 1 << 40}} {
		_, err := h.Create(t.Context(), sprites.CreateRequest{Name: "x", Config: &config})
		wantCode(t, what, err, sprite.CodeTooMuch)
	}
	_, err = h.Get(t.Context(), "nobody")
	wantCode(t, "Get of nothing", err, sprite.CodeNotFound)
	_, err = h.Use(t.Context(), "../x", "test")
	wantCode(t, "Use of a bad name", err, sprite.CodeNotFound)
}

// The server's own folder is not shown to a sprite, by whatever name.
func TestIncludeData(t *testing.T) {
	dir := t.TempDir()
	data, link := filepath.Join(dir, "data"), filepath.Join(dir, "link")
	beside := filepath.Join(dir, "data2")
	if err := errors.Join(os.MkdirAll(filepath.Join(data, "base"), 0o700), os.Mkdir(beside, 0o700), os.Symlink(data, link)); err != nil {
		t.Fatal(err)
	}
	h := start(t, &sprite.Host{Runtime: &memory{}, Data: data})
	for _, include := range []string{data, dir, filepath.Join(data, "base"), link, filepath.Join(link, "base")} {
		_, err := h.Create(t.Context(), sprites.CreateRequest{Name: "x", Include: []string{include}})
		wantCode(t, include, err, sprite.CodeBadRequest)
	}
	if _, err := h.Create(t.Context(), sprites.CreateRequest{Name: "x", Include: []string{beside}}); err != nil {
		t.Error(err)
	}
}

func TestOneBootForAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt := &memory{hold: make(chan struct{})}
		h := start(t, &sprite.Host{Runtime: rt, IdleDefault: time.Minute})
		create(t, h, "paint")

		first, cancel := context.WithCancel(t.Context())
		gaveUp := make(chan error)
		go func() {
			_, err := h.Use(first, "paint", "first")
			gaveUp <- err
		}()
		synctest.Wait()
		leases := make(chan *sprite.Lease, 10)
		for range cap(leases) {
			go func() { leases <- use(t, h, "paint") }()
		}
		synctest.Wait()
		cancel() // who came first gives up; the others don't notice
		if err := <-gaveUp; !errors.Is(err, context.Canceled) {
			t.Errorf("the cancelled caller: got %v", err)
		}
		if got := status(t, h, "paint").Cove.AwakeBy; len(got) != 1 || got[0] != "test" {
			t.Errorf("kept awake by %q", got)
		}
		if got := status(t, h, "paint").Cove.WokenBy; got != "first" {
			t.Errorf("woken by %q", got)
		}
		close(rt.hold)
		sandbox := (<-leases).Sandbox()
		for range cap(leases) - 1 {
			if l := <-leases; l.Sandbox() != sandbox {
				t.Error("two sandboxes")
			}
		}
		info := status(t, h, "paint")
		if rt.boots != 1 || info.Status != sprites.StatusRunning || info.Cove.Incarnation != 1 || info.LastRunning == nil {
			t.Errorf("after %d boots: %+v", rt.boots, info)
		}
	})
}

func TestBootGoesOnWithoutCallers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt := &memory{hold: make(chan struct{})}
		h := start(t, &sprite.Host{Runtime: rt, IdleDefault: time.Minute})
		create(t, h, "paint")
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := h.Use(ctx, "paint", "test"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
		close(rt.hold)
		synctest.Wait()
		if got := status(t, h, "paint").Status; got != sprites.StatusRunning {
			t.Errorf("got %s", got)
		}
		time.Sleep(61 * time.Second) // and as nobody uses it, it sleeps
		synctest.Wait()
		if got := status(t, h, "paint").Status; got != sprites.StatusCold {
			t.Errorf("unused: got %s", got)
		}
	})
}

func TestIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt := &memory{}
		h := start(t, &sprite.Host{Runtime: rt, IdleDefault: time.Minute})
		create(t, h, "paint")
		l := use(t, h, "paint")
		time.Sleep(time.Hour)
		if got := status(t, h, "paint").Status; got != sprites.StatusRunning {
			t.Fatalf("in use: got %s", got)
		}
		l.Release()
		l.Release()
		time.Sleep(59 * time.Second)
		use(t, h, "paint").Release() // begins the minute anew
		time.Sleep(59 * time.Second)
		synctest.Wait()
		if got := status(t, h, "paint").Status; got != sprites.StatusRunning {
			t.Fatalf("before its time: got %s", got)
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if info := status(t, h, "paint"); info.Status != sprites.StatusCold || info.Cove.LastError != "" {
			t.Fatalf("after its time: got %+v", info)
		}
		use(t, h, "paint").Release()
		if rt.boots != 2 {
			t.Errorf("got %d boots, want 2", rt.boots)
		}

		if _, err := h.Update(t.Context(), "paint", sprites.UpdateRequest{IdleSeconds: new(int64(0))}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(24 * time.Hour)
		synctest.Wait()
		if got := status(t, h, "paint").Status; got != sprites.StatusRunning {
			t.Errorf("one that never sleeps: got %s", got)
		}
	})
}

// TestPause: a sprite is paused when it is idle, and hibernated later. Changed times
// count at once. Nobody asks a paused guest anything.
func TestPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked := 0
		rt := &memory{pauses: true}
		rt.inside = func() string { asked++; return "{}" }
		h := start(t, &sprite.Host{Runtime: rt, IdleDefault: time.Minute, HibernateDefault: time.Hour, MaxRunning: 1})
		create(t, h, "paint")
		stage := func(wait time.Duration, want sprites.Status, paused bool) {
			t.Helper()
			time.Sleep(wait)
			synctest.Wait()
			if info := status(t, h, "paint"); info.Status != want || info.Cove.Paused != paused {
				t.Fatalf("after %v: got %s, paused: %v", wait, info.Status, info.Cove.Paused)
			}
		}
		use(t, h, "paint").Release()
		stage(59*time.Second, sprites.StatusRunning, false)
		stage(2*time.Second, sprites.StatusWarm, true)
		if counts, err := h.Store.Sprites.Count(t.Context(), store.SpriteFilter{}); err != nil || counts[sprites.StatusWarm] != 1 {
			t.Errorf("the store counts %v, %v", counts, err)
		}
		before := asked
		if _, err := h.Describe(t.Context(), "paint"); err != nil || asked != before {
			t.Errorf("paused, it was asked %d times, %v", asked-before, err)
		}
		if sb, err := h.Live(t.Context(), "paint"); sb != nil || err != nil {
			t.Errorf("paused, it is live: %v, %v", sb, err)
		}
		create(t, h, "other")
		use(t, h, "other").Release() // a paused one takes no place
		_, err := h.Use(t.Context(), "paint", "test")
		wantCode(t, "waking one too many", err, sprite.CodeRunningLimit)
		if err := h.Stop(t.Context(), "other"); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		l := use(t, h, "paint")
		stage(time.Hour, sprites.StatusRunning, false)
		l.Release()
		stage(61*time.Second, sprites.StatusWarm, true)
		stage(58*time.Minute, sprites.StatusWarm, true)
		stage(2*time.Minute, sprites.StatusCold, false)
		if rt.boots != 2 {
			t.Errorf("got %d boots", rt.boots)
		}

		update := func(idle, hibernate int64) {
			t.Helper()
			if _, err := h.Update(t.Context(), "paint", sprites.UpdateRequest{IdleSeconds: &idle, HibernateSeconds: &hibernate}); err != nil {
				t.Fatal(err)
			}
		}
		update(60, 60) // as soon as it sleeps
		use(t, h, "paint").Release()
		stage(59*time.Second, sprites.StatusRunning, false)
		stage(2*time.Second, sprites.StatusCold, false)
		update(60, 0)
		use(t, h, "paint").Release()
		stage(1000*time.Hour, sprites.StatusWarm, true)
		update(60, 120)
		stage(61*time.Second, sprites.StatusCold, false)

		update(60, 0)
		use(t, h, "paint").Release()
		stage(61*time.Second, sprites.StatusWarm, true)
		rt.set(func() { rt.stuck = errors.New("stuck") })
		_, err = h.Use(t.Context(), "paint", "test")
		wantCode(t, "waking one that is stuck", err, sprite.CodeUnavailable)
		if _, err := h.Checkpoint(t.Context(), "paint", sprites.CheckpointRequest{}); err == nil || !strings.Contains(err.Error(), "does not resume") {
			t.Errorf("a checkpoint of one that is stuck: %v", err)
		}
		stage(0, sprites.StatusWarm, true)
		if err := h.Stop(t.Context(), "paint"); err != nil {
			t.Fatal(err)
		}
		stage(0, sprites.StatusCold, false)
	})
}

// TestIdleAfterActivity: the idle time begins when the last command has ended.
func TestIdleAfterActivity(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		end := time.Now().Add(150 * time.Second)
		rt := &memory{inside: func() string {
			if left := time.Until(end); left > 0 {
				return `{"sessions":1}`
			}
			return fmt.Sprintf(`{"quiet_seconds":%g}`, time.Since(end).Seconds())
		}}
		h := start(t, &sprite.Host{Runtime: rt, IdleDefault: time.Minute})
		create(t, h, "paint")
		use(t, h, "paint").Release()
		time.Sleep(209 * time.Second)
		synctest.Wait()
		if got := status(t, h, "paint").Status; got != sprites.StatusRunning {
			t.Errorf("59 s after the command: got %s", got)
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if got := status(t, h, "paint").Status; got != sprites.StatusCold {
			t.Errorf("61 s after the command: got %s", got)
		}
		// No answer of a guest makes its sandbox end at another time.
		for _, said := range []string{`{"quiet_seconds":-1e300}`, `{"quiet_seconds":1e300}`, `{"quiet_seconds":"x"}`, `{}`} {
			rt.set(func() { rt.inside = func() string { return said } })
			use(t, h, "paint").Release()
			time.Sleep(59 * time.Second)
			synctest.Wait()
			if got := status(t, h, "paint").Status; got != sprites.StatusRunning {
				t.Errorf("%s: got %s after 59 s", said, got)
			}
			rt.set(func() { rt.inside = nil })
			time.Sleep(time.Hour)
			synctest.Wait()
		}
	})
}

func TestSandboxDeath(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt := &memory{}
		h := start(t, &sprite.Host{Runtime: rt})
		create(t, h, "paint")
		l := use(t, h, "paint")
		l.Sandbox().(*fakeSandbox).end("out of memory")
		again := use(t, h, "paint") // at once, whether or not the death has been noticed
		if again.Sandbox() == l.Sandbox() || rt.boots != 2 {
			t.Errorf("got the dead sandbox, or %d boots", rt.boots)
		}
		synctest.Wait()
		if info := status(t, h, "paint"); info.Status != sprites.StatusRunning || info.Cove.Incarnation != 2 {
			t.Errorf("got %+v", info)
		}
		again.Sandbox().(*fakeSandbox).end("killed")
		synctest.Wait()
		if info := status(t, h, "paint"); info.Status != sprites.StatusCold || info.Cove.LastError != "its sandbox ended: killed" {
			t.Errorf("after the death: got %+v, %+v", info, info.Cove)
		}
		if n, err := h.Store.Sprites.Count(t.Context(), store.SpriteFilter{}); err != nil || n[sprites.StatusCold] != 1 {
			t.Errorf("in the store: got %v, %v", n, err)
		}
	})
}

func TestBootFailure(t *testing.T) {
	rt := &memory{err: errors.New("no room")}
	h := start(t, &sprite.Host{Runtime: rt})
	create(t, h, "paint")
	_, err := h.Use(t.Context(), "paint", "test")
	wantCode(t, "a failing boot", err, sprite.CodeBootFailed)
	if info := status(t, h, "paint"); info.Cove.LastError != "no room" || len(info.Cove.AwakeBy) != 0 {
		t.Errorf("got %+v", info.Cove)
	}
	rt.set(func() { rt.err = nil })
	use(t, h, "paint").Release()
	if info := status(t, h, "paint"); info.Cove.LastError != "" || info.Cove.Incarnation != 2 {
		t.Errorf("after a good one: got %+v", info.Cove)
	}
}

func TestMaxRunning(t *testing.T) {
	h := start(t, &sprite.Host{Runtime: &memory{}, MaxRunning: 1})
	create(t, h, "one")
	create(t, h, "two")
	use(t, h, "one")
	use(t, h, "one")
	_, err := h.Use(t.Context(), "two", "test")
	wantCode(t, "one too many", err, sprite.CodeRunningLimit)
}

func TestDelete(t *testing.T) {
	rt := &memory{}
	h := start(t, &sprite.Host{Runtime: rt})
	info := create(t, h, "paint")
	l := use(t, h, "paint")
	jobs := h.Store.Jobs
	if err := jobs.Create(t.Context(), cove.Job{ID: "a1b2c3", State: cove.JobRunning, JobSettings: cove.JobSettings{Sprite: "paint"}}, nil); err != nil {
		t.Fatal(err)
	}
	wantCode(t, "under a job", h.Delete(t.Context(), "paint", false), sprite.CodeJobRunning)
	_, err := jobs.Finish(t.Context(), "a1b2c3", cove.JobFailed, cove.Outcome{}, func(j *cove.Job) { j.Bundle.Size = 1 })
	if err != nil {
		t.Fatal(err)
	}
	wantCode(t, "with unpulled work", h.Delete(t.Context(), "paint", false), sprite.CodeUnpulledWork)
	if got := status(t, h, "paint").Status; got != sprites.StatusRunning {
		t.Errorf("after refusals: got %s", got)
	}

	rt.set(func() { rt.refuse = errors.New("busy disk") })
	if err := h.Delete(t.Context(), "paint", true); err == nil {
		t.Error("a failing delete succeeded")
	}
	_, err = h.Use(t.Context(), "paint", "test")
	wantCode(t, "use after a half delete", err, sprite.CodeDeleting)
	rt.set(func() { rt.refuse = nil })
	if err := h.Delete(t.Context(), "paint", true); err != nil {
		t.Fatal(err)
	}
	if <-l.Sandbox().Done(); len(rt.destroyed) != 1 || rt.destroyed[0] != info.ID {
		t.Errorf("destroyed %q", rt.destroyed)
	}
	_, err = h.Get(t.Context(), "paint")
	wantCode(t, "Get after Delete", err, sprite.CodeNotFound)
	wantCode(t, "second Delete", h.Delete(t.Context(), "paint", true), sprite.CodeNotFound)
	l.Release()
	create(t, h, "paint")
}

func TestStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt := &memory{}
		h := start(t, &sprite.Host{Runtime: rt, IdleDefault: time.Minute})
		create(t, h, "paint")
		stop := func() {
			t.Helper()
			if err := h.Stop(t.Context(), "paint"); err != nil {
				t.Error(err)
			}
		}
		stop() // of one that has never been used
		l := use(t, h, "paint")
		stop() // though it is in use
		<-l.Sandbox().Done()
		stop() // of one that sleeps
		synctest.Wait()
		if info := status(t, h, "paint"); info.Status != sprites.StatusCold || info.Cove.LastError != "" || rt.boots != 1 || len(rt.destroyed) != 0 {
			t.Errorf("after %d boots: %+v", rt.boots, info)
		}
		l.Release()
		again := use(t, h, "paint")
		if again.Sandbox() == l.Sandbox() || rt.boots != 2 {
			t.Errorf("the next use gets the old sandbox, or the %dth", rt.boots)
		}
		again.Release()
		time.Sleep(61 * time.Second) // the timer of the sandbox that was stopped is not that of the next
		synctest.Wait()
		if len(rt.live) != 0 {
			t.Error("it does not sleep any more")
		}

		// A stop waits for a start, and a delete comes first.
		rt.set(func() { rt.hold = make(chan struct{}) })
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := h.Use(ctx, "paint", "test"); !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
		stopped := make(chan error)
		go func() { stopped <- h.Stop(t.Context(), "paint") }()
		synctest.Wait()
		close(rt.hold)
		if err := <-stopped; err != nil || len(rt.live) != 0 {
			t.Errorf("got %v, and %d sandboxes", err, len(rt.live))
		}
		rt.set(func() { rt.refuse = errors.New("busy disk") })
		if h.Delete(t.Context(), "paint", false) == nil {
			t.Error("a failing delete succeeded")
		}
		wantCode(t, "stop after a half delete", h.Stop(t.Context(), "paint"), sprite.CodeDeleting)
		wantCode(t, "stop of nothing", h.Stop(t.Context(), "none"), sprite.CodeNotFound)
	})
}

func TestDeleteWaitsForABoot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt := &memory{hold: make(chan struct{})}
		h := start(t, &sprite.Host{Runtime: rt})
		create(t, h, "paint")
		used := make(chan error, 1)
		go func() {
			_, err := h.Use(t.Context(), "paint", "test")
			used <- err
		}()
		synctest.Wait()
		deleted := make(chan error, 1)
		go func() { deleted <- h.Delete(t.Context(), "paint", false) }()
		synctest.Wait()
		close(rt.hold)
		if err := <-deleted; err != nil {
			t.Fatal(err)
		}
		wantCode(t, "the use", <-used, sprite.CodeDeleting)
		if len(rt.live) != 0 || len(rt.destroyed) != 1 {
			t.Errorf("%d live, %d destroyed", len(rt.live), len(rt.destroyed))
		}
	})
}

// TestRestart: a server takes up the sandboxes of the last one. After a kill in a restore, a
// sandbox is about to end. It gets no call: the next use boots another after its end.
func TestRestart(t *testing.T) {
	rt := &memory{}
	h := start(t, &sprite.Host{Runtime: rt})
	for _, name := range []string{"alive", "dead", "half", "ending"} {
		create(t, h, name)
		use(t, h, name)
	}
	half := status(t, h, "half").ID
	if _, err := h.Store.Sprites.Update(t.Context(), half, func(s *store.Sprite) error { s.Deleting = true; return nil }); err != nil {
		t.Fatal(err)
	}
	if err := h.Close(); err != nil { // a server that ends leaves the sandboxes
		t.Fatal(err)
	}
	if len(rt.live) != 4 {
		t.Fatalf("%d sandboxes outlived the server, want 4", len(rt.live))
	}
	ending := rt.live[status(t, h, "ending").ID]
	ending.ending = true
	rt.live[status(t, h, "dead").ID].end("killed")
	stray, err := rt.Boot(t.Context(), sprite.Machine{ID: "ffffffffffffffff"})
	if err != nil {
		t.Fatal(err)
	}

	next := &sprite.Host{Runtime: rt, Store: h.Store}
	if err := next.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	<-stray.Done()
	use(t, next, "ending")
	select {
	case <-ending.Done():
	default:
		t.Error("a sandbox that was about to end was used")
	}
	if err := next.Close(); err != nil { // waits for the half delete
		t.Fatal(err)
	}
	if got := status(t, next, "alive"); got.Status != sprites.StatusRunning || got.Cove.Incarnation != 1 {
		t.Errorf("the live one: got %+v", got)
	}
	if got := status(t, next, "ending"); got.Status != sprites.StatusRunning || got.Cove.Incarnation != 2 {
		t.Errorf("the one that was about to end: got %+v", got)
	}
	if got := status(t, next, "dead"); got.Status != sprites.StatusCold || got.Cove.LastError == "" {
		t.Errorf("the dead one: got %+v", got)
	}
	_, err = next.Get(t.Context(), "half")
	wantCode(t, "the half deleted one", err, sprite.CodeNotFound)
}

// noLayers is a LayerStore in a folder, without any layer in it.
type noLayers string

var errNoLayers = errors.New("there are no layers here")

func (n noLayers) Dir(layer string) layers.Dir {
	return layers.Dir{Path: filepath.Join(string(n), layer)}
}

func (noLayers) Open(context.Context, string, []string) (sprite.Disk, error) { return nil, errNoLayers }
func (noLayers) Merge(context.Context, string, []string) error               { return errNoLayers }
func (noLayers) Base(context.Context, string) (archive.Base, error) {
	return archive.Base{}, errNoLayers
}
func (noLayers) Under(string) (string, error)                            { return "", nil }
func (noLayers) Stage(context.Context) (layers.Dir, error)               { return layers.Dir{}, errNoLayers }
func (noLayers) Adopt(context.Context, layers.Dir, string, string) error { return errNoLayers }

// disks is a Runtime whose disks are opened when they may be.
type disks struct {
	memory
	noLayers
	reading, read chan struct{}
}

func (r *disks) Layers() sprite.LayerStore { return r }

func (r *disks) Open(context.Context, string, []string) (sprite.Disk, error) {
	close(r.reading)
	<-r.read
	return nil, errors.New("read enough")
}

// TestDeleteWhileRead: a layer that is being read outlives its sprite, and goes when
// it has been read.
func TestDeleteWhileRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &disks{noLayers: noLayers(t.TempDir()), reading: make(chan struct{}), read: make(chan struct{})}
		h := start(t, &sprite.Host{Runtime: r})
		create(t, h, "paint")
		diffed := make(chan error, 1)
		go func() {
			diffed <- h.Diff(t.Context(), "paint", sprite.CurrentState, sprite.CurrentState, func(sprites.DiffEntry) error { return nil })
		}()
		<-r.reading
		if err := h.Delete(t.Context(), "paint", false); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		r.set(func() {
			if len(r.removed) > 0 {
				t.Errorf("removed while it is read: %q", r.removed)
			}
		})
		close(r.read)
		if err := <-diffed; err == nil {
			t.Error("got no error")
		}
		synctest.Wait()
		r.set(func() {
			if len(r.removed) != 1 {
				t.Errorf("got %q removed, want the layer", r.removed)
			}
		})
	})
}

// TestCloseAfterFailedStart: a Host that could not start can be closed.
func TestCloseAfterFailedStart(t *testing.T) {
	st, err := store.Open(t.Context(), filepath.Join(t.TempDir(), "cove.db"))
	if err == nil {
		err = st.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	h := &sprite.Host{Store: st, Runtime: &memory{}}
	if err := h.Start(t.Context()); err == nil {
		t.Error("it has started without a store")
	}
	if err := h.Close(); err != nil {
		t.Error(err)
	}
}
