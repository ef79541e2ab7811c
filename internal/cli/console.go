package cli

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/lib/printable"
	"github.com/cove-dev/cove/sprites"
)

func newConsoleCommand(inv *invocation) *cobra.Command {
	var reattach bool
	var user string
	cmd := &cobra.Command{
		Use:     "console [NAME]",
		Aliases: []string{"c"},
		Short:   "Open a shell in a sprite",
		Long: `Opens a login shell in a terminal of the sprite. The shell and its programs outlive the
connection: Ctrl+\ leaves them running, and so does closing the window. If the connection is
lost, cove tries for a minute to restore it. To come back, use the command that is printed (cove
session attach ID), or --reattach, which finds the session by itself.`,
		Example: `  cove console
  cove console paint
  cove console paint -r
  cove console paint --user root
  cove session list -s paint`,
		Args:              maxArgs(1),
		ValidArgsFunction: completeOneSprite(inv),
		RunE: func(cmd *cobra.Command, args []string) error {
			if inv.global.json {
				return usagef(cmd, "console is for people; there is no --json")
			}
			if err := inv.sprite.nameOnce(cmd, args); err != nil {
				return err
			}
			if !isTerminal(inv.In) {
				return hinted(usagef(cmd, "standard input is not a terminal"), "for a command's input: cove exec -i CMD")
			}
			return runConsole(cmd.Context(), inv, reattach, user)
		},
	}
	cmd.Flags().StringVar(&user, "user", "", "open the shell of this user, such as root (default: the one that commands run as)")
	cmd.Flags().BoolVarP(&reattach, "reattach", "r", false, "come back to the newest terminal that is open there, if there is one")
	return cmd
}

func runConsole(ctx context.Context, inv *invocation, reattach bool, user string) error {
	c, err := inv.server.client(ctx)
	if err != nil {
		return err
	}
	sprite, err := inv.sprite.handle(ctx, c)
	if err != nil {
		return err
	}
	if reattach {
		list, err := sprite.Sessions(ctx)
		if err != nil {
			return spriteError(err)
		}
		list = slices.DeleteFunc(list, func(s sprites.Session) bool { return !s.TTY })
		if len(list) > 0 {
			newest := slices.MaxFunc(list, func(x, y sprites.Session) int {
				return cmp.Or(x.Created.Compare(y.Created), cmp.Compare(len(x.ID), len(y.ID)), cmp.Compare(x.ID, y.ID))
			})
			return attachTerminal(ctx, inv, sprite, sprite.Attach(ctx, newest.ID))
		}
	}
	forever := time.Duration(0)
	// The shell is the one that the sprite's user has, wherever that is known.
	shell := sprite.Command("/bin/sh", "-c", `exec "${SHELL:-/bin/bash}" -l`)
	shell.MaxRunAfterDisconnect, shell.Label, shell.User = &forever, "console", user
	if kind := os.Getenv("TERM"); kind != "" {
		shell.Env = []string{"TERM=" + kind}
	}
	return attachTerminal(ctx, inv, sprite, shell)
}

// attachTerminal runs or joins a command in a terminal that outlives the connection. The
// detach key, SIGTERM and SIGHUP leave the command running. If the connection is lost,
// attachTerminal tries to join the command again (comeBack).
func attachTerminal(ctx context.Context, inv *invocation, sprite *sprites.Sprite, cmd *sprites.Cmd) error {
	t, err := openTerminal(inv)
	if err != nil {
		return err
	}
	defer t.restore()
	leave := make(chan os.Signal, 1)
	signal.Notify(leave, syscall.SIGTERM, syscall.SIGHUP)
	defer signal.Stop(leave)
	a := &attachment{inv: inv, terminal: t, keys: newKeyboard(inv.In), leave: leave}
	for {
		err = a.once(ctx, cmd)
		if !errors.Is(err, sprites.ErrNoExit) || cmd.SessionID() == "" || t.in == nil || ctx.Err() != nil || sandboxGone(err) {
			break
		}
		session := cmd.SessionID()
		next, backErr := comeBack(ctx, inv, absence{keys: a.keys, leave: leave, says: `Ctrl+\ leaves`, pace: &a.pace,
			find: func(ctx context.Context) (*sprites.Sprite, error) { return findAgain(ctx, inv, session) }})
		if errors.Is(backErr, sprites.ErrUnauthorized) {
			t.restore()
			return backErr
		}
		if backErr != nil {
			err = errors.Join(err, backErr)
			break
		}
		sprite, cmd = next, next.Attach(ctx, session)
	}
	t.restore()
	if errors.Is(err, errSilent) { // whether it has a session is not known
		inv.say("\nLeft sprite %s, which does not answer. See whether something runs there: cove session list -s %[1]s", sprite.Name())
		return reportedError{exitInterrupted}
	}
	exit, ended := errors.AsType[*sprites.ExitError](err)
	var cut string // why the command ended, if not by itself
	if ended && (exit.Reason == "stopped" || exit.Reason == "restored" || strings.HasPrefix(exit.Reason, "signal:")) {
		cut = exit.Reason
	}
	if t.in != nil && (cut != "" || errors.Is(err, sprites.ErrNoExit)) {
		inv.say("") // the prompt's line has no end
	}
	session := cmd.SessionID()
	back := "cove session attach " + printable.Word(session) + " -s " + sprite.Name()
	switch {
	case errors.Is(err, errSessionGone):
		return hinted(err, "see what is left: cove info "+sprite.Name())
	case errors.Is(err, sprites.ErrDetached):
		inv.say("\nDetached; it goes on. Come back with: %s", back)
		return nil
	case errors.Is(err, sprites.ErrNoExit) && session != "" && !sandboxGone(err):
		return fail.Wrap("connection_lost", err, "it goes on; come back with: "+back)
	}
	if strings.HasPrefix(cut, "signal:") {
		inv.say("cove: ended by %s", strings.Replace(cut, ":", " ", 1))
	}
	return commandEnded(inv, err, 0)
}

// attachment is this terminal while a command has it that outlives the connection.
type attachment struct {
	*terminal
	inv   *invocation
	keys  *keyboard
	leave <-chan os.Signal // leaves the command
	pace  pace
}

// once runs or joins a command over one connection.
func (a *attachment) once(ctx context.Context, cmd *sprites.Cmd) error {
	cmd.TTY = a.geometry()
	cmd.Stdout = a.inv.Out
	cmd.OnMessage = func(m sprites.Message) {
		sayHeld(a.inv, m)
		if m.Type == "session_info" && m.SessionID != "" && a.size != nil {
			// A session that is joined has another terminal's size.
			size := a.geometry()
			_ = cmd.Resize(size.Rows, size.Cols) // fails only if the command has ended
		}
	}
	started, left, over := make(chan struct{}), make(chan struct{}), make(chan struct{})
	detach := sync.OnceFunc(func() {
		close(left)
		select {
		case <-started:
			_ = cmd.Detach() // fails only if the command has ended
		default:
		}
	})
	cmd.Stdin = &detachReader{in: a.keys.until(over), detach: detach}
	var wg sync.WaitGroup
	defer wg.Wait()
	defer close(over)
	wg.Go(func() {
		select {
		case <-a.leave:
			detach()
		case <-over:
		}
	})
	done := make(chan error, 1)
	go func() {
		if err := cmd.Start(); err != nil {
			done <- spriteError(err)
			return
		}
		close(started)
		done <- a.wait(ctx, cmd)
	}()
	select {
	case err := <-done:
		return err
	case <-left:
	}
	select {
	case <-started:
	default: // there is nothing to leave: the connection ends with this process
		return errSilent
	}
	select {
	case err := <-done:
		return err
	case <-time.After(leaveLimit):
		return errSilent
	}
}

// leaveLimit is how long a sprite has to answer when a terminal is left.
const leaveLimit = 10 * time.Second

// comeBackLimit is how long a lost connection is retried.
const comeBackLimit = time.Minute

var errSessionGone = errors.New("the session is gone: it has ended, or the sprite was stopped meanwhile")

// errStillHeld says that a session exists, but its sprite is paused.
var errStillHeld = errors.New("the sprite is paused")

// absence is the time between the loss of a connection and the next one.
type absence struct {
	keys  *keyboard        // nil: the input is no terminal's
	leave <-chan os.Signal // ends it
	says  string           // what ends it, for people
	pace  *pace            // of the connections to the session
	find  func(context.Context) (*sprites.Sprite, error)
}

// pace delays new connections to a session whose connections end at once: a guest may accept
// each connection, and close it. The zero value is ready to use.
type pace struct {
	joined time.Time     // when the last connection began
	since  time.Time     // when the first of those that ended at once did; zero: none
	wait   time.Duration // before the next
}

// steady is how long a connection must last to count as one that did not end at once.
const steady = 5 * time.Second

var errUnsteady = errors.New("each connection was lost at once")

// before waits as long as it must before the next connection.
func (p *pace) before(ctx context.Context) error {
	now := time.Now()
	if now.Sub(p.joined) > steady {
		p.since, p.wait = time.Time{}, 0
		return nil
	}
	if p.since.IsZero() {
		p.since = now
	}
	if now.Sub(p.since) > comeBackLimit {
		return errUnsteady
	}
	p.wait = min(max(2*p.wait, 100*time.Millisecond), 2*time.Second)
	select {
	case <-time.After(p.wait):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// comeBack tries to find a session's sprite for comeBackLimit; the limit begins anew while
// the sprite is held. It stops early if it finds the sprite, if session or sprite is gone,
// or if the token is not valid any more. The detach key, Ctrl-C and a signal end it with
// ErrDetached.
func comeBack(ctx context.Context, inv *invocation, away absence) (*sprites.Sprite, error) {
	var typed <-chan []byte
	if away.keys != nil {
		typed = away.keys.typed
	}
	if err := away.pace.before(ctx); err != nil {
		return nil, err
	}
	defer func() { away.pace.joined = time.Now() }()
	limit := time.NewTimer(comeBackLimit)
	defer limit.Stop()
	for wait := 100 * time.Millisecond; ; wait = min(2*wait, 2*time.Second) {
		try, cancel := context.WithTimeout(ctx, comeBackLimit)
		sprite, err := away.find(try)
		cancel()
		if errors.Is(err, errStillHeld) {
			limit.Reset(comeBackLimit) // its commands stand still, and their time does
		}
		if err == nil || errors.Is(err, errSessionGone) || errors.Is(err, sprites.ErrRemoved) || errors.Is(err, sprites.ErrUnauthorized) {
			return sprite, err
		}
		if wait == 100*time.Millisecond && !inv.global.quiet {
			end := "\n"
			if away.keys != nil {
				end = "\r\n"
			}
			why := ""
			if e, ok := errors.AsType[*fail.Error](err); ok && serverAway(err) {
				why = end + "cove: " + printable.Text(inv.hints.full(e.Error()+"; "+strings.ReplaceAll(e.Hint, "\n", "; ")))
			}
			fmt.Fprintf(inv.Err, "%scove: the connection was lost; trying to come back (%s)%s%s", end, away.says, why, end)
		}
		pause := time.NewTimer(wait)
	waiting:
		for {
			select {
			case <-pause.C:
				break waiting
			case <-ctx.Done():
				return nil, err
			case <-limit.C:
				return nil, err
			case <-away.leave:
				return nil, sprites.ErrDetached
			case keys, ok := <-typed:
				if !ok || bytes.ContainsAny(keys, "\x03\x1c") {
					return nil, sprites.ErrDetached
				}
			}
		}
	}
}

// stillThere describes a sprite that was there before. One that is not any more, or is
// on its way, is sprites.ErrRemoved.
func stillThere(ctx context.Context, c *cove.Client, name string) (sprites.Info, error) {
	info, err := c.Get(ctx, name)
	if errors.Is(err, sprites.ErrNotFound) || err == nil && info.Cove != nil && info.Cove.Removing {
		return info, sprites.ErrRemoved
	}
	if errors.Is(err, sprites.ErrForbidden) { // a token may do without the verb for it
		err = nil
	}
	return info, err
}

// findAgain looks for a session, with a new client: the server may be another.
func findAgain(ctx context.Context, inv *invocation, session string) (*sprites.Sprite, error) {
	c, err := inv.server.clientAgain(ctx)
	if err != nil {
		return nil, err
	}
	sprite, err := inv.sprite.handle(ctx, c)
	if err != nil {
		return nil, err
	}
	if _, err := stillThere(ctx, c, sprite.Name()); err != nil {
		return nil, err
	}
	list, err := sprite.Sessions(ctx)
	if err != nil {
		return nil, err
	}
	if !slices.ContainsFunc(list, func(s sprites.Session) bool { return s.ID == session }) {
		return nil, errSessionGone
	}
	if isTerminal(inv.Out) {
		fmt.Fprint(inv.Out, "\x1b[H\x1b[2J") // the terminal's content comes again
	}
	return sprite, nil
}

// attachPlain joins a session without a terminal: its output is shown, and this
// input passed on if asked. Ctrl-C leaves it.
func attachPlain(parent context.Context, inv *invocation, sprite *sprites.Sprite, id string, in io.Reader) error {
	ctx, stop := signal.NotifyContext(parent, endSignals()...)
	defer stop()
	cmd := sprite.Attach(ctx, id)
	cmd.Stdout, cmd.Stderr, cmd.Stdin = inv.Out, inv.Err, in
	err := cmd.Run()
	if err != nil && ctx.Err() != nil && parent.Err() == nil {
		inv.say("\nDetached; it goes on. Come back with: cove session attach %s -s %s", id, sprite.Name())
		return reportedError{exitInterrupted}
	}
	return commandEnded(inv, err, 0)
}
