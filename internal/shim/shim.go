package shim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/cove-dev/cove/internal/lib/logfile"
	"github.com/cove-dev/cove/internal/lib/openfiles"
	"github.com/cove-dev/cove/internal/lib/private"
	"github.com/cove-dev/cove/internal/shim/cgroup"
)

// ErrLocked says that another shim looks after the sandbox.
var ErrLocked = errors.New("another shim looks after this sandbox")

// errGone says that there is no sandbox to adopt.
var errGone = errors.New("the sandbox is gone")

// Shim looks after one sandbox. start makes or adopts it, and watch sees its end. Its methods
// are the events in between: the sandbox boots or wakes, checkpoints move it, it is paused,
// put to sleep, stopped. Each method is a sequence of steps, with a way back from each step.
// If the shim dies at a step, the next shim finds in the State how far it came.
//
// The parts with a state or a life of their own are types:
//
//	folder      the sandbox's folder (folder.go)
//	record      the State, in memory and on disk (state.go)
//	containers  the generations of the sandbox in runsc (containers.go), and their names (names.go)
//	network     the network namespace, the link and the gateway (network.go)
//	memory      the watch over the limit of memory (memory.go)
//	moves       the turn of what moves the sandbox, and why it is to end (moves.go)
//	own         the shim's own cgroup (own.go)
//	api         the calls of the server (api.go)
type Shim struct {
	cfg  Config // once the sandbox runs, assign and setLimits change it, with moves.turn held
	log  *slog.Logger
	lock *os.File

	folder     folder
	record     *record
	containers *containers
	network    *network
	memory     *memoryWatch
	moves      *moves
	own        membership
	api        *api // nil until the sandbox runs

	refusals int  // of processes, by the server's cgroups, before the sandbox started
	copied   bool // the sandbox goes on from a memory that has copies; written by start alone
	ran      bool // something of the sandbox may have written to its disk; of start alone

	cleaning sync.WaitGroup // goroutines that remove earlier generations

	ended  chan struct{} // closed when the sandbox is gone and everything is cleaned up
	reason string        // why it has ended; written before ended is closed
}

// Main is the shim process. It reads its Config from in, starts or adopts the sandbox, and
// writes a Ready to ready. It returns when the sandbox is gone and nothing of it is left. If
// ctx ends before the sandbox has started, the sandbox ends. After that, or if the sandbox is
// adopted, the end of ctx changes nothing. A SIGTERM to all processes of a name, or of a session, does not ask for
// the end of a sandbox's programs. The server may be about to put their memory on disk.
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
	if ctx.Err() != nil && !cfg.Adopt { // nobody waits for it
		st := s.record.get()
		killProcess(st.PID, st.StartTime)
	}
	<-s.ended
	s.own.close(s.log)
	return s.api.close()
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
		memory:     &memoryWatch{folder: f, record: r, moves: m, log: log, limited: make(chan struct{}, 1)},
		moves:      m,
	}
}

// start makes the sandbox, or adopts it. After an error nothing of the sandbox is left,
// unless another shim has it.
func start(ctx context.Context, cfg Config, ready io.Writer) (*Shim, error) {
	log := slog.New(logfile.Limit(slog.NewTextHandler(logfile.Stderr(filepath.Join(cfg.Dir, "shim.log"), 0), nil))).With("sandbox", cfg.ID, "incarnation", cfg.Incarnation)
	refusals := cgroup.Process{}.ProcessRefusals()
	lock, err := takeLock(ctx, cfg)
	if err != nil {
		return nil, err
	}
	identity, err := private.FolderID(cfg.Dir)
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
		return nil, errors.Join(err, s.lock.Close())
	}
	openfiles.Raise() // gVisor holds a host file for each of the guest's
	// No other process sees the mounts of this namespace. Mounts that the host unmounts must
	// not be held here.
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
		s.log.Warn("gVisor may refuse to start a sandbox without a cpuset", "err", err)
	}
	s.own.start(cfg.Cgroups.Parent, prefixOf(cfg.ID, s.folder.identity), s.log)
	if cfg.Adopt {
		err = s.adopt()
	} else {
		err = s.boot(ctx)
	}
	if err == nil {
		s.api = &api{shim: s}
		err = s.api.start()
	}
	if err != nil {
		s.teardown()
		s.own.close(s.log)
		return nil, err
	}
	go s.watch()
	return s, nil
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

// status waits until no checkpoint is under way, and returns the state. If refuse is a layer,
// no checkpoint to that layer begins afterwards. Then the error is ErrEnded if a checkpoint
// has ended the sandbox, even if not all of it is gone yet.
func (s *Shim) status(refuse string) (State, error) {
	s.moves.turn.Lock()
	st, end := s.record.get(), s.moves.fate()
	st.Stopping = end.stopping && !end.hibernated
	if refuse != "" {
		s.moves.refused = refuse
	}
	s.moves.turn.Unlock()
	if refuse != "" && end.failed != nil {
		return State{}, fmt.Errorf("%w, because it could not be restored: %w", ErrEnded, end.failed)
	}
	return st, nil
}
