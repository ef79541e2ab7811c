package cli

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"

	"github.com/moby/patternmatcher"
	"github.com/moby/patternmatcher/ignorefile"

	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/lib/printable"
)

// openContext packs the folder of a build, without what its .dockerignore names. If there is one
// of the Dockerfile's own name before that, such as app.Dockerfile.dockerignore, it counts
// instead. The caller closes it.
func openContext(inv *invocation, dir, file string) (io.ReadCloser, error) {
	if st, err := os.Stat(dir); err != nil || !st.IsDir() {
		return nil, fail.Newf("bad_input", "name the folder that COPY takes files from, such as .", "%s is no folder", dir)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	ignore, err := readIgnore(dir, file)
	if err != nil {
		return nil, errors.Join(err, root.Close())
	}
	r, w := io.Pipe()
	go func() {
		p := packer{inv: inv, root: root, ignore: ignore, out: tar.NewWriter(w)}
		err := p.folder(".")
		if err == nil {
			err = p.out.Close()
		}
		if p.sockets > 0 {
			inv.say("Left out of the context: sockets and devices (%d).", p.sockets)
		}
		_ = w.CloseWithError(errors.Join(err, root.Close())) // which never fails
	}()
	return r, nil
}

func readIgnore(dir, file string) (*patternmatcher.PatternMatcher, error) {
	if file == "" {
		file = filepath.Join(dir, "Dockerfile")
	}
	for _, name := range []string{file + ".dockerignore", filepath.Join(dir, ".dockerignore")} {
		f, err := os.Open(name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		patterns, err := ignorefile.ReadAll(f)
		err = errors.Join(err, f.Close())
		var m *patternmatcher.PatternMatcher
		if err == nil {
			m, err = patternmatcher.New(patterns)
		}
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", name, err)
		}
		return m, nil
	}
	return patternmatcher.New(nil)
}

type packer struct {
	inv     *invocation
	root    *os.Root
	ignore  *patternmatcher.PatternMatcher
	out     *tar.Writer
	sockets int
}

func (p *packer) folder(dir string) error {
	f, err := p.root.Open(dir)
	if err != nil {
		return err
	}
	entries, err := f.ReadDir(-1)
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	for _, e := range entries {
		if err := p.entry(path.Join(dir, e.Name())); err != nil {
			return err
		}
	}
	return nil
}

func (p *packer) entry(name string) error {
	ignored, err := p.ignore.MatchesOrParentMatches(name)
	if err != nil {
		return fmt.Errorf(".dockerignore: %w", err)
	}
	st, err := p.root.Lstat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // it went meanwhile
	}
	if err != nil {
		return err
	}
	if ignored {
		if st.IsDir() && p.ignore.Exclusions() { // something in it may count
			return p.folder(name)
		}
		return nil
	}
	target := ""
	switch {
	case st.Mode()&fs.ModeSymlink != 0:
		if target, err = p.root.Readlink(name); err != nil {
			return err
		}
	case !st.IsDir() && !st.Mode().IsRegular():
		p.sockets++
		return nil
	}
	h, err := tar.FileInfoHeader(st, target)
	if err != nil {
		return err
	}
	h.Format, h.Uid, h.Gid, h.Uname, h.Gname, h.AccessTime, h.ChangeTime = tar.FormatPAX, 0, 0, "", "", h.ModTime, h.ModTime
	if h.Name = name; st.IsDir() {
		h.Name += "/"
	}
	if !st.Mode().IsRegular() {
		if err := p.out.WriteHeader(h); err != nil || !st.IsDir() {
			return err
		}
		return p.folder(name)
	}
	f, err := p.root.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := p.out.WriteHeader(h); err != nil {
		return err
	}
	n, err := io.Copy(p.out, io.LimitReader(f, h.Size))
	if err == nil && n < h.Size {
		err = fmt.Errorf("%s became shorter while it was read", printable.Line(name))
	}
	return err
}
