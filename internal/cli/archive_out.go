package cli

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// packTree writes the folder dir as an archive: what is in it, by names that
// begin with "./". Links are archived as links. Sockets, pipes and devices are
// passed over, with a word to skipped.
func packTree(w io.Writer, dir string, p *progress, skipped func(name string)) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	tw := tar.NewWriter(w)
	buf := make([]byte, copyBuffer)
	err = fs.WalkDir(root.FS(), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if errors.Is(err, fs.ErrNotExist) {
			return nil // deleted meanwhile
		}
		if err != nil {
			return err
		}
		if !info.Mode().IsRegular() && !info.IsDir() && info.Mode()&fs.ModeSymlink == 0 {
			skipped(filepath.Join(dir, name))
			return nil
		}
		if err := packFile(tw, root, name, info, p, buf); err != nil {
			return fmt.Errorf("read %s: %w", sanitizeLine(filepath.Join(dir, name)), err)
		}
		return nil
	})
	if err != nil {
		return err
	}
	return tw.Close()
}

func packFile(tw *tar.Writer, root *os.Root, name string, info fs.FileInfo, p *progress, buf []byte) error {
	var f *os.File
	target := ""
	var err error
	switch {
	case info.Mode()&fs.ModeSymlink != 0:
		target, err = root.Readlink(name)
	case info.Mode().IsRegular():
		if f, err = root.Open(name); err == nil {
			defer f.Close()
			info, err = f.Stat() // what is open, not what the name meant before
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
	// Who owns it here means nothing there, and special bits do not travel.
	h.Uid, h.Gid, h.Uname, h.Gname = 0, 0, "", ""
	h.Mode &= 0o777
	if err := tw.WriteHeader(h); err != nil {
		return err
	}
	if f == nil {
		return nil
	}
	n, err := io.CopyBuffer(struct{ io.Writer }{countingWriter{tw, p}}, struct{ io.Reader }{io.LimitReader(f, h.Size)}, buf)
	if err == nil && n < h.Size {
		err = errors.New("it became shorter while it was read")
	}
	return err
}

// splitPath is the folder that a name is in, and its last part. A name that ends
// in "." or ".." is made absolute first.
func splitPath(name string) (dir, base string) {
	clean := filepath.Clean(name)
	if base = filepath.Base(clean); base == "." || base == ".." || base == "/" {
		if abs, err := filepath.Abs(clean); err == nil {
			clean = abs
		}
	}
	return filepath.Dir(clean), filepath.Base(clean)
}
