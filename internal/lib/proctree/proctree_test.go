package proctree_test

import (
	"bufio"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/cove-dev/cove/internal/lib/proctree"
)

// TestBelow: children and grandchildren are below this process; the process itself is not.
func TestBelow(t *testing.T) {
	cmd := exec.Command("sh", "-c", "exec 3<&0; cat <&3 & echo $!; wait")
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
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	grandchild, err := strconv.Atoi(strings.TrimSpace(line))
	if err != nil {
		t.Fatal(err)
	}
	below := proctree.Below(os.Getpid())
	if !slices.Contains(below, cmd.Process.Pid) || !slices.Contains(below, grandchild) || slices.Contains(below, os.Getpid()) {
		t.Errorf("got %v below %d, want %d and %d among them", below, os.Getpid(), cmd.Process.Pid, grandchild)
	}
	_ = in.Close()
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
}
