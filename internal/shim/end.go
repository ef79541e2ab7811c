package shim

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cove-dev/cove/internal/shim/kernel"
	"github.com/cove-dev/cove/internal/shim/layers"
)

// stop ends the sandbox: the guest ends its processes with TERM and, after grace, by force; a guest
// that does not is ended from outside. For what moves the sandbox it waits no longer than
// grace either, and then has it give up. It returns when the sandbox is gone and cleaned up.
func (s *Shim) stop(grace time.Duration) {
	s.memory.giveUp()
	var st State
	moved := s.moves.within(grace, s.ended, func() {
		st = s.record.get()
		s.moves.stop()
	})
	if !moved {
		if breakOff := s.moves.stop(); breakOff != nil {
			s.log.Warn("cancel the move of the sandbox, because the sandbox must end")
			breakOff()
		}
	}
	if grace > 0 && moved { // else none of its programs may run any more
		if st.Paused {
			if err := s.containers.runsc(s.record.get()).thaw(); err != nil {
				s.log.Error("resume before stop", "err", err)
			}
		}
		// Beyond its grace the guest needs a moment for the rest. One that a fork
		// bomb keeps from it is not waited for.
		ctx, cancel := context.WithTimeout(context.Background(), grace+min(grace, 3*time.Second))
		if err := askToStop(ctx, s.network.guest(), grace); err != nil {
			s.log.Warn("ask the guest to stop", "err", err)
		}
		select {
		case <-s.ended:
		case <-ctx.Done():
		}
		cancel()
	}
	s.killUntilEnded()
}

// killUntilEnded kills the sandbox of the current state until it has ended: a move that is
// being given up may still start the next sandbox.
func (s *Shim) killUntilEnded() {
	for {
		st := s.record.get()
		signalProcess(st.PID, st.StartTime, unix.SIGKILL)
		signalProcess(st.OldPID, st.OldStart, unix.SIGKILL)
		select {
		case <-s.ended:
			return
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// watch waits for the sandbox's end, cleans up after it and closes ended.
func (s *Shim) watch() {
	if enforced(s.record.get(), "memory") {
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
	case lack.processes() != "": // gVisor's kernel may have crashed because of that
		return lack.processes()
	case report != "":
		return crashed(report)
	}
	text := "ended by itself or by the host"
	if info, err := os.Stat(filepath.Join(s.cfg.Dir, "guest.log")); err == nil && info.Size() > 0 {
		text += "; its last output: run/" + filepath.Base(s.cfg.Dir) + "/guest.log"
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
