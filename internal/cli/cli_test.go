package cli

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/spf13/cobra"

	"github.com/cove-dev/cove"
)

// parse finds the command of a line and parses its flags, without running it.
func parse(t *testing.T, args ...string) (*invocation, *cobra.Command, []string, error) {
	t.Helper()
	inv := newInvocation(Streams{In: strings.NewReader(""), Out: &bytes.Buffer{}, Err: &bytes.Buffer{}})
	root := newRootCommand(inv)
	var found *cobra.Command
	var rest []string
	for _, c := range all(root) {
		if c.HasSubCommands() {
			continue
		}
		c.RunE = func(cmd *cobra.Command, args []string) error {
			found, rest = cmd, args
			return nil
		}
	}
	root.SetArgs(args)
	root.SetOut(inv.Out)
	root.SetErr(inv.Err)
	return inv, found, rest, func() error { err := root.Execute(); return err }()
}

func all(cmd *cobra.Command) []*cobra.Command {
	list := []*cobra.Command{cmd}
	for _, c := range cmd.Commands() {
		list = append(list, all(c)...)
	}
	return list
}

// All words after exec's command belong to that command (E4).
func TestExecFlags(t *testing.T) {
	for _, test := range []struct {
		args   string
		sprite string
		want   string
	}{
		{"exec -s vm ls -la", "vm", "ls -la"},
		{"exec -s vm npm test --json", "vm", "npm test --json"},
		{"exec -s vm -- ls -la", "vm", "ls -la"},
		{"exec ls -- -x", "", "ls -- -x"},
		{"exec -- -x", "", "-x"},
		{"-s vm exec ls -s other", "vm", "ls -s other"},
		{"exec ls -s other --url x -q -v --help -h", "", "ls -s other --url x -q -v --help -h"},
		{"exec -s exec exec exec", "exec", "exec exec"},
		{"-s exec exec ls", "exec", "ls"},
		{"exec -i -t --dir /tmp --env A=b --env C=d --user root --timeout 5m --detach=false sh -c x", "", "sh -c x"},
		{"x -s vm cat -", "vm", "cat -"},
		{"exec create --memory 2G", "", "create --memory 2G"},
		{"exec help", "", "help"},
	} {
		var got []string
		inv := newInvocation(Streams{In: strings.NewReader(""), Out: &bytes.Buffer{}, Err: &bytes.Buffer{}})
		root := newRootCommand(inv)
		exec, _, err := root.Find([]string{"exec"})
		if err != nil {
			t.Fatal(err)
		}
		exec.RunE = func(_ *cobra.Command, args []string) error { got = args; return nil }
		root.SetArgs(strings.Fields(test.args))
		if err := root.Execute(); err != nil {
			t.Errorf("%s: %v", test.args, err)
			continue
		}
		if strings.Join(got, " ") != test.want || inv.global.sprite != test.sprite || inv.global.json || inv.global.quiet {
			t.Errorf("%s: command %q, sprite %q, json %v", test.args, got, inv.global.sprite, inv.global.json)
		}
	}
}

// Every command has help that a newcomer can use.
func TestHelp(t *testing.T) {
	inv := newInvocation(Streams{Out: &bytes.Buffer{}, Err: &bytes.Buffer{}})
	for _, c := range all(newRootCommand(inv)) {
		if c.Hidden {
			continue
		}
		if c.Short == "" || c.Long == "" || !strings.Contains(c.Example, "cove") {
			t.Errorf("%s lacks a description or an example", c.CommandPath())
		}
		for line := range strings.SplitSeq(c.Long+"\n"+c.Example, "\n") {
			if len(line) > 100 {
				t.Errorf("%s: a line of the help is %d long: %s", c.CommandPath(), len(line), line)
			}
		}
	}
}

func TestPullWaitWithSpace(t *testing.T) {
	for _, test := range []struct {
		args string
		rest string
		wait time.Duration
	}{
		{"pull a3f7b2", "a3f7b2", 0},
		{"pull a3f7b2 --wait", "a3f7b2", waitForEver},
		{"pull a3f7b2 --wait=2m", "a3f7b2", 2 * time.Minute},
		{"pull a3f7b2 --wait 2m", "a3f7b2", 2 * time.Minute},
		{"pull --wait 2m a3f7b2", "a3f7b2", 2 * time.Minute},
		{"pull --wait a3f7b2", "a3f7b2", waitForEver},
		{"pull --wait=2m a3f7b2 3m", "a3f7b2 3m", 2 * time.Minute},
	} {
		_, cmd, args, err := parse(t, strings.Fields(test.args)...)
		if err != nil || cmd == nil {
			t.Errorf("%s: %v", test.args, err)
			continue
		}
		wait, err := cmd.Flags().GetDuration("wait")
		if err != nil {
			t.Fatal(err)
		}
		rest, got := waitArgument(cmd, args, wait)
		if strings.Join(rest, " ") != test.rest || got != test.wait {
			t.Errorf("%s: %q, %v; want %q, %v", test.args, rest, got, test.rest, test.wait)
		}
	}
}

func TestParseSide(t *testing.T) {
	for arg, want := range map[string]side{
		"paint:/a":  {true, "paint", "/a"},
		"paint:":    {true, "paint", "."},
		":x":        {true, "", "x"},
		"paint:a:b": {true, "paint", "a:b"},
		"-":         {false, "", "-"},
		"./a:b":     {false, "", "./a:b"},
		"/a:b":      {false, "", "/a:b"},
		"dir/a:b":   {false, "", "dir/a:b"},
		"file":      {false, "", "file"},
	} {
		if got := parseSide(arg); got != want {
			t.Errorf("%s: %+v, want %+v", arg, got, want)
		}
	}
}

func TestNames(t *testing.T) {
	for name, ok := range map[string]bool{
		"a": true, "paint": true, "web-1": true, "1": true, strings.Repeat("a", 63): true,
		"": false, "-a": false, "a-": false, "A": false, "a_b": false, "a.b": false, "../x": false, strings.Repeat("a", 64): false, "a\n": false,
	} {
		if err := checkName(name); (err == nil) != ok {
			t.Errorf("%q: %v", name, err)
		}
	}
	for id, ok := range map[string]bool{"a3f7b2": true, "000000": true, "": false, "A3F7B2": false, "a3f7b": false, "a3f7b22": false, "../../x": false, "a3f7b2\n": false} {
		if err := checkJob(id); (err == nil) != ok {
			t.Errorf("%q: %v", id, err)
		}
	}
}

// A .sprite file that a repository or another user brings does not choose the sprite,
// and that is said once.
func TestForeignSpriteFile(t *testing.T) {
	top := t.TempDir()
	repo := filepath.Join(top, "repo")
	below := filepath.Join(repo, "below")
	git := func(args ...string) {
		t.Helper()
		cmd := exec.Command("git", append([]string{"-C", repo, "-c", "user.name=a", "-c", "user.email=a@example.org"}, args...)...)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("git %v: %v: %s", args, err, out)
		}
	}
	if err := os.MkdirAll(below, 0o755); err != nil {
		t.Fatal(err)
	}
	for dir, name := range map[string]string{top: "mine", repo: "theirs"} {
		if _, err := writeSpriteFile(dir, name); err != nil {
			t.Fatal(err)
		}
	}
	look := func(want string, said int) {
		t.Helper()
		var errs bytes.Buffer
		inv := newInvocation(Streams{Err: &errs})
		for range 2 {
			if _, name, err := inv.sprite.findFile(t.Context(), below); name != want || err != nil {
				t.Errorf("got %q, %v, want %q", name, err, want)
			}
		}
		if text := errs.String(); strings.Count(text, "Ignored ") != said || said > 0 && !strings.Contains(text, "-s NAME") {
			t.Errorf("it says %q", text)
		}
	}
	look("theirs", 0)
	git("init", "-q")
	look("theirs", 0)
	git("add", ".sprite")
	look("mine", 1)
	git("commit", "-qm", "one")
	look("mine", 1)
	git("rm", "-q", "--cached", ".sprite")
	look("theirs", 0)
	// Git runs nothing that the repository names, nor does it take a folder for a repository
	// that only looks like one.
	mark := filepath.Join(top, "ran")
	git("config", "core.fsmonitor", "touch "+mark+"; false")
	git("add", ".sprite")
	if err := os.Remove(mark); err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	look("mine", 1)
	if _, err := os.Lstat(mark); err == nil {
		t.Error("a program of the repository's was run")
	}
	if os.Geteuid() == 0 {
		git("rm", "-q", "--cached", ".sprite")
		if err := os.Chown(filepath.Join(repo, ".sprite"), 54321, -1); err != nil {
			t.Fatal(err)
		}
		look("mine", 1)
	}
}

func TestSpriteFile(t *testing.T) {
	top := t.TempDir()
	deep := filepath.Join(top, "a", "b")
	if err := os.MkdirAll(deep, 0o755); err != nil {
		t.Fatal(err)
	}
	look := func(dir string) (string, error) {
		_, name, err := newInvocation(Streams{}).sprite.findFile(t.Context(), dir)
		return name, err
	}
	if _, err := writeSpriteFile(top, "paint"); err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(filepath.Join(top, ".sprite")); err != nil || string(text) != "{\"sprite\":\"paint\"}\n" {
		t.Errorf("wrote %q, %v", text, err)
	}
	if name, err := look(deep); name != "paint" || err != nil {
		t.Errorf("from below: %q, %v", name, err)
	}
	// A nearer one counts; a folder of that name does not.
	if _, err := writeSpriteFile(filepath.Join(top, "a"), "web"); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(deep, ".sprite"), 0o755); err != nil {
		t.Fatal(err)
	}
	if name, err := look(deep); name != "web" || err != nil {
		t.Errorf("the nearer: %q, %v", name, err)
	}
	for _, bad := range []string{"", "{}", `{"sprite":"../x"}`, `{"sprite":1}`, "paint", strings.Repeat(" ", maxToken+1)} {
		if err := os.WriteFile(filepath.Join(top, "a", ".sprite"), []byte(bad), 0o644); err != nil {
			t.Fatal(err)
		}
		if name, err := look(deep); err == nil {
			t.Errorf("%.20q gave %q", bad, name)
		}
	}
	if left, _ := filepath.Glob(filepath.Join(top, ".sprite-*")); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
}

func TestDetachReader(t *testing.T) {
	for in, want := range map[string]string{"abc": "abc", "\x1cabc": "", "ab\x1ccd": "ab", "ab\x1c": "ab"} {
		detached := 0
		r := &detachReader{in: strings.NewReader(in), detach: func() { detached++ }}
		var got bytes.Buffer
		if _, err := got.ReadFrom(r); err != nil {
			t.Fatal(err)
		}
		if got.String() != want {
			t.Errorf("%q: the command got %q, want %q", in, got.String(), want)
		}
		if wantDetached := strings.Count(in, "\x1c"); detached != wantDetached {
			t.Errorf("%q: detached %d times, want %d", in, detached, wantDetached)
		}
	}
}

func TestTokenRequest(t *testing.T) {
	for _, test := range []struct {
		o      tokenOptions
		sprite string
		ok     bool
	}{
		{tokenOptions{all: true, verbs: []string{"read"}}, "", true},
		{tokenOptions{prefix: "ci-", verbs: []string{"read", "exec"}, expires: time.Hour}, "", true},
		{tokenOptions{verbs: []string{"read"}}, "paint", true},
		{tokenOptions{verbs: []string{"read"}}, "", false},
		{tokenOptions{all: true, verbs: []string{"read"}}, "paint", false},
		{tokenOptions{all: true, verbs: []string{"fly"}}, "", false},
		{tokenOptions{all: true}, "", false},
		{tokenOptions{all: true, verbs: []string{"read"}, expires: -1}, "", false},
	} {
		req, err := test.o.request(nil, "n", test.sprite)
		if (err == nil) != test.ok {
			t.Errorf("%+v: %v", test.o, err)
		}
		if test.o.expires > 0 && req.TTLSeconds != 3600 {
			t.Errorf("ttl %d", req.TTLSeconds)
		}
	}
}

func TestToolchains(t *testing.T) {
	home := t.TempDir()
	for _, dir := range []string{".nvm/versions/node", ".cargo/bin/x", "go/bin", ".pyenv"} {
		if err := os.MkdirAll(filepath.Join(home, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	env := map[string]string{"GOROOT": filepath.Join(home, "go"), "NVM_DIR": filepath.Join(home, ".nvm")}
	got := toolchains(func(k string) string { return env[k] }, func() (string, error) { return home, nil })
	for _, want := range []string{"go", ".nvm/versions", ".cargo/bin"} {
		if n := len(slices.DeleteFunc(slices.Clone(got), func(s string) bool { return s != filepath.Join(home, want) })); n != 1 {
			t.Errorf("%s is there %d times in %q", want, n, got)
		}
	}
	if slices.Contains(got, filepath.Join(home, ".pyenv")) {
		t.Error("an empty folder is offered")
	}
	env["GOROOT"] = "/usr/lib/go"
	if got := toolchains(func(k string) string { return env[k] }, func() (string, error) { return home, nil }); slices.Contains(got, "/usr/lib/go") {
		t.Error("what is under /usr is offered")
	}
}

func TestProgressIsSilent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, g := range []globals{{quiet: true}, {json: true}, {}} {
			var errs bytes.Buffer
			inv := newInvocation(Streams{Err: &errs})
			*inv.global = g
			p := inv.newProgress("x", 10)
			p.Add(5)
			p.Close() // of short work nothing is shown
			if errs.Len() > 0 {
				t.Errorf("%+v: %q", g, errs.String())
			}
		}
	})
}

func TestProgressLines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var errs bytes.Buffer
		inv := newInvocation(Streams{Err: &errs})
		p := inv.newProgress("x", 100)
		for range 100 {
			p.Add(1)
			time.Sleep(time.Second)
			synctest.Wait() // it shows the line before the next is added
		}
		p.Close()
		got := ""
		for line := range strings.Lines(errs.String()) {
			_, line, _ = strings.Cut(line, "(")
			percent, _, _ := strings.Cut(line, ")")
			got += percent + " "
		}
		// They are at twice the time of the one before, and at the end.
		if want := "2% 4% 8% 16% 32% 64% 100% "; got != want {
			t.Errorf("got %q, want %q", got, want)
		}
		errs.Reset()
		p = inv.newProgress("deleting", 0)
		time.Sleep(time.Minute)
		p.Close()
		if got := errs.String(); got != "deleting …\n" {
			t.Errorf("without numbers: %q", got)
		}
	})
}

func TestSpawnedServerDiesEarly(t *testing.T) {
	// The scripts test a server that starts; this one's command fails at once.
	dir := t.TempDir()
	ended := make(chan error, 1)
	ended <- context.Canceled
	if err := awaitServer(t.Context(), dir, ended); err != context.Canceled {
		t.Errorf("got %v", err)
	}
}

func TestJobNextStep(t *testing.T) {
	for _, test := range []struct {
		job  cove.Job
		want string
	}{
		{cove.Job{ID: "a3f7b2", State: cove.JobRunning}, "logs -f a3f7b2"},
		{cove.Job{ID: "a3f7b2", State: cove.JobRunning, JobSettings: cove.JobSettings{Interactive: true}}, "attach a3f7b2"},
		{cove.Job{ID: "a3f7b2", State: cove.JobSucceeded, JobResult: cove.JobResult{Bundle: cove.Artifact{Size: 1}}}, "pull a3f7b2"},
		{cove.Job{ID: "a3f7b2", State: cove.JobSucceeded}, ""},
		{cove.Job{ID: "$(rm)", State: cove.JobRunning}, ""},
	} {
		if got := nextStep(test.job); !strings.HasSuffix(got, test.want) {
			t.Errorf("%+v: %q, want %q", test.job, got, test.want)
		}
	}
}

func TestFindToken(t *testing.T) {
	list := []cove.Token{{ID: "1a", Name: "ci"}, {ID: "2b", Name: "laptop"}, {ID: "3c", Name: "ci"}, {ID: "4d", Name: "1a"}}
	for arg, want := range map[string]string{"2b": "2b", "laptop": "2b", "1a": "1a", "ci": "", "x": ""} {
		if got, err := findToken(list, arg); got != want || (err != nil) != (want == "") {
			t.Errorf("%s: got %q, %v, want %q", arg, got, err, want)
		}
	}
}

// TestTopics: each topic has a name that no command has, is sorted, and fits a terminal. No
// help of a command is longer than the topics allow it to be.
func TestTopics(t *testing.T) {
	var out bytes.Buffer
	root := newRootCommand(newInvocation(Streams{Out: &out, Err: &out}))
	root.SetOut(&out)
	names := []string{}
	for _, topic := range topics {
		names = append(names, topic.Name)
		if found, _, err := root.Find([]string{topic.Name}); err == nil && found != root {
			t.Errorf("%s is a command, too", topic.Name)
		}
		for line := range strings.SplitSeq(topic.Long, "\n") {
			if len(line) > 100 {
				t.Errorf("%s: a line is %d long: %s", topic.Name, len(line), line)
			}
		}
		out.Reset()
		root.SetArgs([]string{"help", topic.Name})
		if err := root.Execute(); err != nil || out.String() != topic.Long+"\n" {
			t.Errorf("help %s: %v, %q", topic.Name, err, out.String())
		}
	}
	if !slices.IsSorted(names) {
		t.Errorf("not sorted: %v", names)
	}
	out.Reset()
	root.SetArgs([]string{"--help"})
	if err := root.Execute(); err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if !strings.Contains(out.String(), "\n  "+name+" ") {
			t.Errorf("cove --help does not list %s", name)
		}
	}
	for _, c := range all(root) {
		if n := strings.Count(c.Long, "\n") + 1; c != root && n > maxHelp {
			t.Errorf("%s: the help has %d lines, and %d are allowed; move a part to a topic (topics.go)", c.CommandPath(), n, maxHelp)
		}
	}
}

// maxHelp is how many lines the help of a command may have, without examples and flags.
const maxHelp = 15
