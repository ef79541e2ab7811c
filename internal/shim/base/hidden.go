package base

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// A Hider hides from sprites the files in folders of programs that the host's other users may
// not read. Otherwise a server that is root could show these files to the root of a sandbox.
// It makes layers of whiteouts (masks) to be mounted over those folders. Files of /usr are
// looked at once, by this server or by one before it (listing.go). After that each call looks
// at the times of all folders, since a new or renamed file changes them. A file that changed
// its mode alone is found at once in the folders of configuration, and elsewhere by Renew. A
// mask also adds python if the host has only python3.
//
// The zero value with Files and Dir set is ready. Its methods may be called from any
// goroutine.
type Hider struct {
	Files Files
	Dir   string // masks are made in it, each under a name of its own, and stay until Prune
	Own   bool   // the masks have all folders, as the server's root's: see owned.go

	mu      sync.Mutex
	folders *findings
	full    time.Time // all files were looked at
	checked time.Time // when the last look began
	mask    Mask
	copied  []copied

	remove func(dir string) error // a test's os.RemoveAll; nil: that
}

// A Mask is a folder of whiteouts for each folder of programs that needs one.
type Mask struct {
	Dir    string   // empty: nothing is hidden or added
	Hidden []string // paths below /, sorted; of a hidden folder only itself
	Owned  []string // the folders of programs in which the server's root owns all folders
	Copied []string // paths below / of files that it has of its own
	Python string   // path below / of the link to python3 that it adds; empty: none
}

// For returns the layer over a folder of programs such as usr; empty: none.
func (m Mask) For(name string) string {
	if slices.Contains(m.Owned, name) || slices.ContainsFunc(slices.Concat([]string{m.Python}, m.Hidden, m.Copied), func(h string) bool { return strings.HasPrefix(h, name+"/") }) {
		return filepath.Join(m.Dir, name)
	}
	return ""
}

// findings are the folders that a look found.
type findings struct {
	at  map[string]*folder // by path below the root of the files
	all []placed           // each after the one above it
}

// placed is a folder, and its path.
type placed struct {
	at string
	*folder
}

func (s *findings) add(at string, f *folder) {
	s.at[at] = f
	s.all = append(s.all, placed{at, f})
}

// folder is what was found in one folder.
type folder struct {
	stat    stamp
	read    time.Time // when the look began that read it
	folders []string  // paths
	hidden  []string  // paths
	closed  []string  // paths of programs that all may start, and not all may read
	unread  bool      // this server may not read it
}

// stamp changes when a folder's entries, owner or mode do.
type stamp struct {
	dev, ino uint64
	ctime    unix.Timespec
}

const (
	// settled is how much older than our look a folder's change must be for the next
	// change to have another time. File systems' clocks tick every 4 to 10 ms.
	settled = 2 * time.Second
	// renewal is after how long all files are looked at again.
	renewal = 5 * time.Minute
)

// configuration are the folders whose files are looked at each time.
var configuration = []string{"usr/etc", "usr/local/etc"}

func ofConfiguration(at string) bool {
	return slices.ContainsFunc(configuration, func(c string) bool {
		return strings.HasPrefix(at, c) && (len(at) == len(c) || at[len(c)] == '/')
	})
}

// Mask returns the mask for what is hidden now.
func (h *Hider) Mask() (Mask, error) { return h.MaskSince(time.Now()) }

// MaskSince returns the mask for what is hidden now, or was at some time since asked.
func (h *Hider) MaskSince(asked time.Time) (Mask, error) {
	mask, all, err := h.maskSince(asked)
	if all != nil {
		h.keep(all)
	}
	return mask, err
}

// maskSince is MaskSince. If it looked at all files, it returns that look too.
func (h *Hider) maskSince(asked time.Time) (_ Mask, all *look, _ error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.folders != nil && h.checked.After(asked) { // of sandboxes that start at the same time one looks
		return h.mask, nil, nil
	}
	known, full := h.folders, h.full
	if known == nil {
		known, full = h.restore()
	}
	look, err := h.look(known)
	if err != nil {
		return Mask{}, nil, fmt.Errorf("look for what to hide from sprites: %w", err)
	}
	if known == nil {
		all, full = look, look.began
	}
	mask, err := h.settle(look)
	if err != nil {
		return Mask{}, nil, err
	}
	h.full = full
	return mask, all, nil
}

// Stale reports whether all files should be looked at again, by Renew. Only one caller gets
// true.
func (h *Hider) Stale() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.folders == nil || time.Since(h.full) < renewal {
		return false
	}
	h.full = time.Now()
	return true
}

// Renew looks at all files anew, for the next Mask. It takes up to some seconds.
func (h *Hider) Renew() error {
	look, err := h.look(nil)
	if err != nil {
		return fmt.Errorf("look for what to hide from sprites: %w", err)
	}
	if err := h.renewed(look); err != nil {
		return err
	}
	h.keep(look)
	return nil
}

func (h *Hider) renewed(all *look) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if _, err := h.settle(all); err != nil {
		return err
	}
	h.full = all.began
	return nil
}

// settle makes the findings of a look the current ones. The caller holds h.mu.
func (h *Hider) settle(l *look) (Mask, error) {
	var hidden []string
	for _, f := range l.found.all {
		hidden = append(hidden, f.hidden...)
	}
	slices.Sort(hidden)
	python := h.Files.python(hidden)
	copies, err := h.copies(l.found)
	if err != nil {
		return Mask{}, fmt.Errorf("make the layer over the programs: %w", err)
	}
	if h.folders == nil || !slices.Equal(hidden, h.mask.Hidden) || python != h.mask.Python || !slices.Equal(copies, h.copied) || h.Own && l.found != h.folders && !maps.Equal(l.found.at, h.folders.at) {
		mask, err := h.make(hidden, python, l.found.at, copies)
		if err != nil {
			return Mask{}, fmt.Errorf("make the layer over the programs: %w", err)
		}
		h.mask, h.copied = mask, copies
	}
	h.folders, h.checked = l.found, l.began
	return h.mask, nil
}

// Hidden lists what a server that starts now would hide from sprites. Like that server, it takes a
// listing of Dir that is new enough, if Dir is not empty. It writes nothing.
func (h *Hider) Hidden() ([]string, error) {
	var known *findings
	if h.Dir != "" {
		known, _ = h.restore()
	}
	l, err := h.look(known)
	if err != nil {
		return nil, err
	}
	var hidden []string
	for _, found := range l.found.all {
		hidden = append(hidden, found.hidden...)
	}
	slices.Sort(hidden)
	return hidden, nil
}

// look is one look at all folders.
type look struct {
	known *findings // nil: none
	began time.Time

	wg    sync.WaitGroup
	slots chan struct{}
	mu    sync.Mutex
	found *findings // known, if none has changed
	err   error
}

func (h *Hider) look(known *findings) (*look, error) {
	l := &look{known: known, began: time.Now(), slots: make(chan struct{}, runtime.GOMAXPROCS(0)-1)}
	tops := map[string]*opened{}
	defer func() {
		for _, top := range tops {
			top.done()
		}
	}()
	for _, name := range programDirs {
		root, err := openProgramDir(h.Files.path(name))
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
			continue // not there, or a link to another
		} else if err != nil {
			return l, err
		}
		tops[name] = newOpened(root, name)
	}
	if known != nil && l.unchanged(tops) {
		l.found = known
		return l, nil
	}
	l.found = &findings{at: map[string]*folder{}}
	for _, name := range programDirs {
		if tops[name] != nil {
			l.folder(tops[name], name)
		}
	}
	l.wg.Wait()
	return l, l.err
}

// unchanged reports whether all known folders are as they were. Most often they are, and this
// takes half as long as a walk that gathers them again.
func (l *look) unchanged(tops map[string]*opened) bool {
	all := len(tops)
	for _, p := range l.known.all {
		all += len(p.folders)
	}
	if all != len(l.known.all) { // one was not read, or has gone
		return false
	}
	for _, name := range programDirs {
		if (tops[name] != nil) != (l.known.at[name] != nil) {
			return false
		}
	}
	var changed atomic.Bool
	var wg sync.WaitGroup
	part := len(l.known.all)/runtime.GOMAXPROCS(0) + 1
	for some := range slices.Chunk(l.known.all, part) {
		wg.Go(func() {
			for _, p := range some {
				if changed.Load() {
					return
				}
				if name, _, _ := strings.Cut(p.at, "/"); !l.same(tops[name], p) {
					changed.Store(true)
				}
			}
		})
	}
	wg.Wait()
	return !changed.Load()
}

// same reports whether a known folder is as it was.
func (l *look) same(top *opened, p placed) bool {
	if !ofConfiguration(p.at) {
		var st unix.Stat_t
		return unix.Fstatat(top.fd, top.name(p.at), &st, unix.AT_SYMLINK_NOFOLLOW) == nil && p.still(&st)
	}
	f, dir, err := l.one(top, p.at)
	if dir != nil {
		dir.done()
	}
	return err == nil && f.stat == p.stat && f.unread == p.unread &&
		slices.Equal(f.folders, p.folders) && slices.Equal(f.hidden, p.hidden) && slices.Equal(f.closed, p.closed)
}

// still reports whether nothing changed in a folder since it was read.
func (f *folder) still(st *unix.Stat_t) bool {
	return f.stat == stampOf(st) && f.read.Sub(time.Unix(st.Ctim.Unix())) > settled
}

// openProgramDir opens a folder as an overlay sees it: without the mounts in it.
func openProgramDir(dir string) (fd int, err error) {
	st, err := os.Lstat(dir)
	if err == nil && !st.IsDir() {
		err = unix.ENOTDIR
	}
	if err != nil {
		return -1, err
	}
	fd, err = unix.OpenTree(unix.AT_FDCWD, dir, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil { // not root: what is mounted there is all that can be seen
		fd, err = unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	}
	if err != nil {
		return -1, &fs.PathError{Op: "open", Path: dir, Err: err}
	}
	return fd, nil
}

func (l *look) fail(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.err = errors.Join(l.err, err)
}

// folder looks at a folder and all below it, partly in other goroutines. The folder is
// above, or below it.
func (l *look) folder(above *opened, at string) {
	f, dir, err := l.one(above, at)
	if dir == nil {
		dir = above
	} else {
		defer dir.done()
	}
	if gone(err) {
		return // the host may have removed it meanwhile
	} else if err != nil {
		l.fail(&fs.PathError{Op: "look at", Path: "/" + at, Err: err})
		return
	}
	l.mu.Lock()
	l.found.add(at, f)
	l.mu.Unlock()
	for _, below := range f.folders {
		select {
		case l.slots <- struct{}{}:
			dir.users.Add(1)
			l.wg.Go(func() {
				l.folder(dir, below)
				dir.done()
				<-l.slots
			})
		default:
			l.folder(dir, below)
		}
	}
}

// opened is an open folder, and its path below /. Its last user closes it. The kernel finds a
// file sooner in the folder that it is in than by a long path.
type opened struct {
	fd    int
	at    string
	users atomic.Int32
}

func newOpened(fd int, at string) *opened {
	o := &opened{fd: fd, at: at}
	o.users.Store(1)
	return o
}

// name is the path below the open folder of one that is below it, or is it.
func (o *opened) name(at string) string {
	if at == o.at {
		return "."
	}
	return at[len(o.at)+1:]
}

func (o *opened) done() {
	if o.users.Add(-1) == 0 {
		_ = unix.Close(o.fd) // nothing was written
	}
}

// knows returns what is known of a folder; nil: nothing.
func (l *look) knows(at string) *folder {
	if l.known == nil {
		return nil
	}
	return l.known.at[at]
}

// one looks at one folder, and opens it if it must be read.
func (l *look) one(above *opened, at string) (*folder, *opened, error) {
	name := above.name(at)
	var st unix.Stat_t
	if old := l.knows(at); old != nil {
		if err := unix.Fstatat(above.fd, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return nil, nil, err
		}
		if old.still(&st) && !ofConfiguration(at) {
			return old, nil, nil
		}
	}
	var dir *opened
	fd, err := unix.Openat(above.fd, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err == nil {
		dir = newOpened(fd, at)
		err = unix.Fstat(fd, &st)
	} else if errors.Is(err, unix.EACCES) { // an ordinary user's server sees no more than its user
		err = unix.Fstatat(above.fd, name, &st, unix.AT_SYMLINK_NOFOLLOW)
	}
	if err != nil {
		return nil, dir, err
	}
	f := &folder{stat: stampOf(&st), read: l.began}
	if secret(st.Mode) && at != above.at { // since the folder above was read
		f.hidden = []string{at}
	} else if dir != nil {
		err = f.list(dir)
	} else {
		f.unread = true
	}
	return f, dir, err
}

func stampOf(st *unix.Stat_t) stamp { return stamp{st.Dev, st.Ino, st.Ctim} }

// list reads the entries of the folder, which is open.
func (f *folder) list(dir *opened) error {
	var buf [16 << 10]byte
	for {
		n, err := unix.Getdents(dir.fd, buf[:])
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || n == 0 {
			return err
		}
		for rest := buf[:n]; len(rest) > 0; {
			var name string
			var kind byte
			name, kind, rest = nextEntry(rest)
			if kind == unix.DT_LNK || name == "." || name == ".." {
				continue
			}
			if err := f.add(dir, name); err != nil && !gone(err) {
				return err
			}
		}
	}
}

// nextEntry splits off the first of a folder's entries, as getdents64(2) returns them. An
// entry has the numbers of a file and of a place (8 bytes each), its length (2), its kind
// (1), and its name.
func nextEntry(entries []byte) (name string, kind byte, rest []byte) {
	length := binary.NativeEndian.Uint16(entries[16:])
	text, _, _ := bytes.Cut(entries[19:length], []byte{0})
	return string(text), entries[18], entries[length:]
}

// add looks at a file of the folder. Not all file systems say in a folder's entries which of
// them are links.
func (f *folder) add(dir *opened, name string) error {
	var st unix.Stat_t
	if err := unix.Fstatat(dir.fd, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	switch kind := st.Mode & unix.S_IFMT; {
	case secret(st.Mode):
		f.hidden = append(f.hidden, dir.at+"/"+name)
	case kind == unix.S_IFREG && st.Mode&0o004 == 0:
		f.closed = append(f.closed, dir.at+"/"+name)
	case kind == unix.S_IFDIR:
		f.folders = append(f.folders, dir.at+"/"+name)
	}
	return nil
}

// ignoreGone is the error of a name that the host may have removed meanwhile.
func ignoreGone(at string, err error) error {
	if gone(err) {
		return nil
	}
	return &fs.PathError{Op: "look at", Path: "/" + at, Err: err}
}

func gone(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP)
}

// secret reports whether users without any right of their own can't read something. A setuid
// or setgid program that all users may start is not secret: it is a package's, and a sprite
// needs it. On some systems sudo is one (mode 4111).
func secret(mode uint32) bool {
	switch mode & unix.S_IFMT {
	case unix.S_IFLNK:
		return false
	case unix.S_IFDIR:
		return mode&0o005 != 0o005
	case unix.S_IFREG:
		return mode&0o004 == 0 && !(mode&(unix.S_ISUID|unix.S_ISGID) != 0 && mode&0o001 != 0)
	}
	return mode&0o004 == 0
}

// python is the path of the link that makes python3 python too; empty: the host has
// python, or lacks python3. Programs for sprites, and examples, say python.
func (f Files) python(hidden []string) string {
	there := func(name string) bool {
		_, err := os.Lstat(f.path(name))
		return err == nil && !slices.ContainsFunc(hidden, func(h string) bool { return name == h || strings.HasPrefix(name, h+"/") })
	}
	if there("usr/bin/python3") && !there("usr/bin/python") && !there("usr/local/bin/python") {
		return "usr/bin/python"
	}
	return ""
}

// maskFormat is raised when masks are built differently.
const maskFormat = 3

// parent is a folder above something hidden or added. An overlay shows the topmost layer's
// owner, mode and times of a folder, so that the mask must have the host's.
type parent struct {
	Path     string
	Mode     uint32
	UID, GID uint32
	times    [2]unix.Timespec
}

// make builds the mask of a list, a link and copies, unless there is one. folders are all
// that there are.
func (h *Hider) make(hidden []string, python string, folders map[string]*folder, copies []copied) (_ Mask, err error) {
	m := Mask{Hidden: hidden, Python: python}
	names := slices.Clone(hidden)
	if python != "" {
		names = append(names, python)
	}
	for _, c := range copies {
		m.Copied = append(m.Copied, c.Path)
		names = append(names, c.Path)
	}
	var shown []string
	if h.Own {
		for name := range folders {
			if !slices.Contains(folders[name].hidden, name) {
				shown = append(shown, name)
			}
			if slices.Contains(programDirs, name) {
				m.Owned = append(m.Owned, name)
			}
		}
		slices.Sort(m.Owned)
	}
	if len(names) == 0 && len(m.Owned) == 0 {
		return Mask{}, nil
	}
	parents, err := h.parents(names, shown)
	if err != nil {
		return Mask{}, err
	}
	text, err := json.Marshal(struct {
		Format, Owner int
		Hidden        []string
		Python        string
		Parents       []parent
		Copies        []copied `json:",omitempty"`
	}{maskFormat, os.Geteuid(), hidden, python, parents, copies})
	if err != nil {
		return Mask{}, err
	}
	sum := sha256.Sum256(text)
	m.Dir = filepath.Join(h.Dir, "mask-"+hex.EncodeToString(sum[:8]))
	if _, err := os.Stat(m.Dir); err == nil {
		return m, nil
	}
	if err := os.MkdirAll(h.Dir, 0o700); err != nil {
		return Mask{}, err
	}
	tmp, err := os.MkdirTemp(h.Dir, "new-")
	if err != nil {
		return Mask{}, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(tmp)) }()
	for _, p := range parents {
		if err := os.Mkdir(filepath.Join(tmp, p.Path), 0o700); err != nil {
			return Mask{}, err
		}
	}
	for _, name := range hidden {
		if err := unix.Mknod(filepath.Join(tmp, name), unix.S_IFCHR, 0); err != nil { // overlayfs: deleted
			return Mask{}, &fs.PathError{Op: "mknod", Path: name, Err: err}
		}
	}
	for _, c := range copies {
		if err := h.copyInto(tmp, c); err != nil {
			return Mask{}, err
		}
	}
	if python != "" {
		if err := os.Symlink("python3", filepath.Join(tmp, python)); err != nil {
			return Mask{}, err
		}
	}
	for _, p := range slices.Backward(parents) {
		at := filepath.Join(tmp, p.Path)
		var err error
		if !h.Own { // then it is the server's root's
			err = unix.Lchown(at, int(p.UID), int(p.GID))
		}
		if err = errors.Join(err, unix.Chmod(at, p.Mode&0o7777), unix.UtimesNanoAt(unix.AT_FDCWD, at, p.times[:], unix.AT_SYMLINK_NOFOLLOW)); err != nil {
			return Mask{}, &fs.PathError{Op: "copy", Path: p.Path, Err: err}
		}
	}
	if err := os.Rename(tmp, m.Dir); err != nil && !errors.Is(err, fs.ErrExist) && !isNotEmpty(err) {
		return Mask{}, err
	}
	return m, nil
}

// parents are the folders above hidden and added files, and the folders that are shown. A
// folder comes before those in it.
func (h *Hider) parents(hidden, shown []string) ([]parent, error) {
	names := map[string]bool{}
	for _, name := range shown {
		names[name] = true
	}
	for _, name := range hidden {
		for at := path.Dir(name); at != "."; at = path.Dir(at) {
			names[at] = true
		}
	}
	parents := make([]parent, 0, len(names))
	for name := range names {
		var st unix.Stat_t
		if err := unix.Lstat(h.Files.path(name), &st); err != nil {
			if err := ignoreGone(name, err); err != nil {
				return nil, err
			}
			continue
		}
		if h.Own {
			st.Uid, st.Gid = 0, 0
		}
		parents = append(parents, parent{name, st.Mode, st.Uid, st.Gid, [2]unix.Timespec{st.Atim, st.Mtim}})
	}
	slices.SortFunc(parents, func(a, b parent) int { return strings.Compare(a.Path, b.Path) })
	return parents, nil
}
