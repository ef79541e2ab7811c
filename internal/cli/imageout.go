package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/lib/atomicfile"
	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/lib/printable"
)

func newImageSaveCommand(inv *invocation) *cobra.Command {
	var to string
	cmd := &cobra.Command{
		Use:   "save NAME... [> FILE]",
		Short: "Write images as one file",
		Long: `Writes images as one archive to standard output. docker load, podman load, skopeo and cove image
import read it. It is also the tar of an OCI layout. In the archive, an image has the name that
you give here.`,
		Example: `  cove image save tools:2 > tools.tar
  cove image save tools:2 | docker load
  cove image save tools:2 debian:12 -o images.tar`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usagef(cmd, "the image's name is missing")
			}
			return nil
		},
		Annotations:       map[string]string{"several": "yes"},
		ValidArgsFunction: completeImage(inv),
	}
	cmd.RunE = verb(func(ctx context.Context, args []string) error {
		if to == "" && isTerminal(inv.Out) {
			return hinted(usagef(cmd, "refusing to write an archive to a terminal"), "cove image save "+printable.Word(args[0])+" > FILE")
		}
		if to == "" && inv.global.json {
			return usagef(cmd, "--json is not possible here: the archive is printed")
		}
		all, err := images(ctx, inv)
		if err != nil {
			return err
		}
		return saveImages(ctx, inv, all, args, to)
	})
	cmd.Flags().StringVarP(&to, "output", "o", "", "write it to `FILE`, which appears when it is complete")
	return cmd
}

// saveImages writes an archive of images to a file, or to the standard output.
func saveImages(ctx context.Context, inv *invocation, all cove.Images, names []string, to string) error {
	err := toFile(inv.Out, to, "cove image save "+printable.Word(names[0])+" > "+printable.Word(to), func(out io.Writer) error {
		return copyImages(ctx, inv, all, names, out)
	})
	if err != nil || to == "" {
		return err
	}
	st, err := os.Stat(to)
	if err != nil {
		return err
	}
	return inv.show(savedImages{to, names, st.Size()}, func(io.Writer) {
		inv.say("Saved as %s. Load it: docker load < %s, or: cove image import %s", printable.Line(to), printable.Word(to), printable.Word(to))
	})
}

// savedImages is the JSON of images that were saved.
type savedImages struct {
	File   string   `json:"file"`
	Images []string `json:"images"`
	Bytes  int64    `json:"bytes"`
}

// toFile calls write with the file to, which appears when it is whole. If to is empty, write
// gets out. If to is not a regular file, the error has hint: the command that can write there.
func toFile(out io.Writer, to, hint string, write func(io.Writer) error) error {
	if to == "" {
		return write(out)
	}
	if st, err := os.Stat(to); err == nil && !st.Mode().IsRegular() { // such as a pipe: it stays what it is
		return fail.Newf("no_file", hint, "%s is not a file", to)
	}
	f, err := atomicfile.Create(to)
	if err != nil {
		return fail.Wrap("no_file", err, "name a file in a folder that exists")
	}
	defer f.Discard()
	if err := write(f); err != nil {
		return err
	}
	return f.Commit(0o600) // as docker save: what is in it may be a secret
}

func copyImages(ctx context.Context, inv *invocation, all cove.Images, names []string, out io.Writer) error {
	p := inv.newProgress("saving "+strings.Join(names, ", "), 0)
	defer p.Close()
	body, err := all.Save(ctx, names...)
	if err != nil {
		return err
	}
	defer body.Close()
	_, err = io.CopyBuffer(struct{ io.Writer }{countingWriter{out, p}}, struct{ io.Reader }{body}, make([]byte, copyBuffer))
	switch {
	case err == nil:
		return nil
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return fail.Wrap("no_space", fmt.Errorf("write the archive: %w", err), "free some space, and try again")
	case brokeOff(err) && lostOutput(inv.Out) == nil:
		return fail.New("connection_lost", "the archive is cut short: the server, or the connection to it, went away", "try again; the server's log says why, if it was not the connection")
	}
	return err
}

func newImagePushCommand(inv *invocation) *cobra.Command {
	return &cobra.Command{
		Use:   "push NAME [TO]",
		Short: "Send an image to its registry",
		Long: `Makes the server send an image to the registry in its name, or under the name TO. Layers that the
registry has are not sent again. The server logs in as the Docker of its account does: by
~/.docker/config.json and the helpers that it names.`,
		Example: `  cove image push registry.example.org/team/tools:2
  cove image push tools:2 registry.example.org/team/tools:2`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 || len(args) > 2 {
				return usagef(cmd, "name an image, and its name in the registry if that is different")
			}
			return nil
		},
		ValidArgsFunction: func(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
			if len(args) > 1 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return imageNames(inv)(cmd, args, prefix)
		},
		RunE: verb(func(ctx context.Context, args []string) error {
			all, err := images(ctx, inv)
			if err != nil {
				return err
			}
			to := args[len(args)-1]
			push := cove.ImagePush{Image: args[0]}
			if len(args) == 2 {
				push.To = to
			}
			p := inv.newProgress("pushing "+to, 0)
			image, err := all.Push(ctx, push, func(e cove.ImageEvent) { p.say(imageNote(to, e)) })
			p.Close()
			if err != nil {
				return err
			}
			return inv.show(image, func(io.Writer) { inv.say("%s is pushed: %s.", printable.Line(to), printable.Line(image.Digest)) })
		}),
	}
}

func newImageTagCommand(inv *invocation) *cobra.Command {
	return &cobra.Command{
		Use:   "tag NAME NEW",
		Short: "Give an image one more name",
		Long: `Gives an image one more name. If another image has that name, the other image loses it; sprites
keep the image that they have. cove image rm removes a name.`,
		Example: `  cove image tag tools:2 tools:latest
  cove image tag 5f70bf18a086 registry.example.org/team/tools:2`,
		Args:              exactArgs("the image's name", "its new name"),
		ValidArgsFunction: completeImage(inv),
		RunE: verb(func(ctx context.Context, args []string) error {
			all, err := images(ctx, inv)
			if err != nil {
				return err
			}
			image, err := all.Tag(ctx, args[0], args[1])
			if err != nil {
				return err
			}
			return inv.show(image, func(io.Writer) { inv.say("%s is %s now.", printable.Line(args[1]), printable.Line(image.Digest)) })
		}),
	}
}

func newImageCommitCommand(inv *invocation) *cobra.Command {
	return &cobra.Command{
		Use:   "commit SPRITE[@CHECKPOINT] NAME",
		Short: "Make an image from a sprite",
		Long: `Makes an image from a sprite's disk, now or at a checkpoint: the sprite's own image, and one more
layer. A sprite that is awake is paused for a moment. Environment, user and command are those of
its image. Memory, and so /tmp, is not in the new image.

Only a sprite that has an image (--image) can be committed. Any other uses the tools of the
server's machine, which are not on its disk. The image has all files of the disk, secret ones too.`,
		Example: `  cove image commit paint tools:2
  cove image commit paint@v3 registry.example.org/team/tools:2`,
		Args:              exactArgs("the sprite's name", "the image's name"),
		ValidArgsFunction: completeExport(inv),
		RunE: verb(func(ctx context.Context, args []string) error {
			sprite, checkpoint, at := strings.Cut(args[0], "@")
			if at && checkpoint == "" {
				return fail.Newf("usage", "cove image commit "+printable.Word(sprite)+" "+printable.Word(args[1]), "%q names no checkpoint after the @", args[0])
			}
			if err := checkName(sprite); err != nil {
				return err
			}
			all, err := images(ctx, inv)
			if err != nil {
				return err
			}
			p := inv.newProgress("committing "+sprite, 0)
			image, err := all.Commit(ctx, cove.ImageCommit{Sprite: sprite, Checkpoint: checkpoint, Name: args[1]}, func(e cove.ImageEvent) { p.say(imageNote(args[0], e)) })
			p.Close()
			if err != nil {
				return checkpointError(err)
			}
			return showImage(inv, image, args[1], "is made")
		}),
	}
}
