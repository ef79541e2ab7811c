package cli

import (
	"context"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cove-dev/cove/internal/lib/printable"
)

// spriteUse says how a command learns which sprite it is about.
type spriteUse int

const (
	noSprite  spriteUse = iota
	byName              // the argument NAME, else as byFlag
	byFlag              // -s, else COVE_SPRITE, else the one that cove use noted
	namedOnly           // the argument or -s, and nothing else: it deletes, or goes without a sprite
)

// spriteVerbs are the commands that have a sprite, by their path without "cove".
var spriteVerbs = map[string]spriteUse{
	"info": byName, "update": byName, "setup": byName, "console": byName, "url": byName, "fork": byName,
	"export": byName, "suspend": byName, "wake": byName, "restart": byName, "diagnose": byName,

	"exec": byFlag, "tool list": byFlag, "tool call": byFlag, "mcp": byFlag, "mcp config": byFlag, "acp": byFlag,
	"session list": byFlag, "session attach": byFlag, "session kill": byFlag,
	"service put": byFlag, "service list": byFlag, "service show": byFlag, "service start": byFlag, "service restart": byFlag,
	"service stop": byFlag, "service logs": byFlag, "service signal": byFlag, "service rm": byFlag,
	"policy show": byFlag, "policy set": byFlag, "policy allow": byFlag, "policy deny": byFlag, "policy limit": byFlag,
	"policy test": byFlag, "policy log": byFlag, "policy learn": byFlag,
	"proxy": byFlag, "cp": byFlag, "restore": byFlag,
	"checkpoint create": byFlag, "checkpoint list": byFlag, "checkpoint show": byFlag, "checkpoint diff": byFlag,
	"checkpoint verify": byFlag, "checkpoint rm": byFlag, "checkpoint prune": byFlag,
	"sync push": byFlag, "sync pull": byFlag, "sync undo": byFlag, "sync status": byFlag,

	"rm": namedOnly, "use": namedOnly, "ping": namedOnly, "env show": namedOnly,
	"push": namedOnly, "run": namedOnly, "job list": namedOnly, "job resume": namedOnly, "token create": namedOnly,
	"connector grant": namedOnly, "connector revoke": namedOnly, "connector log": byFlag,
}

// commandName is a command's path without the program's name.
func commandName(cmd *cobra.Command) string {
	_, name, _ := strings.Cut(cmd.CommandPath(), " ")
	return name
}

// usesSprite says how cmd learns its sprite. A command that only has subcommands uses
// one if one of those does.
func usesSprite(cmd *cobra.Command) spriteUse {
	if use := spriteVerbs[commandName(cmd)]; use != noSprite {
		return use
	}
	for _, sub := range cmd.Commands() {
		if usesSprite(sub) != noSprite {
			return byFlag
		}
	}
	return noSprite
}

// showSpriteFlag shows -s in the help and the completion of cmd if it has a sprite.
func showSpriteFlag(cmd *cobra.Command) {
	cmd.Root().PersistentFlags().Lookup("sprite").Hidden = usesSprite(cmd) == noSprite
}

// spriteFlagOf prepares a command line that asks for completion.
func spriteFlagOf(root *cobra.Command, args []string) {
	if len(args) < 2 || args[0] != cobra.ShellCompRequestCmd && args[0] != cobra.ShellCompNoDescRequestCmd {
		return
	}
	if cmd, _, err := root.Find(args[1 : len(args)-1]); err == nil {
		showSpriteFlag(cmd)
	}
}

// tellUnusedSprite says that -s changes nothing for a command that has no sprite.
func tellUnusedSprite(inv *invocation, cmd *cobra.Command) {
	if inv.global.sprite != "" && usesSprite(cmd) == noSprite {
		inv.say("cove: %s does not use a sprite; -s %s has no effect", cmd.CommandPath(), printable.Line(inv.global.sprite))
	}
}

// aboutFlag notes the sprite of -s for hints, if cmd has one and no better is known.
func aboutFlag(inv *invocation, cmd *cobra.Command) {
	if inv.hints.about == "" && usesSprite(cmd) != noSprite && checkName(inv.global.sprite) == nil {
		inv.hints.about = inv.global.sprite
	}
}

// nameOnce takes the sprite's name from an argument. -s may name the same one besides.
func (s *chosenSprite) nameOnce(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	for _, name := range args {
		if s.global.sprite != "" && s.global.sprite != name {
			return usagef(cmd, "two sprites are named, %s and %s; leave one out", name, s.global.sprite)
		}
	}
	if len(args) == 1 {
		s.global.sprite = args[0]
		if checkName(args[0]) == nil {
			s.hints.about = args[0]
		}
	}
	return nil
}

// named is the sprite of a command with an optional argument NAME: that, else -s, else
// COVE_SPRITE, else the one that cove use noted.
func (s *chosenSprite) named(ctx context.Context, cmd *cobra.Command, args []string) (string, error) {
	if err := s.nameOnce(cmd, args); err != nil {
		return "", err
	}
	return s.name(ctx)
}

// namedAll is named for a command that takes several.
func (s *chosenSprite) namedAll(ctx context.Context, cmd *cobra.Command, args []string) ([]string, error) {
	if err := s.nameOnce(cmd, args); err != nil {
		return nil, err
	}
	if len(args) == 0 {
		name, err := s.name(ctx)
		return []string{name}, err
	}
	for _, name := range args {
		if err := checkName(name); err != nil {
			return nil, err
		}
	}
	return args, nil
}

// namedOrFlag returns the sprites of a command that does not use the sprite noted by cove
// use: the arguments, or -s. Without either, the error says that missing is missing.
func (s *chosenSprite) namedOrFlag(cmd *cobra.Command, args []string, missing string) ([]string, error) {
	if err := s.nameOnce(cmd, args); err != nil {
		return nil, err
	}
	if len(args) == 0 && s.global.sprite != "" {
		args = []string{s.global.sprite}
	}
	if len(args) == 0 {
		return nil, usagef(cmd, "%s is missing", missing)
	}
	for _, name := range args {
		if err := checkName(name); err != nil {
			return nil, err
		}
	}
	return args, nil
}

// environmentSprite is the sprite that the environment chooses; empty: none.
func environmentSprite() string { return os.Getenv("COVE_SPRITE") }
