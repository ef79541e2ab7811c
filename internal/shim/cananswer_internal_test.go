package shim

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestCanAnswer: a process that has all files open that it may is told from one that has not. A
// call to such a sandbox would never be answered.
func TestCanAnswer(t *testing.T) {
	if err := canAnswer(os.Getpid()); err != nil {
		t.Errorf("this process: %v", err)
	}
	cmd := exec.Command("cat")
	cmd.ExtraFiles = []*os.File{os.Stdin, os.Stdin, os.Stdin} // 6 files
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Wait() }()
	defer in.Close()
	for range 2 { // by then its libraries are loaded
		if _, err := in.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
		if _, err := out.Read(make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct {
		limit uint64
		full  bool
	}{{100, false}, {6, true}} {
		if err := unix.Prlimit(cmd.Process.Pid, unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: tt.limit, Max: 100}, nil); err != nil {
			t.Fatal(err)
		}
		err := canAnswer(cmd.Process.Pid)
		if (err != nil) != tt.full || err != nil && (!errors.Is(err, unix.EMFILE) || !strings.Contains(err.Error(), "too many open files")) {
			t.Errorf("a limit of %d: got %v", tt.limit, err)
		}
	}
}
