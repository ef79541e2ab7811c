package cli

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/sprites"
)

// weighed is a bundle that keeps only the names and the total size of its files.
type weighed struct {
	bytes int64
	names []string
}

func (w *weighed) write(_, name string, data []byte) error {
	w.bytes += int64(len(data))
	w.names = append(w.names, name)
	return nil
}

func (*weighed) close(bool) error { return nil }

// TestBundleOfALiar collects from a sprite whose folders have very many files, and whose
// files have no end. The bundle must not fill this machine's disk.
func TestBundleOfALiar(t *testing.T) {
	endless := true
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case strings.HasSuffix(r.URL.Path, "/fs/list"):
			_, _ = io.WriteString(w, `{"entries":[`)
			for i := range 3 * maxTranscripts {
				_, _ = fmt.Fprintf(w, `{"name":"%d.\u001b]0;x","type":"file","mode":"0644"},`, i)
			}
			_, _ = io.WriteString(w, `{"name":"z.jsonl","type":"file","mode":"0644"}]}`)
		case strings.HasSuffix(r.URL.Path, "/fs/read"):
			for block := make([]byte, 64<<10); endless; {
				if _, err := w.Write(block); err != nil {
					return
				}
			}
		}
	}))
	defer server.Close()
	client := &cove.Client{Client: &sprites.Client{URL: server.URL}}
	job := cove.Job{ID: "a3f7b2", Workdir: "/w", JobSettings: cove.JobSettings{Agent: "claude"}, JobProgress: cove.JobProgress{Input: cove.Artifact{Path: "/j/in.bundle"}}}
	collect := func() (*weighed, *jobBundle) {
		t.Helper()
		kept := &weighed{}
		b := &jobBundle{client: client, sprite: client.Sprite("evil"), job: job, dst: kept, add: func(int) {}, left: 4 << 20, manifest: bundled{Files: map[string]int64{}}}
		if err := b.fromSprite(t.Context()); err != nil {
			t.Fatal(err)
		}
		return kept, b
	}
	kept, b := collect()
	if kept.bytes > 4<<20 {
		t.Errorf("%d bytes came out of the sprite", kept.bytes)
	}
	if len(b.manifest.Missing) < 2 || b.manifest.Missing[0].Name != "the rest of agent/output.log" {
		t.Errorf("nobody is told what is missing: %v", b.manifest.Missing)
	}
	endless = false // and empty
	kept, b = collect()
	if len(kept.names) > maxTranscripts+3 || !strings.Contains(fmt.Sprint(b.manifest.Missing), "the rest of transcript") {
		t.Errorf("%d files, without %v", len(kept.names), b.manifest.Missing)
	}
	for _, name := range kept.names {
		if strings.ContainsAny(name, "\x1b;]") {
			t.Fatalf("a file is called %q", name)
		}
	}
}
