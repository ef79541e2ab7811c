package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/sprites"
)

func newSessionCommand(inv *invocation) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "session",
		Short: "List, join and end the commands that run in a sprite",
		Long: `A session is a command that runs in a sprite: one that somebody waits for, one that was
detached, or a console that was left.`,
		Example: `  cove session list -s paint
  cove session attach 3 -s paint
  cove session kill 3 -s paint`,
		Args: subcommandOnly,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newSessionListCommand(inv), newSessionAttachCommand(inv), newSessionKillCommand(inv))
	return cmd
}

func newSessionListCommand(inv *invocation) *cobra.Command {
	return &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List the sessions of a sprite",
		Long: `Lists the commands that run in a sprite. If the sprite sleeps, or is paused at its disk limit,
that is an error: exit code 1, or 6 at the disk limit. With --json, its code is asleep,
disk_limit or disk_full.`,
		Example: `  cove session list -s paint`,
		Args:    exactArgs(),
		RunE: verb(func(ctx context.Context, _ []string) error {
			sprite, err := inv.spriteHandle(ctx)
			if err != nil {
				return err
			}
			list, err := sprite.Sessions(ctx)
			if err != nil {
				return spriteError(err)
			}
			if list == nil {
				list = []sprites.Session{}
			}
			if len(list) == 0 {
				if err := unlisted(ctx, sprite); err != nil {
					return err
				}
			}
			doc := sprites.SessionList{Count: len(list), Sessions: list}
			return inv.show(doc, func(w io.Writer) { printSessions(w, list, time.Now()) })
		}),
	}
}

// unlisted is the error of an empty list of sessions if the sprite has some, and does not run.
// nil: it has none.
func unlisted(ctx context.Context, sprite *sprites.Sprite) error {
	info, err := sprite.Client().Get(ctx, sprite.Name())
	switch held := heldBy(info); {
	case err != nil:
		return spriteError(err)
	case held != nil && info.Status != sprites.StatusCold:
		return fail.New(held.Code, held.Message+"; its sessions can't be listed until it resumes", held.Hint)
	case info.Status == sprites.StatusWarm:
		return fail.Newf("asleep", "cove wake "+sprite.Name(), "sprite %s sleeps: its sessions can't be listed until it is awake", sprite.Name())
	}
	return nil
}

func printSessions(w io.Writer, list []sprites.Session, now time.Time) {
	if len(list) == 0 {
		fmt.Fprintln(w, "No sessions.")
		return
	}
	rows := [][]string{{"ID", "STARTED", "TTY", "ACTIVE", "FOLDER", "COMMAND"}}
	for _, s := range list {
		rows = append(rows, []string{s.ID, ago(s.Created, now), yesNo(s.TTY), yesNo(s.IsActive), s.Workdir, s.Command})
	}
	table(w, rows)
}

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

func newSessionAttachCommand(inv *invocation) *cobra.Command {
	var stdin bool
	cmd := &cobra.Command{
		Use:   "attach ID",
		Short: "Join a session",
		Long: `Joins a session: shows the output that it kept, and then what comes. Ctrl+\ leaves a session with
a terminal, and Ctrl-C another one; it goes on either way. The exit code is the command's own. A
detached command that has ended can be joined for another ten minutes.`,
		Example: `  cove session attach 3 -s paint`,
		Args:    exactArgs("the session's id"),

		ValidArgsFunction: completeSession(inv),
		RunE: func(cmd *cobra.Command, args []string) error {
			if inv.global.json {
				return usagef(cmd, "attach prints what the command prints; there is no --json")
			}
			if err := checkSession(args[0]); err != nil {
				return err
			}
			sprite, err := inv.spriteHandle(cmd.Context())
			if err != nil {
				return err
			}
			return attachSession(cmd.Context(), inv, sprite, args[0], stdin)
		},
	}
	cmd.Flags().BoolVarP(&stdin, "stdin", "i", false, "pass this input on, if the session has no terminal")
	return cmd
}

// attachSession joins a session, with or without a terminal as the session has it.
func attachSession(ctx context.Context, inv *invocation, sprite *sprites.Sprite, id string, stdin bool) error {
	list, err := sprite.Sessions(ctx)
	if err != nil {
		return spriteError(err)
	}
	for _, s := range list {
		if s.ID != id {
			continue
		}
		if s.TTY {
			return attachTerminal(ctx, inv, sprite, sprite.Attach(ctx, id))
		}
		var in io.Reader
		if stdin {
			in = inv.In
		}
		return attachPlain(ctx, inv, sprite, id, in)
	}
	err = attachPlain(ctx, inv, sprite, id, nil) // it may have ended a while ago
	if errors.Is(err, sprites.ErrNotFound) {
		return noSession(id, sprite)
	}
	return err
}

func noSession(id string, sprite *sprites.Sprite) error {
	return fail.Newf("not_found", "see which do: cove session list -s "+sprite.Name(), "no session %s runs in %s", id, sprite.Name())
}

func newSessionKillCommand(inv *invocation) *cobra.Command {
	var signal string
	var grace time.Duration
	cmd := &cobra.Command{
		Use:   "kill ID",
		Short: "End a session",
		Long: `Sends a signal to a session's command and to everything that it started, waits, and kills what is
left.`,
		Example: `  cove session kill 3 -s paint
  cove session kill 3 --signal INT --grace 30s`,
		Args:              exactArgs("the session's id"),
		ValidArgsFunction: completeSession(inv),
	}
	cmd.RunE = verb(func(ctx context.Context, args []string) error {
		if err := checkSession(args[0]); err != nil {
			return err
		}
		if grace <= 0 {
			return usagef(cmd, "--grace %v is too short", grace)
		}
		sig, err := parseSignal(cmd, signal)
		if err != nil {
			return err
		}
		sprite, err := inv.spriteHandle(ctx)
		if err != nil {
			return err
		}
		code, err := sprite.Kill(ctx, args[0], sig, grace)
		if e, ok := errors.AsType[*sprites.Error](err); ok && e.Code == "session_not_found" {
			return noSession(args[0], sprite)
		}
		if err != nil && !errors.Is(err, sprites.ErrGone) {
			return err
		}
		doc := struct {
			Session  string `json:"session"`
			ExitCode *int   `json:"exit_code"`
		}{Session: args[0]}
		if err == nil && code >= 0 {
			doc.ExitCode = &code
		}
		return inv.show(doc, func(w io.Writer) {
			switch {
			case inv.global.quiet:
			case err != nil:
				fmt.Fprintf(w, "Session %s had ended already.\n", args[0])
			default:
				fmt.Fprintf(w, "Session %s ended with code %d.\n", args[0], code)
			}
		})
	})
	cmd.Flags().StringVar(&signal, "signal", "TERM", "what to send first, by name or number")
	cmd.Flags().DurationVar(&grace, "grace", 10*time.Second, "how long to wait before killing it")
	must(cmd.RegisterFlagCompletionFunc("signal", completeSignal))
	return cmd
}
