package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cove-dev/cove/internal/shim"
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
	for try in $(seq 200); do b=$(cat count); [ "$b" ] && return; sleep 0.01; done
	echo "nothing is counted"; exit 1
}
read_count; a=$b
for n in $(seq 200); do
	read_count
	[ "${a#* }" = "${b#* }" ] || { echo "another process counts: $a, then $b"; exit 1; }
	[ "$a" = "$b" ] || exit 0
	sleep 0.05
done
echo "it stays at $b"; exit 1`

func startHolding(t *testing.T, h *host) {
	t.Helper()
	h.write("hold.py", holding)
	h.run("", "cove", "create", "paint", "--idle", "0", "--memory", "512M")
	h.run("", "cove", "cp", h.home+"/../hold.py", "paint:hold.py")
	h.run("", "cove", "exec", "-s", "paint", "--", "sh", "-c", "setsid nohup python3 hold.py >/dev/null 2>&1 & for i in $(seq 1200); do [ -s count ] && exit; sleep 0.1; done; exit 1")
}

// sandboxState is what a host's only sandbox is.
func (h *host) sandboxState() shim.State {
	h.t.Helper()
	files, _ := filepath.Glob(filepath.Join(h.data, "run", "*", "sandbox.json")) // the pattern is right
	if len(files) != 1 {
		h.t.Fatalf("there are %q", files)
	}
	data, err := os.ReadFile(files[0])
	var st shim.State
	if err == nil {
		err = json.Unmarshal(data, &st)
	}
	if err != nil {
		h.t.Fatal(err)
	}
	return st
}

// TestSaveNearLimit: the memory of a sprite that uses most of what it may is saved,
// though what is written of it counts as its own; afterwards its limit is what it was.
func TestSaveNearLimit(t *testing.T) {
	h := newHost(t)
	h.serve(nil)
	startHolding(t, h)
	// counts fails unless the program goes on.
	counts := func() {
		t.Helper()
		h.run("", "cove", "exec", "-s", "paint", "--", "sh", "-c", goesOn)
	}
	counts()
	h.run("", "cove", "checkpoint", "create", "-s", "paint")
	counts()
	if _, err := h.client().Sprite("paint").Suspend(t.Context()); err != nil {
		t.Fatal(err)
	}
	counts()
	if data, err := os.ReadFile(filepath.Join("/sys/fs/cgroup/memory/cove-"+h.sandboxState().Container, "memory.limit_in_bytes")); err == nil && len(strings.TrimSpace(string(data))) > len("536870912") {
		t.Errorf("the limit is %s", data)
	}
}

// TestEndInCheckpoint: a sandbox that ends while its memory is saved is said to have
// ended, and the next use boots at once.
func TestEndInCheckpoint(t *testing.T) {
	h := newHost(t)
	h.serve(nil)
	startHolding(t, h)
	_, ended := h.background("", "cove", "checkpoint", "create", "-s", "paint")
	await(t, "a part of its memory in the image", func() bool {
		// It is in the shim's own mount namespace.
		for _, pid := range h.shims() {
			pages, _ := filepath.Glob(filepath.Join("/proc", strconv.Itoa(pid), "root", h.data, "run", "*", "image", "*.img"))
			for _, file := range pages {
				if st, err := os.Stat(file); err == nil && st.Size() > 1<<20 {
					return true
				}
			}
		}
		return false
	})
	if err := unix.Kill(h.sandboxState().PID, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	out, err := ended()
	if err == nil || !strings.Contains(out, "the sandbox has ended") || strings.Contains(out, "connection refused") {
		t.Errorf("%v: %s", err, out)
	}
	began := time.Now()
	h.run("", "cove", "exec", "-s", "paint", "true")
	t.Logf("the next use took %v", time.Since(began))
	if out := h.run("", "cove", "checkpoint", "list", "-s", "paint", "--json"); strings.Contains(out, `"v1"`) {
		t.Errorf("it is listed: %s", out)
	}
}
