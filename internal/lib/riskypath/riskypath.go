// Package riskypath says which paths of a repository a person should look at, by their names alone.
// Some program reads such a file without being told, and may run it.
package riskypath

import (
	"path"
	"strings"
	"sync"

	"github.com/cove-dev/cove/internal/lib/safepath"
)

// The reasons why a person should look at a name.
const (
	Hooks     = "git hooks"
	whyCI     = "runs in CI"
	whyEditor = "settings of an editor, which can run programs"
	whyServer = "an editor's language server runs it, or what it names, when it opens the folder"
	whyLocal  = "programs that editors and tools take from there"
	whyAgent  = "settings or instructions of a coding agent"
	whyShell  = "run by a shell or a tool that enters the folder"
	whyTool   = "settings of a build or package tool, which can run programs"
	Lint      = "settings of a linter or formatter, which editors and hooks run"
	whyREPL   = "run by an interpreter or a debugger that starts in the folder"
	whyVCS    = "settings of a version control system, which can run programs"
	whyHome   = "settings that a home folder has"
	whyGit    = "settings of git"
	whyCove   = "settings of cove, and what prepares its sprites"
	Dot       = "a new dot-file or dot-folder at the top, which some tool may read"
	Build     = "runs when you build or test"
	whyOwners = "decides who must approve changes"
	whyPyc    = "compiled code, which an interpreter can run in place of its source"
)

// A Family is a set of names that one kind of program reads without being told.
type Family struct {
	Why    string
	source string // the programs, and their own documentation of these names

	// Names are patterns, divided by white space, of names in the form of safepath.Fold:
	//
	//	jenkinsfile*  the stem, alone or before any other character than a letter or digit
	//	.git**        all that begins so
	//	*.bzl         as path.Match has it
	//	tools/bazel   these names, one in the other
	//	githooks/     a folder with that name, and all in it
	//
	// A pattern that begins with a dot also stands for a folder with all in it. Any other
	// pattern stands only for the last name of a path.
	Names string
}

// held are the families whose change is held for the person's review.
var held = []Family{
	{Hooks, "git: core.hooksPath, by custom; husky, lefthook, pre-commit, prek, overcommit, hk, lint-staged, simple-git-hooks, rusty-hook, captainhook, grumphp, commitlint, commitizen: their manuals' pages on configuration files", `
		.husky* .huskyrc* .githooks .git-hooks git-hooks/ githooks/ .lefthook* lefthook* .pre-commit* pre-commit-config* .prek* prek.toml
		.overcommit* hk.pkl hk.*.pkl .hk* .lintstagedrc* lint-staged.config.* .simple-git-hooks* simple-git-hooks* .rusty-hook* rusty-hook*
		.cargo-husky captainhook* grumphp* .ghooks* .yorkie* .commitlintrc* commitlint.config.* .czrc .cz-config.js .cz.* .commitizen* cz.toml cz.json cz.yaml .git-hooks* .hooks`},
	{whyOwners, "GitHub, GitLab, Gitea: their pages on code owners", `
		codeowners`},
	{whyCI, "the configuration reference of each service", `
		.github .gitlab .gitlab-ci** .circleci circle.yml .buildkite .forgejo .gitea .woodpecker* .teamcity .semaphore .tekton .drone* .travis*
		jenkinsfile* .jenkins* azure-pipelines* .azure-pipelines* .azuredevops .vsts-ci* bitbucket-pipelines* .bitbucket appveyor* .appveyor*
		cloudbuild* .cloudbuild* .cirrus* buildspec* .builds .build.yml .build.yaml .zuul* zuul.yaml zuul.d/ .taskcluster*
		codefresh* .codefresh* .harness .prow* wercker* .wercker* screwdriver.yaml codemagic.yaml bitrise.yml ci_scripts/ .scrutinizer*
		.codeship* codeship-* .readthedocs* .renovaterc* renovate.json renovate.json5 .concourse .gocd* .screwdriver* .cds .sourcehut .argo`},
	{whyEditor, "VS Code and its kin, JetBrains, Zed, Fleet, Visual Studio, Vim (exrc), Neovim (exrc, lazy.nvim), Emacs (directory variables), Helix, Nova, Theia, Sublime Text, Kakoune, Eclipse, YouCompleteMe, vimspector, clangd, lua-language-server, rope, universal-ctags, Metals and Bloop (build servers), haskell-language-server (cradles), merlin, OmniSharp, Vetur, GraphQL LSP, vim sessions", `
		.vscode* .idea .devcontainer* .zed .fleet .vs .theia .nova .helix .nvim* .nvimrc .vim* .vimrc* .gvimrc .exrc .lvimrc* .lnvim* .lazy.lua .neoconf* .nlsp**
		.dir-locals* .emacs* .spacemacs* .projectile .projections.json .ycm_extra_conf.py .vimspector* .kak* .kateproject* .atom .lite_project* .micro
		.settings .project .externaltoolbuilders .factorypath .clangd .ccls .luarc* .ropeproject .ctags* .exuberant* .tern-project .sublime* .cursor-server
		*.code-workspace *.sublime-project *.sublime-workspace *.sublime-build *.sublime-settings .rbexrc .brackets.json .netbeans* nbproject/ .fleetignore .phpactor*
		.bsp .bloop .metals hie.yaml .merlin omnisharp.json vetur.config.js graphql.config.* .graphqlrc* _vimrc_local.vim session.vim
		_exrc _vimrc _gvimrc .local.vim .local.vimrc .project.vim* .project.nvim* .tasks .lapce .pulsar .run *.run.xml *.iml *.ipr *.iws *.suo *.csproj.user *.vbproj.user *.fsproj.user *.vcxproj.user *.pro.user cmakelists.txt.user
		tasks.vs.json launch.vs.json cppproperties.json cmakesettings.json launchsettings.json .classpath *.kdev4 .kdev4 *.geany .buildconfig devcontainer.json .devfile* devfile.yaml .codesandbox .stackblitz* .gutctags .globalrc gtags.conf`},
	{whyServer, "sourcekit-lsp (build server, its settings), xcode-build-server, clojure-lsp (project-specs), nREPL, Calva, Portal, Lean (lake serve), rust-analyzer (rust-project.json, rust-analyzer.toml), C/C++ extensions (the compiler that a compilation database names), ccls, cquery, RTags, kotlin-language-server (kls-classpath), Dart analysis server (plugins), erlang_ls, ELP, nimsuggest (NimScript), zls, coq-lsp and VsCoq, Pyright and Pyre (their interpreters), Svelte, Tailwind CSS and UnoCSS (settings that are programs), Apollo, Relay, PlatformIO (extra_scripts), Hardhat, RStudio, Godot (plug-ins), Unreal, sqls", `
		buildserver.json .sourcekit-lsp .swiftpm .lsp .nrepl* .calva .portal lakefile* lake-manifest.json lean-toolchain rust-project.json .rust-project.json rust-analyzer.toml .rust-analyzer* compile_commands.json compile_flags.txt
		.cquery .rtags* kls-classpath* kotlinlspclasspath* analysis_options.yaml analysis_options.yml erlang_ls.config .elp* elp.toml nim.cfg *.nim.cfg config.nims *.nims hardhat.config.* zls.json zls.build.json _coqproject _rocqproject
		pyrightconfig.json basedpyrightconfig.json .pyre_configuration* svelte.config.* tailwind.config.* uno.config.* unocss.config.* apollo.config.* relay.config.* platformio.ini *.rproj project.godot *.uproject *.uplugin .sqls* .sqllsrc* wallaby.*`},
	{whyLocal, "Node.js (the linters and formatters that an editor loads from there), Python (an interpreter that editors choose and start by themselves), Composer: programs in the place where tools look for them", `
		node_modules/ .venv* venv/bin venv/scripts env/bin pyvenv.cfg .virtualenv* vendor/bin`},
	{whyAgent, "Claude Code, Codex, Gemini CLI, Qwen Code, Cursor, Copilot, Windsurf, Cline, Roo, Kilo, Augment, opencode, Crush, goose, OpenHands, Amp, Kiro, Junie, aider, Zed, Warp, Trae, Factory, Tabnine, Replit, MCP: their pages on project settings, instructions and hooks", `
		mcp_config.json hooks/hooks.json .claude** claude.md claude.*.md .codex** .gemini** gemini.md gemini.*.md .qwen** qwen.md qwen.*.md .cursor** .windsurf** .opencode** opencode.json**
		agents.md agents.*.md agent.md agent.*.md .agent** .agents** .continue** .cline** .roo** .kilo** .kilocode** .augment** .crush** crush.json crush.md crush.*.md
		.goose** .openhands** .amp* .pi .kiro** .junie** .trae** .tabnine** .cody** .codeium** .sourcegraph .factory* .droid* .warp* warp.md .rules .copilot**
		copilot-instructions.md *.instructions.md *.chatmode.md *.prompt.md *.agent.md .mcp** mcp.json mcp.*.json .aider** .aiignore .aiexclude .devin* .jules* .sweep*
		sweep.yaml .plandex* .zencoder* .replit* replit.nix replit.md .idx .firebender* .rovodev* .codebuddy* codebuddy.md .iflow* iflow.md .ruler .rulesync* .void*
		.bolt .lovable .serena .taskmaster* .bmad* .forge forge.yaml .q .amazonq* .deepseek* .grok* grok.md .mentat* .smol* amazonq.md .vibe* .letta* .swe-agent* .antigravity* .specify .kimi* .cortex*`},
	{whyShell, "bash, zsh, ksh, tcsh, fish; direnv, autoenv, ondir, smartcd, mise, rtx, asdf, proto, nvm, pyenv, rbenv, rvm, sdkman, rustup, Hermit, nix with direnv, devenv, flox, devbox, tmux, tmuxinator: what their hooks of cd read", `
		.envrc* .env* .autoenv* .autoenv_** .ondir* .smartcd* .bash* .bash_** .profile .zsh** .zprofile .zlogin .zlogout .zlocal .lzshrc .kshrc .mkshrc .cshrc .tcshrc .login .logout
		.config config.fish .fish .inputrc .direnv* .direnvrc direnv.toml .mise* mise* mise/ mise-tasks/ .rtx* .tool-versions .asdf* .proto* .prototools .pkgx* pkgx.yaml .tea.yaml
		.nvmrc .node-version .python-version .ruby-version .ruby-gemset .rvmrc .go-version .java-version .terraform-version .swift-version .php-version .lua-version
		.perl-version .crystal-version .zig-version .deno-version .bun-version .sdkmanrc .jabbarc .jvmrc rust-toolchain* .hermit bin/hermit bin/activate-hermit
		flake.nix flake.lock shell.nix devenv.* .devenv* .flox devbox.json devbox.d/ .tmux* .tmuxinator* .screenrc .teamocil* .starship* starship.toml .desk .powrc .powenv .rbenv-** .pyenv* .nodenv* .lando* .ddev
		.shadowenv** devshell.toml .guix** guix.scm manifest.scm .fvm .fvmrc .fnm* .phpenv* .goenv* .jenv* .plenv* .tfenv* .tfswitchrc .tgswitchrc .swiftenv* .swiftly* .luaenv* .volta .gvm .gvmrc .chruby* aqua.yaml aqua.yml .aqua* .pixi* pixi.toml .conda* .mambarc .zellij*
		.elixir-version .erlang-version .dart-version .flutter-version .scala-version .rust-version .dotnet-version .ghc-version .julia-version .ocaml-version .opentofu-version .terragrunt-version`},
	{whyTool, "cargo, npm, pnpm, Yarn, Bun, pip, Maven, Gradle, Bazel, Bundler, sbt, Leiningen, Stack, Ansible, Terraform, DVC, lazygit, ack, watchman, buck: their pages on files of a project that change what they run", `
		.cargo .npm* .npmrc .pnpm* .pnpmfile* .pnp.* .pnp pnpm-workspace* .yarn* .yarnrc* .bunfig* bunfig* .pypirc pip.conf pip.ini .pip .mvn .m2 .gradle .bazel* .bazelrc* *.bazelrc .bazeliskrc
		.bazelversion tools/bazel .bundle .gemrc .sbt* .sbtopts .sbtrc .jvmopts .lein* .clojure .cabal .stack* .ansible* ansible.cfg .terraform* .terraformrc .tflint* .dvc .lazygit* .ackrc .watchman**
		.buckconfig* .buck* .nodemon* nodemon.json .mocharc* .jest* .babelrc* .swcrc .postcssrc* .parcelrc .luarocks .rebar* .hex .mix .cpan .cpanm .nuget .conan* .vcpkg .west .sdk .jshell* .testcontainers*
		.pythonrc* .ackrc.* .wgetrc .curlrc .netrc .guardrc* .rake* .foreman .forego .overmind* .air.toml .earthly* .dagger .okteto* .tilt* .skaffold* .devspace* .nx .turbo .moon .pants* .please* .plzconfig* .lintrunner.toml .arc .arcconfig .arclint
		.bowerrc .jspm* uv.toml .uv* poetry.toml .pdm* pdm.toml .rye .composer .opam* .coursier .nimble .spack* .deno .denorc .tofurc .mill* .paket .bacon* bacon.toml .air* modd.conf .modd* .watchexec* .mutagen* mutagen.yml .reviewboardrc* .ripgreprc .k9s
		.nycrc* nyc.config.* .c8rc* .taprc .testcafe* .detox* .percy* .storybook .ladle .vuepress .vitepress .umirc* .fatherrc* .dumirc* .nuxtrc .eleventy* .lighthouse* .pa11yci* .svgr* .svgo* .size-limit* .coveragerc* .noserc .pytest* .testr* .stestr*
		.busted .luacov* .proverc .simplecov .autotest .yardopts .minitest* .cucumber* .jasmine* .versionrc* .bumpversion* .bump-my-version* .release-it* .releaserc* .np-config* .autorc .changeset .xcode.env* directory.build.rsp msbuild.rsp dotnet-tools.json`},
	{Lint, "CSpell (import), clj-kondo, lintr (an R program), SQLFluff (library_path), cmake-format (a Python program), Checkov, PHP_CodeSniffer, Psalm, Rector; ESLint, Prettier, stylelint, Pylint (init-hook), Flake8 (local plugins), RuboCop (require), PHP-CS-Fixer, Credo, mix format, Perl::Critic, SwiftLint, scalafmt, mypy (plugins), TSLint (rulesDirectory), PHPStan (bootstrapFiles), Sorbet: settings that are programs or load some", `
		.eslintrc* eslint.config.* .prettierrc* prettier.config.* .stylelintrc* stylelint.config.* .pylintrc* pylintrc* .flake8* .bandit .rubocop** .php-cs-fixer* .php_cs* .phan .psalm* .credo.exs
		.formatter.exs .perlcriticrc .perltidyrc .swiftlint* .swiftformat .scalafmt* .scalafix* .clang-tidy .golangci* .semgrep* .trunk .mega-linter* .markdownlint* .textlintrc* .remarkrc* .solargraph* .standard* .tslint* .jshintrc .xo-config* .oxlintrc* .yamllint* .ansible-lint* .hadolint* .shellcheckrc .reek* .haml-lint* .erb-lint* .luacheckrc .ktlint* .detekt* .htmlhintrc .dprint*
		mypy.ini .mypy.ini tslint.json phpstan.neon* phpstan.dist.neon sorbet/config
		.cspell* cspell.* .clj-kondo .lintr* .sqlfluff* .cmake-format* .cmake-lint* cmake-format.* .checkov* dylint.toml .custom-gcl* psalm.xml* phpcs.xml* .phpcs* rector.php ecs.php phpmd.xml* .phpmd* .ruby-lsp .scss-lint* .slim-lint* coffeelint.json
		.jscs* .pug-lint* .solhint* .groovylintrc* .puppet-lint* .tidyallrc tidyall.ini .alexrc* .vale* .ncurc* .dependency-cruiser* .npmpackagejsonlintrc* oxlint.config.*`},
	{whyREPL, "pdb, gdb, lldb, R (also what renv and packrat have .Rprofile run), irb, pry, IEx, GHCi, OCaml, Octave, Erlang, SQLite, psql, Jupyter, CPython (site; what its prompt imports, first from the folder that it starts in), RSpec, PsySH, MATLAB, latexmk: files that they run from the folder that they start in", `
		.pdbrc* .gdbinit* .gdb* .lldbinit* .lldb* .rprofile .renviron .rdata .irbrc* .pryrc* .rspec* .rdebugrc .byebugrc .iex* .ghci* .ghcid .ocamlinit* .utoprc* .octaverc .erlang* .sqliterc .psqlrc*
		.ipython .jupyter ipython_config.py jupyter_*config.py jupyter_*config.json sitecustomize.py usercustomize.py .noderc .node_repl* .tclshrc .wishrc .perldb .julia* .scala* .amm* .sbclrc .clisprc* .guile .schemerc .racketrc .luarc .php.ini .user.ini .mysqlrc .my.cnf .rdbgrc* .swipl* .jline*
		renv/activate.r packrat/init.r irb.rc _irbrc $irbrc .psysh* user_default.beam startup.m latexmkrc .latexmkrc latexmk
		_pyrepl/ _pyrepl.py readline.py readline.so readline.*.so rlcompleter.py __future__.py _colorize.py codeop.py unicodedata.py termios.py fcntl.py _curses.py dataclasses.py textwrap.py traceback.py
		sre_compile.py sre_parse.py sre_constants.py copyreg.py reprlib.py linecache.py opcode.py`},
	{whyVCS, "Mercurial (hgrc: hooks, extensions), Sapling, Jujutsu (aliases, tools), Subversion, Bazaar, Darcs, Pijul, Fossil, CVS, repo", `
		.hg* .sl .jj* .svn .bzr* .darcs* _darcs/ .pijul* .fossil* .fslckout _fossil_ cvs/ .repo .p4* .sapling* .eden* .arc*`},
	{whyHome, "ssh, GnuPG, X, PAM, less, nano, mail and cloud clients: a repository that is a home folder, or is linked into one", `
		.ssh .gnupg .aws .kube .docker .azure .gcloud .local .xinitrc .xsession* .xsessionrc .xprofile .xresources .xserverrc .pam_environment .mailcap .lesskey .lessfilter .nanorc .mailrc .muttrc .mutt .rpmmacros
		.procmailrc .forward .k5login .rhosts .shosts .hushlogin .selected_editor .xbindkeysrc .xmodmap .i3 .sway .hammerspoon .iterm2 .wezterm.lua .kitty* .alacritty*`},
	{whyGit, "gitattributes, gitmodules, gitconfig, git-lfs: what git itself reads; all that begins so, because git adds names", `
		.git** .lfsconfig`},
	{whyCove, "cove config, cove use, cove sync", `
		.cove* .coveignore .sprite .coverc`},
}

// listed are the families that run when the person asks for something. They are listed, and
// not held.
var listed = []Family{
	{Build, "make, just, task, rake, mage, invoke, tox, nox, pytest, setuptools, SCons, waf, Meson, CMake, autoconf, ninja, Jam, premake, xmake, tup", `
		makefile* gnumakefile* bsdmakefile* *.mk *.mak justfile* .justfile *.just taskfile* rakefile* *.rake magefile.go magefiles/ tasks.py conftest.py setup.py setup.cfg pyproject.toml tox.ini noxfile.py
		pytest.ini dodo.py fabfile.py wscript sconstruct sconscript meson.build meson.options meson_options.txt cmakelists.txt *.cmake cmakepresets.json cmakeuserpresets.json conanfile* vcpkg.json vcpkg-configuration.json terragrunt.hcl pytest.toml configure
		configure.ac configure.in autogen.sh bootstrap.sh build.ninja jamfile jamroot jamroot.jam jamfile.jam premake* xmake.lua tupfile* runtests* build.sh test.sh install.sh`},
	{Build, "cargo, Gradle, Maven, Ant, sbt, Mill, Leiningen, Boot, Bazel, Buck, Pants, Mix, rebar, Cabal, Stack, dune, opam, MSBuild, SwiftPM, Xcode, CocoaPods, Zig, Nim, D, Perl, PHP, Lua, Nix", `
		build.rs cargo.toml build.gradle* settings.gradle* init.gradle* gradle.properties gradle-wrapper.* gradlew* *.gradle *.gradle.kts pom.xml mvnw* build.xml ivy.xml build.sbt *.sbt build.sc build.mill mill project.clj
		build.boot build.clj deps.edn bb.edn shadow-cljs.edn workspace workspace.bazel workspace.bzlmod module.bazel* build build.bazel *.bzl buck *.plz mix.exs rebar.config* *.cabal setup.hs setup.lhs cabal.project* stack.yaml dune dune-project
		dune-workspace *.opam shard.yml *.csproj *.fsproj *.vbproj *.vcxproj *.props *.targets global.json nuget.config build.cake build.fsx package.swift project.swift *.podspec podfile* *.pbxproj *.xcscheme
		*.xcconfig build.zig* *.nimble dub.json dub.sdl makefile.pl build.pl dist.ini cpanfile* composer.json phpunit.xml* *.rockspec *.nix *.gemspec gemfile* guardfile* capfile
		dangerfile* fastfile* appfile brewfile* berksfile* thorfile steepfile build.lua *.spec pkgbuild debian/rules project/build.properties snapcraft.yaml *.pro *.pri`},
	{whyREPL, "CPython 3.6 to 3.13: what its prompt imports, first from the folder that it starts in, of names that programs often have; gdb (auto-load)", `
		code.py copy.py platform.py select.py signal.py struct.py ast.py enum.py types.py token.py operator.py contextlib.py heapq.py inspect.py keyword.py re.py tokenize.py dis.py functools.py *-gdb.py *-gdb.gdb *-gdb.scm`},
	{Build, "npm, pnpm, Yarn, Bun, pip, Poetry, uv, PDM, Pipenv, Cargo, Composer, Bundler, mix, conda: what an installation fetches, and may run", `
		package-lock.json npm-shrinkwrap.json yarn.lock pnpm-lock.yaml bun.lock bun.lockb requirements*.txt constraints*.txt requirements/ pipfile* poetry.lock uv.lock pdm.lock cargo.lock composer.lock mix.lock environment.yml environment.yaml pubspec.*`},
	{Build, "Leiningen (profiles), gunicorn, CDK, Firebase, Serverless, Pulumi, Pants, SCons, MkDocs, Sphinx, Snakemake, Nextflow, Docusaurus, Gatsby, Knex, PM2, Foundry, Truffle, dbt, Alembic, Hugo: their settings that are or name programs", `
		profiles.clj gunicorn.conf.py cdk.json firebase.json serverless.* pulumi.* pants.toml site_scons/ mkdocs.* conf.py snakefile* nextflow.config docusaurus.config.* gatsby-* knexfile.* ecosystem.config.* foundry.toml truffle-config.js truffle.js dbt_project.yml alembic.ini`},
	{whyPyc, "CPython: a .pyc beside its source's place, or in __pycache__ with a matching time or hash", `
		*.pyc`},
	{Build, "Docker, Compose, Vagrant, Earthly, Tilt, Skaffold, foreman; Grunt, gulp, webpack, Vite, Vitest, Rollup, Jest, Karma, Cypress, Playwright, Babel, PostCSS, Tailwind, Next and their kin", `
		dockerfile* *.dockerfile containerfile* docker-compose* compose.yml compose.yaml compose.*.yml compose.*.yaml docker-bake* vagrantfile* earthfile* tiltfile* skaffold* procfile* gruntfile* gulpfile* webpack.*
		vite.* vitest.* rollup.config.* esbuild.* jest.config.* jest.setup.* karma.conf* cypress.config.* playwright.config.* babel.config.* postcss.config.* next.config.* nuxt.config.*
		astro.config.* metro.config.* rspack.config.* rsbuild.config.* tsup.config.* turbo.json nx.json lerna.json rush.json angular.json ember-cli-build.js wdio.conf* wrangler.* snowpack.config.* remix.config.* craco.config.* vue.config.* ava.config.* cucumber.* testem.* nightwatch.conf.* codecept.conf.* stryker.conf* web-test-runner.config.* eleventy.config.* deno.json deno.jsonc bsconfig.json rescript.json`},
}

// Names finds the family of a path. It is made once of the tables above.
type Names struct {
	exact  map[string]string // the last name of a path
	anyDir map[string]string // any name of it
	stems  map[string]string // the last name, up to a character that is no letter or digit
	dirs   map[string]string // likewise, any name
	starts map[string]string // what any name begins with
	globs  []pattern
	pairs  map[string]string // two names, one in the other
	longer int               // the length of the longest of starts
}

type pattern struct{ glob, why string }

var (
	heldNames   = sync.OnceValue(func() *Names { return Of(held) })
	listedNames = sync.OnceValue(func() *Names { return Of(listed) })
)

// Of makes Names of families, which give the reason for a path.
func Of(families []Family) *Names {
	n := &Names{exact: map[string]string{}, anyDir: map[string]string{}, stems: map[string]string{}, dirs: map[string]string{}, starts: map[string]string{}, pairs: map[string]string{}}
	for _, f := range families {
		for p := range strings.FieldsSeq(f.Names) {
			begin, isStart := strings.CutSuffix(p, "**")
			stem, isStem := strings.CutSuffix(p, "*")
			stem = strings.TrimSuffix(stem, ".")
			folder, isFolder := strings.CutSuffix(p, "/")
			switch hidden := p[0] == '.'; {
			case isStart:
				n.starts[begin] = f.Why
				n.longer = max(n.longer, len(begin))
			case isStem && strings.Contains(stem, "*") || !isStem && strings.Contains(p, "*"):
				n.globs = append(n.globs, pattern{p, f.Why})
			case isStem && hidden:
				n.dirs[stem] = f.Why
			case isStem:
				n.stems[stem] = f.Why
			case isFolder || hidden:
				n.anyDir[folder] = f.Why
			case strings.Contains(p, "/"):
				n.pairs[p] = f.Why
			default:
				n.exact[p] = f.Why
			}
		}
	}
	return n
}

// Why returns the reason of the family that a path belongs to; empty if it is in none. The
// path must be in the form of safepath.FoldPath. A nil Names has no names.
func (n *Names) Why(folded string) string {
	if n == nil {
		return ""
	}
	parts := strings.Split(folded, "/")
	for _, part := range parts {
		if why := n.anywhere(part); why != "" {
			return why
		}
	}
	last := parts[len(parts)-1]
	if why := n.exact[last]; why != "" {
		return why
	}
	if why := stemOf(n.stems, last); why != "" {
		return why
	}
	for i := range parts[1:] {
		if why := n.pairs[parts[i]+"/"+parts[i+1]]; why != "" {
			return why
		}
	}
	for _, p := range n.globs {
		if ok, _ := path.Match(p.glob, last); ok {
			return p.why
		}
	}
	return ""
}

// anywhere looks up a name among those that also count for a folder.
func (n *Names) anywhere(part string) string {
	if why := n.anyDir[part]; why != "" {
		return why
	}
	for i := 1; i <= min(len(part), n.longer); i++ {
		if why := n.starts[part[:i]]; why != "" {
			return why
		}
	}
	return stemOf(n.dirs, part)
}

// stemOf looks up the beginnings of a name that no letter or digit follows.
func stemOf(stems map[string]string, name string) string {
	for i := 1; i <= len(name); i++ {
		if i < len(name) && (name[i] >= 'a' && name[i] <= 'z' || name[i] >= '0' && name[i] <= '9') {
			continue
		}
		if why := stems[name[:i]]; why != "" {
			return why
		}
	}
	return ""
}

// Path says why a person should look at a path; empty if there is no reason. Names that some
// file system takes for the same count as the same.
func Path(p string) string {
	folded := WithoutHarmless(safepath.FoldPath(p))
	if dir, name := path.Split(folded); GitHooks[name] && path.Base(dir) == "hooks" {
		return Hooks
	}
	if path.Base(folded) == "codeowners" {
		return whyOwners // also in .github, whose other files run in CI
	}
	return heldNames().Why(folded)
}

// harmless are names of files that begin like held ones, but that nothing reads by name.
var harmless = fieldSet(".gitkeep .env.example .env.sample .env.template")

// WithoutHarmless takes names from a path that would make it held though nothing runs it.
// These are a harmless last name, and the .github above a template of issues or pull requests.
// The path must be in the form of safepath.FoldPath. The caller judges the rest as usual.
func WithoutHarmless(folded string) string {
	parts := strings.Split(folded, "/")
	if last := len(parts) - 1; harmless[parts[last]] {
		parts = parts[:last]
	}
	for i := range max(len(parts)-1, 0) {
		if parts[i] == ".github" && stemOf(templates, parts[i+1]) != "" {
			parts[i] = "github"
		}
	}
	return strings.Join(parts, "/")
}

// templates are stems of files and folders in .github that fill in a form.
var templates = map[string]string{"issue_template": "issues", "pull_request_template": "pull requests"}

// Listed says why a path is listed, though not held; empty if it is not.
func Listed(p string) string { return listedNames().Why(safepath.FoldPath(p)) }

// GitHooks are files that git runs if they are in a folder that it is told of.
var GitHooks = func() map[string]bool {
	names := map[string]bool{}
	for name := range strings.FieldsSeq(`applypatch-msg pre-applypatch post-applypatch pre-commit pre-merge-commit prepare-commit-msg
		commit-msg post-commit pre-rebase post-checkout post-merge pre-push pre-receive update proc-receive post-receive post-update post-rewrite
		reference-transaction push-to-checkout fsmonitor-watchman post-index-change pre-auto-gc sendemail-validate p4-changelist p4-prepare-changelist p4-post-changelist p4-pre-submit`) {
		names[name] = true
	}
	return names
}()

func fieldSet(names string) map[string]bool {
	set := map[string]bool{}
	for name := range strings.FieldsSeq(names) {
		set[name] = true
	}
	return set
}
