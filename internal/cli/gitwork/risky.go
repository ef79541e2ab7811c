package gitwork

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/cove-dev/cove/internal/lib/changerisk"
	"github.com/cove-dev/cove/internal/lib/riskypath"
	"github.com/cove-dev/cove/internal/lib/safepath"
)

// Risk is changerisk's.
type Risk = changerisk.Risk

// risks judges the files that changed from base to tip. It returns those that must be
// held for the person's review (risky), and those that are only listed.
func (s *scratch) risks(ctx context.Context, base, tip string, files []File) (risky, listed []Risk, err error) {
	if len(files) == 0 {
		return []Risk{}, []Risk{}, nil
	}
	objects := &contents{s: s}
	defer objects.close()
	here, done, err := s.here(ctx)
	if err != nil {
		return nil, nil, err
	}
	defer done()
	j, err := s.judge(ctx, base, tip, objects, here)
	if err != nil {
		return nil, nil, err
	}
	changes := make([]changerisk.Change, 0, len(files))
	for _, f := range files {
		changes = append(changes, changerisk.Change{Path: f.Path, Status: f.Status, OldMode: f.oldMode, OldBlob: f.oldBlob, Mode: f.mode, Blob: f.blob})
	}
	return j.Changes(ctx, changes)
}

// judge looks at the trees of two commits.
func (s *scratch) judge(ctx context.Context, base, tip string, objects *contents, here changerisk.Here) (*changerisk.Judge, error) {
	tree := changerisk.NewTree()
	w := &recordWriter{each: func(entry string) { tree.Entry(entry) }}
	if _, err := s.git.run(ctx, call{args: []string{"ls-tree", "-r", "-t", "-z", "--full-tree", tip}, stdout: w, timeout: patiently}); err != nil {
		return nil, fmt.Errorf("look through the tree: %w", err)
	}
	w = &recordWriter{each: func(name string) { tree.Top(name) }}
	if _, err := s.git.run(ctx, call{args: []string{"ls-tree", "-z", "--full-tree", "--name-only", base}, stdout: w}); err != nil {
		return nil, fmt.Errorf("look through the tree: %w", err)
	}
	return changerisk.New(ctx, tree, objects, here)
}

// Inside returns a function that judges paths that are not files of a commit's tree, such as
// those in its submodules. It judges them by that tree: see changerisk.Judge.Inside.
func (r *Repo) Inside(ctx context.Context, commit string) (why func(name string) string, err error) {
	s, err := r.scratch(ctx)
	if err != nil {
		return nil, err
	}
	defer s.remove()
	objects := &contents{s: s}
	defer objects.close()
	here, done, err := s.here(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	j, err := s.judge(ctx, commit, commit, objects, here)
	if err != nil {
		return nil, err
	}
	return j.Inside, nil
}

// here is the part of a judgement that depends on this machine. It is valid until done is
// called.
func (s *scratch) here(ctx context.Context) (here changerisk.Here, done func(), err error) {
	r := s.of
	done = func() {}
	if r == nil || r.Bare {
		return here, done, nil
	}
	programs, err := r.programs(ctx)
	if err != nil {
		return here, done, err
	}
	here = changerisk.Here{Programs: programs.list, Runs: programs.ran, InTree: r.inTree, Links: linksAtTop(r.Dir)}
	root, err := os.OpenRoot(r.Dir)
	switch {
	case err == nil:
		here.Parts = func(dir string) safepath.GitParts { return partsIn(root, dir) }
		done = func() { _ = root.Close() }
	case !isNotExist(err):
		return here, done, err
	}
	return here, done, nil
}

// linksAtTop are the symbolic links at the top of a work tree that have risky names.
func linksAtTop(dir string) map[string]string {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil // a work tree that is gone, or that nothing can read
	}
	links := map[string]string{}
	for _, e := range entries {
		if e.Type()&fs.ModeSymlink == 0 || riskypath.Path(e.Name()) == "" {
			continue
		}
		if target, err := os.Readlink(filepath.Join(dir, e.Name())); err == nil {
			links[e.Name()] = filepath.ToSlash(target)
		}
	}
	return links
}

// partsIn are the git parts of a folder of the work tree; none if the folder can't be read.
func partsIn(root *os.Root, dir string) (parts safepath.GitParts) {
	f, err := root.Open(dir)
	if err != nil {
		return 0
	}
	defer func() { _ = f.Close() }()
	for {
		entries, err := f.ReadDir(512)
		for _, e := range entries {
			parts |= safepath.GitPart(e.Name())
		}
		if err != nil {
			return parts
		}
	}
}

// contents are the objects of a scratch repository. One git process reads the texts.
type contents struct {
	s *scratch
	r *objectReader // nil: not started
}

func (c *contents) close() {
	if c.r != nil {
		c.r.close()
		c.r = nil
	}
}

// Config is of changerisk.Objects.
func (c *contents) Config(ctx context.Context, blob string) (bool, error) {
	_, err := c.s.git.run(ctx, call{args: []string{"config", "--blob", blob, "--list"}})
	if exitCode(err) > 0 {
		return false, nil
	}
	return err == nil, err
}

// Text is of changerisk.Objects.
func (c *contents) Text(ctx context.Context, blob string) (text string, ok bool, err error) {
	if c.r == nil {
		c.r = c.s.objects(ctx)
	}
	body, _, err := c.r.read(blob, "blob", changerisk.MaxText)
	if err != nil {
		c.close() // the rest of the answer is still to come
	}
	if _, rejected := errors.AsType[*RejectedError](err); rejected {
		return "", false, nil
	}
	if err != nil {
		return "", false, fmt.Errorf("read a changed file: %w", err)
	}
	return string(body), true, nil
}

// maxLinkBytes bounds what the symbolic links of a tree say.
const maxLinkBytes = 64 << 20

// Links is of changerisk.Objects.
func (c *contents) Links(ctx context.Context, blobs []string) (targets map[string]string, all bool, err error) {
	if len(blobs) == 0 {
		return nil, true, nil
	}
	blobs = changerisk.Unique(blobs)
	ask := func(ids []string) io.Reader { return strings.NewReader(strings.Join(ids, "\n") + "\n") }
	sizes, err := c.s.git.run(ctx, call{args: []string{"cat-file", "--batch-check=%(objectsize)", "--buffer"}, stdin: ask(blobs), timeout: patiently})
	if err != nil {
		return nil, false, fmt.Errorf("read symbolic links: %w", err)
	}
	lines := strings.Split(strings.TrimSuffix(string(sizes), "\n"), "\n")
	if len(lines) != len(blobs) {
		return nil, false, errors.New("read symbolic links: git's answer is not understood")
	}
	var short []string
	total := 0
	all = true
	for i, line := range lines {
		n, err := strconv.Atoi(line)
		if err != nil || n > changerisk.MaxTarget {
			continue
		}
		if total += n; total > maxLinkBytes {
			all = false
			break
		}
		short = append(short, blobs[i])
	}
	targets = make(map[string]string, len(short))
	if len(short) == 0 {
		return targets, all, nil
	}
	pr, pw := io.Pipe()
	read := make(chan error, 1)
	go func() {
		br := bufio.NewReader(pr)
		var err error
		for _, blob := range short {
			var body []byte
			if body, _, err = readObject(br, "blob", changerisk.MaxTarget); err != nil {
				break
			}
			targets[blob] = string(body)
		}
		_ = pr.CloseWithError(errors.Join(errors.New("links are no longer read"), err))
		read <- err
	}()
	_, err = c.s.git.run(ctx, call{args: []string{"cat-file", "--batch", "--buffer"}, stdin: ask(short), stdout: pw, timeout: patiently})
	_ = pw.CloseWithError(errGitEnded)
	if found := <-read; found != nil {
		return nil, false, fmt.Errorf("read symbolic links: %w", found)
	}
	return targets, all, err
}
