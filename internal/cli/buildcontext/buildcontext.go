// Package buildcontext sends the folder of a build's context as a tar, without the files that
// its .dockerignore file excludes.
package buildcontext

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cove-dev/cove/internal/lib/dockerignore"
	"github.com/cove-dev/cove/internal/lib/fail"
)

// maxDockerfile bounds a Dockerfile that is read, in bytes; the server's bound is its own.
const maxDockerfile = 1 << 20

// Source is a folder and a Dockerfile to build.
type Source struct {
	Dir        string
	Dockerfile string    // a file; empty: Dockerfile in Dir, or else Containerfile; -: it is read from In
	In         io.Reader // for a Dockerfile that is -
}

// Sent is what Write has sent.
type Sent struct {
	Files   int64
	Bytes   int64
	LeftOut []string // sockets and devices, which can't be in an image, the first few
}

// Read returns the Dockerfile, what messages call it, and the patterns of the .dockerignore file.
// A file DOCKERFILE.dockerignore beside the Dockerfile comes before .dockerignore in the folder.
func (s Source) Read() (text []byte, name string, ignore dockerignore.Patterns, err error) {
	file := s.Dockerfile
	if file == "" {
		file = filepath.Join(s.Dir, "Dockerfile")
		if _, err := os.Lstat(file); errors.Is(err, fs.ErrNotExist) {
			if other := filepath.Join(s.Dir, "Containerfile"); isThere(other) {
				file = other
			}
		}
	}
	ignores := []string{filepath.Join(s.Dir, ".dockerignore")}
	if file == "-" {
		name = "the standard input"
		text, err = io.ReadAll(io.LimitReader(s.In, maxDockerfile+1))
	} else {
		name = file
		text, err = readFile(file)
		ignores = append([]string{file + ".dockerignore"}, ignores...)
	}
	if err != nil {
		return nil, name, ignore, fail.Wrap("no_file", fmt.Errorf("read the Dockerfile: %w", err), "name the file: cove image build -f FILE FOLDER")
	}
	for _, at := range ignores {
		lines, err := readFile(at)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err == nil {
			ignore, err = dockerignore.Parse(lines)
		}
		if err != nil {
			return nil, name, ignore, fail.Wrap("bad_pattern", fmt.Errorf("read %s: %w", at, err), "")
		}
		break
	}
	return text, name, ignore, nil
}

func isThere(name string) bool {
	_, err := os.Lstat(name)
	return err == nil
}

// readFile reads a small file. It waits for no FIFO.
func readFile(name string) (text []byte, err error) {
	f, err := os.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil, errors.Join(fmt.Errorf("%s is not a file", name), err)
	}
	if text, err = io.ReadAll(io.LimitReader(f, maxDockerfile+1)); err == nil && len(text) > maxDockerfile {
		err = fmt.Errorf("%s has more than %d bytes", name, maxDockerfile)
	}
	return text, err
}

// Write writes the context as a tar, and ends it. Symbolic links are sent as they are, wherever
// they lead. A file that changes meanwhile is an error.
func Write(ctx context.Context, out io.Writer, dir string, ignore dockerignore.Patterns) (Sent, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return Sent{}, fail.Wrap("no_file", err, "name the folder of the context")
	}
	w := &writer{ctx: ctx, root: root, tar: tar.NewWriter(out), ignore: ignore}
	err = w.folder("", dockerignore.Parent{})
	if err == nil {
		err = w.tar.Close()
	}
	return w.sent, errors.Join(err, root.Close())
}

type writer struct {
	ctx     context.Context
	root    *os.Root
	tar     *tar.Writer
	ignore  dockerignore.Patterns
	pending []string // folders that are ignored, and sent if something in them is not
	sent    Sent
}

func (w *writer) folder(at string, in dockerignore.Parent) error {
	f, err := w.root.Open(path.Join(".", at))
	if err != nil {
		return err
	}
	names, err := f.Readdirnames(-1)
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	slices.Sort(names)
	for _, name := range names {
		if err := w.name(path.Join(at, name), in); err != nil {
			return err
		}
	}
	return nil
}

func (w *writer) name(at string, in dockerignore.Parent) error {
	if w.ctx.Err() != nil {
		return context.Cause(w.ctx)
	}
	info, err := w.root.Lstat(at)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	ignored, below, err := w.ignore.Ignores(at, in)
	if err != nil {
		return fail.Wrap("bad_pattern", fmt.Errorf(".dockerignore: %w", err), "")
	}
	if ignored {
		if !info.IsDir() || !w.ignore.Exceptions(at) {
			return nil
		}
		w.pending = append(w.pending, at)
		err := w.folder(at, below)
		w.pending = slices.DeleteFunc(w.pending, func(p string) bool { return p == at })
		return err
	}
	for _, dir := range w.pending {
		above, err := w.root.Lstat(dir)
		if err == nil {
			err = w.member(dir, above)
		}
		if err != nil {
			return err
		}
	}
	w.pending = nil
	if err := w.member(at, info); err != nil || !info.IsDir() {
		return err
	}
	return w.folder(at, below)
}

// mostTold is how many names of left-out files are told.
const mostTold = 10

func (w *writer) member(at string, info fs.FileInfo) error {
	target := ""
	switch {
	case info.Mode()&fs.ModeSymlink != 0:
		var err error
		if target, err = w.root.Readlink(at); err != nil {
			return err
		}
	case !info.Mode().IsRegular() && !info.IsDir():
		if len(w.sent.LeftOut) < mostTold {
			w.sent.LeftOut = append(w.sent.LeftOut, at)
		}
		return nil
	}
	h, err := tar.FileInfoHeader(info, target)
	if err != nil {
		return err
	}
	h.Format, h.Name = tar.FormatPAX, at
	if info.IsDir() {
		h.Name += "/"
	}
	h.Uid, h.Gid, h.Uname, h.Gname = 0, 0, "", "" // all are root's in an image
	if !info.Mode().IsRegular() {
		if err := w.tar.WriteHeader(h); err != nil {
			return fmt.Errorf("%q: %w", at, err)
		}
		w.sent.Files++
		return nil
	}
	f, err := w.root.OpenFile(at, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	n, err := SendFile(w.tar, f, h)
	w.sent.Files++
	w.sent.Bytes += n
	return err
}

// SendFile writes a header, with the file's size, and the file's content. It returns the number of
// bytes of content. If the file is not regular any more, or gets shorter meanwhile, that is an
// error.
func SendFile(out *tar.Writer, f *os.File, h *tar.Header) (int64, error) {
	changed := fail.Newf("changed", "try it again", "%s changed while it was sent", strings.TrimSpace(h.Name))
	now, err := f.Stat()
	if err != nil {
		return 0, err
	}
	if !now.Mode().IsRegular() {
		return 0, changed
	}
	h.Size = now.Size()
	if err := out.WriteHeader(h); err != nil {
		return 0, fmt.Errorf("%q: %w", h.Name, err)
	}
	n, err := io.CopyN(out, f, h.Size)
	if err == io.EOF {
		err = changed
	}
	return n, err
}
