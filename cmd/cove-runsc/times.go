package main

import (
	"maps"
	"reflect"
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/atomicbitops"
	"gvisor.dev/gvisor/pkg/fsutil"
	"gvisor.dev/gvisor/pkg/hostarch"
	"gvisor.dev/gvisor/pkg/log"
	"gvisor.dev/gvisor/pkg/sentry/arch"
	"gvisor.dev/gvisor/pkg/sentry/kernel"
	"gvisor.dev/gvisor/pkg/sentry/vfs"
	gvisorsync "gvisor.dev/gvisor/pkg/sync"
)

// When a program writes a file, gVisor gives the file a time of its own clock, and does
// not tell the host. The host notes another time. gVisor forgets the file for a
// checkpoint, or if its cache of some 1,000 files is full. Then the host's time replaces
// the one that programs have seen: git takes all files for changed, and an editor refuses
// to write. Only a time that was seen counts. So before a program asks for the times of a
// file, gVisor gives the host the time of the last write. It takes the time of the last
// change, which nobody can set, from the host.

// observers are the calls that tell a file's times, and the functions to call before
// each.
var observers = map[uintptr]func(*kernel.Task, arch.SyscallArguments){
	unix.SYS_FSTAT: func(t *kernel.Task, args arch.SyscallArguments) { settleFile(t, args[0].Int()) },
	unix.SYS_STATX: func(t *kernel.Task, args arch.SyscallArguments) {
		settleAt(t, args[0].Int(), args[1].Pointer(), args[2].Int())
	},
	sysFstatat: func(t *kernel.Task, args arch.SyscallArguments) {
		settleAt(t, args[0].Int(), args[1].Pointer(), args[3].Int())
	},
}

// keepTimes installs this for the sandboxes of this process.
func keepTimes() { maps.Copy(before, observers) }

func settleFile(t *kernel.Task, fd int32) {
	if file := t.GetFile(fd); file != nil {
		settle(file.VirtualDentry())
		file.DecRef(t)
	}
}

// settleAt does not say what is wrong with a path: the call itself will.
func settleAt(t *kernel.Task, dir int32, addr hostarch.Addr, flags int32) {
	if found, err := fileAt(t, dir, addr, flags); err == nil {
		settle(found)
		found.DecRef(t)
	}
}

// settle makes the times of a file those of the host's file. A file keeps its own times
// if it is not the host's, or if the host refuses.
func settle(file vfs.VirtualDentry) {
	if !file.Ok() {
		return
	}
	if layout, dentry := goferFile(file); layout != nil {
		layout.settle(dentry)
	}
}

// goferFile is a dentry of gVisor's gofer file system and its layout, which is nil if the
// file is of another file system.
func goferFile(file vfs.VirtualDentry) (*layout, unsafe.Pointer) {
	impl := reflect.ValueOf(file.Dentry().Impl())
	if impl.Kind() != reflect.Pointer {
		return nil, nil
	}
	return layoutOf(impl.Type()), impl.UnsafePointer()
}

// A layout has the offsets of fields in a dentry of gVisor's gofer file system, and in
// the dentry's inode.
type layout struct {
	inode uintptr // of the dentry: *inode

	// Of the inode:
	impl            uintptr // any: *directfsInode if there is a descriptor of the host's
	nlink           uintptr
	times           uintptr // the lock of the next three
	mtime, ctime    uintptr
	mtimeDirty      uintptr // the host has another mtime
	handles         uintptr // the lock of the next two
	readFD, writeFD uintptr // -1: none
}

// layouts has the layout of each type of dentry that was met; nil is one of another file
// system.
var layouts sync.Map // reflect.Type to *layout

// layoutOf is the layout of a type that is a pointer.
func layoutOf(dentry reflect.Type) *layout {
	l, known := layouts.Load(dentry)
	if !known {
		l, _ = layouts.LoadOrStore(dentry, newLayout(dentry))
	}
	return l.(*layout)
}

const goferPackage = "gvisor.dev/gvisor/pkg/sentry/fsimpl/gofer"

func newLayout(dentry reflect.Type) *layout {
	if dentry.Elem().PkgPath() != goferPackage {
		return nil
	}
	inode, ok := dentry.Elem().FieldByName(dentryInode)
	if !ok || inode.Type.Kind() != reflect.Pointer {
		log.Warningf("file times will change at a checkpoint: %v has no field %s", dentry, dentryInode)
		return nil
	}
	l := &layout{inode: inode.Offset}
	for _, f := range []struct {
		name string
		kind reflect.Type
		to   *uintptr
	}{
		{"impl", reflect.TypeFor[any](), &l.impl},
		{"nlink", reflect.TypeFor[atomicbitops.Uint32](), &l.nlink},
		{"metadataMu", reflect.TypeFor[gvisorsync.Mutex](), &l.times},
		{"mtime", reflect.TypeFor[atomicbitops.Int64](), &l.mtime},
		{"ctime", reflect.TypeFor[atomicbitops.Int64](), &l.ctime},
		{"mtimeDirty", reflect.TypeFor[atomicbitops.Uint32](), &l.mtimeDirty},
		{"handleMu", reflect.TypeFor[gvisorsync.RWMutex](), &l.handles},
		{"readFD", reflect.TypeFor[atomicbitops.Int32](), &l.readFD},
		{"writeFD", reflect.TypeFor[atomicbitops.Int32](), &l.writeFD},
	} {
		field, ok := inode.Type.Elem().FieldByName(f.name)
		if !ok || field.Type != f.kind {
			log.Warningf("file times will change at a checkpoint: %v has no field %s", inode.Type, f.name)
			return nil
		}
		*f.to = field.Offset
	}
	return l
}

// settle makes the times of a file those of the host's file. Writers hold the lock while
// they write, so the time always belongs to the bytes.
func (l *layout) settle(dentry unsafe.Pointer) {
	inode := *at[unsafe.Pointer](dentry, l.inode)
	dirty, mtime, ctime := at[atomicbitops.Uint32](inode, l.mtimeDirty), at[atomicbitops.Int64](inode, l.mtime), at[atomicbitops.Int64](inode, l.ctime)
	seen, now := settledAs(inode, ctime.Load())
	if seen.Load() == now && dirty.Load() == 0 {
		return
	}
	control := controlFD(*at[any](inode, l.impl))
	if control < 0 {
		return // it is in gVisor's memory alone, or reached by messages
	}
	times := at[gvisorsync.Mutex](inode, l.times)
	times.Lock()
	defer times.Unlock()
	handles := at[gvisorsync.RWMutex](inode, l.handles)
	handles.RLock()
	defer handles.RUnlock()

	// gVisor itself uses the first of these descriptors that is open, too.
	fd := control
	if w := at[atomicbitops.Int32](inode, l.writeFD).Load(); w >= 0 {
		fd = int(w)
	} else if r := at[atomicbitops.Int32](inode, l.readFD).Load(); r >= 0 {
		fd = int(r)
	}
	if dirty.Load() != 0 {
		written := [2]unix.Timespec{{Nsec: unix.UTIME_OMIT}, unix.NsecToTimespec(mtime.Load())}
		if err := fsutil.Utimensat(fd, "", written, 0); err != nil {
			return
		}
	}
	var host unix.Statx_t
	if err := unix.Statx(fd, "", unix.AT_EMPTY_PATH, unix.STATX_MTIME|unix.STATX_CTIME, &host); err != nil {
		return
	}
	mtime.Store(nanoseconds(host.Mtime))
	ctime.Store(nanoseconds(host.Ctime))
	dirty.Store(0)
	seen, now = settledAs(inode, ctime.RacyLoad())
	seen.Store(now)
}

// settled notes the files whose times are the host's already, so that most calls don't
// ask the host. If a file loses its place to another, the host is asked again.
var settled [1 << 12]atomic.Uint64

// settledAs returns a file's place in settled, and the value there if this time of its
// last change is the host's. Whatever changes a file in the sandbox changes that time,
// too.
func settledAs(inode unsafe.Pointer, ctime int64) (place *atomic.Uint64, value uint64) {
	const odd = 0x9e3779b97f4a7c15 // 2^64 over the golden ratio: it spreads neighbours
	value = uint64(uintptr(inode)) * odd
	return &settled[value>>52], value ^ uint64(ctime)*odd
}

func nanoseconds(t unix.StatxTimestamp) int64 { return t.Sec*1e9 + int64(t.Nsec) }

// controlFD is the host's descriptor of a file that an inode's impl stands for, or -1.
func controlFD(impl any) int {
	fd := fieldOf(reflect.ValueOf(impl), "controlFD")
	if fd.Kind() != reflect.Int {
		return -1
	}
	return int(fd.Int())
}

// at is a field of a struct.
func at[T any](of unsafe.Pointer, offset uintptr) *T { return (*T)(unsafe.Add(of, offset)) }
