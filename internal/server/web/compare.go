package web

import (
	"errors"
	"maps"
	"net/http"
	"slices"
	"sync"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/lib/fail"
)

// comparePage is two jobs beside each other.
type comparePage struct {
	A, B  comparedJob
	Files []comparedFile
	Same  int // files that both have changed alike
}

// comparedJob is one of the two.
type comparedJob struct {
	jobView
	Diff    diffView
	Left    bool     // more was left uncommitted, which is not compared
	Problem *problem // why there is no diff; nil: there is one
}

// comparedFile is a file that the two have not changed alike.
type comparedFile struct {
	Path string
	Risk string
	A, B comparedChange
}

// comparedChange is the change of a file by one of the two.
type comparedChange struct {
	Changed bool // false: nothing
	Status  string
	Binary  bool   // it has no lines
	LeftOut string // why the lines are not there; empty: they are
	Lines   []comparedLine
}

// comparedLine is a line of a diff. Only this job has it, or both do.
type comparedLine struct {
	diffRow
	Only bool
}

func compare(v *view) error {
	ids := []string{v.r.URL.Query().Get("a"), v.r.URL.Query().Get("b")}
	if ids[0] == "" || ids[1] == "" || ids[0] == ids[1] {
		return fail.New("bad_request", "the address does not name two jobs to compare", "open a job's changes, and choose the one to compare with there")
	}
	var both [2]comparedJob
	var errs [2]error
	var wg sync.WaitGroup
	for i, id := range ids {
		wg.Go(func() { both[i], errs[i] = compared(v, id) })
	}
	wg.Wait()
	if err := errors.Join(errs[0], errs[1]); err != nil {
		return errors.Join(errs[0], errs[1])
	}
	page := comparePage{A: both[0], B: both[1]}
	page.Files, page.Same = diffOfDiffs(both[0].Diff.JobDiff.Files, both[1].Diff.JobDiff.Files)
	l := v.layout("Compare " + ids[0] + " and " + ids[1])
	l.Title, l.Path = line(l.Title), "/web/jobs"
	render(v.w, v.r, http.StatusOK, l, "compare", page)
	return nil
}

// compared reads one of the jobs. If its diff can't be had, that is no error: all else can be
// compared.
func compared(v *view, id string) (c comparedJob, err error) {
	j, err := v.api.Job(v.r.Context(), id)
	if err != nil {
		return c, err
	}
	c.jobView = jobView{Job: j}
	d, err := cove.Review{Client: v.api}.Diff(v.r.Context(), id)
	if err != nil {
		p := describe(err)
		c.Problem = &p
		return c, nil
	}
	if c.Left = d.Leftover != ""; c.Left && len(d.Files) == 0 { // it has committed nothing
		if d, err = (cove.Review{Client: v.api}).Leftover(v.r.Context(), id); err != nil {
			p := describe(err)
			c.Problem = &p
			return c, nil
		}
		c.Left = false
	}
	c.Diff = diffView{JobDiff: d, JobID: id}
	for _, f := range d.Files {
		c.Diff.Files = append(c.Diff.Files, changedFile{JobDiffFile: f})
	}
	return c, nil
}

// diffOfDiffs says which files of two diffs are not alike, and how.
func diffOfDiffs(a, b []cove.JobDiffFile) (files []comparedFile, same int) {
	of := func(all []cove.JobDiffFile) map[string]cove.JobDiffFile {
		m := map[string]cove.JobDiffFile{}
		for _, f := range all {
			m[f.Path] = f
		}
		return m
	}
	as, bs := of(a), of(b)
	paths := slices.Sorted(maps.Keys(as))
	for path := range bs {
		if _, ok := as[path]; !ok {
			paths = append(paths, path)
		}
	}
	slices.Sort(paths)
	left := maxShownLines
	for _, path := range paths {
		fa, inA := as[path]
		fb, inB := bs[path]
		la, lb := changedLines(fa), changedLines(fb)
		if inA && inB && slices.Equal(la, lb) && fa.Status == fb.Status && fa.NewMode == fb.NewMode && !fa.Binary && !fb.Binary && fa.LeftOut == "" && fb.LeftOut == "" {
			same++
			continue
		}
		f := comparedFile{Path: path, Risk: max(fa.Risk, fb.Risk)}
		la, lb = la[:min(len(la), left)], lb[:min(len(lb), left)]
		left = max(0, left-len(la)-len(lb))
		if inA {
			f.A = comparedChange{true, fa.Status, fa.Binary, fa.LeftOut, onlyHere(la, lb)}
		}
		if inB {
			f.B = comparedChange{true, fb.Status, fb.Binary, fb.LeftOut, onlyHere(lb, la)}
		}
		files = append(files, f)
	}
	return files, same
}

// changedLines are the lines that a diff of a file adds and takes away.
func changedLines(f cove.JobDiffFile) (all []diffRow) {
	for _, h := range f.Hunks {
		for _, l := range h.Lines {
			switch l.Kind {
			case "+":
				all = append(all, diffRow{"add", "+" + l.Text})
			case "-":
				all = append(all, diffRow{"del", "-" + l.Text})
			}
		}
	}
	return all
}

// onlyHere marks the lines that another diff of the file does not have, or has fewer times.
func onlyHere(these, others []diffRow) []comparedLine {
	there := map[diffRow]int{}
	for _, l := range others {
		there[l]++
	}
	out := make([]comparedLine, 0, len(these))
	for _, l := range these {
		out = append(out, comparedLine{l, there[l] == 0})
		if there[l] > 0 {
			there[l]--
		}
	}
	return out
}
