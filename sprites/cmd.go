package sprites

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"
)

// Terminal is the size of a terminal. Zeros mean 24 rows, 80 columns.
type Terminal struct {
	Rows, Cols int
}

// Cmd is a command in a sprite, prepared or running. It is shaped like an exec.Cmd and
// follows its rules. It is used once. Call its pipe methods before Start, and Wait
// after every successful Start.
//
// The command line, Env and the other settings travel in the request's URL, which
// servers bound (to about 1 MB in all); larger input belongs in Stdin or a file.
type Cmd struct {
	// Path is the program; empty means Args[0]. The sprite looks it up in its
	// own PATH.
	Path string

	// Args is the whole argument list, the program's name first.
	Args []string

	// Env is KEY=VALUE pairs, over the sprite's own environment.
	Env []string

	// Dir is the working directory; empty means the sprite's home.
	Dir string

	// User is who runs it; empty means the sprite's user. Cove only.
	User string

	// Timeout, of running time, after which the server ends the command: TERM,
	// and KILL once Grace is over. Zero means none, and the server's default
	// grace. Cove only; elsewhere use a context.
	Timeout time.Duration
	Grace   time.Duration

	// Stdin is the command's input; nil means /dev/null. Wait does not wait for it. If
	// a Read of it is blocked when the command ends, that Read's bytes are lost, and
	// the goroutine ends with that Read.
	Stdin io.Reader

	// Stdout and Stderr get the output; nil discards it. They are written by one
	// goroutine, so both may be the same writer. With a terminal all output is
	// Stdout's. A writer's error ends the command, and Wait returns it.
	Stdout, Stderr io.Writer

	// TTY gives the command a terminal; nil means none.
	TTY *Terminal

	// MaxRunAfterDisconnect is how long the command may go on with no client
	// connected. Nil means the server's default: ten seconds, or for ever with a
	// terminal. Zero means for ever.
	MaxRunAfterDisconnect *time.Duration

	// Rejoin, if not nil, is called when the connection was lost before the command
	// ended. It returns the sprite to go on with: the same, or one of another Client if
	// the server has moved. Its error ends the wait, and Wait returns it as it is. Nil
	// means that a lost connection ends the wait: Wait returns ErrNoExit.
	//
	// The command itself goes on for MaxRunAfterDisconnect, which should be longer than
	// Rejoin may take. The error lost is ErrNoExit at first. If the sprite that Rejoin
	// returned could not be connected to, Rejoin is called again, and lost says why.
	// The goroutine that writes the output calls Rejoin, as often as that happens. So
	// Rejoin itself must pause between tries, and give up at some point. It is not
	// called if the server did not say the session's id, nor if the sprite was removed
	// (ErrRemoved) or its sandbox has ended (ErrSandboxEnded).
	//
	// Output is written once. The sprite keeps the end of it (256 KiB), and the exit code
	// for ten minutes if the command ends meanwhile. If some of the output is no longer
	// kept, the rest is written, and Wait returns a *LostOutputError. If the session is
	// not kept, Wait's error is both ErrNoExit and ErrNotFound.
	//
	// Input is kept here until the command has taken it (16 MiB at most), and what it has
	// not is sent again. If that can't be done, Wait's error is both ErrNoExit and
	// ErrInputLost. It can't with a server that does not count input, nor for a session
	// that was attached to. To a terminal, input that was on its way is lost then, and
	// that is no error.
	//
	// While there is no connection, Signal fails, and Resize has its effect later. ctx
	// ends with the command's context, and by Detach. If Rejoin returns a sprite all the
	// same, a command whose context has ended is killed.
	Rejoin func(ctx context.Context, lost error) (*Sprite, error)

	// OnMessage, if not nil, is called with each of the server's text messages
	// (session_info, port_opened …) before anything after it is read. Each connection
	// begins with a session_info.
	OnMessage func(Message)

	// OnPort, if not nil, is called when a process of the command begins or ceases to
	// listen on a TCP port. That is noticed within a second or so. The goroutine that
	// reads the output calls OnPort, so it must not block. Ports that are still open
	// when the command ends are not reported as closed.
	OnPort func(PortEvent)

	// Label is what errors call the command; empty means the command line.
	Label string

	sprite  *Sprite
	ctx     context.Context
	session string // to attach to; empty: a new command

	started bool
	waited  bool
	run     *running
	pipes   []*pipe        // ends of output that the caller reads
	stdin   *io.PipeReader // of StdinPipe
	tail    *tailBuffer    // of standard error, for Output
}

// Command prepares a command. Nothing is sent before Start.
func (s *Sprite) Command(name string, args ...string) *Cmd {
	return s.CommandContext(context.Background(), name, args...)
}

// CommandContext prepares a command that is killed in the sprite, with all that it
// started, when ctx ends before it does. Wait then returns ctx's error once the end is
// confirmed. If it can't be confirmed, Wait returns an error that wraps ctx's. As in
// os/exec, a nil ctx panics.
func (s *Sprite) CommandContext(ctx context.Context, name string, args ...string) *Cmd {
	if ctx == nil {
		panic("nil Context")
	}
	return &Cmd{Args: append([]string{name}, args...), sprite: s, ctx: ctx}
}

// Attach prepares to join a running session: output that it kept is sent first,
// then what comes. Path, Args, Env, Dir, User, Timeout and Grace mean nothing, and
// whether there is a terminal is the session's choice. The end of ctx ends the
// connection only, not the command.
func (s *Sprite) Attach(ctx context.Context, sessionID string) *Cmd {
	return &Cmd{sprite: s, ctx: ctx, session: sessionID}
}

// String is the label, or the command line, for people.
func (c *Cmd) String() string {
	switch {
	case c.Label != "":
		return c.Label
	case c.session != "":
		return "session " + c.session
	}
	return strings.Join(c.Args, " ")
}

// query is the handshake's query.
func (c *Cmd) query() url.Values {
	q := url.Values{"stdin": {strconv.FormatBool(c.Stdin != nil)}}
	if c.session != "" {
		return q
	}
	if c.Stdin != nil && c.Rejoin != nil {
		q.Set("resume", "true")
	}
	q["cmd"] = c.Args
	q.Set("path", c.Path)
	if c.Path == "" && len(c.Args) > 0 {
		q.Set("path", c.Args[0])
	}
	if len(c.Env) > 0 {
		q["env"] = c.Env
	}
	if c.Dir != "" {
		q.Set("dir", c.Dir)
	}
	if c.User != "" {
		q.Set("user", c.User)
	}
	if c.Timeout > 0 {
		q.Set("timeout", c.Timeout.String())
	}
	if c.Grace > 0 {
		q.Set("grace", c.Grace.String())
	}
	if c.MaxRunAfterDisconnect != nil {
		q.Set("max_run_after_disconnect", c.MaxRunAfterDisconnect.String())
	}
	if c.TTY != nil {
		q.Set("tty", "true")
		if c.TTY.Rows > 0 && c.TTY.Cols > 0 {
			q.Set("rows", strconv.Itoa(c.TTY.Rows))
			q.Set("cols", strconv.Itoa(c.TTY.Cols))
		}
	}
	return q
}

// Start sends the command. When it returns nil the server has taken it; a
// program that can't be run still shows as an exit code, 126 or 127.
func (c *Cmd) Start() error {
	if c.started {
		return errors.New("command already started")
	}
	c.started = true
	if err := c.start(); err != nil {
		c.closePipes(err)
		return fmt.Errorf("start %s in %s: %w", c, c.sprite.describe(), err)
	}
	return nil
}

func (c *Cmd) start() error {
	if err := c.ctx.Err(); err != nil {
		return err
	}
	if c.session == "" && len(c.Args) == 0 && c.Path == "" {
		return errors.New("no command")
	}
	path := c.sprite.path("exec")
	if c.session != "" {
		path = c.sprite.path("exec", c.session)
	}
	sock, err := c.sprite.client.dial(c.ctx, path, c.query())
	if err != nil {
		return err
	}
	c.run = newRunning(c, sock)
	c.run.start(c.ctx)
	return nil
}

// Wait waits for the command's end and for all its output to be written. A code
// other than 0 is an *ExitError. Any other error means that the command did not
// end by itself, or that its end is not known (ErrNoExit).
func (c *Cmd) Wait() error {
	if c.run == nil {
		return errors.New("command not started")
	}
	if c.waited {
		return errors.New("Wait was already called")
	}
	c.waited = true
	err := c.run.wait()
	c.closePipes(nil)
	if exit, ok := errors.AsType[*ExitError](err); ok && c.tail != nil {
		exit.Stderr = c.tail.Bytes()
	}
	return err
}

// closePipes ends the pipes: what they hold can still be read.
func (c *Cmd) closePipes(err error) {
	for _, p := range c.pipes {
		p.end(err)
	}
	if c.stdin != nil {
		_ = c.stdin.Close()
	}
}

// Run starts the command and waits for it.
func (c *Cmd) Run() error {
	if err := c.Start(); err != nil {
		return err
	}
	return c.Wait()
}

// Output runs the command and returns its standard output. If Stderr is nil, an
// *ExitError has the end of the error output.
func (c *Cmd) Output() ([]byte, error) {
	if c.Stdout != nil {
		return nil, errors.New("Stdout already set")
	}
	var out bytes.Buffer
	c.Stdout = &out
	if c.Stderr == nil {
		c.tail = new(tailBuffer)
		c.Stderr = c.tail
	}
	err := c.Run()
	return out.Bytes(), err
}

// CombinedOutput runs the command and returns its output and error output, in
// the order of their arrival.
func (c *Cmd) CombinedOutput() ([]byte, error) {
	if c.Stdout != nil {
		return nil, errors.New("Stdout already set")
	}
	if c.Stderr != nil {
		return nil, errors.New("Stderr already set")
	}
	var out bytes.Buffer
	c.Stdout, c.Stderr = &out, &out
	err := c.Run()
	return out.Bytes(), err
}

// StdinPipe returns the command's input. Closing it is the input's end; it is
// closed when the command ends.
func (c *Cmd) StdinPipe() (io.WriteCloser, error) {
	if c.Stdin != nil {
		return nil, errors.New("Stdin already set")
	}
	if c.started {
		return nil, errors.New("StdinPipe after the command started")
	}
	r, w := io.Pipe()
	c.Stdin, c.stdin = r, r
	return w, nil
}

// StdoutPipe returns the command's output to read. It holds 64 KiB; an output
// that is not read beyond that holds up the command, and Wait. Closing it ends
// the command at its next output.
func (c *Cmd) StdoutPipe() (io.ReadCloser, error) {
	return c.outputPipe("Stdout", &c.Stdout)
}

// StderrPipe is StdoutPipe for the error output.
func (c *Cmd) StderrPipe() (io.ReadCloser, error) {
	return c.outputPipe("Stderr", &c.Stderr)
}

func (c *Cmd) outputPipe(name string, w *io.Writer) (io.ReadCloser, error) {
	if *w != nil {
		return nil, errors.New(name + " already set")
	}
	if c.started {
		return nil, errors.New(name + "Pipe after the command started")
	}
	p := newPipe()
	*w = p
	c.pipes = append(c.pipes, p)
	return p, nil
}

// Signal sends sig (a Signal, os.Interrupt, os.Kill, or a syscall.Signal that the
// protocol has) to the command. It does not wait for an effect.
func (c *Cmd) Signal(sig os.Signal) error {
	name, err := signalName(sig)
	if err != nil {
		return err
	}
	if c.run == nil {
		return errors.New("command not started")
	}
	if err := c.run.signal(name); err != nil {
		return fmt.Errorf("send SIG%s to %s: %w", name, c, err)
	}
	return nil
}

// Resize tells the command's terminal its new size.
func (c *Cmd) Resize(rows, cols int) error {
	if c.run == nil {
		return errors.New("command not started")
	}
	if err := c.run.resize(Message{Type: "resize", Rows: rows, Cols: cols}); err != nil {
		return fmt.Errorf("resize the terminal of %s: %w", c, err)
	}
	return nil
}

// SessionID is the session's name for Attach and Kill. It waits for the server to
// tell, which it does first of all; empty means that the connection ended before.
func (c *Cmd) SessionID() string {
	if c.run == nil {
		return ""
	}
	<-c.run.known
	return c.run.id
}

// Detach leaves the command: the connection is closed, and the command goes on
// for as long as MaxRunAfterDisconnect allows. Wait then returns ErrDetached, and
// need not be called. It fails if the command has ended.
func (c *Cmd) Detach() error {
	if c.run == nil {
		return errors.New("command not started")
	}
	if err := c.run.detach(); err != nil {
		return fmt.Errorf("detach from %s: %w", c, err)
	}
	return nil
}

// tailBuffer keeps the last tailSize bytes written to it.
type tailBuffer struct{ buf []byte }

const tailSize = 32 << 10

func (t *tailBuffer) Write(p []byte) (int, error) {
	t.buf = append(t.buf, p[max(0, len(p)-tailSize):]...)
	if len(t.buf) > 4*tailSize {
		t.buf = t.buf[:copy(t.buf, t.Bytes())]
	}
	return len(p), nil
}

// Bytes returns what is kept.
func (t *tailBuffer) Bytes() []byte { return t.buf[max(0, len(t.buf)-tailSize):] }
