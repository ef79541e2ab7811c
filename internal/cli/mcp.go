package cli

import (
	"context"
	"io"
	"os"
	"slices"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/cove-dev/cove/internal/lib/tools"
	"github.com/cove-dev/cove/internal/server/mcpserver"
)

const mcpRoles = `--role says which tools there are: read-only (Read, Glob, Grep, and those that list and show),
edit (Write, Edit and checkpoint_create, too), full (all), or a list such as Read,Bash,ports. If
it is given more than once, a tool must be in each of them. Other tools are denied, also if a
client calls them by name.`

// mcpOptions are the flags that say what an MCP client may do.
type mcpOptions struct {
	roles  []string
	dir    string
	prefix string
}

func (o *mcpOptions) register(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringArrayVar(&o.roles, "role", []string{tools.Full}, "read-only, edit, full, or a list of tools (repeatable: a tool must be in each)")
	must(cmd.RegisterFlagCompletionFunc("role", func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		return slices.Concat(mcpserver.RoleNames, mcpserver.Names()), cobra.ShellCompDirectiveNoFileComp
	}))
	f.StringVar(&o.dir, "dir", "", "the tools' working directory (default: the sprite's home)")
	f.StringVar(&o.prefix, "prefix", "", "offer the sprites whose names begin so, and make and remove such")
}

// mcpBound says which sprites are offered. With a prefix, they need not exist yet.
func mcpBound(inv *invocation, cmd *cobra.Command, o mcpOptions) (mcpserver.Bound, error) {
	if _, err := mcpserver.ParseRole(o.roles...); err != nil {
		return mcpserver.Bound{}, usagef(cmd, "%v", err)
	}
	if cmd.Flags().Changed("prefix") {
		switch {
		case inv.global.sprite != "":
			return mcpserver.Bound{}, usagef(cmd, "say which sprites by one of -s and --prefix")
		case checkName(o.prefix+"a") != nil:
			return mcpserver.Bound{}, usagef(cmd, "--prefix %q: no sprite's name begins so", o.prefix)
		}
		return mcpserver.Bound{Prefix: o.prefix}, nil
	}
	name, err := inv.sprite.name(cmd.Context())
	return mcpserver.Bound{Sprite: name}, err
}

func newMCPCommand(inv *invocation) *cobra.Command {
	var o mcpOptions
	cmd := &cobra.Command{
		Use:   "mcp",
		Short: "Offer sprites to an agent outside, by MCP",
		Long: `Offers a sprite to an MCP client, on standard input and output. Read, Write, Edit, Glob, Grep and
Bash act in the sprite and nowhere else. exec runs a program there without a shell. Other tools
are for ports, checkpoints and jobs. An agent with only these tools runs here, and works in the
sandbox.

With --prefix, it offers all sprites whose names begin so: each tool has the argument sprite. It
also offers list, create, rm and fork. Other names are denied.

The first call wakes the sprite, which stays awake until the client ends. If it is gone, each call
says so. A server offers the same at its URL, /mcp: see cove mcp config --http.

` + mcpRoles,
		Example: `  claude mcp add sandbox -- cove mcp -s paint
  claude -p "fix the tests" --tools "" --mcp-config sandbox.json --strict-mcp-config
  cove mcp -s paint --dir /srv/app --role edit
  cove mcp --prefix agent-`,
		Args: subcommandOnly,
	}
	cmd.RunE = verb(func(ctx context.Context, _ []string) error {
		within, err := mcpBound(inv, cmd, o)
		if err != nil {
			return err
		}
		c, err := inv.server.client(ctx)
		if err != nil {
			return err
		}
		if within.Sprite != "" {
			if _, err := c.Get(ctx, within.Sprite); err != nil {
				return spriteError(err)
			}
		}
		server := &mcpserver.Server{Client: c, Within: within, Dir: o.dir, Roles: o.roles, Unread: func() bool { return unread(inv.Out) }}
		return server.Run(ctx, io.NopCloser(inv.In), nopWriteCloser{inv.Out})
	})
	o.register(cmd)
	cmd.AddCommand(newMCPConfigCommand(inv))
	return cmd
}

// unread reports whether out is a pipe, a socket or a terminal whose other end is closed.
func unread(out io.Writer) bool {
	f, ok := beneath(out).(*os.File)
	if !ok {
		return false
	}
	raw, err := f.SyscallConn()
	if err != nil {
		return false
	}
	gone := false
	err = raw.Control(func(fd uintptr) {
		poll := []unix.PollFd{{Fd: int32(fd)}}
		n, err := unix.Poll(poll, 0)
		gone = err == nil && n > 0 && poll[0].Revents&(unix.POLLERR|unix.POLLHUP) != 0
	})
	return err == nil && gone
}

// nopWriteCloser is a writer that is somebody else's to close.
type nopWriteCloser struct{ io.Writer }

func (nopWriteCloser) Close() error { return nil }
