package shim

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/cove-dev/cove/internal/lib/boot"
	"github.com/cove-dev/cove/internal/shim/cgroup"
	"github.com/cove-dev/cove/internal/shim/kernel"
)

// BootTimeout bounds the wait for the guest's first answer. It is for a machine that is very
// busy. Config.Patience replaces it for a guest that was restored.
const BootTimeout = 2 * time.Minute

// firstTry bounds runsc's first try to start a sandbox, which may hang (see run).
const firstTry = 30 * time.Second

// boot starts a new sandbox and returns when its guest answers.
func (s *Shim) boot(ctx context.Context) error {
	if old, err := ReadState(s.cfg.Dir); err == nil {
		// There was a sandbox whose shim died, and no shim saw its end. Or the folder is a
		// copy.
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

		Unlimited: cannotLimit(cgroupPath(s.cfg.Cgroups.Parent, s.containers.prefix)),
	}
	s.containers.cgroups = inCgroups(st)
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
			return fmt.Errorf("resume from its memory: %s", exceeds(s.cfg.Image, s.record.get()))
		}
		err = s.wake(ctx, s.cfg.Image)
		if err == nil {
			return s.record.set(func(st *State) { st.Woken = true })
		}
		if !s.ran && (noRoom(err) || mayWake(s.cfg.Image, err) && s.untouched(began)) {
			err = errors.Join(err, unspend(s.cfg.Image))
			if why := exceeds(s.cfg.Image, s.record.get()); why != "" {
				err = fmt.Errorf("%s: %w", why, err)
			}
			return fmt.Errorf("resume from its memory: %w", err) // the caller can try again
		}
		s.log.Warn("boot, because the memory's image can't be used", "err", err)
		if err := s.startOver(err.Error()); err != nil {
			return err
		}
		if err := spend(s.cfg.Image); err != nil {
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

// run starts the sandbox. If the sandbox does not start within firstTry, run starts it once
// more. gVisor puts the memory that its sandboxed processes share at random addresses. It
// does not move one page with the rest (stubSpinningThreadQueueAddr of systrap). If that
// page overlaps another, the first of the processes spins for ever.
func (s *Shim) run(ctx context.Context) error {
	limited, cancel := context.WithTimeout(ctx, firstTry)
	defer cancel()
	err := s.containers.runsc(s.record.get()).run(limited, s.folder.bundle(s.record.get()), s.cfg.bootConfig(s.copied))
	if err == nil || ctx.Err() != nil || limited.Err() == nil {
		return err
	}
	s.log.Error("start the sandbox a second time", "because it did not within", firstTry, "err", err)
	if err := s.startOver(s.record.get().Unused); err != nil {
		return err
	}
	return s.containers.runsc(s.record.get()).run(ctx, s.folder.bundle(s.record.get()), s.cfg.bootConfig(s.copied))
}

// startOver clears away a sandbox that did not start, or did not come back from its memory.
// Then another one can boot. why becomes the state's Unused: why the memory was not used.
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
	s.containers.cgroups = inCgroups(st)
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
