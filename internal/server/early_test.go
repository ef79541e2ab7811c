package server_test

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/cove-dev/cove/internal/test/covetest"
)

// TestInterruptedBetweenReads: a request that is refused while its client has paused in the
// middle of the body is answered at once, and not when the client sends more.
func TestInterruptedBetweenReads(t *testing.T) {
	s := covetest.Start(t, covetest.Options{})
	s.Create("paint")
	for name, call := range map[string]struct {
		call   string
		length int64 // -1: it is not said
		status int
	}{
		"an archive":                      {"POST /v1/sprites/import?name=copy", -1, http.StatusNotImplemented},
		"an archive of a known length":    {"POST /v1/sprites/import?name=copy", 1000, http.StatusNotImplemented},
		"a file for a sprite not there":   {"PUT /v1/sprites/none/fs/write?path=/tmp/x", -1, http.StatusNotFound},
		"a file in the place of a folder": {fsCall("PUT", "write", "path", t.TempDir()), -1, http.StatusBadRequest},
	} {
		t.Run(name, func(t *testing.T) {
			method, path, _ := strings.Cut(call.call, " ")
			body, more := io.Pipe()
			defer more.Close()
			go func() { _, _ = io.WriteString(more, "the beginning") }() // and then nothing
			req, err := http.NewRequestWithContext(t.Context(), method, s.URL+path, body)
			must(t, err)
			req.ContentLength = call.length
			req.Header.Set("Authorization", "Bearer "+s.Token)
			resp, err := http.DefaultClient.Do(req)
			must(t, err)
			text, err := io.ReadAll(resp.Body)
			failIf(t, err != nil || resp.StatusCode != call.status || !strings.Contains(string(text), "message"), "got %d %s (%v), want %d", resp.StatusCode, text, err, call.status)
			_ = resp.Body.Close()
		})
	}
}
