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

// Bounds of what one diff may unfold to. A few small trees that name each other
// can stand for any number of paths, and git would list them all.
const (
	maxChanged = 500_000
	maxDepth   = 1000
)

// checkUnfolded refuses a commit whose difference to base is too large to be
// listed, before git is asked to list it.
func (s *scratch) checkUnfolded(ctx context.Context, base, tip string) error {
	ctx, cancel := context.WithCancel(ctx)
	ask, in := io.Pipe()
	out, answers := io.Pipe()
	ended := make(chan struct{})
	go func() {
		_, err := s.git.run(ctx, call{args: []string{"cat-file", "--batch"}, stdin: ask, stdout: answers, timeout: patiently})
		_ = answers.CloseWithError(errors.Join(err, io.ErrUnexpectedEOF))
		_ = ask.CloseWithError(io.ErrClosedPipe)
		close(ended)
	}()
	w := &treeWalker{ask: in, answers: bufio.NewReader(out), trees: map[string][]treeEntry{}}
	err := w.compare(base+"^{tree}", tip+"^{tree}", 0)
	_ = in.Close()
	_ = out.CloseWithError(io.ErrClosedPipe)
	cancel()
	<-ended
	return err
}

// treeEntry is a line of a tree.
type treeEntry struct {
	name, id string
	folder   bool
}

// treeWalker reads trees from a cat-file process.
type treeWalker struct {
	ask     io.Writer
	answers *bufio.Reader
	trees   map[string][]treeEntry
	kept    int // entries in trees
	changed int
}

// compare counts what differs between two trees; an empty name is an empty tree.
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

// differ counts a name that stands for different things.
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
	if _, err := io.WriteString(w.ask, id+"\n"); err != nil {
		return nil, err
	}
	body, hashSize, err := readTree(w.answers)
	if err != nil {
		return nil, err
	}
	var entries []treeEntry
	for len(body) > 0 {
		end := bytes.IndexByte(body, 0)
		if end < 0 || len(body) < end+1+hashSize {
			return nil, rejected("the tree %s is damaged", id)
		}
		mode, name, _ := strings.Cut(string(body[:end]), " ")
		entries = append(entries, treeEntry{name, hex.EncodeToString(body[end+1 : end+1+hashSize]), mode == "40000"})
		body = body[end+1+hashSize:]
	}
	if w.kept += len(entries); w.kept > maxChanged {
		clear(w.trees)
		w.kept = len(entries)
	}
	w.trees[id] = entries
	return entries, nil
}

// readTree reads one answer of cat-file --batch, which must be a tree.
func readTree(br *bufio.Reader) (body []byte, hashSize int, err error) {
	head, err := br.ReadString('\n')
	if err == io.EOF && head == "" {
		return nil, 0, io.EOF
	}
	if err != nil {
		return nil, 0, fmt.Errorf("read trees: %w", err)
	}
	fields := strings.Fields(head)
	if len(fields) != 3 || fields[1] != "tree" {
		return nil, 0, rejected("an object of its history can't be read: %s", head)
	}
	size, err := strconv.ParseInt(fields[2], 10, 64)
	if err != nil || size > maxTreeSize {
		return nil, 0, rejected("the tree %s is too big", fields[0])
	}
	body = make([]byte, size+1) // and a newline
	if _, err := io.ReadFull(br, body); err != nil {
		return nil, 0, fmt.Errorf("read trees: %w", err)
	}
	return body[:size], len(fields[0]) / 2, nil
}
