package probe_test

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/cove-dev/cove/internal/guest/probe"
)

// TestAnswer: once its file is there, it answers at that port, until its context ends.
func TestAnswer(t *testing.T) {
	file := filepath.Join(t.TempDir(), "port")
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- probe.Answer(ctx, file) }()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	var port []byte
	for len(port) == 0 {
		select {
		case err := <-ended:
			t.Fatalf("it ended: %v", err)
		case <-tick.C:
		}
		var err error
		if port, err = os.ReadFile(file); err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Fatal(err)
		}
	}
	resp, err := http.Get("http://127.0.0.1:" + string(port) + "/health?echo=yes")
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(resp.Body)
	_ = resp.Body.Close()
	if err != nil || resp.StatusCode != http.StatusOK || string(text) != "yes" {
		t.Errorf("got %d %q, %v", resp.StatusCode, text, err)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("got %v", err)
	}
	if err := probe.Answer(t.Context(), filepath.Join(t.TempDir(), "none", "port")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without its folder: got %v", err)
	}
}
