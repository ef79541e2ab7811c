package cli

import (
	"context"
	"errors"
	"io"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/cove-dev/cove/sprites"
)

func (a *app) newConsole() *cobra.Command {
	return &cobra.Command{
		Use:     "console [NAME]",
		Aliases: []string{"c"},
		Short:   "Open a shell in a sprite",
		Long: `Opens a login shell in a terminal of the sprite. The shell, and what runs in it, outlives
the connection: Ctrl+\ leaves it, and so does a lost network or a closed window. The
command to come back to it is printed: cove session attach ID.`,
		Example: `  cove console
  cove console paint
  cove session list -s paint`,
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: a.completeOneSprite,
		RunE: func(cmd *cobra.Command, args []string) error {
			if a.global.json {
				return usagef(cmd, "console is for people; there is no --json")
			}
			if len(args) == 1 {
				if a.global.sprite != "" && a.global.sprite != args[0] {
					return usagef(cmd, "two sprites are named, %s and %s; leave one out", args[0], a.global.sprite)
				}
				a.global.sprite = args[0]
			}
			if !isTerminal(a.In) {
				return hinted(usagef(cmd, "standard input is no terminal"), "for a command's input: cove exec -i CMD")
			}
			return a.console(cmd.Context())
		},
	}
}

func (a *app) console(ctx context.Context) error {
	c, err := a.client(ctx)
	if err != nil {
		return err
	}
	sprite, err := a.handle(c)
	if err != nil {
		return err
	}
	forever := time.Duration(0)
	// The shell is the one that the sprite's user has, wherever that is known.
	shell := sprite.Command("/bin/sh", "-c", `exec "${SHELL:-/bin/bash}" -l`)
	shell.MaxRunAfterDisconnect = &forever
	if kind := os.Getenv("TERM"); kind != "" {
		shell.Env = []string{"TERM=" + kind}
	}
	return a.attachTerminal(ctx, sprite, shell)
}

// attachTerminal runs or joins a command in a terminal that outlives the
// connection. The detach key, SIGTERM and SIGHUP leave it.
func (a *app) attachTerminal(ctx context.Context, sprite *sprites.Sprite, cmd *sprites.Cmd) error {
	t, err := a.openTerminal()
	if err != nil {
		return err
	}
	defer t.restore()
	cmd.TTY = t.geometry()
	cmd.Stdout = a.Out
	cmd.OnMessage = func(m sprites.Message) {
		if m.Type == "session_info" && m.SessionID != "" && t.size != nil {
			// A session that is joined has another terminal's size.
			size := t.geometry()
			_ = cmd.Resize(size.Rows, size.Cols) // fails only if the command has ended
		}
	}
	detach := func() { _ = cmd.Detach() } // fails only if the command has ended
	cmd.Stdin = &detachReader{in: a.In, detach: detach}

	leave := make(chan os.Signal, 1)
	signal.Notify(leave, syscall.SIGTERM, syscall.SIGHUP)
	defer signal.Stop(leave)
	over := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		select {
		case <-leave:
			detach()
		case <-over:
		}
	})

	err = t.run(ctx, cmd)
	close(over)
	wg.Wait()
	t.restore()
	session := cmd.SessionID()
	back := "cove session attach " + sanitizeLine(session) + " -s " + sprite.Name()
	switch {
	case errors.Is(err, sprites.ErrDetached):
		a.say("\nDetached; it goes on. Come back with: %s", back)
		return nil
	case errors.Is(err, sprites.ErrNoExit) && session != "":
		return hinted(err, "it goes on; come back with: "+back)
	}
	return a.ended(err, 0)
}

// attachPlain joins a session without a terminal: its output is shown, and this
// input passed on if asked. Ctrl-C leaves it.
func (a *app) attachPlain(parent context.Context, sprite *sprites.Sprite, id string, in io.Reader) error {
	ctx, stop := signal.NotifyContext(parent, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	cmd := sprite.Attach(ctx, id)
	cmd.Stdout, cmd.Stderr, cmd.Stdin = a.Out, a.Err, in
	err := cmd.Run()
	if err != nil && ctx.Err() != nil && parent.Err() == nil {
		a.say("\nDetached; it goes on. Come back with: cove session attach %s -s %s", id, sprite.Name())
		return reportedError{exitInterrupted}
	}
	return a.ended(err, 0)
}
