package cli

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/lib/printable"
	"github.com/cove-dev/cove/sprites"
)

type updateOptions struct {
	sleep        sleepFlags
	label, strip []string
	gitID        bool
	keep         sprites.Retention
	disk         string
	memory       string
	cpus         int
}

func newUpdateCommand(inv *invocation) *cobra.Command {
	var o updateOptions
	cmd := &cobra.Command{
		Use:   "update [NAME]",
		Short: "Change a sprite's limits, when it sleeps, its labels, git identity or which checkpoints stay",
		Long: `Changes the settings of a sprite, which may be asleep or awake. A label K=V replaces one with the
same K. cove url changes who may open its URL. Its image and its --include can't be changed.

A sprite that nobody uses is paused after --idle: nothing in it runs, and its next use wakes it
in a moment. After --hibernate, also counted from its last use, its memory goes to disk. If
--hibernate is not longer than --idle, the sprite goes to disk without a pause before.

New limits hold at once (see cove help limits). Less memory than the sprite uses is refused. But
programs inside see the new figures, and can use more CPUs than before, only after cove restart.
Sleep and wake are not enough for that.

With --keep-last or --keep-daily, cove keeps an automatic checkpoint only if one of these rules
keeps it (see cove checkpoint prune).`,
		Example: `  cove update paint --idle 30m
  cove update paint --idle 0                      it never sleeps by itself
  cove update paint --idle 1m --hibernate 1h      paused after a minute, on disk after an hour
  cove update paint --label team=shop --remove-label old
  cove update paint --disk 20G                    and --disk 0: no limit
  cove update paint --memory 8G --cpus 4          and 0: no limit
  cove update paint --git-identity
  cove update paint --keep-last 10 --keep-daily 7`,
		Args:              maxArgs(1),
		ValidArgsFunction: completeOneSprite(inv),
	}
	cmd.RunE = verb(func(ctx context.Context, args []string) error {
		name, err := inv.sprite.named(ctx, cmd, args)
		if err != nil {
			return err
		}
		idle, hibernate, err := o.sleep.seconds(cmd)
		if err != nil {
			return err
		}
		keep, err := keepGiven(cmd, o.keep)
		if err != nil {
			return err
		}
		var disk *int
		if cmd.Flags().Changed("disk") {
			mib, err := diskSize(cmd, o.disk)
			if err != nil {
				return err
			}
			disk = &mib
		}
		memory, cpus, err := o.limits(cmd)
		if err != nil {
			return err
		}
		if idle == nil && hibernate == nil && disk == nil && memory == nil && cpus == nil && len(o.label)+len(o.strip) == 0 && !o.gitID && !keep {
			return usagef(cmd, "what should change?")
		}
		who, err := identity(ctx, o.gitID)
		if err != nil {
			return err
		}
		c, err := inv.server.client(ctx)
		if err != nil {
			return err
		}
		req := sprites.UpdateRequest{IdleSeconds: idle, HibernateSeconds: hibernate, StorageMB: disk, RAMMB: memory, CPUs: cpus}
		var info sprites.Info
		if keep || len(o.label)+len(o.strip) > 0 {
			info, err = c.Change(ctx, name, func(was sprites.Info) (sprites.UpdateRequest, error) { return o.over(cmd, was, req, keep), nil })
		} else {
			info, err = c.Update(ctx, name, req)
		}
		if err != nil {
			return spriteError(err)
		}
		if o.gitID {
			if err := giveIdentity(ctx, c, name, who); err != nil {
				return partlyError{fmt.Errorf("%w; the other settings were changed", spriteError(err))}
			}
		}
		return inv.show(info, func(w io.Writer) {
			if !inv.global.quiet {
				fmt.Fprintf(w, "Sprite %s changed.\n", printable.Line(info.Name))
			}
			if memory != nil || cpus != nil {
				sayLimits(inv, info)
			}
			if memory != nil {
				sayReserve(inv, info)
			}
			if disk != nil && *disk > 0 {
				sayDisk(ctx, inv, c, name, int64(*disk)<<20)
			}
		})
	})
	f := cmd.Flags()
	o.sleep.register(cmd, "")
	f.StringArrayVar(&o.label, "label", nil, "note this `LABEL` on it, any text or K=V (repeatable)")
	keepFlags(cmd, &o.keep, " that were made automatically")
	f.StringVar(&o.disk, "disk", "", "the most it may take on the disk, checkpoints included, such as 20G; 0: no limit")
	f.StringVar(&o.memory, "memory", "", "the most memory it may use, such as 4G; 0: no limit")
	f.IntVar(&o.cpus, "cpus", 0, "how many CPUs it may use; 0: no limit")
	f.BoolVar(&o.gitID, "git-identity", false, identityUsage)
	f.StringArrayVar(&o.strip, "remove-label", nil, "remove this `LABEL`, or that of the key K (repeatable)")
	return cmd
}

// sayLimits says from when on new limits of memory and processors hold.
func sayLimits(inv *invocation, info sprites.Info) {
	switch {
	case info.Cove != nil && len(info.Cove.Unlimited) > 0:
		inv.say("The server's machine does not enforce them: %s", strings.Join(info.Cove.Unlimited, "; "))
	case info.Status != sprites.StatusCold:
		inv.say("The new limits hold now. Programs inside see them once it boots: cove restart %s, which ends what runs (sleep and wake do not boot it).", info.Name)
	}
}

// sayReserve says that a sprite gets less memory than its limit.
func sayReserve(inv *invocation, info sprites.Info) {
	if less := reserveText(info); less != "" {
		inv.say("Of %d MiB of memory %s.", info.Config.RAMMB, less)
	}
}

// sayDisk says that a sprite takes more already than its new disk limit.
func sayDisk(ctx context.Context, inv *invocation, c *cove.Client, name string, limit int64) {
	info, err := c.Get(ctx, name)
	if err != nil || info.Cove == nil || info.Cove.DiskUsed < limit {
		return // it is a remark
	}
	inv.say("It takes %s already, and is paused until there is less, or a higher limit: cove update %s --disk %dM", printable.Bytes(info.Cove.DiskUsed), name, enoughDisk(limit, info.Cove.DiskUsed))
}

// enoughDisk is a disk limit in MiB that lets a sprite go on which takes used bytes: half as much
// again.
func enoughDisk(limit, used int64) int64 {
	const mib = 1 << 20
	return max(limit, used)/mib*3/2 + 1
}

// limits are the values of --memory, in MiB, and --cpus; nil: not given.
func (o *updateOptions) limits(cmd *cobra.Command) (memory, cpus *int, err error) {
	if cmd.Flags().Changed("memory") {
		n, err := ParseSize(o.memory)
		if err != nil || n > 0 && n < 1<<20 {
			return nil, nil, usagef(cmd, "--memory %q is not a size such as 2G or 512M; 0 is no limit", o.memory)
		}
		memory = new(int(n >> 20))
	}
	if cmd.Flags().Changed("cpus") {
		if o.cpus < 0 {
			return nil, nil, usagef(cmd, "--cpus %d is negative; 0 is no limit", o.cpus)
		}
		cpus = &o.cpus
	}
	return memory, cpus, nil
}

// over adds to req the labels and, with keep, the retention rules that a sprite will have:
// its present ones, changed as the flags say.
func (o *updateOptions) over(cmd *cobra.Command, info sprites.Info, req sprites.UpdateRequest, keep bool) sprites.UpdateRequest {
	if len(o.label)+len(o.strip) > 0 {
		labels := relabel(info.Labels, o.label, o.strip)
		req.Labels, req.ClearLabels = &labels, len(labels) == 0
	}
	if !keep {
		return req
	}
	rules := o.keep
	if info.Cove != nil && info.Cove.Retention != nil {
		if !cmd.Flags().Changed("keep-last") {
			rules.Last = info.Cove.Retention.Last
		}
		if !cmd.Flags().Changed("keep-daily") {
			rules.Daily = info.Cove.Retention.Daily
		}
	}
	req.Retention = &rules
	return req
}

// relabel is a sprite's labels after a change.
func relabel(labels, set, strip []string) []string {
	key := func(label string) string { k, _, _ := strings.Cut(label, "="); return k }
	kept := slices.DeleteFunc(slices.Clone(labels), func(label string) bool {
		return slices.ContainsFunc(set, func(s string) bool { return key(s) == key(label) }) ||
			slices.Contains(strip, label) || slices.Contains(strip, key(label))
	})
	return append(kept, set...)
}

// sleepFlags are the flags of create and update that say when a sprite sleeps.
type sleepFlags struct{ idle, hibernate time.Duration }

func (s *sleepFlags) register(cmd *cobra.Command, ifNot string) {
	f := cmd.Flags()
	f.DurationVar(&s.idle, "idle", 0, "sleep after being unused for so long; 0: never"+ifNot)
	f.DurationVar(&s.hibernate, "hibernate", 0, "put its memory on disk after being unused for so long; 0: never"+ifNot)
}

// seconds are the values of the flags; nil: not given.
func (s *sleepFlags) seconds(cmd *cobra.Command) (idle, hibernate *int64, err error) {
	of := func(flag string, d time.Duration) *int64 {
		switch {
		case !cmd.Flags().Changed(flag):
			return nil
		case d < 0 || d > 0 && d < time.Second:
			err = usagef(cmd, "--%s %v: must be 0, or at least a second", flag, d)
		}
		return new(int64(d / time.Second))
	}
	return of("idle", s.idle), of("hibernate", s.hibernate), err
}
