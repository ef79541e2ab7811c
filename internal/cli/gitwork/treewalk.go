package gitwork

import (
	"bufio"
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// Bounds on the size of one diff. A few small trees that name each other can have any
// number of paths, and git would list them all.
const (
	maxChanged = 500_000
	maxDepth   = 1000
)

// checkUnfolded refuses a commit whose difference to base, which may be empty, is
// too large to be listed, before git is asked to list it.
func (s *scratch) checkUnfolded(ctx context.Context, base, tip string) error {
	objects := s.objects(ctx)
	defer objects.close()
	w := &treeWalker{objects: objects, trees: map[string][]treeEntry{}}
	if base != "" {
		base += "^{tree}"
	}
	return w.compare(base, tip+"^{tree}", 0)
}

// errGitEnded is of a git process that ended before its answer was whole.
var errGitEnded = errors.New("git ended in the middle of its answer")

// objectReader reads one object after the other from a git process. It is ended by
// close.
type objectReader struct {
	ask     *io.PipeWriter
	answers *bufio.Reader
	close   func()
}

func (s *scratch) objects(ctx context.Context) *objectReader {
	ctx, cancel := context.WithCancel(ctx)
	ask, in := io.Pipe()
	out, answers := io.Pipe()
	ended := make(chan struct{})
	go func() {
		_, err := s.git.run(ctx, call{args: []string{"cat-file", "--batch"}, stdin: ask, stdout: answers, timeout: patiently})
		_ = answers.CloseWithError(errors.Join(err, errGitEnded))
		_ = ask.CloseWithError(io.ErrClosedPipe)
		close(ended)
	}()
	return &objectReader{ask: in, answers: bufio.NewReader(out), close: func() {
		_ = in.Close()
		_ = out.CloseWithError(io.ErrClosedPipe)
		cancel()
		<-ended
	}}
}

// read returns an object, which must be of that kind and no larger than max, and
// the size of the object names in it.
func (o *objectReader) read(name, kind string, max int64) (body []byte, hashSize int, err error) {
	if _, err := io.WriteString(o.ask, name+"\n"); err != nil {
		return nil, 0, err
	}
	return readObject(o.answers, kind, max)
}

// treeEntry is a line of a tree.
type treeEntry struct {
	name, id string
	folder   bool
}

// treeWalker compares trees.
type treeWalker struct {
	objects *objectReader
	trees   map[string][]treeEntry
	kept    int // entries in trees
	changed int
}

// compare counts the differences between two trees; an empty name is an empty tree.
func (w *treeWalker) compare(a, b string, depth int) error {
	if depth > maxDepth {
		return rejected("its folders are more than %d deep", maxDepth)
	}
	old, err := w.read(a)
	if err != nil {
		return err
	}
	now, err := w.read(b)
	if err != nil {
		return err
	}
	before := make(map[string]treeEntry, len(old))
	for _, e := range old {
		before[e.name] = e
	}
	for _, e := range now {
		was := before[e.name]
		delete(before, e.name)
		if was == e {
			continue
		}
		if err := w.differ(was, e, depth); err != nil {
			return err
		}
	}
	for _, e := range before {
		if err := w.differ(e, treeEntry{}, depth); err != nil {
			return err
		}
	}
	return nil
}

// differ counts a name that two trees have for different things.
func (w *treeWalker) differ(was, is treeEntry, depth int) error {
	if w.changed++; w.changed > maxChanged {
		return rejected("it changes more than %d files", maxChanged)
	}
	var a, b string
	if was.folder {
		a = was.id
	}
	if is.folder {
		b = is.id
	}
	if a == b {
		return nil
	}
	return w.compare(a, b, depth+1)
}

// read gets a tree, from memory if it was read lately.
func (w *treeWalker) read(id string) ([]treeEntry, error) {
	if id == "" {
		return nil, nil
	}
	if entries, ok := w.trees[id]; ok {
		return entries, nil
	}
	body, hashSize, err := w.objects.read(id, "tree", maxTreeSize)
	if err != nil {
		return nil, err
	}
	entries, ok := parseTree(body, hashSize)
	if !ok {
		return nil, rejected("the tree %s is damaged", id)
	}
	if w.kept += len(entries); w.kept > maxChanged {
		clear(w.trees)
		w.kept = len(entries)
	}
	w.trees[id] = entries
	return entries, nil
}

// parseTree reads the entries of a tree: "MODE NAME\0" and an object name each.
func parseTree(body []byte, hashSize int) (entries []treeEntry, ok bool) {
	for len(body) > 0 {
		end := bytes.IndexByte(body, 0)
		if end < 0 || len(body) < end+1+hashSize {
			return nil, false
		}
		mode, name, _ := strings.Cut(string(body[:end]), " ")
		entries = append(entries, treeEntry{name, hex.EncodeToString(body[end+1 : end+1+hashSize]), mode == "40000"})
		body = body[end+1+hashSize:]
	}
	return entries, true
}

// readObject reads one answer of cat-file --batch, with the size of object names;
// io.EOF if there is no more.
func readObject(br *bufio.Reader, kind string, max int64) (body []byte, hashSize int, err error) {
	head, err := br.ReadString('\n')
	if err == io.EOF && head == "" {
		return nil, 0, io.EOF
	}
	if err != nil {
		return nil, 0, fmt.Errorf("read objects: %w", err)
	}
	fields := strings.Fields(head)
	if len(fields) != 3 || fields[1] != kind {
		return nil, 0, rejected("an object of its history can't be read: %s", head)
	}
	size, err := strconv.ParseInt(fields[2], 10, 64)
	if err != nil || size > max {
		return nil, 0, rejected("the %s %s is too big", kind, fields[0])
	}
	body = make([]byte, size+1) // and a newline
	if _, err := io.ReadFull(br, body); err != nil {
		return nil, 0, fmt.Errorf("read objects: %w", err)
	}
	return body[:size], len(fields[0]) / 2, nil
}
