package gitwork_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cove-dev/cove/internal/cli/gitwork"
	"github.com/cove-dev/cove/internal/lib/riskypath"
)

// summary describes what is between two commits.
func (r repo) summary(base, head string) (risky, listed map[string]string) {
	r.t.Helper()
	sum, err := r.open().Summary(r.t.Context(), base, head)
	if err != nil {
		r.t.Fatal(err)
	}
	of := func(list []gitwork.Risk) map[string]string {
		all := map[string]string{}
		for _, risk := range list {
			if all[risk.Path] = risk.Why; risk.Why == "" {
				r.t.Errorf("%s without a reason", risk.Path)
			}
		}
		return all
	}
	return of(sum.Risky), of(sum.Listed)
}

// holds fails unless just these paths are held.
func (r repo) holds(base, head string, paths ...string) {
	r.t.Helper()
	risky, _ := r.summary(base, head)
	var got []string
	for name := range risky {
		got = append(got, name)
	}
	slices.Sort(got)
	slices.Sort(paths)
	if !slices.Equal(got, paths) {
		r.t.Errorf("held %q, want %q", got, paths)
	}
}

// A folder that git takes for a repository, though it has no .git, is held. It is also held
// if its pieces come one by one, or are in the work tree already. The attack is real: plain
// git runs the program that the folder's config names.
func TestEmbeddedRepository(t *testing.T) {
	home(t, "")
	r := newRepo(t)
	canary := filepath.Join(t.TempDir(), "canary")
	for name, text := range map[string]string{
		"HEAD": "ref: refs/heads/main\n", "objects/.keep": "", "refs/.keep": "",
		"config": "[core]\n\trepositoryformatversion = 0\n\tbare = false\n\tworktree = \".\"\n\tfsmonitor = \"touch " + canary + "; false\"\n",
	} {
		r.write("docs/"+name, text)
	}
	base := r.git("rev-parse", "HEAD")
	whole := r.commit("all at once")
	r.holds(base, whole, "docs/HEAD", "docs/config", "docs/objects/.keep", "docs/refs/.keep")
	status := exec.Command("git", "status")
	status.Dir, status.Env = filepath.Join(r.dir, "docs"), env(r.home)
	_ = status.Run()
	if _, err := os.Stat(canary); err != nil {
		t.Error("plain git ran nothing: the test proves nothing")
	}

	r.write("docs/page.md", "x\n")
	r.write("src/b.txt", "x\n")
	more := r.commit("in it, and elsewhere")
	r.holds(whole, more, "docs/page.md")
	r.write("src/c.txt", "x\n")
	r.holds(more, r.commit("only elsewhere"))

	for name, c := range map[string]struct {
		before []string // in an earlier job, where nothing is held yet
		now    []string
		links  map[string]string
		disk   []string
		held   []string
	}{
		"pieces":             {before: []string{"d/config", "d/HEAD", "d/objects/x"}, now: []string{"d/refs/x"}, held: []string{"d/refs/x"}},
		"a linked work tree": {before: []string{"d/HEAD"}, now: []string{"d/commondir"}, held: []string{"d/commondir"}},
		"other names for it": {now: []string{"d/head", "d/OBJECTS/x", "d/re\u200cfs/x"}, held: []string{"d/head", "d/OBJECTS/x", "d/re\u200cfs/x"}},
		"dots at the end":    {now: []string{"d/HEAD.", "d/objects /x", "d/refs..../x"}, held: []string{"d/HEAD.", "d/objects /x", "d/refs..../x"}},
		"folders by links":   {now: []string{"d/HEAD", "e/x"}, links: map[string]string{"d/objects": "../e", "d/refs": "../e"}, held: []string{"d/HEAD", "d/objects", "d/refs"}},
		"at the top":         {before: []string{"objects/x", "refs/x"}, now: []string{"HEAD"}, held: []string{"HEAD"}},
		"deep below":         {before: []string{"a/b/HEAD", "a/b/objects/x", "a/b/refs/x"}, now: []string{"a/b/hooks/c/d", "a/x"}, held: []string{"a/b/hooks/c/d"}},
		"some lie there":     {now: []string{"dist/config"}, disk: []string{"dist/HEAD", "dist/objects/x", "dist/refs/x"}, held: []string{"dist/config"}},
		"not all":            {now: []string{"d/HEAD", "d/objects/x", "refs/x", "e/HEAD", "e/refs/x", "f/commondir"}},
		"not quite":          {now: []string{"d/HEADS", "d/objects/x", "d/refs/x"}},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRepo(t)
			for _, name := range c.before {
				r.write(name, "x\n")
			}
			base := r.commit("before")
			for _, name := range c.now {
				r.write(name, "y\n")
			}
			for name, target := range c.links {
				r.link(name, target)
			}
			head := r.commit("now")
			for _, name := range c.disk {
				r.write(name, "z\n")
			}
			r.holds(base, head, c.held...)
		})
	}
}

// If the person's own git, shell or environment already runs a file of the tree, a change
// of that file is held. Its name and the links that lead to it do not matter.
func TestOwnPrograms(t *testing.T) {
	dir := home(t, "[include]\n\tpath = ~/dotfiles/gitconfig\n")
	r := newRepo(t)
	link := func(name, target string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(target, name); err != nil {
			t.Fatal(err)
		}
	}
	held := []string{
		"tools/second", "tools/check", "tools/gitconfig", "tools/fsmonitor.sh", "tools/alias/run.sh", "tools/git ssh", "ed.py", "tools/clean", "tools/top",
		"tools/vscode/tasks.json", "shared/tasks.json", "dot/zshrc", "dot/gitconfig", "tools/hooks/anything", "Tools/Cond", "bin/tool", "tools/worktree", "tools/template/hooks/x", "ignored/envrc",
	}
	plain := []string{"tools/other", "src/log", "log", "tools/ed.py", "status/x", "lib/ed.py"}
	for _, name := range append(slices.Clone(held), plain...) {
		r.write(name, "before\n")
	}
	// Links from git's hooks, in several hops, and a hook that runs a file of the tree.
	r.link("tools/zero", "first")
	r.link("tools/first", "../tools/second")
	link(filepath.Join(r.dir, ".git/hooks/pre-commit"), "../../tools/zero")
	write(t, filepath.Join(r.dir, ".git/hooks/pre-push"), "#!/bin/sh\nexec \"$(git rev-parse --show-toplevel)\"/tools/check --all\n")
	// Configuration, of the repository and of the person.
	r.write("tools/gitconfig", "[alias]\n\tx = !true\n")
	for key, value := range map[string]string{
		"include.path": "../tools/gitconfig", "includeIf.onbranch:other.path": "../tools/cond", "core.fsmonitor": "tools/fsmonitor.sh --x", "alias.run": "!sh tools/alias/run.sh",
		"core.sshCommand": "'" + r.dir + "/tools/git ssh' -v", "core.editor": "python3 ed.py", "init.templateDir": "tools/template", "init.defaultBranch": "log", "filter.f.clean": "./tools/clean %f", "alias.l": "log --graph", "alias.s": "status",
		"diff.d.command": "$(git rev-parse --show-toplevel)/tools/top",
	} {
		r.git("config", key, value)
	}
	link(filepath.Join(dir, "dotfiles"), filepath.Join(r.dir, "dot"))
	link(filepath.Join(dir, ".zshrc"), "dotfiles/zshrc")
	t.Setenv("PATH", os.Getenv("PATH")+":"+filepath.Join(r.dir, "bin"))
	// Links in the tree with risky names, which lead in several hops to other files.
	r.link(".vscode", "x")
	r.link("x", "tools/vscode")
	r.link("tools/vscode/launch.json", "../../shared/tasks.json")
	r.link("loop", "loop2")
	r.link("loop2", "loop")
	r.link(".idea", "loop")
	// One that is not committed.
	r.write(".gitignore", ".envrc\n")
	r.link(".envrc", "ignored/envrc")
	// Another work tree of the repository has these.
	other := filepath.Join(t.TempDir(), "other")
	base := r.commit("before")
	r.git("worktree", "add", "-q", "--detach", other)
	r.git("config", "merge.m.driver", other+"/tools/worktree %A")
	r.git("config", "core.hooksPath", "tools/hooks")

	for _, name := range append(slices.Clone(held), plain...) {
		r.write(name, "after\n")
	}
	if err := os.Remove(filepath.Join(r.dir, "x")); err != nil {
		t.Fatal(err)
	}
	r.link("x", "tools/vscode/.")
	r.git("-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null", "add", "-A")
	r.git("-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null", "commit", "-q", "-m", "after")
	head := r.git("rev-parse", "HEAD")
	r.holds(base, head, append(held[:len(held):len(held)], "x")...)
}

// Each family of names is held, or listed, in each of its forms. A name that only looks
// similar is neither.
func TestFamilies(t *testing.T) {
	for _, name := range strings.Fields(`
		lefthook-local.yml .pdbrc .qwen/settings.json crush.json AGENTS.override.md QWEN.md .augment/rules.md .agent/x .copilot/x .openhands/setup.sh .roomodes .goosehints .helix/config.toml
		.dir-locals-2.el .ycm_extra_conf.py .lazy.lua .vim/ftplugin/c.vim .vimrc.local .nova/Tasks/x.json .theia/launch.json app.sublime-project .Rprofile .pryrc .iex.exs .ghci .ocamlinit .octaverc
		.config/mise/config.toml .envrc.local .autoenv.zsh .pnpmfile.mjs .pnpmfile.cjs pnpm-workspace.yaml .mvn/extensions.xml tools/bazel sub/tools/bazel .bazeliskrc user.bazelrc .bundle/config
		rust-toolchain.toml rust-toolchain .overcommit.yml .huskyrc.js .lintstagedrc.mjs .simple-git-hooks.json hk.pkl prek.toml .hg/hgrc .sl/config .jj/repo .woodpecker/a.yml .woodpecker.yaml .cirrus.star
		azure-pipelines-release.yml .azure-pipelines/x.yml cloudbuild.prod.yaml .builds/x.yml .build.yml .zuul.yaml .zuul.d/x.yaml .taskcluster.yml mise.local.toml .mise.toml mise-tasks/x .drone.jsonnet .drone/x
		Jenkinsfile.release Jenkinsfile lefthook.toml .lefthook-local.yml .claude/x .CLAUDE/x .claude./x .vſcode/tasks.json .vs\u200ccode/x .cursor/mcp.json .cursorrules .aider.conf.yml .mcp.json sub/.mcp.json
		.gitattributes .gitmodules .gitconfig .lfsconfig .github .git-blame-ignore-revs .husky hooks/pre-commit a/HOOKS/post-merge .env .env.local .zshenv .bash_aliases .nvmrc flake.nix .ropeproject/config.py
		.eslintrc.cjs eslint.config.js .rubocop.yml .luarc.json .pylintrc pylintrc sitecustomize.py ansible.cfg .ackrc .sprite .cove/config.toml .coverc .ssh/rc .yarn/releases/x.cjs .pnp.cjs .npmrc renovate.json5
		CLAUDE.local.md copilot-instructions.md a.prompt.md .rules GEMINI.md .kilocode/x .windsurfrules .codexrc codeowners docs/CODEOWNERS .tool-versions .terraformrc .gdbinit .settings/x.prefs Agents.md opencode.jsonc
		.bsp/x.json .bloop/a.json .metals/x hie.yaml sub/hie.yaml .merlin omnisharp.json mypy.ini .mypy.ini tslint.json phpstan.neon phpstan.neon.dist phpstan.dist.neon vetur.config.js graphql.config.ts .graphqlrc.yml
		renv/activate.R packrat/init.R _vimrc_local.vim Session.vim sorbet/config .gitkeep/x .github/workflows/.gitkeep .vscode/.env.example .github/ISSUE_TEMPLATE/.vscode/tasks.json
		.github/ISSUE_TEMPLATES.yml .github/workflows/issue_template.yml .env.examples .editorconfig/.envrc
		buildServer.json sub/buildServer.json .sourcekit-lsp/config.json .lsp/config.edn .clj-kondo/hooks/x.clj .nrepl.edn lakefile.lean lakefile.toml lake-manifest.json lean-toolchain rust-project.json rust-analyzer.toml
		compile_commands.json kls-classpath kls-classpath.sh analysis_options.yaml erlang_ls.config config.nims sub/x.nims nim.cfg x.nim.cfg zls.build.json _CoqProject pyrightconfig.json .pyre_configuration.local svelte.config.js
		tailwind.config.ts apollo.config.cjs platformio.ini app.Rproj project.godot game.uproject cspell.json cspell.config.js cspell.config.cjs cspell.config.mjs cspell.config.ts cspell.config.yaml cspell.yaml .cspell.json
		.lintr .sqlfluff .cmake-format.py cmake-format.py psalm.xml psalm.xml.dist phpcs.xml.dist .phpcs.xml rector.php .pylintrc.toml pylintrc.toml .checkov.yaml dylint.toml .yardopts .simplecov .coveragerc .busted .proverc .stestr.conf
		.nycrc.js nyc.config.js .storybook/main.ts .bowerrc uv.toml poetry.toml .reviewboardrc .versionrc.js .releaserc.cjs cz.toml .shadowenv.d/500_x.lisp devshell.toml guix.scm .guix-channel pixi.toml .fvmrc aqua.yaml .elixir-version
		node_modules/eslint/index.js sub/node_modules/.bin/prettier .venv/bin/python venv/bin/python pyvenv.cfg vendor/bin/phpcs .run/app.run.xml a.iml x.suo x.csproj.user CMakeLists.txt.user launchSettings.json tasks.vs.json _exrc _vimrc
		.local.vimrc .tasks .classpath devcontainer.json devfile.yaml bacon.toml modd.conf Directory.Build.rsp .custom-gcl.yml oxlint.config.ts
		_pyrepl/__init__.py readline.py sub/rlcompleter.py traceback.py readline.cpython-310-x86_64-linux-gnu.so irb.rc _irbrc $irbrc .psysh.php sub/.psysh.php user_default.beam startup.m latexmkrc sub/.latexmkrc LatexMk
		uno.config.ts AmazonQ.md hardhat.config.ts mcp_config.json hooks/hooks.json reprlib.py sub/sre_parse.py`) {
		name = strings.ReplaceAll(name, `\u200c`, "\u200c")
		if riskypath.Path(name) == "" {
			t.Errorf("%q is not held", name)
		}
	}
	for _, name := range strings.Fields(`Makefile sub/makefile GNUmakefile Makefile.am rules.mk justfile Rakefile conftest.py tests/conftest.py setup.py build.rs build.gradle build.gradle.kts gradlew pom.xml CMakeLists.txt
		Dockerfile Dockerfile.dev docker-compose.yml compose.override.yaml Taskfile.yml tox.ini pyproject.toml BUILD.bazel defs.bzl WORKSPACE mix.exs Gemfile x.gemspec webpack.config.js vite.config.ts jest.config.ts Vagrantfile magefile.go
		x.pyc pkg/__pycache__/x.cpython-312.pyc build.zig x.nimble postcss.config.js next.config.mjs ava.config.js deno.json rescript.json vcpkg-configuration.json project/build.properties Cargo.toml sub/Cargo.toml code.py src/signal.py package-lock.json sub/yarn.lock requirements-dev.txt Pipfile Pipfile.lock docs/conf.py mkdocs.yml
		gunicorn.conf.py cdk.json Pulumi.yaml site_scons/site_init.py x-gdb.py types.py inspect.py sub/keyword.py`) {
		if riskypath.Path(name) != "" || riskypath.Listed(name) == "" {
			t.Errorf("%q: held %q, listed %q", name, riskypath.Path(name), riskypath.Listed(name))
		}
	}
	for _, name := range strings.Fields(`src/main.go agents.go internal/cli/config/agents.go claude.go miser.go mises.txt env.go docs/lefthooks.md jenkinsfiles config/x.yml github/x hooks/useState.js vscode/x makefiles.go
		src/hooks.ts cursor.rs .x/y readme.md skills/x/SKILL.md bazel tools/bazel.go rules.go drone.go prompt.md opencode.md build/x.js workspace.ts builds.go a.b.c
		.gitkeep docs/.gitkeep .env.example app/.env.sample .env.template .github/ISSUE_TEMPLATE.md .github/ISSUE_TEMPLATE/bug.yml .github/PULL_REQUEST_TEMPLATE.md .github/pull_request_template/x.md
		renv/x.R packrat/activate.R sorbet/x config sessions.vim phpstan.go graphql.go .editorconfig .dockerignore
		.mailmap cspell/words.txt lake.lean src/tailwind.ts svelte.ts nims.go vendor/x/bin/y venv.go bin/x lintr.R lsp/config.edn node_modules.go project/x.go env/x.py user.go biome.json rustfmt.toml
		readline.go src/readline.js startup.go user_default.erl codes.py cargo.rs pyrepl.py`) {
		if riskypath.Path(name) != "" || riskypath.Listed(name) != "" {
			t.Errorf("%q: held %q, listed %q", name, riskypath.Path(name), riskypath.Listed(name))
		}
	}
}

// A file that decides who must approve is held for that reason, not as a file of CI.
func TestOwnersReason(t *testing.T) {
	for _, name := range []string{"CODEOWNERS", "docs/CODEOWNERS", ".github/CODEOWNERS"} {
		if why := riskypath.Path(name); !strings.Contains(why, "approve") {
			t.Errorf("%s: held for %q", name, why)
		}
	}
}

// A tree whose links can be followed in very many ways is held as a whole: each way counts.
func TestManyWays(t *testing.T) {
	home(t, "")
	spellings := func(n int) (names []string) {
		for i := range n {
			name := []byte(".env-aaaaaaaaa")
			for bit := range 9 {
				if i>>bit&1 == 1 {
					name[5+bit] = 'A'
				}
			}
			names = append(names, string(name))
		}
		return names
	}
	slashes := map[string]string{}
	for i, name := range spellings(400) {
		slashes[name] = fmt.Sprintf(".env-aaaaaaaaa/%04d", i) + strings.Repeat("/", 320)
	}
	few := map[string]string{} // as many as are followed, but they multiply
	for i, name := range spellings(16) {
		few[name] = fmt.Sprintf(".env-aaaaaaaaa/%s%04d", strings.Repeat("d/", 1500), i)
	}
	for name, links := range map[string]map[string]string{"a name of many links": slashes, "ways that multiply": few} {
		t.Run(name, func(t *testing.T) {
			r := newRepo(t)
			base := r.git("rev-parse", "HEAD")
			head := r.commitLinks(links)
			risky, _ := r.summary(base, head)
			if why := risky["plain"]; !strings.Contains(why, "too many symbolic links") {
				t.Errorf("an ordinary file is held for %q", why)
			}
			inside, err := r.open().Inside(t.Context(), head)
			if err != nil {
				t.Fatal(err)
			}
			if why := inside("sub/plain"); !strings.Contains(why, "too many symbolic links") {
				t.Errorf("a file of a submodule is held for %q", why)
			}
		})
	}
}

// commitLinks commits symbolic links and an ordinary file without the work tree: some file
// systems could not keep the names of the links apart.
func (r repo) commitLinks(links map[string]string) string {
	r.t.Helper()
	var index strings.Builder
	for name, target := range links {
		fmt.Fprintf(&index, "120000 %s\t%s\n", r.pipe(target, "hash-object", "-w", "--stdin"), name)
	}
	fmt.Fprintf(&index, "100644 %s\tplain\n", r.pipe("x\n", "hash-object", "-w", "--stdin"))
	r.pipe(index.String(), "update-index", "--add", "--index-info")
	return r.git("commit-tree", "-p", "HEAD", "-m", "links", r.git("write-tree"))
}

// A link is followed even if the rest of the way is longer than any path. It is also followed
// through many folders that are linked one to the next.
func TestLongWays(t *testing.T) {
	home(t, "")
	r := newRepo(t)
	pad := strings.Repeat("d/../", 700)
	links := map[string]string{".envrc": "one/" + pad + "run", "one": "two/" + pad + ".", "two": "three/" + pad + ".", "three": "real"}
	for i := range 200 {
		links[fmt.Sprintf("chain/%d/next", i)] = fmt.Sprintf("../%d", i+1)
	}
	links[".idea"] = "chain/0"
	base := r.git("rev-parse", "HEAD")
	for name, target := range links {
		r.link(name, target)
	}
	for _, name := range []string{"real/run", "real/d/x", "chain/200/x", "chain/x"} {
		r.write(name, "x\n")
	}
	risky, _ := r.summary(base, r.commit("links"))
	for name, want := range map[string]bool{"real/run": true, "chain/200/x": true, "chain/x": false} {
		if got := risky[name] != ""; got != want {
			t.Errorf("%s: held %v, want %v: %q", name, got, want, risky[name])
		}
	}
}

// TestHookCalls: a hook of the person's runs a program. If that program runs a file that the
// hook does not name, the file is held. The program's other files are not held.
func TestHookCalls(t *testing.T) {
	home(t, "")
	r := newRepo(t)
	r.write("package.json", `{"version": "1", "scripts": {"lint": "eslint ."}}`)
	r.write("sub/package.json", `{"version": "1", "scripts": {"lint": "eslint ."}}`)
	base := r.commit("before")
	r.write("package.json", `{"version": "1", "scripts": {"lint": "sh x.sh"}}`)
	r.write("sub/package.json", `{"version": "2", "scripts": {"lint": "eslint ."}}`)
	for _, name := range []string{"Makefile", "rules.mk", "justfile", "src/a.go"} {
		r.write(name, "x\n")
	}
	head := r.commit("after")
	r.holds(base, head) // no hook

	if err := os.WriteFile(filepath.Join(r.dir, ".git/hooks/pre-commit.sample"), []byte("#!/bin/sh\nmake lint\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	r.holds(base, head)
	if err := os.WriteFile(filepath.Join(r.dir, ".git/hooks/pre-commit"), []byte("#!/bin/sh\n# make it just so\nexec /usr/bin/npm run --silent lint\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	r.holds(base, head, "package.json")
	r.git("config", "remote.origin.url", "https://forge.example/just/just")
	r.git("config", "alias.check", "!make -s check")
	r.holds(base, head, "package.json", "Makefile", "rules.mk")
	inside, err := r.open().Inside(t.Context(), head)
	if err != nil {
		t.Fatal(err)
	}
	if ran, not := inside("dist/Makefile"), inside("dist/justfile"); ran == "" || not != "" {
		t.Errorf("files that are in no commit: %q, %q", ran, not)
	}
}

// TestHookCallsByWay: hooks that call a program by another script, as husky's do, and those
// that pre-commit has.
func TestHookCallsByWay(t *testing.T) {
	home(t, "")
	for name, files := range map[string]map[string]string{
		"a script":   {".git/hooks/pre-commit": "#!/bin/sh\necho make >&2\nexec sh scripts/check \"$@\"\n", "scripts/check": "npm run lint\n"},
		"husky":      {".husky/_/pre-commit": ". \"$(dirname \"$0\")/h\"\n", ".husky/pre-commit": "npm test\n"},
		"pre-commit": {".git/hooks/pre-commit": "#!/bin/sh\nexec pre-commit hook-impl\n", ".pre-commit-config.yaml": "repos:\n- hooks:\n  - entry: ${NPM:-npm} run lint\n"},
	} {
		r := newRepo(t)
		for path, text := range files {
			r.write(path, text)
		}
		if name == "husky" {
			r.git("config", "core.hooksPath", ".husky/_")
		}
		r.write("package.json", `{"scripts": {"lint": "eslint ."}}`)
		base := r.commit("before")
		r.write("package.json", `{"scripts": {"lint": "sh x.sh"}}`)
		r.write("Makefile", "x\n")
		head := r.commit("after")
		t.Log(name)
		r.holds(base, head, "package.json")
	}
}

// New names with a dot at the top are held. In a package.json, a change of what hooks read is
// held, and a change of what an installation or a test runs is listed.
func TestHeldByContent(t *testing.T) {
	home(t, "")
	r := newRepo(t)
	packages := map[string][2]string{
		"same":  {`{"scripts": {"start": "a", "postinstall": "b"}, "version": "1"}`, `{"version": "2", "scripts": {"postinstall":"b", "start": "c"}}`},
		"post":  {`{"scripts": {}}`, `{"scripts": {"postinstall": "node x.js"}}`},
		"gone":  {`{"scripts": {"prepare": "husky"}}`, `{}`},
		"test":  {`{"scripts": {"test": "a"}}`, `{"scripts": {"test": "b"}}`},
		"stage": {`{}`, `{"lint-staged": {"*": "sh x.sh"}}`},
		"hooks": {`{"husky": {"hooks": {"pre-commit": "a"}}}`, `{"husky": {"hooks": {"pre-commit": "b"}}}`},
		"bad":   {`{}`, `{`},
		"tool":  {`{}`, `{"packageManager": "yarn@9.9.9"}`},
		"lint":  {`{}`, `{"prettier": "./lib/f.js"}`},
		"style": {`{"stylelint": {"extends": "a"}}`, `{"stylelint": {"extends": "./lib/s.js"}}`},
		"dep":   {`{}`, `{"devDependencies": {"a": "file:a"}}`},
	}
	for name, text := range packages {
		r.write(name+"/package.json", text[0])
	}
	for _, name := range []string{".known/x", ".knownrc", ".coveignore", "Makefile"} {
		r.write(name, "x\n")
	}
	base := r.commit("before")
	for name, text := range packages {
		r.write(name+"/package.json", text[1])
	}
	for _, name := range []string{".known/y", ".knownrc", ".new/x", ".newrc", "\u200c.newer", "sub/.new", ".gitkeep", ".env.example", ".github/ISSUE_TEMPLATE/x.md", "Makefile", "sub/conftest.py", ".gitignore", "new/package.json"} {
		r.write(name, "y\n")
	}
	r.write(".coveignore", "y\n")
	head := r.commit("after")
	r.holds(base, head, ".new/x", ".newrc", "\u200c.newer", ".coveignore", "stage/package.json", "hooks/package.json", "lint/package.json", "style/package.json")
	_, listed := r.summary(base, head)
	var got []string
	for name := range listed {
		got = append(got, name)
	}
	want := []string{"Makefile", "bad/package.json", "dep/package.json", "gone/package.json", "new/package.json", "post/package.json", "sub/conftest.py", "test/package.json", "tool/package.json"}
	if slices.Sort(got); !slices.Equal(got, want) {
		t.Errorf("listed %q, want %q", got, want)
	}
}
