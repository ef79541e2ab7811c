package cli

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/cove-dev/cove/internal/cli/acpserver"
	"github.com/cove-dev/cove/internal/cli/config"
	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/lib/printable"
	"github.com/cove-dev/cove/internal/server/agents"
)

type acpOptions struct {
	agent, command string
	project, dir   string
}

func newACPCommand(inv *invocation) *cobra.Command {
	var o acpOptions
	cmd := &cobra.Command{
		Use:   "acp",
		Short: "Offer an agent in a sprite to an editor, by ACP",
		Long: `Offers an agent in a sprite to an editor that speaks the Agent Client Protocol (Zed, JetBrains,
Neovim …), on standard input and output. The agent works with the sprite's files and terminals,
and does nothing on this machine. The editor gets its requests for permission. If the sprite is
gone, the editor gets an error that says so.

The agent claude is Claude Code. It needs claude-agent-acp in the sprite:
  cove exec -s paint npm install --global --prefix .local @agentclientprotocol/claude-agent-acp
The agent acp is any other that speaks the protocol; --agent-command starts it. An agent asks its
model through a connector, if the sprite has been granted that: cove connector grant.

The project's folder (--project, or the current one) stands for a folder in the sprite (--dir, or
that of its name in the home): paths are mapped from one to the other. The editor shows the files
of this machine; cove sync copies them there and back. MCP servers of the editor belong to this
machine, and are not passed on.`,
		Example: `  cove sync push -s paint && cove acp -s paint
  cove acp -s paint --agent acp --agent-command "opencode acp"
  cove acp -s paint --agent acp --agent-command "gemini --acp" --project ~/site --dir code`,
		Args: exactArgs(),
	}
	cmd.RunE = verb(func(ctx context.Context, _ []string) error {
		if inv.global.json {
			return usagef(cmd, "acp writes only the protocol; there is no --json")
		}
		s, _, err := loadSettings(ctx)
		if err != nil {
			return err
		}
		if err := setDefaults(inv, cmd, s, config.Agent, config.AgentCommand); err != nil {
			return err
		}
		return serveEditor(ctx, inv, cmd, o)
	})
	f := cmd.Flags()
	f.StringVar(&o.agent, "agent", config.Default(config.Agent), "the agent: claude or acp")
	f.StringVar(&o.command, "agent-command", "", "the command that starts the agent acp in the sprite")
	f.StringVar(&o.project, "project", "", "the folder that the editor works in (default: the current one)")
	f.StringVar(&o.dir, "dir", "", "the folder in the sprite that stands for it (default: the one of its name, as in cove sync)")
	must(cmd.RegisterFlagCompletionFunc("agent", cobra.FixedCompletions([]string{"claude", "acp"}, cobra.ShellCompDirectiveNoFileComp)))
	must(cmd.MarkFlagDirname("project"))
	return cmd
}

func serveEditor(ctx context.Context, inv *invocation, cmd *cobra.Command, o acpOptions) error {
	command, env, err := agents.Editor(o.agent, o.command, spriteHome)
	if err != nil {
		return usagef(cmd, "%v", err)
	}
	project, err := filepath.Abs(o.project)
	if err != nil {
		return err
	}
	if info, err := os.Stat(project); err != nil || !info.IsDir() {
		return usagef(cmd, "--project %s is not a folder", project)
	}
	if o.dir == "" {
		o.dir = filepath.Base(project)
	}
	if !path.IsAbs(o.dir) {
		o.dir = path.Join(spriteHome, o.dir)
	}
	sprite, err := inv.spriteHandle(ctx)
	if err != nil {
		return err
	}
	if _, err := sprite.Client().Get(ctx, sprite.Name()); err != nil {
		return spriteError(err)
	}
	info, err := sprite.Stat(ctx, o.dir)
	if errors.Is(err, fs.ErrNotExist) || err == nil && !info.IsDir() {
		return fail.New("no_folder", "sprite "+sprite.Name()+" has no folder "+o.dir, "bring yours there: cove sync push -s "+sprite.Name()+" "+project+" "+o.dir)
	}
	if err != nil {
		return err
	}
	server := &acpserver.Server{
		Sprite: sprite, Command: command, Env: env, Stderr: sanitizer{inv.Err},
		Project: acpserver.Folders{Here: project, There: path.Clean(o.dir), Name: sprite.Name()},
	}
	return server.Run(ctx, inv.In, inv.Out)
}

// sanitizer makes what a sprite prints harmless for a terminal.
type sanitizer struct{ w io.Writer }

func (s sanitizer) Write(p []byte) (int, error) {
	_, err := io.WriteString(s.w, printable.Text(string(p)))
	return len(p), err
}
