package cli

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cove-dev/cove/internal/lib/printable"
	"github.com/cove-dev/cove/sprites"
)

func newInfoCommand(inv *invocation) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "info [NAME]",
		Short: "Describe a sprite",
		Long: `Describes a sprite: its state, its base and its limits. It says which limits this machine can't
enforce and why, and why the last sandbox ended. It does not wake the sprite.`,
		Example: `  cove info paint
  cove info --json | jq .cove`,
		Args:              maxArgs(1),
		ValidArgsFunction: completeOneSprite(inv),
	}
	cmd.RunE = verb(func(ctx context.Context, args []string) error {
		name, err := inv.sprite.named(ctx, cmd, args)
		if err != nil {
			return err
		}
		c, err := inv.server.client(ctx)
		if err != nil {
			return err
		}
		info, err := c.Get(ctx, name)
		if err != nil {
			return spriteError(err)
		}
		if info.Cove != nil && info.Cove.Held != nil {
			info.Cove.Held.Hint = inv.hints.full(info.Cove.Held.Hint)
		}
		return inv.show(info, func(w io.Writer) { printInfo(w, info, spriteNetwork(ctx, c.Sprite(name))) })
	})
	return cmd
}

// spriteError adds to an unknown sprite how to find the known ones.
func spriteError(err error) error {
	if err == nil {
		return nil
	}
	if f := classify(err); f.code == "not_found" && f.hint == "" {
		return hinted(err, "see which there are: cove list; or make it: cove create NAME")
	}
	return err
}

// spriteNetwork is a sprite's network policy in a line; empty if the server does not tell
// it.
func spriteNetwork(ctx context.Context, s *sprites.Sprite) string {
	p, err := s.NetworkPolicy(ctx)
	if err != nil {
		return ""
	}
	text := networkText(&p)
	if slices.ContainsFunc(p.Rules, func(r sprites.NetworkRule) bool { return r.Include == "" }) {
		text += "; see them: cove policy show -s " + s.Name()
	}
	return text
}

func printInfo(w io.Writer, i sprites.Info, network string) {
	held := ""
	if i.Cove != nil && i.Cove.Held != nil {
		held = i.Cove.Held.Message + "; " + i.Cove.Held.Hint
	}
	pairs := []string{
		"name", i.Name,
		"id", i.ID,
		"status", i.StateText(),
		"held", held,
		"url", i.URL,
		"labels", strings.Join(i.Labels, ", "),
		"created", i.CreatedAt.Local().Format(time.RFC3339),
		"last running", timeText(i.LastRunning),
		"network", network,
	}
	if c := i.Config; c != nil {
		pairs = append(pairs, "image", c.Image, "memory", memoryLimitText(i), "cpus", orNothing(c.CPUs, "%d"), "disk", diskLimitText(i))
	}
	names := make([]string, 0, len(i.Environment))
	for name := range i.Environment {
		names = append(names, name) // values may be secrets
	}
	slices.Sort(names)
	pairs = append(pairs, "environment", strings.Join(names, ", "))
	if d := i.Cove; d != nil {
		pairs = append(pairs,
			"base", d.Base,
			"include", strings.Join(d.Include, ", "),
			"idle", idleText(d),
			"keeps checkpoints", keepText(d.Retention),
			"owner", d.Owner,
			"address", strings.TrimSuffix(d.Address+", "+d.Address6, ", "),
			"kept awake by", strings.Join(d.AwakeBy, ", "),
			"woken by", d.WokenBy,
			"the network is down", d.NetworkDown,
			"not enforced", strings.Join(d.Unlimited, "; "),
			"out of memory", memoryText(d.MemoryKills),
			"sealed on disk", sealedText(d.DiskUse),
			"last end", lastEnd(i),
			"last error", joinLines(d.LastError),
		)
	}
	fields(w, pairs...)
}

// memoryLimitText is a sprite's memory limit; empty: it has none.
func memoryLimitText(i sprites.Info) string {
	text := orNothing(i.Config.RAMMB, "%d MiB")
	if less := reserveText(i); less != "" {
		text += "; " + less
	}
	return text
}

// reserveText says that a sprite gets less memory than its limit; empty: it gets all.
func reserveText(i sprites.Info) string {
	if i.Cove == nil || i.Cove.MemoryMB == 0 || len(i.Cove.Unlimited) > 0 {
		return ""
	}
	return fmt.Sprintf("it gets %d MiB: the server keeps the rest of its own cgroup's or container's limit", i.Cove.MemoryMB)
}

// diskLimitText says how much of its disk limit a sprite uses; empty: it has no limit.
func diskLimitText(i sprites.Info) string {
	limit := i.Config.DiskLimit()
	switch {
	case limit == 0:
		return ""
	case i.Cove == nil:
		return "limit " + printable.Bytes(limit)
	}
	return printable.Bytes(i.Cove.DiskUsed) + " of " + printable.Bytes(limit)
}

// idleText says when a sprite sleeps.
func idleText(d *sprites.Details) string {
	idle, hibernate := time.Duration(d.IdleSeconds)*time.Second, time.Duration(d.HibernateSeconds)*time.Second
	switch {
	case idle == 0:
		return "never sleeps"
	case hibernate == 0:
		return fmt.Sprintf("paused after %v", idle)
	case hibernate > idle:
		return fmt.Sprintf("paused after %v, on disk after %v", idle, hibernate)
	}
	return fmt.Sprintf("on disk after %v", idle)
}

// keepText says which of the checkpoints that nobody asked for stay; empty: all.
func keepText(r *sprites.Retention) string {
	if r == nil {
		return ""
	}
	daily := ""
	if r.Daily > 0 {
		daily = ", the last of each of " + printable.Count(r.Daily, "day")
	}
	return strings.TrimPrefix(orNothing(r.Last, ", the last %d")+daily, ", ")
}

// sealedText is the size of the checkpoint that a sprite goes on from; empty: there is
// none, or its size is not known.
func sealedText(u *sprites.DiskUse) string {
	if u == nil || u.SizeBytes == 0 {
		return ""
	}
	return printable.Bytes(u.SizeBytes)
}

// lastEnd says why a sprite that was awake sleeps, if it was not an error.
func lastEnd(i sprites.Info) string {
	switch d := i.Cove; {
	case i.Status == sprites.StatusRunning || d.Paused || i.LastRunning == nil || d.LastError != "":
		return ""
	case d.IdleSeconds > 0:
		return "asleep: unused for " + (time.Duration(max(d.IdleSeconds, d.HibernateSeconds)) * time.Second).String() + ", or stopped by request"
	}
	return "stopped by request"
}

// memoryText names the process that was ended last for want of memory.
func memoryText(kills []sprites.MemoryKill) string {
	if len(kills) == 0 {
		return ""
	}
	k := kills[len(kills)-1]
	return fmt.Sprintf("%s (process %d), the largest with %s of the sprite's %s, was killed at %s",
		printable.Line(k.Name), k.PID, printable.Bytes(k.ResidentBytes), printable.Bytes(k.LimitBytes), timeText(&k.Time))
}

func timeText(t *time.Time) string {
	if t == nil {
		return ""
	}
	return t.Local().Format(time.RFC3339)
}

// orNothing formats a number; 0 gives "".
func orNothing(n int, format string) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprintf(format, n)
}
