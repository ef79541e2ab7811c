package sprites

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coder/websocket"
)

const (
	frameSize    = 64 << 10               // of input frames, and of reads of output
	exitLinger   = 100 * time.Millisecond // for the server's close, once the exit is known
	textLinger   = 500 * time.Millisecond // for the exit frame, once the text exit has come
	attachLimit  = time.Minute            // for session_info of a session attached to
	killLimit    = time.Minute            // for a kill's effect
	endGrace     = 2 * time.Second        // between TERM and KILL when the output has nowhere to go
	sessionLimit = 2 * time.Second        // for a session's id, when it is needed to kill
)

// running is a started command. One goroutine reads the socket until the end, one
// writes input, and one more ends the command on request.
type running struct {
	cmd  *Cmd
	link atomic.Pointer[link] // the connection, or the last one

	known    chan struct{} // closed when id and tty are known, or can't be any more
	knowOnce sync.Once
	id       string
	tty      bool

	done     chan struct{} // closed when the last socket has been read to its end
	readErr  error         // why reading ended, if without an exit
	inputErr chan error    // the input's error, if it ended with one
	cutoff   *time.Timer   // set by a text exit, the reader's
	fed      atomic.Bool   // input has been sent

	// Of a command that is rejoined; the reader's.
	input      *keptInput // nil: it has no input, or is not rejoined
	out, err   replayed
	command    string // as the first connection's session_info has it
	outputLost bool   // some of it is missing
	refused    error  // why it is not rejoined any more

	mu    sync.Mutex
	exit  *exitStatus        // how the command ended
	cause error              // why this side ended it: first of context, writer, Detach
	away  context.CancelFunc // ends a wait for another connection; nil: there is one
	size  *Message           // the terminal's last
	wg    sync.WaitGroup

	endErr error // from end: why the end is not confirmed; valid after wg.Wait
}

func newRunning(c *Cmd, sock *socket) *running {
	r := &running{
		cmd:      c,
		known:    make(chan struct{}),
		done:     make(chan struct{}),
		inputErr: make(chan error, 1),
		tty:      c.TTY != nil,
	}
	r.link.Store(newLink(c.sprite, sock))
	if c.Rejoin != nil && c.Stdin != nil {
		r.input = newKeptInput()
	}
	return r
}

func (r *running) start(ctx context.Context) {
	if r.cmd.session != "" {
		r.id = r.cmd.session
		r.link.Load().expectInfo()
	}
	r.wg.Add(1)
	stop := context.AfterFunc(ctx, func() {
		defer r.wg.Done()
		r.cancel(ctx.Err())
	})
	go func() {
		exited := r.read()
		for !exited && r.rejoin(ctx) {
			exited = r.read()
		}
		sock := r.link.Load().sock
		if stop() {
			r.wg.Done()
		}
		if r.cutoff != nil {
			r.cutoff.Stop()
		}
		r.know()
		r.input.close()
		r.endPipes(r.lastWord())
		if r.cmd.stdin != nil {
			_ = r.cmd.stdin.Close()
		}
		if exited {
			// The connection ends in good order, for which nobody need wait.
			close(r.done)
			sock.linger(exitLinger)
			sock.close()
			return
		}
		sock.close()
		close(r.done)
	}()
	switch {
	case r.input != nil:
		go r.keepInput(r.cmd.Stdin)
	case r.cmd.Stdin != nil:
		go r.copyInput(r.cmd.Stdin)
	}
}

// know says that nothing more will be learned about the session.
func (r *running) know() { r.knowOnce.Do(func() { close(r.known) }) }

// read handles the server's messages until the command's end is known or the connection
// ends. It reports whether the command's end is known.
func (r *running) read() (exited bool) {
	l := r.link.Load()
	defer l.stopLimit()
	buf := make([]byte, frameSize)
	for {
		typ, msg, err := l.sock.next()
		if err != nil {
			r.readErr = err
			return false
		}
		var last bool
		if typ == websocket.MessageText {
			err = r.text(l, msg)
		} else {
			last, err = r.binary(msg, buf)
		}
		if err != nil {
			r.readErr = err
			l.sock.giveUp(err)
			return false
		}
		if last {
			return true
		}
	}
}

func (r *running) text(l *link, msg io.Reader) error {
	b, err := readText(msg)
	if err != nil {
		return err
	}
	m, ok := parseMessage(b)
	if !ok {
		return nil
	}
	var refused error
	switch {
	case m.Type == MessageTaken:
		r.input.took(m.Taken)
	case m.Type == "session_info" && !l.told:
		l.told = true
		l.stopLimit()
		refused = r.described(l, m)
	}
	if exit := m.exit(); exit != nil && r.ended(exit) {
		// The exit frame or the close follows at once; where neither does, the
		// end is known all the same.
		r.cutoff = time.AfterFunc(textLinger, func() { _ = l.sock.ws.CloseNow() })
	}
	if r.cmd.OnMessage != nil {
		r.cmd.OnMessage(m)
	}
	if r.cmd.OnPort != nil {
		if e, ok := (PortEvent{m.Type, m.Port, m.Address, m.PID}).Checked(); ok {
			r.cmd.OnPort(e)
		}
	}
	return refused
}

// described notes what the first message of a connection says about the session.
func (r *running) described(l *link, m Message) error {
	select {
	case <-r.known:
		return r.resumed(m)
	default:
	}
	r.command = m.Command
	if r.cmd.session == "" {
		r.id = m.SessionID
	} else {
		r.tty = m.TTY
		if len(m.Before) == 2 {
			r.out.replay(m.Before[0])
			r.err.replay(m.Before[1])
		}
	}
	r.input.begin(m.Taken, r.tty, l.sock)
	r.know()
	return nil
}

// binary hands on a message of output. It reports whether that was the exit.
func (r *running) binary(msg io.Reader, buf []byte) (last bool, err error) {
	n, err := msg.Read(buf)
	if err == io.EOF && n == 0 {
		return false, nil
	}
	if err != nil && err != io.EOF {
		return false, err
	}
	p, w, from := buf[:n], r.cmd.Stdout, &r.out
	if !r.tty {
		switch Stream(p[0]) {
		case StreamStdout:
		case StreamStderr:
			w, from = r.cmd.Stderr, &r.err
		case StreamExit:
			return r.exitFrame(msg, p)
		default:
			_, err := io.Copy(io.Discard, msg)
			return false, err
		}
		p = p[1:]
	}
	for {
		if p = from.fresh(p); len(p) > 0 {
			r.output(w, p)
		}
		n, err := msg.Read(buf)
		if err == io.EOF {
			if p = from.fresh(buf[:n]); len(p) > 0 {
				r.output(w, p)
			}
			return false, nil
		}
		if err != nil {
			return false, err
		}
		p = buf[:n]
	}
}

// exitFrame reads the rest of an exit frame. The part p has been read already.
func (r *running) exitFrame(msg io.Reader, p []byte) (bool, error) {
	rest, err := io.ReadAll(io.LimitReader(msg, 8))
	if err != nil {
		return false, err
	}
	code, err := parseExit(append(p[1:len(p):len(p)], rest...))
	if err != nil {
		return false, err
	}
	r.ended(&exitStatus{code: code})
	return true, nil
}

// ended notes the command's end; the first word counts. It reports whether this
// was it.
func (r *running) ended(exit *exitStatus) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.exit != nil {
		return false
	}
	r.exit = exit
	return true
}

// giveCause notes why this side ends the command, unless it has ended, or is
// being ended.
func (r *running) giveCause(cause error) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.exit != nil || r.cause != nil {
		return false
	}
	r.cause = cause
	return true
}

// output writes p to w. If that fails the command is ended, and the rest of its
// output goes nowhere.
func (r *running) output(w io.Writer, p []byte) {
	if w == nil {
		return
	}
	r.mu.Lock()
	dropping := r.cause != nil
	r.mu.Unlock()
	if dropping {
		return
	}
	err := r.link.Load().sock.deliver(w, p)
	if err == nil || !r.giveCause(writeError{err}) {
		return
	}
	r.wg.Go(func() { r.end(SIGTERM, endGrace) })
}

// writeError is the cause of an end by an output writer's error.
type writeError struct{ error }

func (e writeError) Unwrap() error { return e.error }

// cancel ends the command because its context has ended. A session attached to
// is only left. While there is no connection, rejoin sees to it.
func (r *running) cancel(cause error) {
	if !r.giveCause(cause) {
		return
	}
	r.endPipes(cause)
	r.mu.Lock()
	away := r.away != nil
	r.mu.Unlock()
	if away {
		return
	}
	if r.cmd.session != "" {
		r.link.Load().sock.giveUp(cause)
		return
	}
	r.end(SIGKILL, 0)
}

// endPipes ends the output pipes, so that a reader of the socket which waits for
// room in one goes on.
func (r *running) endPipes(cause error) {
	for _, p := range r.cmd.pipes {
		p.end(cause)
	}
}

// lastWord is what a reader of an output pipe gets after all output: io.EOF if
// the command has ended. If that is not known, it is ErrNoExit.
func (r *running) lastWord() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.exit == nil {
		return ErrNoExit
	}
	return nil
}

// end kills the command with all that it started, waits for the exit, and cuts
// the connection where none comes.
func (r *running) end(sig Signal, timeout time.Duration) {
	ctx, cancel := context.WithTimeout(context.Background(), killLimit)
	defer cancel()
	l := r.link.Load()
	select {
	case <-r.known:
	case <-r.done:
		return
	case <-time.After(sessionLimit):
	}
	id := ""
	select {
	case <-r.known:
		id = r.id
	default:
	}
	var err error
	if id != "" {
		_, err = l.sprite.kill(ctx, id, sig, timeout)
	}
	if id == "" || err != nil && !errors.Is(err, ErrGone) {
		err = errors.Join(err, l.sock.tell(Message{Type: "signal", Signal: string(SIGKILL)}))
	} else {
		err = nil
	}
	if e, ok := errors.AsType[*Error](err); ok && e.StatusCode == http.StatusInsufficientStorage {
		cancel() // the sprite is held, and hears it when it goes on
	}
	select {
	case <-r.done:
	case <-ctx.Done():
		r.endErr = errors.Join(err, errors.New("no exit reported"))
		l.sock.giveUp(errors.New("no exit reported after a kill"))
	}
}

// copyInput sends the command's input, and its end.
func (r *running) copyInput(in io.Reader) {
	if r.cmd.session != "" {
		<-r.known
	}
	sock := r.link.Load().sock // the only one
	buf := make([]byte, 1+frameSize)
	frame := func(n int) []byte { return buf[:1+n] }
	end := []byte{byte(StreamStdinEOF)}
	if r.tty {
		frame = func(n int) []byte { return buf[1 : 1+n] }
		// The end is Ctrl-D, which has the same value.
	}
	buf[0] = byte(StreamStdin)
	for {
		n, err := in.Read(buf[1:])
		if n > 0 {
			r.fed.Store(true)
			if sock.send(frame(n)) != nil {
				return // the connection has ended, and the reader knows why
			}
		}
		if err != nil {
			if err != io.EOF && !errors.Is(err, io.ErrClosedPipe) {
				r.inputErr <- err
			}
			_ = sock.send(end)
			return
		}
	}
}

func (r *running) signal(sig Signal) error {
	select {
	case <-r.done:
		return ErrGone
	default:
	}
	r.mu.Lock()
	away := r.away != nil
	r.mu.Unlock()
	if away {
		return errAway
	}
	l := r.link.Load()
	if l.signals && !r.fed.Load() {
		return l.sock.tell(Message{Type: "signal", Signal: string(sig)})
	}
	// The server can't take it on the socket, or might not read it there because
	// the command does not read the input before it.
	<-r.known
	if r.id == "" {
		return ErrNoExit
	}
	ctx, cancel := context.WithTimeout(context.Background(), killLimit)
	defer cancel()
	_, err := l.sprite.kill(ctx, r.id, sig, 0)
	return err
}

// resize tells the terminal's size: on this connection, or on the next one.
func (r *running) resize(m Message) error {
	r.mu.Lock()
	r.size = &m
	r.mu.Unlock()
	err := r.link.Load().sock.tell(m)
	select {
	case <-r.done:
	default:
		if r.cmd.Rejoin != nil {
			return nil
		}
	}
	return err
}

func (r *running) detach() error {
	<-r.known
	if r.id == "" {
		<-r.done
		return r.noExit()
	}
	if !r.giveCause(ErrDetached) {
		return ErrGone
	}
	r.endPipes(ErrDetached)
	r.mu.Lock()
	leave := r.away
	r.mu.Unlock()
	if leave != nil {
		leave()
	} else {
		_ = r.link.Load().sock.ws.Close(websocket.StatusNormalClosure, "")
	}
	<-r.done
	return nil
}

// wait waits for everything and returns Cmd.Wait's error.
func (r *running) wait() error {
	<-r.done
	r.wg.Wait()

	r.mu.Lock()
	exit, cause := r.exit, r.cause
	r.mu.Unlock()

	written, isWrite := cause.(writeError)
	switch {
	case isWrite && !errors.Is(written.error, io.ErrClosedPipe):
		return fmt.Errorf("write the output of %s: %w", r.cmd, written.error)
	case isWrite && exit == nil:
		return r.noExit()
	case cause == ErrDetached:
		return ErrDetached
	case r.refused != nil:
		return r.refused
	case cause != nil && !isWrite:
		if exit != nil || r.cmd.session != "" {
			return cause
		}
		return fmt.Errorf("%w; %s may still be running: %w", cause, r.cmd, errors.Join(r.readErr, r.endErr))
	case exit == nil:
		return r.noExit()
	case r.outputLost:
		return &LostOutputError{Code: exit.code, Reason: exit.reason}
	case exit.code != 0:
		return &ExitError{Code: exit.code, Reason: exit.reason}
	}
	select {
	case err := <-r.inputErr:
		return fmt.Errorf("read the input of %s: %w", r.cmd, err)
	default:
		return nil
	}
}

// noExit says that the connection ended and the command's end is not known.
func (r *running) noExit() error {
	return fmt.Errorf("%s in %s: %w: %w", r.cmd, r.cmd.sprite.describe(), ErrNoExit, r.readErr)
}
