package agents

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/test/e2e"
)

// TestAPIExamplesAreShort: each program has at most 60 lines that are not blank, imports and comments
// included, and none of them is wider than 150 columns.
func TestAPIExamplesAreShort(t *testing.T) {
	const dir = "../../../examples/job"
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 2 {
		t.Fatalf("got %v, %v", entries, err)
	}
	for _, entry := range entries {
		lines := 0
		for line := range strings.Lines(e2e.ReadFile(t, filepath.Join(dir, entry.Name()))) {
			if line = strings.ReplaceAll(strings.TrimRight(line, "\r\n"), "\t", "    "); strings.TrimSpace(line) != "" {
				lines++
			}
			if len(line) > 150 {
				t.Errorf("%s: a line has %d columns: %s", entry.Name(), len(line), line)
			}
		}
		if lines == 0 || lines > 60 {
			t.Errorf("%s has %d lines", entry.Name(), lines)
		}
	}
}

// TestAPIExamples: the programs of examples/job make a profile, start a job, show its steps and
// answer its agent's question. In the end they remove all that they have made.
func TestAPIExamples(t *testing.T) {
	h := e2e.NewHost(t)
	modules := e2e.JSModules(t)
	h.Serve(nil)
	dir, command := scripted(h)
	repo := h.Repository("repo", map[string]string{"plan.md": scriptedPlan("ask to paint", "write painted.txt yes", scriptedCommit, "say Done.")})
	settings, err := json.Marshal(cove.ProfileSettings{
		Agent: "acp", AgentCommand: command, Permissions: "ask", Include: []string{dir}, Author: &cove.Person{Name: "Ada", Email: "ada@example.org"},
	})
	if err != nil {
		t.Fatal(err)
	}
	h.Write("example/profile.json", string(settings))
	h.Write("example/job.mjs", e2e.ReadFile(t, "../../../examples/job/job.mjs"))
	if err := os.Symlink(modules, h.Path("example/node_modules")); err != nil {
		t.Fatal(err)
	}
	build := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-o", h.Path("example/job"), "../../../examples/job")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the example: %v\n%s", err, out)
	}
	client := h.Client()
	for name, argv := range map[string][]string{"Go": {h.Path("example/job")}, "JavaScript": {filepath.Join(modules, ".bin", "node"), h.Path("example/job.mjs")}} {
		cmd := h.Command(repo, argv[0], append(argv[1:], h.Path("example/profile.json"), "plan.md")...)
		cmd.Env = append(cmd.Env, "COVE_URL="+client.URL, "COVE_TOKEN="+client.Token, "NODE_OPTIONS=")
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Errorf("%s: %v\n%s", name, err, out)
		}
		for _, want := range []string{"== clone completed", "?? to paint\n", "== succeeded"} {
			if !strings.Contains(string(out), want) {
				t.Errorf("%s: the output lacks %q:\n%s", name, want, out)
			}
		}
		jobs, err := client.Jobs(t.Context())
		profiles, perr := cove.Profiles{Client: client}.List(t.Context())
		if err != nil || perr != nil || len(jobs) != 0 || len(profiles) != 0 {
			t.Errorf("%s: left are %d jobs, %d profiles (%v, %v)", name, len(jobs), len(profiles), err, perr)
		}
		for info, err := range client.All(t.Context(), "") {
			t.Errorf("%s: the sprite %s is left (%v)", name, info.Name, err)
		}
	}
}
