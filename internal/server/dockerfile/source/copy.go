package source

import (
	"archive/tar"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"strconv"
	"strings"
	"time"

	"github.com/moby/patternmatcher"

	"github.com/cove-dev/cove/internal/server/dockerfile"
)

// The bounds of one copy.
const (
	maxFiles = 1_000_000
	maxBytes = 64 << 30
	maxNames = 256 << 20 // bytes of all names and links' targets, which are kept
	maxPath  = 4096      // bytes of one in an archive
	maxDepth = 128
)

// target is the parent image with the layer that is being made.
type target struct {
	parent   Tree
	made     map[string]Info
	names    int  // bytes of the names in made
	replaced bool // a folder was replaced by a file or a link
}

func (t *target) Lstat(at string) (Info, error) {
	if info, ok := t.made[at]; ok {
		return info, nil
	}
	if t.replaced {
		for dir, _ := split(at); dir != ""; dir, _ = split(dir) {
			if info, ok := t.made[dir]; ok && !info.Mode.IsDir() {
				return Info{}, fs.ErrNotExist
			}
		}
	}
	return t.parent.Lstat(at)
}

// writer writes the layer of a copy.
type writer struct {
	ctx   context.Context
	tar   *tar.Writer
	to    *target
	c     dockerfile.Copy
	left  int64 // bytes
	owned bool
	uid   int
	gid   int
	links map[[2]uint64]string // of the source at hand
}

// Layer writes the tar of the layer that a COPY or an ADD makes over a parent. from has its
// sources; nil: there are only inline files. An error that the Dockerfile or the sources cause
// has the code dockerfile_bad.
func Layer(ctx context.Context, out io.Writer, c dockerfile.Copy, from, parent Tree) error {
	w := &writer{ctx: ctx, tar: tar.NewWriter(out), c: c, left: maxBytes}
	w.to = &target{parent: parent, made: map[string]Info{}}
	if c.Link {
		w.to.parent = Empty{}
	}
	if c.Chown != "" {
		var err error
		if w.uid, w.gid, err = owner(parent, c.Chown); err != nil {
			return fmt.Errorf("--chown: %w", err)
		}
		w.owned = true
	}
	sources, err := resolve(c, from)
	if err != nil {
		return err
	}
	if len(sources)+len(c.Inline) > 1 && !c.DestDir && !c.Parents {
		at, err := follow(w.to.Lstat, c.Dest)
		if err != nil {
			return err
		}
		info, err := w.to.Lstat(at)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if err != nil || !info.Mode.IsDir() {
			return refused("there are several sources, so %.300q must be a folder and end with a slash", c.Dest)
		}
	}
	for _, s := range sources {
		if err := w.source(s, from); err != nil {
			return err
		}
	}
	for _, f := range c.Inline {
		if err := w.inline(f); err != nil {
			return err
		}
	}
	return w.tar.Close()
}

// Folder writes, as the tar of a layer, a folder and its parents, as far as the parent image
// has none. They are the user's, which is as a configuration has it.
func Folder(out io.Writer, dir, user string, parent Tree) error {
	w := &writer{ctx: context.Background(), tar: tar.NewWriter(out), left: maxBytes}
	w.to = &target{parent: parent, made: map[string]Info{}}
	if user != "" {
		var err error
		if w.uid, w.gid, err = owner(parent, user); err != nil {
			return err
		}
		w.owned = true
	}
	if _, err := w.folders(dir); err != nil {
		return err
	}
	return w.tar.Close()
}

// folders makes a folder, and those above it, if they are not there. It returns the folder's
// path without links.
func (w *writer) folders(dir string) (string, error) {
	at, err := follow(w.to.Lstat, dir)
	if err != nil {
		return "", err
	}
	parts := strings.Split(at, "/")
	for i := range parts {
		cur := strings.Join(parts[:i+1], "/")
		if cur == "" {
			continue
		}
		info, err := w.to.Lstat(cur)
		switch {
		case err == nil && info.Mode.IsDir():
			continue
		case err == nil:
			return "", refused("%.300q is not a folder in the image", "/"+cur)
		case !errors.Is(err, fs.ErrNotExist):
			return "", err
		}
		made := Info{Mode: fs.ModeDir | 0o755, ModTime: time.Now()}
		if w.owned {
			made.UID, made.GID = w.uid, w.gid
		}
		if n, err := strconv.ParseUint(w.c.Chmod, 8, 32); err == nil && n <= 0o7777 {
			if made.Mode, err = dockerfile.ApplyMode(w.c.Chmod, fs.ModeDir); err != nil {
				return "", err
			}
		}
		if err := w.member(cur, made, "", nil); err != nil {
			return "", err
		}
	}
	return at, nil
}

// one is a source: one path of a tree, without wildcards.
type one struct {
	name    string // the last of the path as it was written
	at      string // links followed
	include string // --parents: the pattern of the files to copy from the folder at; empty: all
	must    bool   // something has to match
}

// resolve finds the sources of a copy in their tree.
func resolve(c dockerfile.Copy, from Tree) (all []one, err error) {
	for _, text := range c.Sources {
		if c.Parents {
			folder, pattern, ok := strings.Cut(text, "/./")
			if !ok {
				folder, pattern = "", text
			}
			pattern = strings.TrimPrefix(path.Join("/", pattern), "/")
			wild := wildcard(folder) || wildcard(pattern)
			matches, err := match(from, folder)
			if err != nil {
				return nil, err
			}
			for _, m := range matches {
				all = append(all, one{name: m.name, at: m.at, include: pattern, must: !wild})
			}
			continue
		}
		matches, err := match(from, text)
		if err != nil {
			return nil, err
		}
		if all = append(all, matches...); len(all) > maxFiles {
			return nil, refused("there are more than %d sources", maxFiles)
		}
	}
	for _, s := range all {
		if _, err := from.Lstat(s.at); errors.Is(err, fs.ErrNotExist) {
			return nil, refused("%.300q does not exist or is ignored", cmp.Or(s.at, "/"))
		} else if err != nil {
			return nil, err
		}
	}
	return all, nil
}

// wildcard reports whether a text has one.
func wildcard(text string) bool {
	for i := 0; i < len(text); i++ {
		switch text[i] {
		case '\\':
			i++
		case '*', '?', '[':
			return true
		}
	}
	return false
}

// match are the paths that a source means. A wildcard may match nothing.
func match(from Tree, text string) (all []one, err error) {
	clean := strings.TrimPrefix(path.Join("/", text), "/")
	parts := strings.Split(clean, "/")
	first := len(parts)
	for i, part := range parts {
		if wildcard(part) {
			first = i
			break
		}
	}
	base, err := follow(from.Lstat, strings.Join(parts[:first], "/"))
	if err != nil {
		return nil, err
	}
	if first == len(parts) {
		return []one{{name: parts[len(parts)-1], at: base}}, nil
	}
	for _, part := range parts[first:] {
		if _, err := path.Match(part, ""); err != nil {
			return nil, refused("%.300q is not a pattern", text)
		}
	}
	found, err := glob(from, base, parts[first:])
	if err != nil {
		return nil, err
	}
	for _, at := range found {
		_, name := split(at)
		to, err := follow(from.Lstat, at)
		if err != nil {
			return nil, err
		}
		all = append(all, one{name: name, at: to})
	}
	return all, nil
}

// glob are the paths below a folder that match, part by part. Links are not followed.
func glob(from Tree, dir string, parts []string) (all []string, err error) {
	info, err := from.Lstat(dir)
	if errors.Is(err, fs.ErrNotExist) || err == nil && !info.Mode.IsDir() {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	names, err := from.Names(dir)
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		if ok, _ := path.Match(parts[0], name); !ok {
			continue
		}
		at := path.Join(dir, name)
		if len(parts) > 1 {
			more, err := glob(from, at, parts[1:])
			if err != nil {
				return nil, err
			}
			all = append(all, more...)
			continue
		}
		if _, err := from.Lstat(at); errors.Is(err, fs.ErrNotExist) { // it is ignored
			continue
		} else if err != nil {
			return nil, err
		}
		all = append(all, at)
	}
	return all, nil
}

// source copies one source.
func (w *writer) source(s one, from Tree) error {
	info, err := from.Lstat(s.at)
	if err != nil {
		return err
	}
	if w.c.Add && s.include == "" && info.Mode.IsRegular() {
		if done, err := w.extract(s, from); done || err != nil {
			return err
		}
	}
	to, err := w.place(s.name, info.Mode.IsDir())
	if err != nil {
		return err
	}
	w.links = map[[2]uint64]string{}
	walk := &walk{
		ctx: w.ctx, from: from,
		visit: func(rel string, info Info, open func() (io.ReadCloser, error)) error {
			return w.put(path.Join(to, rel), rel == "", info, open)
		},
	}
	return walk.begin(s, w.c.Exclude)
}

// place returns the path that a source goes to, and makes its folder.
func (w *writer) place(name string, folder bool) (string, error) {
	dest := w.c.Dest
	if folder || w.c.DestDir {
		at, err := w.folders(dest)
		if err != nil || folder {
			return at, err
		}
		return path.Join(at, name), nil
	}
	at, err := follow(w.to.Lstat, dest)
	if err != nil {
		return "", err
	}
	info, err := w.to.Lstat(at)
	switch {
	case err == nil && info.Mode.IsDir():
		return path.Join(at, name), nil
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return "", err
	}
	dir, _ := split(at)
	_, err = w.folders(dir)
	return at, err
}

// put writes one file at a path; top: it is a source itself.
func (w *writer) put(at string, top bool, info Info, open func() (io.ReadCloser, error)) error {
	was, err := w.to.Lstat(at)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	there := err == nil
	switch {
	case there && info.Mode.IsDir() && !was.Mode.IsDir():
		return refused("%.300q is not a folder in the image, but a folder is copied to it", "/"+at)
	case there && !info.Mode.IsDir() && was.Mode.IsDir():
		return refused("%.300q is a folder in the image, but a file is copied to it", "/"+at)
	case there && top && info.Mode.IsDir():
		return nil // it stays what it is
	}
	if w.owned {
		info.UID, info.GID = w.uid, w.gid
	}
	if w.c.Chmod != "" && info.Mode&fs.ModeSymlink == 0 {
		if info.Mode, err = dockerfile.ApplyMode(w.c.Chmod, info.Mode); err != nil {
			return refused("%v", err)
		}
	}
	if info.Inode != [2]uint64{} {
		if first, ok := w.links[info.Inode]; ok {
			return w.member(at, info, first, nil)
		}
		w.links[info.Inode] = at
	}
	return w.member(at, info, "", open)
}

func (w *writer) inline(f dockerfile.File) error {
	at, err := w.place(f.Name, false)
	if err != nil {
		return err
	}
	w.links = nil
	return w.put(at, true, Info{Mode: fs.FileMode(f.Mode), Size: int64(len(f.Data)), ModTime: time.Unix(0, 0)}, func() (io.ReadCloser, error) {
		return io.NopCloser(strings.NewReader(f.Data)), nil
	})
}

// paxXattr begins the record of an extended attribute.
const paxXattr = "SCHILY.xattr."

// member writes one member of the layer. linked: the path of the member that it is a name of.
func (w *writer) member(at string, info Info, linked string, open func() (io.ReadCloser, error)) error {
	if err := w.ctx.Err(); err != nil {
		return context.Cause(w.ctx)
	}
	if at == "" {
		return nil // the root stays what it is
	}
	if _, name := split(at); strings.HasPrefix(name, ".wh.") {
		return refused("%.300q: a layer can't have a file whose name begins with .wh.", "/"+at)
	}
	if strings.Count(at, "/") >= maxDepth {
		return refused("%.300q is in more than %d nested folders", "/"+at, maxDepth)
	}
	h := &tar.Header{Format: tar.FormatPAX, Name: at, Mode: bits(info.Mode), Uid: info.UID, Gid: info.GID, ModTime: info.ModTime}
	switch {
	case linked != "":
		h.Typeflag, h.Linkname = tar.TypeLink, linked
	case info.Mode.IsRegular():
		h.Typeflag, h.Size = tar.TypeReg, info.Size
	case info.Mode.IsDir():
		h.Typeflag, h.Name = tar.TypeDir, at+"/"
	case info.Mode&fs.ModeSymlink != 0:
		h.Typeflag, h.Linkname = tar.TypeSymlink, info.Target
	case info.Mode&fs.ModeNamedPipe != 0:
		h.Typeflag = tar.TypeFifo
	default:
		return nil // no sprite may have a device, and a socket is nobody's
	}
	if h.Typeflag == tar.TypeReg || h.Typeflag == tar.TypeDir {
		for name, value := range info.Attrs {
			if carried(name) {
				if h.PAXRecords == nil {
					h.PAXRecords = map[string]string{}
				}
				h.PAXRecords[paxXattr+name] = value
			}
		}
	}
	if len(w.to.made) >= maxFiles {
		return refused("it copies more than %d files", maxFiles)
	}
	if w.to.names += len(at) + len(info.Target); w.to.names > maxNames {
		return refused("the names that it copies have more than %d bytes", maxNames)
	}
	info.Attrs = nil
	w.to.made[at] = info
	if w.left -= h.Size; w.left < 0 {
		return refused("it copies more than %d bytes", int64(maxBytes))
	}
	if err := w.tar.WriteHeader(h); err != nil {
		return fmt.Errorf("%.300q: %w", "/"+at, err)
	}
	if h.Typeflag != tar.TypeReg {
		return nil
	}
	r, err := open()
	if err != nil {
		return fmt.Errorf("read %.300q: %w", "/"+at, err)
	}
	defer r.Close()
	if _, err := io.CopyN(w.tar, contextReader{w.ctx, r}, h.Size); err != nil {
		return fmt.Errorf("read %.300q: %w", "/"+at, err)
	}
	return nil
}

// contextReader ends with its context.
type contextReader struct {
	ctx context.Context
	r   io.Reader
}

func (c contextReader) Read(b []byte) (int, error) {
	if c.ctx.Err() != nil {
		return 0, context.Cause(c.ctx)
	}
	return c.r.Read(b)
}

// bits are the permissions of a mode, as a tar has them.
func bits(m fs.FileMode) int64 {
	n := int64(m.Perm())
	for bit, flag := range map[int64]fs.FileMode{0o4000: fs.ModeSetuid, 0o2000: fs.ModeSetgid, 0o1000: fs.ModeSticky} {
		if m&flag != 0 {
			n |= bit
		}
	}
	return n
}

// carried reports whether an extended attribute is a file's own, and can be in a layer.
func carried(name string) bool {
	switch name {
	case "security.capability", "system.posix_acl_access", "system.posix_acl_default":
		return true
	}
	return strings.HasPrefix(name, "user.") && !strings.HasPrefix(name, "user.overlay.") && len(name) > len("user.") && !strings.ContainsAny(name, "=\x00\n")
}

// walk goes through a source.
type walk struct {
	ctx              context.Context
	from             Tree
	include, exclude *patternmatcher.PatternMatcher
	pending          []string // folders above that are visited if something in them is
	visited          int
	visit            func(rel string, info Info, open func() (io.ReadCloser, error)) error
}

func (w *walk) begin(s one, exclude []string) (err error) {
	if len(exclude) > 0 {
		if w.exclude, err = patternmatcher.New(exclude); err != nil {
			return refused("--exclude: %v", err)
		}
	}
	if s.include != "" {
		if w.include, err = patternmatcher.New([]string{s.include}); err != nil {
			return refused("%.300q is not a pattern", s.include)
		}
	}
	if err := w.at(s.at, "", 0, patternmatcher.MatchInfo{}, patternmatcher.MatchInfo{}); err != nil {
		return err
	}
	if s.must && w.visited == 0 {
		return refused("%.300q does not exist or is ignored", path.Join(s.at, s.include))
	}
	return nil
}

// at visits a path, which is rel below the source, and all in it.
func (w *walk) at(at, rel string, depth int, inc, exc patternmatcher.MatchInfo) error {
	if w.ctx.Err() != nil {
		return context.Cause(w.ctx)
	}
	if depth > maxDepth {
		return refused("%.300q is in more than %d nested folders", at, maxDepth)
	}
	info, err := w.from.Lstat(at)
	if errors.Is(err, fs.ErrNotExist) && rel != "" {
		return nil // it is ignored, or gone
	}
	if err != nil {
		return err
	}
	included := true
	if rel != "" && w.include != nil {
		if included, inc, err = w.include.MatchesUsingParentResults(rel, inc); err != nil {
			return err
		}
	}
	if rel != "" && w.exclude != nil {
		var out bool
		if out, exc, err = w.exclude.MatchesUsingParentResults(rel, exc); err != nil {
			return err
		}
		included = included && !out
	}
	if included {
		if err := w.above(); err != nil {
			return err
		}
		if rel != "" {
			w.visited++
		}
		if err := w.visit(rel, info, func() (io.ReadCloser, error) { return w.from.Open(at) }); err != nil {
			return err
		}
	}
	if !info.Mode.IsDir() {
		return nil
	}
	if !included {
		w.pending = append(w.pending, at, rel)
		n := len(w.pending)
		defer func() { w.pending = w.pending[:min(len(w.pending), n-2)] }()
	}
	names, err := w.from.Names(at)
	if err != nil {
		return err
	}
	for _, name := range names {
		if err := w.at(path.Join(at, name), path.Join(rel, name), depth+1, inc, exc); err != nil {
			return err
		}
	}
	return nil
}

// above visits the folders above that were not, because something in them is.
func (w *walk) above() error {
	for i := 0; i < len(w.pending); i += 2 {
		info, err := w.from.Lstat(w.pending[i])
		if err != nil {
			return err
		}
		if err := w.visit(w.pending[i+1], info, nil); err != nil {
			return err
		}
	}
	w.pending = w.pending[:0]
	return nil
}
