package main

import (
	"fmt"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cove-dev/cove/internal/lib/tools"
)

// BenchmarkMCP is calls of tools by MCP, through cove mcp and through the server's
// /mcp, one at a time and eight at once, beside what a program inside needs for the
// same.
func BenchmarkMCP(b *testing.B) {
	h := newHost(b)
	h.serve(nil)
	h.run("", "cove", "create", "paint")
	direct := h.toolSession(b.Context(), "paint", "", tools.Full)
	bashIn(b, direct, `{"command":"seq 20000 | head -c 102400 >file"}`)
	_, secret := h.token("bench", "-s", "paint")
	for _, way := range []struct {
		name    string
		session *mcp.ClientSession
	}{{"Stdio", h.mcpClient(nil, "-s", "paint")}, {"HTTP", h.mcpOverHTTP(secret, nil, "-s", "paint")}} {
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
