package gitwork

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/cove-dev/cove/internal/lib/printable"
)

// Bounds of a summary.
const (
	maxLog      = 200
	maxSubject  = 200
	maxDiffSize = 64 << 20
	maxPath     = 4096
)

// Summary says what a job's commits change.
type Summary struct {
	Commits int      // from base to the tip
	Log     []Commit // the newest first, at most 200
	Files   []File
	Risky   []Risk // held for the person's review
	Listed  []Risk // run when the person builds or tests: only told
}

// Commit is a line of a log. The subject is safe to print, and may be shortened.
type Commit struct {
	SHA     string `json:"sha"`
	Subject string `json:"subject"`
}

// File is a changed file. Path is as in the tree: print it by Printable.
type File struct {
	Path    string `json:"path"`
	Status  string `json:"status"` // A, M, D or T, as in git-diff
	Added   int    `json:"added"`  // lines; -1 in a binary file
	Deleted int    `json:"deleted"`

	oldMode, oldBlob string // zeros: not there
	mode, blob       string
}

// Summary describes the changes from one commit to another. It looks from a
// scratch repository: no setting of the person's, and no attribute, takes part.
func (r *Repo) Summary(ctx context.Context, base, tip string) (Summary, error) {
	s, err := r.scratch(ctx)
	if err != nil {
		return Summary{}, err
	}
	defer s.remove()
	return s.summary(ctx, base, tip)
}

func (s *scratch) summary(ctx context.Context, base, tip string) (Summary, error) {
	var sum Summary
	count, err := s.git.text(ctx, "rev-list", "--count", tip, "^"+base)
	if err != nil {
		return sum, err
	}
	if sum.Commits, err = strconv.Atoi(count); err != nil {
		return sum, fmt.Errorf("count commits: %w", err)
	}
	if sum.Log, err = s.log(ctx, base, tip); err != nil {
		return sum, err
	}
	if sum.Files, err = s.diff(ctx, base, tip); err != nil {
		return sum, err
	}
	sum.Risky, sum.Listed, err = s.risks(ctx, base, tip, sum.Files)
	return sum, err
}

func (s *scratch) log(ctx context.Context, base, tip string) ([]Commit, error) {
	var out bounded
	out.max = maxOutput
	_, err := s.git.run(ctx, call{
		args: []string{"log", "-z", "--no-color", "--no-decorate", "--no-notes", "--no-show-signature", "--encoding=UTF-8",
			"--max-count=" + strconv.Itoa(maxLog), "--format=tformat:%H %<(" + strconv.Itoa(4*maxSubject) + ",trunc)%s", tip, "^" + base},
		stdout: &out,
	})
	if err != nil {
		return nil, err
	}
	log := []Commit{}
	for entry := range strings.SplitSeq(strings.TrimSuffix(out.String(), "\x00"), "\x00") {
		if sha, subject, ok := strings.Cut(entry, " "); ok {
			log = append(log, Commit{sha, shorten(printable.Name(strings.TrimRight(subject, " ")), maxSubject)})
		}
	}
	return log, nil
}

// diff lists the changed files. More of them than allowed is a *RejectedError: a
// few small trees can unfold to any number of files.
func (s *scratch) diff(ctx context.Context, base, tip string) ([]File, error) {
	var out bytes.Buffer
	_, err := s.git.run(ctx, call{
		args: []string{"diff-tree", "-r", "-z", "--raw", "--numstat", "--no-abbrev", "--no-renames", "--no-ext-diff", "--no-textconv",
			"--no-color", "--ignore-submodules=none", base, tip},
		stdout:  &limited{w: &out, left: maxDiffSize},
		timeout: patiently,
	})
	if err != nil {
		return nil, fmt.Errorf("list changed files: %w", err)
	}
	return parseDiff(out.String())
}

// parseDiff reads raw and numstat records, in this order, both ended by NUL.
func parseDiff(out string) ([]File, error) {
	files := []File{}
	at := map[string]int{}
	parts := strings.Split(strings.TrimSuffix(out, "\x00"), "\x00")
	for i := 0; i < len(parts) && parts[i] != ""; i++ {
		if strings.HasPrefix(parts[i], ":") {
			fields := strings.Fields(parts[i])
			if i++; len(fields) != 5 || i == len(parts) {
				return nil, errors.New("list changed files: git's answer is not understood")
			}
			if len(parts[i]) > maxPath {
				return nil, rejected("a path is longer than %d bytes", maxPath)
			}
			at[parts[i]] = len(files)
			files = append(files, File{Path: parts[i], Status: fields[4],
				oldMode: strings.TrimPrefix(fields[0], ":"), oldBlob: fields[2], mode: fields[1], blob: fields[3]})
			continue
		}
		fields := strings.SplitN(parts[i], "\t", 3)
		if len(fields) != 3 {
			return nil, errors.New("list changed files: git's answer is not understood")
		}
		if n, ok := at[fields[2]]; ok {
			files[n].Added, files[n].Deleted = lines(fields[0]), lines(fields[1])
		}
	}
	return files, nil
}

func lines(s string) int {
	if n, err := strconv.Atoi(s); err == nil {
		return n
	}
	return -1
}
