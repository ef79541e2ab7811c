package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// inContainer runs a server as a container's main process has it: in a mount namespace that
// nothing comes into from outside, and, with cgroup v1, in a cgroup of its own, of which it
// sees the part below, and sees it twice.
const inContainer = `set -e
mount --make-rprivate /
if test -d /sys/fs/cgroup/memory; then
	echo $$ >"$1/cgroup.procs"
	mount --bind "$1" /sys/fs/cgroup/memory
	mount --bind /sys/fs/cgroup/memory /sys/fs/cgroup/memory
fi
exec cove serve --addr 127.0.0.1:0
`

// TestServerInContainer boots a sprite there, with limits, and moves it to another disk. A
// disk that is unmounted there is held by no process of the sprite's.
func TestServerInContainer(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root has a container's mounts to itself")
	}
	h := newHost(t)
	group := "/sys/fs/cgroup/memory/" + strings.ReplaceAll(filepath.Base(filepath.Dir(filepath.Dir(h.data))), "/", "-")
	v1 := isDir("/sys/fs/cgroup/memory")
	if v1 {
		if err := os.Mkdir(group, 0o755); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { await(t, "the cgroup's end", time.Minute, func() bool { return unix.Rmdir(group) == nil }) })
	}
	usb := filepath.Join(filepath.Dir(h.home), "usb")
	if err := os.Mkdir(usb, 0o700); err != nil {
		t.Fatal(err)
	}
	cmd := h.command("", "unshare", "-m", "sh", "-c", "mount -t tmpfs usb "+usb+"\n"+inContainer, "sh", group)
	cmd.Path, _ = exec.LookPath("unshare")
	log, err := os.Create(filepath.Join(h.data, "serve.log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { _ = cmd.Wait(); close(ended) }()
	t.Cleanup(func() { // before the cgroup's
		if err := endServer(h.bin, h.data, h.home); err != nil {
			t.Errorf("end the server: %v", err)
		}
		<-ended
	})
	await(t, "the server", time.Minute, func() bool { pid, err := serverPID(h.data); return err == nil && pid == cmd.Process.Pid })

	h.run("", "cove", "create", "inner", "--idle", "0", "--memory", "512M")
	h.sh("inner", "echo kept >kept")
	h.run("", "cove", "checkpoint", "create", "-s", "inner")
	if got := h.sh("inner", "cat kept"); got != "kept\n" {
		t.Errorf("the file has %q", got)
	}
	if info := h.run("", "cove", "info", "inner"); v1 && strings.Contains(info, "not enforced") {
		t.Errorf("limits of a container that may write its cgroups:\n%s", info)
	}
	for _, pid := range h.shims() {
		text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "mountinfo"))
		if err != nil || strings.Contains(string(text), usb) {
			t.Errorf("the shim holds the disk that it does not need: %v\n%s", err, text)
		}
	}
}

func isDir(name string) bool {
	st, err := os.Stat(name)
	return err == nil && st.IsDir()
}
