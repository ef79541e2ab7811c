package tree

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"

	"github.com/cove-dev/cove/internal/lib/printable"
)

// Pack writes the content of the folder dir as an archive, with names that begin with "./".
// Links are archived as links. Sockets, pipes and devices are left out, and skipped is
// called with their names. count is called for each piece of contents.
func Pack(w io.Writer, dir string, count func(n int), skipped func(name string)) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	k := &packer{tw: tar.NewWriter(w), root: root, counted: count, skipped: skipped, buf: make([]byte, copyBuffer)}
	if err := k.entry("."); err != nil {
		return err
	}
	return k.tw.Close()
}

// packer writes what is below a folder as an archive.
type packer struct {
	tw      *tar.Writer
	root    *os.Root
	counted func(n int)
	skipped func(name string)
	buf     []byte
}

// entry archives a file, or a folder and what is in it. Names are whatever the kernel
// takes: io/fs would refuse those that are not UTF-8.
func (k *packer) entry(name string) error {
	full := filepath.Join(k.root.Name(), name)
	info, err := k.root.Lstat(name)
	if errors.Is(err, fs.ErrNotExist) && name != "." {
		return nil // deleted meanwhile
	}
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() && !info.IsDir() && info.Mode()&fs.ModeSymlink == 0 {
		k.skipped(full)
		return nil
	}
	if err := k.one(name, info); err != nil {
		return fmt.Errorf("read %s: %w", printable.Line(full), err)
	}
	if !info.IsDir() {
		return nil
	}
	return eachEntry(k.root, name, func(d fs.DirEntry) error { return k.entry(path.Join(name, d.Name())) })
}

func (k *packer) one(name string, info fs.FileInfo) error {
	var f *os.File
	target := ""
	var err error
	switch {
	case info.Mode()&fs.ModeSymlink != 0:
		target, err = k.root.Readlink(name)
	case info.Mode().IsRegular():
		if f, err = k.root.Open(name); err == nil {
			defer f.Close()
			info, err = f.Stat() // of the open file: the name may have meant another one before
		}
	}
	if err != nil {
		return err
	}
	if f != nil && !info.Mode().IsRegular() {
		return errors.New("it was replaced while it was read")
	}
	h, err := tar.FileInfoHeader(info, target)
	if err != nil {
		return err
	}
	h.Name = "./" + name
	if name == "." {
		h.Name = "./"
	} else if info.IsDir() {
		h.Name += "/"
	}
	// The owner here means nothing there, and special bits are not sent.
	h.Uid, h.Gid, h.Uname, h.Gname = 0, 0, "", ""
	h.Mode &= 0o777
	if err := k.tw.WriteHeader(h); err != nil {
		return err
	}
	if f == nil {
		return nil
	}
	n, err := io.CopyBuffer(struct{ io.Writer }{k.tw}, struct{ io.Reader }{countingReader{io.LimitReader(f, h.Size), k.counted}}, k.buf)
	if err == nil && n < h.Size {
		err = errors.New("it became shorter while it was read")
	}
	return err
}

// SplitPath is the folder that a name is in, and its last part. A name that ends
// in "." or ".." is made absolute first.
func SplitPath(name string) (dir, base string) {
	clean := filepath.Clean(name)
	if base = filepath.Base(clean); base == "." || base == ".." || base == "/" {
		if abs, err := filepath.Abs(clean); err == nil {
			clean = abs
		}
	}
	return filepath.Dir(clean), filepath.Base(clean)
}
