package gitwork

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/cove-dev/cove/internal/safepath"
)

// Risk is a changed path that can make programs run on the person's machine, or
// change what a check lets through.
type Risk struct {
	Path   string `json:"path"`
	Why    string `json:"why"`
	Commit string `json:"-"` // of a submodule: where it leads now
}

// What a name in a path stands for.
const (
	whyHooks  = "git hooks"
	whyCI     = "runs in CI"
	whyEditor = "settings of an editor, which can run programs"
	whyAgent  = "settings or instructions of a coding agent"
	whyShell  = "run by a shell or a tool that enters the folder"
	whyTool   = "settings of a build or package tool, which can run programs"
	whyGit    = "settings of git"
	whyCove   = "settings of cove, and what prepares its sprites"
)

// riskyFolders are names of folders, in small letters, wherever they are.
var riskyFolders = map[string]string{
	".husky": whyHooks, ".githooks": whyHooks, ".git-hooks": whyHooks, "git-hooks": whyHooks, "githooks": whyHooks, ".lefthook": whyHooks,
	".github": whyCI, ".gitlab": whyCI, ".circleci": whyCI, ".buildkite": whyCI, ".forgejo": whyCI, ".gitea": whyCI,
	".woodpecker": whyCI, ".teamcity": whyCI, ".semaphore": whyCI, ".tekton": whyCI, ".drone": whyCI,
	".vscode": whyEditor, ".idea": whyEditor, ".devcontainer": whyEditor, ".zed": whyEditor, ".fleet": whyEditor, ".vs": whyEditor, ".nvim": whyEditor,
	".claude": whyAgent, ".cursor": whyAgent, ".codex": whyAgent, ".gemini": whyAgent, ".opencode": whyAgent, ".windsurf": whyAgent,
	".continue": whyAgent, ".roo": whyAgent, ".clinerules": whyAgent, ".agents": whyAgent, ".pi": whyAgent, ".amp": whyAgent, ".kiro": whyAgent,
	".cargo": whyTool, ".yarn": whyTool, ".mise": whyShell, ".direnv": whyShell,
	".cove": whyCove,
}

// riskyFiles are names of files, in small letters, wherever they are.
var riskyFiles = map[string]string{
	".pre-commit-config.yaml": whyHooks, "lefthook.yml": whyHooks, ".lefthook.yml": whyHooks, ".huskyrc": whyHooks,
	".gitlab-ci.yml": whyCI, ".travis.yml": whyCI, "jenkinsfile": whyCI, "azure-pipelines.yml": whyCI, ".drone.yml": whyCI,
	"bitbucket-pipelines.yml": whyCI, ".woodpecker.yml": whyCI, "appveyor.yml": whyCI, ".appveyor.yml": whyCI, "cloudbuild.yaml": whyCI,
	".cirrus.yml": whyCI, "buildspec.yml": whyCI, "codeowners": whyCI,
	".devcontainer.json": whyEditor, ".exrc": whyEditor, ".vimrc": whyEditor, ".nvimrc": whyEditor, ".nvim.lua": whyEditor,
	".dir-locals.el": whyEditor, ".lvimrc": whyEditor,
	".mcp.json": whyAgent, "mcp.json": whyAgent, "claude.md": whyAgent, "claude.local.md": whyAgent, "agents.md": whyAgent, "gemini.md": whyAgent,
	".cursorrules": whyAgent, ".windsurfrules": whyAgent, ".aider.conf.yml": whyAgent, "opencode.json": whyAgent, "opencode.jsonc": whyAgent, ".sprite": whyCove,
	".envrc": whyShell, ".env": whyShell, ".bashrc": whyShell, ".bash_profile": whyShell, ".zshrc": whyShell, ".zshenv": whyShell, ".profile": whyShell,
	".bash_login": whyShell, ".bash_logout": whyShell, ".bash_aliases": whyShell, ".zprofile": whyShell, ".zlogin": whyShell, ".zlogout": whyShell,
	".kshrc": whyShell, ".cshrc": whyShell, ".tcshrc": whyShell, ".login": whyShell, "config.fish": whyShell,
	".autoenv": whyShell, ".mise.toml": whyShell, "mise.toml": whyShell, ".tool-versions": whyShell,
	".npmrc": whyTool, ".yarnrc": whyTool, ".yarnrc.yml": whyTool, ".pnpmfile.cjs": whyTool, ".bunfig.toml": whyTool, "bunfig.toml": whyTool,
	".pypirc": whyTool, "pip.conf": whyTool, ".gdbinit": whyTool, ".lldbinit": whyTool, ".bazelrc": whyTool,
}

// RiskyPath says why a path is one to look at; empty if it is not.
func RiskyPath(p string) string {
	parts := strings.Split(strings.ToLower(p), "/")
	for _, part := range parts[:len(parts)-1] {
		if why := riskyFolders[part]; why != "" {
			return why
		}
	}
	if len(parts) >= 2 && parts[len(parts)-2] == "hooks" && gitHookNames[parts[len(parts)-1]] {
		return whyHooks
	}
	name := parts[len(parts)-1]
	if why := riskyFiles[name]; why != "" {
		return why
	}
	switch {
	case riskyFolders[name] != "": // a file or link in the place of the folder
		return riskyFolders[name]
	case strings.HasPrefix(name, ".git") || name == ".lfsconfig":
		return whyGit
	case strings.HasPrefix(name, ".aider"):
		return whyAgent
	case strings.HasSuffix(name, ".code-workspace"):
		return whyEditor
	}
	return ""
}

// gitHookNames are files that git runs if they are in a folder that it is told of.
var gitHookNames = func() map[string]bool {
	names := map[string]bool{}
	for name := range strings.FieldsSeq(`applypatch-msg pre-applypatch post-applypatch pre-commit pre-merge-commit prepare-commit-msg
		commit-msg post-commit pre-rebase post-checkout post-merge pre-push pre-receive update post-update post-rewrite
		reference-transaction push-to-checkout fsmonitor-watchman post-index-change`) {
		names[name] = true
	}
	return names
}()

// risks lists the risky ones of the files that changed up to a commit. Files that were
// deleted count: a check may be gone.
func (s *scratch) risks(ctx context.Context, tip string, files []File) ([]Risk, error) {
	risky := []Risk{}
	if len(files) == 0 {
		return risky, nil
	}
	led, err := s.led(ctx, tip)
	if err != nil {
		return nil, err
	}
	var links []File
	for _, f := range files {
		if f.mode == "160000" {
			risky = append(risky, Risk{f.Path, "a submodule, whose content did not come", f.blob})
			continue
		}
		if f.mode == "120000" {
			links = append(links, f)
		}
		why := RiskyPath(f.Path)
		if path.Base(f.Path) == ".gitignore" && f.mode != "120000" {
			if why, err = s.riskyIgnore(ctx, f); err != nil {
				return nil, err
			}
		}
		if why == "" && s.isHook(f.Path) {
			why = whyHooks
		}
		if why = cmp.Or(why, led.why(f.Path)); why != "" {
			risky = append(risky, Risk{Path: f.Path, Why: why})
		}
	}
	outside, err := s.linksOutside(ctx, links)
	if err != nil {
		return nil, err
	}
	return append(risky, outside...), nil
}

// isHook reports whether git runs the file by the person's core.hooksPath.
func (s *scratch) isHook(name string) bool {
	if s.hooks == "." {
		return path.Dir(name) == "." && gitHookNames[name]
	}
	return s.hooks != "" && strings.HasPrefix(name, s.hooks+"/")
}

// hooksInTree is the folder of the work tree that core.hooksPath leads to; empty: none.
func (r *Repo) hooksInTree() string {
	dir := r.config.values["core.hookspath"]
	if dir == "" || r.Bare {
		return ""
	}
	if filepath.IsAbs(dir) {
		rel, err := filepath.Rel(r.Dir, dir)
		if err != nil {
			return ""
		}
		dir = rel
	}
	if dir = filepath.ToSlash(filepath.Clean(dir)); dir == ".." || strings.HasPrefix(dir, "../") || strings.HasPrefix(dir, "~") {
		return ""
	}
	return dir
}

// riskyIgnore says why a change of a .gitignore is one to look at. Where more is ignored
// than before, it is not; where less is, the next push may carry what was to stay here.
func (s *scratch) riskyIgnore(ctx context.Context, f File) (string, error) {
	const most = 64 << 10
	const why = "git, and the next push, may see files that were ignored"
	var was, is []string
	objects := s.objects(ctx)
	defer objects.close()
	for _, side := range []struct {
		mode, blob string
		lines      *[]string
	}{{f.oldMode, f.oldBlob, &was}, {f.mode, f.blob, &is}} {
		if !strings.HasPrefix(side.mode, "100") {
			continue
		}
		text, _, err := objects.read(side.blob, "blob", most)
		if _, ok := errors.AsType[*RejectedError](err); ok {
			return why, nil // it is too long to tell
		}
		if err != nil {
			return "", fmt.Errorf("read %s: %w", Printable(f.Path), err)
		}
		*side.lines = strings.Split(strings.TrimSuffix(string(text), "\n"), "\n")
	}
	for _, line := range is {
		switch {
		case len(was) > 0 && was[0] == line:
			was = was[1:]
		case strings.HasPrefix(line, "!"):
			return why, nil
		}
	}
	if len(was) > 0 && strings.Join(was, "") != "" {
		return why, nil
	}
	return "", nil
}

// A led is where symbolic links with risky names lead, inside of the tree: what is there
// is read by those names, too.
type led map[string]Risk

const maxLed = 1000

func (s *scratch) led(ctx context.Context, tip string) (led, error) {
	type link struct{ path, blob string }
	var links []link
	w := &recordWriter{each: func(entry string) {
		if rest, ok := strings.CutPrefix(entry, "120000 blob "); ok && len(links) < maxLed {
			if blob, name, ok := strings.Cut(rest, "\t"); ok && RiskyPath(name) != "" {
				links = append(links, link{name, blob})
			}
		}
	}}
	if _, err := s.git.run(ctx, call{args: []string{"ls-tree", "-r", "-z", "--full-tree", tip}, stdout: w, timeout: patiently}); err != nil {
		return nil, fmt.Errorf("look for symbolic links: %w", err)
	}
	if len(links) == 0 {
		return nil, nil
	}
	to := led{}
	objects := s.objects(ctx)
	defer objects.close()
	for _, l := range links {
		target, _, err := objects.read(l.blob, "blob", maxTarget)
		if err != nil {
			return nil, fmt.Errorf("read symbolic links: %w", err)
		}
		if at := path.Join(path.Dir(l.path), string(target)); at != "." && !path.IsAbs(string(target)) {
			to[at] = Risk{Path: l.path, Why: RiskyPath(l.path)}
		}
	}
	return to, nil
}

// why says why a path is one to look at; empty if no link leads there.
func (l led) why(name string) string {
	for at := name; at != "." && at != "/"; at = path.Dir(at) {
		if risk, ok := l[at]; ok {
			return fmt.Sprintf("%s, by the link %s", risk.Why, Printable(risk.Path))
		}
	}
	return ""
}

// maxTarget bounds what a symbolic link says.
const maxTarget = 4096

// linksOutside reads where symbolic links point, and keeps those that lead out of
// the tree or into git's directory.
func (s *scratch) linksOutside(ctx context.Context, links []File) ([]Risk, error) {
	if len(links) == 0 {
		return nil, nil
	}
	var ask strings.Builder
	for _, f := range links {
		ask.WriteString(f.blob + "\n")
	}
	sizes, err := s.git.run(ctx, call{args: []string{"cat-file", "--batch-check=%(objectsize)"}, stdin: strings.NewReader(ask.String())})
	if err != nil {
		return nil, err
	}
	ask.Reset()
	var risky []Risk
	var short []File
	for i, size := range strings.Fields(string(sizes)) {
		if n, err := strconv.Atoi(size); err != nil || n > maxTarget {
			risky = append(risky, Risk{Path: links[i].Path, Why: "a symbolic link that is too long to be one"})
			continue
		}
		short = append(short, links[i])
		ask.WriteString(links[i].blob + "\n")
	}
	out, err := s.git.run(ctx, call{args: []string{"cat-file", "--batch=%(objectsize)"}, stdin: strings.NewReader(ask.String())})
	if err != nil {
		return nil, err
	}
	br := bufio.NewReader(strings.NewReader(string(out)))
	for _, f := range short {
		var size int
		if _, err := fmt.Fscanf(br, "%d\n", &size); err != nil {
			return nil, fmt.Errorf("read symbolic links: %w", err)
		}
		target := make([]byte, size+1)
		if _, err := io.ReadFull(br, target); err != nil {
			return nil, fmt.Errorf("read symbolic links: %w", err)
		}
		if why := riskyLink(f.Path, string(target[:size])); why != "" {
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
	return "a symbolic link to outside the repository, " + Printable(shorten(target, 100))
}
