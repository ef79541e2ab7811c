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

// JobDiff has a job's changes (GET /v1/jobs/{id}/diff): the commits since its base, and the
// difference to the base. All texts in it are the agent's.
type JobDiff struct {
	Job  string `json:"job"`
	Base string `json:"base"`
	Head string `json:"head,omitempty"` // the commit that is compared; empty: the files as they are now, since the job has not ended

	// Compares says what Base is compared with: DiffFiles for a job that has not ended,
	// else DiffCommits.
	Compares string `json:"compares"`

	// Leftover is the commit of the files that the agent left uncommitted, in a job that
	// has ended. No pull brings it into a branch. A part of its own (Review.Leftover, with
	// Part DiffLeftover) compares it with the job's last commit.
	Leftover string `json:"leftover,omitempty"`
	Part     string `json:"part,omitempty"` // empty: the changes that a pull brings

	// Apart says that it was made from the commits that a pull takes, in a sandbox where
	// nothing of the job has run. Otherwise the job's own sandbox made it, where its agent
	// works.
	Apart bool `json:"apart,omitempty"`

	// HistoryEnds is the commit of the job where the history ends: its clone is shallow, or
	// its sprite did not hand over the earlier commits. Commits may then lack some; Files
	// lacks nothing. Empty: the history goes back to Base.
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
	DiffFiles   = "files"   // the files as they are now, also uncommitted ones
	DiffCommits = "commits" // the job's commits, which a pull brings; in the part DiffLeftover, its uncommitted files
)

// DiffLeftover is the part of a JobDiff with the files that were left uncommitted.
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

	// LeftOut says why the changed lines are not here, such as "too long"; empty: all are
	// in Hunks. A file with LeftOut set has no Hunks. If such a file was renamed, its old
	// name is a deleted file of its own.
	LeftOut string `json:"left_out,omitempty"`

	Risk   string        `json:"risk,omitempty"`   // why a pull holds it for review; empty: it does not
	Listed string        `json:"listed,omitempty"` // why a pull names it, though it does not hold it; empty: it does not
	Hunks  []JobDiffHunk `json:"hunks"`
}

// JobDiffHunk is a part of a file: changed lines, with lines around them.
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

// JobComment is a person's remark on a line of a job's changes. The server keeps it until
// the comment or the job is deleted.
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

// CommentsMessage is the message to an agent with these comments, in their order.
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

// Review are the calls about a job's changes, and the comments on them.
type Review struct{ Client *Client }

// Diff returns a job's changes. For a job that has ended these are its commits, which a
// pull brings. The server asks the job's sprite, and wakes it for that.
func (r Review) Diff(ctx context.Context, job string) (JobDiff, error) {
	var d JobDiff
	return d, r.call(ctx, "diff of job "+job, sprites.Request{Method: http.MethodGet, Path: sprites.Path("v1", "jobs", job, "diff")}, &d)
}

// Leftover returns the files that the agent of a job that has ended left uncommitted.
func (r Review) Leftover(ctx context.Context, job string) (JobDiff, error) {
	var d JobDiff
	req := sprites.Request{Method: http.MethodGet, Path: sprites.Path("v1", "jobs", job, "diff"), Query: url.Values{"part": {DiffLeftover}}}
	return d, r.call(ctx, "list the uncommitted files of job "+job, req, &d)
}

// Comments lists the comments on a job's changes.
func (r Review) Comments(ctx context.Context, job string) ([]JobComment, error) {
	var list JobComments
	return list.Comments, r.call(ctx, "comments on job "+job, sprites.Request{Method: http.MethodGet, Path: sprites.Path("v1", "jobs", job, "comments")}, &list)
}

// Add stores a comment, and returns it as it is stored.
func (r Review) Add(ctx context.Context, job string, c JobComment) (JobComment, error) {
	var made JobComment
	return made, r.call(ctx, "comment on job "+job, sprites.Request{Method: http.MethodPost, Path: sprites.Path("v1", "jobs", job, "comments"), JSON: c}, &made)
}

// Delete deletes the comments with these ids, or all if no ids are given. Missing comments
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
