package files

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/cove-dev/cove/internal/guest/users"
	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/sprites"
)

// A watcher follows files and folders by inotify, and puts their events into a queue. It uses
// inotify directly, because fsnotify has no recursion. Unlike Linux, gVisor does not bound an
// instance's queue, so the reader must never wait. Nor does it check that the process that
// adds a watch may read the folder, so each folder is first opened as the user.
//
// Only one goroutine may use it, except for close.
type watcher struct {
	user      users.User
	roots     []string
	recursive bool
	queue     *watchQueue

	file   *os.File
	raw    syscall.RawConn
	budget *atomic.Int64 // folders that are watched in the whole guest

	views map[string]*view // by path
	byWD  map[int32][]*view
	bytes int  // of the paths of views
	full  bool // the client has been told that there are too many

	// fresh has what the scan of a new folder found. The folder's watch, which was there
	// first, may report the same names: they must not be reported twice.
	fresh map[string]struct{}

	replaced uint32 // the cookie of the last upload that is to replace a file
}

// view is a watched folder under one of its names.
type view struct {
	path  string
	wd    int32
	root  bool              // the client asked for it: what becomes of itself counts
	all   bool              // whatever happens in it counts
	names map[string]string // single files in it that count, and what the client calls them
}

const (
	// maxFolders bounds the folders of all watches together. In gVisor each folder takes two
	// open files on the host while it is watched. A sandbox that has used up its files can
	// open nothing, and hosts with a limit of 20,000 are not rare.
	maxFolders     = 4096
	maxFolderBytes = 2 << 20 // of one watch
	maxFresh       = 8192

	watchMask = unix.IN_CREATE | unix.IN_MODIFY | unix.IN_ATTRIB | unix.IN_DELETE | unix.IN_MOVED_FROM | unix.IN_MOVED_TO |
		unix.IN_DELETE_SELF | unix.IN_MOVE_SELF | unix.IN_EXCL_UNLINK
)

var errTooManyFolders = fail.New("limit", fmt.Sprintf("the limit of %d watched folders is reached: watch fewer", maxFolders), "")

// newWatcher starts to watch; from now on, nothing is missed. Close it, and free it when it is
// no longer used.
func newWatcher(user users.User, roots []string, recursive bool, queue *watchQueue, budget *atomic.Int64) (*watcher, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("watch files: %w", err)
	}
	w := &watcher{
		user: user, roots: roots, recursive: recursive, queue: queue, budget: budget,
		file:  os.NewFile(uintptr(fd), "inotify"),
		views: map[string]*view{}, byWD: map[int32][]*view{}, fresh: map[string]struct{}{},
	}
	if w.raw, err = w.file.SyscallConn(); err != nil {
		w.close()
		return nil, err
	}
	for _, root := range roots {
		if err := w.addRoot(root); err != nil {
			w.close()
			w.free()
			return nil, &fileError{root, err}
		}
	}
	return w, nil
}

// close ends run. Any goroutine may call it, more than once.
func (w *watcher) close() { _ = w.file.Close() }

// free gives back what the watcher has taken of the budget.
func (w *watcher) free() {
	w.budget.Add(-int64(len(w.views)))
	clear(w.views)
}

// run watches until close, or until there is nothing left to watch.
func (w *watcher) run() {
	buf := make([]byte, 64<<10)
	for {
		n, err := w.read(buf)
		if errors.Is(err, os.ErrClosed) {
			return
		}
		if err != nil {
			w.queue.complain(watchError(err))
			return
		}
		for e := range parseEvents(buf[:n]) {
			w.handle(e)
		}
		if len(w.views) == 0 {
			w.queue.complain(sprites.WatchMessage{Type: "error", Code: "ended", Message: "no watched file or folder is left"})
			return
		}
	}
}

// read waits for events. When it has to wait, every event from before the last scan has been
// read.
func (w *watcher) read(buf []byte) (n int, err error) {
	waitErr := w.raw.Read(func(fd uintptr) bool {
		n, err = unix.Read(int(fd), buf)
		if errors.Is(err, unix.EAGAIN) {
			clear(w.fresh)
			return false
		}
		return true
	})
	if waitErr != nil {
		return 0, waitErr
	}
	return n, err
}

// inotifyEvent is struct inotify_event.
type inotifyEvent struct {
	wd     int32
	mask   uint32
	cookie uint32 // the same for both ends of a move
	name   string
}

func (e inotifyEvent) is(mask uint32) bool { return e.mask&mask != 0 }

func parseEvents(buf []byte) iter.Seq[inotifyEvent] {
	return func(yield func(inotifyEvent) bool) {
		for len(buf) >= unix.SizeofInotifyEvent {
			e := inotifyEvent{wd: int32(binary.NativeEndian.Uint32(buf)), mask: binary.NativeEndian.Uint32(buf[4:]), cookie: binary.NativeEndian.Uint32(buf[8:])}
			size := uint64(binary.NativeEndian.Uint32(buf[12:]))
			buf = buf[unix.SizeofInotifyEvent:]
			if size > uint64(len(buf)) {
				return
			}
			e.name = strings.TrimRight(string(buf[:size]), "\x00")
			buf = buf[size:]
			if !yield(e) {
				return
			}
		}
	}
}

func (w *watcher) handle(e inotifyEvent) {
	if e.is(unix.IN_Q_OVERFLOW) {
		w.startOver()
		return
	}
	switch {
	case e.is(unix.IN_MOVED_FROM) && strings.HasSuffix(e.name, replacing):
		w.replaced = e.cookie
	case e.is(unix.IN_MOVED_TO) && e.cookie == w.replaced && w.replaced != 0: // by fs/write
		e.mask = e.mask&^unix.IN_MOVED_TO | unix.IN_MODIFY
	}
	for _, v := range slices.Clone(w.byWD[e.wd]) {
		switch {
		case w.views[v.path] != v: // the event has ended it, under another name
		case e.is(unix.IN_IGNORED): // the kernel has ended the watch
			w.drop(v)
		case e.name == "":
			w.itself(v, e)
		default:
			w.inside(v, e)
		}
	}
}

// itself handles an event of a watched folder itself. If a folder around it is watched as a
// whole, that one reports the event.
func (w *watcher) itself(v *view, e inotifyEvent) {
	if above := w.views[folderOf(v.path)]; above != nil && above != v && above.all {
		return
	}
	switch {
	case e.is(unix.IN_ATTRIB) && v.root:
		w.queue.event(v.path, sprites.WatchChmod, true)
	case e.is(unix.IN_DELETE_SELF | unix.IN_UNMOUNT):
		if v.root {
			w.queue.event(v.path, sprites.WatchRemove, true)
		}
		w.drop(v)
	case e.is(unix.IN_MOVE_SELF):
		if v.root {
			w.queue.event(v.path, sprites.WatchRename, true)
		}
		w.leave(v.path)
	}
}

var watchOps = []struct {
	mask uint32
	op   sprites.WatchOp
}{
	{unix.IN_CREATE | unix.IN_MOVED_TO, sprites.WatchCreate},
	{unix.IN_MODIFY, sprites.WatchWrite},
	{unix.IN_ATTRIB, sprites.WatchChmod},
	{unix.IN_DELETE, sprites.WatchRemove},
	{unix.IN_MOVED_FROM, sprites.WatchRename},
}

// inside handles an event of a name in a watched folder.
func (w *watcher) inside(v *view, e inotifyEvent) {
	full, isDir := below(v.path, e.name), e.is(unix.IN_ISDIR)
	for _, o := range watchOps {
		if !e.is(o.mask) {
			continue
		}
		if name, ok := v.names[e.name]; ok && !(v.all && name == full) {
			w.queue.event(name, o.op, isDir)
		}
		if _, told := w.fresh[full]; told && e.is(unix.IN_CREATE) {
			delete(w.fresh, full)
		} else if v.all {
			w.happened(full, o.op, isDir)
		}
	}
}

// happened reports a change of a name in a folder that is watched as a whole.
func (w *watcher) happened(full string, op sprites.WatchOp, isDir bool) {
	w.queue.event(full, op, isDir)
	inner := w.views[full]
	switch {
	case op == sprites.WatchRemove:
		delete(w.fresh, full)
		if inner != nil {
			w.drop(inner)
		}
	case op == sprites.WatchRename:
		delete(w.fresh, full)
		if isDir {
			w.leave(full)
		}
	case !isDir || !w.recursive:
	case op == sprites.WatchCreate, op == sprites.WatchChmod && inner == nil: // closed to the user until now
		if err := w.addTree(full, unix.O_NOFOLLOW, true); err != nil {
			w.complain(&fileError{full, err})
		}
	}
}

// complain reports an error with a new folder. It reports only once that there are too many
// folders to watch.
func (w *watcher) complain(err error) {
	switch {
	case skippable(err):
	case errors.Is(err, errTooManyFolders):
		if !w.full {
			w.full = true
			w.queue.complain(watchError(err))
		}
	default:
		w.queue.complain(watchError(err))
	}
}

// startOver makes all watches anew: the events that the kernel had no room for may have been
// about folders.
func (w *watcher) startOver() {
	w.queue.lose()
	for _, v := range w.views {
		w.drop(v)
	}
	for _, root := range w.roots {
		if err := w.addRoot(root); err != nil {
			w.queue.complain(watchError(&fileError{root, err}))
		}
	}
}

// addRoot watches what the client asked for.
func (w *watcher) addRoot(root string) error {
	err := w.addTree(root, 0, false)
	if errors.Is(err, syscall.ENOTDIR) {
		return w.addFile(root)
	}
	if err == nil {
		w.views[root].root = true
	}
	return err
}

// addFile watches a file by its folder, since the file may be replaced there. If the file is a
// link, addFile watches its target, too.
func (w *watcher) addFile(root string) error {
	target := root
	err := w.user.Do(func() error {
		st, err := os.Lstat(root)
		if err == nil && st.Mode()&fs.ModeSymlink != 0 {
			target, err = filepath.EvalSymlinks(root)
		}
		return err
	})
	if err != nil {
		return err
	}
	for _, name := range slices.Compact([]string{root, target}) {
		dir := folderOf(name)
		f, err := w.open(dir, 0)
		if err != nil {
			return err
		}
		v, err := w.add(f, dir)
		_ = f.Close()
		if err != nil {
			return err
		}
		if v.names == nil {
			v.names = map[string]string{}
		}
		v.names[path.Base(name)] = root
	}
	return nil
}

// addTree watches a folder; if the watch is recursive, with all that are in it.
// With report, all files in them are reported as created.
func (w *watcher) addTree(root string, flag int, report bool) error {
	pending := []string{root}
	for len(pending) > 0 {
		dir := pending[len(pending)-1]
		pending = pending[:len(pending)-1]
		inner, err := w.addFolder(dir, flag, report)
		if err != nil && (dir == root || !skippable(err)) {
			return err
		}
		if len(w.views)+len(pending)+len(inner) > maxFolders {
			return errTooManyFolders
		}
		pending = append(pending, inner...)
		flag = unix.O_NOFOLLOW
	}
	return nil
}

// skippable errors are of folders that have gone again, or that the user may not see.
func skippable(err error) bool {
	for _, target := range []error{fs.ErrNotExist, fs.ErrPermission, syscall.ENOTDIR, syscall.ELOOP, syscall.ENAMETOOLONG} {
		if errors.Is(err, target) {
			return true
		}
	}
	return false
}

// addFolder watches a folder, and then lists it: in this order, so that nothing is missed
// between. It returns the folders in it to watch.
func (w *watcher) addFolder(dir string, flag int, report bool) (folders []string, err error) {
	f, err := w.open(dir, flag)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	v, err := w.add(f, dir)
	if err != nil {
		return nil, err
	}
	v.all = true
	for w.recursive {
		entries, err := f.ReadDir(512)
		for _, d := range entries {
			full := below(dir, d.Name())
			if d.IsDir() {
				folders = append(folders, full)
			}
			if report {
				w.found(full, d.IsDir())
			}
		}
		if len(folders) > maxFolders {
			return nil, errTooManyFolders
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
	}
	return folders, nil
}

// found handles a name that was in a new folder already.
func (w *watcher) found(full string, isDir bool) {
	if _, known := w.fresh[full]; known {
		return
	}
	w.queue.event(full, sprites.WatchCreate, isDir)
	if len(w.fresh) < maxFresh {
		w.fresh[full] = struct{}{}
	}
}

// open opens a folder, if the user may list it.
func (w *watcher) open(dir string, flag int) (f *os.File, err error) {
	err = w.user.Do(func() error {
		f, err = os.OpenFile(dir, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NONBLOCK|flag, 0)
		return err
	})
	return f, err
}

// add watches an open folder.
func (w *watcher) add(f *os.File, dir string) (*view, error) {
	v := w.views[dir]
	if v == nil && (w.budget.Load() >= maxFolders || w.bytes+len(dir) > maxFolderBytes) {
		return nil, errTooManyFolders
	}
	var wd int
	var err error
	waitErr := w.raw.Control(func(fd uintptr) {
		wd, err = unix.InotifyAddWatch(int(fd), fmt.Sprintf("/proc/self/fd/%d", f.Fd()), watchMask)
	})
	if errors.Is(err, unix.ENOSPC) { // Linux bounds them; gVisor does not
		return nil, errTooManyFolders
	}
	if err := errors.Join(waitErr, err); err != nil {
		return nil, err
	}
	switch {
	case v == nil:
		v = &view{path: dir}
		w.views[dir] = v
		w.budget.Add(1)
		w.bytes += len(dir)
	case v.wd == int32(wd):
		return v, nil
	default: // another folder has taken its place
		w.detach(v)
	}
	v.wd = int32(wd)
	w.byWD[v.wd] = append(w.byWD[v.wd], v)
	return v, nil
}

// leave ends the watch of a folder that has been moved, and of all in it. It reports the files
// and folders in it that the client asked for by name as renamed.
func (w *watcher) leave(dir string) {
	for name, v := range w.views {
		if name != dir && !strings.HasPrefix(name, below(dir, "")) {
			continue
		}
		if v.root && name != dir { // whose own move has been told
			w.queue.event(v.path, sprites.WatchRename, true)
		}
		for _, file := range v.names {
			w.queue.event(file, sprites.WatchRename, false)
		}
		w.drop(v)
	}
}

func (w *watcher) drop(v *view) {
	delete(w.views, v.path)
	w.budget.Add(-1)
	w.bytes -= len(v.path)
	w.full = false
	w.detach(v)
}

func (w *watcher) detach(v *view) {
	others := slices.DeleteFunc(w.byWD[v.wd], func(o *view) bool { return o == v })
	if len(others) > 0 {
		w.byWD[v.wd] = others
		return
	}
	delete(w.byWD, v.wd)
	_ = w.raw.Control(func(fd uintptr) {
		_, _ = unix.InotifyRmWatch(int(fd), uint32(v.wd)) // the kernel may have been first
	})
}

// folderOf is the folder that a name is in.
func folderOf(name string) string {
	if dir := strings.TrimRight(parent(name), "/"); dir != "" {
		return dir
	}
	return "/"
}
