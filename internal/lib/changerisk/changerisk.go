// Package changerisk says which changes between two commits are risky, and why. A risky change can make programs run
// on the machine of a person who takes it, or change what a check lets through. A pull and the review of a job judge
// by it. It runs nothing, and all that it is given may be hostile: names, modes and texts are only read, within
// bounds.
package changerisk

import (
	"cmp"
	"context"
	"path"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/cove-dev/cove/internal/lib/gitignore"
	"github.com/cove-dev/cove/internal/lib/printable"
	"github.com/cove-dev/cove/internal/lib/riskypath"
	"github.com/cove-dev/cove/internal/lib/safepath"
)

// Risk is a changed path that can make programs run on the person's machine, or
// change what a check lets through.
type Risk struct {
	Path   string `json:"path"`
	Why    string `json:"why"`
	Commit string `json:"-"` // of a submodule: where it leads now
}

// Change is a changed path, as git diff-tree --raw without renames has it.
type Change struct {
	Path             string
	Status           string // A, M, D or T
	OldMode, OldBlob string // zeros: not there
	Mode, Blob       string
}

// The modes of entries that are not files.
const (
	LinkMode    = "120000"
	GitlinkMode = "160000"
)

// The longest texts that are read.
const (
	MaxTarget = 4096    // bytes of what a symbolic link says; a longer one is none
	MaxText   = 1 << 20 // bytes of a file that is judged by its content
)

// Objects reads objects of git's by their names.
type Objects interface {
	// Links says where symbolic links lead. It leaves out links that are longer than
	// MaxTarget. all is false if the others are more than it reads.
	Links(ctx context.Context, blobs []string) (targets map[string]string, all bool, err error)

	// Text returns the text of a file; ok is false if it is longer than MaxText.
	Text(ctx context.Context, blob string) (text string, ok bool, err error)

	// Config reports whether git can read a file as its configuration.
	Config(ctx context.Context, blob string) (bool, error)
}

// A Program is a file or folder of the work tree that something of the person's already
// runs, or reads to know what to run.
type Program struct {
	Path  string // from the top
	Why   string
	Exact bool // only the file itself, no folder of that name
}

// Here is what the person's machine adds to a judgement. The zero value adds nothing.
type Here struct {
	Programs []Program                                  // what runs already
	Runs     *riskypath.Names                           // files that the person's hooks have a program run; nil: none
	InTree   func(name string) (rel string, ok bool)    // an absolute path as one from the top; nil: none is
	Links    map[string]string                          // the symbolic links at the top of the work tree
	Parts    func(dir string) (there safepath.GitParts) // what lies in a folder of the work tree; nil: nothing
}

// A Tree collects what a judgement needs of the trees of two commits. Use NewTree.
type Tree struct {
	links []link
	long  int // bytes of their paths
	parts map[string]safepath.GitParts
	top   map[string]bool
	many  bool
}

type link struct{ path, blob string }

// NewTree returns a Tree without entries.
func NewTree() *Tree { return &Tree{parts: map[string]safepath.GitParts{}, top: map[string]bool{}} }

// entrySize is what an entry of a Tree takes beside its name, in bytes.
const entrySize = 64

// Entry adds an entry of the later commit's tree, as git ls-tree -r -t -z has it. It leaves out any other line. It
// returns how many bytes the tree keeps for the entry.
func (t *Tree) Entry(entry string) (kept int) {
	meta, name, ok := strings.Cut(entry, "\t")
	if !ok {
		return 0
	}
	dir, last := path.Split(name)
	if part := safepath.GitPart(last); part != 0 {
		t.parts[foldDir(dir)] |= part
		kept = len(dir) + entrySize
	}
	if fields := strings.Fields(meta); len(fields) == 3 && fields[0] == LinkMode {
		if t.long += len(name); len(t.links) >= maxLinks || t.long > maxLinkBytes {
			t.many = true
			return kept
		}
		t.links = append(t.links, link{name, fields[2]})
		kept += len(entry) + entrySize
	}
	return kept
}

// Top adds a name at the top of the earlier commit's tree. It returns how many bytes the tree keeps for it.
func (t *Tree) Top(name string) (kept int) {
	t.top[safepath.Fold(name)] = true
	return len(name) + entrySize
}

// Partial says that the tree has more entries than were added. Then every change is held.
func (t *Tree) Partial() { t.many = true }

// Links are the objects of the symbolic links, which New reads.
func (t *Tree) Links() []string {
	blobs := make([]string, 0, len(t.links))
	for _, l := range t.links {
		blobs = append(blobs, l.blob)
	}
	return blobs
}

// Texts are the objects that are read to judge changes: files judged by their contents, and changed links.
func Texts(changes []Change) (texts, links []string) {
	for _, f := range changes {
		if f.Mode == LinkMode {
			links = append(links, f.Blob)
		}
		switch safepath.Fold(path.Base(f.Path)) {
		case ".gitignore", ".coveignore", "package.json":
		default:
			continue
		}
		for _, side := range f.sides() {
			if side.isFile() {
				texts = append(texts, side.blob)
			}
		}
	}
	return texts, links
}

// Changes says which changes must be held for the person's review, and which are only listed. Deleted files count: a
// check may be gone.
func (j *Judge) Changes(ctx context.Context, changes []Change) (held, listed []Risk, err error) {
	held, listed = []Risk{}, []Risk{}
	repositories := j.repositories(changes)
	var links []Change
	for _, f := range changes {
		if f.Mode == GitlinkMode {
			held = append(held, Risk{f.Path, "a submodule, whose content did not come", f.Blob})
			if why := repositories.why(f.Path); why != "" {
				held = append(held, Risk{Path: f.Path, Why: why})
			}
			continue
		}
		if f.Mode == LinkMode {
			links = append(links, f)
		}
		why, isListed, err := j.byContent(ctx, f)
		if err != nil {
			return nil, nil, err
		}
		if why = cmp.Or(repositories.why(f.Path), why, j.why(f)); why != "" {
			held = append(held, Risk{Path: f.Path, Why: why})
		} else if isListed {
			listed = append(listed, Risk{Path: f.Path, Why: cmp.Or(riskypath.Listed(f.Path), riskypath.Build)})
		}
	}
	outside, err := j.linksOutside(ctx, links)
	if err != nil {
		return nil, nil, err
	}
	return append(held, outside...), listed, nil
}

// byContent judges a file by what changed in it, and by its name if it is only listed.
func (j *Judge) byContent(ctx context.Context, f Change) (why string, listed bool, err error) {
	switch safepath.Fold(path.Base(f.Path)) {
	case ".gitmodules":
		why, err = j.riskyModules(ctx, f)
		return why, false, err
	case ".gitignore", ".coveignore":
		if f.Mode != LinkMode {
			why, err = j.riskyIgnore(ctx, f)
			return why, false, err
		}
	case "package.json":
		return j.riskyPackage(ctx, f)
	}
	return j.byHooks(f), riskypath.Listed(f.Path) != "", nil
}

// byHooks says why a file is run by the person's hooks, though they do not name it.
func (j *Judge) byHooks(f Change) string { return j.here.Runs.Why(safepath.FoldPath(f.Path)) }

// riskyIgnore says why a change of a .gitignore is risky. If it ignores more than before, it is not. If it ignores
// less, the next push may carry files that should stay here.
func (j *Judge) riskyIgnore(ctx context.Context, f Change) (string, error) {
	was, is, ok, err := j.sides(ctx, f)
	if err != nil || !ok || gitignore.Weakens(was, is) { // not ok: too long to tell
		return gitignore.Weaker, err
	}
	return "", nil
}

// riskyModules says whether git can't read a .gitmodules. A change of one is held in any case.
func (j *Judge) riskyModules(ctx context.Context, f Change) (string, error) {
	if f.Path != ".gitmodules" || !strings.HasPrefix(f.Mode, "100") {
		return "", nil
	}
	readable, err := j.objects.Config(ctx, f.Blob)
	if err == nil && !readable {
		return "git can't read it: much of git does not work in a work tree that has it, and its submodules are left alone", nil
	}
	return "", err
}

// A side is a file before or after a change.
type side struct{ mode, blob string }

func (s side) isFile() bool { return strings.HasPrefix(s.mode, "100") }

func (f Change) sides() [2]side { return [2]side{{f.OldMode, f.OldBlob}, {f.Mode, f.Blob}} }

// sides returns the texts of a file before and after the change, without their last line end.
// A text is empty if there was or is no file. If one is too long, ok is false, and both are
// empty.
func (j *Judge) sides(ctx context.Context, f Change) (was, is string, ok bool, err error) {
	texts := [2]string{}
	for i, side := range f.sides() {
		if !side.isFile() {
			continue
		}
		text, ok, err := j.objects.Text(ctx, side.blob)
		if err != nil || !ok {
			return "", "", false, err
		}
		texts[i] = strings.TrimSuffix(text, "\n")
	}
	return texts[0], texts[1], true, nil
}

// linksOutside keeps the symbolic links that lead out of the tree or into git's
// directory.
func (j *Judge) linksOutside(ctx context.Context, links []Change) ([]Risk, error) {
	var blobs []string
	for _, f := range links {
		blobs = append(blobs, f.Blob)
	}
	targets, _, err := j.objects.Links(ctx, blobs) // what is not read is not short
	if err != nil {
		return nil, err
	}
	var risky []Risk
	for _, f := range links {
		target, short := targets[f.Blob]
		if !short {
			risky = append(risky, Risk{Path: f.Path, Why: "a symbolic link whose target is too long"})
		} else if why := riskyLink(f.Path, target); why != "" {
			risky = append(risky, Risk{Path: f.Path, Why: why})
		}
	}
	return risky, nil
}

// riskyLink says what is wrong with a symbolic link; empty if nothing is.
func riskyLink(name, target string) string {
	to := path.Join(path.Dir(name), target)
	switch {
	case path.IsAbs(target) || strings.Contains(target, `\`) || len(target) > 1 && target[1] == ':':
	case to == ".." || strings.HasPrefix(to, "../"):
	case safepath.HasDotGit(to):
		return "a symbolic link into git's directory"
	default:
		return ""
	}
	return "a symbolic link to outside the repository, " + printable.Name(shorten(target, 100))
}

// shorten cuts s to n bytes at most, between characters.
func shorten(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n] + "…"
}

// Unique are names of objects, each once, in order.
func Unique(blobs []string) []string { return slices.Compact(slices.Sorted(slices.Values(blobs))) }
