package archive

import (
	"archive/tar"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cove-dev/cove/internal/server/extract"
)

// extractor makes the tree of an archive. It keeps open the current folder and those
// above it, and gives the kernel only single names in an open folder. Only the targets
// of hard links are reached by a path.
type extractor struct {
	target Target
	open   []unfinished // the root first
	roots  map[string]int
}

// unfinished is a folder that is not complete yet.
type unfinished struct {
	at    string
	mount string
	fd    int
	h     *tar.Header
}

func (p *extractor) close() (err error) {
	for _, d := range p.open {
		err = errors.Join(err, unix.Close(d.fd))
	}
	for _, fd := range p.roots {
		err = errors.Join(err, unix.Close(fd))
	}
	p.open, p.roots = nil, nil
	return err
}

// finish completes all folders.
func (p *extractor) finish() error {
	if len(p.open) == 0 {
		return nil // of a sprite that has never run
	}
	return p.leave(0)
}

// leave completes folders until n are open. Their contents are complete, so their times
// stay.
func (p *extractor) leave(n int) error {
	for len(p.open) > n {
		last := len(p.open) - 1
		d := p.open[last]
		p.open = p.open[:last]
		if err := errors.Join(p.describe(d.fd, d.h), unix.Close(d.fd)); err != nil {
			return err
		}
	}
	return nil
}

// folderOf goes to the folder that a path is in, which must be open.
func (p *extractor) folderOf(h *tar.Header, at string) (*unfinished, error) {
	dir := path.Dir(at)
	if dir == "." {
		dir = ""
	}
	for n := len(p.open); n > 0; n-- {
		if p.open[n-1].at == dir {
			return &p.open[n-1], p.leave(n)
		}
	}
	return nil, refuse(h.Name, "it does not follow its folder")
}

// name goes to the folder of a new path, and returns the path's last name. It refuses
// the path of another mount.
func (p *extractor) name(h *tar.Header, at string) (*unfinished, string, error) {
	if _, ok := p.target.Uppers[at]; ok {
		return nil, "", refuse(h.Name, "it can only be a folder here")
	}
	d, err := p.folderOf(h, at)
	return d, path.Base(at), err
}

// made refuses a member if its error is the archive's fault.
func made(h *tar.Header, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.EEXIST):
		return refuse(h.Name, "it is there twice")
	case errors.Is(err, unix.ENAMETOOLONG), errors.Is(err, unix.EMLINK):
		return refuse(h.Name, "this disk can't hold it: %v", err)
	}
	return fmt.Errorf("make %.300q: %w", h.Name, err)
}

func (p *extractor) folder(h *tar.Header, at string) error {
	if upper, ok := p.target.Uppers[at]; ok {
		return p.mount(h, at, upper)
	}
	d, name, err := p.name(h, at)
	if err != nil {
		return err
	}
	fd, err := extract.Folder(d.fd, name)
	if err != nil {
		return made(h, err)
	}
	p.open = append(p.open, unfinished{at, d.mount, fd, h})
	return nil
}

// mount makes the topmost folder of a mount. Those besides the root's follow it.
func (p *extractor) mount(h *tar.Header, at, upper string) error {
	if at != "" {
		if len(p.open) == 0 {
			return refuse(h.Name, "it does not follow its folder")
		}
		if err := p.leave(1); err != nil {
			return err
		}
	}
	if err := errors.Join(os.MkdirAll(filepath.Dir(upper), 0o700), os.Mkdir(upper, 0o700)); err != nil {
		return made(h, err)
	}
	fd, err := extract.Open(unix.AT_FDCWD, upper)
	if err != nil {
		return made(h, err)
	}
	p.open = append(p.open, unfinished{at, at, fd, h})
	root, err := extract.Duplicate(fd)
	if err != nil {
		return made(h, err)
	}
	if p.roots == nil {
		p.roots = map[string]int{}
	}
	p.roots[at] = root
	return nil
}

// opaque has nothing of the base seen in a folder, which is the one at hand.
func (p *extractor) opaque(h *tar.Header, dir string) error {
	d, err := p.folderOf(h, path.Join(dir, opaque))
	if err != nil {
		return err
	}
	return made(h, extract.Opaque(d.fd, p.target.UserXattr))
}

// whiteout has a name of the base be deleted.
func (p *extractor) whiteout(h *tar.Header, at string) error {
	if b := path.Base(at); b == "" || b == "." || b == ".." || strings.HasSuffix(h.Name, whiteout) {
		return refuse(h.Name, "it is a whiteout that names nothing")
	}
	d, name, err := p.name(h, at)
	if err != nil {
		return err
	}
	return made(h, extract.Whiteout(d.fd, name))
}

func (p *extractor) create(h *tar.Header, at string) (*os.File, error) {
	d, name, err := p.name(h, at)
	if err != nil {
		return nil, err
	}
	f, err := extract.File(d.fd, name)
	return f, made(h, err)
}

func (p *extractor) symlink(h *tar.Header, at string) error {
	d, name, err := p.name(h, at)
	if err != nil {
		return err
	}
	if h.Linkname == "" || len(h.Linkname) >= unix.PathMax || strings.ContainsRune(h.Linkname, 0) {
		return refuse(h.Name, "it is a link to nowhere")
	}
	return described(h, extract.Symlink(d.fd, name, h.Linkname, meta(h)))
}

func (p *extractor) fifo(h *tar.Header, at string) error {
	d, name, err := p.name(h, at)
	if err != nil {
		return err
	}
	return described(h, extract.Fifo(d.fd, name, meta(h)))
}

// link makes a second name of a file of the same mount.
func (p *extractor) link(h *tar.Header, at, to string) error {
	d, name, err := p.name(h, at)
	if err != nil {
		return err
	}
	below, ok := to, true
	if d.mount != "" {
		below, ok = strings.CutPrefix(to, d.mount+"/")
	} else if first, _, _ := strings.Cut(to, "/"); first != "" {
		_, elsewhere := p.target.Uppers[first]
		ok = !elsewhere
	}
	if !ok {
		return refuse(h.Name, "it is a hard link to %.300q, which is on another mount", h.Linkname)
	}
	dir, err := extract.Beneath(p.roots[d.mount], path.Dir(below), unix.O_PATH)
	if err != nil {
		return refuse(h.Name, "it is a hard link to %.300q, but the target's folder does not come before it", h.Linkname)
	}
	defer unix.Close(dir)
	var st unix.Stat_t
	if err := unix.Fstatat(dir, path.Base(below), &st, unix.AT_SYMLINK_NOFOLLOW); err != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
		return refuse(h.Name, "it is a hard link to %.300q, which is not a file before it", h.Linkname)
	}
	return made(h, unix.Linkat(dir, path.Base(below), d.fd, name, 0))
}

// meta is what a member's header says of it, its attributes aside.
func meta(h *tar.Header) extract.Meta {
	return extract.Meta{UID: h.Uid, GID: h.Gid, Mode: uint32(h.Mode), Time: h.ModTime}
}

// described refuses a member if its owner, attributes, mode or time can't be set, and
// that is the archive's fault.
func described(h *tar.Header, err error) error {
	if owner, ok := errors.AsType[*extract.OwnerError](err); ok {
		if errors.Is(err, unix.EINVAL) {
			return fmt.Errorf("make %.300q: it belongs to user %d and group %d, which this server's user namespace does not have; see: cove doctor", h.Name, h.Uid, h.Gid)
		}
		return made(h, owner.Err)
	}
	if errors.As(err, new(*Error)) {
		return err
	}
	return made(h, err)
}

// describe gives an open file or folder its owner, attributes, mode and time.
func (p *extractor) describe(fd int, h *tar.Header) error {
	attrs, err := xattrs(h)
	if err != nil {
		return err
	}
	m := meta(h)
	m.Attrs = attrs
	return described(h, extract.Describe(fd, m, func(name string, err error) error {
		if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ERANGE) || errors.Is(err, unix.E2BIG) {
			return refuse(h.Name, "its attribute %.100q can't be set here: %v", name, err)
		}
		return err
	}))
}
