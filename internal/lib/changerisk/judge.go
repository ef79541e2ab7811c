package changerisk

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/cove-dev/cove/internal/lib/printable"
	"github.com/cove-dev/cove/internal/lib/riskypath"
	"github.com/cove-dev/cove/internal/lib/safepath"
)

// Bounds of a judgement. A change beyond them is held as a whole.
const (
	maxLinks     = 200_000   // symbolic links of a tree
	maxLinkBytes = 64 << 20  // of what they say, and of their paths
	maxFollow    = 1_000_000 // names on the ways that links lead, and ways that begin at links
	maxWays      = 128 << 20 // bytes that these ways take
	maxHops      = 40        // links on the way to one file, as the kernel has it
	maxTargets   = 16        // of links whose names some file system takes for the same
)

const whyMany = "the tree has too many symbolic links to tell what leads there"

// A Judge tells which changes up to a commit can make something run. It has looked at the
// whole tree of the commit: a change can complete what an earlier one began. All paths in
// it are in the form of safepath.FoldPath. It is for one goroutine.
type Judge struct {
	objects Objects
	here    Here
	links   map[string][]string          // targets; more than one for names that some file system takes for the same
	parts   map[string]safepath.GitParts // of folders; "." is the top
	top     map[string]bool              // names at the top of the commit that the changes started from
	led     map[string]string            // why what is there counts, and all below it
	exact   map[string]string            // likewise, and nothing below it
	fresh   []string                     // paths of led and exact, in the order in which they were found
	steps   int
	bytes   int
	many    bool // there was more than can be told
}

// New looks at a tree and at the facts about the person's machine. It reads the tree's
// symbolic links from objects.
func New(ctx context.Context, t *Tree, objects Objects, here Here) (*Judge, error) {
	j := &Judge{
		objects: objects, here: here, links: map[string][]string{}, parts: t.parts, top: t.top,
		led: map[string]string{}, exact: map[string]string{}, many: t.many,
	}
	targets, all, err := objects.Links(ctx, t.Links())
	if err != nil {
		return nil, err
	}
	j.many = j.many || !all
	for _, l := range t.links {
		if target, ok := targets[l.blob]; ok {
			j.link(safepath.FoldPath(l.path), target)
		}
	}
	j.programs(ctx)
	var names []string
	for _, l := range t.links {
		names = append(names, l.path)
	}
	for _, name := range append(names, j.linksBeside()...) {
		if why := riskypath.Path(name); why != "" {
			why = fmt.Sprintf("%s, by the link %s", why, printable.Name(name))
			j.follow(ctx, safepath.FoldPath(name), func(at string) {
				if at != "." || riskypath.Path(path.Base(name)) != "" {
					j.add(at, why)
				}
			})
		}
	}
	j.spread(ctx)
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("follow symbolic links: %w", err)
	}
	return j, nil
}

// linksBeside adds the symbolic links at the top of the work tree that are not in the commit.
// An ignored .envrc, for instance, may lead to a file of the commit.
func (j *Judge) linksBeside() (names []string) {
	for _, name := range slices.Sorted(maps.Keys(j.here.Links)) {
		at := safepath.Fold(name)
		if len(j.links[at]) > 0 || riskypath.Path(name) == "" {
			continue
		}
		j.link(at, j.here.Links[name])
		names = append(names, name)
	}
	return names
}

// programs adds what the person's own git, shell and environment already run of the tree.
func (j *Judge) programs(ctx context.Context) {
	for _, p := range j.here.Programs {
		j.follow(ctx, safepath.FoldPath(p.Path), func(at string) {
			switch {
			case at == ".": // the tree itself, which no program is
			case p.Exact && j.exact[at] == "":
				j.exact[at] = p.Why
				j.fresh = append(j.fresh, at)
			case !p.Exact:
				j.add(at, p.Why)
			}
		})
	}
}

// inTree is a path of the person's machine as one of the tree.
func (j *Judge) inTree(name string) (rel string, ok bool) {
	if j.here.InTree == nil {
		return "", false
	}
	return j.here.InTree(name)
}

// Inside judges a path that is not a file of the commit's tree, such as one in a submodule. It
// says whether a folder above the path is a repository in that tree. It also says whether
// links in the tree lead there, and whether the person's programs read there. The path is
// relative to the top of the tree.
func (j *Judge) Inside(name string) (why string) {
	if j.many {
		return whyMany
	}
	at := safepath.FoldPath(name)
	for dir := path.Dir(at); ; dir = path.Dir(dir) {
		if j.parts[dir].Repository() {
			return whyRepository(dir)
		}
		if dir == "." || dir == "/" {
			return cmp.Or(j.ledWhy(at), j.here.Runs.Why(at))
		}
	}
}

// link adds a link's target. If a link has more than maxTargets, one more is kept as a sign of
// that.
func (j *Judge) link(at, target string) {
	clean := strings.Join(namesIn(target), "/")
	if path.IsAbs(target) {
		clean = "/" + clean
	}
	if has := j.links[at]; len(has) <= maxTargets && !slices.Contains(has, clean) {
		j.links[at] = append(has, clean)
	}
}

// namesIn divides a path into its names. Those that lead nowhere else are left out.
func namesIn(name string) []string {
	return slices.DeleteFunc(strings.Split(name, "/"), func(part string) bool { return part == "" || part == "." })
}

// foldDir is a folder of path.Split, folded.
func foldDir(dir string) string {
	return cmp.Or(safepath.FoldPath(strings.TrimSuffix(dir, "/")), ".")
}

func (j *Judge) add(at, why string) {
	if j.led[at] == "" {
		j.led[at] = why
		j.fresh = append(j.fresh, at)
	}
}

// spread follows the links in paths that count, each once, until they lead to nothing new.
func (j *Judge) spread(ctx context.Context) {
	names := slices.Sorted(maps.Keys(j.links))
	after := make([]int, len(names)+1) // of each link, itself or a later one: those between are done
	for i := range after {
		after[i] = i
	}
	undone := func(i int) int {
		for after[i] != i {
			after[i] = after[after[i]]
			i = after[i]
		}
		return i
	}
	visit := func(i int) {
		after[i] = i + 1
		why := j.ledWhy(names[i])
		j.follow(ctx, names[i], func(to string) {
			if to != "." {
				j.add(to, why)
			}
		})
	}
	for k := 0; k < len(j.fresh) && !j.many && ctx.Err() == nil; k++ {
		at := j.fresh[k]
		if i, ok := slices.BinarySearch(names, at); ok && undone(i) == i {
			visit(i)
		}
		if j.led[at] == "" {
			continue // it is exact
		}
		begin := at + "/"
		if at == "." {
			begin = ""
		}
		i, _ := slices.BinarySearch(names, begin)
		for i = undone(i); i < len(names) && strings.HasPrefix(names[i], begin) && !j.many && ctx.Err() == nil; i = undone(i) {
			visit(i)
		}
	}
}

// ledWhy says why a path counts; empty: nothing leads there.
func (j *Judge) ledWhy(at string) string {
	if why := j.exact[at]; why != "" {
		return why
	}
	for {
		if why := j.led[at]; why != "" || at == "." || at == "/" {
			return why
		}
		at = path.Dir(at)
	}
}

// why says why a changed file must be held, apart from its content; empty if it need not.
func (j *Judge) why(f Change) string {
	at := safepath.FoldPath(f.Path)
	dir, last := path.Split(at)
	ignore := f.Mode != LinkMode && (last == ".gitignore" || last == ".coveignore") // judged by its content
	why := ""
	if !ignore {
		why = riskypath.Path(f.Path)
	} else if dir != "" {
		why = riskypath.Path(path.Clean(dir))
	}
	if why = cmp.Or(why, j.ledWhy(at)); why != "" {
		return why
	}
	first, _, _ := strings.Cut(riskypath.WithoutHarmless(at), "/")
	if f.Status == "A" && strings.HasPrefix(first, ".") && !j.top[first] && !(ignore && dir == "") {
		return riskypath.Dot
	}
	if j.many {
		return whyMany
	}
	return ""
}

// A way is a place in the tree, and the names that are still to go from there.
type way struct {
	at   string
	todo []string
	hops int
}

// charge counts a step and the bytes that it takes, and reports whether they may be spent.
func (j *Judge) charge(n int) bool {
	j.steps++
	j.bytes += n
	if j.steps > maxFollow || j.bytes > maxWays {
		j.many = true
		return false
	}
	return true
}

// follow calls found with every path that a path leads to: each link on the way, and the end.
// It stops if the context ends; the caller must check that.
func (j *Judge) follow(ctx context.Context, name string, found func(at string)) {
	seen := map[string]bool{}
	open := []way{{at: ".", todo: namesIn(name)}}
	for len(open) > 0 && ctx.Err() == nil {
		w := open[len(open)-1]
		open = open[:len(open)-1]
		next, ok := j.walk(&w)
		if !ok {
			continue
		}
		found(next)
		targets := j.links[next]
		if len(targets) > maxTargets {
			j.many = true
			return
		}
		for _, target := range targets {
			to, ok := j.turn(w, target)
			if !ok {
				continue
			}
			key := to.at + "\x00" + strings.Join(to.todo, "/")
			if !j.charge(2*len(key) + 16*len(to.todo)) {
				return
			}
			if !seen[key] {
				seen[key] = true
				open = append(open, to)
			}
		}
	}
}

// walk goes on to the next link, or to the end. It fails if the way leaves the tree, or if too
// much is spent.
func (j *Judge) walk(w *way) (next string, ok bool) {
	for len(w.todo) > 0 {
		part := w.todo[0]
		w.todo = w.todo[1:]
		if part == ".." {
			if w.at == "." || !j.charge(len(w.at)) {
				return "", false
			}
			w.at = path.Dir(w.at)
			continue
		}
		next := path.Join(w.at, safepath.Fold(part))
		if !j.charge(len(next)) {
			return "", false
		}
		if len(j.links[next]) > 0 {
			return next, true
		}
		w.at = next
	}
	return w.at, true
}

// turn is the way on from a link, by one of its targets.
func (j *Judge) turn(w way, target string) (way, bool) {
	at := w.at
	if path.IsAbs(target) {
		rel, ok := j.inTree(target)
		if !ok {
			return way{}, false
		}
		at, target = ".", rel
	}
	return way{at, append(namesIn(target), w.todo...), w.hops + 1}, w.hops < maxHops
}

func whyRepository(dir string) string {
	name := "the folder " + printable.Name(dir)
	if dir == "." {
		name = "the top of the tree"
	}
	return "git takes " + name + " for a repository, and runs what its config and hooks say"
}

// inRepositories are folders of a tree that git takes for repositories, and why each is risky.
type inRepositories map[string]string

// repositories finds the folders above changed files that git takes for repositories. It takes
// the parts in the commit's tree and in the work tree together.
func (j *Judge) repositories(changes []Change) inRepositories {
	found, seen := inRepositories{}, map[string]bool{}
	for _, f := range changes {
		for dir := path.Dir(f.Path); !seen[dir]; dir = path.Dir(dir) {
			seen[dir] = true
			parts := j.parts[foldDir(dir)]
			if !parts.Repository() && j.here.Parts != nil {
				parts |= j.here.Parts(dir)
			}
			if !parts.Repository() {
				continue
			}
			found[foldDir(dir)] = whyRepository(dir)
		}
	}
	return found
}

// why says why a path is in a repository; empty if it is in none.
func (in inRepositories) why(name string) string {
	if len(in) == 0 {
		return ""
	}
	for dir := foldDir(path.Dir(name)); ; dir = path.Dir(dir) {
		if why := in[dir]; why != "" || dir == "." || dir == "/" {
			return why
		}
	}
}
