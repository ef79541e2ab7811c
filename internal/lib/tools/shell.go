package tools

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cove-dev/cove/internal/lib/proctree"
)

const (
	maxShells   = 64 // in the background, those that have ended among them
	maxReport   = 64 << 10
	drainLimit  = 10 * time.Second // for output, once nothing of the command is left
	closeShells = killGrace + killLimit
)

// shells are the commands of a session.
type shells struct {
	program []string // that keeps one: `cove-guest tool keep`
	logs    string   // folder
	grace   time.Duration

	mu     sync.Mutex
	last   int
	known  map[string]*shell // in the background
	order  []string          // their ids, the oldest first
	living map[int]bool      // keepers, by their process numbers
	wg     sync.WaitGroup
}

// A shell is one command, with all processes that it started.
type shell struct {
	id       string
	begun    time.Time
	out, err *capture
	control  io.WriteCloser // its end ends the command
	end      sync.Once

	ended chan struct{} // closed when the command itself has ended; then code and so on are known
	gone  chan struct{} // closed when nothing of it is left

	code   int
	signal string
	took   time.Duration
	left   bool // what it started still ran then
	lost   bool // its keeper died without a report

	survivors bool // something of it is left, which could not be ended; valid when gone is closed

	look sync.Mutex // one poll after the other
}

// start starts a command under a keeper.
func (s *shells) start(spec keeperSpec) (*shell, error) {
	spec.Grace = s.grace
	line, err := json.Marshal(spec)
	if err != nil {
		return nil, err
	}
	sh := &shell{
		begun: time.Now(), ended: make(chan struct{}), gone: make(chan struct{}),
		out: newCapture("stdout", s.logs), err: newCapture("stderr", s.logs),
	}
	cmd := exec.Command(s.program[0], s.program[1:]...)
	var pipes [3][2]*os.File // stdout, stderr, the report
	var ours, theirs []io.Closer
	closeAll := func(list []io.Closer) {
		for _, c := range list {
			_ = c.Close()
		}
	}
	for i := range pipes {
		if pipes[i][0], pipes[i][1], err = os.Pipe(); err != nil {
			closeAll(append(ours, theirs...))
			return nil, err
		}
		ours, theirs = append(ours, pipes[i][0]), append(theirs, pipes[i][1])
	}
	cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = pipes[0][1], pipes[1][1], []*os.File{pipes[2][1]}
	if sh.control, err = cmd.StdinPipe(); err == nil {
		err = s.register(cmd)
	}
	closeAll(theirs)
	if err != nil {
		closeAll(ours)
		return nil, err
	}
	_, writeErr := sh.control.Write(append(line, '\n'))
	reports := bufio.NewReader(io.LimitReader(pipes[2][0], maxReport))
	first, err := report(reports)
	s.wg.Go(func() { s.follow(sh, cmd, pipes, reports) })
	if err == nil && first.Error != "" {
		err = errors.New(first.Error)
	}
	if err = errors.Join(err, writeErr); err != nil {
		sh.finish()
		<-sh.gone
		return nil, err
	}
	return sh, nil
}

// register starts a keeper that sweep knows.
func (s *shells) register(cmd *exec.Cmd) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := cmd.Start(); err != nil {
		return err
	}
	if s.living == nil {
		s.living = map[int]bool{}
	}
	s.living[cmd.Process.Pid] = true
	return nil
}

func report(r *bufio.Reader) (keeperReport, error) {
	var k keeperReport
	line, err := r.ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(line, &k)
	}
	return k, err
}

// follow sees a command to the end of all that it started.
func (s *shells) follow(sh *shell, cmd *exec.Cmd, pipes [3][2]*os.File, reports *bufio.Reader) {
	var pumps sync.WaitGroup
	pumps.Go(func() { sh.out.copyFrom(pipes[0][0]) })
	pumps.Go(func() { sh.err.copyFrom(pipes[1][0]) })
	r, err := report(reports)
	sh.code, sh.signal, sh.left, sh.took = r.Code, r.Signal, r.Left, time.Since(sh.begun)
	if sh.lost = err != nil || !r.Ended; sh.lost {
		// The keeper was killed, and its processes may live: they are our children now.
		_ = cmd.Wait()
		s.forget(cmd)
		s.sweep()
	} else {
		if sh.left { // the streams do not end, but what the command itself has printed is its answer
			sh.out.catchUp(pipes[0][0])
			sh.err.catchUp(pipes[1][0])
		}
		close(sh.ended)
		_ = cmd.Wait() // its code says nothing that the report has not
		s.forget(cmd)
	}
	sh.survivors = cmd.ProcessState.ExitCode() == exitSurvivors
	drained := make(chan struct{})
	go func() { pumps.Wait(); close(drained) }()
	await(context.Background(), drained, drainLimit) // somebody else's process may hold a stream open
	for _, p := range pipes {
		_ = p[0].Close()
	}
	<-drained
	sh.out.close()
	sh.err.close()
	if sh.lost {
		close(sh.ended)
	}
	close(sh.gone)
}

func (s *shells) forget(cmd *exec.Cmd) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.living, cmd.Process.Pid)
}

// sweep ends the processes that a dead keeper left: children of this process that are not
// keepers.
func (s *shells) sweep() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for deadline := time.Now().Add(killLimit); time.Now().Before(deadline); <-time.After(2 * time.Millisecond) {
		all := proctree.Below(os.Getpid())
		for keeper := range s.living {
			kept := append(proctree.Below(keeper), keeper)
			all = slices.DeleteFunc(all, func(pid int) bool { return slices.Contains(kept, pid) })
		}
		if len(all) == 0 {
			return
		}
		for _, pid := range all {
			_ = syscall.Kill(pid, syscall.SIGKILL)
			_, _ = syscall.Wait4(pid, nil, syscall.WNOHANG, nil) // a grandchild is not ours yet
		}
	}
}

// finish begins the end of a command and all that it started.
func (sh *shell) finish() { sh.end.Do(func() { _ = sh.control.Close() }) }

// keep adds a command to those in the background.
func (s *shells) keep(sh *shell) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.known == nil {
		s.known = map[string]*shell{}
	}
	for i := 0; len(s.order) >= maxShells && i < len(s.order); {
		if old := s.known[s.order[i]]; isClosed(old.gone) {
			delete(s.known, old.id)
			s.order = slices.Delete(s.order, i, i+1)
			continue
		}
		i++
	}
	if len(s.order) >= maxShells {
		return errorf(CodeBusy, "%d commands run in the background; kill one first", maxShells)
	}
	s.last++
	sh.id = strconv.Itoa(s.last)
	s.known[sh.id] = sh
	s.order = append(s.order, sh.id)
	return nil
}

func (s *shells) find(id string) (*shell, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	sh := s.known[id]
	if sh == nil {
		return nil, errorf(CodeNotFound, "there is no background command %q in this session", id)
	}
	return sh, nil
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// init prepares this process to have commands.
func (s *shells) init() error {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("become a subreaper: %w", err)
	}
	sweepLogs(s.logs, time.Now())
	return nil
}

// close ends every command, and waits for that.
func (s *shells) close() {
	s.mu.Lock()
	all := slices.Collect(maps.Values(s.known))
	s.mu.Unlock()
	for _, sh := range all {
		sh.finish()
	}
	done := make(chan struct{})
	go func() { s.wg.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(closeShells):
	}
}

// await waits until a channel closes, at most for a time and as long as ctx lasts.
func await(ctx context.Context, c <-chan struct{}, limit time.Duration) bool {
	t := time.NewTimer(limit)
	defer t.Stop()
	select {
	case <-c:
		return true
	case <-ctx.Done():
	case <-t.C:
	}
	return isClosed(c)
}
