package cli

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/creack/pty"
	"github.com/spf13/cobra"
)

// askedServer is a server that knows nothing, and notes what it is asked.
type askedServer struct {
	*httptest.Server
	mu    sync.Mutex
	paths []string
}

func newAskedServer(t *testing.T) *askedServer {
	s := &askedServer{}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		s.paths = append(s.paths, r.Method+" "+r.URL.Path)
		s.mu.Unlock()
		http.Error(w, `{"error":{"code":"not_found","message":"there is none"}}`, http.StatusNotFound)
	}))
	t.Cleanup(s.Close)
	return s
}

var spritePath = regexp.MustCompile(`/sprites/([a-z0-9-]+)`)

// sprites are those that were asked for, since the last call.
func (s *askedServer) sprites() (names []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, path := range s.paths {
		if m := spritePath.FindStringSubmatch(path); m != nil && !slices.Contains(names, m[1]) {
			names = append(names, m[1])
		}
	}
	s.paths = nil
	return names
}

// arguments are those of commands that need some besides a sprite.
var arguments = map[string]string{
	"update": "--idle 1m", "fork": "NEW", "exec": "true", "tool call": `Bash {"command":"true"}`, "proxy": "0:1", "cp": ":x -",
	"session attach": "1", "session kill": "1", "service put": "web true", "service show": "web", "service start": "web",
	"service restart": "web", "service stop": "web", "service logs": "web", "service signal": "web HUP", "service rm": "web",
	"policy set": "--preset open", "policy allow": "a.example.org", "policy deny": "a.example.org", "policy limit": "--connections 1",
	"policy test": "a.example.org", "restore": "v1", "checkpoint show": "v1", "checkpoint diff": "v1 v2", "checkpoint rm": "v1",
}

// notAsking are commands that need more than a server to come to their sprite: a terminal,
// or a client that speaks to them. They take it by the same functions.
var notAsking = []string{"console", "mcp", "mcp config", "acp", "push", "run", "job list", "job resume", "token create", "connector grant", "connector revoke", "use", "env show", "sync status", "tool list", "ping"}

// Each command finds its sprite by the same rule. The first of these counts: its argument
// NAME, -s, COVE_SPRITE, the sprite that cove use noted. Without any, the error says how to
// choose one. Two different names are refused before a server is asked.
func TestEveryVerbFindsItsSprite(t *testing.T) {
	server := newAskedServer(t)
	empty, noted := t.TempDir(), t.TempDir()
	if _, err := writeSpriteFile(noted, "noted"); err != nil {
		t.Fatal(err)
	}
	run := func(dir, env, line string) (names []string, exit int, errs string) {
		t.Helper()
		t.Chdir(dir)
		t.Setenv("COVE_SPRITE", env)
		var out, err bytes.Buffer
		args := append(strings.Fields(line), "--url", server.URL, "--token", "x")
		if name, rest, ok := strings.Cut(line, " -- "); ok {
			args = append(append(strings.Fields(name), "--url", server.URL, "--token", "x"), strings.Fields(rest)...)
		}
		exit = Main(t.Context(), args, Streams{In: strings.NewReader(""), Out: &out, Err: &err})
		return server.sprites(), exit, err.String()
	}
	for verb, use := range spriteVerbs {
		if use == noSprite || slices.Contains(notAsking, verb) {
			continue
		}
		rest := " -- " + arguments[verb]
		for _, test := range []struct {
			given            string // after the verb
			dir, env         string
			want             string // empty: refused
			byName, notNamed bool   // for such verbs alone, or for all others
		}{
			{" -s flag", empty, "", "flag", false, false},
			{" -s flag", noted, "env", "flag", false, false},
			{"", noted, "env", "env", false, true},
			{"", noted, "", "noted", false, true},
			{"", empty, "", "", false, true},
			{" -- arg", noted, "env", "arg", true, false},
			{" -s arg -- arg", empty, "", "arg", true, false},
			{" -s flag -- arg", empty, "", "", true, false},
		} {
			named := use == byName || verb == "rm"
			if test.byName && !named || test.notNamed && use == namedOnly {
				continue
			}
			line := verb + test.given + rest
			if strings.Contains(test.given, " -- ") {
				line = verb + test.given + " " + arguments[verb]
			}
			names, exit, errs := run(test.dir, test.env, strings.ReplaceAll(line, "NEW", "new"))
			names = slices.DeleteFunc(names, func(n string) bool { return n == "new" })
			switch {
			case test.want == "" && (exit != exitUsage || len(names) > 0):
				t.Errorf("%s: exit code %d, asked for %q: %s", line, exit, names, errs)
			case test.want != "" && !slices.Equal(names, []string{test.want}):
				t.Errorf("%s: asked for %q, want %s: %s", line, names, test.want, errs)
			}
		}
	}
	// A delete takes only the names that are typed.
	if names, exit, errs := run(noted, "env", "rm"); exit != exitUsage || len(names) > 0 {
		t.Errorf("rm deletes what was not named: %d, %q, %s", exit, names, errs)
	}
	if names, exit, _ := run(empty, "", "cp -s flag -- x arg:y"); exit == exitOK || len(names) > 0 {
		t.Errorf("cp takes one of two sprites: %q", names)
	}
	if _, _, errs := run(empty, "", "list -s flag"); !strings.Contains(errs, "-s flag has no effect") {
		t.Errorf("list -s says nothing: %s", errs)
	}
}

// The help of a command shows -s if, and only if, it has a sprite, and so does completion.
func TestSpriteFlagIsShown(t *testing.T) {
	known := map[string]bool{}
	for _, c := range all(newRootCommand(newInvocation(Streams{}))) {
		name := commandName(c)
		known[name] = true
		if c.Hidden || name == "" {
			continue
		}
		var help, complete bytes.Buffer
		inv := newInvocation(Streams{Out: io.Discard, Err: io.Discard})
		root := newRootCommand(inv)
		root.SetOut(&help)
		root.SetArgs(append(strings.Fields(name), "--help"))
		if err := root.Execute(); err != nil {
			t.Fatal(err)
		}
		Main(t.Context(), append(append([]string{cobra.ShellCompNoDescRequestCmd}, strings.Fields(name)...), "--spr"), Streams{Out: &complete, Err: io.Discard})
		want := usesSprite(c) != noSprite
		if got := strings.Contains(help.String(), "--sprite string"); got != want {
			t.Errorf("%s: -s is in its help: %v, want %v", name, got, want)
		}
		if got := strings.Contains(complete.String(), "--sprite"); got != want {
			t.Errorf("%s: -s is completed: %v, want %v", name, got, want)
		}
	}
	for name := range spriteVerbs {
		if !known[name] {
			t.Errorf("there is no command %s", name)
		}
	}
}

// Every command that destroys something asks at a terminal, and names what would be lost. Any
// answer but yes means no.
func TestDestroyingAsks(t *testing.T) {
	lines := []string{"rm paint", "checkpoint rm -s paint v1", "checkpoint prune -s paint --keep-last 1", "job rm a3f7b2", "job gc --older-than 0", "job refs --prune --force", "environment rm 3f9c",
		"token rm ci", "secret rm github", "profile rm nightly", "connector rm ci", "webhook rm ci", "service rm -s paint web", "agent rm greeter", "backend rm far", "restart paint", "image rm debian:12", "image prune --all"}
	jobs := `{}`
	asking := 0
	for _, c := range all(newRootCommand(newInvocation(Streams{}))) {
		if c.Flags().Lookup("yes") != nil {
			asking++
		}
		if (c.Name() == "rm" || c.Name() == "gc" || c.Name() == "prune") && c.Flags().Lookup("yes") == nil {
			t.Errorf("%s does not ask", c.CommandPath())
		}
	}
	if asking != len(lines) {
		t.Errorf("%d commands ask, %d are here", asking, len(lines))
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Method == http.MethodDelete:
			t.Errorf("%s %s, though nobody said yes", r.Method, r.URL.Path)
		case strings.HasSuffix(r.URL.Path, "/prune"), strings.HasSuffix(r.URL.Path, "/gc"):
			if text, _ := io.ReadAll(r.Body); !strings.Contains(string(text), `"dry_run":true`) {
				t.Errorf("%s: %s, though nobody said yes", r.URL.Path, text)
			}
			_, _ = io.WriteString(w, `{"removed":[{"id":"v1","job":"a3f7b2","why":"old"}],"images":["sha256:1"],"names":["old:1"],"named":1}`)
		case strings.HasSuffix(r.URL.Path, "/environments"):
			_, _ = io.WriteString(w, `{"environments":[{"id":"3f9c","name":"job-a3f7b2","job":"a3f7b2","state":"asleep","work":true}]}`)
		case strings.HasSuffix(r.URL.Path, "/restart"), strings.HasSuffix(r.URL.Path, "/environments/destroy"):
			t.Errorf("%s, though nobody said yes", r.URL.Path)
		case strings.HasSuffix(r.URL.Path, "/jobs"):
			_, _ = io.WriteString(w, jobs)
		case strings.HasSuffix(r.URL.Path, "/checkpoints"):
			_, _ = io.WriteString(w, `[]`)
		default:
			_, _ = io.WriteString(w, `{"id":"v1","name":"paint","sprite":"paint","comment":"before"}`)
		}
	}))
	t.Cleanup(server.Close)
	t.Chdir(t.TempDir())
	for _, line := range lines {
		lost, declined := "deleted for good", "nothing was deleted"
		if line == "restart paint" { // which asks if a job is at work there
			lost, declined = "This will end:", "nothing was ended"
			jobs = `{"jobs":[{"id":"a3f7b2","state":"running","sprite":"paint","started_at":"2026-02-03T10:11:12Z"}]}`
		}
		for _, answer := range []string{"\n", "n\n", "\x04"} {
			screen, terminal, err := pty.Open()
			if err != nil {
				t.Fatal(err)
			}
			exit := make(chan int, 1)
			args := append(strings.Fields(line), "--url", server.URL, "--token", "x")
			go func() {
				exit <- Main(t.Context(), args, Streams{In: terminal, Out: io.Discard, Err: terminal})
				_ = terminal.Close()
			}()
			var said strings.Builder
			for buf := make([]byte, 1<<10); ; {
				n, err := screen.Read(buf)
				before := strings.Contains(said.String(), "[y/N]")
				said.Write(buf[:n])
				if err != nil {
					break
				}
				if !before && strings.Contains(said.String(), "[y/N]") {
					if _, err := io.WriteString(screen, answer); err != nil {
						t.Fatal(err)
					}
				}
			}
			if code := <-exit; code != exitInterrupted || !strings.Contains(said.String(), lost) || !strings.Contains(said.String(), declined) {
				t.Errorf("%s, %q: exit code %d: %s", line, answer, code, said.String())
			}
			_ = screen.Close()
		}
	}
}

// With --yes, or without a terminal, nothing is asked.
func TestYesAsksNothing(t *testing.T) {
	server := newAskedServer(t)
	t.Chdir(t.TempDir())
	t.Setenv("COVE_DATA", t.TempDir())
	for _, line := range []string{"rm --yes paint", "rm paint", "checkpoint rm --yes -s paint v1", "checkpoint prune --yes -s paint --keep-last 1", "job rm --yes a3f7b2", "job gc --yes",
		"job refs --yes --prune --force", "token rm --yes ci", "secret rm --yes github", "connector rm --yes ci", "service rm --yes -s paint web", "agent rm --yes greeter", "environment rm --yes 3f9c", "environment rm --yes --orphans"} {
		screen, terminal, err := pty.Open()
		if err != nil {
			t.Fatal(err)
		}
		var errs bytes.Buffer
		streams := Streams{In: terminal, Out: io.Discard, Err: &errs}
		if Main(t.Context(), append(strings.Fields(line), "--url", server.URL, "--token", "x"), streams); strings.Contains(errs.String(), "[y/N]") {
			t.Errorf("%s asks", line)
		}
		_, _ = terminal.Close(), screen.Close()
	}
}
