package e2e

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
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

// peakVariable names the file for the figure of Peak. It is set for a test binary that only runs
// one program.
const peakVariable = "COVE_TEST_PEAK"

// Peak runs cove. It returns the output of both streams, the exit code, and the most memory that
// cove had resident, in bytes.
func Peak(h *Host, dir string, args ...string) (out string, code int, most int64) {
	h.T.Helper()
	self, err := os.Executable()
	if err != nil {
		h.T.Fatal(err)
	}
	// The kernel's figure for a process begins with the memory of its parent. So its parent is
	// not this process, but one that has just begun.
	figure := filepath.Join(h.T.TempDir(), "peak")
	cmd := h.Command(dir, self, append([]string{filepath.Join(h.Bin, "cove")}, args...)...)
	cmd.Env = append(cmd.Env, peakVariable+"="+figure)
	text, err := cmd.CombinedOutput()
	if _, ok := errors.AsType[*exec.ExitError](err); err != nil && !ok {
		h.T.Fatal(err)
	}
	number, err := os.ReadFile(figure)
	if err == nil {
		most, err = strconv.ParseInt(string(number), 10, 64)
	}
	if err != nil {
		h.T.Fatalf("the memory of cove %s: %v\n%s", strings.Join(args, " "), err, text)
	}
	return string(text), cmd.ProcessState.ExitCode(), most
}

// measurePeak runs the program of this process's arguments, and writes the most memory that it
// had to a file. It returns the program's exit code.
func measurePeak(file string) int {
	cmd := exec.Command(os.Args[1], os.Args[2:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	err := errors.Join(os.Unsetenv(peakVariable), cmd.Start())
	if err == nil {
		_ = cmd.Wait() // the exit code says it
		usage, _ := cmd.ProcessState.SysUsage().(*syscall.Rusage)
		err = os.WriteFile(file, []byte(strconv.FormatInt(usage.Maxrss<<10, 10)), 0o600)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return cmd.ProcessState.ExitCode()
}
