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
		Long: `Is an agent for an editor that speaks the Agent Client Protocol (Zed, JetBrains, Neovim …),
on standard input and output. The agent that does the work runs in the sprite, and its files
and its terminals are the sprite's: nothing of it is done on this machine. Its requests for
permission come to the editor. Where the sprite is gone the editor is told so.

The agent "claude" is Claude Code by claude-agent-acp, which must be in the sprite:
  cove exec -s paint npm install --global --prefix .local @agentclientprotocol/claude-agent-acp
"acp" is any other that speaks the protocol, started by --agent-command. It asks its model
through a connector, if that is granted to the sprite: cove connector grant.

The project's folder (--project; the current one) is a folder in the sprite (--dir; that of its
name in the home): paths are mapped from the one to the other. Files go by cove sync, which
brings them there and back; the editor shows what is here. MCP servers of the editor are not
passed on: they are of this machine.`,
		Example: `  cove sync push -s paint && cove acp -s paint
  cove acp -s paint --agent acp --agent-command "opencode acp"
  cove acp -s paint --agent acp --agent-command "gemini --acp" --project ~/site --dir code`,
		Args: exactArgs(),
	}
	cmd.RunE = verb(func(ctx context.Context, _ []string) error {
		if inv.global.json {
			return usagef(cmd, "its output is the protocol's; there is no --json")
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
	f.StringVar(&o.command, "agent-command", "", "what starts the agent acp, in the sprite")
	f.StringVar(&o.project, "project", "", "the folder that the editor works in (default: the current one)")
	f.StringVar(&o.dir, "dir", "", "the folder in the sprite that stands for it (default: the one of its name, as of cove sync)")
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
		return usagef(cmd, "--project %s is no folder", project)
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
