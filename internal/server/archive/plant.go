package archive

import (
	"archive/tar"
	"errors"
	"fmt"
	"math"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// planter makes the tree of an archive. The folder at hand and those above it are
// open, and nothing is reached by a path but the targets of hard links: a name is one
// name in an open folder.
type planter struct {
	target Target
	open   []planted // the root first
	roots  map[string]int
}

// planted is a folder that is not complete yet.
type planted struct {
	at    string
	mount string
	fd    int
	h     *tar.Header
}

func (p *planter) close() (err error) {
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
func (p *planter) finish() error {
	if len(p.open) == 0 {
		return nil // of a sprite that has never run
	}
	return p.leave(0)
}

// leave completes folders, until n are open: what is in them is, so their times stay.
func (p *planter) leave(n int) error {
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
func (p *planter) folderOf(h *tar.Header, at string) (*planted, error) {
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

// name is a new name in a folder. Where another mount is there is none.
func (p *planter) name(h *tar.Header, at string) (*planted, string, error) {
	if _, ok := p.target.Uppers[at]; ok {
		return nil, "", refuse(h.Name, "it can only be a folder here")
	}
	d, err := p.folderOf(h, at)
	return d, path.Base(at), err
}

// made says whose fault it is that something can't be made.
func made(h *tar.Header, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.EEXIST):
		return refuse(h.Name, "it is there twice")
	case errors.Is(err, unix.ENAMETOOLONG), errors.Is(err, unix.EMLINK):
		return refuse(h.Name, "this disk can't have it: %v", err)
	}
	return fmt.Errorf("make %.300q: %w", h.Name, err)
}

func (p *planter) folder(h *tar.Header, at string) error {
	if upper, ok := p.target.Uppers[at]; ok {
		return p.mount(h, at, upper)
	}
	d, name, err := p.name(h, at)
	if err != nil {
		return err
	}
	if err := unix.Mkdirat(d.fd, name, 0o700); err != nil {
		return made(h, err)
	}
	fd, err := unix.Openat(d.fd, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return made(h, err)
	}
	p.open = append(p.open, planted{at, d.mount, fd, h})
	return nil
}

// mount makes the topmost folder of a mount. Those besides the root's follow it.
func (p *planter) mount(h *tar.Header, at, upper string) error {
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
	fd, err := unix.Open(upper, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return made(h, err)
	}
	p.open = append(p.open, planted{at, at, fd, h})
	root, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
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
func (p *planter) opaque(h *tar.Header, dir string) error {
	d, err := p.folderOf(h, path.Join(dir, opaque))
	if err != nil {
		return err
	}
	name := "trusted.overlay.opaque"
	if p.target.UserXattr {
		name = "user.overlay.opaque"
	}
	return made(h, unix.Fsetxattr(d.fd, name, []byte("y"), 0))
}

// whiteout has a name of the base be deleted.
func (p *planter) whiteout(h *tar.Header, at string) error {
	if b := path.Base(at); b == "" || b == "." || b == ".." || strings.HasSuffix(h.Name, whiteout) {
		return refuse(h.Name, "it says that nothing is deleted")
	}
	d, name, err := p.name(h, at)
	if err != nil {
		return err
	}
	return made(h, unix.Mknodat(d.fd, name, unix.S_IFCHR, 0))
}

func (p *planter) create(h *tar.Header, at string) (*os.File, error) {
	d, name, err := p.name(h, at)
	if err != nil {
		return nil, err
	}
	fd, err := unix.Openat(d.fd, name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, made(h, err)
	}
	return os.NewFile(uintptr(fd), name), nil
}

func (p *planter) symlink(h *tar.Header, at string) error {
	d, name, err := p.name(h, at)
	if err != nil {
		return err
	}
	if h.Linkname == "" || len(h.Linkname) >= unix.PathMax || strings.ContainsRune(h.Linkname, 0) {
		return refuse(h.Name, "it is a link to nowhere")
	}
	if err := unix.Symlinkat(h.Linkname, d.fd, name); err != nil {
		return made(h, err)
	}
	return p.describeAt(d.fd, name, h)
}

func (p *planter) fifo(h *tar.Header, at string) error {
	d, name, err := p.name(h, at)
	if err != nil {
		return err
	}
	if err := unix.Mknodat(d.fd, name, unix.S_IFIFO|0o600, 0); err != nil {
		return made(h, err)
	}
	if err := p.describeAt(d.fd, name, h); err != nil {
		return err
	}
	return made(h, unix.Fchmodat(d.fd, name, uint32(h.Mode), 0)) // it is what was just made, and nobody else's
}

// link makes a second name of a file of the same mount.
func (p *planter) link(h *tar.Header, at, to string) error {
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
	how := unix.OpenHow{Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_XDEV}
	dir, err := unix.Openat2(p.roots[d.mount], path.Dir(below), &how)
	if err != nil {
		return refuse(h.Name, "it is a hard link to %.300q, whose folder is not before it", h.Linkname)
	}
	defer unix.Close(dir)
	var st unix.Stat_t
	if err := unix.Fstatat(dir, path.Base(below), &st, unix.AT_SYMLINK_NOFOLLOW); err != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
		return refuse(h.Name, "it is a hard link to %.300q, which is no file before it", h.Linkname)
	}
	return made(h, unix.Linkat(dir, path.Base(below), d.fd, name, 0))
}

// The times that a sandbox can see: it counts nanoseconds from 1970.
var minTime, maxTime = time.Unix(0, math.MinInt64), time.Unix(0, math.MaxInt64)

// times are a member's, for the system.
func times(t time.Time) []unix.Timespec {
	if t.Before(minTime) {
		t = minTime
	} else if t.After(maxTime) {
		t = maxTime
	}
	ts := unix.Timespec{Sec: t.Unix(), Nsec: int64(t.Nanosecond())}
	return []unix.Timespec{ts, ts}
}

// owned says whose fault it is that a file can't be another user's.
func owned(h *tar.Header, err error) error {
	if errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("make %.300q: it is user %d's and group %d's, whom this server's user namespace does not have; see: cove doctor", h.Name, h.Uid, h.Gid)
	}
	return made(h, err)
}

// describe gives an open file or folder its owner, attributes, mode and time.
func (p *planter) describe(fd int, h *tar.Header) error {
	if err := unix.Fchown(fd, h.Uid, h.Gid); err != nil { // first: it takes bits of the mode away
		return owned(h, err)
	}
	attrs, err := xattrs(h)
	if err != nil {
		return err
	}
	for name, value := range attrs {
		err := unix.Fsetxattr(fd, name, []byte(value), 0)
		if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ERANGE) || errors.Is(err, unix.E2BIG) {
			return refuse(h.Name, "its attribute %.100q is none that can be: %v", name, err)
		}
		if err != nil {
			return made(h, err)
		}
	}
	if err := unix.Fchmod(fd, uint32(h.Mode)); err != nil {
		return made(h, err)
	}
	return made(h, unix.UtimesNanoAt(unix.AT_FDCWD, fmt.Sprintf("/proc/self/fd/%d", fd), times(h.ModTime), 0))
}

// describeAt gives what is not opened its owner and time.
func (p *planter) describeAt(dir int, name string, h *tar.Header) error {
	if err := unix.Fchownat(dir, name, h.Uid, h.Gid, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return owned(h, err)
	}
	return made(h, unix.UtimesNanoAt(dir, name, times(h.ModTime), unix.AT_SYMLINK_NOFOLLOW))
}
