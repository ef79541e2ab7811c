package gvisor

import (
	"bufio"
	"os/exec"
	"strconv"
	"strings"
	"testing"
)

// TestWrittenBy: what a process and its children have written is known, of those that
// have ended too, and of files that were mapped.
func TestWrittenBy(t *testing.T) {
	const mapper = `import mmap; f = open('map', 'w+b'); f.truncate(4 << 20); m = mmap.mmap(f.fileno(), 4 << 20); m[:] = bytes(4 << 20)`
	cmd := exec.Command("sh", "-c", "head -c 8M /dev/zero >ended; (head -c 16M /dev/zero >lives; touch ready; read x) <&0 & python3 -c \"$0\"; until test -e ready; do sleep 0.01; done; echo written; read x", mapper)
	cmd.Dir = t.TempDir()
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = in.Close(); _ = cmd.Wait() }()
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "written\n" {
		t.Fatal(strings.TrimSpace(line), err)
	}
	calls, pages, err := writtenBy(strconv.Itoa(cmd.Process.Pid))
	if err != nil || calls < 24<<20 || calls > 25<<20 {
		t.Errorf("by calls %d bytes, %v", calls, err)
	}
	if pages > 1<<20 && (pages < 28<<20 || pages > 30<<20) { // less: a file system in memory, and what Python left elsewhere
		t.Errorf("%d bytes as pages", pages)
	}
	if _, _, err := writtenBy("0"); err == nil {
		t.Error("nobody's bytes are known")
	}
}
