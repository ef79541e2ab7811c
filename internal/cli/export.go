package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync/atomic"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/lib/printable"
	"github.com/cove-dev/cove/sprites"
)

func newExportCommand(inv *invocation) *cobra.Command {
	var o sprites.ExportOptions
	var to string
	cmd := &cobra.Command{
		Use:   "export [NAME][@CHECKPOINT] [> FILE]",
		Short: "Write a sprite as one file, for another machine",
		Long: `Writes a sprite to standard output as one archive: what its disk has beyond the base, now or at a
checkpoint, and its settings. A sprite that is awake is paused for a moment.

  never in the archive      memory, and so /tmp (unless the sprite's image has files there)
  only with --environment   the values of its environment, which may be secrets
  only with --with-base     the sprite's image. Otherwise the importing server needs it; the
                            archive names it

Files are exported with their content, secret or not. Files of the base that the sprite has not
changed are left out; they come from the importing machine.

The archive is a tar compressed by zstd, with the files below disk/ as in a layer of an OCI
image. It depends neither on the machine nor on the version of cove. Only cove import reads it,
and makes a new sprite. To bring a sprite back to an earlier state, use cove restore.`,
		Example: `  cove export paint > paint.tar.zst
  cove export paint@v3 > paint-v3.tar.zst
  cove export paint --with-base -o paint.tar.zst
  cove export paint | ssh HOST cove import`,
		Args:              maxArgs(1),
		ValidArgsFunction: completeExport(inv),
	}
	cmd.RunE = verb(func(ctx context.Context, args []string) error {
		what := strings.Join(args, "")
		name, checkpoint, at := strings.Cut(what, "@")
		if at && checkpoint == "" {
			return usagef(cmd, "%q names no checkpoint after the @", what)
		}
		if name != "" {
			args = []string{name}
		} else {
			args = nil
		}
		name, err := inv.sprite.named(ctx, cmd, args)
		if err != nil {
			return err
		}
		if to == "" && isTerminal(inv.Out) {
			if at {
				name += "@" + checkpoint
			}
			return hinted(usagef(cmd, "refusing to write an archive to a terminal"), "cove export "+printable.Word(name)+" > FILE")
		}
		if to == "" && inv.global.json {
			return usagef(cmd, "--json needs -o FILE: without it, the archive is printed")
		}
		o.Checkpoint = checkpoint
		c, err := inv.server.client(ctx)
		if err != nil {
			return err
		}
		return runExport(ctx, inv, c, name, o, to)
	})
	cmd.Flags().BoolVar(&o.Environment, "environment", false, "with the values of its environment")
	cmd.Flags().BoolVar(&o.WithBase, "with-base", false, "with the image that its disk is based on, for a server that does not have it")
	cmd.Flags().StringVarP(&to, "output", "o", "", "write it to `FILE`, which appears when it is complete")
	return cmd
}

// exported is the JSON of `cove export -o FILE`.
type exported struct {
	Sprite     string `json:"sprite"`
	Checkpoint string `json:"checkpoint,omitempty"`
	File       string `json:"file"`
	Bytes      int64  `json:"bytes"`
	Base       string `json:"base"`            // host, or the digest of the image that the disk is over
	Image      string `json:"image,omitempty"` // that image, as it was named
	WithBase   bool   `json:"with_base"`       // the image is in the archive
}

func runExport(ctx context.Context, inv *invocation, c *cove.Client, name string, o sprites.ExportOptions, to string) error {
	done := exported{Sprite: name, Checkpoint: o.Checkpoint, File: to, WithBase: o.WithBase}
	err := toFile(inv.Out, to, "cove export "+printable.Word(name)+" > "+printable.Word(to), func(out io.Writer) (err error) {
		done.Bytes, err = copyExport(ctx, inv, c.Sprite(name), o, out)
		return err
	})
	if err != nil {
		return err
	}
	if info, err := c.Get(ctx, name); err == nil { // removed meanwhile, it is in the archive all the same
		if info.Cove != nil {
			done.Base = info.Cove.Base
		}
		if info.Config != nil {
			done.Image = info.Config.Image
		}
	}
	if inv.global.json {
		return inv.show(done, nil)
	}
	inv.say("Sprite %s exported: %s%s. Make a sprite of it, here or elsewhere: cove import [NAME] < %s", name, printable.Bytes(done.Bytes), done.over(), cmp.Or(printable.Word(to), "FILE"))
	return nil
}

// over says which image the disk is over, if any.
func (e exported) over() string {
	image := printable.Line(cmp.Or(e.Image, e.Base))
	switch {
	case e.Base == "" || e.Base == hostBase:
		return ""
	case e.WithBase:
		return ", with its image " + image
	}
	return ", based on image " + image + ", which is not in it"
}

// copyExport writes the archive of a sprite, and returns how long it is.
func copyExport(ctx context.Context, inv *invocation, s *sprites.Sprite, o sprites.ExportOptions, out io.Writer) (int64, error) {
	p := inv.newProgress("exporting "+s.Name(), 0)
	body, err := s.Export(ctx, o)
	if err == nil {
		_, err = io.CopyBuffer(struct{ io.Writer }{countingWriter{out, p}}, struct{ io.Reader }{body}, make([]byte, copyBuffer))
		_ = body.Close()
	}
	n := p.count()
	p.Close()
	if lostOutput(inv.Out) == nil && brokeOff(err) {
		return n, fail.New("connection_lost", "the archive is cut short, and can't be imported: the server, or the connection to it, went away", "try again; the server's log says why, if it was not the connection")
	}
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		return n, fail.Wrap("no_space", fmt.Errorf("write the archive: %w", err), "free some space, and try again; the written archive is not complete, and can't be imported")
	}
	if err != nil {
		return n, checkpointError(err)
	}
	return n, nil
}

// readWhole notes whether all of a reader was read.
type readWhole struct {
	io.Reader
	whole atomic.Bool
}

func (r *readWhole) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	if err == io.EOF {
		r.whole.Store(true)
	}
	return n, err
}

// importError is the error of an import. An import may have made a sprite only if it sent the
// whole archive.
func importError(err error, whole bool, name string) error {
	again := "import it again: cove import < FILE"
	if name != "" {
		again = "import it again: cove import " + name + " < FILE"
	}
	switch {
	case whole:
		return unseen(err, "import a sprite", "cove list")
	case errors.Is(err, context.Canceled):
		return fail.New("interrupted", "import a sprite: interrupted before the whole archive was sent; no sprite was made, and the server deletes what had come", again)
	case brokeOff(err):
		return fail.New("connection_lost", "import a sprite: the server went away before the whole archive was sent; no sprite was made", again)
	}
	return err
}

// completeExport completes a sprite's name, and after an @ its checkpoints.
func completeExport(inv *invocation) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
		name, at, ok := strings.Cut(prefix, "@")
		if ok && name == "" {
			name, _ = inv.sprite.name(cmd.Context()) // an error leaves it empty
		}
		if !ok || len(args) > 0 || checkName(name) != nil {
			return completeOneSprite(inv)(cmd, args, prefix)
		}
		typed, _, _ := strings.Cut(prefix, "@")
		return completeFrom(inv, cmd, func(ctx context.Context, c *cove.Client) []string {
			list, err := c.Sprite(name).Checkpoints(ctx, true)
			if err != nil {
				return nil
			}
			var all []string
			for _, c := range list[:min(len(list), maxCompletions)] {
				if c.ID != "Current" && strings.HasPrefix(c.ID, at) {
					all = append(all, typed+"@"+printable.Line(c.ID)+"\t"+printable.Line(c.Comment))
				}
			}
			return all
		})
	}
}

func newImportCommand(inv *invocation) *cobra.Command {
	var o sprites.ImportOptions
	var size string
	cmd := &cobra.Command{
		Use:   "import [NAME] < FILE",
		Short: "Make a sprite from an archive of cove export",
		Long: `Makes a sprite from an archive on standard input, under the name that it had or another one. The
sprite exists only once the whole archive has come and was found sound. import refuses what is
not an archive of cove export, or has forbidden content.

The sprite goes on over this machine's base, and import says so if it was made over another one.
Or it goes on over its image. If the image is neither here nor in the archive, --pull gets it
from the registry that the archive names, by the archive's digest.

import reports each of these, and does not take them over:
  - labels, which may grant the sprite connectors
  - folders of the other machine
  - rules of its network policy that open addresses

If the archive is from somebody else, the programs that start when the sprite boots are theirs.`,
		Example: `  cove import < paint.tar.zst
  cove import paint-2 --label copied < paint.tar.zst
  cove import --max-size 20G < paint.tar.zst
  cove import --pull < paint.tar.zst`,
		Args: cobra.MaximumNArgs(1),
	}
	cmd.RunE = verb(func(ctx context.Context, args []string) error {
		if len(args) > 0 {
			if err := checkName(args[0]); err != nil {
				return err
			}
			o.Name = args[0]
		}
		if size != "" {
			n, err := ParseSize(size)
			if err != nil || n <= 0 {
				return usagef(cmd, "--max-size %q is not a size such as 20G", size)
			}
			o.MaxSize = n
		}
		if isTerminal(inv.In) {
			return usagef(cmd, "an archive is read from the standard input: cove import < FILE")
		}
		c, err := inv.server.client(ctx)
		if err != nil {
			return err
		}
		p := inv.newProgress("importing", 0)
		archive := &readWhole{Reader: inv.In}
		done, err := c.Import(ctx, countingReader{archive, p}, o)
		p.Close()
		if err != nil {
			return importError(err, archive.whole.Load(), o.Name)
		}
		return inv.show(done, func(w io.Writer) {
			name := printable.Line(done.Sprite.Name)
			if !inv.global.quiet {
				inv.tell(w, "Sprite %s imported. Use it with: cove exec -s %s CMD", name, name)
			}
			for _, note := range done.Notes {
				inv.say("Note: %s", printable.Line(note))
			}
		})
	})
	cmd.Flags().StringArrayVar(&o.Labels, "label", nil, "note this `LABEL` on it (repeatable)")
	cmd.Flags().BoolVar(&o.Pull, "pull", false, "if the image that it is based on is not here, get it from the registry that the archive names")
	cmd.Flags().StringVar(&size, "max-size", "", "refuse an archive that is larger than this when unpacked, such as 20G (default: most of what is free on the server's disk)")
	return cmd
}
