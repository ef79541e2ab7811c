// Package gvisor is the sprite.Runtime that runs each sandbox under gVisor,
// looked after by a shim process of its own.
package gvisor

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cove-dev/cove/internal/lib/boot"
	"github.com/cove-dev/cove/internal/lib/fault"
	"github.com/cove-dev/cove/internal/server/sprite"
	"github.com/cove-dev/cove/internal/shim"
	"github.com/cove-dev/cove/internal/shim/base"
	"github.com/cove-dev/cove/internal/shim/cgroup"
	"github.com/cove-dev/cove/internal/shim/connect"
	"github.com/cove-dev/cove/internal/shim/kernel"
	"github.com/cove-dev/cove/internal/shim/layers"
	"github.com/cove-dev/cove/internal/shim/policy"
)

// hostPidsMax is the host's backstop behind the limit inside of the sandbox:
// gVisor needs host threads of its own, and ends in a panic without them.
const hostPidsMax = 10 * boot.PidsMax

// Runtime runs sandboxes with gVisor. Set the exported fields before use; Close
// leaves the sandboxes running.
type Runtime struct {
	Dir    string       // the server's data folder
	Shim   []string     // command line of the shim process
	Runsc  string       // path of cove-runsc
	Guest  string       // path of cove-guest
	UserNS bool         // this process is root in a user namespace only
	Logger *slog.Logger // nil: discard

	// Patience is how long the guest of a sandbox that was restored may take to answer,
	// before its sandbox is ended; 0: shim.BootTimeout.
	Patience time.Duration

	once   sync.Once
	wg     sync.WaitGroup
	closed chan struct{}

	preparing sync.Mutex
	prepared  *prepared // nil: not yet; guarded by preparing
	hider     base.Hider

	losing sync.Mutex
	lost   map[string]string // by sprite: see Lost; guarded by losing

	asiding sync.Mutex

	placing sync.Mutex // held while the server's processes are moved to a cgroup of their own
	aside   string     // where this server moves what is in the way; empty: nothing yet; guarded by asiding
}

// prepared is what all sandboxes of this server start from.
type prepared struct {
	base  base.Base
	guest string // folder holding cove-guest by digest
	build string // what memory images depend on
}

func (r *Runtime) init() {
	r.once.Do(func() {
		if r.Logger == nil {
			r.Logger = slog.New(slog.DiscardHandler)
		}
		r.closed = make(chan struct{})
	})
}

// prepare makes what all sandboxes start from, once; what fails is tried again by
// the next sandbox.
func (r *Runtime) prepare() (prepared, error) {
	r.preparing.Lock()
	defer r.preparing.Unlock()
	if r.prepared != nil {
		return *r.prepared, nil
	}
	guest, err := installGuest(r.Guest, filepath.Join(r.Dir, "guest"))
	if err != nil {
		return prepared{}, err
	}
	files := base.Files{User: base.User{Name: boot.User, UID: boot.UID, GID: boot.GID, Home: boot.Home}}
	b, err := files.Prepare(filepath.Join(r.Dir, "base"))
	if err != nil {
		return prepared{}, err
	}
	r.hider.Files, r.hider.Dir, r.hider.Own = files, filepath.Join(r.Dir, "base"), r.UserNS
	if b.Mask, err = r.firstMask(); err != nil {
		return prepared{}, err
	}
	if n := len(b.Mask.Hidden); n > 0 {
		r.Logger.Info("hidden from sprites: other users of this machine may not read it", "count", n, "first", "/"+b.Mask.Hidden[0])
	}
	if open := files.Unguarded(); len(open) > 0 {
		r.Logger.Warn("a file of this machine's programs that becomes secret stays readable to the sandboxes that run: its folder is an overlay itself (cove doctor says what to do)", "folders", "/"+strings.Join(open, " /"))
	}
	build, err := buildOf(r.Runsc, guest)
	if err != nil {
		return prepared{}, err
	}
	r.prepared = &prepared{base: b, guest: guest, build: build}
	return *r.prepared, nil
}

// current is prepare for what is about to be mounted: the mask is that of now.
func (r *Runtime) current() (prepared, error) {
	asked := time.Now()
	prep, err := r.prepare()
	if err != nil {
		return prepared{}, err
	}
	if prep.base.Mask, err = r.hider.MaskSince(asked); err != nil {
		return prepared{}, err
	}
	if r.hider.Stale() {
		r.wg.Go(func() {
			if err := r.hider.Renew(); err != nil {
				r.Logger.Error("hiding what other users may not read", "err", err)
			}
		})
	}
	r.preparing.Lock()
	defer r.preparing.Unlock()
	r.prepared.base.Mask = prep.base.Mask
	return prep, nil
}

// Prepare makes what the first sandbox would otherwise have to wait for.
func (r *Runtime) Prepare() error {
	r.init()
	_, err := r.prepare()
	return err
}

// Close stops looking after sandboxes, which go on running, and waits for its
// goroutines.
func (r *Runtime) Close() error {
	r.init()
	close(r.closed)
	r.wg.Wait()
	return nil
}

func (r *Runtime) runDir(id string) string { return filepath.Join(r.Dir, "run", id) }

// Boot starts the sandbox of a cold sprite.
func (r *Runtime) Boot(ctx context.Context, m sprite.Machine) (sprite.Sandbox, error) {
	r.init()
	if m.Base != "" && m.Base != base.Host {
		return nil, fmt.Errorf("boot %s: unknown base %q, want %q", m.Hostname, m.Base, base.Host)
	}
	for _, dir := range m.Include {
		if st, err := os.Stat(dir); err != nil || !st.IsDir() || !filepath.IsAbs(dir) {
			return nil, fmt.Errorf("boot %s: included %s is no folder of this machine", m.Hostname, dir)
		}
	}
	prep, err := r.current()
	if err != nil {
		return nil, err
	}
	disk, err := r.disk(m.Layers, prep.base)
	if err != nil {
		return nil, fmt.Errorf("boot %s: %w", m.Hostname, err)
	}
	shown, err := json.Marshal(m.NetworkPolicy)
	if err != nil {
		return nil, fmt.Errorf("boot %s: %w", m.Hostname, err)
	}
	image, err := r.takeImage(m.ID)
	if err != nil {
		return nil, fmt.Errorf("boot %s: %w", m.Hostname, err)
	}
	if image != "" {
		fault.Reach(fault.WakeTaken)
	}
	share := shareOf(cgroup.Process{}.Limits(), m.MemoryMB, m.CPUs)
	state, err := r.startShim(ctx, shim.Config{
		Dir: r.runDir(m.ID), Runsc: r.Runsc, Guest: prep.guest,
		ID: m.ID, Hostname: m.Hostname, MachineID: m.MachineID, Incarnation: m.Incarnation,
		Token: newToken(), Env: m.Env, Include: m.Include,
		Layers: m.Layers, Disk: disk, Cgroups: r.cgroupPlace(), MemoryMB: share.memoryMB, CPUs: share.cpus, PidsMax: share.hostTasks, Tasks: share.tasks, Connectors: m.Connectors, Network: &m.Network, NetworkPolicy: shown,
		Build: prep.build, Image: image, Patience: r.Patience,
	})
	if errors.Is(err, errShimDied) {
		r.endUnborn(ctx, m.ID)
	}
	var failed *startError
	switch {
	case image == "":
	case errors.As(err, &failed) && failed.Asleep:
		err = errors.Join(err, os.Rename(image, r.imageDir(m.ID)))
	default: // used up
		r.wg.Go(func() { _ = layers.Remove(image) }) // else by the next start
	}
	if err != nil {
		return nil, fmt.Errorf("boot %s: %w", m.Hostname, err)
	}
	s := r.follow(m.ID, state)
	s.setNetwork(m.Network)
	s.setConnectors(m.Connectors)
	return s, nil
}

// endUnborn ends what a shim has left that died while it started a sandbox. Another
// shim finds nothing to take up, and removes what there is; or it finds a sandbox, of
// which nobody knows how far it came.
func (r *Runtime) endUnborn(ctx context.Context, id string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), unbornLimit)
	defer cancel()
	state, err := r.adopt(ctx, id, nil, nil)
	if err == nil {
		err = r.follow(id, state).Stop(ctx, 0)
	}
	r.Logger.Warn("a shim died while it started a sandbox", "sandbox", id, "left", err)
}

const unbornLimit = 30 * time.Second

// RequestLogs are the files of a sandbox's requests through connectors.
func (r *Runtime) RequestLogs(id string) []string {
	path := filepath.Join(r.runDir(id), shim.RequestLog)
	return []string{path + shim.OldSuffix, path}
}

// MemoryLog is the file of a sandbox's processes that were ended for want of memory.
func (r *Runtime) MemoryLog(id string) string { return filepath.Join(r.runDir(id), shim.MemoryLog) }

// NetworkLogs are the files of what a sandbox was refused, or reached.
func (r *Runtime) NetworkLogs(id string, connections bool) []string {
	name := shim.RefusedLog
	if connections {
		name = shim.ConnectedLog
	}
	path := filepath.Join(r.runDir(id), name)
	return []string{path + shim.OldSuffix, path}
}

// SandboxLogs are the logs of a sandbox's shim, of runsc, what the guest printed, and what
// gVisor's kernel reported when it crashed.
func (r *Runtime) SandboxLogs(id string) []string {
	dir := r.runDir(id)
	var paths []string
	for _, name := range []string{"shim.log" + shim.OldSuffix, "shim.log", "guest.log", "runsc.log", kernel.Kept, kernel.Log} {
		paths = append(paths, filepath.Join(dir, name))
	}
	return paths
}

// Live takes up the sandboxes that an earlier server left running.
func (r *Runtime) Live(ctx context.Context) ([]sprite.Sandbox, error) {
	r.init()
	if err := layers.Remove(r.importsDir()); err != nil {
		r.Logger.Warn("removing what an import has left", "err", err)
	}
	entries, err := os.ReadDir(filepath.Join(r.Dir, "run"))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	var (
		mu   sync.Mutex
		live []sprite.Sandbox
		errs []error
		wg   sync.WaitGroup
		free = make(chan struct{}, takenUpAtOnce) // one that does not answer holds up no other
	)
	for _, e := range entries {
		id := e.Name()
		if dir := r.runDir(id); !shim.Held(dir) && !shim.Left(dir) {
			continue // logs of one that sleeps: a process for each would take long
		}
		free <- struct{}{}
		wg.Go(func() {
			defer func() { <-free }()
			state, err := r.takeUpOwn(ctx, id)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil:
				live = append(live, r.follow(id, state))
			case errors.Is(err, errElsewhere), errors.Is(err, sprite.ErrOccupied):
				lose(r, id, err)
			case !errors.Is(err, errGone):
				errs = append(errs, fmt.Errorf("take up sandbox %s: %w", id, err))
			}
		})
	}
	wg.Wait()
	return live, errors.Join(errs...)
}

const (
	takenUpAtOnce = 32

	// movePatience is for a shim that moves its sandbox while that is taken up. Then what
	// its file says is enough: which layers it has comes later, by Settle.
	movePatience = time.Second

	statusLimit = 30 * time.Second // for a shim to say what is, when something else went wrong
)

// takeUp is the state of a sandbox that an earlier server left, which has a shim then.
// That server may have started one for it just before it died, to which another loses.
func (r *Runtime) takeUp(ctx context.Context, id string) (shim.State, error) {
	tries := 3 // of shims that die
	for deadline := time.Now().Add(shim.BootTimeout); ; {
		state, err := r.booted(ctx, shim.Client{Dir: r.runDir(id)})
		if err != nil {
			state, err = r.adopt(ctx, id, nil, nil)
		}
		if errors.Is(err, errShimDied) {
			tries--
		}
		again := errors.Is(err, shim.ErrLocked) || errors.Is(err, errShimDied) && tries > 0
		if !again || time.Now().After(deadline) {
			return state, err
		}
	}
}

// booted is the state of a sandbox that a shim looks after. The last server may have
// been killed while one started it: that is waited for.
func (r *Runtime) booted(ctx context.Context, client shim.Client) (shim.State, error) {
	for deadline := time.Now().Add(shim.BootTimeout); ; {
		asking, cancel := context.WithTimeout(ctx, movePatience)
		state, err := client.Status(asking)
		cancel()
		if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
			if state, err = shim.ReadState(client.Dir); err != nil {
				err = fmt.Errorf("its shim does not answer: %w", err)
			}
			return state, err
		}
		if !shim.IsNoShim(err) || !shim.Held(client.Dir) || time.Now().After(deadline) {
			return state, err
		}
		select {
		case <-time.After(10 * time.Millisecond):
		case <-ctx.Done():
			return state, ctx.Err()
		}
	}
}

// adopt starts a shim for a sandbox whose shim died. Without a network
// nothing may be reached until one is set.
func (r *Runtime) adopt(ctx context.Context, id string, network *policy.Set, connectors map[string]connect.Upstream) (shim.State, error) {
	return r.startShim(ctx, shim.Config{
		Dir: r.runDir(id), Runsc: r.Runsc, ID: id, Cgroups: r.cgroupPlace(), Connectors: connectors, Network: network, Adopt: true, Patience: r.Patience,
	})
}

// Destroy removes what is left of a sprite's sandboxes, of which none may live.
func (r *Runtime) Destroy(ctx context.Context, id string) error {
	r.init()
	if id == "" || id != filepath.Base(id) {
		return fmt.Errorf("destroy: bad sprite id %q", id)
	}
	if err := r.Occupied(id); err != nil {
		return fmt.Errorf("destroy %s: %w", id, err)
	}
	if st, err := shim.ReadState(r.runDir(id)); err == nil && st.PID != 0 {
		asking, cancel := context.WithTimeout(ctx, statusLimit)
		defer cancel()
		if _, err := (shim.Client{Dir: r.runDir(id)}).Status(asking); err == nil || errors.Is(err, context.DeadlineExceeded) {
			return fmt.Errorf("destroy %s: its sandbox is running", id)
		}
	}
	group := shim.RemoveOwnGroup(r.runDir(id), id, r.cgroupPlace())
	if err := keepCrash(r.Dir, id, r.SandboxLogs(id)); err != nil {
		r.Logger.Warn("the report of a crash is removed with its sprite", "sandbox", id, "err", err)
	}
	return errors.Join(group, r.DropMemory(ctx, id), layers.Remove(r.runDir(id)))
}

// startShim starts a shim process and waits until its sandbox answers, or ctx
// ends, which ends the shim too.
func (r *Runtime) startShim(ctx context.Context, cfg shim.Config) (shim.State, error) {
	if err := os.MkdirAll(cfg.Dir, 0o700); err != nil {
		return shim.State{}, fmt.Errorf("start a shim: %w", err)
	}
	data, err := json.Marshal(cfg)
	if err != nil {
		return shim.State{}, err
	}
	log, err := os.OpenFile(filepath.Join(cfg.Dir, "shim.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return shim.State{}, fmt.Errorf("start a shim: %w", err)
	}
	defer log.Close()
	begun, err := log.Seek(0, io.SeekEnd)
	if err != nil {
		return shim.State{}, fmt.Errorf("start a shim: %w", err)
	}
	in, inW, err := os.Pipe()
	if err != nil {
		return shim.State{}, err
	}
	defer in.Close()
	readyR, ready, err := os.Pipe()
	if err != nil {
		_ = inW.Close()
		return shim.State{}, err
	}
	defer readyR.Close()
	cmd := exec.Command(r.Shim[0], r.Shim[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = in, log, log
	cmd.ExtraFiles = []*os.File{ready}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Cloneflags: syscall.CLONE_NEWNS}
	err = cmd.Start()
	_ = ready.Close()
	if err != nil {
		_ = inW.Close()
		return shim.State{}, fmt.Errorf("start a shim: %w", err)
	}
	r.reap(cmd)
	go func() {
		_, _ = inW.Write(data) // a shim that died shows in its missing answer
		_ = inW.Close()
	}()
	stop := context.AfterFunc(ctx, func() {
		_ = cmd.Process.Signal(unix.SIGTERM)
		_ = readyR.SetReadDeadline(time.Now().Add(endLimit))
	})
	defer stop()
	var answer shim.Ready
	if err := json.NewDecoder(readyR).Decode(&answer); err != nil {
		_ = cmd.Process.Kill() // it has ended, or does not
		return shim.State{}, errors.Join(ctx.Err(), shimDied(log.Name(), begun))
	}
	switch {
	case answer.Elsewhere:
		return shim.State{}, elsewhereError(answer.Error)
	case answer.Gone:
		return shim.State{}, fmt.Errorf("%w: %s", errGone, answer.Error)
	case answer.Error != "":
		return shim.State{}, &startError{answer}
	}
	return *answer.State, nil
}

// endLimit is for a shim that is not to start a sandbox any more to clear it away.
const endLimit = time.Minute

// reap collects a shim's exit status, so that it does not stay as a zombie.
func (r *Runtime) reap(cmd *exec.Cmd) {
	go func() { _ = cmd.Wait() }() // ends with the shim, which may outlive this runtime
}

// follow returns the sandbox object of a live sandbox, and watches it.
func (r *Runtime) follow(id string, st shim.State) *sandbox {
	s := &sandbox{runtime: r, id: id, client: shim.Client{Dir: r.runDir(id)}, done: make(chan struct{}), state: st}
	r.wg.Go(func() { r.watch(s) })
	return s
}

// watch waits for the end of a sandbox, and starts a new shim when the one that
// looks after it dies.
func (r *Runtime) watch(s *sandbox) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	r.wg.Go(func() {
		select {
		case <-r.closed:
			cancel()
		case <-ctx.Done():
		}
	})
	for {
		end, err := s.client.Wait(ctx)
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			s.end(end.Reason)
			return
		}
		r.Logger.Warn("a shim died; starting another", "sandbox", s.id, "err", err)
		s.setDown("the process that looks after it died; another is being started")
		network, connectors := s.last()
		st, err := r.adopt(ctx, s.id, network, connectors)
		switch {
		case err == nil:
			s.adopted(st)
		case ctx.Err() != nil:
			return
		case errors.Is(err, errGone):
			s.end(err.Error())
			return
		default:
			r.Logger.Error("take up a sandbox", "sandbox", s.id, "err", err)
			s.setDown("the process that looks after it died, and no other can be started: " + err.Error())
			select {
			case <-ctx.Done():
				return
			case <-time.After(time.Second):
			}
		}
	}
}

// sandbox is a live sandbox, behind its shim.
type sandbox struct {
	runtime *Runtime
	id      string
	client  shim.Client
	done    chan struct{}

	mu      sync.Mutex
	state   shim.State  // guarded by mu
	down    string      // why it has no shim, and so no network; guarded by mu
	ended   string      // guarded by mu
	network *policy.Set // the last that was set; nil: none yet; guarded by mu

	connectors map[string]connect.Upstream // likewise; guarded by mu
}

func (s *sandbox) ID() string            { return s.id }
func (s *sandbox) Done() <-chan struct{} { return s.done }

func (s *sandbox) setState(st shim.State) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.state, s.down = st, ""
}

// adopted is setState for what the next shim has found. It may have been told since to
// pause the sandbox, or to let it go on.
func (s *sandbox) adopted(st shim.State) {
	s.mu.Lock()
	defer s.mu.Unlock()
	st.Paused = s.state.Paused
	s.state, s.down = st, ""
}

func (s *sandbox) setDown(why string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.down = why
}

func (s *sandbox) end(reason string) {
	s.mu.Lock()
	s.ended = reason
	s.mu.Unlock()
	close(s.done)
}

// Dial opens a connection to a port of the sandbox, or to its guest's API.
func (s *sandbox) Dial(ctx context.Context, port int) (net.Conn, error) {
	if port == boot.API && s.Status().Token != "" {
		port = boot.Port // its guest knows no handshake, and maybe its shim neither
	}
	conn, err := s.client.Dial(ctx, port)
	for delay := 5 * time.Millisecond; shim.Died(err) && delay < time.Second; delay *= 2 {
		// Its shim died, and the next one is on its way.
		select {
		case <-ctx.Done():
			return nil, err
		case <-s.done:
			return nil, err
		case <-time.After(delay):
		}
		conn, err = s.client.Dial(ctx, port)
	}
	return conn, err
}

// Limit gives the sandbox other limits.
func (s *sandbox) Limit(ctx context.Context, memoryMB, cpus int) error {
	share := shareOf(cgroup.Process{}.Limits(), memoryMB, cpus)
	err := s.told(ctx, shim.Died, func() error {
		return s.client.SetLimits(ctx, shim.Limits{MemoryMB: share.memoryMB, CPUs: share.cpus})
	})
	if text, is := strings.CutPrefix(fmt.Sprint(err), "shim: "+shim.ErrMemoryUsed.Error()); is && errors.Is(err, shim.ErrMemoryUsed) {
		return fmt.Errorf("%w%s", sprite.ErrMemoryUsed, text)
	}
	return err
}

// SetNetwork replaces what the sandbox's network is decided by.
func (s *sandbox) SetNetwork(ctx context.Context, set policy.Set) error {
	s.setNetwork(set) // which a shim that is about to be started gets
	return s.told(ctx, shim.Died, func() error { return s.client.SetNetwork(ctx, set) })
}

func (s *sandbox) setNetwork(set policy.Set) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.network = &set
}

// SetConnectors replaces the sandbox's connectors.
func (s *sandbox) SetConnectors(ctx context.Context, all map[string]connect.Upstream) error {
	s.setConnectors(all) // likewise
	return s.told(ctx, shim.Died, func() error { return s.client.SetConnectors(ctx, all) })
}

func (s *sandbox) setConnectors(all map[string]connect.Upstream) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.connectors = all
}

// last returns what was set last, for another shim.
func (s *sandbox) last() (*policy.Set, map[string]connect.Upstream) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.network, s.connectors
}

// Status describes the sandbox.
func (s *sandbox) Status() sprite.SandboxStatus {
	s.mu.Lock()
	defer s.mu.Unlock()
	return sprite.SandboxStatus{
		Hostname: s.state.Hostname, Incarnation: s.state.Incarnation, Layers: s.state.Layers, Address: s.state.Address, Address6: s.state.Address6,
		Token: bearer(s.state), Started: s.state.Started, Paused: s.state.Paused, Unlimited: s.state.Unlimited,
		NetworkDown: s.down, Ended: s.ended, Woken: s.state.Woken, Unused: s.state.Unused,
	}
}

// bearer is the token that a guest without a handshake wants.
func bearer(st shim.State) string {
	if st.Handshake > 0 {
		return ""
	}
	return st.Token
}

// Checkpoint moves the sandbox to a disk with another layer to write.
func (s *sandbox) Checkpoint(ctx context.Context, chain []string, memory sprite.Memory) (sprite.Pause, error) {
	prep, err := s.runtime.prepare()
	if err != nil {
		return sprite.Pause{}, err
	}
	disk, err := s.runtime.disk(chain, prep.base)
	if err != nil {
		return sprite.Pause{}, err
	}
	req := shim.Checkpoint{Layers: chain, Disk: disk, Always: memory.Always, Leave: memory.Leave}
	if memory.Name != "" {
		if req.Keep, err = s.runtime.memoryDir(memory.Name); err != nil {
			return sprite.Pause{}, err
		}
	}
	var done shim.Checkpointed
	err = s.told(ctx, shim.IsNoShim, func() (err error) {
		done, err = s.client.Checkpoint(ctx, req)
		return err
	})
	if err != nil {
		s.awaitEnd(err)
		return sprite.Pause{}, deletedOpen(err)
	}
	s.setState(done.State)
	return sprite.Pause{
		Total: done.Pause, Save: done.Save, Mount: done.Mount, Copy: done.Copy, Restore: done.Restore, Copied: done.Copied,
		Kept: done.Kept, NotKept: done.NotKept, Open: done.Open,
	}, nil
}

// deletedOpen is err, or what a Host knows for it.
func deletedOpen(err error) error {
	if text, is := strings.CutPrefix(err.Error(), "shim: "+shim.ErrDeleted.Error()); is && errors.Is(err, shim.ErrDeleted) {
		return fmt.Errorf("%w%s", sprite.ErrDeletedOpen, text)
	}
	return err
}

// Settle asks the shim which layers the sandbox has, once it does not move any more,
// nor will to this layer. If its shim has died, the next one is asked.
func (s *sandbox) Settle(ctx context.Context, layer string) ([]string, error) {
	for {
		st, err := s.client.Settle(ctx, layer)
		switch {
		case err == nil:
			s.setState(st)
			return st.Layers, nil
		case !shim.Died(err):
			s.awaitEnd(err)
			return nil, err
		}
		select {
		case <-s.done:
			return nil, err
		case <-ctx.Done():
			return nil, err
		case <-time.After(stopPause):
		}
	}
}

// awaitEnd has whoever is told that the sandbox has ended find it so. The time for that
// is its own: the caller's may be over.
func (s *sandbox) awaitEnd(err error) {
	if !errors.Is(err, shim.ErrEnded) {
		return
	}
	select {
	case <-s.done:
	case <-time.After(endLimit):
	case <-s.runtime.closed:
	}
}

// Assign makes a sandbox that was booted for nobody that of a sprite.
func (s *sandbox) Assign(ctx context.Context, m sprite.Machine) error {
	shown, err := json.Marshal(m.NetworkPolicy)
	if err != nil {
		return err
	}
	st, err := s.client.Assign(ctx, shim.Assignment{
		Hostname: m.Hostname, MachineID: m.MachineID, Incarnation: m.Incarnation, Token: newToken(),
		Env: m.Env, Connectors: m.Connectors, Network: m.Network, NetworkPolicy: shown,
	})
	if err != nil {
		return err
	}
	s.setNetwork(m.Network)
	s.setConnectors(m.Connectors)
	s.setState(st)
	return nil
}

// newToken is the key of a guest's API.
func newToken() string {
	token := make([]byte, 32)
	_, _ = rand.Read(token) // never fails
	return hex.EncodeToString(token)
}

// Pause freezes the sandbox in memory.
func (s *sandbox) Pause(ctx context.Context) error { return s.freeze(ctx, true, s.client.Pause) }

// Resume undoes Pause.
func (s *sandbox) Resume(ctx context.Context) error { return s.freeze(ctx, false, s.client.Resume) }

// freeze changes whether the sandbox is paused. Where its shim has died, the next
// one is told.
func (s *sandbox) freeze(ctx context.Context, paused bool, call func(context.Context) error) error {
	for {
		err := call(ctx)
		switch {
		case err == nil:
			s.mu.Lock()
			defer s.mu.Unlock()
			s.state.Paused = paused
			return nil
		case !shim.Died(err):
			s.awaitEnd(err)
			s.learnPaused()
			return err
		}
		select {
		case <-s.done:
			return err
		case <-ctx.Done():
			s.learnPaused()
			return err
		case <-time.After(stopPause):
		}
	}
}

// learnPaused asks whether the sandbox is paused, after a call of which the answer was
// lost. If nobody knows, it counts as paused: to resume one that runs changes nothing.
func (s *sandbox) learnPaused() {
	ctx, cancel := context.WithTimeout(context.Background(), statusLimit)
	defer cancel()
	st, err := s.client.Status(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.state.Paused = err != nil || st.Paused
}
