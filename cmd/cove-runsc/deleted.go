package main

import (
	gocontext "context"
	"reflect"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/context"
	"gvisor.dev/gvisor/pkg/log"
	"gvisor.dev/gvisor/pkg/sentry/arch"
	"gvisor.dev/gvisor/pkg/sentry/kernel"
	"gvisor.dev/gvisor/pkg/sentry/kernel/auth"
	"gvisor.dev/gvisor/pkg/sentry/vfs"
	"gvisor.dev/gvisor/pkg/state"
)

// A memory image has the content of each file that was deleted and is still open. gVisor
// keeps that content as an array, and its encoder takes each byte for an object of its
// own. That takes some 110 ms a megabyte, during which the sandbox is paused, and 16
// bytes of memory for each byte. gVisor writes a string in one piece. So when a save
// begins, this code takes the content away from the inodes, and has it encoded as
// strings. When an image is loaded, it gives the content back before gVisor makes the
// files again.
//
// gVisor has no functions that give this content, so its fields are looked up by name. If
// there is no such field, the content stays where it is: a save is slow then, but still
// correct.

// deletedFiles is a file system, so that it is saved and loaded with all others. It is
// mounted nowhere.
type deletedFiles struct {
	vfsfs vfs.Filesystem // the first, by the contract of vfs.FilesystemImpl

	// Nothing asks it for files.
	vfs.FilesystemImpl

	inodes []any    // *gofer.inode, while it is saved or loaded
	data   []string // the content of each
}

// The fields of gVisor's gofer file system that lead to the content.
const (
	deletedDentries = "savedDeletedOpenDentries" // map[*dentry]struct{} of a filesystem
	dentryInode     = "inode"                    // *inode of a dentry
	inodeContent    = "savedDeletedData"         // []byte of an inode
)

// saveDeletedWhole installs this for the sandboxes of this process. It is called before
// there is one.
func saveDeletedWhole() {
	state.Register((*deletedFiles)(nil))
	state.Register((*deletedType)(nil))
	// The kernel can't be reached before a program runs. A restored sandbox has its
	// deletedFiles already.
	var once sync.Once
	before[unix.SYS_EXECVE] = func(t *kernel.Task, _ arch.SyscallArguments) {
		once.Do(func() { addDeletedFiles(t.Kernel().VFS()) })
	}
}

// addDeletedFiles adds a deletedFiles if there is none.
func addDeletedFiles(to *vfs.VirtualFilesystem) {
	found := false
	eachFilesystem(to, func(impl vfs.FilesystemImpl) {
		_, is := impl.(*deletedFiles)
		found = found || is
	})
	if !found {
		d := &deletedFiles{}
		d.vfsfs.Init(to, &deletedType{}, d)
	}
}

func eachFilesystem(of *vfs.VirtualFilesystem, f func(vfs.FilesystemImpl)) {
	for _, fs := range of.GetFilesystems() {
		f(fs.Impl())
		fs.DecRef(context.Background())
	}
}

// take takes the content from all inodes. By then all file systems are prepared, and no
// inode is encoded: it is nearer to the root of what is saved. If one were, its content
// would be there twice.
func (d *deletedFiles) take() {
	d.drop()
	eachFilesystem(d.vfsfs.VirtualFilesystem(), func(impl vfs.FilesystemImpl) {
		dentries := fieldOf(reflect.ValueOf(impl), deletedDentries)
		if dentries.Kind() != reflect.Map {
			return // not the gofer's
		}
		for _, dentry := range dentries.MapKeys() {
			inode := fieldOf(dentry, dentryInode)
			content := contentOf(inode)
			if content == nil {
				log.Warningf("deleted files will be saved byte by byte: %v has no field %s with a field %s", dentry.Type(), dentryInode, inodeContent)
				return
			}
			if len(*content) > 0 {
				d.inodes = append(d.inodes, reflect.NewAt(inode.Type().Elem(), inode.UnsafePointer()).Interface())
				d.data = append(d.data, unsafe.String(unsafe.SliceData(*content), len(*content))) // nothing writes to it any more
				*content = nil
			}
		}
	})
}

// give gives the content back.
func (d *deletedFiles) give() {
	for i, inode := range d.inodes {
		content := contentOf(reflect.ValueOf(inode))
		if content == nil {
			state.Failf("load deleted files: %T has no %s", inode, inodeContent)
		}
		*content = unsafe.Slice(unsafe.StringData(d.data[i]), len(d.data[i])) // gVisor only reads it
	}
	d.drop()
}

func (d *deletedFiles) drop() { d.inodes, d.data = nil, nil }

// fieldOf is a field of the struct that a pointer leads to. If there is none, it is the
// zero Value.
func fieldOf(of reflect.Value, name string) reflect.Value {
	if of.Kind() != reflect.Pointer || of.IsNil() || of.Elem().Kind() != reflect.Struct {
		return reflect.Value{}
	}
	return of.Elem().FieldByName(name)
}

// contentOf is the content that an inode has to be saved, or nil.
func contentOf(inode reflect.Value) *[]byte {
	field := fieldOf(inode, inodeContent)
	if !field.IsValid() || field.Type() != reflect.TypeFor[[]byte]() {
		return nil
	}
	return (*[]byte)(unsafe.Pointer(field.UnsafeAddr()))
}

func (*deletedFiles) StateTypeName() string { return "cove-runsc.deletedFiles" }
func (*deletedFiles) StateFields() []string { return []string{"vfsfs", "inodes", "data"} }

func (d *deletedFiles) StateSave(s state.Sink) {
	d.take()
	s.Save(0, &d.vfsfs)
	s.Save(1, &d.inodes)
	s.Save(2, &d.data)
}

func (d *deletedFiles) StateLoad(_ gocontext.Context, s state.Source) {
	s.Load(0, &d.vfsfs)
	s.Load(1, &d.inodes)
	s.Load(2, &d.data)
	s.AfterLoad(d.give)
}

// PrepareSave is called before anything is saved, and may refuse it.
func (*deletedFiles) PrepareSave(ctx context.Context) error { return checkNetworks(ctx) }

func (*deletedFiles) Release(context.Context)                                           {}
func (*deletedFiles) Sync(context.Context) error                                        { return nil }
func (d *deletedFiles) BeforeResume(context.Context)                                    { d.drop() }
func (*deletedFiles) CompleteRestore(context.Context, vfs.CompleteRestoreOptions) error { return nil }

// deletedType is the type of deletedFiles. Nothing mounts one.
type deletedType struct{}

func (*deletedType) Name() string            { return "cove-deleted" }
func (*deletedType) Release(context.Context) {}
func (*deletedType) GetFilesystem(context.Context, *vfs.VirtualFilesystem, *auth.Credentials, string, vfs.GetFilesystemOptions) (*vfs.Filesystem, *vfs.Dentry, error) {
	return nil, nil, unix.ENODEV
}

func (*deletedType) StateTypeName() string                     { return "cove-runsc.deletedType" }
func (*deletedType) StateFields() []string                     { return nil }
func (*deletedType) StateSave(state.Sink)                      {}
func (*deletedType) StateLoad(gocontext.Context, state.Source) {}
