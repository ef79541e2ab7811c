package shim

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cove-dev/cove/internal/shim/gateway"
)

// The next shim finds the use of connectors.
func TestRequestLog(t *testing.T) {
	dir := t.TempDir()
	open := func() (*requestLog, map[string]gateway.Usage, error) {
		l := &requestLog{eventLog: newEventLog(dir, RequestLog), path: filepath.Join(dir, usageFile)}
		used, err := l.open()
		return l, used, err
	}
	l, used, err := open()
	if err != nil || len(used) != 0 {
		t.Fatalf("got %v, %v", used, err)
	}
	want := gateway.Usage{Requests: 2, Day: time.Now().UTC().Truncate(24 * time.Hour), Bytes: 9}
	l.add(gateway.Request{Connector: "api", Path: "/" + strings.Repeat("x", 1<<20), Usage: &gateway.Usage{Requests: 1}})
	l.add(gateway.Request{Connector: "api", Path: "/a\xffb", Usage: &want})
	l.add(gateway.Request{Connector: "nosuch", Refused: "not granted"})
	if _, used, err = open(); err != nil || len(used) != 1 || used["api"] != want {
		t.Errorf("got %v, %v", used, err)
	}
	data, err := os.ReadFile(filepath.Join(dir, RequestLog))
	if lines := strings.Split(string(data), "\n"); err != nil || len(lines) != 4 || len(lines[0]) > 5000 || !strings.Contains(lines[1], "/a?b") || !strings.Contains(lines[2], "not granted") {
		t.Errorf("the log has %d bytes, %v", len(data), err)
	}
	if err := os.WriteFile(filepath.Join(dir, usageFile), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if l, used, err := open(); err == nil || len(used) != 0 || l.used == nil {
		t.Errorf("from a file that is none: got %v, %v", used, err)
	}
}
