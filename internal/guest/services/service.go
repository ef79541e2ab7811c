package services

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/cove-dev/cove/sprites"
)

// A crashed service is started again after a pause. The pause doubles with each crash, and is
// short again once the service has run for a while.
const (
	firstPause   = 500 * time.Millisecond
	longestPause = 30 * time.Second
	steadyAfter  = 30 * time.Second
)

// readyLimit bounds the wait for the port of a service that another one needs.
const readyLimit = 10 * time.Second

// service is one definition and its state.
type service struct {
	set *Set
	log logFile

	mu     sync.Mutex
	def    sprites.Service // without its state
	state  sprites.ServiceState
	cancel context.CancelFunc // ends keep; nil when it does not run
	done   chan struct{}      // closed when keep has returned
	grace  time.Duration      // for the end that cancel begins
	prog   Program            // the one that runs
	events map[*subscription]bool

	again    bool // somebody has started it while it is being stopped: it starts when that is done
	unwanted bool // somebody has stopped it, and nobody has started it since

	outOfMemory bool // the program was ended for want of memory

	needed chan struct{} // has an element when what it waits for has started; nil when it waits for nothing
}

// start sees to it that the service is kept running, unless the guest is stopping. It
// reports whether it was not before. A service that is being stopped starts when it has ended;
// start does not wait for that.
func (v *service) start() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.unwanted = false
	return v.keepUp()
}

// resume is start, but leaves a service that somebody has stopped as it is.
func (v *service) resume() {
	v.mu.Lock()
	defer v.mu.Unlock()
	if !v.unwanted {
		v.keepUp()
	}
}

// keepUp is start. The caller must hold mu.
func (v *service) keepUp() bool {
	if v.cancel != nil {
		v.again = v.state.Status == sprites.ServiceStopping
		return v.again
	}
	return v.begin()
}

// begin is keepUp, of a service that is not kept.
func (v *service) begin() bool {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	if !v.set.begin(func() {
		defer close(done)
		defer cancel()
		v.keep(ctx)
	}) {
		cancel()
		return false
	}
	v.cancel, v.done, v.grace = cancel, done, 0
	v.state = sprites.ServiceState{Name: v.def.Name, Status: sprites.ServiceStarting}
	return true
}

// stop ends the service and all that it started: by TERM, and after grace by force. It returns
// when no process of it is left, and reports whether there was anything to stop.
func (v *service) stop(grace time.Duration) bool {
	done := v.beginStop(grace)
	if done == nil {
		return false
	}
	<-done
	return true
}

// beginStop is stop, but does not wait: done is closed when the service has ended. If there is
// nothing to stop, done is nil.
func (v *service) beginStop(grace time.Duration) (done <-chan struct{}) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.cancel == nil {
		return nil
	}
	v.grace, v.again = grace, false
	v.state.Status, v.state.NextRestartAt = sprites.ServiceStopping, nil
	v.publish(sprites.ServiceEvent{Type: sprites.ServiceEventStopping})
	v.cancel()
	return v.done
}

// keep runs the program, again and again, until it ends well or ctx does.
func (v *service) keep(ctx context.Context) {
	pause := firstPause
	for {
		began := time.Now()
		code, started := v.runOnce(ctx)
		if ctx.Err() != nil {
			v.over(sprites.ServiceEvent{Type: sprites.ServiceEventStopped, ExitCode: &code}, "")
			return
		}
		exit := sprites.ServiceEvent{Type: sprites.ServiceEventExit, ExitCode: &code}
		if code == 0 && started {
			v.over(exit, "")
			return
		}
		if time.Since(began) >= steadyAfter {
			pause = firstPause
		}
		needed := v.crashed(exit, pause)
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
			pause = min(2*pause, longestPause)
		case <-needed:
			pause = firstPause
		case <-ctx.Done():
		}
		timer.Stop()
		if ctx.Err() != nil {
			v.over(sprites.ServiceEvent{Type: sprites.ServiceEventStopped, ExitCode: &code}, "exit "+strconv.Itoa(code))
			return
		}
		v.mu.Lock()
		v.state.RestartCount++
		v.mu.Unlock()
	}
}

// runOnce runs the program until it, and all that it left, has ended.
func (v *service) runOnce(ctx context.Context) (code int, started bool) {
	v.mu.Lock()
	def := v.def
	v.needed = make(chan struct{}, 1)
	v.mu.Unlock()
	if err := v.set.awaitNeeds(ctx, def.Needs); err != nil {
		if ctx.Err() == nil {
			v.fault(err)
		}
		return 126, false
	}
	v.mu.Lock()
	v.needed = nil
	v.mu.Unlock()
	prog, err := v.set.prepare(def)
	if err != nil {
		v.fault(err)
		return 126, false
	}
	out := &output{service: v, ended: make(chan struct{})}
	pid, started := prog.Start(out)
	if started {
		now := time.Now().UTC()
		v.mu.Lock()
		v.prog = prog
		if v.state.Status != sprites.ServiceStopping {
			v.state.Status = sprites.ServiceRunning
		}
		v.state.PID, v.state.StartedAt, v.state.NextRestartAt, v.state.Error = pid, &now, nil, ""
		v.state.ExitCode = nil
		v.publish(sprites.ServiceEvent{Type: sprites.ServiceEventStarted})
		v.mu.Unlock()
	}
	out.begin()
	if started {
		v.set.retryNeeding(def.Name)
		select {
		case <-prog.Exited():
		case <-ctx.Done():
			v.mu.Lock()
			grace := v.grace
			v.mu.Unlock()
			v.end(prog, grace)
		}
		v.end(prog, 0) // what it left behind would hold its port
	}
	<-out.ended
	v.mu.Lock()
	v.prog, v.state.PID = nil, 0
	v.outOfMemory = out.reason == "oom"
	if err := v.log.finish(); err != nil {
		v.set.logger.Warn("log of a service", "service", v.def.Name, "err", err)
	}
	v.mu.Unlock()
	return out.code, started
}

func (v *service) end(prog Program, grace time.Duration) {
	if err := prog.End(grace); err != nil {
		v.set.logger.Error("end service", "service", v.def.Name, "err", err)
	}
}

// fault reports why the program could not be started.
func (v *service) fault(err error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.state.Error, v.state.ExitCode = err.Error(), nil
	v.publish(sprites.ServiceEvent{Type: sprites.ServiceEventError, Data: err.Error()})
}

// crashed notes that the program will be started again after a pause, which ends
// early when the channel has an element.
func (v *service) crashed(exit sprites.ServiceEvent, pause time.Duration) (needed <-chan struct{}) {
	v.mu.Lock()
	defer v.mu.Unlock()
	next := time.Now().Add(pause).UTC()
	if v.state.Status != sprites.ServiceStopping {
		v.state.Status, v.state.NextRestartAt = sprites.ServiceFailed, &next
	}
	if v.state.Error == "" {
		v.state.Error, v.state.ExitCode = "exit "+strconv.Itoa(*exit.ExitCode), exit.ExitCode
		if v.outOfMemory {
			v.state.Error += ": out of memory"
		}
	}
	v.publish(exit)
	return v.needed
}

// retry makes the service check again what it waits for.
func (v *service) retry() {
	v.mu.Lock()
	defer v.mu.Unlock()
	select {
	case v.needed <- struct{}{}:
	default: // it waits for nothing, or is about to look
	}
}

// over notes that the program will not be started again, unless somebody has asked for that
// while it was being stopped.
func (v *service) over(last sprites.ServiceEvent, why string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.cancel, v.needed = nil, nil
	v.state.Status, v.state.Error, v.state.NextRestartAt, v.state.ExitCode = sprites.ServiceStopped, why, nil, nil
	if last.Type == sprites.ServiceEventExit {
		v.state.ExitCode = last.ExitCode
	}
	v.publish(last)
	v.log.close()
	if v.again {
		v.again = false
		v.begin()
	}
}

// describe returns the definition with its state.
func (v *service) describe() sprites.Service {
	v.mu.Lock()
	defer v.mu.Unlock()
	d := v.def
	d.State = v.state
	return d
}

// kept reports whether the service runs, or will again by itself.
func (v *service) kept() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.cancel != nil
}

// want notes whether somebody wants the service to run.
func (v *service) want(is bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.unwanted = !is
}

// wanted reports whether nobody has stopped the service since somebody started it.
func (v *service) wanted() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return !v.unwanted
}

// staysDown reports whether the service is down. If so, a restart that is under way leaves it
// down: a caller that is told so does not expect that it starts by itself.
func (v *service) staysDown() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.cancel != nil {
		return false
	}
	v.unwanted = true
	return true
}

// failsUntil reports whether the program has failed and is not started again before
// t.
func (v *service) failsUntil(t time.Time) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.state.Status == sprites.ServiceFailed && v.state.NextRestartAt != nil && v.state.NextRestartAt.After(t)
}

// signal sends a signal to the program itself.
func (v *service) signal(sig syscall.Signal) error {
	v.mu.Lock()
	prog := v.prog
	v.mu.Unlock()
	if prog == nil {
		return notRunning(v.def.Name)
	}
	err := prog.Signal(sig)
	if errors.Is(err, os.ErrProcessDone) {
		return notRunning(v.def.Name)
	}
	return err
}

// ready waits until the service runs, and, if it has a port, listens there. A service without
// a port is ready as soon as it runs.
func (v *service) ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, readyLimit)
	defer cancel()
	for {
		d := v.describe()
		switch d.State.Status {
		case sprites.ServiceRunning:
			if d.HTTPPort == 0 || listens(ctx, d.HTTPPort) {
				return nil
			}
		case sprites.ServiceStopped, sprites.ServiceStopping:
			return fmt.Errorf("service %s, which is needed, is %s", d.Name, d.State.Status)
		}
		if !sleep(ctx, 25*time.Millisecond) {
			if errors.Is(ctx.Err(), context.DeadlineExceeded) {
				return fmt.Errorf("service %s, which is needed, is not ready after %v", d.Name, readyLimit)
			}
			return ctx.Err()
		}
	}
}

// listens reports whether something takes connections at a port of this machine.
func listens(ctx context.Context, port int) bool {
	dialer := net.Dialer{Timeout: time.Second}
	conn, err := dialer.DialContext(ctx, "tcp", net.JoinHostPort("localhost", strconv.Itoa(port)))
	if err != nil {
		return false
	}
	_ = conn.Close()
	return true
}

// sleep waits, and reports whether ctx let it.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
