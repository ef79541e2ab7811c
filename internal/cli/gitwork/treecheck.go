package gitwork

import (
	"bufio"
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/cove-dev/cove/internal/lib/safepath"
)

// maxTreeSize bounds one tree object.
const maxTreeSize = 64 << 20

// checkTrees checks every object that is reachable from tips but not from starts. All of
// them must exist, and the tips must be commits. No entry of a tree may have a name that
// a file system takes for something else (checkName).
func (s *scratch) checkTrees(ctx context.Context, tips, starts []string) error {
	ids, err := s.newObjects(ctx, tips, starts)
	if err != nil {
		return err
	}
	trees, err := s.treesAmong(ctx, ids, tips)
	if err != nil || len(trees) == 0 {
		return err
	}
	return s.readTrees(ctx, trees)
}

// newObjects lists them, a line each. A missing object is an error of git's.
func (s *scratch) newObjects(ctx context.Context, tips, starts []string) ([]byte, error) {
	var out bytes.Buffer
	_, err := s.git.run(ctx, call{
		args:    []string{"rev-list", "--objects", "--no-object-names", "--stdin"},
		stdin:   revisions(tips, starts),
		stdout:  &limited{w: &out, left: maxObjects * 65},
		timeout: patiently,
	})
	if exitCode(err) > 0 {
		return nil, rejected("its history is not complete: %v", err)
	}
	return out.Bytes(), err
}

// treesAmong keeps the trees, a line each, and checks that tips are commits.
func (s *scratch) treesAmong(ctx context.Context, ids []byte, tips []string) ([]byte, error) {
	want := map[string]bool{}
	for _, tip := range tips {
		want[tip] = true
	}
	var trees, line bytes.Buffer
	pick := writerFunc(func(p []byte) (int, error) {
		line.Write(p)
		for {
			i := bytes.IndexByte(line.Bytes(), '\n')
			if i < 0 {
				return len(p), nil
			}
			kind, id, _ := strings.Cut(string(line.Next(i + 1)[:i]), " ")
			if kind == "tree" {
				trees.WriteString(id + "\n")
			}
			if want[id] && kind != "commit" {
				return 0, rejected("%s is not a commit", id)
			}
		}
	})
	in := io.MultiReader(bytes.NewReader(ids), strings.NewReader(strings.Join(tips, "\n")+"\n"))
	_, err := s.git.run(ctx, call{
		args: []string{"cat-file", "--batch-check=%(objecttype) %(objectname)", "--buffer"}, stdin: in, stdout: pick, timeout: patiently,
	})
	return trees.Bytes(), err
}

// readTrees checks the content of the listed trees.
func (s *scratch) readTrees(ctx context.Context, list []byte) error {
	pr, pw := io.Pipe()
	done := make(chan error, 1)
	go func() {
		err := parseTrees(bufio.NewReaderSize(pr, 64<<10))
		_ = pr.CloseWithError(errors.Join(errors.New("trees are no longer read"), err)) // so that git's output is not waited for
		done <- err
	}()
	_, err := s.git.run(ctx, call{args: []string{"cat-file", "--batch", "--buffer"}, stdin: bytes.NewReader(list), stdout: pw, timeout: patiently})
	_ = pw.CloseWithError(io.EOF)
	if found := <-done; found != nil {
		return found
	}
	return err
}

// parseTrees reads the output of cat-file --batch.
func parseTrees(br *bufio.Reader) error {
	for {
		body, hashSize, err := readObject(br, "tree", maxTreeSize)
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		if err := checkTree(body, hashSize); err != nil {
			return rejected("a tree has %v", err)
		}
	}
}

// checkTree checks the entries of one tree: "MODE NAME\0" and an object name each.
func checkTree(body []byte, hashSize int) error {
	for len(body) > 0 {
		end := bytes.IndexByte(body, 0)
		if end < 0 || len(body) < end+1+hashSize {
			return errors.New("a damaged entry")
		}
		mode, name, ok := strings.Cut(string(body[:end]), " ")
		if !ok {
			return errors.New("a damaged entry")
		}
		switch mode {
		case "40000", "100644", "100755", "120000", "160000":
		default:
			return fmt.Errorf("an entry %q of mode %q", name, mode)
		}
		if err := checkName(name); err != nil {
			return err
		}
		if mode == "120000" && safepath.IsDotFile(name, "gitmodules", "gitmod") {
			return fmt.Errorf("%q as a symbolic link", name)
		}
		if hex.EncodeToString(body[end+1:end+1+hashSize]) == strings.Repeat("0", 2*hashSize) {
			return fmt.Errorf("an entry %q without an object", name)
		}
		body = body[end+1+hashSize:]
	}
	return nil
}

// maxName is what file systems take as a name.
const maxName = 255

// checkName refuses names that a file system may not take for a file of that name. It may
// take them for the folder itself, the one above, a path, or git's own directory.
func checkName(name string) error {
	switch {
	case name == "":
		return errors.New("an entry without a name")
	case name == "." || name == "..":
		return fmt.Errorf("an entry %q", name)
	case strings.Contains(name, "/"):
		return fmt.Errorf("an entry with a slash in its name, %q", name)
	case len(name) > maxName:
		return fmt.Errorf("an entry whose name is longer than %d bytes", maxName)
	}
	for part := range strings.SplitSeq(name, `\`) { // a separator on some systems
		if part == ".." && part != name || safepath.IsDotGit(part) {
			return fmt.Errorf("an entry %q, which some systems take for .git or for a path out of its folder", name)
		}
	}
	return nil
}

// writerFunc is an io.Writer.
type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

// limited passes on until more than left bytes have come, which is an error.
type limited struct {
	w    io.Writer
	left int64
}

func (l *limited) Write(p []byte) (int, error) {
	if l.left -= int64(len(p)); l.left < 0 {
		return 0, rejected("it has more objects or files than allowed")
	}
	return l.w.Write(p)
}
