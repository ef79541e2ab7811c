package gitwork

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/lib/printable"
)

// change is a path that differs from the last commit.
type change struct {
	path      string
	untracked bool
	unmerged  bool
	module    bool   // a submodule that is at another commit
	blob      string // in the index; set if only the file's content differs
}

// notSprite leaves out the file that cove use writes: it is nobody's work.
const notSprite = ":(top,exclude,glob)**/.sprite"

// changes lists uncommitted changes, without ignored files.
func (r *Repo) changes(ctx context.Context) ([]change, error) {
	list, same, err := r.status(ctx)
	if err != nil || len(same) == 0 {
		return list, err
	}
	return slices.DeleteFunc(list, func(c change) bool { return slices.Contains(same, c.path) }), nil
}

// Uncommitted lists those of paths that have uncommitted changes, and those that are
// untracked.
func Uncommitted(ctx context.Context, r *Repo, paths []string) (changed, untracked []string, err error) {
	list, err := r.changes(ctx)
	for _, path := range paths {
		for _, c := range list {
			switch {
			case c.untracked && (path == c.path || strings.HasPrefix(path, strings.TrimSuffix(c.path, "/")+"/")):
				untracked = append(untracked, path)
			case !c.untracked && path == c.path:
				changed = append(changed, path)
			}
		}
	}
	return changed, untracked, err
}

// status is changes, with those that are none: see sameLarge.
func (r *Repo) status(ctx context.Context) (list []change, same []string, err error) {
	if r.Bare {
		return nil, nil, nil
	}
	out, err := r.git.run(ctx, call{
		args: []string{"status", "--porcelain=v2", "-z", "--untracked-files=normal", "--ignore-submodules=dirty", "--no-renames",
			"--", ":(top)", notSprite},
		timeout: patiently,
	})
	if err != nil {
		return nil, nil, fmt.Errorf("look for uncommitted changes: %w", err)
	}
	for entry := range strings.SplitSeq(string(out), "\x00") {
		if c, ok := parseChange(entry); ok {
			list = append(list, c)
		}
	}
	same, err = r.sameLarge(ctx, list)
	return list, same, err
}

// sameLarge are the changed files that have the content of their Git LFS pointers in the
// index. Such a file may have just been checked out, or touched. Git can't tell by its times,
// but would tell by the filter.
func (r *Repo) sameLarge(ctx context.Context, list []change) ([]string, error) {
	if !slices.Contains(r.config.filters, "lfs") {
		return nil, nil
	}
	blobs := map[string]string{}
	var paths []byte
	for _, c := range list {
		if c.blob != "" {
			blobs[c.path] = c.blob
			paths = append(append(paths, c.path...), 0)
		}
	}
	hit, err := r.filtered(ctx, paths, nil)
	if err != nil || len(hit) == 0 {
		return nil, err
	}
	s, err := r.scratch(ctx)
	if err != nil {
		return nil, err
	}
	defer s.remove()
	var files []File
	for _, path := range hit {
		files = append(files, File{Path: path, mode: "100644", blob: blobs[path]})
	}
	large, err := s.pointersAmong(ctx, files)
	if err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(r.Dir)
	if err != nil {
		return nil, err
	}
	defer func() { _ = root.Close() }()
	var same []string
	for _, path := range hit {
		i := slices.IndexFunc(large, func(f LargeFile) bool { return f.blob == blobs[path] })
		if i >= 0 && large[i].isIn(root, path) {
			same = append(same, path)
		}
	}
	return same, nil
}

// parseChange reads an entry of git-status's porcelain format 2. Renames are not
// asked for.
func parseChange(entry string) (change, bool) {
	fields := map[byte]int{'1': 9, 'u': 11, '?': 2}
	if entry == "" || fields[entry[0]] == 0 {
		return change{}, false
	}
	parts := strings.SplitN(entry, " ", fields[entry[0]])
	if len(parts) < fields[entry[0]] {
		return change{}, false
	}
	c := change{path: parts[len(parts)-1], untracked: entry[0] == '?', unmerged: entry[0] == 'u'}
	if entry[0] == '1' {
		c.module = strings.HasPrefix(parts[2], "SC")
		if parts[1] == ".M" && parts[4] == parts[5] && strings.HasPrefix(parts[2], "N") {
			c.blob = parts[7]
		}
	}
	return c, true
}

// CheckClean is nil when everything is committed or ignored, else ErrDirty with
// the paths.
func (r *Repo) CheckClean(ctx context.Context) error {
	list, err := r.changes(ctx)
	if err != nil || len(list) == 0 {
		return err
	}
	e := &fail.Error{Code: ErrDirty.Code,
		Hint: "commit them, or choose: --dirty refuse (this), --dirty include (they go along in a snapshot commit), --dirty ignore (they stay behind)"}
	behind := ""
	for _, c := range list {
		e.Paths = append(e.Paths, c.path)
		if c.module {
			behind += " " + printable.Word(c.path)
		}
	}
	if behind != "" {
		e.Hint += "\nif a submodule is only behind what was pulled: git submodule update --recursive --" + behind
	}
	e.Message = "there are uncommitted changes: " + SomeNames(e.Paths)
	return e
}

// Snapshot makes a commit of everything that is not ignored, on top of head, the
// checked-out commit. It uses an index of its own: branch, index and work tree stay
// untouched. If there is nothing uncommitted, it returns head itself.
//
// Filters do not run. If one of the person's filters would handle a changed path, the
// error is ErrFiltered. Without the filter, the file might have a secret in the clear.
func (r *Repo) Snapshot(ctx context.Context, head string) (string, error) {
	list, err := r.changes(ctx)
	if err != nil {
		return "", err
	}
	if len(list) == 0 {
		return head, nil
	}
	for _, c := range list {
		if c.unmerged {
			return "", &fail.Error{Code: ErrUnmerged.Code, Message: "there are unmerged paths: " + printable.Name(c.path),
				Hint: "finish the merge first, or use --dirty ignore"}
		}
	}
	if err := r.checkStrangers(ctx); err != nil {
		return "", err
	}
	dir, err := r.private("tmp")
	if err != nil {
		return "", err
	}
	index, err := tempFile(dir, "index-")
	if err != nil {
		return "", err
	}
	defer index.remove()
	if err := copyIndex(r.GitDir+"/index", index.Name()); err != nil {
		return "", err
	}
	defer func() { _ = os.Remove(index.Name() + ".lock") }() // of a git that was killed
	tree, err := r.addAll(ctx, index.Name())
	if err != nil {
		return "", fmt.Errorf("snapshot: %w", err)
	}
	commit, err := r.git.run(ctx, call{
		args:  []string{"commit-tree", "-p", head, "-F", "-", tree},
		stdin: strings.NewReader("Snapshot of uncommitted changes\n"),
		env:   identity(r.Author()),
	})
	if err != nil {
		return "", fmt.Errorf("snapshot: %w", err)
	}
	return strings.TrimSpace(string(commit)), nil
}

// checkStrangers refuses untracked repositories in the work tree: git would add only the
// name of a commit, and nobody could fetch that commit.
func (r *Repo) checkStrangers(ctx context.Context) error {
	e := &fail.Error{Code: ErrModule.Code}
	w := &recordWriter{each: func(path string) {
		if dir, ok := strings.CutSuffix(path, "/"); ok {
			e.Paths = append(e.Paths, dir)
			e.Hint += "let git ignore it: echo " + printable.Word("/"+path) + ` >> "$(git rev-parse --git-path info/exclude)"` + "\n"
		}
	}}
	if _, err := r.git.run(ctx, call{args: []string{"ls-files", "-z", "--others", "--exclude-standard"}, stdout: w, timeout: patiently}); err != nil {
		return fmt.Errorf("look for other repositories: %w", err)
	}
	if len(e.Paths) == 0 {
		return nil
	}
	e.Message = "a git repository of its own that is not a submodule can't go along: " + SomeNames(e.Paths)
	e.Hint += "or leave it behind, with all uncommitted changes: --dirty ignore"
	return e
}

// addAll takes everything that is not ignored into an index, and returns the tree
// that this makes.
func (r *Repo) addAll(ctx context.Context, index string) (string, error) {
	_, same, err := r.status(ctx)
	if err != nil {
		return "", err
	}
	env := []string{"GIT_INDEX_FILE=" + index}
	if err := r.checkFiltered(ctx, env, same); err != nil {
		return "", err
	}
	paths := ".\x00" + notSprite + "\x00"
	for _, path := range same {
		paths += ":(top,exclude,literal)" + path + "\x00"
	}
	if _, err := r.git.run(ctx, call{args: []string{"add", "-A", "--pathspec-from-file=-", "--pathspec-file-nul"},
		stdin: strings.NewReader(paths), env: env, timeout: patiently}); err != nil {
		return "", err
	}
	tree, err := r.git.run(ctx, call{args: []string{"write-tree"}, env: env, timeout: patiently})
	return strings.TrimSpace(string(tree)), err
}

// identity is a person as author and committer, with names that git takes.
func identity(p cove.Person) []string {
	return []string{
		"GIT_AUTHOR_NAME=" + p.Name, "GIT_AUTHOR_EMAIL=" + p.Email,
		"GIT_COMMITTER_NAME=" + p.Name, "GIT_COMMITTER_EMAIL=" + p.Email,
	}
}

// checkFiltered refuses changed files that a configured filter is responsible for, but
// for those that are the same.
func (r *Repo) checkFiltered(ctx context.Context, env, same []string) error {
	if len(r.config.filters) == 0 {
		return nil
	}
	var files []byte
	for _, args := range [][]string{
		{"diff-files", "-z", "--name-only", "--ignore-submodules", "--no-ext-diff"},
		{"diff-index", "-z", "--name-only", "--ignore-submodules", "--no-ext-diff", "--cached", "HEAD"},
		{"ls-files", "-z", "--others", "--exclude-standard"},
	} {
		out, err := r.git.run(ctx, call{args: args, env: env, timeout: patiently})
		if err != nil {
			return err
		}
		files = append(files, out...)
	}
	hit, err := r.filtered(ctx, files, env)
	if err != nil {
		return err
	}
	hit = slices.DeleteFunc(hit, func(path string) bool { return slices.Contains(same, path) })
	if len(hit) > 0 {
		return &fail.Error{Code: ErrFiltered.Code,
			Message: "a git filter is responsible for changed files, and cove does not run filters: " + SomeNames(hit),
			Hint:    "commit them yourself, or use --dirty ignore"}
	}
	return nil
}

// filtered returns those of the paths (each ended by NUL) that have a configured
// filter.
func (r *Repo) filtered(ctx context.Context, paths []byte, env []string) ([]string, error) {
	if len(r.config.filters) == 0 || len(paths) == 0 {
		return nil, nil
	}
	out, err := r.git.run(ctx, call{args: []string{"check-attr", "-z", "--stdin", "filter"}, stdin: bytes.NewReader(paths), env: env, timeout: patiently})
	if err != nil {
		return nil, err
	}
	known := map[string]bool{}
	for _, name := range r.config.filters {
		known[name] = true
	}
	var hit []string
	parts := strings.Split(string(out), "\x00") // path, "filter", value, …
	for i := 0; i+2 < len(parts); i += 3 {
		if known[parts[i+2]] {
			hit = append(hit, parts[i])
		}
	}
	return hit, nil
}

// copyIndex copies an index with its modification time: git compares that with the times
// of files to know which files it must read again. A missing index counts as empty.
func copyIndex(from, to string) error {
	src, err := os.Open(from)
	if isNotExist(err) {
		if err := os.Remove(to); err != nil && !isNotExist(err) {
			return fmt.Errorf("copy index: %w", err)
		}
		return nil
	}
	if err != nil {
		return fmt.Errorf("copy index: %w", err)
	}
	defer func() { _ = src.Close() }()
	info, err := src.Stat()
	if err != nil {
		return fmt.Errorf("copy index: %w", err)
	}
	dst, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, info.Mode().Perm())
	if err != nil {
		return fmt.Errorf("copy index: %w", err)
	}
	_, err = io.Copy(dst, src)
	if closeErr := dst.Close(); err == nil {
		err = closeErr
	}
	if err == nil {
		err = os.Chtimes(to, time.Time{}, info.ModTime())
	}
	if err != nil {
		return fmt.Errorf("copy index: %w", err)
	}
	return nil
}
