package job

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/lib/changerisk"
	"github.com/cove-dev/cove/internal/server/unidiff"
	"github.com/cove-dev/cove/sprites"
)

// Bounds on what is kept of what git tells. The server reads the rest, and leaves it out.
const (
	maxRaw      = 8 << 20  // bytes of the list of changed files
	maxTree     = 32 << 20 // bytes of the list of all files; few of them are kept:
	keptTree    = 4 << 20  // bytes
	maxRecord   = 64 << 10 // bytes of an entry of either; a longer one is nonsense
	maxFilePath = 4096     // bytes; a pull refuses a longer one
	maxObjects  = 20_000   // symbolic links, and texts of changed files
	maxLinkText = 4 << 20  // bytes of the links
	maxTexts    = 8 << 20  // bytes of the texts
)

// Bounds on the memory of all reviews, as it is counted. A weight says how often a byte of an
// answer that is kept counts, with what is made of it. One whole review has eachHeard at most,
// so that there is room for it if its token has no other one.
const (
	changeWeight = 3
	treeWeight   = 2
	diffWeight   = 8 // with its lines, and the answer in JSON

	maxHeard  = 96 << 20
	eachHeard = 64 << 20 // of those that a token has asked for

	fillsAtOnce = 4 // diffs that are parsed or judged, which waits for nobody
)

// Why a review is not whole, beside the reasons of unidiff.
const (
	cutChanges = "the list of changed files is longer than 8 MiB; the files after that are not judged"
	cutNamed   = "a review names at most 3,000 files or 1 MiB of names, and more have changed; it names files that a pull holds first"
	cutTexts   = "the lines of some files are left out, and each of these files says so"
)

// errNonsense says that git gives no such answer.
var errNonsense = errors.New("its answer is not understood")

// errMissing says that objects are not there, so that their content could not be judged.
var errMissing = errors.New("the review is incomplete: objects are missing")

// told has what diffTell says of a job's changes. All of it may be hostile.
type told struct {
	changes []changerisk.Change // until they are named, as the next two
	tree    *changerisk.Tree
	texts   map[string]string // by their objects: of changed files and symbolic links
	whole   bool              // all links are among the texts that are short enough
	modules bool              // git can read .gitmodules
	ends    string            // a commit that it tells of, behind which the history is not there
	log     string
	many    bool // there are more changes

	files      []namedFile
	namedBytes int
	unnamed    bool // there are more files

	diff   string
	long   map[string]bool // files whose diff is too long
	cut    bool            // all diffs together are too long
	unread bool            // there is more of them
}

// hear runs a command that prepare makes, and that ends with diffTell. Before diffTell the
// command reads what first writes; nil: nothing. For what it keeps of the answer, hear takes
// room from hold; nil: it is not counted. It has one of fills while it judges the changes;
// nil: there is no bound.
func hear(ctx context.Context, fills chan struct{}, hold *share, prepare func(context.Context) *sprites.Cmd, first func(context.Context, io.Writer) error) (*told, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	cmd := prepare(ctx)
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	l := listener{in: in, out: bufio.NewReaderSize(out, 64<<10), hold: hold, fills: fills}
	if first != nil {
		err = first(ctx, in)
	}
	var what *told
	if err == nil {
		what, err = l.listen(ctx)
	} else if errors.Is(err, io.ErrClosedPipe) {
		l.ended = true // it ended before it had read all
	}
	_ = in.Close()
	if !l.ended || err == nil && what.unread {
		cancel() // it has more to say than is wanted
	}
	ended := cmd.Wait()
	switch {
	case err == nil && what.unread:
		return what, nil
	case err != nil && (!l.ended || ended == nil):
		return nil, err
	}
	return what, ended
}

// listener reads what diffTell says, and asks it for objects.
type listener struct {
	in    io.Writer
	out   *bufio.Reader
	hold  *share
	fills chan struct{}
	ended bool // nothing more comes
}

func (l *listener) listen(ctx context.Context) (*told, error) {
	what := &told{tree: changerisk.NewTree(), texts: map[string]string{}, whole: true}
	if err := l.changes(what); err != nil {
		return nil, err
	}
	err := l.trees(what.tree)
	if err == nil {
		err = l.section(func(string) error { what.modules = true; return nil })
	}
	if err == nil {
		err = l.objects(what)
	}
	if err == nil {
		err = l.judge(ctx, what)
	}
	if err != nil {
		return nil, err
	}
	asked, err := l.choose(what)
	if err == nil {
		err = l.history(what)
	}
	if err == nil {
		err = l.counts(what)
	}
	if err == nil {
		err = l.texts(what, asked)
	}
	if err != nil {
		return nil, err
	}
	return what, nil
}

// judge names the changed files, when it is its turn.
func (l *listener) judge(ctx context.Context, what *told) error {
	if l.fills != nil {
		select {
		case l.fills <- struct{}{}:
			defer func() { <-l.fills }()
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return what.name(ctx, l.hold)
}

// history reads the commit where the history ends, and the commits.
func (l *listener) history(what *told) error {
	err := l.section(func(id string) error {
		if !commitID().MatchString(id) {
			return errNonsense
		}
		what.ends = cmp.Or(what.ends, id)
		return nil
	})
	if err != nil {
		return err
	}
	var log strings.Builder
	err = l.section(func(entry string) error {
		if log.Len()+len(entry) < maxCommitLog {
			log.WriteString(entry + "\x00")
		}
		return nil
	})
	what.log = log.String()
	return err
}

// trees reads the list of all files, and the list of the base's top folder.
func (l *listener) trees(tree *changerisk.Tree) error {
	kept := 0
	each := func(add func(string) int) error {
		size := 0
		return l.section(func(entry string) error {
			if size += len(entry); size > maxTree || kept > keptTree {
				tree.Partial()
				return nil
			}
			n := add(entry)
			kept += n
			return l.hold.add(treeWeight * int64(n))
		})
	}
	if err := each(tree.Entry); err != nil {
		return err
	}
	return each(tree.Top)
}

// section calls each with its records, which are ended by NUL. An empty one ends it.
func (l *listener) section(each func(string) error) error {
	for {
		record, err := l.upTo(0, maxRecord)
		if err != nil || record == "" {
			return err
		}
		if err := each(record); err != nil {
			return err
		}
	}
}

// upTo reads up to a byte, which is left out.
func (l *listener) upTo(end byte, most int) (string, error) {
	var all []byte
	for {
		part, err := l.out.ReadSlice(end)
		if len(all)+len(part) > most {
			return "", fmt.Errorf("%w: an entry of it is longer than %d bytes", errNonsense, most)
		}
		all = append(all, part...)
		switch {
		case err == nil:
			return string(all[:len(all)-1]), nil
		case errors.Is(err, bufio.ErrBufferFull):
			continue
		case errors.Is(err, io.EOF):
			err = io.ErrUnexpectedEOF
		}
		l.ended = true
		return "", fmt.Errorf("%w: %w", errNonsense, err)
	}
}

// changes reads the list of changed files.
func (l *listener) changes(what *told) error {
	size := 0
	return l.section(func(meta string) error {
		fields := strings.Fields(strings.TrimPrefix(meta, ":"))
		path, err := l.upTo(0, maxRecord)
		if err != nil {
			return err
		}
		if len(fields) != 5 || !commitID().MatchString(fields[2]) || !commitID().MatchString(fields[3]) {
			return errNonsense
		}
		if len(path) > maxFilePath {
			return fmt.Errorf("a path is longer than %d bytes: a pull refuses it", maxFilePath)
		}
		if size += len(meta) + len(path); size > maxRaw {
			what.many = true
			what.tree.Partial()
			return nil
		}
		what.changes = append(what.changes, changerisk.Change{
			Path: path, Status: fields[4], OldMode: fields[0], OldBlob: fields[2], Mode: fields[1], Blob: fields[3],
		})
		return l.hold.add(changeWeight * int64(len(meta)+len(path)))
	})
}

// objects asks for the texts that the judgement needs: for their sizes, and then for those that are not too long.
func (l *listener) objects(what *told) error {
	texts, changed := changerisk.Texts(what.changes)
	links := append(what.tree.Links(), changed...)
	most := map[string]int64{} // how long each may be
	var ids []string
	add := func(all []string, limit int64) {
		for _, id := range all {
			if most[id] == 0 && commitID().MatchString(id) {
				ids = append(ids, id)
			}
			most[id] = max(most[id], limit)
		}
	}
	add(texts, changerisk.MaxText)
	add(links, changerisk.MaxTarget)
	if len(ids) > maxObjects {
		ids, what.whole = ids[:maxObjects], false
	}
	var short []string
	left := int64(maxTexts + maxLinkText)
	i := 0
	err := l.ask(ids, func(line string) error {
		id, size, ok := blobHead(line)
		if i++; i > len(ids) || ok && id != ids[i-1] {
			return errNonsense
		}
		switch {
		case !ok && strings.HasSuffix(line, " missing"):
			return errMissing
		case !ok || size > most[id]: // it is left out
		case size > left:
			what.whole = false
		default:
			left -= size
			short = append(short, id)
		}
		return nil
	})
	if err == nil && i != len(ids) {
		err = fmt.Errorf("%w: it has not answered all", errNonsense)
	}
	if err != nil {
		return err
	}
	err = l.ask(short, func(line string) error {
		id, size, ok := blobHead(line)
		if !ok || size > most[id] || len(what.texts) == len(short) {
			return errNonsense
		}
		if err := l.hold.add(size); err != nil {
			return err
		}
		body := make([]byte, size+1) // and a line end
		if _, err := io.ReadFull(l.out, body); err != nil {
			l.ended = true
			return fmt.Errorf("%w: %w", errNonsense, err)
		}
		what.texts[id] = string(body[:size])
		return nil
	})
	if err == nil && len(what.texts) != len(short) {
		err = fmt.Errorf("%w: it has not answered all", errNonsense)
	}
	return err
}

// blobHead reads the line of cat-file before the content of a file. ok is false if the object
// is not a file, or is missing.
func blobHead(line string) (id string, size int64, ok bool) {
	fields := strings.Fields(line)
	if len(fields) != 3 || fields[1] != "blob" {
		return "", 0, false
	}
	size, err := strconv.ParseInt(fields[2], 10, 64)
	return fields[0], size, err == nil && size >= 0
}

// ask writes names of objects, while it reads the answers up to an empty line.
func (l *listener) ask(ids []string, answer func(line string) error) error {
	wrote := make(chan error, 1)
	go func() {
		_, err := io.WriteString(l.in, strings.Join(append(slices.Clone(ids), "", ""), "\n"))
		wrote <- err
	}()
	for {
		line, err := l.upTo('\n', 4096)
		if err == nil && line != "" {
			err = answer(line)
		}
		if err != nil {
			return err // the caller closes the pipe
		}
		if line == "" {
			return <-wrote
		}
	}
}

// Links is of changerisk.Objects.
func (w *told) Links(_ context.Context, blobs []string) (targets map[string]string, all bool, err error) {
	targets = map[string]string{}
	for _, blob := range blobs {
		if text, ok := w.texts[blob]; ok && len(text) <= changerisk.MaxTarget {
			targets[blob] = text
		}
	}
	return targets, w.whole, nil
}

// Text is of changerisk.Objects.
func (w *told) Text(_ context.Context, blob string) (text string, ok bool, err error) {
	text, ok = w.texts[blob]
	return text, ok, nil
}

// Config is of changerisk.Objects.
func (w *told) Config(context.Context, string) (bool, error) { return w.modules, nil }

// fill puts what was told into a diff.
func (w *told) fill(out *cove.JobDiff) {
	texts, cut := unidiff.Parse(w.diff)
	if !w.joinTexts(texts) {
		cut = unidiff.CutOdd
	}
	out.Commits, out.HistoryEnds, out.Unnamed = commits(w.log), w.ends, w.unnamed
	left := false
	for i := range w.files {
		w.put(&w.files[i], out)
	}
	for _, f := range out.Files {
		left = left || f.LeftOut != ""
	}
	switch {
	case w.many:
		out.Cut = cutChanges
	case w.unnamed:
		out.Cut = cutNamed
	case cut != "":
		out.Cut = cut
	case left:
		out.Cut = cutTexts
	}
	unidiff.RiskyFirst(out.Files)
}
