package tools

import (
	"context"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cove-dev/cove/internal/lib/gitignore"
)

// A walk goes through a folder's files in the order of their paths, byte by byte.
// It follows no link below its root.
type walk struct {
	ignored bool // what git ignores is gone through as well
	folders bool // folders are visited, too, by names that end in a slash

	// visit gets a path below the root. An error from it ends the walk.
	visit func(rel string, kind fs.FileMode) error

	unreadable int // folders that were passed over
}

// maxIgnoreFile bounds a file of patterns.
const maxIgnoreFile = 1 << 20

// ignores are the patterns of one folder, and of those above it.
type ignores struct {
	above *ignores
	dir   string // absolute
	list  []gitignore.Pattern
}

// run goes through a folder. If ctx ends, it returns the error of ctx.
func (w *walk) run(ctx context.Context, root string) error {
	var top *ignores
	if !w.ignored {
		top = ignoresAbove(root)
	}
	return w.folder(ctx, root, "", top)
}

func (w *walk) folder(ctx context.Context, dir, rel string, above *ignores) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		if rel == "" {
			return err
		}
		w.unreadable++
		return nil
	}
	here := above
	if !w.ignored && slices.ContainsFunc(entries, func(e fs.DirEntry) bool { return e.Name() == ".gitignore" }) {
		here = above.with(dir, filepath.Join(dir, ".gitignore"))
	}
	// As in a sorted list of paths, a folder's place is that of its name with a slash.
	slices.SortFunc(entries, func(a, b fs.DirEntry) int { return strings.Compare(sortName(a), sortName(b)) })
	for _, e := range entries {
		name := e.Name()
		path := dir + "/" + name
		if dir == "/" {
			path = "/" + name
		}
		if name == ".git" || here.ignores(path, name, e.IsDir()) {
			continue
		}
		if !e.IsDir() {
			if err := w.visit(rel+name, e.Type()); err != nil {
				return err
			}
			continue
		}
		if w.folders {
			if err := w.visit(rel+name+"/", e.Type()); err != nil {
				return err
			}
		}
		if err := w.folder(ctx, path, rel+name+"/", here); err != nil {
			return err
		}
	}
	return nil
}

func sortName(e fs.DirEntry) string {
	if e.IsDir() {
		return e.Name() + "/"
	}
	return e.Name()
}

// with adds a file's patterns, for what is in dir.
func (i *ignores) with(dir, file string) *ignores {
	info, err := os.Stat(file)
	if err != nil || !info.Mode().IsRegular() || info.Size() > maxIgnoreFile {
		return i
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return i
	}
	list := gitignore.Parse(string(text))
	if len(list) == 0 {
		return i
	}
	return &ignores{above: i, dir: strings.TrimSuffix(dir, "/"), list: list}
}

// ignores reports whether patterns, those of the folder closest to it first, say
// that a path is ignored.
func (i *ignores) ignores(path, base string, dir bool) bool {
	for ; i != nil; i = i.above {
		if v := gitignore.LastMatch(i.list, path[len(i.dir)+1:], base, dir); v != 0 {
			return v > 0
		}
	}
	return false
}

// ignoresAbove are the patterns that count in a folder by its repository, and the person's
// own.
func ignoresAbove(root string) *ignores {
	top := root
	for !isRepository(top) {
		if top == filepath.Dir(top) {
			return nil
		}
		top = filepath.Dir(top)
	}
	var list *ignores
	config := os.Getenv("XDG_CONFIG_HOME")
	if home, err := os.UserHomeDir(); config == "" && err == nil {
		config = filepath.Join(home, ".config")
	}
	if config != "" {
		list = list.with(top, filepath.Join(config, "git", "ignore"))
	}
	list = list.with(top, filepath.Join(top, ".git", "info", "exclude"))
	rel, err := filepath.Rel(top, root)
	if err != nil || rel == "." {
		return list // the root's own is read by the walk
	}
	dir := top
	for name := range strings.SplitSeq(rel, "/") {
		list = list.with(dir, filepath.Join(dir, ".gitignore"))
		dir = filepath.Join(dir, name)
	}
	return list
}

func isRepository(dir string) bool {
	_, err := os.Lstat(filepath.Join(dir, ".git"))
	return err == nil
}
