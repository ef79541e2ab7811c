package gitwork

import (
	"fmt"
	"strings"

	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/lib/printable"
)

// The errors of this package, to be found by errors.Is.
var (
	ErrNoGit         = &fail.Error{Code: "no_git"}
	ErrOldGit        = &fail.Error{Code: "old_git"}
	ErrNotRepository = &fail.Error{Code: "not_a_repository"}
	ErrEmpty         = &fail.Error{Code: "empty_repository"}
	ErrDirty         = &fail.Error{Code: "dirty_tree"}
	ErrUnmerged      = &fail.Error{Code: "unmerged_paths"}
	ErrFiltered      = &fail.Error{Code: "filtered_paths"}
	ErrShallow       = &fail.Error{Code: "shallow_repository"}
	ErrModule        = &fail.Error{Code: "submodule"}
	ErrPartial       = &fail.Error{Code: "partial_clone"}
	ErrRefExists     = &fail.Error{Code: "ref_exists"}
)

// RejectedError says that a job's bundle is damaged or malicious. Nothing from it has
// come into the repository.
type RejectedError struct {
	Reason string
}

func (e *RejectedError) Error() string {
	return "rejected the job's bundle, nothing was changed: " + e.Reason
}

// ExitCode is the command line's exit code for this error.
func (e *RejectedError) ExitCode() int { return 5 }

func rejected(format string, args ...any) error {
	return &RejectedError{Reason: printable.Name(fmt.Sprintf(format, args...))}
}

// RefusedError says why a branch was not moved. The commits are safe under Ref.
type RefusedError struct {
	Code      string   // branch_gone, branch_moved, overlap, in_progress, locked, changed, job_failed, branch_exists, risky
	Reason    string   // for people
	Ref       string   // where the commits are
	Paths     []string // of overlap: the files in the way; of risky: those to look at
	Conflicts []string // of branch_moved: the paths that a merge would stop at, if git could tell
	Merges    bool     // of branch_moved: a merge was tried out and has no conflicts
	Next      []string // commands to choose from
}

func (e *RefusedError) Error() string {
	var b strings.Builder
	b.WriteString("not fast-forwarded: " + e.Reason)
	if len(e.Paths) > 0 {
		b.WriteString(": " + SomeNames(e.Paths))
	}
	switch {
	case e.Merges:
		b.WriteString("; a merge would have no conflicts")
	case len(e.Conflicts) > 0:
		b.WriteString("; a merge would have conflicts in " + SomeNames(e.Conflicts))
	}
	return b.String()
}

// ExitCode is the command line's exit code for this error.
func (e *RefusedError) ExitCode() int { return 4 }

// SomeNames lists up to ten of the names, safe to print.
func SomeNames(names []string) string {
	const most = 10
	shown := make([]string, 0, most)
	for _, name := range names[:min(len(names), most)] {
		shown = append(shown, printable.Name(name))
	}
	text := strings.Join(shown, ", ")
	if more := len(names) - most; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}
