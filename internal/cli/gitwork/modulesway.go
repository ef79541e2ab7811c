package gitwork

import (
	"context"
	"io"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/cove-dev/cove/internal/lib/printable"
)

// modulesInTheWay is the refusal for submodules that would have to give way to a file. The
// file would take the place of a submodule, or of a folder above it. Git would remove all
// that is in such a folder: uncommitted changes, ignored files and, if a submodule's
// repository is in the folder, every branch. So their folders must be empty.
func (t *worktree) modulesInTheWay(ctx context.Context, f Forward, files []File) error {
	comes := map[string]bool{}
	for _, file := range files {
		comes[file.Path] = file.Status != "D" && file.mode != "160000"
	}
	var places []string
	w := &recordWriter{each: func(entry string) {
		what, place, ok := strings.Cut(entry, "\t")
		if !ok || !strings.HasPrefix(what, "160000 ") {
			return
		}
		for at := place; at != "."; at = path.Dir(at) {
			if comes[at] {
				places = append(places, place)
				return
			}
		}
	}}
	// The index has those, too, that only a snapshot has.
	if _, err := t.git.run(ctx, call{args: []string{"ls-files", "-s", "-z"}, stdout: w}); err != nil {
		return err
	}
	root, err := os.OpenRoot(t.Dir)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	places = slices.DeleteFunc(slices.Compact(places), func(place string) bool { return !hasContent(root, place) })
	if len(places) == 0 {
		return nil
	}
	in := "git -C " + printable.Word(t.Dir)
	deinit := in + " submodule deinit --"
	var next []string
	for _, place := range places[:min(len(places), maxNamed)] {
		next = append(next, "git -C "+printable.Word(path.Join(t.Dir, place))+" status --ignored")
		deinit += " " + printable.Word(place)
	}
	e := f.refuse("overlap", "submodules are in the way in "+printable.Name(t.Dir)+", with everything in their folders",
		append(next, deinit+" && "+f.again(), "git branch cove-"+f.Job+" "+JobRef(f.Job, "head"))...)
	e.Paths = places
	return e
}

// hasContent reports whether something is in a folder, or in the way of looking.
func hasContent(root *os.Root, dir string) bool {
	info, err := root.Lstat(dir)
	if err != nil || !info.IsDir() {
		return err != nil && !isNotExist(err)
	}
	f, err := root.Open(dir)
	if err != nil {
		return true
	}
	defer func() { _ = f.Close() }()
	_, err = f.Readdirnames(1)
	return err != io.EOF
}
