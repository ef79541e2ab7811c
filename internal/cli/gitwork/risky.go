package gitwork

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"strings"

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

// risks lists those of the files changed up to a commit that are to be held for the
// person's review, and those that are only listed. Deleted files count: a check may be gone.
func (s *scratch) risks(ctx context.Context, base, tip string, files []File) (risky, listed []Risk, err error) {
	risky, listed = []Risk{}, []Risk{}
	if len(files) == 0 {
		return risky, listed, nil
	}
	j, err := s.judge(ctx, base, tip)
	if err != nil {
		return nil, nil, err
	}
	repositories, err := j.repositories(files)
	if err != nil {
		return nil, nil, err
	}
	objects := &contents{ctx: ctx, s: s, ran: j.ran}
	defer objects.close()
	var links []File
	for _, f := range files {
		if f.mode == gitlinkMode {
			risky = append(risky, Risk{f.Path, "a submodule, whose content did not come", f.blob})
			if why := repositories.why(f.Path); why != "" {
				risky = append(risky, Risk{Path: f.Path, Why: why})
			}
			continue
		}
		if f.mode == linkMode {
			links = append(links, f)
		}
		why, isListed, err := objects.judge(f)
		if err != nil {
			return nil, nil, err
		}
		if why = cmp.Or(repositories.why(f.Path), why, j.why(f)); why != "" {
			risky = append(risky, Risk{Path: f.Path, Why: why})
		} else if isListed {
			listed = append(listed, Risk{Path: f.Path, Why: cmp.Or(riskypath.Listed(f.Path), riskypath.Build)})
		}
	}
	outside, err := s.linksOutside(ctx, links)
	if err != nil {
		return nil, nil, err
	}
	return append(risky, outside...), listed, nil
}

// The modes of entries that are no files.
const (
	linkMode    = "120000"
	gitlinkMode = "160000"
)

// contents judges files by their contents, which one git process reads.
type contents struct {
	ctx context.Context
	s   *scratch
	ran *riskypath.Names // files that the person's hooks have a program run; nil: none
	r   *objectReader    // nil: not started
}

func (c *contents) close() {
	if c.r != nil {
		c.r.close()
		c.r = nil
	}
}

// judge judges a file by what changed in it, and by its name if it is only listed.
func (c *contents) judge(f File) (why string, listed bool, err error) {
	switch safepath.Fold(path.Base(f.Path)) {
	case ".gitmodules":
		why, err = c.riskyModules(f)
		return why, false, err
	case ".gitignore", ".coveignore":
		if f.mode != linkMode {
			why, err = c.riskyIgnore(f)
			return why, false, err
		}
	case "package.json":
		return c.riskyPackage(f)
	}
	return c.byHooks(f), riskypath.Listed(f.Path) != "", nil
}

// byHooks says why a file is run by the person's hooks, though they do not name it.
func (c *contents) byHooks(f File) string { return c.ran.Why(safepath.FoldPath(f.Path)) }

// riskyIgnore says why a change of a .gitignore is one to look at. If more is ignored
// than before, it is not; if less is, the next push may carry what was to stay here.
func (c *contents) riskyIgnore(f File) (string, error) {
	was, is, ok, err := c.sides(f)
	if err != nil || !ok || gitignore.Weakens(was, is) { // not ok: too long to tell
		return gitignore.Weaker, err
	}
	return "", nil
}

// riskyModules says if git can't read a .gitmodules; a change of one is held in any case.
func (c *contents) riskyModules(f File) (string, error) {
	if f.Path != ".gitmodules" || !strings.HasPrefix(f.mode, "100") {
		return "", nil
	}
	_, err := c.s.git.run(c.ctx, call{args: []string{"config", "--blob", f.blob, "--list"}})
	if exitCode(err) > 0 {
		return "git can't read it: much of git does not work in a work tree that has it, and its submodules are left alone", nil
	}
	return "", err
}

// sides are the texts of a file before and after the change, without their last line end;
// empty where it was or is no file. They are not read if one is too long: ok is false.
func (c *contents) sides(f File) (was, is string, ok bool, err error) {
	const most = 1 << 20
	for _, side := range []struct {
		mode, blob string
		text       *string
	}{{f.oldMode, f.oldBlob, &was}, {f.mode, f.blob, &is}} {
		if !strings.HasPrefix(side.mode, "100") {
			continue
		}
		if c.r == nil {
			c.r = c.s.objects(c.ctx)
		}
		text, _, err := c.r.read(side.blob, "blob", most)
		if err != nil {
			c.close() // the rest of the answer is still to come
		}
		if _, rejected := errors.AsType[*RejectedError](err); rejected {
			return "", "", false, nil
		}
		if err != nil {
			return "", "", false, fmt.Errorf("read %s: %w", printable.Name(f.Path), err)
		}
		*side.text = strings.TrimSuffix(string(text), "\n")
	}
	return was, is, true, nil
}

// Keys of a package.json whose programs run without being named: by an installation or
// a packing (npm's page on scripts), those that hooks of git read there, those that linters
// and formatters of an editor load programs by, and those of other tools.
var (
	lifecycleScripts = fieldSet(`preinstall install postinstall preprepare prepare postprepare prepublish prepublishOnly prepack pack postpack
		publish postpublish dependencies preversion version postversion preuninstall uninstall postuninstall pretest test posttest prebuild build postbuild`)
	packageHooks = fieldSet("husky lint-staged simple-git-hooks pre-commit pre-push gitHooks ghooks config.ghooks commitlint captain-hook")
	packageLint  = fieldSet("prettier eslintConfig stylelint xo graphql standard semistandard ts-standard tslint remarkConfig textlint htmlhint cspell importSort")
	packageTools = fieldSet(`packageManager devEngines engines volta pnpm yarn bin workspaces overrides resolutions trustedDependencies dependencies devDependencies
		optionalDependencies peerDependencies bundleDependencies babel jest mocha ava nyc c8 tap postcss browserslist nodemonConfig size-limit`)
)

func fieldSet(names string) map[string]bool {
	set := map[string]bool{}
	for name := range strings.FieldsSeq(names) {
		set[name] = true
	}
	return set
}

// riskyPackage judges a package.json by what changed in it. Keys that hooks of git and
// linters read are held; those that an installation or a test reads are listed, as is a file
// that can't be read. If the person's hooks call npm or the like, scripts are held, too.
func (c *contents) riskyPackage(f File) (why string, listed bool, err error) {
	oldText, newText, ok, err := c.sides(f)
	if err != nil || !ok {
		return "", true, err
	}
	type document map[string]json.RawMessage
	read := func(text string) (doc, scripts document, ok bool) {
		if strings.TrimSpace(text) == "" {
			return nil, nil, true
		}
		if json.Unmarshal([]byte(text), &doc) != nil {
			return nil, nil, false
		}
		if raw := doc["scripts"]; raw != nil && json.Unmarshal(raw, &scripts) != nil {
			return nil, nil, false
		}
		return doc, scripts, true
	}
	was, wasScripts, okOld := read(oldText)
	is, isScripts, okNew := read(newText)
	changed := func(a, b document, names map[string]bool) bool {
		for name := range names {
			if !bytes.Equal(compact(a[name]), compact(b[name])) {
				return true
			}
		}
		return false
	}
	switch byHooks := c.byHooks(f); {
	case !okNew || f.mode == linkMode:
		return byHooks, true, nil
	case changed(was, is, packageHooks):
		return riskypath.Hooks, false, nil
	case changed(was, is, packageLint):
		return riskypath.Lint, false, nil
	case byHooks != "" && changed(was, is, map[string]bool{"scripts": true}):
		return byHooks, false, nil
	case !okOld:
		return "", true, nil
	}
	return "", changed(wasScripts, isScripts, lifecycleScripts) || changed(was, is, packageTools), nil
}

// compact is a value of JSON without white space.
func compact(raw json.RawMessage) []byte {
	var b bytes.Buffer
	if json.Compact(&b, raw) != nil {
		return raw
	}
	return b.Bytes()
}

// maxTarget bounds what a symbolic link says.
const maxTarget = 4096

// linksOutside keeps the symbolic links that lead out of the tree or into git's
// directory.
func (s *scratch) linksOutside(ctx context.Context, links []File) ([]Risk, error) {
	var blobs []string
	for _, f := range links {
		blobs = append(blobs, f.blob)
	}
	targets, _, err := s.targets(ctx, blobs) // what is not read is not short
	if err != nil {
		return nil, err
	}
	var risky []Risk
	for _, f := range links {
		target, short := targets[f.blob]
		if !short {
			risky = append(risky, Risk{Path: f.Path, Why: "a symbolic link that is too long to be one"})
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
