package shim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cove-dev/cove/internal/lib/boot"
	"github.com/cove-dev/cove/internal/lib/logfile"
	"github.com/cove-dev/cove/internal/lib/openfiles"
	"github.com/cove-dev/cove/internal/shim/cgroup"
	"github.com/cove-dev/cove/internal/shim/kernel"
	"github.com/cove-dev/cove/internal/shim/layers"
)

// BootTimeout bounds the wait for the guest's first answer. It is for a machine that is very
// busy. Config.Patience replaces it for a guest that was restored.
const BootTimeout = 2 * time.Minute

// firstTry bounds runsc's first try to start a sandbox, which may hang (see run).
const firstTry = 30 * time.Second

// ErrLocked says that another shim looks after the sandbox.
var ErrLocked = errors.New("another shim looks after this sandbox")

// errGone says that there is no sandbox to adopt.
var errGone = errors.New("the sandbox is gone")

// Shim looks after one sandbox. It is made by start, and ends with wait.
type Shim struct {
	cfg    Config
	log    *slog.Logger
	lock   *os.File
	folder folder

	record     *record
	containers *containers
	network    *network
	memory     *memoryWatch
	moves      *moves

	refusals int // of processes, by the server's cgroups, before it started

	own     ownGroup
	joining sync.WaitGroup // writes own

	api *http.Server

	ended  chan struct{} // closed when the sandbox is gone and everything is cleaned up
	reason string        // why; written before ended is closed

	copied bool // it goes on from a memory of which there are copies; of start alone

	ran bool // something of the sandbox may have written to its disk; of start alone

	cleaning sync.WaitGroup // what is left of earlier generations
}

// Main is the shim process: it reads its Config from in, starts or adopts the
// sandbox, writes a Ready to ready, and returns when the sandbox is gone and
// nothing of it is left. If ctx ends before the sandbox has started, the sandbox ends. Later
// the end of ctx changes nothing: a SIGTERM to all processes of a name, or of a session, does
// not ask for the end of what runs in a sandbox, and the server may be about to put that on
// disk.
func Main(ctx context.Context, in io.Reader, ready io.WriteCloser) error {
	var cfg Config
	input, err := io.ReadAll(io.LimitReader(in, 8<<20))
	if err == nil {
		err = json.Unmarshal(input, &cfg)
	}
	if err != nil {
		return fmt.Errorf("read the shim's configuration: %w", err)
	}
	if err := leaveRoot(cfg, input); err != nil {
		slog.Warn("mounts of the host stay in use", "sandbox", cfg.ID, "err", err)
	}
	s, err := start(ctx, cfg, ready)
	answer := Ready{Gone: errors.Is(err, errGone), Elsewhere: errors.Is(err, errElsewhere), Locked: errors.Is(err, ErrLocked), Occupied: errors.Is(err, errOccupied), Full: noRoom(err)}
	if err != nil {
		_, answer.Asleep = errors.AsType[asleepError](err)
		answer.Error = err.Error()
	} else {
		st := s.record.get().shown()
		answer.State = &st
	}
	// The server may be gone already; the sandbox is still looked after.
	_ = json.NewEncoder(ready).Encode(answer)
	_ = ready.Close()
	if err != nil {
		return err
	}
	if ctx.Err() != nil {
		st := s.record.get()
		killProcess(st.PID, st.StartTime)
	}
	<-s.ended
	s.leaveOwnGroup()
	return s.shutdownAPI()
}

// leaveOwnGroup undoes joinOwnGroup.
func (s *Shim) leaveOwnGroup() {
	s.joining.Wait()
	if err := s.own.leave(); err != nil {
		s.log.Error("clean up after the shim", "err", err)
	}
}

// newShim is a shim that looks after nothing yet, in a folder of this identity.
func newShim(cfg Config, identity string, log *slog.Logger) *Shim {
	f := folder{path: cfg.Dir, identity: identity}
	r, m := &record{folder: f}, &moves{}
	c := &containers{names: names{id: cfg.ID, dir: cfg.Dir}, folder: f, path: cfg.Runsc, log: log}
	return &Shim{
		cfg:    cfg,
		log:    log,
		folder: f,
		ended:  make(chan struct{}),

		record:     r,
		containers: c,
		network:    &network{record: r, log: log, netns: -1},
		memory:     &memoryWatch{folder: f, record: r, containers: c, moves: m, log: log, limited: make(chan struct{}, 1)},
		moves:      m,
	}
}

// start makes the sandbox, or adopts it. On error nothing of it is left, unless
// another shim has it.
func start(ctx context.Context, cfg Config, ready io.Writer) (*Shim, error) {
	log := slog.New(logfile.Limit(slog.NewTextHandler(logfile.Stderr(filepath.Join(cfg.Dir, "shim.log"), 0), nil))).With("sandbox", cfg.ID, "incarnation", cfg.Incarnation)
	refusals := cgroup.Process{}.ProcessRefusals()
	lock, err := takeLock(ctx, cfg)
	if err != nil {
		return nil, err
	}
	identity, err := folderOf(cfg.Dir)
	if err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	s := newShim(cfg, identity, log)
	s.lock, s.refusals = lock, refusals
	s.containers.prefix = prefixOf(cfg.ID, s.folder.identity)
	// From here on the next server sees that this sandbox is being made, and waits.
	if !cfg.Adopt && unread(ready) {
		return nil, errors.Join(errors.New("the server that wanted this sandbox has gone"), s.lock.Close())
	}
	if err := awaitVacant(ctx, cfg.Dir, unseen); err != nil {
		return nil, errors.Join(asleep(err, cfg, s), s.lock.Close())
	}
	openfiles.Raise() // gVisor holds a host file for each of the guest's
	// Mounts come and go below this process's own namespace, seen by nobody else;
	// what the host unmounts must not be held here.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
		return nil, fmt.Errorf("make the mount namespace private: %w", err)
	}
	if err := detachMounts(cfg); err != nil {
		s.log.Warn("mounts of the host stay in use", "err", err)
	}
	if old, err := ReadState(cfg.Dir); err == nil && cfg.Adopt {
		cfg.Cgroups = cgroup.Place{Root: old.CgroupRoot, Parent: old.CgroupParent} // not the new server's
		s.cfg.Cgroups = cfg.Cgroups
	}
	if err := mountDelegated(cfg.Cgroups.Root); err != nil {
		s.log.Warn("the sandbox has no limits", "err", err)
	}
	if err := mountCpuset(); err != nil {
		s.log.Warn("gVisor may refuse to start a sandbox without it", "err", err)
	}
	s.joining.Go(func() { // beside the boot: a kernel takes some 10 ms to move a process
		var err error
		if s.own, err = joinOwnGroup(cfg.Cgroups.Parent, prefixOf(cfg.ID, s.folder.identity)); err != nil {
			s.log.Warn("the shim's own memory is not limited", "err", err)
		}
	})
	if cfg.Adopt {
		err = s.adopt()
	} else {
		err = s.boot(ctx)
	}
	if err == nil {
		err = s.serveAPI()
	}
	if err != nil {
		s.teardown()
		s.leaveOwnGroup()
		return nil, asleep(err, cfg, s)
	}
	go s.watch()
	return s, nil
}

// asleepError is of a sandbox that was to wake, and of which nothing has run.
type asleepError struct{ error }

func (e asleepError) Unwrap() error { return e.error }

// asleep is err, as an asleepError if it is one.
func asleep(err error, cfg Config, s *Shim) error {
	if cfg.Image != "" && !s.ran {
		return asleepError{err}
	}
	return err
}

// unread reports whether w is a pipe that nobody reads any more.
func unread(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	poll := []unix.PollFd{{Fd: int32(f.Fd())}}
	n, err := unix.Poll(poll, 0)
	return err == nil && n > 0 && poll[0].Revents&unix.POLLERR != 0
}

// boot starts a new sandbox and returns when its guest answers.
func (s *Shim) boot(ctx context.Context) error {
	if old, err := ReadState(s.cfg.Dir); err == nil {
		// A sandbox whose shim died, and whose end nobody saw; or a copy's.
		switch {
		case old.Elsewhere(s.cfg.Dir):
			if err := s.folder.forget(old, s.log); err != nil {
				return err
			}
		case alive(old.PID, old.StartTime):
			return fmt.Errorf("sandbox %s is running already", s.cfg.ID)
		default:
			s.containers.known(old)
			s.record.begin(State{Groups: Groups{CgroupParent: old.CgroupParent}})
			s.teardown()
			s.containers.prefix = prefixOf(s.cfg.ID, s.folder.identity)
		}
	}
	if err := awaitVacant(ctx, s.cfg.Dir, dying); err != nil {
		return err
	}
	if err := kernel.Keep(s.cfg.Dir); err != nil {
		s.log.Warn("keep the last report of a sandbox's kernel", "err", err)
	}
	ok, why := cgroupsWritable(cgroupPath(s.cfg.Cgroups.Parent, s.containers.prefix))
	s.containers.cgroups = ok
	st := State{
		Container:   s.containers.container(0),
		Folder:      s.folder.identity,
		Layers:      s.cfg.Layers,
		Hostname:    s.cfg.Hostname,
		Incarnation: s.cfg.Incarnation,
		Address:     guestAddr(s.cfg.Incarnation).String(),
		Address6:    guestAddr6(s.cfg.Incarnation).String(),
		Token:       s.cfg.Token,
		Handshake:   boot.Handshake,
		Build:       s.cfg.Build,
		MemoryLimit: int64(s.cfg.MemoryMB) << 20,

		Place:  placeHere(),
		Groups: Groups{CgroupParent: s.cfg.Cgroups.Parent, CgroupRoot: s.cfg.Cgroups.Root},
	}
	if !ok {
		st.Unlimited = unlimited(why)
	}
	s.record.begin(st)
	mounted := make(chan error, 1)
	go func() { mounted <- mountDisk(s.cfg, s.folder.rootfs(st), s.log) }()
	err := s.network.start(s.cfg, "")
	if mountErr := <-mounted; mountErr != nil {
		return mountErr
	}
	if err != nil {
		return err
	}
	if err := s.containers.writeBundle(s.cfg, s.record.get(), s.network.path()); err != nil {
		return err
	}
	if err := s.record.set(func(st *State) { st.Started = time.Now() }); err != nil {
		return fmt.Errorf("write the sandbox's state: %w", err)
	}
	if s.cfg.Image != "" {
		began, err := kernelTime(s.cfg.Dir)
		if err != nil {
			return err
		}
		if size, most := imageSize(s.cfg.Image), (cgroup.Process{}).Limits().Memory; most > 0 && size > most {
			// The kernel would end another process of the container instead: its server.
			return fmt.Errorf("go on from its memory: %s", exceeds(s.cfg.Image, s.record.get()))
		}
		err = s.wake(ctx, s.cfg.Image)
		if err == nil {
			return s.record.set(func(st *State) { st.Woken = true })
		}
		if !s.ran && (noRoom(err) || mayWake(s.cfg.Image, err) && s.untouched(began)) {
			if why := exceeds(s.cfg.Image, s.record.get()); why != "" {
				err = fmt.Errorf("%s: %w", why, err)
			}
			return fmt.Errorf("go on from its memory: %w", err) // which can be tried again
		}
		s.log.Warn("boot, because the memory's image can't be used", "err", err)
		if err := s.startOver(err.Error()); err != nil {
			return err
		}
	}
	s.ran = true
	if err := s.run(ctx); err != nil {
		return err
	}
	pid, startTime, err := s.containers.runsc(s.record.get()).sandboxProcess()
	if err != nil {
		return err
	}
	if err := s.record.set(func(st *State) { st.PID, st.StartTime = pid, startTime }); err != nil {
		return fmt.Errorf("write the sandbox's state: %w", err)
	}
	return s.awaitGuest(ctx, BootTimeout, s.network.guest())
}

// run starts the sandbox, once more where it does not start. gVisor puts what its
// sandboxed processes share at random addresses, and does not move one page of it with the
// rest (stubSpinningThreadQueueAddr of systrap): where that is over another the first of
// the processes spins for ever.
func (s *Shim) run(ctx context.Context) error {
	limited, cancel := context.WithTimeout(ctx, firstTry)
	defer cancel()
	err := s.containers.runsc(s.record.get()).run(limited, s.folder.bundle(s.record.get()), s.cfg.bootConfig(s.copied))
	if err == nil || ctx.Err() != nil || limited.Err() == nil {
		return err
	}
	s.log.Error("start the sandbox once more", "because it did not within", firstTry, "err", err)
	if err := s.startOver(s.record.get().Unused); err != nil {
		return err
	}
	return s.containers.runsc(s.record.get()).run(ctx, s.folder.bundle(s.record.get()), s.cfg.bootConfig(s.copied))
}

// startOver clears away a sandbox that did not start, or come back from its memory, and
// makes room for one that boots. why is what Unused says of its memory.
func (s *Shim) startOver(why string) error {
	failed := s.record.get()
	s.containers.killStarted(failed)
	for _, name := range s.containers.all() {
		if err := s.containers.named(name).delete(); err != nil {
			return err
		}
	}
	if err := errors.Join(s.folder.leave(failed), removeCgroups(failed.cgroup())); err != nil {
		return err
	}
	if err := kernel.Keep(s.cfg.Dir); err != nil {
		s.log.Warn("keep the report of a sandbox's kernel", "err", err)
	}
	err := s.record.set(func(st *State) {
		st.Generation++
		st.Container = s.containers.container(st.Generation)
		st.PID, st.StartTime, st.Unused = 0, 0, why
		st.Token = s.cfg.Token // one that was to wake had another
	})
	if err == nil {
		err = mountDisk(s.cfg, s.folder.rootfs(s.record.get()), s.log)
	}
	if err == nil {
		err = s.network.configure()
	}
	if err == nil {
		err = s.containers.writeBundle(s.cfg, s.record.get(), s.network.path())
	}
	return err
}

// adopt takes up a sandbox whose shim died. Its disk stays mounted in the
// namespace that its gofer holds; its tap outlived the shim that made it.
func (s *Shim) adopt() error {
	st, err := ReadState(s.cfg.Dir)
	if errors.Is(err, os.ErrNotExist) {
		return errGone
	} else if err != nil {
		return err
	}
	if st.Elsewhere(s.cfg.Dir) {
		if err := s.folder.forget(st, s.log); err != nil {
			return err
		}
		if alive(st.PID, st.StartTime) {
			return fmt.Errorf("%w: %w", errGone, errElsewhere)
		}
		return fmt.Errorf("%w: %s", errGone, s.why())
	}
	s.containers.known(st)
	st.Folder = s.folder.identity
	s.record.begin(st)
	if st.PID == 0 {
		s.containers.killStarted(st) // its shim died before it was there, and it may yet come
	}
	if !alive(st.PID, st.StartTime) {
		s.reason = s.why()
		return fmt.Errorf("%w: %s", errGone, s.reason)
	}
	s.containers.cgroups = len(st.Unlimited) == 0
	if err := s.network.start(s.cfg, fmt.Sprintf("/proc/%d/ns/net", st.PID)); err != nil {
		return err
	}
	return s.takeUpMove()
}

// awaitGuest returns when the guest's API answers, or with the reason when the
// sandbox ends, or the limit is reached, before.
func (s *Shim) awaitGuest(ctx context.Context, limit time.Duration, guest guestDialer) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	st := s.record.get()
	go func() {
		// Poll the process, not only the port: a sandbox that dies at once should
		// be reported at once.
		waitProcess(ctx, st.PID)
		cancel()
	}()
	// One transport for all attempts; a try lasts longer each time, because a
	// packet sent before the sandbox had its interface is lost.
	try := 10 * time.Millisecond
	tr := &http.Transport{DisableKeepAlives: true, MaxResponseHeaderBytes: maxHeader, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return guest.tryFor(ctx, try)
	}}
	client := &http.Client{Transport: tr}
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://guest/v1/health", nil)
		if err != nil {
			return err
		}
		guest.authorize(req)
		resp, err := client.Do(req)
		if err == nil {
			_ = resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return nil
			}
			return fmt.Errorf("the guest answered %s", resp.Status)
		}
		if ctx.Err() != nil {
			if !alive(st.PID, st.StartTime) {
				return fmt.Errorf("the sandbox ended while it started: %s\n%s", s.why(), tail(filepath.Join(s.cfg.Dir, "guest.log")))
			}
			return fmt.Errorf("the guest did not answer within %v: %w", limit, err)
		}
		try = min(try*5/4, time.Second)
		select {
		case <-ctx.Done():
		case <-time.After(time.Millisecond):
		}
	}
}

// watch waits for the sandbox's end, cleans up after it and closes ended.
func (s *Shim) watch() {
	if s.containers.cgroups {
		s.memory.start(newGuestClient(s.network.guest()))
	}
	for {
		st := s.record.get()
		waitProcess(context.Background(), st.PID)
		s.memory.giveUp()
		// It may have ended for the next generation's sake.
		if s.moves.noteEnd(func() bool { return s.record.get().PID == st.PID }) {
			break
		}
	}
	s.memory.close()
	s.reason = s.why()
	s.log.Info("sandbox ended", "reason", s.reason)
	s.teardown()
	close(s.ended)
}

// why says, for people, why the sandbox ended.
func (s *Shim) why() string {
	st := s.record.get()
	end, short := s.moves.fate(), s.memory.isShort()
	lack := shortageOf(st, s.cfg.PidsMax, s.refusals)
	switch {
	case lack.oomKills > 0 || short && !end.stopping && !end.hibernated && st.MemoryLimit > 0:
		return lack.memory(st.Hostname)
	case end.hibernated:
		return "hibernated"
	case end.stopping:
		return "stopped"
	case end.failed != nil:
		return "a checkpoint could not be finished: " + end.failed.Error()
	}
	report := kernel.Report(s.cfg.Dir, 0)
	switch {
	case lack.processes() != "": // of which gVisor's kernel may have crashed
		return lack.processes()
	case report != "":
		return crashed(report)
	}
	text := "ended by itself or by the host"
	if info, err := os.Stat(filepath.Join(s.cfg.Dir, "guest.log")); err == nil && info.Size() > 0 {
		text += "; its last words: run/" + filepath.Base(s.cfg.Dir) + "/guest.log"
	}
	return text
}

// teardown removes everything of the sandbox but its disk. It may be called at
// any point of start, and again.
func (s *Shim) teardown() {
	s.cleaning.Wait()
	last := s.record.get()
	errs := []error{}
	home := s.folder.atHome()
	if home {
		errs = append(errs, s.containers.abandonNext(last))
		for _, name := range s.containers.all() {
			errs = append(errs, s.containers.named(name).delete())
		}
	}
	s.containers.killStarted(last)
	killProcess(last.OldPID, last.OldStart)
	errs = append(errs, s.network.close())
	for n := range last.Generation + 2 { // the next one may have been begun
		if home {
			errs = append(errs, s.folder.leave(State{Generation: n}))
		}
		errs = append(errs, removeCgroups(cgroupPath(last.CgroupParent, s.containers.container(n))))
	}
	if !home {
		s.log.Warn("its folder was moved: nothing is removed there", "was", s.cfg.Dir, "err", errors.Join(errs...))
		return
	}
	errs = append(errs, layers.Unmount(filepath.Join(s.cfg.Dir, "runsc", "null-netns")), layers.Unmount(filepath.Join(s.cfg.Dir, "image")))
	for _, name := range []string{"runsc", "image", "sandbox.json", "sandbox.json.new"} {
		errs = append(errs, os.RemoveAll(filepath.Join(s.cfg.Dir, name)))
	}
	errs = append(errs, kernel.Bound(s.cfg.Dir))
	if err := errors.Join(errs...); err != nil {
		s.log.Error("clean up after the sandbox", "err", err)
	}
}
