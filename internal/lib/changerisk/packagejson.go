package changerisk

import (
	"bytes"
	"context"
	"encoding/json"
	"strings"

	"github.com/cove-dev/cove/internal/lib/riskypath"
)

// Keys of a package.json whose programs run without being named. An installation or a packing
// runs the first (npm's page on scripts), and hooks of git read the second. An editor's
// linters and formatters load programs by the third; other tools read the last.
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

// riskyPackage judges a package.json by what changed in it. Changes of keys that hooks of git
// and linters read are held. Changes of keys that an installation or a test reads are listed,
// as is a file that can't be read. If the person's hooks call npm or the like, changes of
// scripts are held, too.
func (j *Judge) riskyPackage(ctx context.Context, f Change) (why string, listed bool, err error) {
	oldText, newText, ok, err := j.sides(ctx, f)
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
	switch byHooks := j.byHooks(f); {
	case !okNew || f.Mode == LinkMode:
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
