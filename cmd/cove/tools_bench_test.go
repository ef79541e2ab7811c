package main

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/cove-dev/cove/internal/lib/tools"
)

// BenchmarkTool is calls of tools in one session, beside what a program inside needs
// for the same, without the exec that starts it: grep -r for Grep, cat for Read, and
// sh -c for Bash.
func BenchmarkTool(b *testing.B) {
	h := newHost(b)
	h.serve(nil)
	h.run("", "cove", "create", "paint")
	s := h.toolSession(b.Context(), "paint", "", tools.Full)
	bashIn(b, s, `{"command":"mkdir tree && cd tree && for d in $(seq 100); do mkdir $d; for f in $(seq 100); do seq $((d*f%200)) >$d/$f; echo needle$d >>$d/$f; head -c 2000 /proc/self/maps >>$d/$f; done; done; seq 20000 | head -c 102400 >../file","timeout_ms":600000}`)
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

// insideTime is how long a command takes in the sprite, by a clock there.
func insideTime(b *testing.B, s *tools.Session, command string) time.Duration {
	b.Helper()
	input, err := json.Marshal(tools.BashInput{Command: `begin=$(date +%s%N); ` + command + `; echo $(($(date +%s%N) - begin))`})
	if err != nil {
		b.Fatal(err)
	}
	var took int64
	if _, err := fmt.Sscan(bashIn(b, s, string(input)).Stdout.Text, &took); err != nil {
		b.Fatal(err)
	}
	return time.Duration(took)
}
