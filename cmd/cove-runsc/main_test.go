package main

import (
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"testing"
)

// TestCollectLater: garbage is left alone at first, and then by the usual rule.
func TestCollectLater(t *testing.T) {
	const anew = "COVE_TEST_COLLECT"
	if os.Getenv(anew) == "" {
		cmd := exec.Command(os.Args[0], "-test.run=^TestCollectLater$", "-test.v") // this one has looked already
		cmd.Env = append(os.Environ(), anew+"=1", "GOGC=100")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return
	}
	collectLater()
	litter := func(megabytes int) uint32 {
		for range megabytes {
			sink = make([]byte, 1<<20)
		}
		var st runtime.MemStats
		runtime.ReadMemStats(&st)
		return st.NumGC
	}
	if n := litter(10); n != 0 {
		t.Errorf("10 MB of garbage were looked for %d times", n)
	}
	if n := litter(30); n == 0 {
		t.Error("40 MB of garbage were left alone")
	}
	for { // until the test's time is over: the rule changes in a goroutine of its own
		runtime.GC()
		percent := debug.SetGCPercent(100)
		if percent == 100 {
			break
		}
		debug.SetGCPercent(percent)
		runtime.Gosched()
	}
}

var sink []byte
