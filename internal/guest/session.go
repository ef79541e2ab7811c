package guest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cove-dev/cove/internal/guest/wire"
	"github.com/cove-dev/cove/sprites"
)

// A client is a connection to a session. Its methods are called from several goroutines.
type client interface {
	// output sends a frame (a stream byte and payload). It blocks as long as the other side
	// does not read: that is the command's backpressure. It must not keep the frame.
	output(frame []byte, tty bool) error
	// exit sends the end and closes.
	exit(e ending, tty bool)
	// crowded says whether other clients wait for this one, which then must not block long.
	crowded(bool)
	// followPorts begins to send events of the session's ports, until the connection ends.
	followPorts(*session)
	// drop ends the connection at once.
	drop()
}

// ending says how a command has ended.
type ending struct {
	code   int
	reason string
	left   int // processes that still run, and will be ended
}

// session is one command, from its start until nothing of it is left.
//
// It ends with its main process. Its clients then get the output up to that moment, and the
// exit. Processes that are left go on in the same cgroup, until the session's time is over or
// someone ends them.
type session struct {
	set     *sessions
	cmd     *command
	id      string
	created time.Time
	service bool // it is in no list, and keeps nothing awake

	proc    *process
	group   *group
	streams *streams
	drained sync.WaitGroup // done by each pump when all output of the main process has been sent
	ended   chan struct{}  // closed, under mu, when the main process has ended and code is set
	final   chan struct{}  // closed when all that its clients are to get is in scroll, too
	gone    chan struct{}  // closed when no process of it is left
	look    chan struct{}  // someone has ended processes: see whether any is left

	listened atomic.Bool // a client has been told of a port

	alone guard // running without a client
	limit guard // running at all

	intake intake

	mu       sync.Mutex
	clients  []client
	scroll   scrollback
	rate     rate
	code     int
	reason   string
	timedOut bool
}

// intake is how input comes to a command.
type intake struct {
	sync.Mutex              // held while some is handed over
	taken      atomic.Int64 // bytes of the numbered input that were; changed under it
}

// newSession registers a session that is about to start.
func (s *sessions) newSession(cmd *command) (*session, error) {
	sess := &session{
		set:     s,
		cmd:     cmd,
		created: time.Now(),
		ended:   make(chan struct{}),
		final:   make(chan struct{}),
		gone:    make(chan struct{}),
		look:    make(chan struct{}, 1),
		scroll:  scrollback{max: s.scrollback},
	}
	return sess, s.table.register(sess)
}

// unlistedSession prepares a session for a service. name is part of its id.
func (s *sessions) unlistedSession(cmd *command, name string) *session {
	return &session{
		set:     s,
		cmd:     cmd,
		id:      name + "-" + strconv.FormatUint(rand.Uint64(), 36),
		created: time.Now(),
		service: true,
		ended:   make(chan struct{}),
		final:   make(chan struct{}),
		gone:    make(chan struct{}),
		look:    make(chan struct{}, 1),
	}
}

// pid returns the main process's number, if it could be started.
func (s *session) pid() (int, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.proc == nil {
		return 0, false
	}
	return s.proc.pid, true
}

// hasProcesses reports whether any of the session's processes lives, as far as can
// be told.
func (s *session) hasProcesses() bool {
	s.mu.Lock()
	g := s.group
	s.mu.Unlock()
	if g == nil {
		return false
	}
	pids, err := g.procs()
	return err != nil || len(pids) > 0
}

// start starts the command, with c as one of its clients: others may have attached already. If
// it can't be started, the clients get that as the command's own failure.
func (s *session) start(c client) {
	s.mu.Lock()
	s.alone.stop() // one that attached may have left again
	s.clients = append(slices.Clone(s.clients), c)
	s.crowd()
	s.mu.Unlock()
	proc, group, streams, err := s.set.runner.start(s.cmd, s.id)
	if err != nil {
		s.set.table.finished(s)
		s.set.table.forget(s)
		s.fail(err)
		s.set.table.trimKept()
		return
	}
	s.mu.Lock()
	s.proc, s.group, s.streams = proc, group, streams
	s.mu.Unlock()
	s.drained.Add(1)
	s.set.wg.Go(func() { (&pump{s, streams.out}).run(sprites.StreamStdout) })
	if streams.err != nil {
		s.drained.Add(1)
		s.set.wg.Go(func() { (&pump{s, streams.err}).run(sprites.StreamStderr) })
	}
	if s.cmd.timeout > 0 {
		s.limit.start(s.cmd.timeout, s.timeout)
	}
	s.set.wg.Go(s.run)
	if s.set.table.stopping.Load() { // it slipped in between
		s.endLater(0)
	}
}

// abort ends a session that nobody will start. Clients that have attached are told.
func (s *session) abort() {
	s.set.table.unregister(s)
	s.fail(errors.New("the client that wanted to run this has gone"))
}

// fail ends a session whose command does not run, and tells its clients why.
func (s *session) fail(err error) {
	code := 126
	if e, ok := errors.AsType[*startError](err); ok {
		code = e.code
	}
	text := "cove: " + err.Error() + "\n"
	if s.cmd.tty {
		text = "cove: " + err.Error() + "\r\n"
	}
	frame := append([]byte{byte(sprites.StreamStderr)}, text...)
	s.mu.Lock()
	s.code = code
	s.scroll.add(frame)
	clients := s.clients
	s.clients = nil
	close(s.ended)
	s.mu.Unlock()
	close(s.final)
	var wg sync.WaitGroup
	for _, c := range clients {
		wg.Go(func() {
			if c.output(frame, s.cmd.tty) == nil {
				c.exit(ending{code: code}, s.cmd.tty)
			}
			c.drop()
		})
	}
	wg.Wait()
}

// run follows the session to its end.
func (s *session) run() {
	<-s.proc.exited
	s.limit.stop()
	s.alone.stop()
	s.mu.Lock()
	s.code, s.reason = s.proc.code()
	if s.timedOut {
		s.code, s.reason = 124, "timeout"
	}
	if s.set.table.stopping.Load() && s.code > 128 {
		s.reason = "stopped"
	}
	if !s.timedOut && s.set.memory.ended(s.id, s.proc) {
		s.reason = "oom"
	}
	s.mu.Unlock()
	s.set.table.finished(s)
	s.mu.Lock()
	close(s.ended)
	s.mu.Unlock()

	// This wakes up a waiting reader, which then takes the rest.
	past := time.Unix(1, 0)
	_ = s.streams.out.SetReadDeadline(past)
	if s.streams.err != nil {
		_ = s.streams.err.SetReadDeadline(past)
	}
	s.drained.Wait()
	close(s.final)
	s.set.table.trimKept()
	if s.listened.Load() { // what it listened on is closed before it ends
		s.set.ports.Look()
	}
	s.mu.Lock()
	clients := s.clients
	s.clients = nil
	s.mu.Unlock()
	end := ending{s.code, s.reason, s.left()}
	var wg sync.WaitGroup
	for _, c := range clients {
		wg.Go(func() { c.exit(end, s.cmd.tty) })
	}
	if s.streams.in != nil && !s.cmd.tty {
		_ = s.streams.in.Close()
	}
	s.linger()
	wg.Wait()
}

// left returns how many processes are left to be ended after the main process has ended by
// itself. It waits a moment for those that are about to end, such as the rest of a pipeline.
func (s *session) left() int {
	if s.cmd.maxRun == 0 || s.reason != "" {
		return 0
	}
	for wait := time.Millisecond; ; wait *= 2 {
		pids, err := s.group.procs()
		if err != nil || len(pids) == 0 || wait > 16*time.Millisecond {
			return len(pids)
		}
		time.Sleep(wait)
	}
}

// linger waits until no process of the session is left. When the session's time is over, it
// ends the rest.
func (s *session) linger() {
	wait := 20 * time.Millisecond
	if !s.group.remove() {
		if s.cmd.maxRun > 0 {
			s.alone.start(s.cmd.maxRun, func() { s.endLater(s.cmd.grace) })
		}
		for !s.group.remove() {
			timer := time.NewTimer(wait)
			select {
			case <-timer.C:
				wait = min(wait*2, 2*time.Second)
			case <-s.look:
			}
			timer.Stop()
		}
		s.alone.stop()
	}
	s.set.table.forget(s)
	close(s.gone)
	// A process outside the session may hold the other ends. The pumps end all the same.
	s.mu.Lock()
	s.streams.close()
	s.mu.Unlock()
}

// errSessionEnded says that the session has ended, so that its end can be replayed, at once or
// soon.
var errSessionEnded = errors.New("the session has ended")

// attach adds a client. It returns the kept output, which the caller sends before it lets
// c.output send, and how many bytes of each stream came before that.
func (s *session) attach(c client) (frames [][]byte, before []int64, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-s.ended:
		return nil, nil, errSessionEnded
	default:
	}
	if len(s.clients) >= maxClients {
		return nil, nil, wire.Full("too_many_clients", maxClients, "Session %s has %d clients already.", s.id, maxClients)
	}
	s.alone.stop()
	s.clients = append(slices.Clone(s.clients), c)
	s.crowd()
	frames, before = s.scroll.snapshot()
	return frames, before, nil
}

// detach removes a client. If it was the last one, the session's time without clients begins.
func (s *session) detach(c client) {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := slices.Index(s.clients, c)
	if i < 0 {
		return
	}
	s.clients = slices.Delete(slices.Clone(s.clients), i, i+1)
	s.crowd()
	if len(s.clients) == 0 && s.cmd.maxRun > 0 {
		s.alone.start(s.cmd.maxRun, func() { s.endLater(s.cmd.grace) })
	}
}

func (s *session) crowd() {
	for _, c := range s.clients {
		c.crowded(len(s.clients) > 1)
	}
}

// broadcast hands a frame of output to all clients, at the pace of the slowest.
func (s *session) broadcast(frame []byte) {
	s.mu.Lock()
	if !s.service {
		s.scroll.add(frame)
	}
	s.rate.add(len(frame) - 1)
	clients := s.clients
	s.mu.Unlock()
	for _, c := range clients {
		if err := c.output(frame, s.cmd.tty); err != nil {
			c.drop()
		}
	}
}

// take hands input to the command. Clients that resume an input send the same bytes, but none
// is handed over twice. The position at is where in the input p begins, and is advanced. If it
// is nil, the input is not numbered. Input that the command no longer takes is discarded.
func (s *session) take(p []byte, at *int64) {
	s.intake.Lock()
	defer s.intake.Unlock()
	if at != nil {
		end := *at + int64(len(p))
		p = p[min(max(s.intake.taken.Load()-*at, 0), int64(len(p))):]
		*at = end
	}
	if len(p) == 0 {
		return
	}
	_ = s.write(p)
	if at != nil {
		s.intake.taken.Store(*at)
	}
}

// write hands input to the command. An error means that the command no longer takes input.
func (s *session) write(p []byte) error {
	s.mu.Lock()
	in := s.input()
	s.rate.add(len(p))
	s.mu.Unlock()
	if in == nil {
		return os.ErrClosed
	}
	_, err := in.Write(p)
	return err
}

func (s *session) input() *os.File {
	if s.streams == nil {
		return nil
	}
	return s.streams.in
}

// closeInput ends the command's input, unless it is a terminal.
func (s *session) closeInput() {
	s.mu.Lock()
	in := s.input()
	s.mu.Unlock()
	if in != nil && !s.cmd.tty {
		_ = in.Close()
	}
}

// resize sets the terminal's size; zero keeps the current value.
func (s *session) resize(cols, rows int) {
	s.mu.Lock()
	in := s.input()
	s.mu.Unlock()
	if !s.cmd.tty || in == nil || cols < 0 || rows < 0 || cols > 0xffff || rows > 0xffff {
		return
	}
	raw, err := in.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Control(func(fd uintptr) { // the terminal has just gone
		now, err := unix.IoctlGetWinsize(int(fd), unix.TIOCGWINSZ)
		if err != nil {
			return
		}
		if cols > 0 {
			now.Col = uint16(cols)
		}
		if rows > 0 {
			now.Row = uint16(rows)
		}
		_ = unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, now) // likewise
	})
}

// signal sends a signal to the main process's group, as a terminal would. KILL goes to every
// process of the session, since a process can't pass it on to its descendants.
func (s *session) signal(sig syscall.Signal) error {
	s.mu.Lock()
	proc := s.proc
	s.mu.Unlock()
	if proc == nil {
		return syscall.ESRCH
	}
	select {
	case <-proc.exited: // its number may be someone else's by now
		return syscall.ESRCH
	default:
	}
	if sig == syscall.SIGKILL {
		return s.group.kill()
	}
	return syscall.Kill(-proc.pid, sig)
}

// signalRest sends a signal to the processes that the main process has left behind.
func (s *session) signalRest(sig syscall.Signal) error {
	if sig == syscall.SIGKILL {
		return s.group.kill()
	}
	pids, err := s.group.procs()
	for _, pid := range pids {
		_ = syscall.Kill(pid, sig) // it has just ended
	}
	return err
}

func (s *session) timeout() {
	s.mu.Lock()
	select {
	case <-s.proc.exited: // just in time
		s.mu.Unlock()
		return
	default:
	}
	s.timedOut = true
	s.mu.Unlock()
	s.endLater(s.cmd.grace)
}

// endLater ends the session without waiting for it.
func (s *session) endLater(grace time.Duration) {
	s.set.wg.Go(func() {
		if err := s.end(context.Background(), grace); err != nil {
			s.set.logger.Error("end session", "session", s.id, "err", err)
		}
	})
}

// confirmLimit bounds the wait for processes that were killed to be gone.
const confirmLimit = 30 * time.Second

// end ends every process of the session. It sends TERM to the main process's group (or the
// command's own signal to the main process), and, when that process has ended, TERM to all
// that is left. After grace, or when ctx ends, it kills all. It returns when none is left.
func (s *session) end(ctx context.Context, grace time.Duration) error {
	s.mu.Lock()
	started := s.proc != nil
	s.mu.Unlock()
	if !started {
		return nil
	}
	if grace > 0 && s.terminate(ctx, grace) {
		return nil
	}
	if _, err := s.group.procs(); err != nil { // without cgroups: look before parents die
		return err
	}
	if err := s.group.kill(); err != nil {
		return err
	}
	err := s.awaitEmpty(confirmLimit, s.group.kill)
	s.nudge()
	return err
}

// terminate is the part of end that uses no force. It reports whether that was enough.
func (s *session) terminate(ctx context.Context, grace time.Duration) bool {
	deadline := time.Now().Add(grace)
	_, _ = s.group.procs() // without cgroups: look before parents die
	stop := func() error { return s.signal(syscall.SIGTERM) }
	if s.cmd.stop != 0 {
		stop = func() error { return program{s}.Signal(s.cmd.stop) }
	}
	if stop() == nil {
		_ = s.signal(syscall.SIGCONT) // one that is stopped would not hear
	}
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case <-s.proc.exited:
	case <-timer.C:
		return false
	case <-ctx.Done():
		return false
	}
	if s.signalRest(syscall.SIGTERM) != nil {
		return false
	}
	err := s.awaitEmpty(time.Until(deadline), ctx.Err)
	s.nudge()
	return err == nil
}

func (s *session) nudge() {
	select {
	case s.look <- struct{}{}:
	default:
	}
}

// awaitEmpty waits until the session has no process. Between looks it calls again; an error of
// that ends the wait.
func (s *session) awaitEmpty(limit time.Duration, again func() error) error {
	deadline := time.Now().Add(limit)
	for wait := time.Millisecond; ; wait = min(2*wait, 50*time.Millisecond) {
		pids, err := s.group.procs()
		if err != nil {
			return err
		}
		if len(pids) == 0 {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("processes %v of session %s have not ended", pids, s.id)
		}
		select {
		case <-s.gone:
			return nil
		case <-time.After(wait):
		}
		if err := again(); err != nil {
			return err
		}
	}
}

// abandon ends the session's connections, when the server closes.
func (s *session) abandon() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.clients {
		c.drop()
	}
	if s.streams != nil {
		s.streams.close() // someone outside may hold the other ends
	}
}

func (s *session) describe() sprites.Session {
	s.mu.Lock()
	defer s.mu.Unlock()
	d := sprites.Session{ID: s.id, Command: s.cmd.String(), Workdir: s.cmd.dir, Created: s.created.UTC(), TTY: s.cmd.tty}
	if !s.rate.last.IsZero() {
		last := s.rate.last.UTC()
		d.LastActivity = &last
		d.IsActive = time.Since(last) < 5*time.Second
		d.BytesPerSecond = s.rate.value()
	}
	return d
}

// rate measures a session's traffic, a second at a time.
type rate struct {
	last   time.Time
	since  time.Time
	bytes  int
	latest float64
}

func (r *rate) add(n int) {
	r.last = time.Now()
	if d := r.last.Sub(r.since); d >= time.Second {
		r.latest = float64(r.bytes) / d.Seconds()
		r.since, r.bytes = r.last, 0
	}
	r.bytes += n
}

func (r *rate) value() float64 {
	d := time.Since(r.since)
	if d > 3*time.Second {
		return 0
	}
	return max(r.latest, float64(r.bytes)/max(d.Seconds(), 1))
}
