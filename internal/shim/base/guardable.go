package base

import "golang.org/x/sys/unix"

// Guardable reports whether the kernel can refuse a sandbox the files of a folder of the host
// by their present mode (internal/shim/layers has the means). It needs an overlay below that of the
// disk, and the kernel stacks two: in many containers the host's own folders are one already.
// An idmapped mount would add none to the stack, but the kernel makes none of an overlay.
func Guardable(dir string) bool {
	var fs unix.Statfs_t
	return unix.Statfs(dir, &fs) == nil && fs.Type != unix.OVERLAYFS_SUPER_MAGIC && fs.Type != unix.ECRYPTFS_SUPER_MAGIC
}

// Unguarded are the host's program folders, such as "usr", that are not Guardable. A file
// there that becomes secret stays readable to the sandboxes that run.
func (f Files) Unguarded() []string {
	var all []string
	for _, name := range f.programs() {
		if !Guardable(f.path(name)) {
			all = append(all, name)
		}
	}
	return all
}
