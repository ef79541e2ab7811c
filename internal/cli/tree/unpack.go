// Package tree moves a folder with all its content between this machine and a sandbox. It
// packs a folder as an archive, and unpacks an archive that anybody may have made.
package tree

import (
	"archive/tar"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"

	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/lib/filesync"
	"github.com/cove-dev/cove/internal/lib/printable"
	"github.com/cove-dev/cove/internal/lib/safepath"
)

const (
	maxMembers   = 1 << 20   // of an archive, with the folders that it does not mention
	maxNameBytes = 4096      // of a member, as the kernel has it
	maxKept      = 20 << 20  // bytes of folders and links that are remembered until the end
	keptEach     = 100       // bytes for one folder or link, besides its names
	copyBuffer   = 512 << 10 // of file contents
)

// refused says why a member of an archive that came from a sandbox is not taken.
func refused(name, why string) *fail.Error {
	return fail.Newf("rejected", "", "refused %s: %s; nothing was copied", printable.Line(fmt.Sprintf("%q", name)), why)
}

// unpacker unpacks an archive from a hostile source into a folder. No member gets out of the
// folder. It creates all that it writes, and never replaces anything.
type unpacker struct {
	root    *os.Root
	counted func(n int)
	room    room
	buf     []byte
	members int
	kept    int       // about the bytes of the fields below
	dirs    []dirMeta // folders that get mode and time at the end
	links   []symlink // which are made at the end, so that nothing is written through one
	leave   LeaveLink // nil: a link that leads out is refused

	parts map[string]safepath.GitParts // of the folders that have any
}

type dirMeta struct {
	name string
	mode fs.FileMode
	time time.Time
}

type symlink struct{ name, target string }

// LeaveLink is told of each link that is left out because it leads out of the folder.
type LeaveLink func(name, target string)

// unpack writes an archive below root, which should be empty.
func unpack(r io.Reader, root *os.Root, count func(n int), leave LeaveLink) error {
	u := &unpacker{root: root, counted: count, leave: leave, room: newRoom(), buf: make([]byte, copyBuffer), parts: map[string]safepath.GitParts{}}
	source := &sourceReader{r: r}
	tr := tar.NewReader(source)
	for {
		h, err := tr.Next()
		if err == io.EOF {
			break
		}
		if err != nil && source.err == nil {
			return fail.Newf("rejected", "", "the archive is damaged: %v; nothing was copied", err)
		}
		if err != nil {
			return fmt.Errorf("read the archive: %w", err)
		}
		if err := u.count(h, 1); err != nil {
			return err
		}
		if err := u.member(h, tr); err != nil {
			return err
		}
	}
	return u.finish()
}

// sourceReader tells an archive that is wrong from one that could not be read.
type sourceReader struct {
	r   io.Reader
	err error // of reading, but for the end
}

func (s *sourceReader) Read(p []byte) (int, error) {
	n, err := s.r.Read(p)
	if err != nil && err != io.EOF {
		s.err = err
	}
	return n, err
}

// count bounds how many files and folders an archive makes.
func (u *unpacker) count(h *tar.Header, n int) error {
	if u.members += n; u.members > maxMembers {
		return refused(h.Name, fmt.Sprintf("the archive has more than %d members", maxMembers))
	}
	return nil
}

// keep counts what the unpacker remembers of an archive, and refuses too much.
func (u *unpacker) keep(h *tar.Header, names ...string) error {
	u.kept += keptEach
	for _, name := range names {
		u.kept += len(name)
	}
	if u.kept > maxKept {
		return refused(h.Name, fmt.Sprintf("the folders and links before it are more than %d MiB, with their names", maxKept>>20))
	}
	return nil
}

// memberName is a member's place below the root, or why it must not have one.
func memberName(h *tar.Header) (string, error) {
	name := h.Name
	switch {
	case name == "":
		return "", refused(name, "it has no name")
	case len(name) > maxNameBytes:
		return "", refused(name[:40]+"…", "its name is too long")
	case strings.ContainsRune(name, 0):
		return "", refused(name, "its name has a zero byte")
	case path.IsAbs(name):
		return "", refused(name, "its name is absolute")
	}
	for part := range strings.SplitSeq(name, "/") {
		if part == ".." {
			return "", refused(name, `its name has ".."`)
		}
		if safepath.IsDotGit(part) {
			return "", refused(name, gitsOwn)
		}
	}
	return path.Clean(name), nil
}

// inRepository is why nothing from a sprite makes a folder one that git takes for a
// repository though it has no .git.
const inRepository = "git would take its folder for a repository, and run what the config and the hooks there say; copy without it, or as an archive: cove cp SPRITE:PATH - > FILE.tar"

// part notes the git parts that a member adds to the folders that it is in.
func (u *unpacker) part(name string, h *tar.Header) error {
	for ; name != "."; name = path.Dir(name) {
		part, dir := safepath.GitPart(path.Base(name)), path.Dir(name)
		was, known := u.parts[dir]
		if part&^was == 0 {
			continue
		}
		if !known {
			if err := u.keep(h, dir); err != nil {
				return err
			}
		}
		if u.parts[strings.Clone(dir)] = was | part; (was | part).Repository() {
			return refused(h.Name, inRepository)
		}
	}
	return nil
}

// gitsOwn is why no file from a sprite becomes part of git's own folder: git runs what the
// files there say.
const gitsOwn = "git would take it for its own, and run what it says; commits come home by cove pull JOB, or as a file by git bundle"

func (u *unpacker) member(h *tar.Header, content io.Reader) error {
	name, err := memberName(h)
	if err != nil {
		return err
	}
	if err := u.part(name, h); err != nil {
		return err
	}
	if h.Mode&^0o1777 != 0 && h.Mode&0o6000 != 0 {
		return refused(h.Name, "it has the setuid or setgid bit")
	}
	mode := fs.FileMode(h.Mode & 0o755) // others than the owner never may write
	if h.Typeflag != tar.TypeDir {
		if name == "." {
			return refused(h.Name, "it stands for the folder itself, but is not a folder")
		}
		if err := u.parents(name, h); err != nil {
			return memberFailed(h, err)
		}
	}
	switch h.Typeflag {
	case tar.TypeDir:
		err = u.dir(name, mode, h)
	case tar.TypeReg:
		err = u.file(name, mode, h, content)
	case tar.TypeSymlink:
		err = u.symlink(name, h)
	case tar.TypeLink:
		err = u.hardLink(name, h)
	case tar.TypeChar, tar.TypeBlock:
		err = refused(h.Name, "it is a device")
	case tar.TypeFifo:
		err = refused(h.Name, "it is a pipe")
	default:
		err = refused(h.Name, fmt.Sprintf("it is of a kind (%q) that is not known", h.Typeflag))
	}
	return memberFailed(h, err)
}

// memberFailed says which member an error of the file system concerns. A name
// that exists was twice in the archive: the folder was empty.
func memberFailed(h *tar.Header, err error) error {
	if err == nil {
		return nil
	}
	if errors.Is(err, &fail.Error{Code: "rejected"}) {
		return err
	}
	if errors.Is(err, fs.ErrExist) {
		return refused(h.Name, "its name is in the archive twice")
	}
	if strings.Contains(err.Error(), "path escapes from parent") {
		return refused(h.Name, "it leads out of the folder")
	}
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return fail.Newf("rejected", "", "the archive ends in the middle of %s; nothing was copied", printable.Line(h.Name))
	}
	return fmt.Errorf("write %s: %w", printable.Line(h.Name), err)
}

// parents makes the folders above a member that the archive did not mention.
func (u *unpacker) parents(name string, h *tar.Header) error {
	dir := path.Dir(name)
	if _, err := u.root.Lstat(dir); err == nil {
		return nil // the caller finds a file or a link there
	}
	if err := u.count(h, strings.Count(dir, "/")+1); err != nil {
		return err
	}
	return u.root.MkdirAll(dir, 0o755)
}

// dir makes a folder. Names of members are cloned where they are kept: they may be
// a part of a record of a megabyte.
func (u *unpacker) dir(name string, mode fs.FileMode, h *tar.Header) error {
	if err := u.keep(h, name); err != nil {
		return err
	}
	if name != "." {
		if err := u.parents(name, h); err != nil {
			return err
		}
		if err := u.root.MkdirAll(name, 0o755); err != nil {
			return err
		}
	}
	u.dirs = append(u.dirs, dirMeta{strings.Clone(name), mode, h.ModTime})
	return nil
}

// isSparse reports whether a member's content is not all in the archive: it would
// say any size for a few bytes. Our own tar makes none.
func isSparse(h *tar.Header) bool {
	if h.Typeflag == tar.TypeGNUSparse {
		return true
	}
	for key := range h.PAXRecords {
		if strings.HasPrefix(key, "GNU.sparse.") {
			return true
		}
	}
	return false
}

func (u *unpacker) file(name string, mode fs.FileMode, h *tar.Header, content io.Reader) error {
	if isSparse(h) {
		return refused(h.Name, "it is sparse, and says a size that is not in the archive")
	}
	f, err := u.root.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	if err = u.room.take(f, h.Size); err == nil {
		_, err = io.CopyBuffer(struct{ io.Writer }{f}, struct{ io.Reader }{countingReader{content, u.counted}}, u.buf)
	}
	if err = errors.Join(err, f.Chmod(mode), f.Close()); err != nil {
		return err
	}
	return u.root.Chtimes(name, time.Time{}, h.ModTime)
}

// symlink notes a link that stays below the root.
func (u *unpacker) symlink(name string, h *tar.Header) error {
	target := h.Linkname
	switch {
	case target == "" || strings.ContainsRune(target, 0) || len(target) > maxNameBytes:
		return refused(h.Name, "it is a link to nowhere")
	case path.IsAbs(target):
		return u.leadsOut(h, fmt.Sprintf("it is a link to the absolute path %q", target))
	}
	for part := range strings.SplitSeq(target, "/") {
		if safepath.IsDotGit(part) {
			return refused(h.Name, "it is a link into git's own folder")
		}
	}
	if err := u.keep(h, name, target); err != nil {
		return err
	}
	if safepath.LinkLeaves(path.Dir(name), target) {
		return u.leadsOut(h, fmt.Sprintf("it is a link out of the folder, to %q", target))
	}
	if _, err := u.root.Lstat(name); err == nil {
		return fs.ErrExist
	}
	u.links = append(u.links, symlink{strings.Clone(name), strings.Clone(target)})
	return nil
}

// leadsOut leaves out a link that leads out of the folder, or refuses it. Such a link is never
// made: it would lead to this machine's files.
func (u *unpacker) leadsOut(h *tar.Header, why string) error {
	if u.leave == nil {
		e := refused(h.Name, why)
		e.Hint = "without such links: --links skip; with the files of the sprite that links lead to: --links follow"
		return e
	}
	u.leave(h.Name, h.Linkname)
	return nil
}

// hardLink makes a second name of a file that the archive has given already.
func (u *unpacker) hardLink(name string, h *tar.Header) error {
	target, err := memberName(&tar.Header{Name: h.Linkname})
	if err != nil {
		return refused(h.Name, fmt.Sprintf("it is a hard link out of the folder, to %q", h.Linkname))
	}
	info, err := u.root.Lstat(target)
	if err != nil || !info.Mode().IsRegular() {
		return refused(h.Name, fmt.Sprintf("it is a hard link to %q, which is not a file before it in the archive", h.Linkname))
	}
	return u.root.Link(target, name)
}

// finish makes the links, and gives the folders their modes and times, the
// innermost first.
func (u *unpacker) finish() error {
	for _, l := range u.links {
		if err := u.root.Symlink(l.target, l.name); err != nil {
			return memberFailed(&tar.Header{Name: l.name}, err)
		}
	}
	for i := len(u.dirs) - 1; i >= 0; i-- {
		d := u.dirs[i]
		if err := u.root.Chtimes(d.name, time.Time{}, d.time); err != nil {
			return memberFailed(&tar.Header{Name: d.name}, err)
		}
		if err := u.root.Chmod(d.name, d.mode); err != nil {
			return memberFailed(&tar.Header{Name: d.name}, err)
		}
	}
	return nil
}

// Receive unpacks an archive as the folder dst. It first unpacks and checks everything
// beside dst, and then renames: the whole folder if dst does not exist, otherwise file by
// file. If it fails before that, dst is as it was. count is called for each piece of
// contents. archive is called once; its error counts even if the archive was whole.
func Receive(dst string, count func(n int), leave LeaveLink, archive func(unpack func(io.Reader) error) error) (err error) {
	parentName, base := SplitPath(dst)
	if err := CheckPlace(dst); err != nil {
		return err
	}
	parent, err := os.OpenRoot(parentName)
	if err != nil {
		return fmt.Errorf("copy to %s: %w", dst, err)
	}
	defer parent.Close()
	tmp := ".cove-" + rand.Text()
	if err := parent.Mkdir(tmp, 0o700); err != nil {
		return fmt.Errorf("copy to %s: %w", dst, err)
	}
	defer func() { err = errors.Join(err, removeTree(parent, tmp)) }()
	below, err := parent.OpenRoot(tmp)
	if err != nil {
		return err
	}
	err = archive(func(r io.Reader) error { return unpack(r, below, count, leave) })
	if err := errors.Join(err, below.Close()); err != nil {
		return err
	}
	info, err := parent.Lstat(base)
	if errors.Is(err, fs.ErrNotExist) {
		return parent.Rename(tmp, base)
	}
	if err != nil {
		return err
	}
	if !info.IsDir() {
		return fmt.Errorf("copy to %s: it exists and is not a folder", dst)
	}
	return mergeTree(parent, tmp, base)
}

// CheckPlace returns an error if git would decide by dst what to run, as by a repository's
// hooks: a sprite's files must not come there.
func CheckPlace(dst string) error {
	full, err := filepath.Abs(dst)
	if err != nil {
		return err
	}
	if safepath.IsDotGit(filepath.Base(full)) {
		return refused(dst, gitsOwn)
	}
	if filesync.InRepository(full) {
		return refused(dst, "git runs what is there; copy it to another place, look at it, and move it")
	}
	return nil
}

// removeTree deletes a folder of ours, even if a mode in it forbids that.
func removeTree(root *os.Root, name string) error {
	if err := root.RemoveAll(name); err == nil {
		return nil
	}
	openFolders(root, name)
	return root.RemoveAll(name)
}

// openFolders makes all folders below one writable for their owner, as far as it can.
func openFolders(root *os.Root, name string) {
	_ = openFolder(root, name)
	_ = eachEntry(root, name, func(d fs.DirEntry) error {
		if d.IsDir() {
			openFolders(root, path.Join(name, d.Name()))
		}
		return nil
	})
}

// countingReader calls count with the number of bytes of each read.
type countingReader struct {
	io.Reader
	count func(n int)
}

func (r countingReader) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	r.count(n)
	return n, err
}
