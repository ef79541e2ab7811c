package gitwork

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
)

// identical lists the paths in the way that have an untracked file with the new file's mode
// and content. To overwrite such a file would lose nothing.
func (t *worktree) identical(ctx context.Context, files []File, inTheWay []string) ([][]byte, error) {
	if len(inTheWay) == 0 {
		return nil, nil
	}
	root, err := os.OpenRoot(t.Dir)
	if err != nil {
		return nil, err
	}
	defer func() { _ = root.Close() }()
	var found []File
	var names strings.Builder
	for _, f := range files {
		if f.Status != "A" || !slices.Contains(inTheWay, f.Path) || strings.ContainsAny(f.Path, "\n\"") {
			continue // git reads a name that begins with a quotation mark as quoted
		}
		info, err := root.Lstat(f.Path)
		if err != nil || !info.Mode().IsRegular() || (f.mode != "100755" || info.Mode()&0o100 == 0) && (f.mode != "100644" || info.Mode()&0o100 != 0) {
			continue
		}
		found = append(found, f)
		names.WriteString(f.Path + "\n")
	}
	if len(found) == 0 {
		return nil, nil
	}
	out, err := t.git.run(ctx, call{args: []string{"hash-object", "--stdin-paths"}, stdin: strings.NewReader(names.String()), timeout: patiently})
	if exitCode(err) > 0 { // one can't be read, or went away
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	ids := strings.Fields(string(out))
	if len(ids) != len(found) {
		return nil, fmt.Errorf("git hash-object: %d names for %d files", len(ids), len(found))
	}
	var same [][]byte
	for i, f := range found {
		if ids[i] == f.blob {
			same = append(same, []byte(f.Path))
		}
	}
	return same, nil
}

// isSame reports whether a path is one of j.Same.
func (j *journal) isSame(path string) bool {
	return slices.ContainsFunc(j.Same, func(name []byte) bool { return string(name) == path })
}

// addSame makes the files of j.Same tracked in the copy of the index, so that git leaves them
// as they are.
func (t *worktree) addSame(ctx context.Context, j *journal) error {
	if len(j.Same) == 0 {
		return nil
	}
	files, err := t.changedFiles(ctx, j.Old, j.New)
	if err != nil {
		return err
	}
	var entries bytes.Buffer
	for _, f := range files {
		if j.isSame(f.Path) {
			fmt.Fprintf(&entries, "%s %s\t%s\x00", f.mode, f.blob, f.Path)
		}
	}
	_, err = t.git.run(ctx, call{args: []string{"update-index", "-z", "--index-info"}, stdin: &entries, env: []string{"GIT_INDEX_FILE=" + j.copy()}, timeout: patiently})
	return err
}
