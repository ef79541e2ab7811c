package checkpoints

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cove-dev/cove/internal/test/e2e"
)

// holding is a program that has 320 MiB of memory that are not zero, and counts in a file.
const holding = `import os, time
a = bytearray(320 << 20)
for i in range(320): a[i<<20:(i+1)<<20] = os.urandom(1 << 20)
n = 0
while True:
    n += 1
    open('count', 'w').write('%d %d' % (n, os.getpid()))
    time.sleep(0.05)
`

// goesOn fails unless the number in the file count grows, by the process that wrote it
// before. The file is empty for a moment whenever it is written.
const goesOn = `read_count() {
	for try in $(seq 20000); do b=$(cat count); [ "$b" ] && return; sleep 0.01; done
	echo "nothing is counted"; exit 1
}
read_count; a=$b
for n in $(seq 4000); do
	read_count
	[ "${a#* }" = "${b#* }" ] || { echo "another process counts: $a, then $b"; exit 1; }
	[ "$a" = "$b" ] || exit 0
	sleep 0.05
done
echo "it stays at $b"; exit 1`

func startHolding(t *testing.T, h *e2e.Host) {
	t.Helper()
	h.Write("hold.py", holding)
	h.Run("", "cove", "create", "paint", "--idle", "0", "--memory", "512M")
	h.Run("", "cove", "cp", h.Home+"/../hold.py", "paint:hold.py")
	h.Run("", "cove", "exec", "-s", "paint", "--", "sh", "-c", "setsid nohup python3 hold.py >/dev/null 2>&1 & for i in $(seq 6000); do [ -s count ] && exit; sleep 0.1; done; exit 1")
}

// TestSaveNearLimit: if a sprite uses most of its memory limit, its memory is still
// saved, though the written image counts as its own. Afterwards the limit is back
// (checked with cgroup v1 only).
func TestSaveNearLimit(t *testing.T) {
	h := e2e.NewHost(t)
	h.Serve(nil)
	startHolding(t, h)
	// counts fails unless the program goes on.
	counts := func() {
		t.Helper()
		h.Run("", "cove", "exec", "-s", "paint", "--", "sh", "-c", goesOn)
	}
	counts()
	h.Run("", "cove", "checkpoint", "create", "-s", "paint")
	counts()
	if _, err := h.Client().Sprite("paint").Suspend(t.Context()); err != nil {
		t.Fatal(err)
	}
	counts()
	data, err := os.ReadFile(filepath.Join("/sys/fs/cgroup/memory/cove-"+h.SandboxState().Container, "memory.limit_in_bytes"))
	if err != nil {
		t.Logf("the limit is not checked, because cgroup v1 has none here: %v", err)
	} else if len(strings.TrimSpace(string(data))) > len("536870912") {
		t.Errorf("the limit is %s", data)
	}
}

// TestEndInCheckpoint: if a sandbox ends while its memory is saved, the error says so, no
// checkpoint is listed, and the next use boots. If the kill comes too late, the checkpoint is made,
// and the test tries again.
func TestEndInCheckpoint(t *testing.T) {
	h := e2e.NewHost(t)
	h.Serve(nil)
	var before []string
	for deadline := time.Now().Add(e2e.LastResort); ; {
		startHolding(t, h)
		before = listed(t, h)
		out, err := endWhileSaving(t, h)
		if err == nil && time.Now().Before(deadline) {
			h.Run("", "cove", "rm", "--force", "paint")
			continue
		}
		if err == nil || !strings.Contains(out, "the sandbox has ended") || strings.Contains(out, "connection refused") {
			t.Errorf("%v: %s", err, out)
		}
		break
	}
	began := time.Now()
	h.Run("", "cove", "exec", "-s", "paint", "true")
	t.Logf("the next use took %v", time.Since(began))
	if now := listed(t, h); !slices.Equal(now, before) {
		t.Errorf("there are the checkpoints %q, and before there were %q", now, before)
	}
}

// listed returns the names of the checkpoints of paint.
func listed(t *testing.T, h *e2e.Host) (ids []string) {
	t.Helper()
	all, err := h.Client().Sprite("paint").Checkpoints(t.Context(), true)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range all {
		ids = append(ids, c.ID)
	}
	return ids
}

// endWhileSaving makes a checkpoint of paint, and kills the sandbox once a part of its memory is
// saved. It returns how the command ended.
func endWhileSaving(t *testing.T, h *e2e.Host) (out string, ended error) {
	t.Helper()
	sandbox := h.SandboxState().PID
	_, wait := h.Background("", "cove", "checkpoint", "create", "-s", "paint")
	done := make(chan struct{})
	go func() { out, ended = wait(); close(done) }()
	e2e.Await(t, "a part of its memory in the image", func() bool {
		select {
		case <-done: // it was saved between two looks
			return true
		default:
		}
		// It is in the shim's own mount namespace.
		for _, pid := range h.Shims() {
			pages, _ := filepath.Glob(filepath.Join("/proc", strconv.Itoa(pid), "root", h.Data, "run", "*", "image", "*.img"))
			for _, file := range pages {
				if st, err := os.Stat(file); err == nil && st.Size() > 1<<20 {
					return true
				}
			}
		}
		return false
	})
	if err := e2e.Signal(sandbox, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
		t.Fatal(err)
	}
	<-done
	return out, ended
}
