package sprites

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"path"
)

// FS returns the tree under dir as a file system of the standard library. It also
// implements fs.StatFS, fs.ReadDirFS and fs.ReadFileFS. Each operation is a call,
// and ends with ctx. Names are checked as fs.ValidPath says, but a symbolic link
// in the sprite may lead out of dir.
func (s *Sprite) FS(ctx context.Context, dir string) fs.FS {
	return &tree{sprite: s, ctx: ctx, dir: dir}
}

// tree is what FS returns.
type tree struct {
	sprite *Sprite
	ctx    context.Context
	dir    string
}

// full is the sprite's name of a file of the tree.
func (t *tree) full(op, name string) (string, error) {
	if !fs.ValidPath(name) {
		return "", &fs.PathError{Op: op, Path: name, Err: fs.ErrInvalid}
	}
	return path.Join(absolute(t.dir), name), nil
}

// named puts the tree's name of a file into an error.
func named(op, name string, err error) error {
	if err == nil {
		return nil
	}
	return &fs.PathError{Op: op, Path: name, Err: unwrapPath(err)}
}

// Open opens a file or folder.
func (t *tree) Open(name string) (fs.File, error) {
	info, err := t.stat("open", name)
	if err != nil {
		return nil, err
	}
	f := &treeFile{tree: t, name: name, info: info}
	if info.IsDir() {
		return &treeDir{treeFile: f}, nil
	}
	return f, nil
}

// Stat describes a file, following links.
func (t *tree) Stat(name string) (fs.FileInfo, error) {
	return t.stat("stat", name)
}

// maxLinks is how many links in a row are followed, as in the kernel.
const maxLinks = 40

func (t *tree) stat(op, name string) (fs.FileInfo, error) {
	full, err := t.full(op, name)
	if err != nil {
		return nil, err
	}
	at := full
	for range maxLinks {
		info, err := t.sprite.stat(t.ctx, at)
		if err != nil {
			return nil, named(op, name, pathError(op, full, err))
		}
		if info.mode&fs.ModeSymlink == 0 || info.entry.Target == "" {
			info.entry.Name = path.Base(name)
			return info, nil
		}
		if path.IsAbs(info.entry.Target) {
			at = path.Clean(info.entry.Target)
		} else {
			at = path.Join(path.Dir(at), info.entry.Target)
		}
	}
	return nil, named(op, name, errors.New("too many links"))
}

// ReadDir lists a folder.
func (t *tree) ReadDir(name string) ([]fs.DirEntry, error) {
	full, err := t.full("readdir", name)
	if err != nil {
		return nil, err
	}
	list, err := t.sprite.ReadDir(t.ctx, full)
	return list, named("readdir", name, err)
}

// ReadFile reads a whole file.
func (t *tree) ReadFile(name string) ([]byte, error) {
	full, err := t.full("read", name)
	if err != nil {
		return nil, err
	}
	b, err := t.sprite.ReadFile(t.ctx, full)
	return b, named("read", name, err)
}

// treeFile is an open file of a tree. Its content is asked for at the first Read.
type treeFile struct {
	tree   *tree
	name   string
	info   fs.FileInfo
	file   *File
	closed bool
}

func (f *treeFile) Stat() (fs.FileInfo, error) {
	if f.closed {
		return nil, named("stat", f.name, fs.ErrClosed)
	}
	return f.info, nil
}

// open makes the call, once.
func (f *treeFile) open() error {
	if f.closed {
		return named("read", f.name, fs.ErrClosed)
	}
	if f.file != nil {
		return nil
	}
	full, err := f.tree.full("open", f.name)
	if err != nil {
		return err
	}
	f.file, err = f.tree.sprite.Open(f.tree.ctx, full)
	return named("open", f.name, err)
}

func (f *treeFile) Read(p []byte) (int, error) {
	if err := f.open(); err != nil {
		return 0, err
	}
	return f.file.Read(p)
}

func (f *treeFile) WriteTo(w io.Writer) (int64, error) {
	if err := f.open(); err != nil {
		return 0, err
	}
	return f.file.WriteTo(w)
}

func (f *treeFile) Close() error {
	if f.closed {
		return named("close", f.name, fs.ErrClosed)
	}
	f.closed = true
	if f.file != nil {
		return f.file.Close()
	}
	return nil
}

// treeDir is an open folder of a tree. It is listed at the first ReadDir.
type treeDir struct {
	*treeFile
	listed bool
	rest   []fs.DirEntry
}

func (d *treeDir) Read([]byte) (int, error) {
	return 0, named("read", d.name, errors.New("is a directory"))
}

func (d *treeDir) WriteTo(io.Writer) (int64, error) {
	_, err := d.Read(nil)
	return 0, err
}

func (d *treeDir) ReadDir(n int) ([]fs.DirEntry, error) {
	if d.closed {
		return nil, named("readdir", d.name, fs.ErrClosed)
	}
	if !d.listed {
		list, err := d.tree.ReadDir(d.name)
		if err != nil {
			return nil, err
		}
		d.rest, d.listed = list, true
	}
	if n <= 0 || n > len(d.rest) {
		if n > 0 && len(d.rest) == 0 {
			return nil, io.EOF
		}
		n = len(d.rest)
	}
	list := d.rest[:n:n]
	d.rest = d.rest[n:]
	return list, nil
}
