package sprite

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestMemoryKills: the last processes that were ended are told, also those in the log before
// this one.
func TestMemoryKills(t *testing.T) {
	dir := t.TempDir()
	old, log := filepath.Join(dir, "memory.log.1"), filepath.Join(dir, "memory.log")
	if got := lastKills([]string{old, log}); got != nil {
		t.Errorf("without a log: %v", got)
	}
	var lines strings.Builder
	for pid := 1; pid <= 1000; pid++ { // more than what is read
		fmt.Fprintf(&lines, "{\"pid\":%d}\n", pid)
	}
	if err := os.WriteFile(old, []byte(lines.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	pids := func() (pids []int) {
		for _, k := range lastKills([]string{old, log}) {
			pids = append(pids, k.PID)
		}
		return pids
	}
	if got, want := fmt.Sprint(pids()), "[996 997 998 999 1000]"; got != want {
		t.Errorf("only the old log: got %s, want %s", got, want)
	}
	if err := os.WriteFile(log, []byte("{\"pid\":1001}\n{\"pid\":1002}\nno JSON\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, want := fmt.Sprint(pids()), "[998 999 1000 1001 1002]"; got != want {
		t.Errorf("both logs: got %s, want %s", got, want)
	}
}
