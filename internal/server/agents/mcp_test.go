package agents

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cove-dev/cove"
)

// TestStartedServers: the program of a started server has the command and the variables as
// given, and each agent that starts servers gets that program. No argument or variable of the
// agent has their values.
func TestStartedServers(t *testing.T) {
	const value = "it's $HOME `x` \\ \"y\"\nz"
	servers := []cove.MCPServer{{Name: "files", Command: []string{"sh", "-c", `printf '%s|%s|%s' "$TOKEN" "$1" "$#"`, "sh", "a b'c"}, Env: []string{"TOKEN=" + value}}}
	starters := 0
	for _, agent := range all {
		if _, ok := agent.(MCPStarter); !ok {
			continue
		}
		starters++
		dir := t.TempDir()
		for _, converse := range []bool{false, true} {
			_, converses := agent.(Converser)
			if converse && !converses {
				continue
			}
			work, err := agent.Prepare(Task{Plan: "# Plan", PlanName: "plan.md", Dir: dir, Workdir: "/w", Home: "/h", Command: "x", MCP: servers, Converse: converse})
			if err != nil {
				t.Fatal(err)
			}
			file, program := work.Files["mcp/files"], filepath.Join(dir, "mcp", "files")
			led := strings.Join(append(work.Argv, work.Env...), "\n")
			if config, ok := work.Files["mcp.json"]; ok && strings.Contains(led, filepath.Join(dir, "mcp.json")) {
				led += string(config.Data)
			}
			if file.Mode != 0o700 || !strings.Contains(led, program) || strings.Contains(led, "it's") {
				t.Errorf("%s: %v, led by %q", agent.Name(), file.Mode, led)
			}
			if err := os.MkdirAll(filepath.Dir(program), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(program, file.Data, 0o700); err != nil {
				t.Fatal(err)
			}
			out, err := exec.Command("sh", program).CombinedOutput()
			if want := value + "|a b'c|1"; err != nil || string(out) != want {
				t.Errorf("%s: got %q, %v, want %q", agent.Name(), out, err, want)
			}
		}
	}
	if starters != 5 {
		t.Errorf("%d agents start servers", starters)
	}
}
