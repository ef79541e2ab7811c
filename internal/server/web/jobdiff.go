package web

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"slices"

	"github.com/cove-dev/cove"
)

// maxShownLines bounds the lines of a diff that a page shows at once. The files after that are
// shown one by one.
const maxShownLines = 4000

// changesPage is the page of what a job has changed.
type changesPage struct {
	jobView
	View     string // "one" column, or "side" by side
	Comments commentsView
	Rivals   []cove.Job // that did the same from the same commit
	Apart    int        // jobs of the same plan that began from another one
	Over     bool       // the job has ended since the page was loaded
}

// diffView is a job's diff.
type diffView struct {
	cove.JobDiff
	JobID string
	View  string
	Files []changedFile
}

// changedFile is a file of the changes.
type changedFile struct {
	cove.JobDiffFile
	ID    string // of its element
	JobID string
	View  string
	Part  string // of the diff
	Rows  []lineRow
	Later bool // its lines are shown when they are asked for
	More  int  // lines of it that are not shown
}

// lineRow is a line of a file: of the two sides, or the head of a hunk.
type lineRow struct {
	Head     string // of a hunk; empty: it is none
	Old, New *cove.JobDiffLine
	Comments []cove.JobComment
}

// diffTotal is how many lines were added and deleted.
type diffTotal struct {
	Added, Deleted int
	More           bool // there are more, in files without a name or without a count
}

// Total is the total of all files.
func (d diffView) Total() (t diffTotal) {
	t.More = d.Unnamed
	for _, f := range d.Files {
		t.Added, t.Deleted, t.More = t.Added+f.Added, t.Deleted+f.Deleted, t.More || f.Uncounted
	}
	return t
}

// LeftOut is how many files are named without their lines.
func (d diffView) LeftOut() (n int) {
	for _, f := range d.Files {
		if f.LeftOut != "" {
			n++
		}
	}
	return n
}

// Risky is how many files have a risk: a person should look at them first.
func (d diffView) Risky() (n int) {
	for _, f := range d.Files {
		if f.Risk != "" {
			n++
		}
	}
	return n
}

// Listed is how many files run when a person builds or tests.
func (d diffView) Listed() (n int) {
	for _, f := range d.Files {
		if f.Risk == "" && f.Listed != "" {
			n++
		}
	}
	return n
}

// viewOf is the view of a diff: "one" or "side".
func viewOf(r *http.Request) string {
	if r.URL.Query().Get("view") == "side" {
		return "side"
	}
	return "one"
}

func changes(v *view) error {
	j, err := v.job()
	if err != nil {
		return err
	}
	j.Tab = "changes"
	page := changesPage{jobView: j, View: viewOf(v.r)}
	if page.Comments, err = v.comments(j, false); err != nil {
		return err
	}
	if page.Rivals, page.Apart, err = rivals(v, j.Job); err != nil {
		return err
	}
	l := v.layout("Changes · " + title(j.Job))
	l.Path, l.Script = "/web/jobs", "job.js"
	l.Live = "/web/jobs/" + j.ID + "/changes/live?view=" + page.View
	if j.Ended() {
		l.Live += "&ended=yes"
	}
	render(v.w, v.r, http.StatusOK, l, "changes", page)
	return nil
}

// changesLive keeps the head of the page true, also once the job has ended: its sprite may go.
// The diff stays as it is, since a person may be at a line of it. The page then has a link to
// the diff at the job's end.
func changesLive(v *view) error {
	id, ended := v.r.PathValue("id"), v.r.URL.Query().Get("ended") != ""
	return v.stream(func(ctx context.Context, s *stream) error {
		tell := func() error {
			j, err := viewJob(ctx, v, id)
			if err != nil {
				return err
			}
			j.Tab = "changes"
			if err := s.replace("job-tabs", "job-tabs", j); err != nil {
				return err
			}
			if err := s.replace("job-head", "job-head", j); err != nil || !j.Ended() || ended {
				return err
			}
			return s.replace("diff-news", "diff-news", changesPage{jobView: j, View: viewOf(v.r), Over: true})
		}
		return v.watch(ctx, []string{cove.TopicJobs}, id, func(cove.Notification) error { return tell() })
	})
}

// maxRivals bounds the jobs that are offered to compare with.
const maxRivals = 20

// rivals are the other jobs by the same plan on the same commit, and how many are on another one.
func rivals(v *view, j cove.Job) (all []cove.Job, apart int, err error) {
	list, err := cove.ListJobs(v.r.Context(), v.api, cove.JobQuery{Repository: j.Repository})
	for _, o := range list.Jobs {
		switch {
		case o.ID == j.ID || o.PlanName != j.PlanName || o.RepoID != j.RepoID || o.Base == "":
		case o.Base != j.Base:
			apart++
		case len(all) < maxRivals:
			all = append(all, o)
		}
	}
	return all, apart, err
}

// changesDiff is the diff itself: the sprite is asked for it.
func changesDiff(v *view) error {
	id := v.r.PathValue("id")
	tell := cove.Review{Client: v.api}.Diff
	if v.r.URL.Query().Get("part") == cove.DiffLeftover {
		tell = cove.Review{Client: v.api}.Leftover
	}
	d, err := tell(v.r.Context(), id)
	if err != nil {
		return err
	}
	comments, err := cove.Review{Client: v.api}.Comments(v.r.Context(), id)
	if err != nil {
		return err
	}
	all := newDiffView(d, comments, viewOf(v.r))
	if only := v.r.URL.Query().Get("file"); only != "" {
		i := slices.IndexFunc(all.Files, func(f changedFile) bool { return f.ID == only })
		if i < 0 {
			return v.fragment("empty", dictOf("Text", "The file has no changes any more.", "Command", ""))
		}
		f := all.Files[i]
		return v.fragment("diff-lines", f.whole(comments))
	}
	return v.fragment("diff", all)
}

func newDiffView(d cove.JobDiff, comments []cove.JobComment, view string) diffView {
	out := diffView{JobDiff: d, JobID: d.Job, View: view}
	left := maxShownLines
	seen := map[string]int{} // a path may come twice: if its kind has changed, or if two paths differ only in bytes that are not text
	for _, f := range d.Files {
		seen[f.Path]++
		file := changedFile{JobDiffFile: f, ID: "f-" + hashID(fmt.Sprint(d.Part, "\x00", f.Path, "\x00", seen[f.Path])), JobID: d.Job, View: view, Part: d.Part}
		n := 0
		for _, h := range f.Hunks {
			n += len(h.Lines)
		}
		if file.Later = n > left; !file.Later {
			left -= n
			file.Rows = lineRows(f, comments, view)
		}
		out.Files = append(out.Files, file)
	}
	return out
}

// maxFileLines bounds the lines of a file that is shown alone.
const maxFileLines = 2 * maxShownLines

// whole is the file with its lines.
func (f changedFile) whole(comments []cove.JobComment) changedFile {
	f.Later, f.Rows = false, lineRows(f.JobDiffFile, comments, f.View)
	n := min(len(f.Rows), maxFileLines)
	f.More, f.Rows = len(f.Rows)-n, f.Rows[:n]
	return f
}

// lineRows are the lines of a file, beside each other for the view "side".
func lineRows(f cove.JobDiffFile, comments []cove.JobComment, view string) (rows []lineRow) {
	on := func(side string, n int) (all []cove.JobComment) {
		for _, c := range comments {
			if c.Path == f.Path && c.Side == side && c.Line == n && n > 0 {
				all = append(all, c)
			}
		}
		return all
	}
	add := func(old, is *cove.JobDiffLine) {
		r := lineRow{Old: old, New: is}
		if old != nil && (is == nil || old.Kind == "-") {
			r.Comments = on(cove.SideOld, old.Old)
		}
		if is != nil {
			r.Comments = append(r.Comments, on(cove.SideNew, is.New)...)
		}
		rows = append(rows, r)
	}
	for _, h := range f.Hunks {
		head := fmt.Sprintf("Line %d", max(h.NewStart, h.OldStart))
		if h.Section != "" { // git's guess at the function that has the lines
			head += ", below: " + h.Section
		}
		rows = append(rows, lineRow{Head: head})
		for i := 0; i < len(h.Lines); {
			if h.Lines[i].Kind == " " {
				add(&h.Lines[i], &h.Lines[i])
				i++
				continue
			}
			var gone, come []*cove.JobDiffLine
			for ; i < len(h.Lines) && h.Lines[i].Kind != " "; i++ {
				if h.Lines[i].Kind == "-" {
					gone = append(gone, &h.Lines[i])
				} else {
					come = append(come, &h.Lines[i])
				}
			}
			if view != "side" {
				for _, l := range gone {
					add(l, nil)
				}
				for _, l := range come {
					add(nil, l)
				}
				continue
			}
			for k := range max(len(gone), len(come)) {
				var old, is *cove.JobDiffLine
				if k < len(gone) {
					old = gone[k]
				}
				if k < len(come) {
					is = come[k]
				}
				add(old, is)
			}
		}
	}
	return rows
}

// fileKind names the kind of an added or deleted file by its mode, if that is not the usual
// one.
func fileKind(old, now string) string {
	return map[string]string{"100755": ", executable", "120000": ", a symbolic link", "160000": ", a submodule"}[cmp.Or(now, old)]
}
