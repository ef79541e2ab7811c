package server

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cove-dev/cove/internal/test/e2e"
)

// TestByTheDocument acts like a client with only the OpenAPI document. With net/http it makes
// a sprite, runs a command, lists jobs and deletes the sprite. The paths, bodies and statuses
// are the document's.
func TestByTheDocument(t *testing.T) {
	h := e2e.NewHost(t)
	h.Serve(nil)
	text, err := os.ReadFile(filepath.Join(h.Data, "token"))
	if err != nil {
		t.Fatal(err)
	}
	base := e2e.JSONField(t, h.Run("", "cove", "server", "status", "--json"), "url")
	var doc struct {
		Paths map[string]map[string]struct {
			OperationID string         `json:"operationId"`
			Responses   map[string]any `json:"responses"`
		} `json:"paths"`
	}
	if err := json.Unmarshal([]byte(h.Run("", "cove", "api", "openapi")), &doc); err != nil {
		t.Fatal(err)
	}
	// call makes the call of an operation, and wants an answer that the document has.
	call := func(operation string, path map[string]string, query url.Values, in, out any) []byte {
		t.Helper()
		for pattern, item := range doc.Paths {
			for method, op := range item {
				if op.OperationID != operation {
					continue
				}
				for key, value := range path {
					pattern = strings.ReplaceAll(pattern, "{"+key+"}", url.PathEscape(value))
				}
				var body io.Reader
				if in != nil {
					text, err := json.Marshal(in)
					if err != nil {
						t.Fatal(err)
					}
					body = bytes.NewReader(text)
				}
				req, err := http.NewRequestWithContext(t.Context(), strings.ToUpper(method), base+pattern+"?"+query.Encode(), body)
				if err != nil {
					t.Fatal(err)
				}
				req.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(text)))
				req.Header.Set("Content-Type", "application/json")
				resp, err := http.DefaultClient.Do(req)
				if err != nil {
					t.Fatal(err)
				}
				defer resp.Body.Close()
				answer, err := io.ReadAll(resp.Body)
				if _, ok := op.Responses[fmt.Sprint(resp.StatusCode)]; err != nil || !ok {
					t.Fatalf("%s: status %d, %v: %s", operation, resp.StatusCode, err, answer)
				}
				if out != nil && json.Unmarshal(answer, out) != nil {
					t.Fatalf("%s: %s", operation, answer)
				}
				return answer
			}
		}
		t.Fatalf("the document has no operation %s", operation)
		return nil
	}

	var sprite struct{ Name, Status string }
	call("postSprites", nil, nil, map[string]any{"name": "paint"}, &sprite)
	if sprite.Name != "paint" || sprite.Status != "cold" {
		t.Errorf("made %+v", sprite)
	}
	one := map[string]string{"name": "paint"}
	frames := call("postSpritesNameExec", one, url.Values{"cmd": {"sh", "-c", "echo hello; exit 7"}}, nil, nil)
	if !bytes.Equal(frames, []byte("\x01hello\n\x03\x07")) {
		t.Errorf("the command's frames are %q", frames)
	}
	var jobs struct{ Jobs []any }
	call("getJobs", nil, nil, nil, &jobs)
	if jobs.Jobs == nil || len(jobs.Jobs) > 0 {
		t.Errorf("the jobs are %v", jobs.Jobs)
	}
	call("deleteSpritesName", one, nil, nil, nil)
}
