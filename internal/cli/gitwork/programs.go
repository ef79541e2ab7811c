package gitwork

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cove-dev/cove/internal/lib/changerisk"
	"github.com/cove-dev/cove/internal/lib/printable"
	"github.com/cove-dev/cove/internal/lib/riskypath"
	"github.com/cove-dev/cove/internal/lib/safepath"
)

// programs are the files of the tree that the person's own git, shell and environment run.
type programs struct {
	list []changerisk.Program
	runs []riskypath.Family // files that one of runners runs, which a hook or a setting calls
	ran  *riskypath.Names   // the same
}

// programs finds them: by the hooks and the configuration of git, by the environment, and
// by links in the home folder. They are looked for once.
func (r *Repo) programs(ctx context.Context) (*programs, error) {
	r.looking.Lock()
	defer r.looking.Unlock()
	if r.found != nil {
		return r.found, nil
	}
	if err := r.findTops(ctx); err != nil {
		return nil, err
	}
	c := &collector{repo: r, home: homeDir(), seen: map[changerisk.Program]bool{}, calls: map[string]bool{}}
	c.hooks()
	if err := c.config(ctx); err != nil {
		return nil, err
	}
	c.environment()
	c.homeLinks()
	if r.around != nil { // programs of the outer repository may lie in this submodule
		outer, err := r.around.programs(ctx)
		if err != nil {
			return nil, err
		}
		for _, p := range outer.list {
			if rel, ok := r.inTree(filepath.Join(r.around.Dir, filepath.FromSlash(p.Path))); ok {
				c.put(changerisk.Program{Path: rel, Why: p.Why, Exact: p.Exact})
			}
		}
		c.runs = append(c.runs, outer.runs...)
	}
	r.found = &programs{c.list, c.runs, riskypath.Of(c.runs)}
	return r.found, nil
}

func homeDir() string {
	home, err := os.UserHomeDir()
	if err != nil {
		return ""
	}
	return home
}

// inTree is a path of this machine as one from the top of a work tree of the repository,
// once the programs were looked for.
func (r *Repo) inTree(name string) (rel string, ok bool) {
	for _, top := range r.tops {
		rel, err := filepath.Rel(top, name)
		if rel = filepath.ToSlash(rel); err == nil && rel != "." && rel != ".." && !strings.HasPrefix(rel, "../") && !safepath.HasDotGit(rel) {
			return rel, true
		}
	}
	return "", false
}

// findTops notes the tops of all work trees of the repository: a branch may be checked
// out in any of them.
func (r *Repo) findTops(ctx context.Context) error {
	r.tops = []string{r.Dir}
	out, err := r.git.run(ctx, call{args: []string{"worktree", "list", "--porcelain"}})
	if err != nil {
		return fmt.Errorf("list work trees: %w", err)
	}
	for line := range strings.SplitSeq(string(out), "\n") {
		if top, ok := strings.CutPrefix(line, "worktree "); ok {
			r.tops = append(r.tops, top)
		}
	}
	for _, top := range slices.Clone(r.tops) {
		if real, err := filepath.EvalSymlinks(top); err == nil {
			r.tops = append(r.tops, real)
		}
	}
	slices.Sort(r.tops)
	r.tops = slices.Compact(r.tops)
	slices.SortStableFunc(r.tops, func(a, b string) int { return cmp.Compare(len(b), len(a)) }) // the innermost first
	return nil
}

// maxHops is how many links may lead to one file, as the kernel has it.
const maxHops = 40

// A collector finds the programs of a repository's person.
type collector struct {
	repo *Repo
	home string
	list []changerisk.Program
	seen map[changerisk.Program]bool

	runs  []riskypath.Family // files that runners run
	calls map[string]bool
}

func (c *collector) put(p changerisk.Program) {
	if !c.seen[p] && p.Path != "" && p.Path != "." {
		c.seen[p] = true
		c.list = append(c.list, p)
	}
}

// file follows a path of this machine, and notes the end and each place on the way that is in
// a work tree. It also notes places that do not exist: a job may create them.
func (c *collector) file(name, why string, exact bool) {
	note := func(at string) {
		if rel, ok := c.repo.inTree(at); ok {
			c.put(changerisk.Program{Path: rel, Why: why, Exact: exact})
		}
	}
	at, todo := "/", strings.Split(filepath.ToSlash(name), "/")
	note(filepath.Clean(name))
	for hops := 0; len(todo) > 0; {
		part := todo[0]
		todo = todo[1:]
		next := filepath.Join(at, part) // at has no link in it: ".." is what it says
		target, err := os.Readlink(next)
		if part == "" || part == "." || err != nil {
			at = next
			continue
		}
		note(next)
		if hops++; hops > maxHops {
			return
		}
		if filepath.IsAbs(target) {
			at = "/"
		}
		todo = append(strings.Split(target, "/"), todo...)
	}
	note(at)
}

// words takes parts of a value, a script or a variable for paths: each word, each quoted
// part, and each whole line. A part without a slash counts only if loose, and only for a
// file: a folder's name is too common a word.
func (c *collector) words(text, why string, loose bool) {
	words := strings.FieldsFunc(text, betweenWords)
	for _, quote := range []string{"'", "\"", "\n"} {
		words = append(words, strings.Split(text, quote)...)
	}
	for _, word := range words {
		bare := !strings.Contains(word, "/")
		if len(word) == 0 || len(word) > changerisk.MaxTarget || strings.ContainsAny(word, "\x00\n") || bare && !loose {
			continue
		}
		if rest, ok := strings.CutPrefix(word, "~/"); ok && c.home != "" {
			c.file(filepath.Join(c.home, rest), why, false)
			continue
		}
		if filepath.IsAbs(word) {
			c.file(word, why, false)
		}
		// A variable with the path of the top may have been before the slash.
		c.file(filepath.Join(c.repo.Dir, word), why, bare)
	}
}

// betweenWords reports whether a character divides the words of a script.
func betweenWords(r rune) bool { return strings.ContainsRune(" \t\r\n'\"`;|&()<>=$,:!{}[]*", r) }

// quiet are the sections of git's configuration that name no files of a work tree.
var quiet = fieldSet("user author committer branch color column advice push status safe i18n extensions")

// commands are the sections whose values are commands, or have some.
var commands = fieldSet("core filter diff merge difftool mergetool credential gpg interactive pager sequence sendemail trailer")

// config looks at the files that git's configuration is in, and at what its values name.
func (c *collector) config(ctx context.Context) error {
	g := runner{exe: c.repo.git.exe, dir: c.repo.Dir}
	out, err := g.run(ctx, call{args: []string{"config", "-z", "--show-origin", "--list"}, plain: true})
	if err != nil {
		return fmt.Errorf("read git's configuration: %w", err)
	}
	parts := strings.Split(string(out), "\x00")
	for i := 0; i+1 < len(parts); i += 2 {
		origin, isFile := strings.CutPrefix(parts[i], "file:")
		key, value, _ := strings.Cut(parts[i+1], "\n")
		if isFile && !filepath.IsAbs(origin) {
			origin = filepath.Join(c.repo.Dir, origin)
		}
		if isFile {
			c.file(origin, "your git reads it as its configuration", false)
		}
		section, _, _ := strings.Cut(key, ".")
		if quiet[section] || key == "core.worktree" || key == "init.defaultbranch" || strings.HasSuffix(key, ".fetch") {
			continue
		}
		why := "your git's setting " + printable.Name(key) + " names it"
		c.words(value, why, section != "alias" || strings.HasPrefix(value, "!"))
		if commands[section] || section == "alias" && strings.HasPrefix(value, "!") {
			c.runners(value, why)
		}
		if isFile && strings.HasPrefix(section, "include") && !filepath.IsAbs(value) && !strings.HasPrefix(value, "~/") {
			c.file(filepath.Join(filepath.Dir(origin), value), why, false)
		}
	}
	return nil
}

// hooks looks at the folders from which git runs hooks, and at the programs that the
// hooks there name.
func (c *collector) hooks() {
	dirs := []string{filepath.Join(c.repo.CommonDir, "hooks")}
	if dir := c.repo.config.values["core.hookspath"]; dir != "" {
		if rest, ok := strings.CutPrefix(dir, "~/"); ok && c.home != "" {
			dir = filepath.Join(c.home, rest)
		} else if !filepath.IsAbs(dir) {
			dir = filepath.Join(c.repo.Dir, dir)
		}
		dirs = append(dirs, dir)
	}
	for _, dir := range dirs {
		c.file(dir, riskypath.Hooks, false)
		if filepath.Clean(dir) == c.repo.Dir {
			for name := range riskypath.GitHooks {
				c.file(filepath.Join(dir, name), riskypath.Hooks, true)
			}
		}
		entries, err := os.ReadDir(dir)
		if err != nil {
			continue // then git runs none from there either
		}
		for _, e := range entries {
			name := filepath.Join(dir, e.Name())
			if strings.HasSuffix(name, ".sample") {
				continue
			}
			if filepath.Clean(dir) == c.repo.Dir && !riskypath.GitHooks[e.Name()] {
				continue
			}
			why := riskypath.Hooks + ", by " + printable.Name(c.short(name))
			c.file(name, why, false)
			c.words(readScript(name), why, false)
			c.script(name, why, scriptHops)
		}
		if filepath.Base(dir) == "_" { // husky's folder: its hooks run those in the folder above
			for name := range riskypath.GitHooks {
				name = filepath.Join(filepath.Dir(dir), name)
				c.script(name, riskypath.Hooks+", by "+printable.Name(c.short(name)), scriptHops)
			}
		}
	}
}

// readScript is the text of a small file; empty if it is none.
func readScript(name string) string {
	const most = 64 << 10
	info, err := os.Stat(name)
	if err != nil || !info.Mode().IsRegular() || info.Size() > most {
		return ""
	}
	text, err := os.ReadFile(name)
	if err != nil || bytes.ContainsRune(text, 0) {
		return ""
	}
	return string(text)
}

// short is a path as people write it.
func (c *collector) short(name string) string {
	if rel, err := filepath.Rel(c.repo.Dir, name); err == nil && !strings.HasPrefix(rel, "..") {
		return rel
	}
	if rel, err := filepath.Rel(c.home, name); err == nil && c.home != "" && !strings.HasPrefix(rel, "..") {
		return "~/" + rel
	}
	return name
}

// environment looks at the variables that name programs.
func (c *collector) environment() {
	for _, dir := range filepath.SplitList(os.Getenv("PATH")) {
		if filepath.IsAbs(dir) {
			c.file(dir, "it is in a folder of your PATH", false)
		} else if dir != "" {
			c.file(filepath.Join(c.repo.Dir, dir), "it is in a folder of your PATH", false)
		}
	}
	for name := range strings.FieldsSeq(`EDITOR VISUAL PAGER LESSOPEN MANPAGER BROWSER GIT_EDITOR GIT_SEQUENCE_EDITOR GIT_PAGER GIT_SSH GIT_SSH_COMMAND
		GIT_EXTERNAL_DIFF GIT_ASKPASS SSH_ASKPASS GIT_PROXY_COMMAND GIT_CONFIG_GLOBAL GIT_CONFIG_SYSTEM GIT_TEMPLATE_DIR GIT_EXEC_PATH
		BASH_ENV ENV PROMPT_COMMAND PYTHONSTARTUP PERL5OPT RUBYOPT NODE_OPTIONS LD_PRELOAD`) {
		c.words(os.Getenv(name), "your variable "+name+" names it", name != "PROMPT_COMMAND")
	}
}

// homeLinks looks at what dot-files and programs of the home folder lead into a work
// tree, as those of a repository of dot-files do.
func (c *collector) homeLinks() {
	if c.home == "" {
		return
	}
	for _, dir := range []string{".", ".config", "bin", ".local/bin"} {
		entries, err := os.ReadDir(filepath.Join(c.home, dir))
		if err != nil {
			continue // a folder that is not there, or that nothing can read
		}
		for _, e := range entries {
			if e.Type()&fs.ModeSymlink == 0 || dir == "." && e.Name()[0] != '.' && e.Name() != "bin" {
				continue
			}
			name := filepath.Join(c.home, dir, e.Name())
			c.file(name, "your "+printable.Name(c.short(name))+" leads to it", false)
		}
	}
}

func fieldSet(names string) map[string]bool {
	set := map[string]bool{}
	for name := range strings.FieldsSeq(names) {
		set[name] = true
	}
	return set
}
