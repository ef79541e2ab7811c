package bench

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cove-dev/cove/internal/lib/tools"
	"github.com/cove-dev/cove/internal/test/e2e"
)

// BenchmarkMCP times calls of tools by MCP, one at a time and eight at once, through cove
// mcp and through the server's /mcp. Its floor is an equivalent program inside the
// sprite.
func BenchmarkMCP(b *testing.B) {
	h := e2e.NewHost(b)
	h.Serve(nil)
	h.Run("", "cove", "create", "paint")
	direct := h.ToolSession(b.Context(), "paint", "", tools.Full)
	e2e.BashIn(b, direct, `{"command":"seq 20000 | head -c 102400 >file"}`)
	_, secret := h.Token("bench", "-s", "paint")
	for _, way := range []struct {
		name    string
		session *mcp.ClientSession
	}{{"Stdio", e2e.MCPClient(h, nil, "-s", "paint")}, {"HTTP", e2e.MCPOverHTTP(h, secret, nil, "-s", "paint")}} {
		for _, bench := range []struct {
			name, tool string
			args       map[string]any
			at         int // once
			floor      string
		}{
			{"Read100KB", "Read", map[string]any{"file_path": "file", "limit": 100000}, 1, "cat file >/dev/null"},
			{"Read100KBx8", "Read", map[string]any{"file_path": "file", "limit": 100000}, 8, "for i in 1 2 3 4 5 6 7 8; do cat file >/dev/null & done; wait"},
			{"Bash", "Bash", map[string]any{"command": "true"}, 1, "sh -c true"},
			{"Bashx8", "Bash", map[string]any{"command": "true"}, 8, "for i in 1 2 3 4 5 6 7 8; do sh -c true & done; wait"},
			{"Sleep200msx8", "Bash", map[string]any{"command": "sleep 0.2"}, 8, "for i in 1 2 3 4 5 6 7 8; do sleep 0.2 & done; wait"},
		} {
			b.Run(way.name+bench.name, func(b *testing.B) {
				var ours, floor []time.Duration
				for b.Loop() {
					ours = append(ours, timed(b, func() error {
						errs := make(chan error, bench.at)
						for range bench.at {
							go func() {
								r, err := way.session.CallTool(b.Context(), &mcp.CallToolParams{Name: bench.tool, Arguments: bench.args})
								if err == nil && r.IsError {
									err = fmt.Errorf("%s: %+v", bench.tool, r.Content[0])
								}
								errs <- err
							}()
						}
						var err error
						for range bench.at {
							if e := <-errs; e != nil {
								err = e
							}
						}
						return err
					}))
					floor = append(floor, insideTime(b, direct, bench.floor))
				}
				report(b, ours, floor)
			})
		}
	}
}

// BenchmarkTool times calls of tools in one session. Its floor is an equivalent program
// inside (grep -r for Grep, cat for Read, sh -c for Bash), without the exec that starts
// it.
func BenchmarkTool(b *testing.B) {
	h := e2e.NewHost(b)
	h.Serve(nil)
	h.Run("", "cove", "create", "paint")
	s := h.ToolSession(b.Context(), "paint", "", tools.Full)
	e2e.BashIn(b, s, `{"command":"mkdir tree && cd tree && for d in $(seq 100); do mkdir $d; for f in $(seq 100); do seq $((d*f%200)) >$d/$f; echo needle$d >>$d/$f; head -c 2000 /proc/self/maps >>$d/$f; done; done; seq 20000 | head -c 102400 >../file","timeout_ms":600000}`)
	call := func(b *testing.B, tool, input string) time.Duration {
		return timed(b, func() error {
			_, err := s.Call(b.Context(), tool, json.RawMessage(input))
			return err
		})
	}
	for _, bench := range []struct{ name, tool, input, floor string }{
		{"Read100KB", "Read", `{"file_path":"file","limit":100000}`, "cat file >/dev/null"},
		{"Grep10kFiles", "Grep", `{"pattern":"needle7","path":"tree"}`, "grep -rl needle7 tree >/dev/null"},
		{"GrepRegexp10kFiles", "Grep", `{"pattern":"[a-z]+le7[0-9]$","path":"tree","output_mode":"content","limit":10000}`, "grep -rnE '[a-z]+le7[0-9]$' tree >/dev/null"},
		{"Glob10kFiles", "Glob", `{"pattern":"tree/**/7*"}`, "find tree -name '7*' >/dev/null"},
		{"Edit100KB", "Edit", "", "cp file file.new && sync file.new && mv file.new file"},
		{"Bash", "Bash", `{"command":"true"}`, "sh -c true"},
	} {
		b.Run(bench.name, func(b *testing.B) {
			var ours, floor []time.Duration
			for i := 0; b.Loop(); i++ {
				input := bench.input
				if bench.tool == "Edit" {
					input = fmt.Sprintf(`{"file_path":"file","old_string":"\n777\n","new_string":"\n777\n%d\n"}`, i)
				}
				ours = append(ours, call(b, bench.tool, input))
				floor = append(floor, insideTime(b, s, bench.floor))
			}
			report(b, ours, floor)
		})
	}
	b.Run("Read100KBx8", func(b *testing.B) {
		var ours, floor []time.Duration
		for b.Loop() {
			ours = append(ours, timed(b, func() error {
				errs := make(chan error, 8)
				for range 8 {
					go func() {
						_, err := s.Call(b.Context(), "Read", json.RawMessage(`{"file_path":"file","limit":100000}`))
						errs <- err
					}()
				}
				var err error
				for range 8 {
					if e := <-errs; e != nil {
						err = e
					}
				}
				return err
			}))
			floor = append(floor, insideTime(b, s, "for i in 1 2 3 4 5 6 7 8; do cat file >/dev/null & done; wait"))
		}
		report(b, ours, floor)
	})
}

// insideTime returns how long a command takes in the sprite, by the sprite's clock.
func insideTime(b *testing.B, s *tools.Session, command string) time.Duration {
	b.Helper()
	input, err := json.Marshal(tools.BashInput{Command: `begin=$(date +%s%N); ` + command + `; echo $(($(date +%s%N) - begin))`})
	if err != nil {
		b.Fatal(err)
	}
	var took int64
	if _, err := fmt.Sscan(e2e.BashIn(b, s, string(input)).Stdout.Text, &took); err != nil {
		b.Fatal(err)
	}
	return time.Duration(took)
}
