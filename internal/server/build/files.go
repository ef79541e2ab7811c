package build

import (
	"archive/tar"
	"bufio"
	"bytes"
	"compress/bzip2"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"github.com/moby/patternmatcher"
	"golang.org/x/sys/unix"

	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/server/dockerfile"
	"github.com/cove-dev/cove/internal/shim/layers"
)

// view opens what an image shows; empty: nothing. The caller closes it.
func (r *run) view(digest string) (*layers.View, error) {
	if digest != "" {
		lowers, err := r.Images.Lowers(digest)
		if err != nil {
			return nil, err
		}
		if slices.Reverse(lowers); len(lowers) > 0 {
			return layers.OpenView(lowers[:1], lowers[1:], r.UserNS)
		}
	}
	empty := filepath.Join(r.dir, "empty")
	if err := os.MkdirAll(empty, 0o755); err != nil {
		return nil, err
	}
	return layers.OpenView([]string{empty}, nil, r.UserNS)
}

// origin opens what a Copy has its files from. id is a digest by which it is known to be the same
// without a look at it; empty: there is none.
func (r *run) origin(c *dockerfile.Copy) (v *layers.View, id string, err error) {
	switch {
	case c.FromStage >= 0:
		id = r.made[c.FromStage]
	case c.FromImage != "":
		id = r.images[c.FromImage]
	default:
		v, err = layers.OpenView([]string{filepath.Join(r.dir, contextFolder)}, nil, r.UserNS)
		return v, "", err
	}
	v, err = r.view(id)
	return v, "of " + id, err
}

// contents are digests of what a step has from elsewhere, the first of which is known
// sooner. Each is enough to know it.
func (r *run) contents(ctx context.Context, s dockerfile.Step, parent string) (all []string, err error) {
	switch {
	case s.Copy != nil && s.Copy.FromStage >= 0:
		all = append(all, "of "+r.made[s.Copy.FromStage])
	case s.Copy != nil && s.Copy.FromImage != "":
		all = append(all, "of "+r.images[s.Copy.FromImage])
	case s.Copy == nil:
		text, err := r.mounted(ctx, s)
		return []string{text}, err
	}
	return all, nil
}

// filesDigest is the digest of what a Copy puts into its image, without times.
func (r *run) filesDigest(ctx context.Context, s dockerfile.Step, parent string) (string, error) {
	d := &digester{sum: sha256.New()}
	if err := r.files(ctx, s, parent, d); err != nil {
		return "", err
	}
	return hex.EncodeToString(d.sum.Sum(nil)), nil
}

// mounted is a digest of what a command's mounts show of the context.
func (r *run) mounted(ctx context.Context, s dockerfile.Step) (string, error) {
	if s.Run == nil {
		return "", nil
	}
	d := &digester{sum: sha256.New()}
	any := false
	for _, m := range s.Run.Mounts {
		if m.Type != dockerfile.MountBind {
			continue
		}
		any = true
		err := func() error {
			v, err := layers.OpenView([]string{filepath.Join(r.dir, contextFolder)}, nil, r.UserNS)
			if err != nil {
				return err
			}
			defer v.Close()
			at, n, found, err := resolve(v, m.Source)
			if err != nil {
				return err
			}
			if !found {
				return missing(m.Source)
			}
			c := &copying{ctx: ctx, from: v, to: v, out: d, made: map[string]bool{}, plain: true}
			return c.copy(at, n, "mounted", "")
		}()
		if err != nil {
			return "", err
		}
	}
	if !any {
		return "", nil
	}
	return hex.EncodeToString(d.sum.Sum(nil)), nil
}

func missing(source string) error {
	return fail.Newf("bad_input", "look at the folder of the build, and at its .dockerignore", "%.300q is not there to be copied", source)
}

// sink takes the members of a layer.
type sink interface {
	member(h *tar.Header, content io.Reader) error
}

type tarSink struct{ w *tar.Writer }

func (t tarSink) member(h *tar.Header, content io.Reader) error {
	if err := t.w.WriteHeader(h); err != nil || content == nil {
		return err
	}
	_, err := io.Copy(t.w, content)
	return err
}

// digester takes members for what they say, times aside.
type digester struct{ sum hash.Hash }

func (d *digester) member(h *tar.Header, content io.Reader) error {
	at := *h
	at.ModTime = time.Time{}
	text, err := json.Marshal([]any{at.Typeflag, at.Name, at.Linkname, at.Size, at.Mode, at.Uid, at.Gid, at.PAXRecords})
	if err != nil {
		return err
	}
	_, _ = fmt.Fprintf(d.sum, "%d:%s", len(text), text)
	if content != nil {
		_, err = io.Copy(d.sum, content)
	}
	return err
}

// copyFiles writes the layer of a COPY or an ADD.
func (r *run) copyFiles(ctx context.Context, s dockerfile.Step, parent string, w io.Writer) error {
	out := tar.NewWriter(w)
	if err := r.files(ctx, s, parent, tarSink{out}); err != nil {
		return err
	}
	return out.Close()
}

// makeFolder writes the layer of a WORKDIR; it has nothing if the folder is there.
func (r *run) makeFolder(ctx context.Context, s dockerfile.Step, parent string, w io.Writer) error {
	to, err := r.view(parent)
	if err != nil {
		return err
	}
	defer to.Close()
	out := tar.NewWriter(w)
	c := &copying{ctx: ctx, to: to, out: tarSink{out}, made: map[string]bool{}, now: time.Now()}
	if s.Config.User != "" {
		if c.uid, c.gid, err = owner(to, s.Config.User); err != nil {
			return err
		}
	}
	if _, err := c.folder(s.Folder); err != nil {
		return err
	}
	return out.Close()
}

// files gives the members of a Copy's layer.
func (r *run) files(ctx context.Context, s dockerfile.Step, parent string, out sink) error {
	from, _, err := r.origin(s.Copy)
	if err != nil {
		return err
	}
	defer from.Close()
	to, err := r.view(parent)
	if err != nil {
		return err
	}
	defer to.Close()
	c := &copying{ctx: ctx, from: from, to: to, out: out, made: map[string]bool{}, now: time.Now(), chmod: s.Copy.Chmod}
	if s.Copy.Chown != "" {
		if c.ownUID, c.ownGID, err = owner(to, s.Copy.Chown); err != nil {
			return err
		}
		c.owned, c.uid, c.gid = true, c.ownUID, c.ownGID
	}
	if len(s.Copy.Exclude) > 0 {
		if c.exclude, err = patternmatcher.New(s.Copy.Exclude); err != nil {
			return fail.Newf("dockerfile_bad", "", "--exclude: %v", err)
		}
	}
	return c.all(s.Copy)
}

// copying is a COPY or an ADD under way. Sources never lead out of from; to says what links the
// destination's path has, which lead nowhere but in it.
type copying struct {
	ctx  context.Context
	from *layers.View
	to   *layers.View
	out  sink
	made map[string]bool // folders
	now  time.Time       // of what has no time of its own

	uid, gid       int // of new folders on the way
	owned          bool
	ownUID, ownGID int
	chmod          string
	exclude        *patternmatcher.PatternMatcher
	plain          bool // to does not count
}

func (c *copying) all(s *dockerfile.Copy) error {
	type source struct {
		at, name string
		node     layers.Node
	}
	var all []source
	for _, pattern := range s.Sources {
		names, err := glob(c.from, pattern)
		if err != nil {
			return err
		}
		found := 0
		for _, name := range names {
			at, n, ok, err := resolve(c.from, name)
			if err != nil {
				return err
			}
			if ok {
				all = append(all, source{at, name, n})
				found++
			}
		}
		if found == 0 {
			return missing(pattern)
		}
	}
	dir := s.DestDir
	if at, n, found, err := resolve(c.to, s.Dest); err != nil {
		return err
	} else if found && n.IsDir() {
		dir = true
		c.made[at] = true
	}
	if len(all)+len(s.Inline) > 1 && !dir {
		if len(all) > 1 || len(s.Inline) > 1 {
			return fail.Newf("dockerfile_bad", "end it with a slash", "several files can't be copied to %.200q, which is no folder", s.Dest)
		}
	}
	for _, one := range all {
		dest := s.Dest
		if s.Parents {
			dest, dir = path.Join(dest, path.Dir(one.name)), true
			if one.node.IsDir() {
				dest = path.Join(s.Dest, one.name)
			}
		}
		switch {
		case one.node.IsDir():
			real, err := c.folder(dest)
			if err != nil {
				return err
			}
			if err := c.inside(one.at, one.node, real, ""); err != nil {
				return err
			}
			continue
		case s.Add:
			done, err := c.extract(one.at, one.node, dest)
			if err != nil || done {
				if err != nil {
					return err
				}
				continue
			}
		}
		if dir {
			dest = path.Join(dest, path.Base(one.name))
		}
		if c.excluded(path.Base(one.name)) {
			continue
		}
		if err := c.copy(one.at, one.node, dest, ""); err != nil {
			return err
		}
	}
	for _, f := range s.Inline {
		dest := s.Dest
		if dir {
			dest = path.Join(dest, f.Name)
		}
		real, err := c.place(dest)
		if err != nil {
			return err
		}
		mode := f.Mode
		if mode == 0 {
			mode = 0o644
		}
		h := &tar.Header{Typeflag: tar.TypeReg, Name: real, Size: int64(len(f.Data)), Mode: int64(mode), ModTime: c.now}
		if err := c.own(h); err != nil {
			return err
		}
		if err := c.out.member(h, strings.NewReader(f.Data)); err != nil {
			return err
		}
	}
	return nil
}

func (c *copying) excluded(rel string) bool {
	if c.exclude == nil || rel == "" {
		return false
	}
	out, err := c.exclude.MatchesOrParentMatches(rel)
	return err == nil && out
}

// inside copies what is in a folder. rel is its path below the source.
func (c *copying) inside(at string, n layers.Node, dest, rel string) error {
	names, err := c.from.Names(n, true)
	if err != nil {
		return err
	}
	for _, name := range names {
		child, found, err := c.from.Lookup(n, name)
		if err != nil {
			return err
		}
		below := path.Join(rel, name)
		if !found || c.excluded(below) && !(child.IsDir() && c.exclude.Exclusions()) {
			continue
		}
		if err := c.copy(path.Join(at, name), child, path.Join(dest, name), below); err != nil {
			return err
		}
	}
	return nil
}

// copy copies a file, a link or a folder to a path.
func (c *copying) copy(at string, n layers.Node, dest, rel string) error {
	if c.ctx.Err() != nil {
		return context.Cause(c.ctx)
	}
	h := &tar.Header{Mode: int64(n.Mode & 0o7777), Uid: int(n.UID), Gid: int(n.GID), ModTime: time.Unix(0, n.ModTime)}
	if strings.HasPrefix(path.Base(dest), ".wh.") {
		return fail.Newf("bad_input", "leave it out by .dockerignore", "%.200q has a name that layers of images use for deleted files", dest)
	}
	var err error
	if n.IsDir() {
		h.Typeflag = tar.TypeDir
		if h.Name, err = c.realFolder(dest); err != nil {
			return err
		}
		real := h.Name
		h.Name += "/"
		if err := c.own(h); err != nil {
			return err
		}
		if err := c.out.member(h, nil); err != nil {
			return err
		}
		c.made[real] = true
		return c.inside(at, n, real, rel)
	}
	if h.Name, err = c.place(dest); err != nil {
		return err
	}
	switch n.Kind() {
	case unix.S_IFLNK:
		h.Typeflag, h.Linkname, h.Mode = tar.TypeSymlink, n.Target, 0o777
		if c.owned {
			h.Uid, h.Gid = c.ownUID, c.ownGID
		}
		return c.out.member(h, nil)
	case unix.S_IFREG:
		h.Typeflag, h.Size = tar.TypeReg, n.Size
		for name, value := range n.Attrs {
			if name == "security.capability" && !c.owned {
				h.PAXRecords = map[string]string{"SCHILY.xattr." + name: value}
			}
		}
		if err := c.own(h); err != nil {
			return err
		}
		f, err := c.from.Open(n)
		if err != nil {
			return err
		}
		err = c.out.member(h, io.LimitReader(f, n.Size))
		return errors.Join(err, f.Close())
	}
	return nil // sockets and devices
}

// own gives a member the owner and the rights that the instruction says.
func (c *copying) own(h *tar.Header) error {
	if c.owned {
		h.Uid, h.Gid = c.ownUID, c.ownGID
	}
	if c.chmod == "" {
		return nil
	}
	was := fileMode(h)
	if h.Typeflag == tar.TypeDir {
		was |= fs.ModeDir
	}
	m, err := dockerfile.ApplyMode(c.chmod, was)
	if err != nil {
		return err
	}
	h.Mode = int64(m.Perm())
	for flag, bit := range map[fs.FileMode]int64{fs.ModeSetuid: 0o4000, fs.ModeSetgid: 0o2000, fs.ModeSticky: 0o1000} {
		if m&flag != 0 {
			h.Mode |= bit
		}
	}
	return nil
}

// place is where a path leads whose last part is replaced, below the root. Folders on the way are
// made.
func (c *copying) place(dest string) (string, error) {
	if c.plain {
		return dest, nil
	}
	dir, err := c.folder(path.Dir(path.Join("/", dest)))
	return path.Join(dir, path.Base(dest)), err
}

// realFolder is place for a folder: if there is one already, or a link to one, it is that.
func (c *copying) realFolder(dest string) (string, error) {
	if c.plain {
		return dest, nil
	}
	if at, n, found, err := resolve(c.to, dest); err != nil || found && n.IsDir() {
		return at, err
	}
	return c.place(dest)
}

// folder is where the path of a folder leads, which is made, with those above it.
func (c *copying) folder(name string) (string, error) {
	at, n, found, err := resolve(c.to, name)
	if err != nil || at == "" || found && n.IsDir() || c.made[at] {
		return at, err
	}
	parent, err := c.folder(path.Dir(path.Join("/", at)))
	if err != nil {
		return "", err
	}
	at = path.Join(parent, path.Base(at))
	c.made[at] = true
	return at, c.out.member(&tar.Header{Typeflag: tar.TypeDir, Name: at + "/", Mode: 0o755, Uid: c.uid, Gid: c.gid, ModTime: c.now}, nil)
}

// extract extracts a file that is an archive below a folder; false: it is none.
func (c *copying) extract(at string, n layers.Node, dest string) (bool, error) {
	if n.Kind() != unix.S_IFREG {
		return false, nil
	}
	f, err := c.from.Open(n)
	if err != nil {
		return false, err
	}
	defer f.Close()
	in, err := decompressed(f)
	if err != nil {
		return false, err
	}
	t := tar.NewReader(in)
	h, err := t.Next()
	if err != nil {
		return false, nil //nolint:nilerr // it is no archive
	}
	root, err := c.folder(dest)
	if err != nil {
		return true, err
	}
	for ; err == nil; h, err = t.Next() {
		if c.ctx.Err() != nil {
			return true, context.Cause(c.ctx)
		}
		name := path.Clean(strings.TrimSuffix(h.Name, "/"))
		if !filepath.IsLocal(name) || len(name) > maxContextPath {
			return true, fail.Newf("bad_input", "", "the archive %.200q has a file of the name %.200q", at, h.Name)
		}
		if name == "." {
			continue
		}
		if strings.HasPrefix(path.Base(name), ".wh.") {
			return true, fail.Newf("bad_input", "", "the archive %.200q has a file of the name %.200q", at, h.Name)
		}
		out := &tar.Header{Typeflag: h.Typeflag, Name: path.Join(root, name), Linkname: h.Linkname, Size: h.Size, Mode: h.Mode & 0o7777, Uid: h.Uid, Gid: h.Gid, ModTime: h.ModTime}
		var content io.Reader
		switch h.Typeflag {
		case tar.TypeDir:
			if out.Name, err = c.realFolder(out.Name); err != nil {
				return true, err
			}
			c.made[out.Name] = true
			out.Name += "/"
		case tar.TypeReg:
			content = t
		case tar.TypeLink:
			to := path.Clean(h.Linkname)
			if !filepath.IsLocal(to) {
				return true, fail.Newf("bad_input", "", "the archive %.200q has a link to %.200q", at, h.Linkname)
			}
			out.Linkname, out.Size = path.Join(root, to), 0
		case tar.TypeSymlink:
		default:
			continue
		}
		if out.Typeflag != tar.TypeDir {
			if out.Name, err = c.place(out.Name); err != nil {
				return true, err
			}
		}
		if c.owned {
			out.Uid, out.Gid = c.ownUID, c.ownGID
		}
		if err := c.out.member(out, content); err != nil {
			return true, err
		}
	}
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return true, err
}

// decompressed is the content of a file, whichever way it is compressed.
func decompressed(f io.Reader) (io.Reader, error) {
	in := bufio.NewReaderSize(f, 64<<10)
	head, _ := in.Peek(6) // a shorter file is not compressed
	switch {
	case bytes.HasPrefix(head, []byte{0x1f, 0x8b}):
		return gzip.NewReader(in)
	case bytes.HasPrefix(head, []byte("BZh")):
		return bzip2.NewReader(in), nil
	case bytes.HasPrefix(head, []byte{0x28, 0xb5, 0x2f, 0xfd}):
		return zstd.NewReader(in, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(128<<20))
	case bytes.HasPrefix(head, []byte{0xfd, '7', 'z', 'X', 'Z', 0}):
		return nil, fail.New("dockerfile_unsupported", "compress it by gzip or zstd, or use COPY and RUN tar", "ADD of an archive that is compressed by xz is not supported")
	}
	return in, nil
}

// maxLinks bounds the symbolic links on the way to a file.
const maxLinks = 40

// resolve follows the links of a path, none of which leads out of the view, and returns where it
// leads. Missing parts are kept as they are.
func resolve(v *layers.View, name string) (at string, n layers.Node, found bool, err error) {
	split := func(name string) []string {
		return slices.DeleteFunc(strings.Split(name, "/"), func(p string) bool { return p == "" || p == "." })
	}
	rest, links := split(name), 0
	above := []layers.Node{v.Root()}
	lost := 0 // so many parts of at are not there
	for len(rest) > 0 {
		part := rest[0]
		rest = rest[1:]
		if part == ".." {
			if at = path.Dir(at); at == "." {
				at = ""
			}
			if lost > 0 {
				lost--
			} else if len(above) > 1 {
				above = above[:len(above)-1]
			}
			continue
		}
		if at = path.Join(at, part); lost > 0 {
			lost++
			continue
		}
		last := above[len(above)-1]
		if !last.IsDir() {
			lost++
			continue
		}
		child, ok, err := v.Lookup(last, part)
		switch {
		case err != nil:
			return "", n, false, err
		case !ok:
			lost++
		case child.Target != "":
			if links++; links > maxLinks || len(rest) > maxContextPath {
				return "", n, false, fail.Newf("bad_input", "", "%.200q has too many symbolic links on its way", name)
			}
			if at = path.Dir(at); path.IsAbs(child.Target) || at == "." {
				at = ""
			}
			if path.IsAbs(child.Target) {
				above = above[:1]
			}
			rest = append(split(child.Target), rest...)
		default:
			above = append(above, child)
		}
	}
	return at, above[len(above)-1], lost == 0, nil
}

// glob lists what a source means, whose wildcards are as of path.Match.
func glob(v *layers.View, pattern string) ([]string, error) {
	pattern = strings.TrimPrefix(path.Join("/", pattern), "/")
	if !strings.ContainsAny(pattern, `*?[\`) {
		return []string{pattern}, nil
	}
	all := []string{""}
	for part := range strings.SplitSeq(pattern, "/") {
		var next []string
		for _, dir := range all {
			if !strings.ContainsAny(part, `*?[\`) {
				next = append(next, path.Join(dir, part))
				continue
			}
			_, n, found, err := resolve(v, dir)
			if err != nil {
				return nil, err
			}
			if !found || !n.IsDir() {
				continue
			}
			names, err := v.Names(n, true)
			if err != nil {
				return nil, err
			}
			for _, name := range names {
				ok, err := path.Match(part, name)
				if err != nil {
					return nil, fail.Newf("dockerfile_bad", "", "%.200q: %v", pattern, err)
				}
				if ok {
					next = append(next, path.Join(dir, name))
				}
			}
		}
		all = next
	}
	return all, nil
}

// maxAccounts bounds a file of accounts.
const maxAccounts = 1 << 20

// owner finds USER or USER:GROUP, by the image's own files where they are names.
func owner(v *layers.View, text string) (uid, gid int, err error) {
	user, group, withGroup := strings.Cut(text, ":")
	uid, ok := number(user)
	if line, found := account(v, "etc/passwd", user, 2); !ok || found {
		if !found || len(line) < 4 {
			return 0, 0, fail.Newf("dockerfile_bad", "give its number", "the image has no user %.100q", user)
		}
		uid, _ = number(line[2])
		gid, _ = number(line[3])
	} else {
		gid = uid
	}
	if !withGroup || group == "" {
		return uid, gid, nil
	}
	if gid, ok = number(group); ok {
		return uid, gid, nil
	}
	line, found := account(v, "etc/group", group, 2)
	if !found {
		return 0, 0, fail.Newf("dockerfile_bad", "give its number", "the image has no group %.100q", group)
	}
	gid, _ = number(line[2])
	return uid, gid, nil
}

func number(text string) (int, bool) {
	n, err := strconv.ParseUint(text, 10, 31)
	return int(n), err == nil
}

// account finds the line of a name in a file of accounts.
func account(v *layers.View, file, name string, least int) ([]string, bool) {
	_, n, found, err := resolve(v, file)
	if err != nil || !found || n.Kind() != unix.S_IFREG || n.Size > maxAccounts {
		return nil, false
	}
	f, err := v.Open(n)
	if err != nil {
		return nil, false
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxAccounts))
	if err != nil {
		return nil, false
	}
	for line := range strings.Lines(string(text)) {
		if f := strings.Split(strings.TrimRight(line, "\n"), ":"); len(f) > least && f[0] == name {
			return f, true
		}
	}
	return nil, false
}
