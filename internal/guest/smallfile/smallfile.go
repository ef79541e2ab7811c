// Package smallfile reads and writes the small files of the sandbox that the guest itself
// depends on. It is safe whatever root inside has put in their places.
package smallfile

import (
	"io"
	"io/fs"
	"os"
	"syscall"

	"github.com/cove-dev/cove/internal/lib/atomicfile"
)

// Read reads a regular file of at most 4 MiB. Root in the sandbox may have put
// anything in its place: a pipe would hold up the guest, and with it a wake.
func Read(name string) ([]byte, error) {
	f, err := os.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if st.Size() > 4<<20 || !st.Mode().IsRegular() {
		return nil, os.ErrInvalid
	}
	return io.ReadAll(io.LimitReader(f, 4<<20))
}

// Write writes a small file, unless it has that content already: each write makes a copy in
// the sprite's own layer. It replaces anything that has the name, except a folder.
func Write(name, content string, mode fs.FileMode) error {
	if now, err := Read(name); err == nil && string(now) == content {
		return nil
	}
	return atomicfile.Replace(name, []byte(content), mode)
}
