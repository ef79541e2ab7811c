package gitwork

import (
	"path"
	"path/filepath"
	"strings"

	"github.com/cove-dev/cove/internal/lib/riskypath"
)

// runners are programs that run what files of certain names say, though the command does not
// name the file: npm run lint names none. The patterns are as in riskypath.Family.
var runners = []struct{ programs, files string }{
	{"npm npx pnpm pnpx yarn yarnpkg bun bunx corepack", "package.json"},
	{"make gmake bmake bsdmake remake", "makefile* gnumakefile* bsdmakefile* *.mk *.mak"},
	{"just", "justfile* .justfile *.just"},
	{"task go-task", "taskfile*"},
	{"rake", "rakefile* *.rake"},
	{"bundle bundler", "gemfile*"},
	{"cargo", "cargo.toml build.rs"},
	{"mvn mvnw mvnd", "pom.xml"},
	{"gradle gradlew", "build.gradle* settings.gradle* init.gradle* *.gradle *.gradle.kts"},
	{"ant", "build.xml"},
	{"sbt", "build.sbt *.sbt"},
	{"mage", "magefile.go magefiles/"},
	{"tox", "tox.ini setup.cfg pyproject.toml"},
	{"nox", "noxfile.py"},
	{"invoke inv", "tasks.py"},
	{"pytest py.test", "conftest.py pytest.ini pytest.toml tox.ini setup.cfg pyproject.toml"},
	{"poetry pdm hatch uv pipenv", "pyproject.toml pipfile*"},
	{"composer", "composer.json"},
	{"mix", "mix.exs"},
	{"rebar3", "rebar.config*"},
	{"bazel bazelisk buck buck2", "workspace workspace.bazel module.bazel* build build.bazel *.bzl buck"},
	{"deno", "deno.json deno.jsonc"},
	{"grunt", "gruntfile*"},
	{"gulp", "gulpfile*"},
	{"docker docker-compose podman", "dockerfile* *.dockerfile containerfile* docker-compose* compose.yml compose.yaml compose.*.yml compose.*.yaml docker-bake*"},
}

// filesOf are the patterns of files that a program of runners runs.
var filesOf = func() map[string]string {
	files := map[string]string{}
	for _, r := range runners {
		for name := range strings.FieldsSeq(r.programs) {
			files[name] = r.files
		}
	}
	return files
}()

// scriptHops is how many scripts may call each other until one calls a program of runners.
const scriptHops = 2

// hookFiles maps a program that hooks call to its file at the top: the program runs what
// that file names.
var hookFiles = map[string]string{
	"pre-commit": ".pre-commit-config.yaml", "prek": ".pre-commit-config.yaml", "lefthook": "lefthook.yml", "overcommit": ".overcommit.yml",
}

// script notes the files that the programs in a script run, and those of the scripts of the
// tree that it names.
func (c *collector) script(name, why string, hops int) {
	text := readScript(name)
	c.runners(text, why)
	if hops == 0 {
		return
	}
	for word := range strings.FieldsFuncSeq(text, betweenWords) {
		next := word
		if file := hookFiles[path.Base(word)]; file != "" {
			next = file
		} else if !strings.Contains(word, "/") {
			continue
		}
		if !filepath.IsAbs(next) {
			next = filepath.Join(c.repo.Dir, next)
		}
		if _, ok := c.repo.inTree(next); ok {
			c.script(next, why, hops-1)
		}
	}
}

// runners notes the files that programs run which a hook or a setting of git calls.
func (c *collector) runners(text, why string) {
	for line := range strings.Lines(text) {
		words := strings.FieldsFunc(line, betweenWords)
		if len(words) == 0 || strings.HasPrefix(words[0], "#") || words[0] == "echo" || words[0] == "printf" {
			continue // a text: make and just are mere words there
		}
		for _, word := range words {
			name := strings.TrimLeft(path.Base(word), "-") // also of ${NPM:-npm}
			if files := filesOf[name]; files != "" && !c.calls[name] {
				c.calls[name] = true
				c.runs = append(c.runs, riskypath.Family{Why: why + ", which calls " + name, Names: files})
			}
		}
	}
}
