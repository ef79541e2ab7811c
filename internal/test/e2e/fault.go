package e2e

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/cove-dev/cove/internal/lib/fault"
	"github.com/cove-dev/cove/internal/shim"
)

// A FaultCase kills a victim when a change of a sprite is at a point.
type FaultCase struct {
	Point  fault.Point
	Victim string // server, shim or sandbox
}

// Reached waits until a process stands still at the fault point that makes the file, and returns
// its number. The process makes the file a moment before it stops. A SIGCONT in that moment would
// be lost, and the process would stand still for ever.
func Reached(t testing.TB, file string) (pid int) {
	t.Helper()
	Await(t, "the fault point", func() bool {
		text, err := os.ReadFile(file)
		pid, _ = strconv.Atoi(strings.TrimSpace(string(text)))
		if err != nil || pid == 0 {
			return false
		}
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		return err != nil || strings.Contains(string(stat), ") T ") // or it was killed
	})
	return pid
}

// Victims returns the processes to kill.
func (c FaultCase) Victims(h *Host, server int) []int {
	switch c.Victim {
	case "server":
		return []int{server}
	case "shim":
		return h.Shims()
	}
	var pids []int
	runs, _ := filepath.Glob(filepath.Join(h.Data, "run", "*")) // the pattern is right
	for _, dir := range runs {
		if st, err := shim.ReadState(dir); err == nil && st.PID > 0 {
			pids = append(pids, st.PID)
		}
	}
	return pids
}

// Acks are the lines that a program has printed. They may be read while it runs.
type Acks struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (a *Acks) Write(p []byte) (int, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.text.Write(p)
}

func (a *Acks) String() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.text.String()
}

// Lines returns the complete lines.
func (a *Acks) Lines() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	all := strings.Split(a.text.String(), "\n")
	return all[:len(all)-1]
}
