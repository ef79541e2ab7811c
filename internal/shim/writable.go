package shim

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/cove-dev/cove/internal/shim/kernel"
	"github.com/cove-dev/cove/internal/shim/layers"
	"github.com/cove-dev/cove/sprites"
)

// A restore opens again each file that gVisor holds open for writing. These files are sealed,
// so the overlay then copies them. A restore also makes the open files again that have no name
// any more. If the disk has no room for all these, the restore fails, and by then the old
// sandbox has ended. So they are copied before, when there is a way back.

// diskFile is a file of a sandbox's disk that a restore writes.
type diskFile struct {
	path  string // on the disk, as the kernel says
	sure  bool   // it was found there
	bytes int64  // that a copy takes
	gone  bool   // it has no name any more, and path is what it was
	links uint64 // names that it has
}

// goferRoot is where gVisor's gofer has the disk, in a mount namespace of its own. The paths
// of open files begin with it.
const goferRoot = "/root"

// diskFiles looks at the files that the sandbox's process has open. gVisor holds a descriptor
// for each file that is open in the sandbox. Once a program has opened the file for writing,
// the descriptor is for writing until no program has the file open. gVisor's cache may hold a
// file longer, but not after the memory was saved. Then these are the files that a restore
// writes, whatever the guest says.
func diskFiles(f folder, st State) (files []diskFile, err error) {
	spec, err := f.readBundle(st)
	if err != nil {
		return nil, err
	}
	dir, err := os.Open(filepath.Join("/proc", strconv.Itoa(st.PID), "fd"))
	if err != nil {
		return nil, fmt.Errorf("look at the files that the sandbox has open: %w", err)
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return nil, fmt.Errorf("look at the files that the sandbox has open: %w", err)
	}
	seen := map[[2]uint64]bool{}
	pieces := maxPieces
	for _, name := range names {
		o, ok := openedAs(dir, name)
		if !ok {
			continue
		}
		id := [2]uint64{o.stat.Dev, o.stat.Ino}
		if !seen[id] {
			var x diskFile
			if x, seen[id], err = diskFileOf(o, f.rootfs(st), spec, &pieces); seen[id] {
				files = append(files, x)
			}
		}
		_ = unix.Close(o.fd)
		if err != nil {
			return nil, err
		}
	}
	slices.SortFunc(files, func(a, b diskFile) int { return cmp.Compare(b.bytes, a.bytes) })
	return files, nil
}

// diskFileOf describes a file that the sandbox has open, whose disk is at rootfs. It reports false
// for one that a restore does not write.
func diskFileOf(o openFile, rootfs string, spec *specs.Spec, pieces *int) (x diskFile, ok bool, err error) {
	text, gone := strings.CutSuffix(o.path, " (deleted)")
	var in unix.Statfs_t
	if !o.writable && !gone || unix.Fstatfs(o.fd, &in) != nil || in.Type != unix.OVERLAYFS_SUPER_MAGIC {
		return x, false, nil // of those that are gone, it matters that they are open
	}
	x = diskFile{path: strings.TrimPrefix(o.path, goferRoot+"/"), links: o.stat.Nlink, bytes: o.stat.Size}
	if x.sure = isFile(rootfs, x.path, o.stat); x.sure {
		gone = false
	} else if gone {
		x.path, x.gone = strings.TrimPrefix(text, goferRoot+"/"), true
	}
	shown := func(dest string) bool {
		return strings.HasPrefix(o.path, goferRoot+filepath.Join("/", dest)+"/")
	}
	if !o.writable && !gone || slices.ContainsFunc(spec.Mounts, func(m specs.Mount) bool { return m.Type == "bind" && shown(m.Destination) }) {
		return x, false, nil
	}
	if !x.gone {
		if x.bytes, err = copySize(layers.FDPath(o.fd), o.stat.Size, pieces); err != nil {
			return x, false, fmt.Errorf("look at /%s, which is open for writing: %w", x.path, err)
		}
	}
	return x, true, nil
}

// The overlay copies a file in chunks, and leaves out a hole only where a chunk would begin
// (OVL_COPY_UP_CHUNK_SIZE and ovl_copy_up_file, in Linux's fs/overlayfs/copy_up.c).
const (
	copyChunk = 1 << 20
	maxPieces = 1 << 16 // of all files that are looked at, between holes
)

// copySize is how much the overlay writes to copy a file of this size. A small piece of
// data between holes takes a whole chunk. Each piece is taken from pieces; after the last
// one, the rest of the file counts as data.
func copySize(path string, size int64, pieces *int) (bytes int64, err error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	for pos := int64(0); pos < size; {
		if *pieces <= 0 {
			return bytes + size - pos, nil
		}
		*pieces--
		data, err := unix.Seek(fd, pos, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			break // the rest is a hole
		}
		if err != nil {
			return bytes + size - pos, nil // then the overlay copies the holes too
		}
		hole, err := unix.Seek(fd, data, unix.SEEK_HOLE)
		if err != nil {
			return bytes + size - data, nil
		}
		chunks := max(1, (hole-data+copyChunk-1)/copyChunk)
		pos = min(size, data+chunks*copyChunk)
		bytes += max(0, pos-data)
	}
	return bytes, nil
}

// openFile is a regular file that another process has open.
type openFile struct {
	fd       int // ours, O_PATH; the caller closes it
	writable bool
	path     string // as the kernel says
	stat     unix.Stat_t
}

// openedAs looks at the file of a descriptor of another process, by its folder in /proc. That
// process may close the descriptor at any moment, and open another file under its number. Even
// if the guest is paused, gVisor closes files in its own time. So the file is held open. ok is
// false if the number has become another file's, or if the file is not a regular one.
func openedAs(dir *os.File, name string) (o openFile, ok bool) {
	fd, err := unix.Openat(int(dir.Fd()), name, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return o, false
	}
	defer func() {
		if !ok {
			_ = unix.Close(fd)
		}
	}()
	var link, after unix.Stat_t
	o.fd = fd
	if unix.Fstat(fd, &o.stat) != nil || o.stat.Mode&unix.S_IFMT != unix.S_IFREG ||
		unix.Fstatat(int(dir.Fd()), name, &link, unix.AT_SYMLINK_NOFOLLOW) != nil ||
		unix.Fstatat(int(dir.Fd()), name, &after, 0) != nil || after.Dev != o.stat.Dev || after.Ino != o.stat.Ino {
		return o, false
	}
	buf := make([]byte, 2*unix.PathMax)
	n, err := unix.Readlink(layers.FDPath(fd), buf)
	if err != nil {
		return o, false
	}
	o.writable, o.path = link.Mode&0o200 != 0, string(buf[:n])
	return o, true
}

// isFile reports whether a path of a sandbox's disk leads to this file.
func isFile(rootfs, path string, file unix.Stat_t) bool {
	fd, err := openOnDisk(rootfs, path, unix.O_PATH)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	var got unix.Stat_t
	return unix.Fstat(fd, &got) == nil && got.Dev == file.Dev && got.Ino == file.Ino
}

// openOnDisk opens what a path of a disk leads to, and never what a link does.
func openOnDisk(root, path string, flags uint64) (int, error) {
	dir, err := unix.Open(root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	defer unix.Close(dir)
	return unix.Openat2(dir, path, &unix.OpenHow{
		Flags:   flags | unix.O_NOFOLLOW | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
	})
}

// Room that a restore needs besides, for folders above the written files, and for the shim's
// notes.
const (
	spareBytes = 1 << 20
	spareFiles = 64
)

// copyWritable copies the files that the restore of the next sandbox will write to that
// sandbox's disk. The old sandbox must be paused, and its memory saved. ENOSPC says that there
// is no room.
func copyWritable(home folder, old, next State, disk []Mount) ([]diskFile, error) {
	files, err := diskFiles(home, old)
	if err != nil {
		return nil, err
	}
	upper := disk[0].Overlay.Upper
	left := int64(0) // to be written by the restore
	copies := int64(0)
	for _, f := range files {
		if f.gone {
			left += f.bytes
		} else {
			copies += f.bytes
		}
	}
	if err := room(upper, left+copies, len(files)); err != nil && (!sharesBlocks(upper) || room(upper, left, len(files)) != nil) {
		return nil, err
	}
	for _, f := range files {
		switch {
		case f.gone:
		case !f.sure || f.links > 1:
			left += f.bytes // it is not known which name will open it
		default:
			if err := copyUp(home.rootfs(next), f.path); err != nil {
				return nil, fmt.Errorf("copy /%s, which is open for writing: %w", f.path, err)
			}
		}
	}
	return files, room(upper, left, len(files))
}

// copyUp has an overlay have a file of its own.
func copyUp(root, path string) error {
	fd, err := openOnDisk(root, path, unix.O_WRONLY|unix.O_NONBLOCK)
	if err != nil {
		return err
	}
	return unix.Close(fd)
}

// room says whether a disk has room for so much, and for what is needed besides.
func room(dir string, bytes int64, files int) error {
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		return fmt.Errorf("look how full the disk is: %w", err)
	}
	if free := int64(fs.Bavail) * fs.Bsize; free < bytes+spareBytes {
		return fmt.Errorf("files open for writing take %d MiB more, and %d MiB are free: %w", (bytes+spareBytes)>>20, free>>20, unix.ENOSPC)
	}
	if fs.Files > 0 && fs.Ffree < uint64(files)+spareFiles {
		return fmt.Errorf("files open for writing take up to %d more files, and %d are free: %w", files+spareFiles, fs.Ffree, unix.ENOSPC)
	}
	return nil
}

// sharesBlocks reports whether copies on the file system of a folder take no room.
func sharesBlocks(dir string) bool {
	var fds [2]int
	for i := range fds {
		fd, err := unix.Open(dir, unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
		if err != nil {
			return false
		}
		defer unix.Close(fd)
		fds[i] = fd
	}
	return unix.IoctlFileClone(fds[0], fds[1]) == nil
}

// ErrDeleted says that a sandbox can't be saved because deleted files that are still open
// are too large.
var ErrDeleted = errors.New("deleted files that are still open are too large")

// ErrNetworks says that a sandbox can't be saved because programs in it have networks of their
// own, which would be lost.
var ErrNetworks = errors.New(kernel.OwnNetworks)

// networks is err of a save, or ErrNetworks with a list if the sandbox's kernel refused it so.
func networks(err error) error {
	if err == nil {
		return nil
	}
	_, list, is := strings.Cut(err.Error(), kernel.OwnNetworks)
	if !is {
		return err
	}
	list, _, _ = strings.Cut(list, "\n")
	return fmt.Errorf("%w%s", ErrNetworks, list)
}

const (
	mostDeleted = 1 << 30 // bytes of deleted files, if memory has no limit
	anyDeleted  = 4 << 20 // deleted files of this size always fit into memory
)

// checkDeleted returns ErrDeleted if the open deleted files don't fit into the sandbox's
// memory. gVisor keeps them there while it saves and restores, and their holes take memory,
// too.
func checkDeleted(f folder, st State) error {
	files, err := diskFiles(f, st)
	if err != nil {
		return err
	}
	deleted, most := openedFiles(files).UnlinkedBytes, int64(mostDeleted)
	if deleted <= anyDeleted {
		return nil
	}
	if enforced(st, "memory") && st.MemoryLimit > 0 {
		g := openMemoryGroup(st.cgroup(), st.MemoryLimit)
		free, err := g.spare()
		if err != nil {
			return fmt.Errorf("look at the sandbox's memory: %w", err)
		}
		most = min(most, max(free, anyDeleted))
	}
	if deleted > most {
		return fmt.Errorf("%w: %d MiB, and its memory has room for %d", ErrDeleted, deleted>>20, most>>20)
	}
	return nil
}

// openedFiles is what was found, for people. The names are the guest's.
func openedFiles(files []diskFile) (open sprites.OpenFiles) {
	for _, f := range files { // the largest first
		list, sum := &open.Writable, &open.WritableBytes
		if f.gone {
			list, sum = &open.Unlinked, &open.UnlinkedBytes
		}
		if *sum += f.bytes; len(*list) < maxOpenNamed {
			*list = append(*list, sprites.OpenFile{Path: "/" + f.path, Bytes: f.bytes})
		}
	}
	return open
}

// maxOpenNamed is how many files of each kind are named.
const maxOpenNamed = 10

// tooMuchOpen says why a memory is not kept, though it was to be; empty: it is. Each
// restore and each fork would do again what the checkpoint has to do.
func tooMuchOpen(excess *sprites.OpenFiles) string {
	if excess == nil {
		return ""
	}
	var why []string
	if excess.WritableBytes > sprites.OpenWritable {
		why = append(why, fmt.Sprintf("%d MiB of files are open for writing, and memory is kept only up to %d MiB", excess.WritableBytes>>20, sprites.OpenWritable>>20))
	}
	if excess.UnlinkedBytes > sprites.OpenUnlinked {
		why = append(why, fmt.Sprintf("%d MiB of deleted files are still open, and memory is kept only up to %d MiB", excess.UnlinkedBytes>>20, sprites.OpenUnlinked>>20))
	}
	return strings.Join(why, "; ")
}

// noRoom reports whether a disk is too full for what was to be done. gVisor reports such
// errors only as text.
func noRoom(err error) bool {
	if err == nil {
		return false
	}
	full := func(e unix.Errno) bool { return errors.Is(err, e) || strings.Contains(err.Error(), e.Error()) }
	return full(unix.ENOSPC) || full(unix.EDQUOT)
}
