package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/lib/printable"
	"github.com/cove-dev/cove/sprites"
)

type execOptions struct {
	stdin, tty, detach bool
	dir, user          string
	env                []string
	timeout            time.Duration
}

func newExecCommand(inv *invocation) *cobra.Command {
	var o execOptions
	cmd := &cobra.Command{
		Use:     "exec [flags] [--] CMD [ARG]...",
		Aliases: []string{"x"},
		Short:   "Run a command in a sprite",
		Long: `Runs a command in a sprite, which wakes if it sleeps. Output and error output come byte for byte.
The exit code is the command's own (128+N after a death by signal N). It is 124 after --timeout,
6 if a disk is full, 75 if the command was lost, and 125 if cove itself failed.

All words after the command belong to it, flags too. There is no shell in between; ask for one
if you need it: cove exec sh -c 'ls *.go | wc -l'. The command gets this input only with -i, or with
-t at a terminal. If the reader of the output goes away, the command is ended (141).

cove tries for a minute to restore a lost connection, and then prints the output of that time; not
with -i. Programs that the command leaves running, also by nohup or setsid, are ended
` + aloneLimit.String() + ` after it, and a remark says so. To keep one running: --detach, -t or cove service.

Ctrl-C and SIGTERM are handed to the command; a second one kills it and all that it started. If
a full disk has paused the sprite, the first one kills the command once the sprite resumes. If
the sprite does not answer after a signal, exec leaves it.`,
		Example: `  cove exec -s paint uname -a
  cove exec go test ./...                          in the sprite that cove use noted
  tar c . | cove exec -i tar x
  cove exec -t vim notes.txt
  cove exec --dir /tmp --env K=V --timeout 5m make
  cove exec --detach ./server                      prints a session: cove session attach ID`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 || args[0] == "" {
				return usagef(cmd, "which command?")
			}
			return nil
		},
	}
	cmd.RunE = func(_ *cobra.Command, args []string) error {
		if err := o.check(cmd, inv); err != nil {
			return err
		}
		err := runExec(cmd.Context(), inv, o, args)
		if err != nil {
			return coveFailed{err}
		}
		return nil
	}
	f := cmd.Flags()
	f.SetInterspersed(false)
	f.BoolVarP(&o.stdin, "stdin", "i", false, "pass this input on to the command")
	f.BoolVarP(&o.tty, "tty", "t", false, "give it a terminal")
	f.StringVar(&o.dir, "dir", "", "folder to run it in (default: the sprite's home)")
	f.StringArrayVar(&o.env, "env", nil, "set an environment variable, `K=V` (repeatable)")
	f.StringVar(&o.user, "user", "", "the user that runs it (default: the sprite's user)")
	f.DurationVar(&o.timeout, "timeout", 0, "kill it, and all that it started, after so long")
	f.BoolVar(&o.detach, "detach", false, "run it in the background, and print its session")
	return cmd
}

func (o *execOptions) check(cmd *cobra.Command, inv *invocation) error {
	if err := checkPlainEnv(cmd, o.env); err != nil {
		return err
	}
	switch {
	case o.timeout < 0:
		return usagef(cmd, "--timeout %v is negative", o.timeout)
	case o.detach && o.stdin:
		return usagef(cmd, "--detach leaves the command, so -i can't pass anything on")
	case inv.global.json && !o.detach:
		return usagef(cmd, "exec prints what the command prints; --json goes with --detach only")
	}
	return nil
}

func runExec(parent context.Context, inv *invocation, o execOptions, args []string) error {
	ctx, cancel := context.WithCancel(parent)
	defer cancel()
	signals := newSignals(cancel)
	defer signals.stop()
	broken := make(chan os.Signal, 1)
	signal.Notify(broken, syscall.SIGPIPE) // it would end this process, and leave the command to run on
	defer signal.Stop(broken)

	if _, err := inv.sprite.name(ctx); err != nil { // before a server is started for it
		return hintMeant(ctx, inv, err, args)
	}
	c, err := inv.server.client(ctx)
	if err != nil {
		return signals.orInterrupted(err)
	}
	sprite, err := inv.sprite.handle(ctx, c)
	if err != nil {
		return err
	}
	signals.watch(func(ctx context.Context) bool { return answers(ctx, c, sprite.Name()) })
	cmd := sprite.CommandContext(ctx, args[0], args[1:]...)
	cmd.Dir, cmd.Env, cmd.User, cmd.Timeout, cmd.Label = o.dir, o.env, o.user, o.timeout, printable.Line(args[0])
	x := &execution{inv: inv, sprite: sprite.Name(), out: brokenWriter{Writer: inv.Out}, err: brokenWriter{Writer: inv.Err}, held: &signals.held}
	defer func() {
		switch {
		case signals.gaveUp():
			inv.say("cove: sprite %s does not answer: the command was told to end, but may not have got that signal", sprite.Name())
		case signals.unheard():
			inv.say("cove: the sprite is paused; the command will be killed when it resumes (within %v of that, if the sprite is suspended before)", aloneLimit)
		}
	}()
	switch {
	case o.detach:
		return signals.orInterrupted(signals.unless(func() error { return execDetached(inv, cmd, o) }))
	case o.tty:
		return signals.orInterrupted(x.inTerminal(ctx, cmd, o, signals))
	}
	cmd.MaxRunAfterDisconnect = new(aloneLimit)
	if x.input = o.stdin; x.input {
		cmd.Stdin = inv.In
	}
	x.forward = signals.forward
	x.run = func(cmd *sprites.Cmd) error {
		if err := cmd.Start(); err != nil {
			return spriteError(err)
		}
		signals.forward(cmd)
		defer signals.forward(nil)
		return signals.unless(cmd.Wait)
	}
	err = commandEnded(inv, x.toEnd(ctx, cmd), o.timeout)
	if err == nil {
		x.sayLeft()
	}
	if err == nil && inv.child == exitNoCommand && !inv.global.quiet {
		if meant := meantSprite(ctx, c, args); meant != "" {
			inv.say("cove: %s is not a command in %s; it is a sprite: %s", args[0], sprite.Name(), meant)
		}
	}
	return signals.orInterrupted(err)
}

// hintMeant adds a hint to the error of an exec that names no sprite. If a running server has a
// sprite of that name, the first word of the command may be meant as the sprite.
func hintMeant(ctx context.Context, inv *invocation, err error, args []string) error {
	if e, ok := errors.AsType[*fail.Error](err); !ok || e.Code != "no_sprite" {
		return err
	}
	c, none := inv.server.runningClient(ctx)
	if none != nil {
		return err
	}
	if meant := meantSprite(ctx, c, args); meant != "" {
		return hinted(err, meant)
	}
	return err
}

// exitNoCommand is the exit code of a command that is not there.
const exitNoCommand = 127

// execDetached starts a command, says its session, and leaves it.
func execDetached(inv *invocation, cmd *sprites.Cmd, o execOptions) error {
	forever := time.Duration(0)
	cmd.MaxRunAfterDisconnect = &forever
	if o.tty {
		cmd.TTY = &sprites.Terminal{}
	}
	if err := cmd.Start(); err != nil {
		return spriteError(err)
	}
	id := cmd.SessionID()
	if err := cmd.Detach(); err != nil && !errors.Is(err, sprites.ErrGone) {
		return err
	}
	if id == "" {
		return errors.New("the server did not say which session the command is")
	}
	if err := inv.show(map[string]string{"session": id}, func(w io.Writer) { fmt.Fprintln(w, printable.Line(id)) }); err != nil {
		return err
	}
	if lost := lostOutput(inv.Out); lost != nil {
		return outputError("the command runs, but its session "+printable.Line(id)+" could not be shown", lost, "join it: cove session attach "+printable.Word(id)+"; end it: cove session kill "+printable.Word(id))
	}
	return nil
}

// inTerminal runs a command in a terminal in the sprite, and shows its screen in this one.
func (x *execution) inTerminal(ctx context.Context, cmd *sprites.Cmd, o execOptions, s *signals) error {
	t, err := openTerminal(x.inv)
	if err != nil {
		return err
	}
	defer t.restore()
	cmd.TTY = t.geometry()
	switch x.input = t.in == nil && o.stdin; {
	case t.in != nil:
		x.keys = newKeyboard(t.in).pausing()
		cmd.Stdin = interruptible{x.keys, s}
	case x.input:
		cmd.Stdin = &typed{Reader: x.inv.In}
	default:
		cmd.Stdin = strings.NewReader("") // at its end, a command's terminal gets Ctrl-D
	}
	x.run = func(cmd *sprites.Cmd) error {
		return s.unless(func() error { return t.run(ctx, cmd) })
	}
	err = x.toEnd(ctx, cmd)
	t.restore()
	return commandEnded(x.inv, err, o.timeout)
}

// typed is the input of a command's terminal if this input is not a terminal. Ctrl-D is sent
// after all input: at the beginning of a line, a terminal takes it for the end of the input.
// In the middle of a line, that takes two.
type typed struct {
	io.Reader
	within bool // the last byte was not the end of a line
}

func (t *typed) Read(p []byte) (int, error) {
	n, err := t.Reader.Read(p)
	switch {
	case n > 0:
		t.within = p[n-1] != '\n'
		return n, nil // if there was an error, it comes again
	case err == io.EOF && t.within && len(p) > 0:
		t.within = false
		p[0] = 0x04
		return 1, nil
	}
	return n, err
}

// run starts the command and waits for its end, following this terminal's size.
func (t *terminal) run(ctx context.Context, cmd *sprites.Cmd) error {
	if err := cmd.Start(); err != nil {
		return spriteError(err)
	}
	return t.wait(ctx, cmd)
}

// wait waits for the end of a command that has started, following this terminal's size.
func (t *terminal) wait(ctx context.Context, cmd *sprites.Cmd) error {
	following, stop := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { t.follow(following, cmd) })
	err := cmd.Wait()
	stop()
	wg.Wait()
	return err
}

// commandEnded makes the exit code of a command in a sprite that of this process.
func commandEnded(inv *invocation, err error, timeout time.Duration) error {
	if errors.Is(err, sprites.ErrRemoved) {
		return fail.Wrap("sprite_removed", sprites.ErrRemoved, "")
	}
	exit, ok := errors.AsType[*sprites.ExitError](err)
	if !ok {
		return err
	}
	inv.child = exit.Code
	switch exit.Reason {
	case "timeout":
		inv.child = exitTimedOut
		inv.say("cove: killed after %v (--timeout)", timeout)
	case "oom":
		inv.say("cove: killed because the sprite's memory was used up")
	case "restored":
		inv.say("cove: ended because the sprite was brought back to a checkpoint")
	case "stopped":
		inv.say("cove: ended because the sprite was stopped")
	}
	return nil
}

// signals passes SIGINT, SIGTERM and SIGHUP on to a command in a sprite. It cancels the
// command instead if the command has not started, if its sprite is held, or at the second
// signal. If the sprite does not answer after a signal, nothing waits for it any more.
type signals struct {
	held     atomic.Bool // the sprite is, and hears nothing
	cancel   context.CancelFunc
	in       chan os.Signal
	quit     chan struct{}
	wg       sync.WaitGroup
	started  chan *sprites.Cmd
	canceled chan struct{} // closed at the cancel
	watched  chan func(context.Context) bool
	typed    chan struct{} // has a value when Ctrl-C was typed in a terminal, which hands it on
	silent   chan struct{} // closed when the sprite has not answered after a signal
}

func newSignals(cancel context.CancelFunc) *signals {
	s := &signals{
		cancel:   cancel,
		in:       make(chan os.Signal, 4),
		quit:     make(chan struct{}),
		started:  make(chan *sprites.Cmd, 1),
		canceled: make(chan struct{}),
		watched:  make(chan func(context.Context) bool, 1),
		silent:   make(chan struct{}),
		typed:    make(chan struct{}, 1),
	}
	signal.Notify(s.in, endSignals()...)
	s.wg.Go(s.run)
	return s
}

func (s *signals) run() {
	ctx, over := context.WithCancel(context.Background())
	defer over()
	var cmd *sprites.Cmd
	var answers func(context.Context) bool // nil: nobody can tell
	answered := make(chan bool, 1)
	sent, canceled, asking := false, false, false
	ask := func() {
		if answers == nil || asking || s.held.Load() {
			return
		}
		asking = true
		s.wg.Go(func() { answered <- answers(ctx) || ctx.Err() != nil })
	}
	end := func() {
		if !canceled {
			canceled = true
			close(s.canceled)
			s.cancel()
		}
	}
	for {
		select {
		case <-s.quit:
			return
		case answers = <-s.watched:
		case cmd = <-s.started: // nil between two connections
		case sig := <-s.in:
			if cmd == nil || sent || s.held.Load() {
				end()
			} else {
				sent = true
				go func() { _ = cmd.Signal(sig) }() // a command that has ended needs none; it ends with the connection
			}
			ask()
		case <-s.typed:
			ask()
		case yes := <-answered:
			if asking = false; !yes {
				end()
				close(s.silent)
				return
			}
		}
	}
}

// watch sets the function that finds out whether the sprite answers.
func (s *signals) watch(answers func(context.Context) bool) { s.watched <- answers }

// errSilent says that a command was left because its sprite does not answer.
var errSilent = errors.New("the sprite does not answer")

// unless returns wait's error, or errSilent if a signal finds the sprite silent before that.
func (s *signals) unless(wait func() error) error {
	done := make(chan error, 1)
	go func() { done <- wait() }() // it ends with this process at the latest
	select {
	case err := <-done:
		return err
	case <-s.silent:
		return errSilent
	}
}

// gaveUp reports whether the sprite has not answered after a signal.
func (s *signals) gaveUp() bool {
	select {
	case <-s.silent:
		return true
	default:
		return false
	}
}

// answerTries is how often a sprite is asked for a sign of life before it counts as
// silent. The server waits for each for some seconds.
const answerTries = 2

// answers reports whether a sprite gives a sign of life, or has ended, as far as its
// server knows.
func answers(ctx context.Context, c *cove.Client, name string) bool {
	for range answerTries {
		ctx, cancel := context.WithTimeout(ctx, killWait)
		check, err := c.Check(ctx, name)
		cancel()
		_, refused := errors.AsType[*sprites.Error](err) // by a server that does not tell
		if refused || err == nil && check.Status != "unhealthy" {
			return true
		}
	}
	return false
}

// forward sets the connection that signals are sent to the command by; nil: there is none.
func (s *signals) forward(cmd *sprites.Cmd) {
	select {
	case s.started <- cmd:
	case <-s.canceled:
	}
}

// stop ends the handling of signals, and waits for it.
func (s *signals) stop() {
	signal.Stop(s.in)
	close(s.quit)
	s.wg.Wait()
}

// unheard reports whether a signal has canceled a command whose sprite is held.
func (s *signals) unheard() bool {
	select {
	case <-s.canceled:
		return s.held.Load()
	default:
		return false
	}
}

// interruptible is a terminal's input that notices Ctrl-C. While the sprite is held, Ctrl-C
// acts as a signal; otherwise, it makes signals ask the sprite for a sign of life.
type interruptible struct {
	io.Reader
	signals *signals
}

func (r interruptible) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	switch {
	case bytes.IndexByte(p[:n], 0x03) < 0:
	case r.signals.held.Load():
		select {
		case r.signals.in <- os.Interrupt:
		default: // there is one
		}
	default:
		select {
		case r.signals.typed <- struct{}{}:
		default:
		}
	}
	return n, err
}

// orInterrupted returns interruptedError in place of err if the person's signal caused err.
func (s *signals) orInterrupted(err error) error {
	select {
	case <-s.canceled:
		if err != nil {
			return interruptedError{}
		}
	default:
	}
	return err
}
