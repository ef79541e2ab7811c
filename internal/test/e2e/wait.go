package e2e

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"
)

// AwaitEnd returns once the process is gone or a zombie of another parent. While other threads
// than its first one are there, its files are still open.
func AwaitEnd(pid int) error {
	for deadline := time.Now().Add(LastResort); time.Now().Before(deadline); {
		proc := fmt.Sprintf("/proc/%d", pid)
		stat, err := os.ReadFile(proc + "/stat")
		threads, _ := os.ReadDir(proc + "/task") // of one that is gone there are none
		if err != nil || strings.Contains(string(stat), ") Z ") && len(threads) <= 1 {
			return nil
		}
		<-time.After(20 * time.Millisecond)
	}
	return fmt.Errorf("process %d does not end", pid)
}

// LastResort bounds what a test waits for. It only keeps a broken test from hanging for
// ever: no test passes or fails because something took long.
const LastResort = 10 * time.Minute

// Await polls until f returns true, and fails after LastResort. It polls soon at first, and
// then less and less often: f may start programs, which slow the awaited one.
func Await(t testing.TB, what string, f func() bool) {
	t.Helper()
	pause := firstPause
	for deadline := time.Now().Add(LastResort); !f(); <-time.After(pause) {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within %v", what, LastResort)
		}
		pause = min(pause*5/4, longestPause)
	}
}

// firstPause and longestPause bound the pause between two calls of f by Await.
const (
	firstPause   = 10 * time.Millisecond
	longestPause = 100 * time.Millisecond
)

// LongEnough calls f with a time limit that f will exceed, or that something must outlast. A
// slow machine takes longer for what f does before the limit. If f reports that this was not
// done in time, it is called with a longer limit.
func LongEnough(t testing.TB, limit time.Duration, f func(limit time.Duration) (inTime bool)) {
	t.Helper()
	for ; !f(limit); limit *= 6 {
		if limit > LastResort/2 {
			t.Fatalf("not in time with a limit of %v", limit)
		}
	}
}
