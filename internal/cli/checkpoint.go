package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/lib/checkpointtree"
	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/lib/printable"
	"github.com/cove-dev/cove/sprites"
)

func newCheckpointCommand(inv *invocation) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "checkpoint",
		Aliases: []string{"checkpoints"},
		Short:   "Keep states of a sprite to go back to",
		Long: `A checkpoint is what a sprite's disk was at one moment. It costs what changes afterwards, not
what the disk holds. A sprite that is awake stays so: what runs in it stands still for a
moment, and goes on with its memory and its connections. With --memory that is kept, too:
then going back to it brings back what ran.

/tmp is in the sprite's memory, as /dev/shm is: without --memory a checkpoint has nothing of
it.

cove restore goes back to one, and cove fork makes another sprite of one.`,
		Example: `  cove checkpoint create -s paint --comment 'before the upgrade'
  cove checkpoint list -s paint
  cove checkpoint diff v1 -s paint
  cove restore v1 -s paint
  cove fork paint paint-2 --checkpoint v1`,
		Args: subcommandOnly,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newCheckpointCreateCommand(inv), newCheckpointListCommand(inv), newCheckpointShowCommand(inv), newCheckpointDiffCommand(inv), newCheckpointVerifyCommand(inv), asksFirst(inv, newCheckpointRmCommand(inv), lostCheckpoints(inv)), newCheckpointPruneCommand(inv))
	return cmd
}

// tellCheckpoint shows what a server tells of a checkpoint, with --verbose.
func tellCheckpoint(inv *invocation) func(sprites.CheckpointEvent) {
	return func(e sprites.CheckpointEvent) {
		if inv.global.verbose && e.Type == "info" {
			inv.say("%s", printable.Line(e.Data))
		}
	}
}

// keepChoices are the values of --memory.
var keepChoices = []string{string(sprites.KeepNever), string(sprites.KeepAuto), string(sprites.KeepAlways)}

func newCheckpointCreateCommand(inv *invocation) *cobra.Command {
	var req sprites.CheckpointRequest
	var memory string
	cmd := &cobra.Command{
		Use:   "create",
		Short: "Make a checkpoint",
		Long: `Makes a checkpoint of what a sprite's disk is now, and prints its id: v1, v2 and so on. With
--memory what runs is kept with it, as it is; that costs as much disk as it has memory.

Programs stand still for the longer, the larger and the more the files are that they have open
for writing, or has open since they were written: they are copied. So are deleted files that
are still open, with their holes. Where those are more than 64 MiB, or the others more than 256
MiB, --memory keeps no memory, because each restore and each fork would copy them again. You
are told which files those are; --memory=always keeps it. No checkpoint is made, and what runs
goes on, where the disk has no room for the copies, and where deleted files are more than 1
GiB, or than the memory that the sprite has left: they are copied in it.`,
		Example: `  cove checkpoint create -s paint
  cove checkpoint create -s paint --comment 'tests pass' --label green
  cove checkpoint create -s paint --memory
  cove checkpoint create -s paint --memory=always    however much is open`,
	}
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if len(args) == 1 && cmd.Flags().Changed("memory") && slices.Contains(keepChoices, args[0]) {
			return hinted(usagef(cmd, "%q does not belong to --memory, which takes its value after a =", args[0]), "cove checkpoint create --memory="+args[0])
		}
		return exactArgs()(cmd, args)
	}
	cmd.RunE = verb(func(ctx context.Context, _ []string) error {
		if !slices.Contains(keepChoices, memory) {
			return usagef(cmd, "--memory %q is none of never, auto and always", memory)
		}
		req.Memory = sprites.KeepMemory(memory)
		s, err := inv.spriteHandle(ctx)
		if err != nil {
			return err
		}
		c, err := s.Checkpoint(ctx, req, tellCheckpoint(inv))
		if err != nil {
			return spriteError(unseen(err, "checkpoint sprite "+s.Name(), "cove checkpoint list -s "+s.Name()))
		}
		return inv.show(c, func(w io.Writer) {
			fmt.Fprintln(w, printable.Line(c.ID))
			if c.Cove != nil {
				sayPause(inv, c.Cove)
			}
		})
	})
	f := cmd.Flags()
	f.StringVar(&req.Comment, "comment", "", "what it is")
	f.StringVar(&memory, "memory", string(sprites.KeepNever), "keep what runs, too: auto (--memory alone), unless too much is open, or always")
	f.Lookup("memory").NoOptDefVal = string(sprites.KeepAuto)
	f.StringArrayVar(&req.Labels, "label", nil, "note this `LABEL` on it (repeatable)")
	must(cmd.RegisterFlagCompletionFunc("memory", cobra.FixedCompletions(keepChoices, cobra.ShellCompDirectiveNoFileComp)))
	return cmd
}

// copiedNoted is the least number of copied bytes that is told: to copy less is fast.
const copiedNoted = 16 << 20

// sayPause tells people what a checkpoint has cost, and that it has no memory if so.
func sayPause(inv *invocation, c *sprites.CheckpointDetails) {
	if c.PauseMilliseconds > 0 {
		inv.say("What runs stood still for %.0f ms.", c.PauseMilliseconds)
	}
	if c.CopiedBytes >= copiedNoted {
		inv.say("%s of files that are open for writing were copied meanwhile.", printable.Bytes(c.CopiedBytes))
	}
	if c.MemoryNotKept != "" {
		inv.say("It is of the disk alone: %s.", printable.Line(c.MemoryNotKept))
	}
	if c.OpenFiles == nil {
		return
	}
	for _, f := range c.OpenFiles.Writable {
		inv.say("  %s, %s, open for writing", printable.Line(f.Path), printable.Bytes(f.Bytes))
	}
	for _, f := range c.OpenFiles.Unlinked {
		inv.say("  %s, %s, deleted and still open", printable.Line(f.Path), printable.Bytes(f.Bytes))
	}
	if c.MemoryNotKept != "" {
		inv.say("Keep what runs all the same with: cove checkpoint create --memory=always")
	}
}

func newCheckpointListCommand(inv *invocation) *cobra.Command {
	var all bool
	cmd := &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List a sprite's checkpoints",
		Long: `Lists a sprite's checkpoints, the newest first, and what each grew from: going back to an old
one and on from there makes a branch, which is drawn beside the names. Current is what the
sprite is now. SIZE is what a checkpoint takes on the disk without its base. Of that, OWN is what
no other checkpoint and no sprite has (the rest is shared), and ADDED what the one that it grew
from has not; right after it was made that is not known yet. Those that nobody asked for, such
as what a restore has replaced, are listed with --all.`,
		Example: `  cove checkpoint list -s paint
  cove checkpoint list -s paint --all --json`,
		Args: exactArgs(),
		RunE: verb(func(ctx context.Context, _ []string) error {
			s, err := inv.spriteHandle(ctx)
			if err != nil {
				return err
			}
			list, err := s.Checkpoints(ctx, all)
			if err != nil {
				return spriteError(err)
			}
			return inv.show(list, func(w io.Writer) {
				rows := [][]string{{"ID", "CREATED", "FROM", "SIZE", "OWN", "ADDED", "COMMENT"}}
				tree := checkpointtree.Draw(list)
				for i, c := range list {
					created := "-"
					if c.ID != "Current" {
						created = ago(c.CreateTime, time.Now())
					}
					size, own, added := "-", "-", "-"
					if c.Cove != nil && c.Cove.DiskUse != nil {
						size, own, added = printable.Bytes(c.Cove.SizeBytes), printable.Bytes(c.Cove.OwnBytes), printable.Bytes(c.Cove.AddedBytes)
					}
					rows = append(rows, []string{tree[i] + printable.Line(c.ID), created, cmp.Or(printable.Line(c.SourceID), "-"), size, own, added, cmp.Or(printable.Line(c.Comment), "-")})
				}
				table(w, rows)
			})
		}),
	}
	cmd.Flags().BoolVar(&all, "all", false, "also those that nobody asked for")
	return cmd
}

func newCheckpointShowCommand(inv *invocation) *cobra.Command {
	return &cobra.Command{
		Use:               "show ID",
		Short:             "Describe a checkpoint",
		Long:              `Describes a checkpoint: when it was made, what it grew from, how long it took, and what it takes.`,
		Example:           `  cove checkpoint show v1 -s paint`,
		Args:              exactArgs("the checkpoint's id"),
		ValidArgsFunction: completeCheckpoint(inv),
		RunE: verb(func(ctx context.Context, args []string) error {
			s, err := inv.spriteHandle(ctx)
			if err != nil {
				return err
			}
			c, err := s.CheckpointInfo(ctx, args[0])
			if err != nil {
				return checkpointError(err)
			}
			return inv.show(c, func(w io.Writer) {
				labels, pause, copied, disk, memory := "", "", "", "", ""
				if c.Cove != nil {
					labels = strings.Join(c.Cove.Labels, ", ")
					if c.Cove.PauseMilliseconds > 0 {
						pause = fmt.Sprintf("%.0f ms", c.Cove.PauseMilliseconds)
					}
					if c.Cove.CopiedBytes > 0 {
						copied = printable.Bytes(c.Cove.CopiedBytes) + " of files that were open for writing"
					}
					disk = diskText(c.Cove.DiskUse)
					if c.Cove.MemoryBytes > 0 {
						memory = printable.Bytes(c.Cove.MemoryBytes)
					}
				}
				fields(w, "id", c.ID, "created", c.CreateTime.Local().Format(time.RFC3339), "from", c.SourceID, "comment", c.Comment,
					"labels", labels, "pause", pause, "copied", copied, "disk", disk, "memory", memory, "history", strings.Join(c.History, ", "), "health", c.Health)
			})
		}),
	}
}

// diskText is what a state of a disk takes; empty: that is not known.
func diskText(u *sprites.DiskUse) string {
	if u == nil {
		return ""
	}
	return fmt.Sprintf("%s (%s of it nobody else's, %s since the one before)", printable.Bytes(u.SizeBytes), printable.Bytes(u.OwnBytes), printable.Bytes(u.AddedBytes))
}

func newCheckpointRmCommand(inv *invocation) *cobra.Command {
	return &cobra.Command{
		Use:   "rm ID...",
		Short: "Delete checkpoints",
		Long: `Deletes checkpoints. What others, or sprites that were made of them, have in common with
them stays. The one that the sprite goes on from can't be deleted.`,
		Example:           `  cove checkpoint rm v1 v2 -s paint`,
		Args:              someArgs("the checkpoint's id"),
		Annotations:       map[string]string{"several": "yes"},
		ValidArgsFunction: completeCheckpoint(inv),
		RunE: verb(func(ctx context.Context, args []string) error {
			s, err := inv.spriteHandle(ctx)
			if err != nil {
				return err
			}
			return removeEach(ctx, inv, args, func(id string) error { return checkpointError(s.DeleteCheckpoint(ctx, id)) })
		}),
	}
}

// checkpointError says what to type where a checkpoint is not there.
func checkpointError(err error) error {
	if e, ok := errors.AsType[*sprites.Error](err); ok && e.Hint == "" && errors.Is(err, sprites.ErrNotFound) {
		return hinted(err, "see what there is with: cove checkpoint list")
	}
	return spriteError(err)
}

func newRestoreCommand(inv *invocation) *cobra.Command {
	var req sprites.RestoreRequest
	cmd := &cobra.Command{
		Use:   "restore ID",
		Short: "Bring a sprite back to a checkpoint",
		Long: `Brings a sprite's disk back to what it was at a checkpoint. What it is now becomes a
checkpoint first, so that nothing is lost. Its programs end. If the checkpoint was made with
--memory, those that ran then go on; else the sprite boots, if it is awake, and its services
start. A memory fits the programs of the server that it was made with and the kind of
processor; where it does not, the sprite boots, and you are told why.`,
		Example: `  cove restore v3 -s paint
  cove restore v3 -s paint --boot            though it has the memory
  cove checkpoint list -s paint --all        where what it was before is, too`,
		Args:              exactArgs("the checkpoint's id"),
		ValidArgsFunction: completeCheckpoint(inv),
	}
	cmd.RunE = verb(func(ctx context.Context, args []string) error {
		s, err := inv.spriteHandle(ctx)
		if err != nil {
			return err
		}
		ran := runningCommands(ctx, inv, s)
		done, err := s.RestoreCheckpoint(ctx, args[0], req, tellCheckpoint(inv))
		if err != nil {
			return checkpointError(unseen(err, "restore sprite "+s.Name(), "cove checkpoint list --all -s "+s.Name()))
		}
		return inv.show(done, func(w io.Writer) {
			inv.say("It is what %s was.", printable.Line(done.Checkpoint))
			if len(ran) > 0 {
				inv.say("%s", endedText(ran))
			}
			switch {
			case done.Memory:
				inv.say("What ran then goes on. " + repeatedRandom)
			case done.Unused != "":
				inv.say("What ran then does not: %s.", printable.Line(done.Unused))
			}
			if done.Replaced != "" {
				inv.say("What it was before: cove restore %s", printable.Line(done.Replaced))
			}
		})
	})
	cmd.Flags().BoolVar(&req.Boot, "boot", false, "start anew, though the memory was kept")
	return cmd
}

// runningCommands are those that run in a sprite. One that sleeps is not woken for that,
// and runs none. For want of an answer there are none: it is a remark.
func runningCommands(ctx context.Context, inv *invocation, s *sprites.Sprite) (commands []string) {
	if inv.global.quiet || inv.global.json {
		return nil
	}
	if info, err := s.Client().Get(ctx, s.Name()); err != nil || info.Status != sprites.StatusRunning {
		return nil
	}
	sessions, err := s.Sessions(ctx)
	if err != nil {
		return nil
	}
	for _, session := range sessions {
		commands = append(commands, printable.Line(session.Command))
	}
	return commands
}

// endedText says which commands a restore has ended.
func endedText(commands []string) string {
	const shown = 5
	text := printable.Count(len(commands), "command") + " that ran until now "
	if len(commands) == 1 {
		text += "was ended: "
	} else {
		text += "were ended: "
	}
	text += strings.Join(commands[:min(len(commands), shown)], "; ")
	if more := len(commands) - shown; more > 0 {
		text += fmt.Sprintf("; and %d more", more)
	}
	return text
}

// repeatedRandom warns a person who has made a copy of a memory.
const repeatedRandom = "Its programs repeat random numbers that another copy makes, but for services, which are restarted: make keys and tokens in programs started from now on."

type forkOptions struct {
	req   sprites.ForkRequest
	count int
}

func newForkCommand(inv *invocation) *cobra.Command {
	var o forkOptions
	cmd := &cobra.Command{
		Use:   "fork [NAME] NEW",
		Short: "Make a sprite that is a copy of another",
		Long: `Makes a sprite with the disk that another has now, or had at a checkpoint, and with its
settings. It costs what changes afterwards, not what the disk holds. Where the other is
awake, what runs in it goes on in both, from the same moment: in the new one without its
connections out, which end at once. So does what a checkpoint has kept with --memory. What of
its own checkpoints a sprite keeps, --keep-last and the like, is one of the settings; the
other's checkpoints are not in the new one.

Programs that go on repeat in each copy the random numbers of the others (keys, tokens, UUIDs).
Services are restarted, unless their definition says otherwise (after_restore); others can
watch /proc/sys/kernel/random/boot_id, or "sprite-env generation --wait", which are new.

It has a network, a URL and a machine id of its own; connectors are to be granted to it anew.`,
		Example: `  cove fork paint paint-2
  cove fork paint paint-2 --boot             begins with nothing running but services
  cove fork paint try --count 3              makes try-1, try-2 and try-3
  cove fork paint paint-old --checkpoint v1`,
		ValidArgsFunction: completeOneSprite(inv),
	}
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if len(args) == 1 {
			return nil
		}
		return exactArgs("the new one's name", "the new one's name")(cmd, args)
	}
	cmd.RunE = verb(func(ctx context.Context, args []string) error {
		if o.count < 1 || o.count > sprites.MaxForks {
			return usagef(cmd, "--count %d: at least 1, and at most %d", o.count, sprites.MaxForks)
		}
		to := args[len(args)-1]
		from, err := inv.sprite.named(ctx, cmd, args[:len(args)-1])
		if e, ok := errors.AsType[*fail.Error](err); ok && e.Code == "no_sprite" && checkName(to) == nil {
			return fail.Newf(e.Code, "a copy of "+to+": cove fork "+to+" NEW; one that is called "+to+": cove fork SPRITE "+to, "which sprite? %s would be the new one's name", to)
		}
		if err != nil {
			return err
		}
		names := []string{to}
		if cmd.Flags().Changed("count") {
			names = nil
			for n := range o.count {
				names = append(names, fmt.Sprintf("%s-%d", to, n+1))
			}
		}
		for _, name := range names {
			if err := checkName(name); err != nil {
				return err
			}
		}
		c, err := inv.server.client(ctx)
		if err != nil {
			return err
		}
		o.req.Names = names
		made, err := c.Sprite(from).Forks(ctx, o.req)
		if err != nil {
			return checkpointError(unseen(err, "fork sprite "+from, "cove list"))
		}
		if len(made) != len(names) {
			return fmt.Errorf("the server made %d of %d forks", len(made), len(names))
		}
		show := any(made[0])
		if cmd.Flags().Changed("count") {
			show = sprites.ListResponse{Sprites: made}
		}
		return inv.show(show, func(w io.Writer) {
			if !o.req.Boot && slices.ContainsFunc(made, func(s sprites.Info) bool { return s.Status != sprites.StatusCold }) {
				inv.say("What runs goes on in the copy, too. " + repeatedRandom)
			}
			for _, info := range made {
				if !inv.global.quiet {
					inv.tell(w, "Sprite %s created. Use it with: cove exec -s %s CMD", printable.Line(info.Name), printable.Line(info.Name))
				}
			}
		})
	})
	f := cmd.Flags()
	f.StringVar(&o.req.Checkpoint, "checkpoint", "", "what it was then (default: what it is now)")
	f.BoolVar(&o.req.Boot, "boot", false, "do not go on with what runs in the other")
	f.IntVar(&o.count, "count", 1, fmt.Sprintf("make so many, %d at most: NEW-1, NEW-2, …", sprites.MaxForks))
	f.StringArrayVar(&o.req.Labels, "label", nil, "note this `LABEL` on them (repeatable)")
	return cmd
}

func completeCheckpoint(inv *invocation) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 && cmd.Annotations["several"] == "" {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return completeFrom(inv, cmd, func(ctx context.Context, _ *cove.Client) []string {
			s, err := inv.spriteHandle(ctx)
			if err != nil {
				return nil
			}
			list, err := s.Checkpoints(ctx, true)
			return candidates(list, err, prefix, func(c sprites.Checkpoint) (string, string, bool) {
				return printable.Line(c.ID), c.Comment, c.ID != "Current"
			})
		})
	}
}
