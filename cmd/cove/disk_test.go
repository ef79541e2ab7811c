package main

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cove-dev/cove/internal/test/need"
)

// smallDisk mounts a disk of that size at a path, until the test ends.
func smallDisk(t testing.TB, path, size string) {
	t.Helper()
	if err := errors.Join(os.MkdirAll(path, 0o755), syscall.Mount("none", path, "tmpfs", 0, "mode=0700,size="+size)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(path, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
}

// newRootHost is newHost for a test that mounts disks.
func newRootHost(t *testing.T) *host {
	t.Helper()
	need.Root(t)
	return newHost(t)
}

// newSmallHost is newHost with a data folder on a disk of that size.
func newSmallHost(t *testing.T, size string) *host {
	t.Helper()
	return newHostOn(t, size, smallDisk)
}

// newHostOn is newHost with a data folder on a disk that mount has made at a path.
func newHostOn(t *testing.T, size string, mount func(t testing.TB, path, size string)) *host {
	t.Helper()
	h := newRootHost(t)
	mount(t, h.data, size)
	t.Cleanup(func() { // before the disk's
		if err := endServer(h.bin, h.data, h.home); err != nil {
			t.Errorf("end the server: %v", err)
		}
	})
	return h
}

// TestFullDisk fills the disk under a server, a job and a sprite. What can't be
// done says why, and when there is room again the job goes on and nothing is lost.
func TestFullDisk(t *testing.T) {
	h := newSmallHost(t, "96m")
	h.serve(nil, "--disk-reserve", "0")
	repo := h.repository("repo", map[string]string{"plan.md": waitingPlan})
	job, sprite := h.push(repo, "plan.md", "--agent", "shell")
	h.untilStep(job)

	out, code := h.try("", "cove", "exec", "-s", sprite, "--", "sh", "-c", "cat /dev/zero >~/fill")
	if code == 0 || !strings.Contains(out, "No space left on device") {
		t.Errorf("a command that fills the disk: %d, %s", code, out)
	}
	if out, code := h.try("", "cove", "list"); code != 0 || !strings.Contains(out, sprite) {
		t.Errorf("list on a full disk: %d, %s", code, out)
	}
	if out, code := h.try(repo, "cove", "push", "--agent", "shell", "plan.md"); code == 0 || !strings.Contains(strings.ToLower(out), "space") && !strings.Contains(out, "full") {
		t.Errorf("push on a full disk: %d, %s", code, out)
	}
	big := filepath.Join(filepath.Dir(h.home), "big")
	if err := os.WriteFile(big, make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, code := h.try("", "cove", "cp", "big", sprite+":/home/sprite/big"); code == 0 || !strings.Contains(strings.ToLower(out), "space") {
		t.Errorf("cp to a full disk: %d, %s", code, out)
	}
	h.run("", "cove", "exec", "-s", sprite, "rm", "fill")
	h.run("", "cove", "exec", "-s", sprite, "touch", "go-on")
	if out, code := h.try(repo, "cove", "pull", job, "--wait=10m"); code != 0 {
		t.Errorf("pull when there is room again: %d, %s", code, out)
	}
	if got := h.run(repo, "git", "log", "--format=%s"); got != "Two\nOne\nfirst\n" {
		t.Errorf("commits: got %q", got)
	}
}

// TestFullDiskKept: where there is no space for a memory or an archive, that is said,
// with the code for it, and without the server's paths.
func TestFullDiskKept(t *testing.T) {
	h := newSmallHost(t, "256m")
	h.serve(nil, "--disk-reserve", "0")
	h.run("", "cove", "create", "paint", "--idle", "0")
	h.run("", "cove", "exec", "-s", "paint", "--detach", "--", "python3", "-c", "import time; x = bytes(range(256)) * 80000; time.sleep(1000)")
	archive := h.export(t, "paint")
	fill := filepath.Join(h.data, "fill")
	full := func(but int64) {
		t.Helper()
		if err := os.Remove(fill); err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
		if out, err := exec.Command("sh", "-c", "cat /dev/zero >"+fill).CombinedOutput(); err == nil {
			t.Fatalf("fill the disk: %s", out)
		}
		st, err := os.Stat(fill)
		if err == nil {
			err = os.Truncate(fill, st.Size()-but)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	says := func(out string, code, want int, what string) {
		t.Helper()
		if code != want || !strings.Contains(out, what) || strings.Contains(out, h.data) || strings.Contains(out, "MemoryFile") || want > 0 && !strings.Contains(out, "hint: free some space") {
			t.Errorf("%d, %s; want %d, %s", code, out, want, what)
		}
	}
	full(2 << 20)
	out, code := h.try("", "cove", "checkpoint", "create", "-s", "paint", "--memory")
	says(out, code, 0, "It is of the disk alone: there is no space")
	out, code = h.try("", "cove", "suspend", "paint")
	says(out, code, 6, "paint stays awake: there is no space")
	full(0)
	out, code = h.feed(archive, "import", "copy")
	says(out, code, 6, "the disk of the server")
	h.noImports(t)
	full(64 << 10)
	out, code = h.feed(archive, "import", "copy", "--max-size", "1G")
	says(out, code, 6, "not enough space for the archive")
	h.noImports(t)
	if err := os.Remove(fill); err != nil {
		t.Fatal(err)
	}
	h.run("", "cove", "suspend", "paint")
	if out, code := h.feed(archive, "import", "copy"); code != 0 {
		t.Errorf("import when there is room again: %d, %s", code, out)
	}
}

// TestTerminal uses a console in a real terminal, tmux's: it shows the size, takes
// keys, survives the server, can be left and joined again, and ends with the shell.
func TestTerminal(t *testing.T) {
	h := newHost(t)
	h.serve(nil)
	h.run("", "cove", "create", "paint")
	h.write("home/.tmux.conf", "set -g default-shell /bin/sh\n")
	socket := filepath.Join(filepath.Dir(h.home), "tmux.sock")
	tmux := func(args ...string) string {
		return h.run("", "tmux", append([]string{"-S", socket}, args...)...)
	}
	tmux("new-session", "-d", "-x", "90", "-y", "25", "sh")
	defer tmux("kill-server")
	defer func() {
		if t.Failed() {
			t.Logf("the terminal shows:\n%s", tmux("capture-pane", "-p"))
		}
	}()
	keys := func(text string) { tmux("send-keys", text, "Enter") }
	says := func(text, what string) { // once it has been typed often enough
		t.Helper()
		await(t, "the terminal shows "+what, func() bool {
			if text != "" {
				keys(text)
				time.Sleep(50 * time.Millisecond)
			}
			return strings.Contains(tmux("capture-pane", "-p"), what)
		})
	}
	shows := func(what string) { t.Helper(); says("", what) }
	keys("cove console -s paint; echo left with $?")
	shows("$")
	keys("tty && stty size && echo in-$(hostname)")
	shows("/dev/pts/")
	shows("25 90")
	shows("in-paint")
	tmux("resize-window", "-x", "70", "-y", "20")
	says("clear; stty size", "20 70") // the shell may be faster than the news
	keys("echo nap''ping; sleep 100")
	shows("napping")
	await(t, "an interrupt", func() bool { // it may come before the sleep
		tmux("send-keys", "C-c")
		keys("echo inter''rupted; mine=value")
		time.Sleep(50 * time.Millisecond)
		return strings.Contains(tmux("capture-pane", "-p"), "interrupted")
	})
	first := h.pid()
	signalAll(t, syscall.SIGKILL, first)
	await(t, "the next server", func() bool { pid := h.pid(); return pid != first && pid != 0 })
	says("clear; echo again with $mine", "again with value") // what is typed before it is back is lost
	tmux("send-keys", "C-\\")                                // leave
	shows("left with 0")
	keys("clear; cove console -r paint; echo left with $?")
	shows("again with value") // what it showed
	keys("clear; echo back with $mine; exit 7")
	shows("back with value")
	shows("left with 7")
}

// TestInteractive starts a job's agent in a terminal, leaves it, joins it again,
// and has its work collected when it ends.
func TestInteractive(t *testing.T) {
	h := newHost(t)
	h.serve(nil)
	repo := h.repository("repo", map[string]string{"plan.md": "## One\n```sh\nread word\necho $word > one.txt\n```\n"})
	socket := filepath.Join(filepath.Dir(h.home), "tmux.sock")
	tmux := func(args ...string) string {
		return h.run(repo, "tmux", append([]string{"-S", socket}, args...)...)
	}
	tmux("new-session", "-d", "-x", "90", "-y", "25", "sh")
	defer tmux("kill-server")
	keys := func(text string) { tmux("send-keys", text, "Enter") }
	var job string
	keys("cove push plan.md --agent shell --interactive")
	await(t, "the job runs", func() bool {
		out := h.run("", "cove", "job", "list", "--json")
		if i := strings.Index(out, `"id": "`); i >= 0 {
			job = out[i+7:][:6]
		}
		return strings.Contains(out, `"running"`)
	})
	tmux("send-keys", "C-\\") // leave
	await(t, "the terminal is back", func() bool {
		keys("echo out-$((1+1))side")
		return strings.Contains(tmux("capture-pane", "-p"), "out-2side")
	})
	if show := h.run("", "cove", "job", "show", job); !strings.Contains(show, "running") {
		t.Fatalf("leaving ended the job: %s", show)
	}
	keys("clear; cove job attach " + job)
	keys("typed")
	if out, code := h.try(repo, "cove", "pull", job, "--wait=10m"); code != 0 {
		t.Fatalf("pull: %d, %s", code, out)
	}
	if got := h.run(repo, "git", "show", "HEAD:one.txt"); got != "typed\n" {
		t.Errorf("one.txt: got %q", got)
	}
}
