package config_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cove-dev/cove/internal/cli/config"
	"github.com/cove-dev/cove/internal/shim/policy"
)

// world is a home and a work tree with files.
func world(t *testing.T, files map[string]string, env map[string]string) config.Places {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		name = filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return config.Places{
		Personal: filepath.Join(dir, "home/config.toml"), Top: filepath.Join(dir, "top"),
		Getenv: func(name string) string { return env[name] },
	}
}

// example has a value other than the built-in one for each key, and one more.
var example = map[config.Key][2]string{
	config.Agent:        {`"shell"`, `"claude"`},
	config.Profile:      {`"nightly"`, `"weekly"`},
	config.AgentCommand: {`"opencode acp"`, `"gemini --acp"`},
	config.Permissions:  {`"ask"`, `"deny"`},
	config.Model:        {`"openai/gpt-5.5"`, `"gemini/x"`},
	config.Role:         {`"plan"`, `"review"`},
	config.Network:      {`"none"`, `"agent"`},
	config.Dirty:        {`"ignore"`, `"refuse"`},
	config.Timeout:      {`"3h"`, `"90s"`},
	config.Image:        {`"debian:12"`, `"tools@sha256:0123"`},
	config.Memory:       {`"2G"`, `"512M"`},
	config.CPUs:         {`2`, `3`},
	config.Disk:         {`"20G"`, `"512M"`},
	config.Include:      {`["/opt/x", "~/y"]`, `["/opt/z"]`},
	config.SetupScript:  {`".cove/other.sh"`, `"none"`},
	config.SetupTimeout: {`"5m"`, `"6m"`},
	config.PullAuto:     {`false`, `true`},
	config.PullInto:     {`"branch"`, `"none"`},
	config.PullRisky:    {`"list"`, `"hold"`},
	config.PushAutoPull: {`false`, `true`},
	config.SyncExclude:  {`["node_modules", "/dist"]`, `["*.o"]`},
	config.Backend:      {`"one"`, `"two"`},
}

const servers = "\n[backends.one]\nurl = \"http://127.0.0.1:1\"\n[backends.two]\nurl = \"http://127.0.0.1:2/\"\ntoken_command = [\"echo\", \"x\"]\n"

// line is a key with a value, in a file: dotted, which a table would be, too.
func line(key config.Key, value string) string { return string(key) + " = " + value + "\n" }

func show(v config.Value) string { return v.Text + strings.Join(v.List, ":") }

func plain(value string) string {
	return strings.NewReplacer(`"`, "", "[", "", "]", "", ", ", ":").Replace(value)
}

// Every key is taken from each place that may have it. The places count in their order.
func TestOrder(t *testing.T) {
	for _, key := range config.Keys() {
		values, ok := example[key]
		if !ok {
			t.Fatalf("no example of %s", key)
		}
		personal := line(key, values[1]) + servers
		for _, test := range []struct {
			name       string
			repository string
			env        map[string]string
			want       string
			from       config.Source
		}{
			{"personal", "", nil, values[1], config.FromPersonal},
			{"repository", line(key, values[0]), nil, values[0], config.FromRepository},
			{"environment", line(key, values[0]), map[string]string{config.Variable(key): plain(values[0])}, values[0], config.FromEnvironment},
		} {
			if key == config.SyncExclude && test.name != "personal" {
				continue // it has all of them: TestSyncExclude
			}
			if (key == config.Include || key == config.Backend || key == config.PullRisky || key == config.Permissions || key == config.Role || key == config.Profile) && test.name != "personal" {
				test.repository = ""
				if test.name == "repository" {
					continue
				}
			}
			p := world(t, map[string]string{"home/config.toml": personal, "top/.cove/config.toml": test.repository}, test.env)
			s, err := config.Load(p)
			if err != nil {
				t.Errorf("%s, %s: %v", key, test.name, err)
				continue
			}
			v := s.Value(key)
			if show(v) != plain(test.want) || v.From != test.from {
				t.Errorf("%s, %s: got %q from %s, want %q", key, test.name, show(v), v.From, plain(test.want))
			}
			if v.From != config.FromEnvironment && (v.Line != 1 || !strings.HasSuffix(v.File, "config.toml")) {
				t.Errorf("%s, %s: it stands in %s:%d", key, test.name, v.File, v.Line)
			}
		}
		s, err := config.Load(config.Places{Personal: filepath.Join(t.TempDir(), "none.toml"), Top: t.TempDir()})
		if err != nil {
			t.Fatal(err)
		}
		if v := s.Value(key); v.From != config.BuiltIn || v.Text != config.Default(key) {
			t.Errorf("%s without files: %+v", key, v)
		}
	}
}

// Patterns of all places are in force together. A repository can't take back the person's.
func TestSyncExclude(t *testing.T) {
	files := map[string]string{"home/config.toml": "[sync]\nexclude = [\"*.o\", \"!/keep.o\"]\n", "top/.cove/config.toml": "[sync]\nexclude = [\"node_modules\", \"/dist\"]\n"}
	env := map[string]string{"COVE_SYNC_EXCLUDE": "/a:/b"}
	for _, test := range []struct {
		file string
		env  map[string]string
		want string
		from config.Source
		note bool
	}{
		{"top/.cove/config.toml", nil, "node_modules /dist", config.FromRepository, false},
		{"", nil, "node_modules /dist *.o !/keep.o", config.FromPersonal, true},
		{"", env, "node_modules /dist *.o !/keep.o /a /b", config.FromEnvironment, true},
	} {
		some := files
		if test.file != "" {
			some = map[string]string{test.file: files[test.file], "home/config.toml": ""}
		}
		s, err := config.Load(world(t, some, test.env))
		if err != nil {
			t.Fatal(err)
		}
		if v := s.Value(config.SyncExclude); strings.Join(v.List, " ") != test.want || v.From != test.from || (v.Note != "") != test.note {
			t.Errorf("got %+v, want %s from %s", v, test.want, test.from)
		}
		if !strings.HasSuffix(s.Limits(), "top/.cove/config.toml") {
			t.Errorf("the repository's rules are in %q", s.Limits())
		}
	}
	s, err := config.Load(world(t, map[string]string{"home/config.toml": files["home/config.toml"], "top/.cove/config.toml": "agent = \"shell\"\n"}, nil))
	if err != nil || s.Limits() != "" {
		t.Errorf("without rules of the repository: %q, %v", s.Limits(), err)
	}
}

// For a wrong file, the error has all problems and their lines, and no setting of it is used.
func TestProblems(t *testing.T) {
	for _, test := range []struct {
		name       string
		personal   string
		repository string
		want       []string // FILE:LINE: KEY … in each, with the hint
	}{
		{"unknown keys", "agnet = \"shell\"\n\n[pull]\nintoo = \"ff\"\nauto = true\n", "",
			[]string{"home/config.toml:1: agnet: there is no such key (did you mean agent?)", "home/config.toml:4: pull.intoo: there is no such key (did you mean pull.into?)"}},
		{"values", "", "agent = \"shel\"\ntimeout = \"long\"\nmemory = \"much\"\ncpus = 0\nnetwork = 3\n[setup]\ntimeout = \"-1s\"\n", []string{
			`:1: agent: "shel" is not one of`, `(did you mean shell?)`, ":2: timeout:", ":3: memory:", ":4: cpus:", ":5: network: it must be a text, in quotes", ":7: setup.timeout:"}},
		{"types", "include = \"/opt\"\ncpus = \"2\"\npull.auto = 'yes'\n", "", []string{":1: include: it must be a list", ":2: cpus: it must be a number", ":3: pull.auto: it must be true or false"}},
		{"patterns", "[sync]\nexclude = [\"a\", \"!\"]\n", "[sync]\nexclude = [\"a\", \"!.env\"]\n", []string{
			`home/config.toml:2: sync.exclude: "!" is not a pattern`, "top/.cove/config.toml:2: sync.exclude: a repository may not set it to !.env"}},
		{"no list of patterns", "sync.exclude = \"a\"\n", "", []string{`:1: sync.exclude: it must be a list, such as ["node_modules", "/dist"]`}},
		{"no table", "pull = true\n", "", []string{":1: pull: it must be a table"}},
		{"no TOML", "agent = \n", "", []string{"home/config.toml:1"}},
		{"twice", "agent = 'shell'\nagent = 'shell'\n", "", []string{":2: agent:"}},
		{"what only the person may set", "", "include = [\"/home\"]\nbackend = \"mine\"\npull.risky = \"list\"\npermissions = \"allow\"\n[backends.mine]\nurl = \"http://evil.example\"\n",
			[]string{"top/.cove/config.toml:1: include: a repository may not set it", ":2: backend: a repository", ":3: pull.risky: a repository", ":4: permissions: a repository", "backends: a repository may not name servers"}},
		{"what a repository may set partly", "", "dirty = \"include\"\npull.auto = true\n[push]\nauto_pull = true\n",
			[]string{":1: dirty: a repository may not set it to include", ":2: pull.auto: a repository may not", ":4: push.auto_pull: a repository may not"}},
		{"backends", "[backends.a]\nurl = \"ftp://x\"\ntoken = \"secret-value\"\n[backends.b]\ntoken_file = \"x\"\nfoo = 1\n[backends.C]\n", "",
			[]string{":2: backends.a.url:", ":3: backends.a.token: a token does not belong", ":5: backends.b.token_file", ":6: backends.b.foo: there is no", "backends.b: it has no url", "backends.C: a backend must be a table"}},
		{"trees", "[[pull.sync]]\nfrom = \"../x\"\nto = \"a\"\n\n[[pull.sync]]\nfrom = \"dist\"\nto = \"a/b\"\nincludes = [\"*\"]\n[[pull.sync]]\nfrom = \"/\"\nto = \"../b\"\ninclude = [\"!x\"]\nexclude = \"y\"\n" +
			"[[pull.sync]]\nfrom = \"d\"\nto = \".GIT/hooks\"\nrepository = \"x\"\n[[pull.sync]]\n", "", []string{
			`:1: pull.sync.from: "../x" is not`, `:5: pull.sync.to: "a/b" overlaps with that of line 1`, ":5: pull.sync.includes: there is no such key (did you mean include?)",
			":9: pull.sync.from: it does not name a folder", `:9: pull.sync.to: "../b" must stay inside`, `:9: pull.sync.include: "!x" is not a pattern`, ":9: pull.sync.exclude: it must be a list",
			`:14: pull.sync.to: ".GIT/hooks" is git's own`, `:14: pull.sync.repository: "x" must begin`, ":18: pull.sync.from: it does not name", ":18: pull.sync.to: "}},
		{"no list of trees", "[pull]\nsync = \"dist\"\n", "", []string{":2: pull.sync: it must be a list of tables"}},
		{"trees of a repository", "", "[[pull.sync]]\nfrom = \"dist\"\nto = \".husky\"\n", []string{":1: pull.sync: a repository may not set it"}},
		{"no such backend", "backend = \"x\"\n", "", []string{":1: backend: there is no backend \"x\""}},
	} {
		t.Run(test.name, func(t *testing.T) {
			s, err := config.Load(world(t, map[string]string{"home/config.toml": test.personal, "top/.cove/config.toml": test.repository}, nil))
			problems, ok := errors.AsType[config.Problems](err)
			if s != nil || !ok {
				t.Fatalf("got %+v, %v", s, err)
			}
			var all strings.Builder
			for _, p := range problems {
				all.WriteString(p.Error() + " (" + p.Hint + ")\n")
			}
			for _, want := range test.want {
				if !strings.Contains(all.String(), want) {
					t.Errorf("no %q in\n%s", want, all.String())
				}
			}
			if strings.Contains(all.String(), "secret-value") {
				t.Error("the token is shown")
			}
		})
	}
	if _, err := config.Load(config.Places{Getenv: func(name string) string { return map[string]string{"COVE_CPUS": "many"}[name] }}); err == nil || !strings.Contains(err.Error(), "COVE_CPUS") {
		t.Errorf("a wrong variable: %v", err)
	}
	if _, err := config.Load(config.Places{Personal: "/nonexistent/x.toml", Named: true}); err == nil {
		t.Error("a file that was named is missing, and nobody minds")
	}
}

// A repository's network never reaches further than the person's.
func TestNetwork(t *testing.T) {
	for _, test := range []struct{ personal, repository, own, want string }{
		{"", "none", policy.Agent, "none"},
		{"", "open", policy.Agent, "agent"},
		{"", "open", policy.Open, "open"},
		{"", "agent", policy.Open, "agent"},
		{"none", "agent", policy.Agent, "none"},
		{"open", "defaults", policy.Agent, "defaults"},
		{"defaults", "agent", policy.Agent, "agent"},
		{"defaults", "open", policy.Open, "defaults"},
	} {
		quoted := func(v string) string {
			if v == "" {
				return ""
			}
			return line(config.Network, `"`+v+`"`)
		}
		s, err := config.Load(world(t, map[string]string{"home/config.toml": quoted(test.personal), "top/.cove/config.toml": quoted(test.repository)}, nil))
		if err != nil {
			t.Fatal(err)
		}
		v := s.Network(test.own)
		if v.Text != test.want || (v.Note != "") != (test.repository != test.want) {
			t.Errorf("%+v: got %+v", test, v)
		}
	}
}

// No name in .cove leads to a file outside of it.
func TestOwnFilesOnly(t *testing.T) {
	p := world(t, map[string]string{"home/secret": "KEY=the-secret\n", "top/.cove/x": "", "top/.env": "KEY=the-secret\n"}, nil)
	for name, target := range map[string]string{"sandbox.env": "../../home/secret", "setup.sh": "../.env", "config.toml": filepath.Dir(p.Personal) + "/secret"} {
		if err := os.Symlink(target, filepath.Join(p.Top, ".cove", name)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := config.Load(p); err == nil || strings.Contains(err.Error(), "the-secret") {
		t.Errorf("settings by a link: %v", err)
	}
	if vars, err := p.Environment("x"); err == nil || strings.Contains(err.Error(), "the-secret") {
		t.Errorf("an environment by a link: %v, %v", vars, err)
	}
	for _, v := range []config.Value{{}, {Text: ".env", From: config.FromRepository}, {Text: ".cove/../.env", From: config.FromRepository}, {Text: "/etc/passwd", From: config.FromRepository}} {
		if script, err := p.Script(v); err == nil {
			t.Errorf("%+v: read %q", v, script.Text)
		}
	}
	if err := os.RemoveAll(filepath.Join(p.Top, ".cove")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("../home", filepath.Join(p.Top, ".cove")); err != nil {
		t.Fatal(err)
	}
	if _, err := config.Load(p); err == nil {
		t.Error("a folder elsewhere was taken for .cove")
	}
}

func TestScript(t *testing.T) {
	files := map[string]string{"top/.cove/setup.sh": "default\n", "top/.cove/in/other.sh": "other\n", "home/mine.sh": "mine\n", "top/.cove/empty.sh": " \n"}
	p := world(t, files, nil)
	for _, test := range []struct {
		v    config.Value
		want string
	}{
		{config.Value{From: config.BuiltIn}, "default\n"},
		{config.Value{Text: ".cove/in/other.sh", From: config.FromRepository}, "other\n"},
		{config.Value{Text: "none", From: config.FromRepository}, ""},
		{config.Value{Text: "mine.sh", From: config.FromPersonal, File: p.Personal}, "mine\n"},
		{config.Value{Text: filepath.Join(filepath.Dir(p.Personal), "mine.sh"), From: config.FromFlag}, "mine\n"},
	} {
		script, err := p.Script(test.v)
		got := ""
		if script != nil {
			got = string(script.Text)
		}
		if err != nil || got != test.want {
			t.Errorf("%+v: got %q, %v", test.v, got, err)
		}
	}
	for _, v := range []config.Value{{Text: "absent.sh", From: config.FromFlag}, {Text: ".cove/absent.sh", From: config.FromRepository}, {Text: ".cove/empty.sh", From: config.FromRepository}} {
		if s, err := p.Script(v); err == nil {
			t.Errorf("%+v: got %q", v, s.Text)
		}
	}
	if s, err := (config.Places{Top: t.TempDir()}).Script(config.Value{}); s != nil || err != nil {
		t.Errorf("a repository without .cove: %v, %v", s, err)
	}
}

func TestParseEnv(t *testing.T) {
	for _, test := range []struct {
		text string
		want string // NAME=VALUE, separated by |
		err  string
	}{
		{"A=1\nB = two \n", "A=1|B=two", ""},
		{"# remark\n\n  # another\nexport A=1\nexport\tB=2\nexported=3", "A=1|B=2|exported=3", ""},
		{"A=x # remark\nB=x#y\nC=#\nD= # only\n", "A=x|B=x#y|C=|D=", ""},
		{`A='$x "y" \n # z' # remark`, `A=$x "y" \n # z`, ""},
		{`A="a\n\t\"b\" \\ $c # d"`, "A=a\n\t\"b\" \\ $c # d", ""},
		{"A='one\ntwo'\nB=3", "A=one\ntwo|B=3", ""},
		{"A=a=b=c", "A=a=b=c", ""},
		{"A=1\nA=2", "A=2", ""},
		{"A=1\r\nB=\"x\"\r\n", "A=1|B=x", ""},
		{"\ufeffA=1", "A=1", ""},
		{"A=it's", "A=it's", ""},
		{"A=$HOME/`x`", "A=$HOME/`x`", ""},
		{"A=1\nnonsense\nB=2", "A=1|B=2", "f:2: a line must be NAME=VALUE"},
		{"1A=x", "", "f:1: the text before the ="},
		{"A='x\ny", "", "f:1: A: the closing quote is missing"},
		{"A=\"x\" y", "", "f:1: A: something follows"},
		{`A="\x"`, "", `f:1: A: \x has no meaning`},
		{"A=a\x00b", "", "f:1: A: a value can't have a NUL"},
	} {
		vars, problems := config.ParseEnv("f", []byte(test.text))
		var got []string
		for _, v := range vars {
			got = append(got, v.Name+"="+v.Value)
		}
		if strings.Join(got, "|") != test.want {
			t.Errorf("%q: got %q", test.text, got)
		}
		if (len(problems) > 0) != (test.err != "") || len(problems) > 0 && !strings.HasPrefix(problems.Error(), test.err) {
			t.Errorf("%q: got error %v", test.text, problems)
		}
	}
}

func FuzzParseEnv(f *testing.F) {
	f.Add("A=1\nexport B='x\ny' # z\nC=\"\\n\"\n")
	f.Fuzz(func(t *testing.T, text string) {
		vars, _ := config.ParseEnv("f", []byte(text))
		for _, v := range vars {
			if v.Name == "" || strings.ContainsAny(v.Name, "=\x00 \n") || strings.ContainsRune(v.Value, 0) {
				t.Errorf("%q gave %q=%q", text, v.Name, v.Value)
			}
		}
	})
}

// The person's variables win, an empty value takes one away, and GitHub's token has
// both of its names (J11).
func TestEnvironment(t *testing.T) {
	for _, test := range []struct {
		name                 string
		repository, personal string
		want                 []string
	}{
		{"both", "A=1\nB=1\n", "B=2\nC=2\n", []string{"A=1 repository", "B=2 personal", "C=2 personal"}},
		{"dropped", "A=1\nB=1\n", "A=\n", []string{"B=1 repository"}},
		{"nothing to drop", "A=\n", "", nil},
		{"mirrored", "GITHUB_TOKEN=a\n", "", []string{"GH_TOKEN=a repository", "GITHUB_TOKEN=a repository"}},
		{"own name", "GITHUB_TOKEN=a\n", "GH_TOKEN=b\n", []string{"GH_TOKEN=b personal", "GITHUB_TOKEN=a repository"}},
		{"mirror dropped", "GITHUB_TOKEN=a\nGH_TOKEN=\n", "", []string{"GITHUB_TOKEN=a repository"}},
		{"token dropped", "GITHUB_TOKEN=a\n", "GITHUB_TOKEN=\n", nil},
	} {
		p := world(t, map[string]string{"top/.cove/sandbox.env": test.repository, "home/sandboxes/paint.env": test.personal, "home/sandboxes/other.env": "Z=1\n"}, nil)
		vars, err := p.Environment("paint")
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, v := range vars {
			got = append(got, v.Name+"="+v.Value+" "+string(v.From))
		}
		if !slices.Equal(got, test.want) {
			t.Errorf("%s: got %q, want %q", test.name, got, test.want)
		}
	}
	// A person's file may refer to a secret, and a repository's may not.
	p := world(t, map[string]string{"top/.cove/sandbox.env": "A=1\n", "home/sandboxes/paint.env": "B={secret:ci}\n"}, nil)
	if vars, err := p.Environment("paint"); err != nil || len(vars) != 2 || vars[1].Value != "{secret:ci}" {
		t.Errorf("a secret in a person's file: %v, %v", vars, err)
	}
	p = world(t, map[string]string{"top/.cove/sandbox.env": "A=1\nB=the-value{secret:ci}\n", "home/sandboxes/paint.env": "B=\n"}, nil)
	if vars, err := p.Environment("paint"); err == nil || vars != nil || !strings.Contains(err.Error(), "sandbox.env:2") || !strings.Contains(err.Error(), "sandboxes/paint.env") || strings.Contains(err.Error(), "the-value") {
		t.Errorf("a secret in a repository's file: %v, %v", vars, err)
	}
	p = world(t, map[string]string{"top/.cove/sandbox.env": "A=1\nwrong-value\n", "home/sandboxes/other.env": "B='x\n"}, nil)
	if vars, err := p.Environment("paint"); err == nil || vars != nil || strings.Contains(err.Error(), "wrong-value") {
		t.Errorf("a wrong file gave %v, %v", vars, err)
	}
	if all := p.CheckEnvFiles(); len(all) != 2 {
		t.Errorf("what is wrong in all: %v", all)
	}
}

func TestConnectorOf(t *testing.T) {
	for text, want := range map[string]string{
		"ANTHROPIC_API_KEY=x": "anthropic", "X=sk-ant-api03-1": "anthropic", "OPENAI_API_KEY=x": "openai", "K=sk-proj-1": "openai",
		"GH_TOKEN=x": "github", "T=ghp_abc": "github", "G=AIzaSy": "gemini", "PORT=3000": "", "NAME=sketch": "",
	} {
		vars, _ := config.ParseEnv("f", []byte(text))
		if got := vars[0].Connector(); got != want {
			t.Errorf("%s: got %q", text, got)
		}
	}
}

func TestPersonalFile(t *testing.T) {
	t.Setenv("HOME", "/home/ada")
	for _, test := range []struct {
		env   map[string]string
		want  string
		named bool
	}{
		{nil, "/home/ada/.config/cove/config.toml", false},
		{map[string]string{"XDG_CONFIG_HOME": "/x"}, "/x/cove/config.toml", false},
		{map[string]string{"XDG_CONFIG_HOME": "relative"}, "/home/ada/.config/cove/config.toml", false},
		{map[string]string{"COVE_CONFIG": "/y.toml", "XDG_CONFIG_HOME": "/x"}, "/y.toml", true},
	} {
		if got, named := config.PersonalFile(func(n string) string { return test.env[n] }); got != test.want || named != test.named {
			t.Errorf("%v: got %s, %v", test.env, got, named)
		}
	}
}
