package e2e

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/test/need"
)

// Median returns the median of durations, in milliseconds.
func Median(d []time.Duration) float64 {
	slices.Sort(d)
	return float64(d[len(d)/2].Microseconds()) / 1000
}

// RunIn runs a command in a sprite, without its output.
func RunIn(c *cove.Client, sprite, name string, args ...string) error {
	return c.Sprite(sprite).Command(name, args...).Run()
}

// ProcField returns the value of a /proc file's line that is in kB, in bytes.
func ProcField(b testing.TB, file, key string) int64 {
	b.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		b.Fatal(err)
	}
	for line := range strings.Lines(string(data)) {
		if f := strings.Fields(line); len(f) >= 2 && f[0] == key {
			n, err := strconv.ParseInt(f[1], 10, 64)
			if err != nil {
				b.Fatal(err)
			}
			return n << 10
		}
	}
	b.Fatalf("%s has no %s", file, key)
	return 0
}

// NeedsCgroups skips a test of limits unless root runs it: else there may be no limits.
func NeedsCgroups(t *testing.T) {
	t.Helper()
	need.Root(t)
}

// PeakResident returns the most memory that a process has had resident, in bytes.
func PeakResident(t testing.TB, pid int) int64 {
	t.Helper()
	return ProcField(t, fmt.Sprintf("/proc/%d/status", pid), "VmHWM:")
}

// Resident returns the memory that a process has resident, in bytes.
func Resident(t testing.TB, pid int) int64 {
	t.Helper()
	return ProcField(t, fmt.Sprintf("/proc/%d/status", pid), "VmRSS:")
}
