package server

import (
	"strings"
	"testing"

	"github.com/cove-dev/cove/internal/test/e2e"
	"github.com/cove-dev/cove/internal/test/need"
)

// onlyCgroup2 mounts only cgroup v2, writable. If the machine has controllers bound to v1,
// these are missing there.
const onlyCgroup2 = `set -e
mount --make-rprivate /
mount -t tmpfs none /sys/fs/cgroup
mount -t cgroup2 none /sys/fs/cgroup
`

// TestNoControllers: a sandbox boots in a container that can make cgroups without controllers.
// create, info and doctor say that its limits are not enforced.
func TestNoControllers(t *testing.T) {
	need.Root(t)
	if !isDir("/sys/fs/cgroup/memory") {
		return // cgroup2 has its controllers here, and can't be without them
	}
	h := e2e.NewHost(t)
	serveIn(h, onlyCgroup2+"exec cove serve --addr 127.0.0.1:0")
	const lacks = "the cgroups at /sys/fs/cgroup have no controller memory, cpu"
	if out, _ := h.Try("", "cove", "create", "inner", "--memory", "512M", "--cpus", "1"); !strings.Contains(out, "The server's machine does not enforce its limits: memory: "+lacks) {
		t.Errorf("create says:\n%s", out)
	}
	if got := h.Sh("inner", "echo runs"); got != "runs\n" {
		t.Errorf("got %q", got)
	}
	if out := h.Run("", "cove", "info", "inner"); !strings.Contains(out, "memory: "+lacks+"; cpu: "+lacks) {
		t.Errorf("info says:\n%s", out)
	}
	if out, _ := h.Try("", "unshare", "-m", "sh", "-c", onlyCgroup2+"exec cove doctor"); !strings.Contains(out, "whose limits are not enforced") || !strings.Contains(out, "bound to cgroup v1") {
		t.Errorf("doctor says:\n%s", out)
	}
}
