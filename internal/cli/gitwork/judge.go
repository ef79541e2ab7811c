package gitwork

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/cove-dev/cove/internal/lib/printable"
	"github.com/cove-dev/cove/internal/lib/riskypath"
	"github.com/cove-dev/cove/internal/lib/safepath"
)

// Bounds of a judgement. What has more is held as a whole.
const (
	maxLinks     = 200_000   // symbolic links of a tree
	maxLinkBytes = 64 << 20  // of what they say, and of their paths
	maxFollow    = 1_000_000 // names on the ways that links lead, and ways that begin at links
	maxWays      = 128 << 20 // bytes that these ways take
	maxHops      = 40        // links on the way to one file, as the kernel has it
	maxTargets   = 16        // of links whose names some file system takes for the same
)

const whyMany = "the tree has too many symbolic links: it can't be told what leads there"

// A judge tells which changes up to a commit can make something run. It has looked at the
// whole tree of the commit: a change can complete what an earlier one began. All paths in
// it are in the form of safepath.FoldPath.
type judge struct {
	repo  *Repo
	links map[string][]string          // targets; more than one for names that some file system takes for the same
	parts map[string]safepath.GitParts // of folders; "." is the top
	top   map[string]bool              // names at the top of the commit that the changes started from
	led   map[string]string            // why what is there counts, and all below it
	exact map[string]string            // likewise, and nothing below it
	fresh []string                     // paths of led and exact, in the order in which they were found
	ran   *riskypath.Names             // files that the person's hooks have a program run
	steps int
	bytes int
	many  bool // there was more than can be told
}

// judge looks at the trees of two commits.
func (s *scratch) judge(ctx context.Context, base, tip string) (*judge, error) {
	j := &judge{repo: s.of, links: map[string][]string{}, parts: map[string]safepath.GitParts{}, top: map[string]bool{}, led: map[string]string{}, exact: map[string]string{}}
	type link struct{ path, blob string }
	var links []link
	var blobs []string
	long := 0
	w := &recordWriter{each: func(entry string) {
		meta, name, ok := strings.Cut(entry, "\t")
		if !ok {
			return
		}
		dir, last := path.Split(name)
		if part := safepath.GitPart(last); part != 0 {
			j.parts[foldDir(dir)] |= part
		}
		if fields := strings.Fields(meta); len(fields) == 3 && fields[0] == linkMode {
			if long += len(name); len(links) >= maxLinks || long > maxLinkBytes {
				j.many = true
				return
			}
			links, blobs = append(links, link{name, fields[2]}), append(blobs, fields[2])
		}
	}}
	if _, err := s.git.run(ctx, call{args: []string{"ls-tree", "-r", "-t", "-z", "--full-tree", tip}, stdout: w, timeout: patiently}); err != nil {
		return nil, fmt.Errorf("look through the tree: %w", err)
	}
	w = &recordWriter{each: func(name string) { j.top[safepath.Fold(name)] = true }}
	if _, err := s.git.run(ctx, call{args: []string{"ls-tree", "-z", "--full-tree", "--name-only", base}, stdout: w}); err != nil {
		return nil, fmt.Errorf("look through the tree: %w", err)
	}
	targets, all, err := s.targets(ctx, blobs)
	if err != nil {
		return nil, err
	}
	j.many = j.many || !all
	for _, l := range links {
		if target, ok := targets[l.blob]; ok {
			j.link(safepath.FoldPath(l.path), target)
		}
	}
	if err := j.programs(ctx); err != nil {
		return nil, err
	}
	for _, name := range j.linksBeside() {
		links = append(links, link{path: name})
	}
	for _, l := range links {
		if why := riskypath.Path(l.path); why != "" {
			why = fmt.Sprintf("%s, by the link %s", why, printable.Name(l.path))
			j.follow(ctx, safepath.FoldPath(l.path), func(at string) {
				if at != "." || riskypath.Path(path.Base(l.path)) != "" {
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

// link adds what a link says. Of more targets than are followed, one is kept as a sign.
func (j *judge) link(at, target string) {
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

// linksBeside adds the symbolic links at the top of the work tree that are not in the
// commit: an ignored .envrc may lead to what is in it.
func (j *judge) linksBeside() (names []string) {
	if j.repo == nil || j.repo.Bare {
		return nil
	}
	entries, err := os.ReadDir(j.repo.Dir)
	if err != nil {
		return nil // a work tree that is gone, or that nothing can read
	}
	for _, e := range entries {
		at := safepath.Fold(e.Name())
		if e.Type()&fs.ModeSymlink == 0 || len(j.links[at]) > 0 || riskypath.Path(e.Name()) == "" {
			continue
		}
		if target, err := os.Readlink(filepath.Join(j.repo.Dir, e.Name())); err == nil {
			j.link(at, filepath.ToSlash(target))
			names = append(names, e.Name())
		}
	}
	return names
}

// foldDir is a folder of path.Split, folded.
func foldDir(dir string) string {
	return cmp.Or(safepath.FoldPath(strings.TrimSuffix(dir, "/")), ".")
}

func (j *judge) add(at, why string) {
	if j.led[at] == "" {
		j.led[at] = why
		j.fresh = append(j.fresh, at)
	}
}

// programs adds what the person's own git, shell and environment already run of the tree.
func (j *judge) programs(ctx context.Context) error {
	if j.repo == nil || j.repo.Bare {
		return nil
	}
	programs, err := j.repo.programs(ctx)
	if err != nil {
		return err
	}
	j.ran = programs.ran
	for _, p := range programs.list {
		j.follow(ctx, safepath.FoldPath(p.path), func(at string) {
			switch {
			case at == ".": // the tree itself, which no program is
			case p.exact && j.exact[at] == "":
				j.exact[at] = p.why
				j.fresh = append(j.fresh, at)
			case !p.exact:
				j.add(at, p.why)
			}
		})
	}
	return nil
}

// spread follows the links in what counts, each once, until they lead to nothing new.
func (j *judge) spread(ctx context.Context) {
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
func (j *judge) ledWhy(at string) string {
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

// why says why a changed file is to be held, but for its content; empty if it is not.
func (j *judge) why(f File) string {
	at := safepath.FoldPath(f.Path)
	dir, last := path.Split(at)
	ignore := f.mode != linkMode && (last == ".gitignore" || last == ".coveignore") // judged by its content
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
func (j *judge) charge(n int) bool {
	j.steps++
	j.bytes += n
	if j.steps > maxFollow || j.bytes > maxWays {
		j.many = true
		return false
	}
	return true
}

// follow calls found with all that a path leads to: each link on the way, and the end. It
// stops if the context ends: the caller asks that.
func (j *judge) follow(ctx context.Context, name string, found func(at string)) {
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

// walk goes on to the next link, or to the end. It fails if that is not in the tree, or if
// too much is spent.
func (j *judge) walk(w *way) (next string, ok bool) {
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
func (j *judge) turn(w way, target string) (way, bool) {
	at := w.at
	if path.IsAbs(target) {
		rel, ok := j.repo.inTree(target)
		if !ok {
			return way{}, false
		}
		at, target = ".", rel
	}
	return way{at, append(namesIn(target), w.todo...), w.hops + 1}, w.hops < maxHops
}

// Inside makes the judge of paths that are no files of a commit's tree, such as those in
// its submodules, by that tree: whether it makes a repository of a folder above them, and
// what links in it, and the person's programs, read there. The paths are from its top.
func (r *Repo) Inside(ctx context.Context, commit string) (why func(name string) string, err error) {
	s, err := r.scratch(ctx)
	if err != nil {
		return nil, err
	}
	defer s.remove()
	j, err := s.judge(ctx, commit, commit)
	if err != nil {
		return nil, err
	}
	return func(name string) string {
		if j.many {
			return whyMany
		}
		at := safepath.FoldPath(name)
		for dir := path.Dir(at); ; dir = path.Dir(dir) {
			if j.parts[dir].Repository() {
				return whyRepository(dir)
			}
			if dir == "." || dir == "/" {
				return cmp.Or(j.ledWhy(at), j.ran.Why(at))
			}
		}
	}, nil
}

func whyRepository(dir string) string {
	name := "the folder " + printable.Name(dir)
	if dir == "." {
		name = "the top of the tree"
	}
	return "git takes " + name + " for a repository, and runs what its config and hooks say"
}

// inRepositories are folders of a tree that git takes for repositories, and why that is
// one to look at.
type inRepositories map[string]string

// repositories finds those among the folders of changed files, in the commit's tree and
// what lies in the work tree taken together.
func (j *judge) repositories(files []File) (inRepositories, error) {
	var root *os.Root
	if j.repo != nil && !j.repo.Bare {
		var err error
		if root, err = os.OpenRoot(j.repo.Dir); err != nil && !isNotExist(err) {
			return nil, err
		}
		if root != nil {
			defer func() { _ = root.Close() }()
		}
	}
	found, seen := inRepositories{}, map[string]bool{}
	for _, f := range files {
		for dir := path.Dir(f.Path); !seen[dir]; dir = path.Dir(dir) {
			seen[dir] = true
			parts := j.parts[foldDir(dir)]
			if !parts.Repository() && root != nil {
				parts |= partsIn(root, dir)
			}
			if !parts.Repository() {
				continue
			}
			found[foldDir(dir)] = whyRepository(dir)
		}
	}
	return found, nil
}

// partsIn are those of a folder of the work tree. A folder that is not there has none.
func partsIn(root *os.Root, dir string) (parts safepath.GitParts) {
	f, err := root.Open(dir)
	if err != nil {
		return 0
	}
	defer func() { _ = f.Close() }()
	for {
		entries, err := f.ReadDir(512)
		for _, e := range entries {
			parts |= safepath.GitPart(e.Name())
		}
		if err != nil {
			return parts
		}
	}
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

// targets reads what symbolic links say, by the names of their objects. One that is too
// long to be a link is left out. All is false if the others are more than are read.
func (s *scratch) targets(ctx context.Context, blobs []string) (targets map[string]string, all bool, err error) {
	if len(blobs) == 0 {
		return nil, true, nil
	}
	blobs = slices.Compact(slices.Sorted(slices.Values(blobs)))
	ask := func(ids []string) io.Reader { return strings.NewReader(strings.Join(ids, "\n") + "\n") }
	sizes, err := s.git.run(ctx, call{args: []string{"cat-file", "--batch-check=%(objectsize)", "--buffer"}, stdin: ask(blobs), timeout: patiently})
	if err != nil {
		return nil, false, fmt.Errorf("read symbolic links: %w", err)
	}
	lines := strings.Split(strings.TrimSuffix(string(sizes), "\n"), "\n")
	if len(lines) != len(blobs) {
		return nil, false, errors.New("read symbolic links: git's answer is not understood")
	}
	var short []string
	total := 0
	all = true
	for i, line := range lines {
		n, err := strconv.Atoi(line)
		if err != nil || n > maxTarget {
			continue
		}
		if total += n; total > maxLinkBytes {
			all = false
			break
		}
		short = append(short, blobs[i])
	}
	targets = make(map[string]string, len(short))
	if len(short) == 0 {
		return targets, all, nil
	}
	pr, pw := io.Pipe()
	read := make(chan error, 1)
	go func() {
		br := bufio.NewReader(pr)
		var err error
		for _, blob := range short {
			var body []byte
			if body, _, err = readObject(br, "blob", maxTarget); err != nil {
				break
			}
			targets[blob] = string(body)
		}
		_ = pr.CloseWithError(errors.Join(errors.New("links are no longer read"), err))
		read <- err
	}()
	_, err = s.git.run(ctx, call{args: []string{"cat-file", "--batch", "--buffer"}, stdin: ask(short), stdout: pw, timeout: patiently})
	_ = pw.CloseWithError(errGitEnded)
	if found := <-read; found != nil {
		return nil, false, fmt.Errorf("read symbolic links: %w", found)
	}
	return targets, all, err
}
