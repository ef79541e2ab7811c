package hostile

import (
	"strings"
	"testing"

	"github.com/cove-dev/cove/internal/lib/boot"
	"github.com/cove-dev/cove/internal/test/e2e"
)

// bomb leaves the sprite's control group, and makes processes and threads until it can't.
const bomb = `
import os, sys, threading, time
os.makedirs('/sys/fs/cgroup/free', exist_ok=True)
open('/sys/fs/cgroup/free/cgroup.procs', 'w').write(str(os.getpid()))
threading.stack_size(64 << 10)
stay, made = threading.Event(), 0
for _ in range(64): # processes, too
    if os.fork() == 0: time.sleep(1e6)
    made += 1
try:
    while made < int(sys.argv[1]):
        threading.Thread(target=stay.wait, daemon=True).start(); made += 1
    print('no bound')
except RuntimeError:
    try:
        os.fork() or os._exit(0)
        print('a process more')
    except BlockingIOError:
        print('bound', flush=True)
        time.sleep(1e6)
`

// TestTasksBound: root in a sprite may leave the control group that limits processes. It still
// can't make more processes than gVisor itself allows. The sprite goes on, and takes commands.
func TestTasksBound(t *testing.T) {
	h := e2e.NewHost(t)
	h.Run("", "cove", "create", "paint", "--idle", "0")
	h.Write("bomb.py", bomb)
	h.Run("", "cove", "cp", h.Path("bomb.py"), "paint:bomb.py")
	h.Run("", "cove", "exec", "-s", "paint", "--user", "root", "--detach", "--", "sh", "-c", `exec python3 bomb.py "$0" >said 2>&1`, "10000")
	e2e.Await(t, "the bomb's end", func() bool {
		_, code := h.Try("", "cove", "exec", "-s", "paint", "--", "test", "-s", "said")
		return code == 0
	})
	said := h.Run("", "cove", "exec", "-s", "paint", "--", "cat", "said")
	if said != "bound\n" {
		t.Errorf("with %d processes allowed: %s", boot.PidsMax, said)
	}
	if out := h.Run("", "cove", "exec", "-s", "paint", "--user", "root", "--", "pkill", "-9", "python3"); strings.TrimSpace(out) != "" {
		t.Error(out)
	}
	h.Sh("paint", "while pgrep python3; do sleep 0.1; done; (echo another process)")
}
