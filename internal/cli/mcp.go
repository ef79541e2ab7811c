package cli

import (
	"context"
	"io"

	"github.com/spf13/cobra"

	"github.com/cove-dev/cove/internal/mcpserver"
	"github.com/cove-dev/cove/internal/tools"
)

func (a *app) newMCP() *cobra.Command {
	var roles []string
	var dir string
	cmd := &cobra.Command{
		Use:   "mcp",
		Short: "Offer a sprite's tools to an agent outside, by MCP",
		Long: `Offers the tools of a sprite to an MCP client, on standard input and output: Read, Write,
Edit, Glob, Grep and Bash, which act in the sprite and nowhere else, and exec, which runs a
program there without a shell. An agent that has no tools but these works in the sandbox while
it runs here.

The sprite is awake from the first call on, until the client ends. Where it is gone, each
call says so.

` + toolRoles,
		Example: `  claude mcp add sandbox -- cove mcp -s paint
  claude -p "fix the tests" --tools "" --mcp-config sandbox.json --strict-mcp-config
  cove mcp -s paint --dir /srv/app --role edit`,
		Args: exactArgs(),
		RunE: verb(func(ctx context.Context, _ []string) error {
			if _, err := tools.ParseRole(roles...); err != nil {
				return usagef(nil, "%v", err)
			}
			sprite, err := a.spriteHandle(ctx)
			if err != nil {
				return err
			}
			if _, err := sprite.Client().Get(ctx, sprite.Name()); err != nil {
				return spriteError(err)
			}
			server := &mcpserver.Server{Sprite: sprite, Dir: dir, Roles: roles}
			return server.Run(ctx, io.NopCloser(a.In), nopWriteCloser{a.Out})
		}),
	}
	roleFlag(cmd, &roles)
	cmd.Flags().StringVar(&dir, "dir", "", "the tools' working directory (default: the sprite's home)")
	return cmd
}

// nopWriteCloser is a writer that is somebody else's to close.
type nopWriteCloser struct{ io.Writer }

func (nopWriteCloser) Close() error { return nil }
