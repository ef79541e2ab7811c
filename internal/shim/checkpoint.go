package shim

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cove-dev/cove/internal/lib/fault"
	"github.com/cove-dev/cove/internal/shim/layers"
	"github.com/cove-dev/cove/sprites"
)

// Checkpoint asks for the disk of a running sandbox as it is at one moment. The programs
// go on, with their memory and their connections, over another layer.
type Checkpoint struct {
	Layers []string // that it is of from then on, the lowest first
	Disk   []Mount  // the same, to be mounted
	Keep   string   `json:",omitempty"` // a folder to be made for the memory; empty: it is not kept
	Always bool     `json:",omitempty"` // keep it however much is open
	Leave  int64    `json:",omitempty"` // bytes that the memory must leave free on the disk, if it is kept
}

// Checkpointed says what a checkpoint took.
type Checkpointed struct {
	State State         `json:"state"`
	Pause time.Duration `json:"pause"` // how long nothing ran, in nanoseconds

	// Parts of Pause.
	Save    time.Duration `json:"save"`    // of the memory
	Mount   time.Duration `json:"mount"`   // of the new disk, or a look whether that may stay
	Copy    time.Duration `json:"copy"`    // of what is open for writing, to that
	Restore time.Duration `json:"restore"` // of the memory, over the new disk

	Copied int64 `json:"copied,omitempty"` // bytes of sealed files that were copied, because gVisor had them open for writing

	Kept    int64  `json:"kept,omitempty"`     // bytes of the memory that was kept
	NotKept string `json:"not_kept,omitempty"` // why it was not, though it was to be

	Open *sprites.OpenFiles `json:"open,omitempty"` // the open files, if there are too many; nil: there are not
}

// checkpoint seals the layer that is written, by moving what runs over to another
// disk, on which that is the last sealed one:
//
//	mount the new disk at a new path, and create the next sandbox over it → pause →
//	hear nothing more of it → save the memory, leaving the sandbox → have the new
//	disk show what is there now, and have what is open for writing → end the old
//	sandbox, without waiting for what follows → restore in the next one, in the same
//	network namespace, behind the same gateway
//
// Until the old sandbox is ended, an error leaves it as it was. If it was paused, it stays
// paused, and none of its programs run in between. After that, an error ends the next
// sandbox, too, so that no sandbox has layers that are in doubt. The end of ctx gives the
// checkpoint up. The caller holds moves.turn.
func (s *Shim) checkpoint(ctx context.Context, req Checkpoint) (_ Checkpointed, err error) {
	old := s.record.get()
	if len(req.Layers) == 0 {
		return Checkpointed{}, errors.New("a checkpoint needs layers")
	}
	if req.Layers[len(req.Layers)-1] == s.moves.refused {
		return Checkpointed{}, errors.New("the checkpoint was cancelled before it began")
	}
	if err := canAnswer(old.PID); err != nil {
		return Checkpointed{}, err
	}
	if err := checkDeleted(s.folder, old); err != nil {
		return Checkpointed{}, err
	}
	next := s.containers.next(old)
	next.Layers = req.Layers

	// The file names the next layers before they are mounted, so that nobody removes them.
	defer func() {
		if err != nil && !errors.Is(err, ErrEnded) {
			err = errors.Join(err, s.record.set(func(st *State) { st.Next = nil }))
		}
	}()
	if err := s.record.set(func(st *State) { st.Next = req.Layers }); err != nil {
		return Checkpointed{}, err
	}

	// All that can be is done before the pause.
	image, drop, err := memoryFolder(s.folder, s.log)
	if err != nil {
		return Checkpointed{}, err
	}
	defer s.memory.lower(old) // after its image is dropped, which is a part of its memory
	defer drop()
	if err := s.containers.prepare(old, next, req.Disk, s.network.path()); err != nil {
		return Checkpointed{}, errors.Join(err, s.folder.leave(next))
	}
	created, err := s.containers.createAhead(ctx, old, next, req.Disk, image)
	if ctx.Err() != nil {
		return Checkpointed{}, errors.Join(ctx.Err(), s.containers.abandon(s.record.get(), next))
	}
	if err != nil {
		s.log.Warn("create the next sandbox during the pause, because it could not be created before", "err", err)
	}
	call := s.containers.runsc(old)
	pause, save := call.pause, func() error { return call.save(ctx, image) }
	if created != nil {
		defer created.mover.close()
		defer context.AfterFunc(ctx, created.mover.kill)()
		pause, save = created.pause, created.save
	}

	fault.Reach(fault.MovePrepared)
	var done Checkpointed
	began := time.Now()
	resume := func(err error) (Checkpointed, error) {
		s.network.gw.Release()
		if created != nil {
			created.mover.close() // it may be at it still
		}
		return Checkpointed{}, errors.Join(s.goBack(err), s.containers.abandon(s.record.get(), next))
	}
	if err := s.record.set(func(st *State) { st.Moving = true }); err != nil {
		return Checkpointed{}, errors.Join(err, s.containers.abandon(s.record.get(), next))
	}
	fault.Reach(fault.MoveNoted)
	if !old.Paused {
		if err := pause(); err != nil {
			return resume(err)
		}
	}
	fault.Reach(fault.MovePaused)
	for _, m := range req.Disk {
		if err := m.Overlay.Begin(); err != nil {
			return resume(err)
		}
	}
	s.network.gw.Hold()
	s.memory.raise(old)
	if err := save(); err != nil {
		return resume(networks(err))
	}
	fault.Reach(fault.MoveSaved)
	done.Save = time.Since(began)
	mark := time.Now()
	start, err := s.containers.settle(ctx, created, next, req.Disk, image)
	if err != nil {
		return resume(err)
	}
	done.Mount = time.Since(mark)
	fault.Reach(fault.MoveMounted)
	mark = time.Now()
	files, err := copyWritable(s.folder, old, next, req.Disk)
	if err != nil {
		return resume(err)
	}
	done.Copy = time.Since(mark)
	open := openedFiles(files)
	done.Copied, done.Open = open.WritableBytes, open.Excess()
	if err := ctx.Err(); err != nil {
		return resume(err)
	}
	moving := s.record.get()
	if err := s.record.set(func(st *State) { *st = next }); err != nil {
		return resume(errors.Join(err, s.record.set(func(st *State) { *st = moving })))
	}
	// From here on the next sandbox is the sandbox, or there is none.
	fault.Reach(fault.MoveSwitched)
	mark = time.Now()
	signalProcess(old.PID, old.StartTime, unix.SIGKILL)
	fault.Reach(fault.MoveKilled)
	if err := s.restore(ctx, next, start); err != nil {
		s.endNext(next, err)
		return Checkpointed{}, fmt.Errorf("%w, because it could not be restored: %w", ErrEnded, err)
	}
	done.Restore = time.Since(mark)
	fault.Reach(fault.MoveRestored)
	done.Pause = time.Since(began)
	done.State = s.record.get()
	s.cleaning.Go(func() { s.cleanOld(old) })
	switch why := tooMuchOpen(done.Open); {
	case req.Keep == "":
	case why != "" && !req.Always:
		done.NotKept = why
	default:
		kept, err := keepImage(ctx, s.folder, done.State, image, req)
		if done.Kept = kept; err != nil {
			done.Kept, done.NotKept = 0, notKept(err)
			s.log.Error("keep the memory of a checkpoint", "err", errors.Join(err, os.RemoveAll(req.Keep)))
		}
		fault.Reach(fault.MoveKept)
	}
	return done, nil
}

// notKept says why a memory could not be kept, for whom the server's paths are nothing.
func notKept(err error) string {
	if noRoom(err) {
		return "there is no space for its memory on the server's disk"
	}
	return "its memory could not be written; the log of the sandbox says why"
}

// ErrEnded says that the sandbox has ended in a move. Its disk is whole.
var ErrEnded = errors.New("the sandbox has ended")

// memoryFolder makes a folder for an image that nobody keeps. It is in memory, and
// seen by this process and its children alone.
func memoryFolder(f folder, log *slog.Logger) (dir string, drop func(), err error) {
	dir = filepath.Join(f.path, "image")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", nil, fmt.Errorf("make room for the memory: %w", err)
	}
	if err := unix.Mount("tmpfs", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "mode=0700"); err != nil {
		return "", nil, fmt.Errorf("make room for the memory: %w", err)
	}
	return dir, func() {
		if err := errors.Join(layers.Unmount(dir), os.Remove(dir)); err != nil {
			log.Warn("drop the memory's image", "err", err)
		}
	}, nil
}

// restore has start start the next sandbox from the memory of the old one, and returns
// when its guest answers.
func (s *Shim) restore(ctx context.Context, next State, start func() error) error {
	if err := s.network.configure(); err != nil {
		return err
	}
	release := s.network.release(next)
	err := start()
	release()
	if err != nil {
		return err
	}
	pid, startTime, err := s.containers.runsc(next).sandboxProcess()
	if err != nil {
		return err
	}
	err = s.record.set(func(st *State) { st.PID, st.StartTime, st.Moving = pid, startTime, false })
	if err != nil {
		return err
	}
	if next.Paused { // see runsc.platform
		if err := s.containers.runsc(next).freeze(); err != nil {
			killProcess(pid, startTime)
			return err
		}
		return nil
	}
	fault.Reach(fault.MoveStarted)
	guest := s.network.guest()
	guest.restored = true
	return s.awaitGuest(ctx, s.cfg.patience(), guest)
}

// endNext ends what is left of a next sandbox that could not be restored, and notes why.
// The old sandbox has ended, so this is the sandbox's end. watch sees it.
func (s *Shim) endNext(next State, why error) {
	s.moves.fail(why)
	s.log.Error("end the sandbox, because it could not be restored", "err", why)
	s.containers.kill(next.Container)
	st := s.record.get()
	killProcess(st.PID, st.StartTime)
}

// cleanOld removes what is left of the sandbox before the checkpoint. No caller waits for
// that: the host has to take the sandbox's memory back, and to write its disk.
func (s *Shim) cleanOld(old State) {
	killProcess(old.PID, old.StartTime)
	err := errors.Join(s.containers.runsc(old).delete(), s.folder.leave(old), removeCgroups(old.cgroup()))
	if err == nil {
		err = s.record.set(func(st *State) {
			if st.OldPID == old.PID {
				st.OldPID, st.OldStart = 0, 0
			}
		})
	}
	if err != nil {
		s.log.Error("clean up the sandbox that a checkpoint replaced", "err", err)
	}
}

// takeUpMove is for a sandbox whose shim died in the middle of a move: a checkpoint, a
// hibernation, a pause or the sandbox's end. The sandbox is paused or running again, as
// before the move.
func (s *Shim) takeUpMove() error {
	if err := s.containers.abandonNext(s.record.get()); err != nil {
		s.log.Error("clean up after an unfinished checkpoint", "err", err)
	}
	st := s.record.get()
	if !st.Moving && !st.Paused {
		if st.Next == nil {
			return nil
		}
		return s.record.set(func(st *State) { st.Next = nil })
	}
	if err := s.endMove(); err != nil {
		return err
	}
	if st.Saving == "" {
		return nil
	}
	return os.RemoveAll(st.Saving) // its memory has changed since
}

// goBack is endMove after an error. It returns that error; if the sandbox has ended, it
// returns why.
func (s *Shim) goBack(err error) error {
	end := s.endMove()
	if errors.Is(end, ErrEnded) {
		s.log.Error("the sandbox ended during a move", "err", err)
		return end
	}
	return errors.Join(err, end)
}

// endMove brings a sandbox back to what it was before a move that is given up. The error
// is ErrEnded if the sandbox has ended meanwhile.
func (s *Shim) endMove() error {
	call := s.containers.runsc(s.record.get())
	change := call.thaw // it may not have come to the pause
	if s.record.get().Paused {
		change = call.freeze
	}
	if err := s.unlessEnded(change()); err != nil {
		return err
	}
	return s.record.set(func(st *State) { st.Moving, st.Saving, st.Next = false, "", nil })
}

// unlessEnded returns err, the error of a call of runsc. If the sandbox has ended, it
// returns why: runsc only says that the sandbox does not answer.
func (s *Shim) unlessEnded(err error) error {
	if st := s.record.get(); err != nil && !acts(st.PID, st.StartTime) {
		return fmt.Errorf("%w: %s", ErrEnded, s.why())
	}
	return err
}
