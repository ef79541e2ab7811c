package tools

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// TestWriteFile: several writers of a file at the same time each write it whole, and no write
// fails because of the others.
func TestWriteFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a", "b.txt")
	if err := WriteFile(path, "first\n"); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, 0o751); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for n := range 4 {
		wg.Go(func() {
			for range 20 {
				if err := WriteFile(path, strings.Repeat(fmt.Sprint(n), 1<<16)); err != nil {
					t.Errorf("write: %v", err)
				}
			}
		})
	}
	wg.Wait()
	text, err := os.ReadFile(path)
	if err != nil || len(text) != 1<<16 || len(bytes.Trim(text, string(text[:1]))) > 0 {
		t.Errorf("the file has %d bytes, %v", len(text), err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o751 {
		t.Errorf("its mode: %v, %v", info.Mode(), err)
	}
	if err := WriteFile(filepath.Dir(path), "x"); err == nil || !strings.Contains(err.Error(), filepath.Dir(path)+" is a folder") {
		t.Errorf("over a folder: %v", err)
	}
}

// TestKept: a command that is kept is found, heard and ended with all that it started.
func TestKept(t *testing.T) {
	var out bytes.Buffer
	c := &KeptCommand{
		Keeper: []string{os.Args[0], "tool", "keep"}, Argv: []string{"sh", "-c", "echo $A; echo err >&2; sleep 8282 & exit 3"},
		Dir: t.TempDir(), Env: append(os.Environ(), "A=b"), Output: &out,
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	select {
	case <-c.Ended():
	case <-time.After(lastResort):
		t.Fatal("it does not end")
	}
	if code, signal := c.Exit(); code != 3 || signal != "" {
		t.Errorf("it ended with %d, %q", code, signal)
	}
	select {
	case <-c.Gone():
		t.Error("what it started is gone before it was ended")
	default:
	}
	c.Kill()
	select {
	case <-c.Gone():
	case <-time.After(lastResort):
		t.Fatal("something of it is left")
	}
	if left, err := exec.Command("pgrep", "-f", "sleep 8282").Output(); err == nil {
		t.Errorf("left: %s", left)
	}
	if out.String() != "b\nerr\n" {
		t.Errorf("it said %q", out.String())
	}
	none := &KeptCommand{Keeper: c.Keeper, Argv: []string{"no-such-program"}, Dir: c.Dir, Env: os.Environ(), Output: &out}
	if err := none.Start(); err == nil || !strings.Contains(err.Error(), "no-such-program") {
		t.Errorf("a program that is not there: %v", err)
	}
}
