package job

import (
	"cmp"
	"context"
	"slices"
	"strconv"
	"strings"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/lib/changerisk"
	"github.com/cove-dev/cove/internal/server/unidiff"
)

// Bounds on the files of a review. Names do not depend on texts: a text that is too long takes no name away.
const (
	maxNamed      = 3000    // files that a review names, those that a pull holds first
	maxNamedBytes = 1 << 20 // of their paths, and of the reasons of a pull
	namedWeight   = 8       // as changeWeight, beside
	namedSize     = 1024    // bytes for each

	maxOneSide   = 512 << 10 // bytes of a file that was added or deleted, for its lines to be asked for
	maxTwoSides  = 16 << 20  // bytes of a file before and after its change, likewise; diffTell counts no lines of a longer file
	maxCompared  = 256 << 20 // bytes of all files that git is to compare line by line
	maxFileCount = 1 << 30   // lines; git counts no more
)

// Why the lines of a file are not in a review: cove.JobDiffFile.LeftOut.
const (
	leftLong     = "too long"
	leftTogether = "too long together with the files before it"
	leftMany     = "too many files have changed"
	leftUntold   = "git did not show its lines"
)

// namedFile is a changed file of a review. Its name, status and modes come from git's list of changes, and its counts
// from git's list of counts.
type namedFile struct {
	cove.JobDiffFile           // without lines; Risk and Listed are those of a pull
	path             string    // as git has it
	blobs            [2]string // before and after; empty: there is no file
	typed            bool      // it became something else, such as a link: git tells a deletion and an addition
	big              bool      // longer than maxTwoSides: git does not count its lines
	counted          bool
	why              string // why its lines were not asked for; empty: they were

	shown []cove.JobDiffFile // with lines
	moved bool               // it is the old name of another one that is shown
}

// name judges the changes as a pull does, and names the files: those that a pull holds first, then those that it
// lists. It knows nothing of the machine of the person who pulls. It keeps nothing else that
// it judged by.
func (w *told) name(ctx context.Context, hold *share) error {
	changes := w.changes
	var held, listed []changerisk.Risk
	if len(changes) > 0 {
		judge, err := changerisk.New(ctx, w.tree, w, changerisk.Here{})
		if err != nil {
			return err
		}
		if held, listed, err = judge.Changes(ctx, changes); err != nil {
			return err
		}
	}
	w.changes, w.tree, w.texts = nil, nil, nil
	why := [2]map[string]string{reasons(held), reasons(listed)}
	of := make([]namedFile, 0, min(len(changes), maxNamed))
	for rank := range 3 {
		for _, c := range changes {
			f := named(c)
			f.Risk, f.Listed = why[0][f.Path], why[1][f.Path]
			if unidiff.Rank(f.JobDiffFile) != rank {
				continue
			}
			size := len(f.Path) + len(f.Risk) + len(f.Listed)
			if w.unnamed = w.unnamed || len(of) == maxNamed || w.namedBytes+size > maxNamedBytes; w.unnamed {
				break
			}
			w.namedBytes += size
			of = append(of, f)
		}
	}
	w.files = of
	if err := hold.add(w.namedWeight()); err != nil {
		return err
	}
	hold.shrink(w.namedWeight())
	w.unnamed = w.unnamed || w.many
	return nil
}

// namedWeight is what the names take in memory, as it is counted.
func (w *told) namedWeight() int64 {
	return int64(namedWeight*w.namedBytes) + namedSize*int64(len(w.files))
}

// reasons are the reasons of risks, by the path in a review. Paths that it can't tell apart
// share them.
func reasons(risks []changerisk.Risk) map[string]string {
	all := map[string]string{}
	for _, r := range risks {
		path := unidiff.Path(r.Path)
		all[path] = joined(all[path], r.Why)
	}
	return all
}

// joined is one reason after another, if it does not have that yet.
func joined(why, more string) string {
	if why == "" || more == "" || strings.Contains(why, more) {
		return cmp.Or(why, more)
	}
	return why + "; " + more
}

// named is a change without its lines.
func named(c changerisk.Change) namedFile {
	f := namedFile{path: c.Path, typed: c.Status == "T"}
	f.JobDiffFile = cove.JobDiffFile{Path: unidiff.Path(c.Path), Status: cove.DiffModified, Hunks: []cove.JobDiffHunk{}}
	old, now := unidiff.Mode(c.OldMode), unidiff.Mode(c.Mode)
	switch {
	case c.Status == "A":
		f.Status, f.NewMode = cove.DiffAdded, now
	case c.Status == "D":
		f.Status, f.OldMode = cove.DiffDeleted, old
	case old != now:
		f.OldMode, f.NewMode = old, now
	}
	for i, side := range [2]struct{ mode, blob string }{{c.OldMode, c.OldBlob}, {c.Mode, c.Blob}} {
		if side.mode != changerisk.GitlinkMode && strings.Trim(side.blob, "0") != "" {
			f.blobs[i] = side.blob
		}
	}
	return f
}

// choose returns the files that are asked for their lines, in that order, after it has asked
// how long they are. A long file comes after all others: it can't keep away their lines. Among
// equally long files, what a pull holds is first.
func (l *listener) choose(what *told) ([]*namedFile, error) {
	var all []*namedFile
	var ids []string
	size := map[string]int64{}
	parts := 0
	for i := range what.files {
		f := &what.files[i]
		if parts += f.parts(); parts > unidiff.MaxFiles {
			f.why = leftMany
		} else {
			all = append(all, f)
		}
		for _, id := range f.blobs {
			if _, ok := size[id]; id != "" && !ok {
				ids, size[id] = append(ids, id), 0
			}
		}
	}
	i := 0
	err := l.ask(ids, func(line string) error {
		id, n, ok := blobHead(line)
		if i++; i > len(ids) || ok && id != ids[i-1] {
			return errNonsense
		}
		if ok {
			size[id] = n
		}
		return nil // if an object is missing, git fails when it compares it
	})
	if err == nil && i != len(ids) {
		err = errNonsense
	}
	if err != nil {
		return nil, err
	}
	for i := range what.files {
		f := &what.files[i]
		f.big = max(size[f.blobs[0]], size[f.blobs[1]]) > maxTwoSides
	}
	both := func(f *namedFile) int64 {
		return min(size[f.blobs[0]], maxTwoSides) + min(size[f.blobs[1]], maxTwoSides)
	}
	isLong := func(f *namedFile) int {
		if both(f) > maxOneSide {
			return 1
		}
		return 0
	}
	slices.SortStableFunc(all, func(a, b *namedFile) int {
		return cmp.Or(cmp.Compare(isLong(a), isLong(b)), cmp.Compare(unidiff.Rank(a.JobDiffFile), unidiff.Rank(b.JobDiffFile)), cmp.Compare(both(a), both(b)))
	})
	left := int64(maxCompared)
	return slices.DeleteFunc(all, func(f *namedFile) bool {
		n := both(f)
		switch {
		case n > maxTwoSides || n > maxOneSide && (f.blobs[0] == "" || f.blobs[1] == ""):
			f.why = leftLong
		case n > left:
			f.why = leftTogether
		default:
			left -= n
		}
		return f.why != ""
	}), nil
}

// counts reads how many lines of each file were added and deleted. Nothing is said if git takes too long to count.
func (l *listener) counts(what *told) error {
	at := map[string]*namedFile{}
	for i := range what.files {
		at[what.files[i].path] = &what.files[i]
	}
	return l.section(func(entry string) error {
		fields := strings.SplitN(entry, "\t", 3)
		if len(fields) != 3 {
			return errNonsense
		}
		var n [2]int
		binary := fields[0] == "-" && fields[1] == "-"
		for i := range n {
			var err error
			if n[i], err = strconv.Atoi(fields[i]); !binary && (err != nil || n[i] < 0 || n[i] > maxFileCount) {
				return errNonsense
			}
		}
		if f := at[fields[2]]; f != nil && !(binary && f.big) { // git says so of a file that is too long to be counted
			f.counted, f.Binary, f.Added, f.Deleted = true, binary, n[0], n[1]
		}
		return nil
	})
}

// joinTexts gives the files of a diff to those that are named. It reports whether all are among these.
func (w *told) joinTexts(files []cove.JobDiffFile) (all bool) {
	at := map[string][]*namedFile{}
	for i := range w.files {
		at[w.files[i].Path] = append(at[w.files[i].Path], &w.files[i])
	}
	free := func(path, status string) *namedFile {
		for _, f := range at[path] {
			if !f.moved && len(f.shown) < f.parts() && (status == "" || f.Status == status) {
				return f
			}
		}
		return nil
	}
	all = true
	for _, f := range files {
		if f.LeftOut != "" { // a part of it
			continue
		}
		to, from := free(f.Path, ""), (*namedFile)(nil)
		if f.Status == cove.DiffRenamed {
			from = free(f.OldPath, cove.DiffDeleted)
		}
		if to == nil || f.Status == cove.DiffRenamed && (from == nil || from == to) {
			all = false
			continue
		}
		f.Risk, f.Listed = to.Risk, to.Listed
		if from != nil {
			from.moved = true
			f.Risk, f.Listed = joined(f.Risk, from.Risk), joined(f.Listed, from.Listed)
		}
		to.shown = append(to.shown, f)
	}
	return all
}

// parts is how many files of a diff are its text.
func (f *namedFile) parts() int {
	if f.typed {
		return 2
	}
	return 1
}

// put adds the file to a diff: with its lines, or with a word of why they are not there.
func (w *told) put(f *namedFile, out *cove.JobDiff) {
	switch {
	case f.moved:
		return
	case len(f.shown) == f.parts():
		out.Files = append(out.Files, f.shown...)
		return
	}
	file := f.JobDiffFile
	file.Uncounted = !f.counted
	if !f.counted || !f.Binary && (f.Added != 0 || f.Deleted != 0) {
		switch file.LeftOut = f.why; {
		case f.why != "":
		case w.long[f.Path]:
			file.LeftOut = leftLong
		case w.cut:
			file.LeftOut = leftTogether
		default:
			file.LeftOut = leftUntold
		}
	}
	out.Files = append(out.Files, file)
}
