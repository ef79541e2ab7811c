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
		Long: `A checkpoint is the state of a sprite's disk at one moment. It takes as much disk space as
changes afterwards, not as much as the disk holds.

If the sprite is awake, it stays so: its programs are paused for a moment, and go on with their
memory and connections. With --memory, the checkpoint keeps the programs, too, and going back to
it brings them back.

/tmp and /dev/shm are in the sprite's memory: without --memory, a checkpoint has nothing of them.

cove restore goes back to a checkpoint, and cove fork makes another sprite of one.`,
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
		Long: `Makes a checkpoint of a sprite's disk, and prints its id: v1, v2 and so on. With --memory, it
also keeps the running programs, which takes as much disk as the sprite has memory.

Programs are paused while cove copies two kinds of files:
  - files that are open for writing, or are still open since they were written
  - deleted files that are still open, with their holes

The more and the larger these files are, the longer the pause. Each restore and each fork copies
them again. So --memory leaves the memory out if the deleted files are more than 64 MiB, or the
others more than 256 MiB. cove lists these files; --memory=always keeps the memory anyway.

If the disk has no room for the copies, no checkpoint is made, and programs go on. The same holds
if the deleted files are more than 1 GiB, or more than the sprite's free memory, which holds
their copies.`,
		Example: `  cove checkpoint create -s paint
  cove checkpoint create -s paint --comment 'tests pass' --label green
  cove checkpoint create -s paint --memory
  cove checkpoint create -s paint --memory=always    however much is open`,
	}
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if len(args) == 1 && cmd.Flags().Changed("memory") && slices.Contains(keepChoices, args[0]) {
			return hinted(usagef(cmd, "%q is not read as the value of --memory, which must follow a =", args[0]), "cove checkpoint create --memory="+args[0])
		}
		return exactArgs()(cmd, args)
	}
	cmd.RunE = verb(func(ctx context.Context, _ []string) error {
		if !slices.Contains(keepChoices, memory) {
			return usagef(cmd, "--memory %q is not one of never, auto and always", memory)
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
	f.StringVar(&req.Comment, "comment", "", "a comment on it")
	f.StringVar(&memory, "memory", string(sprites.KeepNever), "keep running programs, too: auto (--memory alone; not if too much is open), or always")
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
		inv.say("Programs were paused for %.0f ms.", c.PauseMilliseconds)
	}
	if c.CopiedBytes >= copiedNoted {
		inv.say("%s of files that are open for writing were copied meanwhile.", printable.Bytes(c.CopiedBytes))
	}
	if c.MemoryNotKept != "" {
		inv.say("The checkpoint has no memory: %s.", printable.Line(c.MemoryNotKept))
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
		inv.say("Keep the memory all the same: cove checkpoint create --memory=always")
	}
}

func newCheckpointListCommand(inv *invocation) *cobra.Command {
	var all bool
	cmd := &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List a sprite's checkpoints",
		Long: `Lists a sprite's checkpoints, the newest first, each with the one that it grew from. If you go
back to an old checkpoint, the next ones form a branch, which is drawn beside the names. Current
is the present state of the sprite.

  SIZE   disk space of the checkpoint, without its base
  OWN    the part of SIZE that no other checkpoint and no sprite shares
  ADDED  the part of SIZE that was written since the checkpoint that it grew from

Right after a checkpoint was made, its sizes are not known yet. Without --all, automatic
checkpoints (such as those that restore makes) are left out.`,
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
	cmd.Flags().BoolVar(&all, "all", false, "also automatic ones")
	return cmd
}

func newCheckpointShowCommand(inv *invocation) *cobra.Command {
	return &cobra.Command{
		Use:   "show ID",
		Short: "Describe a checkpoint",
		Long: `Describes a checkpoint: its time, its parent, the length of the pause, and the disk and memory
that it takes.`,
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
	return fmt.Sprintf("%s (%s of it not shared, %s new since the one before)", printable.Bytes(u.SizeBytes), printable.Bytes(u.OwnBytes), printable.Bytes(u.AddedBytes))
}

func newCheckpointRmCommand(inv *invocation) *cobra.Command {
	return &cobra.Command{
		Use:   "rm ID...",
		Short: "Delete checkpoints",
		Long: `Deletes checkpoints. Data that they share with other checkpoints, or with sprites that were made
of them, stays. The checkpoint that the sprite goes on from can't be deleted.`,
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
		Long: `Brings a sprite's disk back to a checkpoint. The present disk becomes a checkpoint first, so that
nothing is lost. The sprite's programs end. If the checkpoint was made with --memory, the
programs of that time go on. Otherwise the sprite boots, if it is awake, and its services start.

A memory fits only the server's programs and the kind of processor that it was made with. If it
does not fit, the sprite boots, and the command says why.`,
		Example: `  cove restore v3 -s paint
  cove restore v3 -s paint --boot            boots, though the memory was kept
  cove checkpoint list -s paint --all        lists the state before the restore, too`,
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
			inv.say("The sprite is back at %s.", printable.Line(done.Checkpoint))
			if len(ran) > 0 {
				inv.say("%s", endedText(ran))
			}
			switch {
			case done.Memory:
				inv.say("The programs of that time go on. " + repeatedRandom)
			case done.Unused != "":
				inv.say("The programs of that time do not go on: %s.", printable.Line(done.Unused))
			}
			if done.Replaced != "" {
				inv.say("Undo this: cove restore %s", printable.Line(done.Replaced))
			}
		})
	})
	cmd.Flags().BoolVar(&req.Boot, "boot", false, "boot the sprite, also if the checkpoint has its memory")
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
	text := printable.Count(len(commands), "command") + " that ran until the restore "
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
const repeatedRandom = "Programs that go on repeat the other copy's random numbers (services are restarted). Make keys and tokens in programs started from now on."

type forkOptions struct {
	req   sprites.ForkRequest
	count int
}

func newForkCommand(inv *invocation) *cobra.Command {
	var o forkOptions
	cmd := &cobra.Command{
		Use:   "fork [NAME] NEW",
		Short: "Make a sprite that is a copy of another",
		Long: `Makes a sprite with the disk that another has now, or had at a checkpoint, and with its settings.
The copy takes as much disk space as changes afterwards, not as much as the disk holds. The
settings include the rules for checkpoints (--keep-last and the like). The checkpoints of the
other sprite are not in the copy.

If the other sprite is awake, its programs go on in both, from the same moment. A job's agent goes
on only in the original. In the copy, connections out end at once. Programs that a checkpoint has
kept (--memory) go on in the same way.

Programs that go on use the same random numbers in each copy (keys, tokens, UUIDs). So services
are restarted, unless their --after-restore (cove service put) is none. Other programs can watch
/proc/sys/kernel/random/boot_id, or "sprite-env generation --wait", which are new.

The copy has a network, a URL and a machine id of its own. Grant connectors to it anew.`,
		Example: `  cove fork paint paint-2
  cove fork paint paint-2 --boot             only services run in it
  cove fork paint try --count 3              makes try-1, try-2 and try-3
  cove fork paint paint-old --checkpoint v1`,
		ValidArgsFunction: completeOneSprite(inv),
	}
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if len(args) == 1 {
			return nil
		}
		return exactArgs("the new sprite's name", "the new sprite's name")(cmd, args)
	}
	cmd.RunE = verb(func(ctx context.Context, args []string) error {
		if o.count < 1 || o.count > sprites.MaxForks {
			return usagef(cmd, "--count %d: at least 1, and at most %d", o.count, sprites.MaxForks)
		}
		to := args[len(args)-1]
		from, err := inv.sprite.named(ctx, cmd, args[:len(args)-1])
		if e, ok := errors.AsType[*fail.Error](err); ok && e.Code == "no_sprite" && checkName(to) == nil {
			return fail.Newf(e.Code, "to copy "+to+": cove fork "+to+" NEW; to make a copy called "+to+": cove fork SPRITE "+to, "which sprite? %s would be the new sprite's name", to)
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
				inv.say("Running programs go on in the copy, too. " + repeatedRandom)
			}
			for _, info := range made {
				if !inv.global.quiet {
					inv.tell(w, "Sprite %s created. Use it with: cove exec -s %s CMD", printable.Line(info.Name), printable.Line(info.Name))
				}
			}
		})
	})
	f := cmd.Flags()
	f.StringVar(&o.req.Checkpoint, "checkpoint", "", "copy the sprite as it was then (default: as it is now)")
	f.BoolVar(&o.req.Boot, "boot", false, "boot the copy: running programs do not go on in it")
	f.IntVar(&o.count, "count", 1, fmt.Sprintf("how many to make, %d at most: NEW-1, NEW-2, …", sprites.MaxForks))
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
