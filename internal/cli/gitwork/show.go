package gitwork

import (
	"context"
	"io"
)

// View is how a change is shown.
type View struct {
	Patch  bool     // what changed in each file
	Stat   bool     // how much did
	Paths  []string // only below these; empty: all
	Prefix string   // before each path of a patch: the repository's path in the outer one
}

func (v View) args() []string {
	args := []string{"--no-ext-diff", "--no-textconv", "--no-color", "--no-show-signature", "--encoding=UTF-8", "--src-prefix=a/" + v.Prefix, "--dst-prefix=b/" + v.Prefix, "-M"}
	switch {
	case v.Patch && v.Stat:
		args = append(args, "--patch-with-stat", "--binary")
	case v.Patch:
		args = append(args, "--patch", "--binary")
	case v.Stat:
		args = append(args, "--stat")
	}
	return args
}

// WriteDiff writes the difference between two commits, as git-apply takes it. Like all
// functions that show a job's work, it reads in a scratch repository: no setting of the
// person's, and no attribute, takes part. The output is the job's own text.
func (r *Repo) WriteDiff(ctx context.Context, w io.Writer, base, tip string, v View) error {
	return r.write(ctx, w, append(append([]string{"diff"}, v.args()...), base, tip), v)
}

// WriteLog writes the commits from base to tip, the newest first.
func (r *Repo) WriteLog(ctx context.Context, w io.Writer, base, tip string, v View) error {
	return r.write(ctx, w, append(append([]string{"log", "--no-decorate", "--no-notes", "--no-mailmap"}, v.args()...), tip, "^"+base), v)
}

// WriteCommit writes one commit.
func (r *Repo) WriteCommit(ctx context.Context, w io.Writer, commit string, v View) error {
	return r.write(ctx, w, append(append([]string{"log", "--max-count=1", "--no-decorate", "--no-notes", "--no-mailmap", "-m", "--first-parent"}, v.args()...), commit), v)
}

func (r *Repo) write(ctx context.Context, w io.Writer, args []string, v View) error {
	s, err := r.scratch(ctx)
	if err != nil {
		return err
	}
	defer s.remove()
	args = append(args, "--")
	for _, path := range v.Paths {
		args = append(args, ":(top,literal)"+path)
	}
	_, err = s.git.run(ctx, call{args: args, stdout: w, shown: true})
	return err
}
