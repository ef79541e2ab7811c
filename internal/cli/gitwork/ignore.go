package gitwork

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/cove-dev/cove/internal/lib/printable"
)

// Ignored has git's rules for ignoring files in a folder of a repository. It leaves out the
// rules of the .gitignore files in and below that folder.
type Ignored struct {
	Files   []IgnoreFile // the least first
	Tracked []byte       // paths below the folder that are tracked all the same, each ended by a zero byte
}

// IgnoreFile is a file of patterns, by its absolute name, and its text. Dir is the folder's path below the
// one that the patterns are relative to, "" if that is the same.
type IgnoreFile struct{ Name, Dir, Text string }

// maxIgnoreFile bounds a file of patterns.
const maxIgnoreFile = 1 << 20

// Ignored reads the rules and files that git would read for the folder dir of the work tree.
func (r *Repo) Ignored(ctx context.Context, dir string) (Ignored, error) {
	var ig Ignored
	top, err := filepath.EvalSymlinks(r.Dir)
	if err != nil {
		return ig, err
	}
	if dir, err = filepath.EvalSymlinks(dir); err != nil {
		return ig, err
	}
	rel, err := filepath.Rel(top, dir)
	if err != nil || rel == ".." || strings.HasPrefix(rel, "../") {
		return ig, errors.Join(err, errors.New(printable.Name(dir)+" is not in the work tree"))
	}
	if rel == "." {
		rel = ""
	}
	outside := []string{filepath.Join(r.CommonDir, "info", "exclude")}
	if name := r.config.file("core.excludesfile", "ignore"); name != "" {
		outside = append([]string{name}, outside...)
	}
	for _, name := range outside {
		if err := ig.add(name, filepath.ToSlash(rel)); err != nil {
			return ig, err
		}
	}
	at, below := top, rel
	for below != "" {
		if err := ig.add(filepath.Join(at, ".gitignore"), filepath.ToSlash(below)); err != nil {
			return ig, err
		}
		var part string
		part, below, _ = strings.Cut(below, "/")
		at = filepath.Join(at, part)
	}
	g := r.git
	g.dir = dir
	ig.Tracked, err = g.run(ctx, call{args: []string{"ls-files", "-z", "--cached", "--ignored", "--exclude-standard"}})
	return ig, err
}

func (ig *Ignored) add(name, dir string) error {
	info, err := os.Stat(name)
	if errors.Is(err, fs.ErrNotExist) || err == nil && (!info.Mode().IsRegular() || info.Size() > maxIgnoreFile) {
		return nil
	}
	text, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	ig.Files = append(ig.Files, IgnoreFile{name, dir, string(text)})
	return nil
}

// MergeFile merges the texts in the files ours and theirs, which both come from the text
// in base. It needs no repository. clean is false if both change the same lines.
func MergeFile(ctx context.Context, ours, base, theirs string) (merged []byte, clean bool, err error) {
	exe, err := lookGit()
	if err != nil {
		return nil, false, err
	}
	g := runner{exe: exe, dir: filepath.Dir(ours)}
	merged, err = g.run(ctx, call{args: []string{"merge-file", "-p", "--", ours, base, theirs}})
	if code := exitCode(err); code > 0 && code < 128 {
		return nil, false, nil
	}
	return merged, err == nil, err
}
