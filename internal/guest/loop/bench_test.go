package loop_test

import (
	"bytes"
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/cove-dev/cove/internal/guest/loop"
	"github.com/cove-dev/cove/internal/test/modeltest"
)

// BenchmarkTurn measures a loop's turn with a call of Read. It compares this with the same
// requests made by a plain client, which show the share of the scripted model.
func BenchmarkTurn(b *testing.B) {
	const turns = 50
	for _, provider := range loop.Providers() {
		b.Run(provider, func(b *testing.B) {
			var script script
			for range turns - 1 {
				script.turns = append(script.turns, turn("I read it.", call("Read", object{"file_path": "file"})))
			}
			var ours, floor time.Duration
			for b.Loop() {
				bench := set(b, provider, "full", script)
				bench.write("file", "some lines\nof a file\n")
				begun := time.Now()
				bench.run(loop.Done)
				ours += time.Since(begun)
				floor += replay(b, provider, bench.model.Requests())
			}
			each := float64(b.N*turns) * float64(time.Millisecond)
			b.ReportMetric(float64(ours)/each, "ms/turn")
			b.ReportMetric(float64(floor)/each, "ms/floor")
			b.ReportMetric(float64(ours-floor)/each, "ms/added")
			b.ReportMetric(0, "ns/op") // of a loop that holds both: meaningless
		})
	}
}

// replay makes requests again, and returns how long that took.
func replay(b *testing.B, provider string, all []modeltest.Request) time.Duration {
	b.Helper()
	var s script
	for range len(all) - 1 {
		s.turns = append(s.turns, turn("I read it.", call("Read", object{"file_path": "file"})))
	}
	url := serve(b, servers[provider].make(s))
	begun := time.Now()
	for _, r := range all {
		req, err := http.NewRequestWithContext(b.Context(), http.MethodPost, url+r.Path, bytes.NewReader(r.Body))
		if err != nil {
			b.Fatal(err)
		}
		req.Header.Set("X-Api-Key", key)
		req.Header.Set("X-Goog-Api-Key", key)
		req.Header.Set("Authorization", "Bearer "+key)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			b.Fatal(err)
		}
		text, err := io.ReadAll(resp.Body)
		if err != nil || resp.StatusCode != http.StatusOK {
			b.Fatalf("%s: %v %.200s", resp.Status, err, text)
		}
		resp.Body.Close()
	}
	return time.Since(begun)
}
