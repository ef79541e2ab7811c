package guest

import (
	"errors"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/cove-dev/cove/internal/guest/signals"
)

// process is a started child.
type process struct {
	pid    int
	exited chan struct{} // closed after status is set
	status syscall.WaitStatus
}

// code returns the exit code as a shell would, and a reason for a death by signal.
func (p *process) code() (code int, reason string) {
	if p.status.Signaled() {
		sig := p.status.Signal()
		return 128 + int(sig), "signal:" + signals.Name(sig)
	}
	return p.status.ExitStatus(), ""
}

// A reaper starts children and waits for them.
//
// The parent of orphans must wait for any child. Such a wait takes the status away from any
// code that waits for one child, above all os/exec. So with all there is a single wait4(-1),
// in a thread of its own, which reports each end to the code that started the process. This
// process must not use os/exec. A blocking wait is also quicker than SIGCHLD, which in gVisor
// costs a signal frame, and needs no thread per process. Without all, this process is not the
// parent of orphans, and each process is waited for on its own.
type reaper struct {
	all    bool
	wake   chan struct{} // there is a child to wait for
	closed chan struct{}
	wg     sync.WaitGroup

	mu        sync.Mutex
	starting  int                        // forks under way
	live      map[int]*process           // by pid
	unclaimed map[int]syscall.WaitStatus // ended while a fork was under way: perhaps its child
}

func newReaper(all bool) *reaper {
	r := &reaper{
		all:       all,
		wake:      make(chan struct{}, 1),
		closed:    make(chan struct{}),
		live:      map[int]*process{},
		unclaimed: map[int]syscall.WaitStatus{},
	}
	if all {
		r.wg.Go(r.loop)
	}
	return r
}

// start registers the child that fork makes. A child may end before fork has
// returned its number; its status then waits in unclaimed.
func (r *reaper) start(fork func() (int, error)) (*process, error) {
	if r.all {
		r.mu.Lock()
		r.starting++
		r.mu.Unlock()
	}
	pid, err := fork()
	p := &process{pid: pid, exited: make(chan struct{})}
	if !r.all {
		if err != nil {
			return nil, err
		}
		r.wg.Go(func() {
			for {
				_, err := syscall.Wait4(pid, &p.status, 0, nil)
				if !errors.Is(err, syscall.EINTR) {
					break
				}
			}
			close(p.exited)
		})
		return p, nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.starting--
	if err == nil {
		if status, ok := r.unclaimed[pid]; ok {
			p.status = status
			close(p.exited)
		} else {
			r.live[pid] = p
			select {
			case r.wake <- struct{}{}:
			default:
			}
		}
	}
	if r.starting == 0 {
		clear(r.unclaimed)
	}
	return p, err
}

// loop waits for children until close. Having no child means that there is
// nothing to become an orphan either, so it sleeps until the next start.
func (r *reaper) loop() {
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, unix.WALL, nil)
		switch {
		case err == nil:
			r.ended(pid, status)
		case errors.Is(err, syscall.ECHILD):
			select {
			case <-r.wake:
			case <-r.closed:
				return
			}
		}
	}
}

func (r *reaper) ended(pid int, status syscall.WaitStatus) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if p := r.live[pid]; p != nil {
		delete(r.live, pid)
		p.status = status
		close(p.exited)
	} else if r.starting > 0 {
		r.unclaimed[pid] = status
	}
}

// close waits for the reaper's goroutines; all children must have ended.
func (r *reaper) close() {
	close(r.closed)
	r.wg.Wait()
}
