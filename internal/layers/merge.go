package layers

import (
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Merge makes the folder dst, which must not exist, a layer that is the same as
// others on top of each other, the lowest first. Files are linked, not copied, so
// dst is on their file system; nothing of theirs is changed. What was renamed or
// deleted stays so over whatever lies below. userXattr is as in Overlay. On an
// error there is no dst; beside it, names that begin with its name and a dot may be
// left.
func Merge(dst string, layers []string, userXattr bool) error {
	m := &merger{dst: dst + ".merge", stage: dst + ".moved", prefix: Overlay{UserXattr: userXattr}.xattrPrefix()}
	for _, dir := range []string{m.dst, m.stage} {
		if err := Remove(dir); err != nil {
			return fmt.Errorf("merge layers: %w", err)
		}
	}
	err := os.Mkdir(m.stage, 0o700)
	for i, layer := range layers {
		if err != nil {
			break
		}
		if i == 0 {
			err = m.linkTree(layer, m.dst)
		} else {
			err = m.apply(layer)
		}
	}
	if err == nil {
		err = os.Rename(m.dst, dst)
	}
	if err = errors.Join(err, Remove(m.stage)); err != nil {
		return fmt.Errorf("merge layers: %w", err)
	}
	return nil
}

// merger puts one layer after the other on what there is in dst.
type merger struct {
	dst, stage string
	prefix     string // of the overlay's own attributes
	staged     int
}

// moved is where the content of a folder that a layer has renamed comes from.
type moved struct {
	from   string // its path in the layers below this one
	staged string // what dst had there, put aside; empty: nothing
	below  string // the path of the rest of it in the layers below dst; empty: there is none
}

func (m *merger) opaque(dir string) bool {
	v, ok := getXattr(dir, m.prefix+"opaque")
	return ok && v == "y"
}

func (m *merger) redirect(dir string) string {
	v, _ := getXattr(dir, m.prefix+"redirect")
	return v
}

// isWhiteout reports whether a file is a mark of something deleted.
func isWhiteout(file string) bool {
	var st unix.Stat_t
	return unix.Lstat(file, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFCHR && st.Rdev == 0
}

// apply puts a layer on dst.
func (m *merger) apply(layer string) error {
	// What the layer has renamed must be out of the way before what it deleted goes.
	renamed := map[string]*moved{}
	if err := m.findMoved(layer, "", "/", renamed); err != nil {
		return err
	}
	paths := make([]string, 0, len(renamed))
	for p, mv := range renamed {
		mv.below = m.below(mv.from)
		paths = append(paths, p)
	}
	slices.SortFunc(paths, func(a, b string) int { // inner folders first: they have left the outer ones
		return strings.Count(renamed[b].from, "/") - strings.Count(renamed[a].from, "/")
	})
	for _, p := range paths {
		mv := renamed[p]
		old := filepath.Join(m.dst, mv.from)
		if st, err := os.Lstat(old); err != nil || !st.IsDir() {
			continue
		}
		mv.staged = filepath.Join(m.stage, fmt.Sprint(m.staged))
		m.staged++
		if err := os.Rename(old, mv.staged); err != nil {
			return err
		}
	}
	return m.applyDir(layer, "", renamed)
}

// findMoved finds the folders of a layer whose content below it has another path.
// from is that of dir in the layers below; empty: it has none.
func (m *merger) findMoved(layer, dir, from string, renamed map[string]*moved) error {
	entries, err := os.ReadDir(filepath.Join(layer, dir))
	if err != nil {
		return err
	}
	for _, e := range entries {
		if !e.IsDir() {
			continue
		}
		p := path.Join(dir, e.Name())
		full := filepath.Join(layer, p)
		below := ""
		if from != "" {
			below = path.Join(from, e.Name())
		}
		if to := m.redirect(full); to != "" {
			if below = to; to[0] != '/' {
				below = path.Join(from, to)
			}
			renamed[p] = &moved{from: path.Clean(below)}
		} else if m.opaque(full) {
			below = ""
		}
		if err := m.findMoved(layer, p, below, renamed); err != nil {
			return err
		}
	}
	return nil
}

// below is the path, in the layers below dst, of what a path has under dst; empty if
// it has nothing there.
func (m *merger) below(p string) string {
	at, in := "/", m.dst
	for part := range strings.SplitSeq(strings.Trim(p, "/"), "/") {
		if part == "" {
			continue
		}
		parent := at
		if at != "" {
			at = path.Join(at, part)
		}
		if in == "" {
			continue
		}
		in = filepath.Join(in, part)
		st, err := os.Lstat(in)
		switch {
		case err != nil:
			in = "" // dst has no more of it
		case !st.IsDir():
			return ""
		default:
			if to := m.redirect(in); to != "" {
				if at = to; to[0] != '/' {
					at = path.Join(parent, to)
				}
			} else if m.opaque(in) {
				at = ""
			}
		}
	}
	return at
}

// applyDir puts what a folder of a layer has on the same folder of dst, which is
// there.
func (m *merger) applyDir(layer, dir string, renamed map[string]*moved) error {
	entries, err := os.ReadDir(filepath.Join(layer, dir))
	if err != nil {
		return err
	}
	for _, e := range entries {
		p := path.Join(dir, e.Name())
		from, to := filepath.Join(layer, p), filepath.Join(m.dst, p)
		if !e.IsDir() {
			if err := Remove(to); err != nil {
				return err
			}
			if err := link(from, to); err != nil {
				return err
			}
			continue
		}
		if err := m.takeDir(from, to, renamed[p]); err != nil {
			return err
		}
		if err := m.applyDir(layer, p, renamed); err != nil {
			return err
		}
	}
	return m.copyMeta(filepath.Join(layer, dir), filepath.Join(m.dst, dir))
}

// takeDir makes a folder of dst what one of a layer is merged with.
func (m *merger) takeDir(from, to string, mv *moved) error {
	st, err := os.Lstat(to)
	there := err == nil
	switch {
	case mv != nil:
		if err := Remove(to); err != nil {
			return err
		}
		if mv.staged != "" {
			if err := os.Rename(mv.staged, to); err != nil {
				return err
			}
		} else if err := os.Mkdir(to, 0o700); err != nil {
			return err
		}
		return m.mark(to, mv.below)
	case m.opaque(from) || there && !st.IsDir():
		if err := Remove(to); err != nil {
			return err
		}
		if err := os.Mkdir(to, 0o700); err != nil {
			return err
		}
		return m.mark(to, "")
	case !there:
		return os.Mkdir(to, 0o700)
	}
	return nil
}

// mark says where the content of a folder below dst comes from; empty: it has none.
func (m *merger) mark(dir, below string) error {
	set, drop, value := "redirect", "opaque", below
	if below == "" {
		set, drop, value = "opaque", "redirect", "y"
	}
	if err := unix.Lremovexattr(dir, m.prefix+drop); err != nil && !errors.Is(err, unix.ENODATA) {
		return fmt.Errorf("mark %s: %w", dir, err)
	}
	if err := unix.Lsetxattr(dir, m.prefix+set, []byte(value), 0); err != nil {
		return fmt.Errorf("mark %s: %w", dir, err)
	}
	return nil
}

// linkTree makes dst, which is not there, the same as src.
func (m *merger) linkTree(src, dst string) error {
	if err := os.Mkdir(dst, 0o700); err != nil {
		return err
	}
	entries, err := os.ReadDir(src)
	if err != nil {
		return err
	}
	for _, e := range entries {
		from, to := filepath.Join(src, e.Name()), filepath.Join(dst, e.Name())
		if e.IsDir() {
			err = m.linkTree(from, to)
		} else {
			err = link(from, to)
		}
		if err != nil {
			return err
		}
	}
	for _, name := range []string{"opaque", "redirect"} {
		if v, ok := getXattr(src, m.prefix+name); ok {
			if err := unix.Lsetxattr(dst, m.prefix+name, []byte(v), 0); err != nil {
				return fmt.Errorf("mark %s: %w", dst, err)
			}
		}
	}
	return m.copyMeta(src, dst)
}

// copyMeta gives a folder the owner, mode, times and attributes of another, but for
// where its content below comes from.
func (m *merger) copyMeta(src, dst string) error {
	var st unix.Stat_t
	if err := unix.Lstat(src, &st); err != nil {
		return err
	}
	want, err := xattrs(src)
	if err != nil {
		return err
	}
	have, err := xattrs(dst)
	if err != nil {
		return err
	}
	for _, all := range []map[string]string{want, have} {
		delete(all, m.prefix+"opaque")
		delete(all, m.prefix+"redirect")
	}
	for name := range have {
		if _, ok := want[name]; !ok {
			if err := unix.Lremovexattr(dst, name); err != nil {
				return fmt.Errorf("attributes of %s: %w", dst, err)
			}
		}
	}
	if err := unix.Lchown(dst, int(st.Uid), int(st.Gid)); err != nil {
		return err
	}
	for name, value := range want {
		if have[name] == value {
			continue
		}
		if err := unix.Lsetxattr(dst, name, []byte(value), 0); err != nil {
			return fmt.Errorf("attributes of %s: %w", dst, err)
		}
	}
	if err := unix.Chmod(dst, st.Mode&0o7777); err != nil {
		return err
	}
	return unix.UtimesNanoAt(unix.AT_FDCWD, dst, []unix.Timespec{st.Atim, st.Mtim}, unix.AT_SYMLINK_NOFOLLOW)
}

// link links a file of any kind but a folder. One that has as many links as its
// file system can bear is made anew, if it is a mark of something deleted.
func link(from, to string) error {
	err := unix.Linkat(unix.AT_FDCWD, from, unix.AT_FDCWD, to, 0)
	if errors.Is(err, unix.EMLINK) {
		if isWhiteout(from) {
			return unix.Mknod(to, unix.S_IFCHR, 0)
		}
	}
	if err != nil {
		return &os.LinkError{Op: "link", Old: from, New: to, Err: err}
	}
	return nil
}

func getXattr(file, name string) (string, bool) {
	value, err := grown(func(buf []byte) (int, error) { return unix.Lgetxattr(file, name, buf) })
	return value, err == nil
}

// xattrs are all attributes of a file. What grows meanwhile is asked for again.
func xattrs(file string) (map[string]string, error) {
	all := map[string]string{}
	list, err := grown(func(buf []byte) (int, error) { return unix.Llistxattr(file, buf) })
	if err != nil {
		return all, ignoreUnsupported(err)
	}
	for name := range strings.SplitSeq(strings.TrimSuffix(list, "\x00"), "\x00") {
		if name == "" {
			continue
		}
		value, err := grown(func(buf []byte) (int, error) { return unix.Lgetxattr(file, name, buf) })
		if err != nil {
			return nil, fmt.Errorf("attribute %s of %s: %w", name, file, err)
		}
		all[name] = value
	}
	return all, nil
}

// grown reads something of a length that is not known.
func grown(read func([]byte) (int, error)) (string, error) {
	for size := 1024; ; size *= 4 {
		buf := make([]byte, size)
		n, err := read(buf)
		if errors.Is(err, unix.ERANGE) && size < 1<<20 {
			continue
		}
		if err != nil {
			return "", err
		}
		return string(buf[:n]), nil
	}
}

func ignoreUnsupported(err error) error {
	if errors.Is(err, unix.ENOTSUP) {
		return nil
	}
	return err
}
