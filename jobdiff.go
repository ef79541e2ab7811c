package cove

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/cove-dev/cove/sprites"
)

// JobDiff is what a job has changed (GET /v1/jobs/{id}/diff): the commits since its base, and the
// difference to that. All texts in it are the agent's.
type JobDiff struct {
	Job  string `json:"job"`
	Base string `json:"base"`
	Head string `json:"head,omitempty"` // the commit that is compared; empty: the files as they are now, since the job has not ended

	// Compares says what is compared with Base: DiffFiles of a job that has not ended, or DiffCommits.
	Compares string `json:"compares"`

	// Leftover is the commit of what the agent left uncommitted, in a job that has ended. No branch gets it by a pull.
	// It is compared with the job's last commit in a part of its own (Review.Leftover), which has Part DiffLeftover.
	Leftover string `json:"leftover,omitempty"`
	Part     string `json:"part,omitempty"` // empty: what a pull brings

	// Apart says that it was told in a sandbox in which nothing of the job has run, from the commits that a pull takes.
	// Else it is the word of the job's sandbox, in which its agent works.
	Apart bool `json:"apart,omitempty"`

	// HistoryEnds is one of the job's commits, before which the history is not there: its clone is shallow, or its
	// sprite did not hand over what came before. Commits may then lack some, and Files lacks nothing. Empty: it goes
	// back to Base.
	HistoryEnds string `json:"history_ends,omitempty"`

	Commits []JobDiffCommit `json:"commits"`       // the newest first
	Files   []JobDiffFile   `json:"files"`         // those that a pull holds first, and then those that it lists
	Cut     string          `json:"cut,omitempty"` // why not all is here; empty: all is

	// Unnamed says that Files lacks some of the changed files; Cut says why. If it is false, all are named, with their
	// modes: whatever else is cut, no file is missing.
	Unnamed bool `json:"unnamed,omitempty"`
}

// The values of JobDiff.Compares.
const (
	DiffFiles   = "files"   // the files as they are now, also those that are not committed
	DiffCommits = "commits" // what the job has committed, which a pull brings; or in the part DiffLeftover, what it has not
)

// DiffLeftover is the part of a JobDiff that has what was left uncommitted.
const DiffLeftover = "leftover"

// JobDiffCommit is a commit of a job.
type JobDiffCommit struct {
	ID      string    `json:"id"`
	Author  string    `json:"author"`
	Time    time.Time `json:"time"`
	Subject string    `json:"subject"`
}

// The values of JobDiffFile.Status.
const (
	DiffAdded    = "added"
	DiffDeleted  = "deleted"
	DiffModified = "modified"
	DiffRenamed  = "renamed"
	DiffCopied   = "copied"
)

// JobDiffFile is a file of a JobDiff.
type JobDiffFile struct {
	Path    string `json:"path"`
	OldPath string `json:"old_path,omitempty"` // of one that was renamed or copied
	Status  string `json:"status"`
	OldMode string `json:"old_mode,omitempty"` // as git writes it, such as 100755; both are there if it has changed, or the one that there is
	NewMode string `json:"new_mode,omitempty"`
	Binary  bool   `json:"binary,omitempty"` // it has no lines
	Added   int    `json:"added"`            // lines; all that there are, also if LeftOut says that they are not here
	Deleted int    `json:"deleted"`

	// Uncounted says that git did not count the lines in time: Added and Deleted say nothing.
	Uncounted bool `json:"uncounted,omitempty"`

	// LeftOut says why the changed lines are not here, such as "too long"; empty: all are in Hunks. A file of which it
	// says something has no Hunks. If it was renamed, its old name is a deleted file of its own.
	LeftOut string `json:"left_out,omitempty"`

	Risk   string        `json:"risk,omitempty"`   // why a pull holds it for review; empty: it does not
	Listed string        `json:"listed,omitempty"` // why a pull names it, though it does not hold it; empty: it does not
	Hunks  []JobDiffHunk `json:"hunks"`
}

// JobDiffHunk is a part of a file, with lines around what has changed.
type JobDiffHunk struct {
	OldStart int           `json:"old_start"`
	NewStart int           `json:"new_start"`
	Section  string        `json:"section,omitempty"` // what git says of where it is: the head of a function
	Lines    []JobDiffLine `json:"lines"`
}

// JobDiffLine is a line of a JobDiffHunk.
type JobDiffLine struct {
	Kind string `json:"kind"`          // " ", "-" or "+"
	Old  int    `json:"old,omitempty"` // its number in the old file; 0: it is not there
	New  int    `json:"new,omitempty"`
	Text string `json:"text"`
	Cut  bool   `json:"cut,omitempty"`   // it is longer
	NoNL bool   `json:"no_nl,omitempty"` // it is the file's last, and has no line end
}

// Sides of a diff, for comments.
const (
	SideOld = "old"
	SideNew = "new"
)

// JobComment is a person's remark on a line of what a job has changed. The server keeps it until
// it is deleted, or the job is.
type JobComment struct {
	ID        int64     `json:"id"`
	Path      string    `json:"path"`
	Side      string    `json:"side"`            // SideOld or SideNew; empty in a request: SideNew
	Line      int       `json:"line"`            // its number in that file, from 1
	Quote     string    `json:"quote,omitempty"` // the line as the person has seen it
	Text      string    `json:"text"`
	By        string    `json:"by,omitempty"` // the token, by ID; empty: the server's owner
	CreatedAt time.Time `json:"created_at"`
}

// JobComments answers GET /v1/jobs/{id}/comments, by file and line.
type JobComments struct {
	Comments []JobComment `json:"comments"`
}

// CommentsMessage is what an agent is told of comments: one message, in their order.
func CommentsMessage(comments []JobComment) string {
	return "Please look again at what you have changed. A review has these remarks:\n" + Remarks(comments)
}

// Remarks are comments in the form of a message or a plan, in their order: each below a heading that says its place.
// Neither a file's name nor a comment makes a heading or a block of code of its own: the lines of a comment are quoted.
func Remarks(comments []JobComment) string {
	var b strings.Builder
	for _, c := range comments {
		path := c.Path
		if strings.ContainsFunc(path, func(r rune) bool { return !unicode.IsPrint(r) }) {
			path = strconv.Quote(path)
		}
		where := fmt.Sprintf("%s, line %d", path, c.Line)
		if c.Side == SideOld {
			where += " (before the change)"
		}
		fmt.Fprintf(&b, "\n## %s\n", where)
		if c.Quote != "" {
			fmt.Fprintf(&b, "\n    %s\n", strings.ReplaceAll(oneEnd(c.Quote), "\n", " "))
		}
		b.WriteString("\n")
		for line := range strings.SplitSeq(oneEnd(strings.TrimSpace(c.Text)), "\n") {
			b.WriteString(strings.TrimRight("> "+line, " ") + "\n")
		}
	}
	return b.String()
}

// oneEnd has a line feed for all that some program takes for the end of a line.
func oneEnd(s string) string {
	return strings.NewReplacer("\r\n", "\n", "\r", "\n", "\v", "\n", "\f", "\n", "\u0085", "\n", "\u2028", "\n", "\u2029", "\n").Replace(s)
}

// Review are the calls about what a job has changed, and the comments on it.
type Review struct{ Client *Client }

// Diff returns what a job has changed: of one that has ended, its commits, which a pull brings. Its sprite is asked,
// and woken for that.
func (r Review) Diff(ctx context.Context, job string) (JobDiff, error) {
	var d JobDiff
	return d, r.call(ctx, "diff of job "+job, sprites.Request{Method: http.MethodGet, Path: sprites.Path("v1", "jobs", job, "diff")}, &d)
}

// Leftover returns what the agent of a job that has ended left uncommitted.
func (r Review) Leftover(ctx context.Context, job string) (JobDiff, error) {
	var d JobDiff
	req := sprites.Request{Method: http.MethodGet, Path: sprites.Path("v1", "jobs", job, "diff"), Query: url.Values{"part": {DiffLeftover}}}
	return d, r.call(ctx, "what job "+job+" left uncommitted", req, &d)
}

// Comments lists the comments on what a job has changed.
func (r Review) Comments(ctx context.Context, job string) ([]JobComment, error) {
	var list JobComments
	return list.Comments, r.call(ctx, "comments on job "+job, sprites.Request{Method: http.MethodGet, Path: sprites.Path("v1", "jobs", job, "comments")}, &list)
}

// Add stores a comment, and returns it as it is stored.
func (r Review) Add(ctx context.Context, job string, c JobComment) (JobComment, error) {
	var made JobComment
	return made, r.call(ctx, "comment on job "+job, sprites.Request{Method: http.MethodPost, Path: sprites.Path("v1", "jobs", job, "comments"), JSON: c}, &made)
}

// Delete deletes the comments of these ids, or all if there are none. Those that are not there
// are no error.
func (r Review) Delete(ctx context.Context, job string, ids ...int64) error {
	query := url.Values{}
	for _, id := range ids {
		query.Add("id", fmt.Sprint(id))
	}
	return r.call(ctx, "delete comments on job "+job, sprites.Request{Method: http.MethodDelete, Path: sprites.Path("v1", "jobs", job, "comments"), Query: query}, nil)
}

func (r Review) call(ctx context.Context, doing string, req sprites.Request, into any) error {
	if err := r.Client.Call(ctx, req, into); err != nil {
		return fmt.Errorf("%s: %w", doing, err)
	}
	return nil
}
