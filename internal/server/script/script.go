// Package script runs a text in a sprite as a program. Its text and its variables go there by
// files, because the arguments of a command are in a URL.
package script

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/cove-dev/cove/internal/lib/mask"
	"github.com/cove-dev/cove/sprites"
)

// Script is a program for a sprite.
type Script struct {
	Text    string   // run by sh if it does not begin with #!
	File    string   // where it is kept, in a folder that is there; required
	Dir     string   // in which it runs; if that is not there, in the home
	Env     []string // KEY=VALUE, over the sprite's own
	Secrets []string // values that the output does not show
}

// Run runs s in a sprite. Its output goes to out. The error is a *sprites.ExitError if the
// program ended with a code other than 0.
func (s Script) Run(ctx context.Context, sprite *sprites.Sprite, out io.Writer) error {
	var first strings.Builder
	first.WriteString("#!/bin/sh\n")
	for _, kv := range s.Env {
		name, value, _ := strings.Cut(kv, "=")
		fmt.Fprintf(&first, "export %s=%s\n", name, quoted(value))
	}
	first.WriteString("cd \"$1\" 2>/dev/null || cd\n")
	if strings.HasPrefix(s.Text, "#!") {
		first.WriteString("exec \"$0-script\"\n")
	} else {
		first.WriteString("exec sh \"$0-script\"\n")
	}
	for name, text := range map[string]string{s.File + "-script": s.Text, s.File: first.String()} {
		if err := sprite.WriteFile(ctx, name, strings.NewReader(text), sprites.WriteOptions{Mode: 0o700}); err != nil {
			return err
		}
	}
	cmd := sprite.CommandContext(ctx, s.File, s.Dir)
	hidden := &mask.Writer{W: out, Mask: mask.New(s.Secrets)}
	cmd.Stdout, cmd.Stderr = hidden, hidden
	return errors.Join(cmd.Run(), hidden.Close())
}

// quoted is a word for sh.
func quoted(text string) string { return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'" }
