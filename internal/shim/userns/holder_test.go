package userns

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cove-dev/cove/internal/lib/private"
)

// TestNoteHolder: each holder is noted in the file of the one before, and none of its room
// is given back. The file of an earlier cove does not get in the way.
func TestNoteHolder(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, holderFile)
	start, err := processStart(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte("4194303 12345678901\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	was, err := os.Stat(file)
	if err != nil {
		t.Fatal(err)
	}
	folder, err := private.FolderID(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, holder := range []struct {
		pid   int
		start string
		want  int
	}{{4194304, "98765432109876", 0}, {os.Getpid(), start, os.Getpid()}, {1, "0", 0}} {
		if err := noteHolder(dir, holder.pid, holder.start, folder); err != nil {
			t.Fatal(err)
		}
		if got, err := findHolder(dir); err != nil || got != holder.want {
			t.Errorf("after %d was noted: got %d, %v, want %d", holder.pid, got, err, holder.want)
		}
		is, err := os.Stat(file)
		if err != nil || !os.SameFile(is, was) || is.Size() < was.Size() {
			t.Errorf("after %d was noted: %v, %v, want the same file, and none of it given back", holder.pid, is, err)
		}
		if _, err := os.Stat(file + ".new"); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s.new: %v", holderFile, err)
		}
	}
}

// TestOneHolder: servers that begin at once have one holder, and so one user namespace.
func TestOneHolder(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	in, out, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var begun []*exec.Cmd // guarded by mu
	defer func() {
		_ = errors.Join(out.Close(), in.Close())
		for _, cmd := range begun {
			_ = cmd.Wait() // it has read nothing
		}
	}()
	var servers sync.WaitGroup
	pids := make([]int, 8)
	for i := range pids {
		servers.Go(func() {
			pid, err := oneHolder(dir, func() (int, error) {
				cmd := exec.Command("sh", "-c", "read line")
				cmd.Stdin, cmd.SysProcAttr = in, &syscall.SysProcAttr{}
				mu.Lock()
				begun = append(begun, cmd)
				mu.Unlock()
				return runHolder(dir, cmd, func() error { return nil })
			})
			if err != nil {
				t.Error(err)
			}
			pids[i] = pid
		})
	}
	servers.Wait()
	if len(begun) != 1 || len(slices.Compact(pids)) != 1 {
		t.Errorf("%d holders were started, and the servers have %v", len(begun), pids)
	}
}

// TestHolderOfCopy: a data folder that is moved keeps its holder, and a copy does not take
// the original's, also if an earlier cove started that.
func TestHolderOfCopy(t *testing.T) {
	for _, earlier := range []bool{false, true} {
		top := t.TempDir()
		dir, moved, copied := filepath.Join(top, "data"), filepath.Join(top, "moved"), filepath.Join(top, "copied")
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command("sh", "-c", "read line", "hold", "--data", dir)
		in, err := cmd.StdinPipe()
		if err == nil {
			err = cmd.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			_ = in.Close()
			_ = cmd.Wait() // it has read nothing
		}()
		for startedFor(cmd.Process.Pid) == "" { // it has only just begun
			<-time.After(time.Millisecond)
		}
		start, err := processStart(cmd.Process.Pid)
		if err != nil {
			t.Fatal(err)
		}
		folder, err := private.FolderID(dir)
		if err != nil {
			t.Fatal(err)
		}
		if earlier {
			folder = ""
		}
		if err := os.WriteFile(filepath.Join(dir, holderFile), fmt.Appendln(nil, cmd.Process.Pid, start, folder), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.CopyFS(copied, os.DirFS(dir)); err != nil {
			t.Fatal(err)
		}
		want := func(dir string, want int) {
			t.Helper()
			if pid, err := findHolder(dir); err != nil || pid != want {
				t.Errorf("earlier %v, %s: got holder %d, %v, want %d", earlier, filepath.Base(dir), pid, err, want)
			}
		}
		want(dir, cmd.Process.Pid)
		want(copied, 0)
		if err := os.Rename(dir, moved); err != nil {
			t.Fatal(err)
		}
		want(moved, cmd.Process.Pid)
	}
}
