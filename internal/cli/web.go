package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"html"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"time"

	"github.com/spf13/cobra"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/lib/printable"
)

func newWebCommand(inv *invocation) *cobra.Command {
	var noOpen bool
	cmd := &cobra.Command{
		Use:   "web",
		Short: "Open the server's web page",
		Long: `Opens the server's web page in a browser, with the rights of the token that this command uses. It
makes a link that works once, within two minutes. The browser stays logged in until it has not
been used for a week, or until cove web logout. If the page asks you to show that it is you, run
this command again.

The link is printed if there is no browser on this machine. If the server is on another machine,
this one has to reach it under the name that this command uses.`,
		Example: `  cove web
  cove web --no-open
  cove web sessions
  cove web logout --all`,
		Args: exactArgs(),
	}
	cmd.RunE = verb(func(ctx context.Context, _ []string) error {
		c, err := inv.server.client(ctx)
		if err != nil {
			return err
		}
		link, err := cove.Web{Client: c}.Link(ctx)
		if err != nil {
			return err
		}
		if err := inv.show(link, func(w io.Writer) { fmt.Fprintln(w, printable.Line(link.URL)) }); err != nil {
			return err
		}
		if noOpen || inv.global.json || !isTerminal(inv.Err) {
			return nil
		}
		if err := openBrowser(ctx, link.URL); err != nil {
			inv.say("No browser could be opened here (%v): open the link in one within two minutes.", err)
		}
		return nil
	})
	cmd.Flags().BoolVar(&noOpen, "no-open", false, "only print the link")
	cmd.AddCommand(newWebSessionsCommand(inv), newWebLogoutCommand(inv))
	return cmd
}

// openBrowser opens a link in this machine's browser, and does not wait for it. The link is a secret,
// and other users can read the arguments of every process. So the browser gets the name of a file
// that leads on to the link.
func openBrowser(ctx context.Context, link string) error {
	opener := "xdg-open"
	if runtime.GOOS == "darwin" {
		opener = "open"
	}
	program, err := exec.LookPath(opener)
	if err != nil {
		return fmt.Errorf("%s is missing", opener)
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return err
	}
	page, err := writeLinkPage(filepath.Join(cache, "cove", "web"), link)
	if err != nil {
		return err
	}
	return exec.CommandContext(context.WithoutCancel(ctx), program, page).Start()
}

// linkPageTime is longer than any link works.
const linkPageTime = 10 * time.Minute

// writeLinkPage writes a page that leads on to a link, which nobody but the user can read, to a
// folder. Those of former calls are deleted once their links no longer work.
func writeLinkPage(dir, link string) (string, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	if err := os.Chmod(dir, 0o700); err != nil {
		return "", err
	}
	pages, err := filepath.Glob(filepath.Join(dir, "open-*.html"))
	if err != nil {
		return "", err
	}
	for _, page := range pages {
		if st, err := os.Lstat(page); err == nil && time.Since(st.ModTime()) > linkPageTime {
			_ = os.Remove(page) // another call may have done so
		}
	}
	f, err := os.CreateTemp(dir, "open-*.html") // of mode 0600
	if err != nil {
		return "", err
	}
	to := html.EscapeString(link)
	_, err = fmt.Fprintf(f, `<!doctype html><meta charset="utf-8"><meta name="referrer" content="no-referrer"><meta http-equiv="refresh" content="0; url=%s"><title>cove</title><a href="%s">Open cove</a>`+"\n", to, to)
	return f.Name(), errors.Join(err, f.Close())
}

func newWebSessionsCommand(inv *invocation) *cobra.Command {
	return &cobra.Command{
		Use:   "sessions",
		Short: "List the browsers that are logged in",
		Long: `Lists the browsers that are logged in by the token that this command uses. With the verb admin,
it lists all.`,
		Example: `  cove web sessions`,
		Args:    exactArgs(),
		RunE: verb(func(ctx context.Context, _ []string) error {
			c, err := inv.server.client(ctx)
			if err != nil {
				return err
			}
			list, err := cove.Web{Client: c}.Sessions(ctx)
			if err != nil {
				return err
			}
			if list == nil {
				list = []cove.WebSession{}
			}
			return inv.show(cove.WebSessionList{Sessions: list}, func(w io.Writer) {
				now := time.Now()
				rows := [][]string{{"ID", "TOKEN", "ADDRESS", "LOGGED IN", "USED", "EXPIRES", "BROWSER"}}
				for _, s := range list {
					rows = append(rows, []string{s.ID, cmp.Or(s.Token, "the owner's"), s.Address, ago(s.CreatedAt, now), ago(s.LastUsed, now), "in " + span(s.ExpiresAt.Sub(now)), s.Browser})
				}
				table(w, rows)
			})
		}),
	}
}

func newWebLogoutCommand(inv *invocation) *cobra.Command {
	var all bool
	cmd := &cobra.Command{
		Use:   "logout [ID...]",
		Short: "Log browsers out",
		Long: `Logs browsers out at once, and ends what they show. With --all, links that nobody has used yet
stop working, too.`,
		Example: `  cove web logout 4f1c8e0d2b6a9753
  cove web logout --all`,
	}
	cmd.RunE = verb(func(ctx context.Context, args []string) error {
		if all != (len(args) == 0) {
			return usagef(cmd, "name the sessions, or say --all; see which there are: cove web sessions")
		}
		c, err := inv.server.client(ctx)
		if err != nil {
			return err
		}
		if all { // of those that began since then, none is named
			list, err := cove.Web{Client: c}.Sessions(ctx)
			if err == nil {
				err = cove.Web{Client: c}.EndAll(ctx)
			}
			if err != nil {
				return err
			}
			for _, s := range list {
				args = append(args, s.ID)
			}
			return removeEach(ctx, inv, args, func(string) error { return nil })
		}
		return removeEach(ctx, inv, args, func(id string) error { return cove.Web{Client: c}.End(ctx, id) })
	})
	cmd.Flags().BoolVar(&all, "all", false, "all that cove web sessions lists: those of this token; with the verb admin, those of all tokens")
	return cmd
}
