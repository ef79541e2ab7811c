package gitwork_test

import (
	"bufio"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/cove-dev/cove/internal/lib/printable"
	"github.com/cove-dev/cove/internal/test/executable"
)

// TestNoOrphan: if cove is killed while git writes the work tree, git ends, and so does the
// program that git has started. The test waits for the end of a pipe that both have open.
func TestNoOrphan(t *testing.T) {
	if dir := os.Getenv("TEST_ORPHAN_REPO"); dir != "" {
		r := repo{t, dir, os.Getenv("HOME")}
		t.Fatalf("came to the end: %v", r.forward(os.Getenv("TEST_BASE"), os.Getenv("TEST_HEAD")))
	}
	home(t, "")
	r, base, head := delivered(t)
	git, err := exec.LookPath("git")
	if err != nil {
		t.Fatal(err)
	}
	bin := t.TempDir()
	says, hears := filepath.Join(bin, "says"), filepath.Join(bin, "hears")
	for _, name := range []string{says, hears} {
		if err := syscall.Mkfifo(name, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	script := `#!/bin/sh
for arg; do
	if [ "$arg" = read-tree ]; then
		exec 8>` + printable.Word(says) + `
		/bin/sh -c 'echo ready >&8; read -r x <"$0"' ` + printable.Word(hears) + `
	fi
done
exec ` + printable.Word(git) + ` "$@"
`
	executable.Write(t, filepath.Join(bin, "git"), script)
	cmd := exec.Command(os.Args[0], "-test.run=^TestNoOrphan$")
	cmd.Env = append(env(r.home), "TEST_ORPHAN_REPO="+r.dir, "TEST_BASE="+base, "TEST_HEAD="+head, "TMPDIR="+t.TempDir(),
		"PATH="+bin+string(os.PathListSeparator)+os.Getenv("PATH"))
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // whatever still waits goes on
		if f, err := os.OpenFile(hears, os.O_RDWR|syscall.O_NONBLOCK, 0); err == nil {
			_ = f.Close()
		}
	})
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	opened := make(chan *os.File, 1)
	go func() {
		f, err := os.Open(says) // waits for git
		if err != nil {
			t.Error(err)
		}
		opened <- f
	}()
	var pipe *os.File
	select {
	case pipe = <-opened:
	case err := <-ended:
		t.Fatalf("git was not reached: %v", err)
	}
	defer func() { _ = pipe.Close() }()
	said := bufio.NewReader(pipe)
	if line, err := said.ReadString('\n'); line != "ready\n" {
		t.Fatalf("got %q, %v", line, err)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err == nil {
		t.Error("a pull that was killed reports no error")
	}
	if rest, err := io.ReadAll(said); err != nil || len(rest) > 0 {
		t.Errorf("got %q, %v", rest, err)
	}
	g := r.open()
	lock, err := g.Lock(t.Context()) // which a git of ours that went on would hold
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Unlock()
	if _, err := g.Recover(t.Context(), lock); err != nil {
		t.Fatal(err)
	}
	r.at(base)
}
