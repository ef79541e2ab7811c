package build

import (
	"archive/tar"
	"bufio"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cove-dev/cove/internal/lib/fail"
)

// contextFolder is the folder of a run that has the build's context.
const contextFolder = "context"

// The bounds of a context.
const (
	maxContextBytes = 64 << 30 // each file counted as 4 KiB at least
	maxContextFiles = 1_000_000
	maxContextPath  = 4096
	maxContextDepth = 128
)

// receive unpacks the context of a build.
func (r *run) receive(ctx context.Context, in io.Reader) error {
	dir := filepath.Join(r.dir, contextFolder)
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	return unpack(ctx, dir, in, r.Images.Claim)
}

// unpack unpacks a context to a folder. Nothing in it leads out of the folder; all is root's. claim
// is called before bytes are written.
func unpack(ctx context.Context, dir string, in io.Reader, claim func(bytes int64) error) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	buffered := bufio.NewReaderSize(in, 256<<10)
	if _, err := buffered.Peek(1); errors.Is(err, io.EOF) {
		return nil // no context
	}
	u := &unpacking{root: root, claim: claim, left: maxContextBytes, buf: make([]byte, 256<<10), folders: map[string]folder{}, parents: map[string]bool{".": true}}
	for t, files := tar.NewReader(buffered), 0; ; files++ {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return contextError(ctx, err)
		}
		if files >= maxContextFiles {
			return badContext("it has more than %d files: leave some out by .dockerignore", maxContextFiles)
		}
		if err := u.member(h, t); err != nil {
			return contextError(ctx, err)
		}
	}
	if _, err := io.Copy(io.Discard, buffered); err != nil { // the padding
		return contextError(ctx, err)
	}
	return u.finish()
}

func badContext(format string, args ...any) error {
	return fail.Newf("bad_input", "send the folder again: cove image build FOLDER", "the build's context can't be used: "+format, args...)
}

func contextError(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		return fail.New("no_space", "the server's disk has no room left for the build's context", "make room: cove image prune; to also remove images that no sprite uses: cove image prune --all")
	}
	if _, ok := errors.AsType[*fail.Error](err); ok {
		return err
	}
	return badContext("%.300v", err)
}

type unpacking struct {
	root    *os.Root
	claim   func(bytes int64) error
	left    int64 // bytes that it may have yet
	buf     []byte
	folders map[string]folder // folders that get rights and times at the end
	parents map[string]bool   // that were made
}

// Write counts bytes that will be written.
func (u *unpacking) Write(p []byte) (int, error) { return len(p), u.take(int64(len(p))) }

func (u *unpacking) take(n int64) error {
	if u.left -= n; u.left < 0 {
		return badContext("it has more than %d bytes: leave some out by .dockerignore", int64(maxContextBytes))
	}
	return u.claim(n)
}

const fileCost = 4 << 10 // bytes of any file, at least

type folder struct {
	mode fs.FileMode
	time time.Time
}

// makeFolder makes a folder with those above it, and counts each.
func (u *unpacking) makeFolder(name string) error {
	if u.parents[name] {
		return nil
	}
	u.parents[name] = true
	if err := u.take(fileCost * int64(1+strings.Count(name, "/"))); err != nil {
		return err
	}
	return u.root.MkdirAll(name, 0o755)
}

func (u *unpacking) member(h *tar.Header, in io.Reader) error {
	if err := u.take(fileCost); err != nil {
		return err
	}
	name := path.Clean(strings.TrimSuffix(h.Name, "/"))
	if !filepath.IsLocal(name) || len(name) > maxContextPath || strings.Count(name, "/") >= maxContextDepth {
		return badContext("it has a file with the invalid name %.200q", h.Name)
	}
	if h.Typeflag == tar.TypeDir {
		u.folders[name] = folder{fileMode(h), h.ModTime}
		return u.makeFolder(name)
	}
	if err := u.makeFolder(path.Dir(name)); err != nil {
		return err
	}
	if err := u.root.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) { // a later member of a name counts
		return err
	}
	switch h.Typeflag {
	case tar.TypeReg:
		f, err := u.root.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
		if err != nil {
			return err
		}
		_, err = io.CopyBuffer(io.MultiWriter(u, f), in, u.buf)
		if err := errors.Join(err, f.Chmod(fileMode(h)), f.Close()); err != nil {
			return err
		}
		return u.root.Chtimes(name, h.ModTime, h.ModTime)
	case tar.TypeSymlink:
		if err := u.root.Symlink(h.Linkname, name); err != nil {
			return err
		}
		return u.linkTime(name, h.ModTime)
	case tar.TypeLink:
		return u.root.Link(path.Clean(h.Linkname), name)
	}
	return badContext("%.200q is neither a file nor a folder nor a link", h.Name)
}

// linkTime sets the time of a symbolic link itself.
func (u *unpacking) linkTime(name string, at time.Time) error {
	dir, err := u.root.OpenFile(path.Dir(name), os.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	ts := unix.NsecToTimespec(at.UnixNano())
	err = unix.UtimesNanoAt(int(dir.Fd()), path.Base(name), []unix.Timespec{ts, ts}, unix.AT_SYMLINK_NOFOLLOW)
	return errors.Join(err, dir.Close())
}

func fileMode(h *tar.Header) fs.FileMode {
	m := fs.FileMode(h.Mode & 0o777)
	for bit, as := range map[int64]fs.FileMode{0o4000: fs.ModeSetuid, 0o2000: fs.ModeSetgid, 0o1000: fs.ModeSticky} {
		if h.Mode&bit != 0 {
			m |= as
		}
	}
	return m
}

// finish sets the rights and times of folders, those in others first.
func (u *unpacking) finish() error {
	names := make([]string, 0, len(u.folders))
	for name := range u.folders {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range slices.Backward(names) {
		h := u.folders[name]
		if err := u.root.Chmod(name, h.mode); err != nil {
			return err
		}
		if err := u.root.Chtimes(name, h.time, h.time); err != nil {
			return err
		}
	}
	return nil
}
