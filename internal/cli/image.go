package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/lib/printable"
	"github.com/cove-dev/cove/sprites"
)

func newImageCommand(inv *invocation) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "image",
		Short: "Keep images that sprites start from",
		Long: `A sprite's disk can start from an image, instead of the tools of the server's machine. It may be
any OCI image, as registries and Docker have them. The server keeps each layer once, for all
sprites over it. It runs without Docker.

A name such as debian:12 is resolved once, when the image is pulled. A sprite keeps the image
that it was made from, whatever the name means later.`,
		Example: `  cove image pull debian:12
  cove create paint --image debian:12
  docker save mine:1 | cove image import -
  cove image list`,
		Args: subcommandOnly,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newImagePullCommand(inv), newImageImportCommand(inv), newImageBuildCommand(inv), newImageListCommand(inv), newImageInfoCommand(inv),
		newImageCommitCommand(inv), newImageTagCommand(inv), newImagePushCommand(inv), newImageSaveCommand(inv),
		asksFirst(inv, newImageRmCommand(inv), eachLost("the image %s, unless a sprite uses it: to have it again, pull or import it")),
		newImagePruneCommand(inv))
	return cmd
}

// images are the images of the server in use.
func images(ctx context.Context, inv *invocation) (cove.Images, error) {
	c, err := inv.server.client(ctx)
	return cove.Images{Client: c}, err
}

func newImagePullCommand(inv *invocation) *cobra.Command {
	return &cobra.Command{
		Use:   "pull REFERENCE",
		Short: "Get an image from its registry",
		Long: `Makes the server get an image from its registry. If the server has the image, only its name is
resolved again. Existing sprites keep the image that they have.

The server logs in as the Docker of its account does: by ~/.docker/config.json and the helpers
that it names. If only your machine can reach an image, use cove image import.`,
		Example: `  cove image pull debian:12
  cove image pull registry.example.org/team/tools@sha256:DIGEST`,
		Args:              exactArgs("the image's reference"),
		ValidArgsFunction: completeImage(inv),
		RunE: verb(func(ctx context.Context, args []string) error {
			all, err := images(ctx, inv)
			if err != nil {
				return err
			}
			image, err := pullImage(ctx, inv, all, args[0])
			if err != nil {
				return err
			}
			return showImage(inv, image, args[0], "is here")
		}),
	}
}

// pullImage pulls an image, and shows how far that is.
func pullImage(ctx context.Context, inv *invocation, all cove.Images, reference string) (cove.Image, error) {
	p := inv.newProgress("pulling "+reference, 0)
	defer p.Close()
	return all.Pull(ctx, reference, func(e cove.ImageEvent) { p.say(imageNote(reference, e)) })
}

// imageNote is a line on how far a pull or an import is.
func imageNote(what string, e cove.ImageEvent) string {
	note := printable.Line(what) + ": " + printable.Word(e.Phase)
	if e.Layers > 0 {
		note += fmt.Sprintf(" layer %d of %d", min(e.LayersDone+1, e.Layers), e.Layers)
	}
	if e.Bytes > 0 {
		note += ", " + printable.Bytes(e.Bytes)
		if e.Total > 0 {
			note += fmt.Sprintf(" of %s (%d%%)", printable.Bytes(e.Total), min(100, e.Bytes*100/e.Total))
		}
	}
	return note
}

// showImage prints which image has come, by the name that was asked for, if any.
func showImage(inv *invocation, image cove.Image, name, how string) error {
	name = cmp.Or(printable.Line(name), imageName(image))
	return inv.show(image, func(w io.Writer) {
		if inv.global.quiet {
			return
		}
		inv.tell(w, "%s %s: %s, %s on the disk. Start from it: cove create NAME --image %s", name, how,
			printable.Line(image.Digest), printable.Bytes(image.DiskBytes), printable.Word(name))
	})
}

// imageName is what an image is called.
func imageName(image cove.Image) string {
	if len(image.Names) > 0 {
		return printable.Line(image.Names[0])
	}
	return shortDigest(image.Digest)
}

// shortDigest are as many digits of a digest as a server takes for it.
func shortDigest(digest string) string {
	digits := strings.TrimPrefix(printable.Line(digest), "sha256:")
	return digits[:min(len(digits), 12)]
}

func newImageImportCommand(inv *invocation) *cobra.Command {
	var name string
	cmd := &cobra.Command{
		Use:        "import SOURCE",
		SuggestFor: []string{"load"},
		Short:      "Send the server images from a file",
		Long: `Sends the server an image that is here: an archive of docker save, an archive of an OCI
layout, or the folder of one. SOURCE is a file, - for the standard input, oci:DIR,
docker-archive:FILE or oci-archive:FILE. The archive may be compressed by gzip or zstd.

An archive of several images brings all of them, by their names; with --name NAME only that one.

A tar of a root file system, such as mmdebstrap and docker export write, becomes an image of one
layer. It has no name unless you give it one.`,
		Example: `  docker save mine:1 | cove image import -
  cove image import tools.tar --name tools:2
  cove image import oci:build/image --name mine:1
  cove image import rootfs.tar --name debian:local`,
		Args: exactArgs("a file, oci:DIR, or - for the standard input"),
	}
	cmd.RunE = verb(func(ctx context.Context, args []string) error {
		source, err := openImage(inv, args[0])
		if err != nil {
			return err
		}
		defer source.Close()
		all, err := images(ctx, inv)
		if err != nil {
			return err
		}
		if name != "" {
			image, err := importImage(ctx, inv, all, source, name)
			if err != nil {
				return err
			}
			return showImage(inv, image, name, "is imported")
		}
		several, err := importAll(ctx, inv, all, source)
		if err != nil {
			return err
		}
		if len(several) == 1 {
			return showImage(inv, several[0], "", "is imported")
		}
		return inv.show(importedImages{several}, func(io.Writer) {
			for _, image := range several {
				inv.say("%s is imported: %s.", imageName(image), printable.Line(image.Digest))
			}
		})
	})
	cmd.Flags().StringVar(&name, "name", "", "call it `NAME`, such as tools:2; from an archive of several images, take the one of that name (default: all, with the archive's names)")
	return cmd
}

// importedImages is the JSON of an import of several images.
type importedImages struct {
	Images []cove.Image `json:"images"`
}

// importImage sends an image, and shows how far that is.
func importImage(ctx context.Context, inv *invocation, all cove.Images, source *imageSource, name string) (image cove.Image, err error) {
	err = sendImage(inv, source, func(archive io.Reader, each func(cove.ImageEvent)) (err error) {
		image, err = all.Import(ctx, archive, name, each)
		return err
	})
	return image, err
}

// importAll sends all images of an archive, and shows how far that is.
func importAll(ctx context.Context, inv *invocation, all cove.Images, source *imageSource) (images []cove.Image, err error) {
	err = sendImage(inv, source, func(archive io.Reader, each func(cove.ImageEvent)) (err error) {
		images, err = all.ImportAll(ctx, archive, each)
		return err
	})
	return images, err
}

func sendImage(inv *invocation, source *imageSource, send func(archive io.Reader, each func(cove.ImageEvent)) error) error {
	p := inv.newProgress("sending "+source.what, source.size)
	defer p.Close()
	err := send(countingReader{source, p}, func(e cove.ImageEvent) {
		if e.Phase == cove.ImageExtracting {
			p.say(imageNote(source.what, e))
		}
	})
	return errors.Join(err, source.failed())
}

func newImageListCommand(inv *invocation) *cobra.Command {
	var steps bool
	cmd := &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List the images",
		Long: `Lists the images that the server has: their names, their disk space (received and extracted), and
how many sprites use them. A layer that several images have counts for each. The last line has
the disk space of all images together: each layer once, and the steps of builds too.`,
		Example: `  cove image list
  cove image list --all
  cove image list --json`,
		Args: exactArgs(),
		RunE: verb(func(ctx context.Context, _ []string) error {
			all, err := images(ctx, inv)
			if err != nil {
				return err
			}
			list, err := all.ListAll(ctx, steps)
			if err != nil {
				return err
			}
			return inv.show(list, func(w io.Writer) { listImages(w, list, time.Now()) })
		}),
	}
	cmd.Flags().BoolVarP(&steps, "all", "a", false, "also the steps of builds, which have no name, and builds without -t")
	return cmd
}

func listImages(w io.Writer, list cove.ImageList, now time.Time) {
	rows := [][]string{{"NAME", "DIGEST", "LAYERS", "DISK", "SPRITES", "PULLED"}}
	for _, i := range list.Images {
		names := i.Names
		if len(names) == 0 {
			names = []string{"-"}
		}
		for _, name := range names {
			rows = append(rows, []string{printable.Line(name), shortDigest(i.Digest), strconv.Itoa(len(i.Layers)), printable.Bytes(i.Bytes + i.DiskBytes), strconv.Itoa(len(i.UsedBy)), ago(i.PulledAt, now)})
		}
	}
	table(w, rows)
	if list.DiskBytes > 0 {
		fmt.Fprintf(w, "all images take %s on the disk\n", printable.Bytes(list.DiskBytes))
	}
}

func newImageInfoCommand(inv *invocation) *cobra.Command {
	return &cobra.Command{
		Use:        "info NAME",
		Aliases:    []string{"show"},
		SuggestFor: []string{"history"},
		Short:      "Describe an image",
		Long: `Describes an image: what its programs run as, its layers, and who uses it. NAME is one of its
names, its digest, or at least the first 12 digits of that.`,
		Example:           `  cove image info debian:12`,
		Args:              exactArgs("the image's name"),
		ValidArgsFunction: completeImage(inv),
		RunE: verb(func(ctx context.Context, args []string) error {
			all, err := images(ctx, inv)
			if err != nil {
				return err
			}
			if args[0] == "" {
				return fail.New("bad_reference", "the image's name is empty", "see which there are: cove image list")
			}
			image, err := all.Get(ctx, args[0])
			if err != nil {
				return err
			}
			return inv.show(image, func(w io.Writer) { describeImage(w, image) })
		}),
	}
}

func describeImage(w io.Writer, i cove.Image) {
	c := i.Config
	platform := strings.Trim(strings.Join([]string{c.OS, c.Architecture, c.Variant}, "/"), "/")
	users := i.UsedBy
	if i.Pool {
		users = append(slices.Clone(users), "the server's pool")
	}
	var rows [][]string
	for _, row := range [][2]string{
		{"digest", i.Digest}, {"names", strings.Join(i.Names, ", ")}, {"platform", platform}, {"user", c.User}, {"workdir", c.Workdir},
		{"shell", strings.Join(c.Shell, " ")}, {"entrypoint", strings.Join(c.Entrypoint, " ")}, {"command", strings.Join(c.Cmd, " ")},
		{"ports", strings.Join(c.Ports, ", ")}, {"environment", strings.Join(c.Env, "\n")}, {"used by", strings.Join(users, ", ")},
		{"received", printable.Bytes(i.Bytes)}, {"disk", printable.Bytes(i.DiskBytes)},
	} {
		for n, line := range strings.Split(row[1], "\n") {
			if line != "" && n == 0 {
				rows = append(rows, []string{row[0], printable.Line(line)})
			} else if line != "" {
				rows = append(rows, []string{"", printable.Line(line)})
			}
		}
	}
	table(w, rows)
	rows = [][]string{{"LAYER", "RECEIVED", "DISK", "FILES", "LEFT OUT"}}
	for _, l := range i.Layers {
		rows = append(rows, []string{shortDigest(l.Digest), printable.Bytes(l.Bytes), printable.Bytes(l.DiskBytes), strconv.FormatInt(l.Files, 10), strconv.FormatInt(l.LeftOut, 10)})
	}
	fmt.Fprintln(w)
	table(w, rows)
}

func newImageRmCommand(inv *invocation) *cobra.Command {
	return &cobra.Command{
		Use:     "rm NAME...",
		Aliases: []string{"remove"},
		Short:   "Remove images",
		Long: `Removes images. If an image has other names, only the given name is removed. An image that a
sprite uses stays, because the sprite's disk is over it. An image stays, too, while the server's
pool has sandboxes of it (cove server status).`,
		Example: `  cove image rm debian:11 tools:1`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usagef(cmd, "the image's name is missing")
			}
			return nil
		},
		Annotations:       map[string]string{"several": "yes"},
		ValidArgsFunction: completeImage(inv),
		RunE: verb(func(ctx context.Context, args []string) error {
			all, err := images(ctx, inv)
			if err != nil {
				return err
			}
			return removeEach(ctx, inv, args, func(name string) error {
				p := inv.newProgress("removing", 0)
				p.say("removing " + printable.Line(name))
				err := all.Remove(ctx, name)
				p.Close()
				if errors.Is(err, sprites.ErrNotFound) {
					return hinted(err, "see which there are: cove image list")
				}
				return unseen(err, "remove image "+name, "cove image list")
			})
		}),
	}
}

func newImagePruneCommand(inv *invocation) *cobra.Command {
	var which cove.ImagePruning
	cmd := &cobra.Command{
		Use:   "prune",
		Short: "Remove images without a name, and the caches of builds",
		Long: `Removes the images without a name that no sprite uses, such as steps of builds, and the caches of
RUN --mount=type=cache. The next build does all steps again. With --all, it also removes images
with a name that no sprite uses. The server's default image stays, and so do images of which the
server keeps sandboxes ready (cove serve --pool).`,
		Example: `  cove image prune --dry-run
  cove image prune --all`,
		Args: exactArgs(),
		RunE: verb(func(ctx context.Context, _ []string) error {
			all, err := images(ctx, inv)
			if err != nil {
				return err
			}
			p := inv.newProgress("removing", 0)
			p.say("removing images that nobody uses")
			done, err := all.Prune(ctx, which)
			p.Close()
			if err != nil {
				return unseen(err, "prune images", "cove image list")
			}
			return inv.show(done, func(io.Writer) {
				did, freed := "Removed", "Freed"
				if which.DryRun {
					did, freed = "Would remove", "Would free"
				}
				lines := prunedLines(done)
				if len(lines) == 0 {
					lines = []string{"nothing"}
				}
				for _, line := range lines {
					inv.say("%s: %s", did, line)
				}
				inv.say("%s: %s", freed, printable.Bytes(done.Bytes))
			})
		}),
	}
	cmd.Flags().BoolVarP(&which.All, "all", "a", false, "also images with a name that no sprite uses")
	cmd.Flags().BoolVar(&which.DryRun, "dry-run", false, "only say what would be removed")
	return asksFirst(inv, cmd, func(ctx context.Context, _ *cobra.Command, _ []string) ([]string, error) {
		if which.DryRun {
			return nil, nil
		}
		all, err := images(ctx, inv)
		if err != nil {
			return nil, err
		}
		would, err := all.Prune(ctx, cove.ImagePruning{All: which.All, DryRun: true})
		return prunedLines(would), err
	})
}

// prunedLines lists the things that a prune removes, for people.
func prunedLines(p cove.ImagePruned) (lines []string) {
	for _, name := range p.Names {
		lines = append(lines, "the image "+printable.Line(name))
	}
	if p.Steps > 0 {
		lines = append(lines, printable.Count(p.Steps, "step")+" of builds")
	}
	if unnamed := len(p.Images) - p.Named - p.Steps; unnamed > 0 {
		lines = append(lines, printable.Count(unnamed, "image")+" without a name")
	}
	if p.CacheBytes > 0 {
		lines = append(lines, "caches of builds, "+printable.Bytes(p.CacheBytes))
	}
	return lines
}

// completeImage completes the names of images: a command's first argument, or each if it says so.
func completeImage(inv *invocation) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 && cmd.Annotations["several"] == "" {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return imageNames(inv)(cmd, args, prefix)
	}
}

// imageNames completes the names of images, whatever came before.
func imageNames(inv *invocation) cobra.CompletionFunc {
	return func(cmd *cobra.Command, _ []string, prefix string) ([]string, cobra.ShellCompDirective) {
		return completeFrom(inv, cmd, func(ctx context.Context, c *cove.Client) []string {
			list, err := cove.Images{Client: c}.List(ctx)
			var names []string
			for _, i := range list {
				names = append(names, i.Names...)
			}
			return candidates(names, err, prefix, func(name string) (string, string, bool) {
				return name, "", printable.Line(name) == name
			})
		})
	}
}
