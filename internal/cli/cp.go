package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/cove-dev/cove/internal/cli/tree"
	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/lib/filesync"
	"github.com/cove-dev/cove/internal/lib/printable"
	"github.com/cove-dev/cove/sprites"
)

// copyLinks says what happens to links that lead out of a folder, when the folder is copied
// out of a sprite. No choice makes such a link here.
type copyLinks string

const (
	linksRefuse copyLinks = "refuse" // nothing is copied
	linksSkip   copyLinks = "skip"   // the link is left out
	linksFollow copyLinks = "follow" // all links are replaced by the files that they lead to, in the sprite
)

var linkChoices = []string{string(linksRefuse), string(linksSkip), string(linksFollow)}

func newCpCommand(inv *invocation) *cobra.Command {
	var links string
	cmd := &cobra.Command{
		Use:   "cp SRC DST",
		Short: "Copy files into or out of a sprite",
		Long: `Copies a file, or a folder with all that is in it, into a sprite or out of one. One side is
NAME:PATH, or :PATH for the sprite that cove use noted. A relative PATH is below the home of the
sprite's user. As with docker cp: if DST is a folder, SRC is put into it; if DST does not exist,
SRC becomes it; SRC/. is the content of the folder. Modes are kept.

- as DST writes a tar stream to the output. - as SRC extracts one into the folder DST.

On this machine nothing is left half-written: a file or a folder appears when it is complete. A
sprite is not trusted. Out of one, cove refuses absolute names, "..", links that lead out of the
folder, devices, setuid bits and repositories of git (exit code 5). A repository is a .git, or a
folder with HEAD, objects and refs. It refuses data that would fill this disk, too (exit code 6).
It names what it refused, and copies nothing. --links skip leaves out links that lead out of the
folder. --links follow copies the files in the sprite that links lead to, in their place.`,
		Example: `  cove cp notes.txt paint:
  cove cp paint:/home/sprite/out.png .
  cove cp ./site paint:site
  cove cp paint:project/. ./project
  cove cp paint:project ./project --links skip
  cove cp paint:/var/log - | tar t
  tar c a b | cove cp - paint:/tmp`,
		Args:              exactArgs("what to copy", "where to copy it"),
		ValidArgsFunction: completeSide(inv),
		RunE: func(cmd *cobra.Command, args []string) error {
			src, dst := parseSide(args[0]), parseSide(args[1])
			if src.remote == dst.remote {
				return usagef(cmd, "one of %s and %s must be in a sprite, as NAME:PATH", args[0], args[1])
			}
			if inv.global.json && (src.path == "-" && !src.remote || dst.path == "-" && !dst.remote) {
				return usagef(cmd, "--json does not go with a stream")
			}
			switch {
			case !slices.Contains(linkChoices, links):
				return usagef(cmd, "--links %q is not one of %s", links, strings.Join(linkChoices, ", "))
			case cmd.Flags().Changed("links") && !src.remote:
				return usagef(cmd, "--links is for copies out of a sprite; into one, links are copied as they are")
			case links == string(linksSkip) && dst.path == "-":
				return usagef(cmd, "--links skip does not go with a stream, which has the links as they are")
			}
			return verb(func(ctx context.Context, _ []string) error {
				c := &copying{inv: inv, links: copyLinks(links)}
				return c.run(ctx, cmd, src, dst)
			})(cmd, args)
		},
	}
	f := cmd.Flags()
	f.StringVar(&links, "links", string(linksRefuse), "links that lead out of the folder, in a copy out of a sprite: refuse, skip or follow")
	f.BoolP("recursive", "r", true, "copy folders with everything in them (cp does so anyway)")
	must(f.MarkHidden("recursive"))
	must(cmd.RegisterFlagCompletionFunc("links", cobra.FixedCompletions(linkChoices, cobra.ShellCompDirectiveNoFileComp)))
	return cmd
}

// side is one of cp's two arguments.
type side struct {
	remote bool
	sprite string // remote: empty is the sprite in use
	path   string
}

// parseSide tells NAME:PATH from a local path, as docker cp does. An argument is local if
// it has no ":", begins with "/" or ".", or has a "/" before its first ":".
func parseSide(arg string) side {
	name, rest, ok := strings.Cut(arg, ":")
	if !ok || strings.HasPrefix(arg, "/") || strings.HasPrefix(arg, ".") || strings.Contains(name, "/") {
		return side{path: arg}
	}
	if rest == "" {
		rest = "."
	}
	return side{remote: true, sprite: name, path: rest}
}

// copied is what cp did, for --json.
type copied struct {
	Sprite string `json:"sprite"`
	From   string `json:"from"`
	To     string `json:"to"`
	Bytes  int64  `json:"bytes"`
}

// copying is one run of cp.
type copying struct {
	inv    *invocation
	sprite *sprites.Sprite // that of either side
	links  copyLinks
}

func (c *copying) run(ctx context.Context, cmd *cobra.Command, src, dst side) error {
	name := src.sprite + dst.sprite // one side is local and has no sprite
	if name != "" {
		if err := c.inv.sprite.nameOnce(cmd, []string{name}); err != nil {
			return err
		}
	}
	if !src.remote && src.path != "-" {
		if _, err := os.Stat(src.path); err != nil {
			return fmt.Errorf("copy: %w", err)
		}
	}
	if !dst.remote && dst.path == "-" && isTerminal(c.inv.Out) {
		return fail.New("usage", "refusing to write an archive to a terminal", "send it on: cove cp … - | tar t")
	}
	sprite, err := c.inv.spriteHandle(ctx)
	if err != nil {
		return err
	}
	c.sprite = sprite
	if src.remote {
		return c.out(ctx, src.path, dst.path)
	}
	return c.in(ctx, src.path, dst.path)
}

// statIn describes a file of a sprite, following links.
func statIn(ctx context.Context, sprite *sprites.Sprite, name string) (fs.FileInfo, error) {
	if !path.IsAbs(name) {
		name = path.Join("/home/sprite", name)
	}
	if !utf8.ValidString(name) { // the protocol's JSON could not say it
		return nil, fail.Newf("invalid", "copy the folder that it is in: files in a folder may have any name", "copy %s: its name is not UTF-8", printable.Line(name))
	}
	name = strings.Trim(path.Clean(name), "/")
	if name == "" {
		name = "."
	}
	info, err := fs.Stat(sprite.FS(ctx, "/"), name)
	if e, ok := errors.AsType[*fs.PathError](err); ok {
		e.Path = path.Join("/", e.Path)
	}
	return info, err
}

// isFolderPath reports whether a path can only be a folder's.
func isFolderPath(name string) bool {
	return strings.HasSuffix(name, "/") || name == "." || name == ".." || strings.HasSuffix(name, "/.") || strings.HasSuffix(name, "/..")
}

// contentsOf reports whether a path means the content of a folder, not the folder itself.
func contentsOf(name string) bool { return name == "." || strings.HasSuffix(name, "/.") }

// in copies into a sprite.
func (c *copying) in(ctx context.Context, src, dst string) error {
	if src == "-" {
		p := c.inv.newProgress("to "+c.sprite.Name(), 0)
		defer p.Close()
		err := untarIn(ctx, c.sprite, dst, func(w io.Writer) error {
			_, err := io.CopyBuffer(struct{ io.Writer }{w}, struct{ io.Reader }{countingReader{c.inv.In, p}}, make([]byte, copyBuffer))
			return err
		})
		return c.cut(err, dst)
	}
	info, err := os.Stat(src)
	if err != nil {
		return fmt.Errorf("copy: %w", err)
	}
	target, err := statIn(ctx, c.sprite, dst)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return spriteError(err)
	}
	exists := err == nil
	_, base := tree.SplitPath(src)
	switch {
	case info.IsDir() && exists && !target.IsDir():
		return fmt.Errorf("copy %s: %s:%s exists and is not a folder", src, c.sprite.Name(), dst)
	case exists && target.IsDir() && !(info.IsDir() && contentsOf(src)):
		dst = path.Join(dst, base)
	case !exists && !info.IsDir() && isFolderPath(dst):
		return fmt.Errorf("copy %s: there is no folder %s in %s", src, dst, c.sprite.Name())
	}
	var n int64
	if info.IsDir() {
		if err := warnCredentials(ctx, c.inv, src, filesync.Rules{}); err != nil {
			return fmt.Errorf("copy %s: %w", src, err)
		}
		n, err = c.treeIn(ctx, src, dst)
	} else {
		n, err = c.fileIn(ctx, src, dst)
	}
	if err != nil {
		return c.cut(err, dst)
	}
	return c.done(copied{c.sprite.Name(), src, c.sprite.Name() + ":" + dst, n})
}

// cut is the error of a copy into a sprite that lost its connection, with the command that
// shows what became of it. Other errors stay what they are.
func (c *copying) cut(err error, dst string) error {
	if !brokeOff(err) && (!errors.Is(err, sprites.ErrNoExit) || sandboxGone(err)) {
		return err
	}
	name := c.sprite.Name()
	return fail.Newf("connection_lost", "start the server again, if it is this machine's: cove server start\nsee what is there: cove exec -s "+name+" -- ls -la "+printable.Word(dst)+"\nthen copy it again",
		"copy to %s:%s: the connection was lost in the middle: a file is there as a whole or not at all, a folder maybe in part", name, dst)
}

func (c *copying) done(did copied) error {
	if c.inv.global.json {
		c.inv.printJSON(did)
	}
	c.inv.detail("%s copied from %s to %s", printable.Bytes(did.Bytes), did.From, did.To)
	return nil
}

func (c *copying) fileIn(ctx context.Context, src, dst string) (int64, error) {
	f, err := os.Open(src)
	if err != nil {
		return 0, fmt.Errorf("copy: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	if !info.Mode().IsRegular() {
		return 0, fmt.Errorf("copy %s: it is neither a file nor a folder", src)
	}
	// The file itself is given to the client, so that the kernel may copy; its
	// position tells how far that is.
	p := c.inv.watchProgress(filepath.Base(src), info.Size(), func() int64 {
		at, err := f.Seek(0, io.SeekCurrent)
		if err != nil {
			return 0
		}
		return at
	})
	defer p.Close()
	opts := sprites.WriteOptions{Mode: info.Mode().Perm(), Size: info.Size()}
	if opts.Mode == 0 {
		opts.Mode = 0o600 // 0 would be the default, for all to read
	}
	if err := c.sprite.WriteFile(ctx, dst, f, opts); err != nil {
		return 0, spriteError(err)
	}
	return info.Size(), nil
}

// treeIn copies a folder to the folder dst of a sprite, which need not exist.
func (c *copying) treeIn(ctx context.Context, src, dst string) (int64, error) {
	p := c.inv.newProgress(filepath.Base(src), 0)
	defer p.Close()
	err := untarIn(ctx, c.sprite, dst, func(w io.Writer) error {
		return tree.Pack(w, src, p.Add, func(name string) { c.inv.say("cove: skipped %s, which is not a file, folder or link", name) })
	})
	return p.count(), err
}

// untarIn unpacks an archive in a sprite. tar's own errors are shown.
func untarIn(ctx context.Context, sprite *sprites.Sprite, dst string, archive func(io.Writer) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	// The path is an argument, never part of the script. Leading "-" can't be an
	// option behind "./".
	cmd := sprite.CommandContext(ctx, "/bin/sh", "-c", `mkdir -p -- "$1" && exec tar --no-same-owner -xpf - --directory="$1"`, "sh", dst)
	errs := &tail{}
	cmd.Stderr, cmd.Stdout = errs, io.Discard
	in, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return spriteError(err)
	}
	fed := make(chan error, 1)
	go func() {
		err := archive(in)
		if err != nil {
			cancel() // tar must not take a part for the whole
		}
		fed <- errors.Join(err, in.Close())
	}()
	err = cmd.Wait()
	_ = in.Close()
	fedErr := <-fed
	if _, ok := errors.AsType[*sprites.ExitError](err); ok {
		return errs.explain("unpack in "+sprite.Name(), err)
	}
	if fedErr != nil && !errors.Is(fedErr, io.ErrClosedPipe) {
		return fmt.Errorf("copy: %w", fedErr)
	}
	return err
}

// out copies out of a sprite.
func (c *copying) out(ctx context.Context, src, dst string) error {
	info, err := statIn(ctx, c.sprite, src)
	if err != nil {
		return spriteError(err)
	}
	if dst == "-" {
		p := c.inv.newProgress("from "+c.sprite.Name(), 0)
		defer p.Close()
		dir, base := path.Split(path.Clean(src))
		if base == "." || base == ".." || base == "" {
			dir, base = src, "."
		}
		return tarOut(ctx, c.sprite, dir, base, c.links, countingWriter{c.inv.Out, p})
	}
	target, err := os.Stat(dst)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("copy: %w", err)
	}
	exists := err == nil
	base := path.Base(path.Clean(src))
	if base == "." || base == "/" || base == ".." {
		base = c.sprite.Name()
	}
	switch {
	case info.IsDir() && exists && !target.IsDir():
		return fmt.Errorf("copy to %s: it exists and is not a folder", dst)
	case exists && target.IsDir() && !(info.IsDir() && contentsOf(src)):
		dst = filepath.Join(dst, base)
	case !exists && !info.IsDir() && isFolderPath(dst):
		return fmt.Errorf("copy: there is no folder %s", dst)
	}
	var n int64
	if info.IsDir() {
		n, err = c.treeOut(ctx, src, dst)
	} else if info.Mode().IsRegular() {
		n, err = c.fileOut(ctx, src, dst, info)
	} else {
		err = fmt.Errorf("copy %s: it is neither a file nor a folder", src)
	}
	if err != nil {
		return err
	}
	return c.done(copied{c.sprite.Name(), c.sprite.Name() + ":" + src, dst, n})
}

// fileOut copies one file. The file appears in its place once all of it has come.
func (c *copying) fileOut(ctx context.Context, src, dst string, info fs.FileInfo) (n int64, err error) {
	if there, err := os.Lstat(dst); err == nil && !there.Mode().IsRegular() && there.Mode()&fs.ModeSymlink == 0 {
		return 0, fmt.Errorf("copy to %s: it exists and is not a file", dst)
	}
	if real, err := filepath.EvalSymlinks(dst); err == nil {
		dst = real // replace what a link leads to, not the link
	}
	if err := tree.CheckPlace(dst); err != nil {
		return 0, err
	}
	from, err := c.sprite.Open(ctx, src)
	if err != nil {
		return 0, spriteError(err)
	}
	defer func() { _ = from.Close() }()
	to, err := tree.Create(dst)
	if err != nil {
		return 0, fmt.Errorf("copy to %s: %w", dst, err)
	}
	p := c.inv.newProgress(path.Base(src), max(0, from.Size()))
	defer p.Close()
	w, err := tree.NewWriter(to.File, max(0, from.Size()))
	if err == nil {
		n, err = io.Copy(countingWriter{w, p}, from)
	}
	if err := errors.Join(err, to.Chmod(info.Mode().Perm()&0o755)); err != nil {
		return n, brokenOff(fmt.Errorf("copy to %s: %w", dst, errors.Join(err, to.Drop())), "copy to "+dst)
	}
	if err := to.Put(); err != nil {
		return n, fmt.Errorf("copy to %s: %w", dst, err)
	}
	return n, nil
}

// treeOut copies what is in the folder src of a sprite to the folder dst.
func (c *copying) treeOut(ctx context.Context, src, dst string) (int64, error) {
	p := c.inv.newProgress(path.Base(src), 0)
	defer p.Close()
	var leave tree.LeaveLink
	left := 0
	if c.links == linksSkip {
		leave = func(name, target string) {
			if left++; left <= maxShownFiles {
				c.inv.say("cove: left out %s, a link to %s", printable.Line(name), printable.Line(target))
			}
		}
	}
	err := tree.Receive(dst, p.Add, leave, func(unpack func(io.Reader) error) error {
		return readTar(ctx, c.sprite, src, c.links, unpack)
	})
	if more := left - maxShownFiles; more > 0 {
		c.inv.say("cove: left out %s more", printable.Count(more, "link"))
	}
	return p.count(), err
}

// readTar gives the archive of a sprite's folder to unpack. Only when tar has
// ended well was the archive whole.
func readTar(parent context.Context, sprite *sprites.Sprite, src string, links copyLinks, unpack func(io.Reader) error) error {
	ctx, cancel := context.WithCancel(parent)
	defer cancel()
	r, w := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		err := tarOut(ctx, sprite, src, ".", links, w)
		_ = w.CloseWithError(errOr(err, io.EOF))
		ended <- err
	}()
	err := unpack(r)
	if err != nil {
		cancel()
		_ = r.CloseWithError(err)
	} else {
		_, err = io.Copy(io.Discard, r) // tar's padding at the end
	}
	if tarErr := <-ended; err == nil {
		err = tarErr
	}
	if err != nil && parent.Err() != nil {
		return parent.Err()
	}
	return err
}

func errOr(err, other error) error {
	if err == nil {
		return other
	}
	return err
}

// tarOut writes the archive of base, in a sprite's folder dir, to w.
func tarOut(ctx context.Context, sprite *sprites.Sprite, dir, base string, links copyLinks, w io.Writer) error {
	if dir == "" {
		dir = "."
	}
	args := []string{"-cf", "-", "--directory=" + dir}
	if links == linksFollow {
		if err := findLoop(ctx, sprite, path.Join(dir, base)); err != nil {
			return err
		}
		args = append(args, "--dereference", "--hard-dereference")
	}
	cmd := sprite.CommandContext(ctx, "tar", append(args, "--", base)...)
	errs := &tail{}
	cmd.Stdout, cmd.Stderr = w, errs
	err := cmd.Run()
	if _, ok := errors.AsType[*sprites.ExitError](err); ok {
		return errs.explain("read in "+sprite.Name(), err)
	}
	return err
}

// copyBuffer is how much of what is copied is in memory at a time.
const copyBuffer = 512 << 10

// tail keeps the end of what is written to it.
type tail struct{ buf []byte }

const tailBytes = 4 << 10

func (t *tail) Write(p []byte) (int, error) {
	t.buf = append(t.buf, p...)
	if len(t.buf) > 4*tailBytes {
		t.buf = append(t.buf[:0], t.buf[len(t.buf)-tailBytes:]...)
	}
	return len(p), nil
}

// text is what is kept, without the white space around it.
func (t *tail) text() string {
	return strings.TrimSpace(string(t.buf[max(0, len(t.buf)-tailBytes):]))
}

// endings are the reasons of an end that has nothing to do with the command.
var endings = map[string]string{
	"restored": "the sprite was brought back to a checkpoint",
	"stopped":  "the sprite was stopped",
	"removed":  "the sprite was removed",
}

// explain puts what a command printed into its error.
func (t *tail) explain(doing string, err error) error {
	if e, ok := errors.AsType[*sprites.ExitError](err); ok && endings[e.Reason] != "" {
		return fail.Newf("lost", "try again", "%s: %s", doing, endings[e.Reason])
	}
	text := t.text()
	if text == "" {
		return fmt.Errorf("%s: %w", doing, err)
	}
	if strings.Contains(text, "No space left on device") { // tar has no exit code for it
		return fail.Newf("no_space", "the disk is full; see: cove doctor", "%s: %s", doing, text)
	}
	return fail.Newf("failed", "", "%s: %s", doing, text)
}
